"""Versioned state: as-of reads over a kept history (V25 and its family).

The cases restate those of the versioned store of Kafka Streams (RocksDBVersionedStoreTest) for one
key: there time is observed by the whole store, here by the key.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.state import Version, versioned_state
from millrace.state.specs import StateDeclarationError
from tests.unit.millrace.state.cases import MINUTE, Bed

HISTORY = 300_000
SI = 100_000
BASE = 10


def bed(**options: Any) -> Bed:
    return Bed(price=versioned_state(str, history=HISTORY, **options))


def value_of(text: str) -> str | None:
    return {"-": None, "''": ""}.get(text, text)


@dataclass
class Case:
    """Puts and reads around a time.

    Attributes:
        name: What it shows.
        base: The time that all others are relative to.
        puts_text: ``value@time``; ``-`` deletes, ``''`` is an empty text.
        gets_text: ``time:value[valid from,valid to)``; ``-`` is nothing.
        latest: The newest value.
        replaces: A value is replaced at its own time, so that another order gives another result.
    """

    name: str
    base: int
    puts_text: str
    gets_text: str
    latest: str | None
    replaces: bool = False

    @property
    def puts(self) -> list[tuple[str | None, int]]:
        pairs = (put.split("@") for put in self.puts_text.split())
        return [(value_of(value), self.base + int(at)) for value, at in pairs]

    @property
    def gets(self) -> dict[int, Version[str | None] | None]:
        found: dict[int, Version[str | None] | None] = {}
        for get in self.gets_text.split():
            match = re.fullmatch(r"(-?\d+):(.*?)(?:\[(-?\d+),(-?\d*)\))?", get)
            assert match is not None, get
            at, value, start, end = match.groups()
            valid_to = self.base + int(end) if end else None
            version = None if start is None else Version(value_of(value), self.base + int(start), valid_to)
            found[self.base + int(at)] = version
        return found


CASES = [
    Case(
        "v25",
        SI,
        "-@-20 v10@-10 -@-1 -@1 p10@10 -@20",
        "-5:v10[-10,-1) 15:p10[10,20) 0:- -1:- 2:- 5:- -15:- 30:-",
        None,
    ),
    Case(
        "put_latest",
        BASE,
        "v@0 v2@1",
        "0:v[0,1) 1:v2[1,) 2:v2[1,)",
        "v2",
    ),
    Case(
        "put_null_as_latest",
        BASE,
        "-@0 -@1",
        "0:- 1:- 2:-",
        None,
    ),
    Case(
        "older_with_value_latest",
        BASE,
        "v@0 v2@-2 v1@-1 v4@-4",
        "0:v[0,) -1:v1[-1,0) -2:v2[-2,-1) -3:v4[-4,-2)",
        "v",
    ),
    Case(
        "older_with_null_latest",
        BASE,
        "-@0 v2@-2 v1@-1 v4@-4",
        "0:- -1:v1[-1,0) -2:v2[-2,-1) -3:v4[-4,-2)",
        None,
    ),
    Case(
        "older_null_with_value_latest",
        BASE,
        "v@0 -@-2 -@-1 -@-4 v5@-5 v3@-3 -@-6",
        "0:v[0,) -1:- -2:- -3:v3[-3,-2) -4:- -5:v5[-5,-4) -6:-",
        "v",
    ),
    Case(
        "older_null_with_null_latest",
        BASE,
        "-@0 -@-2 -@-1 -@-4 v3@-3 v5@-5 -@-6",
        "0:- -1:- -2:- -3:v3[-3,-2) -4:- -5:v5[-5,-4) -6:-",
        None,
    ),
    Case(
        "repeat_timestamp_as_latest",
        BASE,
        "to_be_replaced@0 b@0 -@0 -@0 b@0",
        "0:b[0,) -1:-",
        "b",
        replaces=True,
    ),
    Case(
        "repeat_timestamps",
        SI,
        "to_be_replaced@20 -@-10 to_be_replaced@-10 -@-10 to_be_replaced@-1 to_be_replaced@1 "
        "-@-1 -@1 -@10 -@5 vp5@5 to_be_replaced@-5 vn5@-5 -@20 -@20 vn6@-6",
        "30:- 15:- 6:vp5[5,10) 2:- 0:- -1:- -5:vn5[-5,-1) -6:vn6[-6,-5) -8:-",
        None,
        replaces=True,
    ),
    Case(
        "late_puts_between",
        SI,
        "vp20@20 vp10@10 vn10@-10 vn2@-2 vn1@-1 vp1@1",
        "30:vp20[20,) 15:vp10[10,20) 5:vp1[1,10) 0:vn1[-1,1) -1:vn1[-1,1) -2:vn2[-2,-1) -5:vn10[-10,-2)",
        "vp20",
    ),
    Case(
        "late_puts_between_deletions",
        SI,
        "-@20 -@-1 -@1 -@-10 -@10 vp5@5 vn5@-5 vn6@-6",
        "30:- 15:- 6:vp5[5,10) 2:- 0:- -1:- -5:vn5[-5,-1) -6:vn6[-6,-5) -8:-",
        None,
    ),
    Case(
        "fall_through_to_older_as_latest",
        SI,
        "-@-5 vn6@-6 vp20@20 -@10 -@-1 vn2@-2",
        "30:vp20[20,) 12:- 0:- -1:- -2:vn2[-2,-1) -5:- -6:vn6[-6,-5)",
        "vp20",
    ),
    Case(
        "a_late_deletion_ends_where_the_next_begins",
        SI,
        "vp30@30 -@-10 vn5@-5 vn1@-1 -@-2",
        "10:vn1[-1,30) -1:vn1[-1,30) -2:- -5:vn5[-5,-2) -10:-",
        "vp30",
    ),
    Case(
        "an_empty_value_is_no_deletion",
        SI,
        "-@20 -@-10 -@-1 -@1 -@10 ''@5 ''@-5 ''@-6",
        "30:- 15:- 6:''[5,10) 2:- 0:- -1:- -5:''[-5,-1) -6:''[-6,-5) -8:-",
        None,
    ),
    Case(
        "far_apart",
        SI,
        "v@-20 -@-10 v2@199980 -@199990",
        "-30:- -15:v[-20,-10) -5:- 199985:v2[199980,199990)",
        None,
    ),
]


def check(of: Bed, case: Case) -> None:
    with of.on() as s:
        for at, wanted in case.gets.items():
            assert s.price.get(at) == wanted, at
        assert s.price.value == case.latest


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_puts_in_any_order_are_read_as_of_any_time(case: Case, restart: bool) -> None:
    """With a restart between any two puts, and without one."""
    of = bed()
    for value, at in case.puts:
        with of.on() as s:
            assert s.price.put(value, at)
        if restart:
            of.commit()
    check(of, case)


@pytest.mark.parametrize("case", [c for c in CASES if not c.replaces], ids=lambda c: c.name)
def test_the_order_of_puts_does_not_matter(case: Case) -> None:
    for seed in range(20):
        of = bed()
        with of.on() as s:
            for value, at in random.Random(seed).sample(case.puts, len(case.puts)):
                s.price.put(value, at)
        check(of, case)


def test_a_deletion_replaces_what_is_valid_at_its_time() -> None:
    of = bed()
    with of.on() as s:
        for value, at in [("vp20", SI + 20), ("vp10", SI + 10), ("vn10", SI - 10), ("vn2", SI - 2)]:
            s.price.put(value, at)
        s.price.put(None, SI - 5)
        assert s.price.get(SI - 3) is None
        assert s.price.get(SI - 6) == Version("vn10", SI - 10, SI - 5)
        s.price.put(None, SI + 10)
        assert s.price.get(SI + 10) is None
        s.price.put(None, SI + 10)
        s.price.put(None, SI + 25)
        assert s.price.value is None
        assert s.price.get(SI + 24) == Version("vp20", SI + 20, SI + 25)


def test_the_default_time_is_that_of_the_callback() -> None:
    of = bed()
    with of.on(now=50) as s:
        s.price.put("a")
    with of.on(now=60) as s:
        s.price.put("b")
        assert s.price.get() == Version("b", 60, None)
        assert s.price.get(59) == Version("a", 50, 60)


# -- history ---------------------------------------------------------------------------------------


def test_a_put_older_than_the_history_is_refused_and_one_at_its_end_is_not() -> None:
    for seen in (lambda s: s.price.put("v", HISTORY + 10), lambda s: None):
        of = bed()
        with of.on(now=HISTORY + 10) as s:
            seen(s)
            assert s.price.put("old", 10) is True
            assert s.price.put("older", 9) is False
            assert s.price.put(None, 9) is False
            assert s.price.versions()[0].value == "old"


def test_a_replaced_version_is_gone_once_the_observed_time_is_a_history_past_its_end() -> None:
    r"""The end of a version counts, not its beginning.

    time     0 ......... SI-10 ............................ SI-10+HISTORY
    version  [v_old ..........)[v ................................
    observed                                     ^ -1: read   ^ gone
    """
    of = bed()
    with of.on() as s:
        s.price.put("v_old", 0)
        s.price.put("v", SI - 10)
        assert s.price.get(SI - 11) == Version("v_old", 0, SI - 10)
    with of.on(now=HISTORY + SI - 11) as s:
        assert s.price.get(SI - 11) == Version("v_old", 0, SI - 10)
        assert [v.value for v in s.price.versions(0, SI - 11)] == ["v_old"]
    with of.on(now=HISTORY + SI - 10) as s:
        assert s.price.get(SI - 11) is None
        assert s.price.versions(0, SI - 11) == []
        assert s.price.get(SI - 10) == Version("v", SI - 10, None)


def test_a_put_moves_the_observed_time_as_an_event_does() -> None:
    of = bed()
    with of.on() as s:
        s.price.put("v_old", 0)
        s.price.put("v", SI - 10)
        s.price.put("v2", HISTORY + SI - 10)
        assert s.price.get(SI - 11) is None


def test_the_newest_version_is_read_however_old_it_is() -> None:
    of = bed()
    with of.on() as s:
        s.price.put("v", 1)
    with of.on(now=HISTORY + 12) as s:
        assert s.price.get(10) == Version("v", 1, None)
        assert s.price.versions(0, 10) == [Version("v", 1, None)]
        s.price.put("new", HISTORY + 12)
        assert s.price.get(10) is None
        assert s.price.versions(0, 10) == []


def test_versions_are_read_by_range() -> None:
    of = bed()
    with of.on() as s:
        for value, at in [("v1", -30), ("v2", -25), (None, -20), (None, -15), ("v3", -10), ("v4", -5)]:
            s.price.put(value, SI + at)

        def between(since: int | None, until: int | None) -> list[Any]:
            return [v.value for v in s.price.versions(since, until)]

        assert between(SI - 40, SI - 35) == []
        assert between(SI - 30, SI - 5) == ["v1", "v2", "v3", "v4"]
        assert between(None, None) == ["v1", "v2", "v3", "v4"]
        assert between(SI - 4, SI) == ["v4"]
        assert between(SI - 5, SI - 5) == ["v4"]
        assert between(SI - 31, SI - 21) == ["v1", "v2"]
        assert between(SI - 24, SI - 11) == ["v2"]
        assert between(SI - 11, SI - 4) == ["v3", "v4"]
        assert between(SI - 26, SI - 5) == ["v1", "v2", "v3", "v4"]
        assert between(SI - 15, SI - 10) == ["v3"]
        assert between(SI - 19, SI - 16) == []
        assert s.price.versions(SI - 26, SI - 21) == [
            Version("v1", SI - 30, SI - 25),
            Version("v2", SI - 25, SI - 20),
        ]
        assert len(s.price) == 4


def test_kept_versions_are_bounded_by_the_history() -> None:
    of = bed()
    for i in range(1_000):
        with of.on(now=i * MINUTE) as s:
            s.price.put(f"v{i}")
        of.commit(i * MINUTE)
    (entry,) = of.kept().values()
    assert len(entry.price) == HISTORY // MINUTE + 1


def test_the_sweep_forgets_history_of_keys_that_are_never_touched_again() -> None:
    of = bed()
    with of.on("1:a") as s:
        s.price.put("x", 0)
        s.price.put("y", 1)
    with of.on("1:b") as s:
        s.price.put("x", 0)
        s.price.put(None, 1)
    of.commit(0)
    of.commit(HISTORY)
    assert {k: len(e.price) for k, e in of.kept().items()} == {"1:a": 2, "1:b": 2}
    of.commit(1 + HISTORY + of.layout.sweep_slack_ms)
    assert {k: e.price for k, e in of.kept().items()} == {"1:a": [(1, "y")]}


def test_pruning_by_hand_shortens_the_history() -> None:
    of = bed()
    with of.on() as s:
        for i in range(5):
            s.price.put(f"v{i}", i * 10)
        s.price.prune(before=25)
        assert s.price.get(15) is None
        assert s.price.get(24) == Version("v2", 20, 30)
        s.price.put(None, 50)
        s.price.prune(before=50)
        assert s.price.versions() == []
    of.commit(0)
    assert of.backend.is_empty()


def test_with_a_time_to_live_the_newest_version_goes_too() -> None:
    of = bed(ttl=10 * MINUTE)
    with of.on(now=0) as s:
        s.price.put("v")
    of.commit(0)
    with of.on(now=10 * MINUTE - 1) as s:
        assert s.price.value == "v"
    with of.on(now=10 * MINUTE) as s:
        assert s.price.value is None
        assert s.price.get(0) is None
    of.commit(10 * MINUTE + of.layout.sweep_slack_ms)
    assert of.backend.is_empty()


class Rate(msgspec.Struct):
    value: float


def test_values_may_be_structs() -> None:
    of = Bed(rate=versioned_state(Rate, history=10))
    with of.on() as s:
        s.rate.put(Rate(1.5), 3)
    of.commit()
    with of.on() as s:
        assert s.rate.get(4) == Version(Rate(1.5), 3, None)


@pytest.mark.parametrize("history", [0, -1, None, "1h", 1.5])
def test_a_history_that_is_no_duration_is_refused(history: Any) -> None:
    with pytest.raises(StateDeclarationError, match="history"):
        versioned_state(str, history=history)


# -- against a model -------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "delete", "restart", "sweep"]),
        st.integers(0, 60),
        st.integers(0, 20),
    ),
    max_size=30,
)


@settings(max_examples=300, deadline=None)
@given(STEPS, st.integers(1, 40))
def test_reads_are_those_of_a_plain_timeline(steps: list[tuple[str, int, int]], history: int) -> None:
    """The model keeps every put for ever, and answers a read by looking at all of them."""
    of = Bed(price=versioned_state(int, history=history))
    timeline: dict[int, int | None] = {}
    now = 0
    for n, (what, back, step) in enumerate(steps):
        now += step
        if what in ("restart", "sweep"):
            of.commit(now - 1 if what == "sweep" else None)
            continue
        at = max(0, now - back)
        newest = max([now, *timeline])
        with of.on(now=now) as s:
            value = n if what == "put" else None
            kept = s.price.put(value, at)
            assert kept == (at >= newest - history)
            if kept:
                timeline[at] = value
            horizon = max([now, *timeline]) - history
            for asked in range(max(0, horizon), now + 2):
                starts = [t for t in timeline if t <= asked]
                wanted = timeline[max(starts)] if starts else None
                got = s.price.get(asked)
                assert (None if got is None else got.value) == wanted
            if kept:
                assert len(of.cursor.entry.price) <= len([t for t in timeline if t > horizon]) + 1

"""The checks for users' own tests find what they are for, and our processes pass them."""

from __future__ import annotations

import doctest
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import Context, KeyedProcess, Timer, arrival, side_output, value_state
from millrace.batch import Batch
from millrace.testing import deliveries, properties
from millrace.testing.properties import NotInvariant, UnfitEvents, invariant, leaks, same_as_batch
from millrace.windows import (
    collect,
    count,
    hopping,
    lookback,
    max_of,
    session,
    sliding,
    sum_of,
    tumbling,
    watermark,
    window,
)
from millrace_apps.fraud.processes.cards import CardMonitor
from tests.unit.apps.fraud.cases import DAY, HOUR, MINUTE, purchases, transaction
from tests.unit.millrace.windows.cases import Ev, examples, ranges_of


@pytest.mark.parametrize("module", [properties, deliveries])
def test_docstring_examples_run(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


def test_the_page_tells_what_happens_and_names_tests_that_exist() -> None:
    root = Path(__file__).resolve().parents[4]
    page = root / "docs" / "semantics.md"
    assert doctest.testfile(str(page), module_relative=False).failed == 0
    tests = "".join(path.read_text(encoding="utf-8") for path in (root / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))
    assert len(named) > 20
    assert [name for name in named if f"def {name}(" not in tests] == []


# -- processes with one fault each ---------------------------------------------------------------------


class Tx(msgspec.Struct, frozen=True):
    id: int
    n: int


class Total(msgspec.Struct, frozen=True):
    n: int
    version: int


class Sum(KeyedProcess[Tx, Total]):
    """Commutes by its last word; every update is emitted."""

    order = arrival(commutes=True)
    total = value_state(int, default=0)
    version = value_state(int, default=0)
    odd = side_output(int)

    def process(self, event: Tx, ctx: Context) -> None:
        self.total.value += event.n
        self.version.value += 1
        ctx.timers.at(5_000, "end")
        ctx.emit(Total(self.total.value, self.version.value))
        if event.n % 2:
            ctx.output(self.odd, event.n)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        self.total.clear()
        self.version.clear()


class PerBatch(Sum):
    """Counts on an attribute of its own, which a restart forgets."""

    def __init__(self) -> None:
        self.seen = 0

    def process(self, event: Tx, ctx: Context) -> None:
        self.seen += 1
        ctx.emit(Total(event.n, self.seen))


class ByWatermark(Sum):
    """Lets the watermark of its batch into the result."""

    def process(self, event: Tx, ctx: Context) -> None:
        ctx.emit(Total(event.n, max(0, ctx.watermark)))


class Forgetful(Sum):
    """Never forgets: it sets no timer."""

    def process(self, event: Tx, ctx: Context) -> None:
        self.total.value += event.n


EVENTS = [
    (key, at, Tx(i, i % 5)) for i, (key, at) in enumerate(zip("abcab" * 6, range(0, 900, 30), strict=True))
]


def message(process: KeyedProcess[Any, Any], events: Sequence[Any] = EVENTS, **how: Any) -> list[str]:
    with pytest.raises(NotInvariant) as raised:
        invariant(process, events, **how)
    return str(raised.value).splitlines()


def test_every_update_hangs_on_the_order_and_the_last_word_does_not() -> None:
    assert message(Sum(), bound_ms=100)
    invariant(Sum(), EVENTS, bound_ms=100, upsert_by={"main": ()}, runs=30)


def test_a_restart_shows_what_is_kept_outside_of_state() -> None:
    of_one_key = [("a", at, event) for _, at, event in EVENTS]
    lines = message(PerBatch(), of_one_key)
    assert lines[0].startswith("PerBatch: the result hangs on how events are brought (run ")
    assert "seed 0); 2 events show it:" in lines[0]
    assert "  restart" in lines
    invariant(PerBatch(), of_one_key, restarts=False)


def test_a_cut_shows_what_hangs_on_the_batch_and_the_message_is_as_small_as_can_be() -> None:
    lines = message(ByWatermark(), restarts=False)
    assert [line.partition(":")[0] for line in lines[1:]][:2] == [
        "  batch 0",
        "only in order, an event a batch",
    ]
    assert "2 events show it" in lines[0]
    invariant(ByWatermark(), EVENTS, cuts=False, restarts=False, orders="per_key", bound_ms=0)


def test_a_seed_repeats_its_message_and_another_seed_may_not() -> None:
    assert message(Sum(), bound_ms=100, seed=3) == message(Sum(), bound_ms=100, seed=3)
    assert "seed 3)" in message(Sum(), bound_ms=100, seed=3)[0]


def test_a_repeat_that_counts_twice_is_found() -> None:
    invariant(Sum(), EVENTS, upsert_by={"main": ()})
    lines = message(Sum(), upsert_by={"main": ()}, duplicates=2)
    assert "2 events show it" in lines[0]


def test_fields_may_be_left_out_of_the_result() -> None:
    events = [("a", at, Tx(0, 1)) for at in (1, 2, 3)]
    assert message(ByWatermark(), events, restarts=False)
    invariant(ByWatermark(), events, ignore=("version",))


def test_an_output_or_field_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnfitEvents, match="Sum has no output 'mian'; it has main, odd"):
        invariant(Sum(), EVENTS, upsert_by={"mian": ()})
    with pytest.raises(UnfitEvents, match="records of 'main' have no field 'user'"):
        invariant(Sum(), EVENTS, upsert_by={"main": ("user",)})


def test_what_is_left_of_a_key_is_told() -> None:
    assert leaks(Sum(), EVENTS) == []
    found = leaks(Forgetful(), [("a", 1, Tx(0, 4)), ("b", 2, Tx(1, 0))])
    assert [(leak.key, leak.state, leak.timers) for leak in found] == [("a", {"total": 4}, {})]


class Twice(Sum):
    """Gives another result for many events than for each."""

    def process(self, event: Tx, ctx: Context) -> None:
        ctx.emit(Total(event.n, 1))

    def process_batch(self, batch: Batch[Tx]) -> None:
        batch.emit([Total(event.n, len(batch.events)) for event in batch.events])


def test_a_hook_for_batches_that_gives_something_else_is_found() -> None:
    with pytest.raises(NotInvariant, match="process_batch over everything at once differ"):
        same_as_batch(Twice(), EVENTS)


def test_an_oracle_that_disagrees_is_shown() -> None:
    def records(events: Sequence[Any]) -> list[Total]:
        return [Total(event.n, 1) for _, _, event in events]

    events = [("a", 1, Tx(0, 4)), ("b", 2, Tx(1, 6))]
    same_as_batch(Sum(), events, oracle=records)
    with pytest.raises(NotInvariant, match=r"stream and oracle differ\nonly by the oracle:\n.*'n': 4"):
        same_as_batch(Sum(), [*events, ("a", 3, Tx(2, 4))], oracle=records)


def test_deliveries_keep_to_the_bound_and_to_the_order_of_keys() -> None:
    events = sorted(EVENTS, key=lambda e: e[1])
    moved = 0
    for seed in range(50):
        taken = deliveries.in_some_order(random.Random(seed), events, 100, 5, per_key=False)
        head = 0
        for place in taken:
            head = max(head, events[place][1])
            assert events[place][1] >= head - 100
        moved += taken[: len(events)] != list(range(len(events)))
        assert len(taken) == len(events) + 5
        kept = deliveries.in_some_order(random.Random(seed), events, 100, 0, per_key=True)
        for key in "abc":
            of_key = [place for place in kept if events[place][0] == key]
            assert of_key == sorted(of_key)
    assert moved == 50


# -- our own processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_card_decisions_hang_on_the_cards_transactions_in_their_order_only(seed: int) -> None:
    rng = random.Random(seed)
    bought = [
        tx
        for card in ("card-1", "card-2", "card-3")
        for tx in [
            transaction(0, 5_000, card=card, kind="top_up"),
            *purchases(rng, 40, 25, every_ms=2 * HOUR, card=card),
            *(transaction(DAY + i * MINUTE, 1, card=card) for i in range(5)),
        ]
    ]
    events = [(tx.card_id, tx.event_time_ms, tx) for tx in bought]
    invariant(CardMonitor(), events, bound_ms=10_000, seed=seed, runs=8, duplicates=4)
    same_as_batch(CardMonitor(), events, bound_ms=10_000)
    assert leaks(CardMonitor(), events, bound_ms=10_000) == []


WINDOWS = {
    "tumbling": window(Ev, tumbling(10, offset=3)).aggregate(
        n=count(), total=sum_of("v"), all=collect("tag")
    ),
    "hopping": window(Ev, hopping(25, every=10)).aggregate(all=collect("tag"), high=max_of("v")),
    "session": window(Ev, session(7)).aggregate(total=sum_of("v"), all=collect("v")),
    "cut session": window(Ev, session(7, max_length=20)).aggregate(n=count()),
    "sliding": window(Ev, sliding(8)).aggregate(n=count(), high=max_of("v")),
    "lookback": window(Ev, lookback(8, keep="tag")).aggregate(total=sum_of("v")),
}
TIMED = st.lists(
    st.tuples(
        st.sampled_from(["k1", "k2"]),
        st.integers(-30, 90),
        st.builds(Ev, v=st.integers(0, 9), tag=st.sampled_from("abc")),
    ),
    max_size=25,
)


@pytest.mark.parametrize("kind", WINDOWS)
@examples(15)
@given(events=TIMED, seed=st.integers(0, 999))
def test_windows_hang_on_their_events_only_and_leave_nothing(kind: str, events: list[Any], seed: int) -> None:
    invariant(WINDOWS[kind], events, bound_ms=20, seed=seed, runs=4)
    same_as_batch(WINDOWS[kind], events, bound_ms=20)
    assert leaks(WINDOWS[kind], sorted(events, key=lambda e: e[1])) == []


@pytest.mark.parametrize("how", ["updates", "changelog", "early"])
@examples(15)
@given(events=TIMED, seed=st.integers(0, 999))
def test_the_last_word_on_a_window_hangs_on_its_events_only(how: str, events: list[Any], seed: int) -> None:
    mode: dict[str, Any] = {"trigger": watermark().early(count=2)} if how == "early" else {"emit": how}
    process = window(Ev, tumbling(10), **mode).aggregate(n=count(), total=sum_of("v"))
    by = {"main": ("window_start_ms", "window_end_ms")}
    invariant(process, events, bound_ms=20, upsert_by=by, ignore=("revision", "pane"), seed=seed, runs=4)


@examples(15)
@given(events=TIMED)
def test_hopping_windows_are_those_of_a_loop_over_all(events: list[Any]) -> None:
    def oracle(ordered: Sequence[Any]) -> list[Any]:
        inside: dict[tuple[str, int, int], list[int]] = {}
        for key, at, event in ordered:
            for start, end in ranges_of(at, 25, 10):
                inside.setdefault((key, start, end), []).append(event.v)
        return [
            {"key": k, "window_start_ms": s, "window_end_ms": e, "n": len(vs), "total": sum(vs)}
            for (k, s, e), vs in inside.items()
        ]

    process = window(Ev, hopping(25, every=10)).aggregate(n=count(), total=sum_of("v"))
    same_as_batch(process, events, oracle=oracle)

"""As-of joins: which version a left event meets, when it is corrected, what is late, what is kept."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest

from millrace.joins import FOREVER, JoinProcess, asof_join, table_join
from millrace.state.cells import StateCorrupted
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks, same_as_batch
from tests.unit.millrace.joins.cases import BY_HAND, Lt, Restarting, Rt, read, rows, send
from tests.unit.millrace.windows.cases import Drive

ROW = ("l", "r", "left_ms", "right_ms")


@pytest.fixture(params=[False, True], ids=["straight", "restarting"])
def drive(request: pytest.FixtureRequest) -> Drive:
    kind = Restarting if request.param else TestDriver
    return lambda process, bound=BY_HAND: kind(process, out_of_orderness_ms=bound)


def join(**how: Any) -> JoinProcess:
    return asof_join(left=Lt, right=Rt, **{"keep": FOREVER, **how})


EMITS = pytest.mark.parametrize("emit", ["corrections", "final"])


@EMITS
@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_left_event_meets_the_version_of_its_time(drive: Drive, emit: str, how: str) -> None:
    """V23.

    ::

        right   r1          r4
        left        l2  l3  l4
    """
    driver = drive(join(how=how, emit=emit))
    send(driver, "r1:10 l2 l3 r4:40 l4")
    driver.advance_watermark(100)
    assert rows(driver, *ROW) == [(2, 10, 2, 1), (3, 10, 3, 1), (4, 40, 4, 4)]
    assert [e.event_time for e in driver.emissions] == [2, 3, 4]


@EMITS
def test_without_a_version_an_inner_join_has_no_row_and_a_left_join_an_empty_one(
    drive: Drive, emit: str
) -> None:
    for how, wanted in (("inner", []), ("left", [(2, None, 2, None)])):
        driver = drive(join(how=how, emit=emit))
        send(driver, "l2")
        send(driver, "r1", key="another")
        driver.advance_watermark(100)
        assert rows(driver, *ROW) == wanted


@EMITS
@pytest.mark.parametrize(("bound", "grace"), [(10, 0), (0, 10)])
def test_what_is_behind_the_watermark_and_its_grace_is_late(
    drive: Drive, emit: str, bound: int, grace: int
) -> None:
    """V23: 15 makes everything up to 4 late, whether by the stream's bound or by the join's grace.

    ::

        right         r4 r5             r15
        left          l4 l5
        watermark     4: at 15 less the bound, less 1
    """
    driver = drive(join(how="inner", emit=emit, grace=grace), bound)
    send(driver, "r15 r4 r5:2 l4")
    assert driver.values() == []
    send(driver, "l5")
    assert rows(driver, *ROW) == ([] if emit == "final" else [(5, 2, 5, 5)])
    driver.advance_watermark(5 + grace)
    assert rows(driver, *ROW) == [(5, 2, 5, 5)]
    assert [(late["input"], msgspec.json.decode(late["event"])) for late in driver.values("late")] == [
        ("right", {"key": "k", "r": 4}),
        ("left", {"key": "k", "l": 4}),
    ]


def test_a_final_row_comes_when_the_watermark_has_passed_the_left_event_by_the_grace(drive: Drive) -> None:
    driver = drive(join(emit="final", grace=10))
    send(driver, "l5 l7 l5:50 r3")
    driver.advance_watermark(5)
    send(driver, "r5:55 l4")  # late, and within the grace
    driver.advance_watermark(14)
    assert rows(driver, *ROW) == [(4, 3, 4, 3)]
    driver.advance_watermark(15)
    assert rows(driver, *ROW)[1:] == [(5, 55, 5, 5), (50, 55, 5, 5)]
    assert [e.event_time for e in driver.emissions] == [14, 15, 15]
    driver.advance_watermark(17)
    assert rows(driver, *ROW)[3:] == [(7, 55, 7, 5)]


def test_a_right_event_out_of_order_corrects_the_rows_it_should_have_been_in(drive: Drive) -> None:
    """Those from its time up to the next version.

    ::

        right   r1              (r5)                 r9
        left          l4             l5   l7               l10
    """
    driver = drive(join(), 100)
    send(driver, "r1 l4 l5 l7 r9 l10")
    before = rows(driver, *ROW, "revision")
    assert before == [(4, 1, 4, 1, 0), (5, 1, 5, 1, 0), (7, 1, 7, 1, 0), (10, 9, 10, 9, 0)]
    send(driver, "r5:55")
    assert rows(driver, *ROW, "revision")[4:] == [(5, 55, 5, 5, 1), (7, 55, 7, 5, 1)]
    ids = dict(rows(driver, "l", "left_id"))
    assert len(set(ids.values())) == 4
    assert [(r.l, r.left_id) for r in driver.values()[4:]] == [(5, ids[5]), (7, ids[7])]
    assert [e.on_time for e in driver.emissions] == [True] * 4 + [False] * 2
    assert len({e.event_id for e in driver.emissions}) == 6


def test_what_changes_nothing_corrects_nothing(drive: Drive) -> None:
    driver = drive(join(keep=5))
    send(driver, "r10 l12 l20 r10 r10:9 r4")  # the same, a lesser one of its time, one that has ended by 12
    assert rows(driver, *ROW) == [(12, 10, 12, 10), (20, None, 20, None)]
    send(driver, "r10:11")  # the greatest of a time is taken
    assert rows(driver, *ROW)[2:] == [(12, 11, 12, 10)]


def test_a_late_right_event_within_the_grace_corrects_what_is_kept_and_no_more(drive: Drive) -> None:
    driver = drive(join(grace=50))
    send(driver, "l10 l60")
    driver.advance_watermark(60)
    send(driver, "r10 r11:1")
    assert rows(driver, *ROW) == [
        (10, None, 10, None),
        (60, None, 60, None),
        (60, 1, 60, 11),
    ]
    assert len(driver.values("late")) == 1


def test_a_late_left_event_within_the_grace_meets_the_version_of_its_time(drive: Drive) -> None:
    driver = drive(join(grace=50))
    send(driver, "r10 r40 r90")
    driver.advance_watermark(90)
    send(driver, "l41 l60 l40")
    assert rows(driver, *ROW) == [(41, 40, 41, 40), (60, 40, 60, 40)]
    assert [e.on_time for e in driver.emissions if e.output == "main"] == [False, False]


def test_an_inner_join_has_its_first_row_when_the_version_comes_late(drive: Drive) -> None:
    driver = drive(join(how="inner"))
    send(driver, "l10")
    assert driver.values() == []
    send(driver, "r3 r7")
    assert rows(driver, *ROW, "revision") == [(10, 3, 10, 3, 0), (10, 7, 10, 7, 1)]
    assert [e.on_time for e in driver.emissions] == [False, False]


def test_an_idle_right_side_holds_nothing_back(drive: Drive) -> None:
    driver = drive(join(), 0)
    send(driver, "r1 l500 l900")
    assert rows(driver, *ROW) == [(500, 1, 500, 1), (900, 1, 900, 1)]


@EMITS
def test_a_version_is_valid_for_as_long_as_it_is_kept(drive: Drive, emit: str) -> None:
    driver = drive(join(keep=10, emit=emit))
    send(driver, "r5 l14 l15")
    driver.advance_watermark(15)
    assert rows(driver, *ROW) == [(14, 5, 14, 5), (15, None, 15, None)]


@EMITS
def test_a_deletion_ends_a_version(drive: Drive, emit: str) -> None:
    driver = drive(join(emit=emit, deletes=lambda status: status.r < 0))
    send(driver, "r5 r10:-1 l9 l10 l20")
    driver.advance_watermark(50)
    assert rows(driver, *ROW) == [(9, 5, 9, 5), (10, None, 10, None), (20, None, 20, None)]


def test_a_late_deletion_corrects_a_row_to_one_without_a_version(drive: Drive) -> None:
    driver = drive(join(deletes=lambda status: status.r < 0))
    send(driver, "r5 l9 r7:-1")
    assert rows(driver, *ROW, "revision") == [(9, 5, 9, 5, 0), (9, None, 9, None, 1)]


def test_versions_are_read_as_of_any_time_with_deletions_between(drive: Drive) -> None:
    """V25: (-20, deleted) (-10, 10) (-1, deleted) (1, deleted) (10, 11) (20, deleted)."""
    driver = drive(table_join(stream=Lt, table=Rt, how="left", deletes=lambda row: row.r < 0))
    send(driver, "r-20:-1 r-10:10 r-1:-1 r1:-1 r10:11 r20:-1")
    send(driver, "l-5 l15 l0 l-1 l2 l5 l-15 l20 l-10 l19")
    driver.advance_watermark(100)
    assert sorted(rows(driver, "l", "r", "right_ms")) == [
        (-15, None, None),
        (-10, 10, -10),
        (-5, 10, -10),
        (-1, None, None),
        (0, None, None),
        (2, None, None),
        (5, None, None),
        (15, 11, 10),
        (19, 11, 10),
        (20, None, None),
    ]
    driver.advance_watermark(2_000)
    assert driver.is_empty()  # the last word was a deletion


@pytest.mark.parametrize(("bound", "grace"), [(2, 0), (0, 2)])
def test_a_stream_waits_for_its_table(drive: Drive, bound: int, grace: int) -> None:
    """V26: rows of the table and events at 0..3; by then all up to 0 is over, and the rest waits."""
    driver = drive(table_join(stream=Lt, table=Rt, grace=grace), bound)
    send(driver, "r0 l0 r1 l1 r2 l2 r3 l3")
    assert rows(driver, "l", "r") == [(0, 0)]
    send(driver, "l0:9")
    assert len(driver.values("late")) == 1
    driver.advance_watermark(5)
    assert rows(driver, "l", "r") == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_a_stream_may_have_what_is_known_of_its_table_at_once(drive: Drive) -> None:
    driver = drive(table_join(stream=Lt, table=Rt, how="left", emit="corrections"))
    send(driver, "l5 r3")
    assert rows(driver, *ROW, "revision") == [(5, None, 5, None, 0), (5, 3, 5, 3, 1)]


def test_equal_left_events_have_rows_of_their_own(drive: Drive) -> None:
    driver = drive(join())
    send(driver, "l5 l5 r4")
    assert rows(driver, "l", "r", "revision") == [(5, None, 0), (5, None, 0), (5, 4, 1), (5, 4, 1)]
    first, second = (r.left_id for r in driver.values()[:2])
    assert first != second
    assert {r.left_id for r in driver.values()[2:]} == {first, second}


# -- what is kept ------------------------------------------------------------------------------------


def test_left_events_and_replaced_versions_are_forgotten_with_the_grace() -> None:
    driver = TestDriver(join(grace=20_000), out_of_orderness_ms=0)
    most = 0
    for at in range(0, 200_000, 500):
        driver.send_batch([("k", at, Lt("k", at)), ("k", at, Rt("k", at))])
        state = driver.state("k")
        assert state is not None
        most = max(most, len(state["lefts"]), len(state["versions"]))
    # Two a second for the grace and the sweep's eighth of it.
    assert 40 <= most <= 48


@pytest.mark.parametrize("sweep", [1, 4])
def test_what_can_still_be_asked_for_is_not_forgotten(sweep: int) -> None:
    """The watermark is 24 and the grace 10: what is at 15 is the oldest that may come."""
    process = join(grace=10)
    process._sweep = sweep  # type: ignore[attr-defined]
    driver = TestDriver(process, out_of_orderness_ms=BY_HAND)
    send(driver, "r5 r15 r16 l14 l15")
    driver.advance_watermark(24)
    state = driver.state("k")
    assert state is not None
    assert [at for at, _ in state["versions"]] == [15, 16]
    assert [at for at, *_ in map(msgspec.structs.astuple, state["lefts"])] == [15]
    send(driver, "l15:1 r15:20 l14 r14")
    assert sorted(rows(driver, "l", "r")[2:]) == [(1, 15), (1, 20), (15, 20)]
    assert len(driver.values("late")) == 2


@EMITS
def test_a_version_is_not_forgotten_a_millisecond_too_early(emit: str) -> None:
    """Left 13 has the key swept when the version of 5 is valid for one more instant."""
    process = join(keep=10, emit=emit, grace=0)
    process._sweep = 1  # type: ignore[attr-defined]
    driver = TestDriver(process, out_of_orderness_ms=BY_HAND)
    send(driver, "r5 r4 l13")
    driver.advance_watermark(13)
    send(driver, "l14")
    driver.advance_watermark(14)
    assert rows(driver, "l", "r") == [(13, 5), (14, 5)]
    driver.advance_watermark(15)
    assert driver.is_empty()


def test_a_deletion_is_not_forgotten_before_its_own_time_is_over() -> None:
    """Of two changes of one time the deletion has the greater encoding."""
    process = join(deletes=lambda status: status.r < 0)
    process._sweep = 1  # type: ignore[attr-defined]
    driver = TestDriver(process, out_of_orderness_ms=BY_HAND)
    send(driver, "r14:-1 l13")
    driver.advance_watermark(13)
    send(driver, "r14:3 l15")
    assert rows(driver, "l", "r") == [(13, None), (15, None)]


def test_a_row_is_made_before_its_version_is_swept() -> None:
    """The row of 15 and the sweep of what 16 replaced are due at one instant."""
    process = join(emit="final", grace=10)
    process._sweep = 1  # type: ignore[attr-defined]
    driver = TestDriver(process, out_of_orderness_ms=BY_HAND)
    send(driver, "r5 r16 l15")
    driver.advance_watermark(25)
    assert rows(driver, "l", "r") == [(15, 5)]


@EMITS
def test_the_last_version_of_a_silent_key_goes_when_it_is_over(emit: str) -> None:
    driver = TestDriver(join(keep=60_000, grace=8_000, emit=emit), out_of_orderness_ms=0)
    driver.send("k", Rt("k", 1), at=0)
    driver.send("other", Rt("k", 1), at=67_000)
    assert driver.state("k") is not None
    driver.send("other", Rt("k", 1), at=70_000)
    assert driver.state("k") is None


def test_only_a_version_that_is_valid_for_ever_is_kept_for_ever() -> None:
    events = [(e.key, e.at, e.event) for e in read("r1 l2 r3 l4 r70:-1 l80")]
    for emit in ("corrections", "final"):
        for grace in (0, 7, 5_000):
            assert leaks(join(emit=emit, grace=grace, keep=30), events) == []
            deleting = join(emit=emit, grace=grace, deletes=lambda status: status.r < 0)
            assert leaks(deleting, events) == []
            (left,) = leaks(join(emit=emit, grace=grace), events)
            assert [at for at, _ in left.state["versions"]] == [70]
            assert (list(left.state), left.timers) == (["versions"], {})


# -- as a process ------------------------------------------------------------------------------------


@EMITS
@pytest.mark.parametrize("how", ["inner", "left"])
def test_the_last_word_does_not_hang_on_how_events_are_brought(emit: str, how: str) -> None:
    text = "r5 l1 l7 l7 r7 l8 r20 l19 l22 r21 r30:-1 l33 l34"
    events = [(e.key, e.at, e.event) for key in ("a", "b") for e in read(text, key)]
    upsert = {"main": ("left_id",)} if emit == "corrections" else None
    for keep, grace in ((12, 0), (FOREVER, 6)):
        process = join(how=how, emit=emit, keep=keep, grace=grace)
        how_to: dict[str, Any] = {"bound_ms": 15, "upsert_by": upsert, "ignore": ("revision",)}
        invariant(process, events, runs=12, seed=3, **how_to)
        same_as_batch(process, events, **how_to)


class Wider(msgspec.Struct):
    """A left event of a later version: one more field, with a default."""

    key: str
    l: int  # noqa: E741
    unit: str = "C"


class Other(msgspec.Struct):
    """A left event that is another thing."""

    key: float


def test_left_events_that_are_kept_are_read_by_a_later_version() -> None:
    old = TestDriver(join(name="j", grace=10))
    send(old, "l5")
    new = TestDriver(asof_join(left=Wider, right=Rt, keep=FOREVER, grace=10, name="j"))
    new.restore(old.snapshot())
    new.send("k", Rt("k", 3), at=3)
    assert rows(new, "l", "unit", "r") == [(5, "C", 3)]


def test_left_events_that_cannot_be_read_any_more_stop_the_query() -> None:
    old = TestDriver(join(name="j", grace=10))
    send(old, "l5")
    new = TestDriver(asof_join(left=Other, right=Rt, keep=FOREVER, grace=10, name="j"))
    new.restore(old.snapshot())
    with pytest.raises(StateCorrupted, match="an event that a join has kept cannot be read"):
        new.send("k", Rt("k", 3), at=3)


def test_it_goes_to_another_worker_as_its_definition() -> None:
    process = join(grace=10, emit="final", how="inner")
    again = pickle.loads(pickle.dumps(process))  # noqa: S301
    driver = TestDriver(again)
    send(driver, "r1 l2 l20")
    assert rows(driver, *ROW) == [(2, 1, 2, 1)]
    assert (again.name, again.describe()) == (process.name, process.describe())
    assert process.describe() == {
        "join": "FinalAsOfJoin",
        "how": "inner",
        "keep_ms": None,
        "grace_ms": 10,
        "emit": "final",
        "deletes": None,
    }

"""What every operator is: a process that pickles, restores, ends empty, and says what its state hangs on."""

from __future__ import annotations

import copy
import operator
import pickle
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from millrace import Context, KeyedProcess, Timer, side_output, value_state
from millrace.operators import (
    absence,
    adwin,
    anomaly_scores,
    cusum,
    deduplicate,
    drift,
    ewm,
    heartbeat,
    holt_winters,
    moving,
    novelty,
    page_hinkley,
    running,
    top_n,
)
from millrace.process import ProcessDefinitionError
from millrace.runtime.contract import ContractMismatch, check_contract
from millrace.state.schema import describe_state
from millrace.testing import TestDriver
from millrace.testing.properties import leaks, same_as_batch
from millrace.windows import count, hopping, mean, sum_of, tumbling
from tests.unit.millrace.operators.cases import DAY, HOUR, MINUTE, Ev, Event, run


def starts(event: Ev) -> bool:
    return event.id % 3 == 0


def ends(event: Ev) -> bool:
    return event.id % 3 == 2


#: Every operator, as plain data and module functions, so that the standard pickle takes it.
PROCESSES: dict[str, KeyedProcess[Any, Any]] = {
    "deduplicate": deduplicate(Ev, id="id", within=50),
    "deduplicate by fields": deduplicate(Ev, id=("id", "item"), within=50),
    "deduplicate by key": deduplicate(Ev, within=50, order="arrival", refresh=True),
    "deduplicate by function": deduplicate(Ev, id=operator.attrgetter("id"), within=50),
    "top_n": top_n(Ev, 2, item="item", by=sum_of("v"), window=hopping(40, every=20), key="shop"),
    "top_n changelog": top_n(Ev, 2, item="item", window=tumbling(40), emit="changelog"),
    "absence": absence(Ev, start=starts, end=ends, within=7, keep=("id", "item"), remember=20),
    "heartbeat": heartbeat(Ev, timeout=3, in_order=True),
    "running": running(Ev, idle=DAY, keep="id").aggregate(n=count(), avg=mean("x")),
    "moving": moving(Ev, 3, idle=DAY).aggregate(avg=mean("x")),
    "ewm": ewm(Ev, "x", half_life=20, idle=DAY),
    "holt_winters": holt_winters(Ev, "x", season=3, every=1, ahead=3, idle=DAY),
    "page_hinkley": drift(Ev, "x", page_hinkley(threshold=3, min_n=5), idle=DAY),
    "cusum": drift(Ev, "x", cusum(learn=5, threshold=3), idle=DAY),
    "anomaly_scores": anomaly_scores(Ev, "x", novelty(learn=5), idle=DAY, keep="id"),
    "adwin": drift(Ev, operator.attrgetter("x"), adwin(every=2, min_n=6), idle=DAY),
}

EVENTS: list[Event] = [
    (key, at, Ev(id=at % 5, item="abc"[at % 3], v=at % 7, x=float(at % 4 + (20 if at > 30 else 0))))
    for at in range(60)
    for key in ("k1", "k2")
    if at % 9 != len(key)
]


def emitted(driver: TestDriver) -> list[tuple[Any, ...]]:
    return [(e.output, e.key, e.event_time, e.payload, e.event_id) for e in driver.emissions]


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, list[tuple[Any, ...]]]:
    return {name: emitted(run(process, EVENTS)) for name, process in PROCESSES.items()}


@pytest.mark.parametrize("name", PROCESSES)
def test_it_says_something_of_these_events(name: str, undisturbed: dict[str, Any]) -> None:
    assert len(undisturbed[name]) > 1


@pytest.mark.parametrize("name", PROCESSES)
def test_it_is_the_same_after_it_was_pickled_and_copied(name: str, undisturbed: dict[str, Any]) -> None:
    process = PROCESSES[name]
    for other in (pickle.loads(pickle.dumps(process)), copy.copy(process)):  # noqa: S301
        assert other.name == process.name
        assert other.order == process.order
        assert emitted(run(other, EVENTS)) == undisturbed[name]


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("cut", [1, 7, 30, 61, 90])
def test_a_restart_changes_nothing(name: str, cut: int, undisturbed: dict[str, Any]) -> None:
    assert emitted(run(PROCESSES[name], EVENTS, restart_after=cut)) == undisturbed[name]


@pytest.mark.parametrize("name", PROCESSES)
def test_nothing_is_left_when_all_is_over(name: str) -> None:
    assert leaks(PROCESSES[name], EVENTS) == []


@pytest.mark.parametrize("name", PROCESSES)
def test_a_bounded_run_gives_what_the_stream_gives(name: str) -> None:
    same_as_batch(PROCESSES[name], EVENTS)


@pytest.mark.parametrize("name", [name for name in PROCESSES if "deduplicate" not in name])
def test_a_key_with_more_parts_than_names_stops_the_query(name: str) -> None:
    events: Any = [(("a", "b"), at, event) for key, at, event in EVENTS if key == "k1"]
    with pytest.raises(ProcessDefinitionError, match=r"give .*key="):
        run(PROCESSES[name], events)


def contract(process: KeyedProcess[Any, Any]) -> dict[str, Any]:
    states = {s.name: describe_state(s) for s in process.states}
    return {
        "process": process.name,
        "layout": sorted(states),
        "states": states,
        "definition": process.describe(),
    }


@pytest.mark.parametrize("name", PROCESSES)
def test_its_contract_can_be_kept_and_found_again(name: str, tmp_path: Path) -> None:
    began = check_contract(tmp_path, contract(PROCESSES[name]))
    assert check_contract(tmp_path, contract(pickle.loads(pickle.dumps(PROCESSES[name])))) == began  # noqa: S301


def test_state_of_another_meaning_is_refused(tmp_path: Path) -> None:
    check_contract(tmp_path / "ids", contract(deduplicate(Ev, id="id", within=50)))
    with pytest.raises(ContractMismatch, match="id"):
        check_contract(tmp_path / "ids", contract(deduplicate(Ev, id="v", within=50)))
    check_contract(tmp_path / "n", contract(top_n(Ev, 2, item="item", window=tumbling(9))))
    with pytest.raises(ContractMismatch, match="n was 2"):
        check_contract(tmp_path / "n", contract(top_n(Ev, 3, item="item", window=tumbling(9))))
    check_contract(tmp_path / "season", contract(holt_winters(Ev, "x", season=3, idle=DAY)))
    with pytest.raises(ContractMismatch, match="season"):
        check_contract(tmp_path / "season", contract(holt_winters(Ev, "x", season=4, idle=DAY)))


def test_what_may_be_tuned_may_change(tmp_path: Path) -> None:
    check_contract(tmp_path / "test", contract(drift(Ev, "x", cusum(threshold=3), idle=DAY)))
    check_contract(tmp_path / "test", contract(drift(Ev, "x", cusum(threshold=4), idle=2 * DAY)))
    check_contract(tmp_path / "wait", contract(heartbeat(Ev, timeout=3)))
    check_contract(tmp_path / "wait", contract(heartbeat(Ev, timeout=4)))


def test_names_tell_operators_apart() -> None:
    assert len({p.name for p in PROCESSES.values()}) >= 10
    assert running(Ev, idle=None, name="mine").aggregate(n=count()).name == "mine"


class Ride(msgspec.Struct, frozen=True):
    ride: int
    driver: int


class Fare(msgspec.Struct, frozen=True):
    ride: int
    total: float


class Paid(msgspec.Struct, frozen=True):
    ride: int
    driver: int
    total: float


class RidesAndFares(KeyedProcess[Ride | Fare, Paid]):
    """Joins each ride with its fare, whichever comes first; one without the other is told in the end."""

    order = "event_time"
    inputs: ClassVar = {"rides": Ride, "fares": Fare}
    ride = value_state(Ride)
    fare = value_state(Fare)
    alone = side_output(str)

    def process(self, event: Ride | Fare, ctx: Context) -> None:
        if ctx.input == "rides":
            self.ride.value = event  # type: ignore[assignment]
        else:
            self.fare.value = event  # type: ignore[assignment]
        ride, fare = self.ride.value, self.fare.value
        if ride is None or fare is None:
            ctx.timers.after(HOUR, "alone")
            return
        ctx.emit(Paid(ride.ride, ride.driver, fare.total))
        self._forget(ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.output(self.alone, "ride" if self.ride.value else "fare")
        self._forget(ctx)

    def _forget(self, ctx: Context) -> None:
        self.ride.clear()
        self.fare.clear()
        ctx.timers.delete("alone")


@pytest.mark.parametrize("fare_first", [False, True])
@pytest.mark.parametrize("fare_comes_first", [False, True])
@pytest.mark.parametrize("cut", [None, 1])
def test_v30_a_ride_and_its_fare_are_one_pair_in_either_order_and_leave_nothing(
    fare_first: bool, fare_comes_first: bool, cut: int | None
) -> None:
    ride = ("1", MINUTE if fare_first else 0, Ride(1, 7))
    fare = ("1", 0 if fare_first else MINUTE, Fare(1, 12.5))
    events: list[Any] = [fare, ride] if fare_comes_first else [ride, fare]
    driver = run(RidesAndFares(), events, bound=HOUR, restart_after=cut, drain=False)
    driver.advance_watermark(MINUTE)
    assert driver.values() == [Paid(1, 7, 12.5)]
    assert driver.is_empty()
    driver.drain()
    assert driver.values("alone") == []


def test_v30_a_fare_without_a_ride_is_told_and_forgotten() -> None:
    driver = run(RidesAndFares(), [("1", 0, Fare(1, 12.5))])
    assert (driver.values(), driver.values("alone"), driver.is_empty()) == ([], ["fare"], True)

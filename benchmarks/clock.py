"""`millrace bench clock`: what one wrong clock does to the others' time, and an uneven backlog to its own.

Nothing is timed: the figures are counts, the same on every machine. The rule of time runs over partitions
that are read as Spark reads Kafka, with the real monitor of iot behind it; beside it run rules that were not
taken.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, NamedTuple

import msgspec

from millrace import Context
from millrace.host.groups import context_key, encode_key
from millrace.host.memory import MemoryHost
from millrace.testing.partitions import Partition, Reader, Record, Row, reports
from millrace.time import NO_WATERMARK
from millrace.time.clock import ClockSettings, ClockState, ClockStatus, SourceReport, advance, plausible
from millrace_apps.benchmarks.streams import BenchmarkFailed

#: A rule of time: the clock before, what a batch has read of its sources, the settings → the clock after.
Rule = Callable[[ClockState, list[SourceReport], ClockSettings], tuple[ClockState, ClockStatus]]

BOUND_MS: Final = 500
_START_MS: Final = 1_767_225_600_000
_DELAYS_MS: Final = (20, 400)
_BATCH_MS: Final = 1_000


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        machines: Machines, one of which has a wrong clock.
        minutes: For how long, on the clock of event time.
        ahead_ms: How far that clock is ahead.
        dense: Records of the densest partition of the backlog.
    """

    machines: int = 20
    minutes: int = 20
    ahead_ms: int = 30_000
    dense: int = 20_000


QUICK: Final = Sizes(machines=6, minutes=4, dense=2_000)


class Came(NamedTuple):
    """An event of the fleet: when it came, whose it is, and itself."""

    arrival: int
    at: int
    key: str
    event: Any


def newest_of_all(
    state: ClockState, read: list[SourceReport], settings: ClockSettings
) -> tuple[ClockState, ClockStatus]:
    """Follow the newest event time of all, as the engine's own watermark does."""
    return advance(state, read, msgspec.structs.replace(settings, limits=(None,)))


def one_full_batch(
    state: ClockState, read: list[SourceReport], settings: ClockSettings
) -> tuple[ClockState, ClockStatus]:
    """Look at one full batch by itself."""
    return advance(state, read, msgspec.structs.replace(settings, full_batches=1))


def clock(sizes: Sizes = Sizes()) -> dict[str, Any]:
    """Return what one wrong clock does, and what a backlog does.

    Args:
        sizes: How much is run.

    Raises:
        BenchmarkFailed: The rule makes late what is in order.
    """
    fleet = list(fleet_of(sizes))
    wrong = Counter(c.key for c in fleet if type(c.event).__name__ == "Reading").most_common(1)[0][0]
    fast = [_ahead(c, sizes.ahead_ms) if c.key == wrong else c for c in fleet]
    results: dict[str, Any] = {
        "stream": _beside_right(fleet, fast, wrong, "stream"),
        "key": _beside_right(fleet, fast, wrong, "key"),
        # Every event is believed: what the engine's own watermark does.
        "believed": watched(fast, wrong, skew_ms=None).figures(),
        "catch_up": {name: caught_up(partitions) for name, partitions in backlogs(sizes).items()},
    }  # fmt: skip
    for name in ("stream", "key"):
        if results[name]["late_of_others"]:
            raise BenchmarkFailed(f"by the clock of the {name}, {results[name]['late_of_others']:,} are late")
    for name, found in results["catch_up"].items():
        if found["late"]:
            raise BenchmarkFailed(f"{name}: {found['late']:,} events in order within the bound are late")
    return results


def _beside_right(
    fleet: Sequence[Came], fast: Sequence[Came], wrong: str, of: Literal["stream", "key"]
) -> dict[str, Any]:
    """Return what one wrong clock does to the others, beside the same fleet with the clock right."""
    right, found = (watched(events, wrong, skew_ms=0, clock=of) for events in (fleet, fast))
    equal = found.of_others == right.of_others
    return {**found.figures(), "with_the_clock_right": right.figures(), "equal": equal}


def fleet_of(sizes: Sizes) -> Iterator[Came]:
    """Yield the events of a fleet as they come."""
    from millrace_apps.benchmarks.state_apps import fleet_profile
    from millrace_apps.generators.iot import simulate
    from millrace_apps.iot_maintenance.contracts.signals import INPUTS, KEYS

    profile = replace(fleet_profile(sizes.machines), events=None, start_ms=_START_MS)
    delays = random.Random(5)
    made: list[Came] = []
    for one in simulate(profile):
        if one.event_time_ms >= _START_MS + sizes.minutes * 60_000:
            break
        event = msgspec.convert(one.event, INPUTS[one.stream], from_attributes=True)
        at = event.event_time_ms
        made.append(Came(at + delays.randint(*_DELAYS_MS), at, getattr(event, KEYS[one.stream]), event))
    return iter(sorted(made, key=lambda came: came.arrival))


def _ahead(came: Came, by_ms: int) -> Came:
    event = msgspec.structs.replace(came.event, event_time_ms=came.at + by_ms)
    return Came(came.arrival, came.at + by_ms, came.key, event)


@dataclass(frozen=True)
class Watched:
    """What the monitor said of the machines whose clocks are right.

    Attributes:
        late: Their events that were behind the watermark by which they were judged.
        of_others: All that it emitted, by machine and output.
    """

    late: int
    of_others: Counter[tuple[str, str, bytes]]

    def figures(self) -> dict[str, int]:
        """Return the counts."""
        outputs: Counter[str] = Counter()
        for (_, output, _), n in self.of_others.items():
            outputs[output] += n
        return {
            "late_of_others": self.late,
            "events_of_others": outputs["main"],
            "alarms_of_others": outputs["alarms"],
        }


def watched(
    fleet: Sequence[Came], wrong: str, *, skew_ms: int | None, clock: Literal["stream", "key"] = "stream"
) -> Watched:
    """Run the monitor over a fleet, as it comes, a second a batch.

    Args:
        fleet: Its events in order of arrival.
        wrong: The machine whose clock may be wrong.
        skew_ms: How much after its arrival an event may claim to have happened; ``None``: any time.
        clock: Whose clock machines go by.
    """
    from millrace.runtime.settings import load_settings
    from millrace_apps.iot_maintenance.processes.monitor import MachineMonitor, Monitoring
    from millrace_apps.iot_maintenance.settings import IotSettings, monitoring

    class _Judging(MachineMonitor):
        """Counts whose events are late."""

        def __init__(self, monitoring: Monitoring) -> None:
            super().__init__(monitoring)
            self.late_of: Counter[Any] = Counter()

        def on_late(self, event: Any, ctx: Context) -> None:
            self.late_of[ctx.key] += 1
            super().on_late(event, ctx)

    monitor = replace(monitoring(load_settings(IotSettings, app="iot", env={})), clock=clock)
    process = _Judging(monitor)
    host = MemoryHost(process, out_of_orderness_ms=BOUND_MS)
    settings = ClockSettings(BOUND_MS, (100_000,), skews=(skew_ms,))
    state, said = ClockState(), Counter[tuple[str, str, bytes]]()
    offsets: Counter[str] = Counter()
    for batch in _by_second(fleet):
        read: list[Row] = []
        newest: dict[str, int] = {}
        for came in batch:
            partition = f"{type(came.event).__name__}:{zlib.crc32(came.key.encode()) % 2}"
            read.append(Row(partition, offsets[partition], Record(came.at, came.arrival)))
            offsets[partition] += 1
            text, at = encode_key((came.key,)), plausible(came.at, came.arrival, skew_ms)
            newest[text] = max(newest.get(text, at), at)
        rows = host.rows_of([(c.key, c.at, c.event) for c in batch])
        state, status = advance(state, reports(read, skew_ms=skew_ms), settings)
        if clock == "key":
            emitted = host.run_rows(rows, to=state.watermark, newest=newest, reach=status.reach)
        else:
            emitted = host.run_rows(rows) + host.advance_watermark(state.watermark)
        for e in emitted:
            key = context_key(e.key)
            if _is_others(key, wrong):
                said[key, e.output, e.payload] += 1
    return Watched(sum(n for key, n in process.late_of.items() if _is_others(key, wrong)), said)


def _is_others(key: str, wrong: str) -> bool:
    """Return whether a key is of a machine whose clock is right; a gateway has the other among its own."""
    return key != wrong and not key.endswith("-gw")


def _by_second(fleet: Sequence[Came]) -> Iterator[list[Came]]:
    batch: list[Came] = []
    until = fleet[0].arrival + _BATCH_MS
    for came in fleet:
        while came.arrival >= until:
            yield batch
            batch, until = [], until + _BATCH_MS
        batch.append(came)
    yield batch


# -- a backlog ---------------------------------------------------------------------------------------


def backlogs(sizes: Sizes) -> dict[str, list[Partition]]:
    """Return partitions of very different density and span, recorded live and loaded at once."""
    hour = 3_600_000
    spans = ((sizes.dense, hour), (sizes.dense // 10, 10 * hour), (3, 10 * hour))
    live: list[Partition] = []
    for number, (records, span) in enumerate(spans):
        rng = random.Random(number)
        partition, newest = Partition(f"in:{number}"), _START_MS
        for n in range(records):
            at = max(_START_MS, _START_MS + n * span // records - rng.randint(0, BOUND_MS))
            newest = max(newest, at)
            partition.records.append(Record(at, newest + 10))
        live.append(partition)
    loaded = [
        Partition(p.name, [record._replace(arrival=_START_MS + 20 * hour) for record in p.records])
        for p in live
    ]
    return {"recorded_live": live, "loaded_at_once": loaded}


def caught_up(partitions: list[Partition]) -> dict[str, Any]:
    """Return what reading partitions in small and in large batches comes to, by this rule and by others."""
    found: dict[str, Any] = {"late": 0, "waiting_max": 0, "gap_max_ms": 0, "ends_at_the_bound": True}
    for limit in (50, 500, 5_000):
        read = _read(partitions, limit, advance)
        found["late"] += read["late"]
        found["waiting_max"] = max(found["waiting_max"], read["waiting_max"])
        found["gap_max_ms"] = max(found["gap_max_ms"], read["gap_max_ms"])
        found["ends_at_the_bound"] &= read["ends_at_the_bound"]
    rules: dict[str, Rule] = {"newest_of_all": newest_of_all, "one_full_batch": one_full_batch}
    found["late_by"] = {
        name: sum(_read(partitions, limit, rule)["late"] for limit in (50, 500, 5_000))
        for name, rule in rules.items()
    }
    return found


def _read(partitions: Iterable[Partition], limit: int, rule: Rule) -> dict[str, Any]:
    settings = ClockSettings(BOUND_MS, (limit,))
    reader, state = Reader(list(partitions), limit), ClockState()
    late = waiting_max = gap_max = 0
    waiting: list[int] = []
    for rows in [*reader.batches(), [Row("control:0", 0, Record(0, 0, "control"))]]:
        events = [row.record.time for row in rows if row.record.kind == "event"]
        late += sum(at <= state.watermark for at in events)
        state, status = rule(state, reports(rows), settings)
        waiting = [at for at in (*waiting, *events) if at > state.watermark]
        waiting_max = max(waiting_max, len(waiting))
        if state.watermark != NO_WATERMARK:
            gap_max = max(gap_max, status.furthest - state.watermark)
    ends = state.watermark == state.furthest - BOUND_MS - 1
    return {"late": late, "waiting_max": waiting_max, "gap_max_ms": gap_max, "ends_at_the_bound": ends}


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return {**asdict(sizes), "bound_ms": BOUND_MS, "delays_ms": _DELAYS_MS, "limits": (50, 500, 5_000)}

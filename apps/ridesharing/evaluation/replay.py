"""Closed-loop replay of recorded requests: the processes of the app in memory against a simulated fleet."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from millrace.host.memory import MemoryHost
from millrace.host.memory_chain import MemoryChain
from millrace.host.runner import Emission
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import Control, Event, Handover, Position, key_of, stream_of
from millrace_apps.ridesharing.contracts.records import Assignment, Journal, Offer, Release, Violation
from millrace_apps.ridesharing.demand.records import DriverHint
from millrace_apps.ridesharing.evaluation.fleet import Fleet
from millrace_apps.ridesharing.processes.auditor import Auditor
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.processes.matching import Policy, Problem
from millrace_apps.ridesharing.settings import RidesharingSettings
from millrace_apps.ridesharing.surge.config import SurgeConfig
from millrace_apps.ridesharing.surge.records import FreeCars
from millrace_apps.ridesharing.topic_audit.evidence import OUTPUTS, Evidence
from millrace_apps.ridesharing.topology import processes

#: What the fleet is told, by output.
MESSAGES: Final[dict[str, Any]] = {
    "offers": Offer,
    "assignments": Assignment,
    "releases": Release,
    "hints": DriverHint,
    "free": FreeCars,
}
#: Trips may end so long after the last request, ms.
_AFTERMATH_MS: Final = 10_800_000
_NEVER_MS: Final = 1 << 50
#: So long after the last request somebody may still wait for a car, ms.
_RUSH_MS: Final = 900_000


@dataclass
class Optimum:
    """Adds up what was chosen and what an independent solver would have.

    Riders whom the best match leaves out count in neither: where cars are scarce their penalties are nearly
    all of both sums, and would drown every difference.
    """

    chosen_ms: int = 0
    best_ms: int = 0
    windows: int = 0
    worst: float = 1.0

    def take(self, given: Problem, match: npt.NDArray[np.int64]) -> None:
        """Solve a window again, as one dense matrix with a column for each rider who is left unmatched."""
        pairs = given.pairs
        forbidden = float(10 * (pairs.cost.sum() + pairs.penalty.sum() + 1))
        matrix = np.full((pairs.riders, pairs.cars + pairs.riders), forbidden)
        matrix[pairs.rider, pairs.car] = pairs.cost
        matrix[np.arange(pairs.riders), pairs.cars + np.arange(pairs.riders)] = pairs.penalty
        rows, columns = linear_sum_assignment(matrix)
        left_out = int(pairs.penalty[rows[columns >= pairs.cars]].sum())
        best = int(matrix[rows, columns].sum()) - left_out
        chosen = pairs.value(match) - left_out
        self.chosen_ms += chosen
        self.best_ms += best
        self.windows += 1
        self.worst = max(self.worst, chosen / best if best else 1.0)

    @property
    def ratio(self) -> float:
        """Sum of what was chosen over the sum of the optima."""
        if self.chosen_ms == self.best_ms:
            return 1.0
        return self.chosen_ms / max(1, self.best_ms)


class MeasuredDispatcher(Dispatcher):
    """The dispatcher, with every decision compared with the optimum."""

    name = "Dispatcher"

    def __init__(self, config: DispatchConfig, optimum: Optimum) -> None:
        super().__init__(config)
        self._optimum = optimum

    def decide(self, given: Problem, policy: Policy) -> npt.NDArray[np.int64]:
        """Decide, and compare."""
        match = super().decide(given, policy)
        self._optimum.take(given, match)
        return match


@dataclass
class Faults:
    """What goes wrong with the events on their way.

    Attributes:
        duplicates: Share that comes twice.
        late: Share that comes after the watermark has passed it.
        restarts: How often the processes are stopped and go on from what they had kept.
        seed: Where the draws come from.
    """

    duplicates: float = 0.0
    late: float = 0.0
    restarts: int = 0
    seed: int = 0


@dataclass
class Replay:
    """A replay at its end.

    Attributes:
        fleet: Drivers and what became of the requests.
        records: Output → its records, decoded from JSON.
        optimum: How good the decisions were.
        log: What was brought: batches of (input, key, time, event as JSON).
        wall_s: How long it took, seconds.
        alarms: What the streaming auditor said of it.
        state_left: Whether anything was kept when all was over.
        evidence: What was brought and said, as it would stand on topics, if it was to be kept.
    """

    fleet: Fleet
    records: dict[str, list[dict[str, Any]]]
    optimum: Optimum
    log: list[list[tuple[str, str, int, bytes]]] = field(default_factory=list)
    wall_s: float = 0.0
    alarms: list[Violation] = field(default_factory=list)
    state_left: bool = False
    evidence: Evidence | None = None


class Chain:
    """The app's processes in memory, restartable; output names are those of the processes.

    Args:
        make: Makes the chain.
    """

    def __init__(self, make: Callable[[], MemoryChain]) -> None:
        self._make = make
        self._chain = make()

    def run(self, events: list[tuple[str, int, Event, str]], until: int) -> list[Emission]:
        """Bring events, then move the watermark."""
        # What passes the gate is taken up to this moment at once, and not in a step of its own.
        for host in self._chain.hosts[1:]:
            host.watermark = max(host.watermark, until)
        found = self._chain.run_batch(events) if events else []
        found += self._chain.advance_watermark(until)
        return self._named(found)

    def switch(self, *controls: Control) -> list[Emission]:
        """Bring what operators say to all regions."""
        return self._named(self._chain.broadcast(*controls))

    def drain(self) -> list[Emission]:
        """End the input."""
        return self._named(self._chain.drain())

    def restart(self) -> None:
        """Go on in new processes from what the old ones had kept."""
        kept = [host.snapshot() for host in self._chain.hosts]
        self._chain = self._make()
        for host, snapshot in zip(self._chain.hosts, kept, strict=True):
            host.restore(snapshot)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept, but what is counted of demand."""
        return not any(
            host.store.cells for host in self._chain.hosts if host.runner.process.name != "Hinting"
        )

    def _named(self, found: list[Emission]) -> list[Emission]:
        """Return what came out by the names that it has in the app with nothing behind the dispatcher."""
        last = self._chain.hosts[-1].runner.process.name
        lead = "Hinting." if last == "Hinting" else ""
        names = {e.output: e.output if "." in e.output else f"{lead}{e.output}" for e in found}
        return [
            e._replace(output=names[e.output].removeprefix("Dispatcher.").replace("Hinting.hints", "hints"))
            for e in found
        ]


def memory_chain(
    dispatcher: Dispatcher, *, audit: bool = True, prices: SurgeConfig | None = None
) -> MemoryChain:
    """Return the app's processes in memory, with or without surge and the auditor at their end."""
    wired = processes(dispatcher, RidesharingSettings(), audit=audit, prices=prices)
    # The watermark moves when it is told to, and not by itself after every batch.
    return MemoryChain(wired, out_of_orderness_ms=_NEVER_MS)


def run_replay(
    fleet: Fleet,
    config: DispatchConfig,
    *,
    faults: Faults | None = None,
    keep_log: bool = False,
    keep_evidence: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Replay:
    """Replay requests window by window until all have ended.

    Args:
        fleet: Drivers and requests.
        config: How to dispatch.
        faults: What goes wrong on the way.
        keep_log: Whether to keep what was brought.
        keep_evidence: Whether to keep what was brought and said for the audit from the topics.
        progress: Called with windows done and expected.
    """
    began = time.perf_counter()
    faults = faults or Faults()
    draws = random.Random(faults.seed)  # noqa: S311
    optimum = Optimum()
    chain = Chain(lambda: memory_chain(MeasuredDispatcher(config, optimum), audit=False))
    # Of one step all is read at once, and then the clock is moved.
    evidence = Evidence(config, margin_ms=-1) if keep_evidence else None
    replay = Replay(fleet, {}, optimum, evidence=evidence)
    courier = Courier(draws, faults, config.window_ms)
    window, first = config.window_ms, fleet.start_ms
    expected = (fleet.until_ms - first) // window
    stops = (
        set(draws.sample(range(1, expected), min(faults.restarts, expected - 1)))
        if faults.restarts
        else set()
    )
    now, number = first, 0
    end_ms = fleet.until_ms + _AFTERMATH_MS
    feedback: list[Event] = []
    while (fleet.pending or courier.holds or now < fleet.until_ms) and now < end_ms:
        # When all have been picked up or given up, only trips are left to end.
        step = window if now < fleet.until_ms + _RUSH_MS else 30 * window
        now = (now // step + 1) * step
        number += 1
        for at in (now, now + 1):  # what answers a window's offers comes right after it
            happened = [*feedback, *fleet.until(at)]
            feedback = []
            events = courier.carry(happened, at)
            if evidence is not None:
                for _, _, event, name in events:
                    evidence.take(name, event, at)
            if keep_log:
                replay.log.append([(name, k, t, msgspec.json.encode(e)) for k, t, e, name in events])
            feedback = _take(replay, chain.run(events, at), fleet, at)
            if evidence is not None:
                evidence.passed(at)
        if number in stops:
            chain.restart()
        if number % 50 == 0:
            progress(min(number, expected), expected)
    _take(replay, chain.drain(), fleet, now)
    replay.alarms = alarms_of(replay.records.pop("main", []))
    replay.state_left = not chain.is_empty
    replay.wall_s = time.perf_counter() - began
    return replay


def alarms_of(journal: list[dict[str, Any]]) -> list[Violation]:
    """Return the alarms that the streaming auditor raises over a journal."""
    steps = [msgspec.convert(row, Journal) for row in journal]
    host = MemoryHost(Auditor(), records=True)
    found = host.run_batch([(step.subject, step.at_ms, step) for step in steps]) + host.drain()
    return [e.payload for e in found if e.output == "main"]


def _take(replay: Replay, emissions: list[Emission], fleet: Fleet, now: int) -> list[Event]:
    """Keep what came out, tell the fleet, and return what the app itself reads again."""
    again: list[Event] = []
    for e in emissions:
        replay.records.setdefault(e.output, []).append(msgspec.json.decode(e.payload))
        if replay.evidence is not None and e.output in OUTPUTS:
            replay.evidence.read(e.output, None, e.payload, now)
        if e.output in MESSAGES:
            fleet.tell(msgspec.json.decode(e.payload, type=MESSAGES[e.output]), now)
        elif e.output == "handovers":
            again.append(msgspec.json.decode(e.payload, type=Handover))
    return again


class Courier:
    """Brings events, some of them twice and some too late.

    Args:
        draws: Random numbers.
        faults: How often.
        window_ms: A late event comes one to three windows late.
    """

    def __init__(self, draws: random.Random, faults: Faults, window_ms: int) -> None:
        self._draws, self._faults, self._window_ms = draws, faults, window_ms
        self._held: list[tuple[int, Event]] = []

    @property
    def holds(self) -> bool:
        """Whether something is still on its way."""
        return not all(isinstance(event, Position) for _, event in self._held)

    def carry(self, events: list[Event], now: int) -> list[tuple[str, int, Event, str]]:
        """Return what arrives now: keys, times, events and their inputs."""
        arrived: list[Event] = []
        for event in events:
            if self._faults.late and self._draws.random() < self._faults.late:
                self._held.append((now + self._delay(), event))
                continue
            arrived.append(event)
            if self._faults.duplicates and self._draws.random() < self._faults.duplicates:
                self._held.append(
                    (now + self._draws.choice([0, self._delay()]), msgspec.structs.replace(event))
                )
        due = [event for at, event in self._held if at <= now]
        self._held = [(at, event) for at, event in self._held if at > now]
        return [
            (key_of(event), event.event_time_ms, msgspec.structs.replace(event), stream_of(event))
            for event in (*arrived, *due)
        ]

    def _delay(self) -> int:
        return self._draws.randint(1, 3) * self._window_ms

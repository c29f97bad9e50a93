"""Evidence of an audit: the topics, read once, by driver and by request, with when it can have been known.

What is behind the watermark counts for the app from when it comes, so nobody outside knows to the millisecond
what it knew. Of every message it is therefore said whether it was *surely* in time: newer than all that had
arrived by then, less the bound. What surely came counts as known; what may have been late may be known or
not, and both are right.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.places import EARTH_M, distance_m
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import (
    CLOCKS,
    INPUTS,
    MAX_KEY,
    Answer,
    Cancellation,
    Command,
    Control,
    DriverStatus,
    DropVenue,
    Event,
    Handover,
    Position,
    Progress,
    RideRequest,
    SetPair,
    SetVenue,
    has_other_key,
    identity_of,
    key_of,
    too_far_ahead,
)
from millrace_apps.ridesharing.contracts.records import Assignment, Offer, Release, Trip
from millrace_apps.ridesharing.processes.regions import zone_of

Ints = npt.NDArray[np.int64]
E = TypeVar("E")

#: What the app says, by the name of its topic's setting.
OUTPUTS: Final[dict[str, Any]] = {
    "offers": Offer,
    "assignments": Assignment,
    "releases": Release,
    "trips": Trip,
}
#: What an audit reads: topics by the names of their settings.
STREAMS: Final = ("control", *INPUTS, *OUTPUTS)
_DECODERS: Final = {
    name: msgspec.json.Decoder(tp).decode
    for name, tp in (("control", Control), *INPUTS.items(), *OUTPUTS.items())
}
_STATES: Final = ("idle", "approaching", "waiting", "on_trip")
#: What comes within so long may be read in any order where it comes by several topics, ms.
_BATCH_MS: Final = 60_000
#: Before all time.
NEVER: Final = -(1 << 62)


class Said(Generic[E]):
    """An event, and whether it was surely in time.

    Attributes:
        event: The event.
        arrival_ms: When it arrived, ms.
        prompt: Whether it was surely in time.
        sure: Whether it surely took effect at its own time: prompt, and no command, which are no clock.
    """

    __slots__ = ("arrival_ms", "event", "prompt", "sure")

    def __init__(self, event: E, arrival_ms: int) -> None:
        self.event, self.arrival_ms, self.prompt, self.sure = event, arrival_ms, False, False

    def explains(self, at_ms: int) -> bool:
        """Return whether what happened at a time can have come of it: at once, or later if it was late."""
        when: int = self.event.event_time_ms  # type: ignore[attr-defined]
        return when == at_ms or (when < at_ms and not self.sure)


@dataclass(slots=True)
class KeptPair:
    """What was said of a rider and a driver.

    Attributes:
        event: What.
        arrival_ms: When it arrived, ms.
        from_ms: From when on at the earliest it holds, ms.
        sure_ms: From when on it surely holds, ms.
    """

    event: SetPair
    arrival_ms: int
    from_ms: int = NEVER
    sure_ms: int = NEVER


@dataclass(slots=True)
class KeptVenue:
    """What was said of a venue; times as of :class:`KeptPair`."""

    event: SetVenue | DropVenue
    arrival_ms: int
    from_ms: int = NEVER
    sure_ms: int = NEVER


@dataclass(slots=True)
class Fixes:
    """Positions of one driver, by time.

    Attributes:
        at_ms: When they were measured, ms.
        lat: Degrees.
        lon: Degrees.
        state: What the phone said: 0 idle, 1 approaching, 2 waiting, 3 on a trip.
        sure: Whether they were surely in time, and passed on in order.
        classes: Classes that the car was said to be.
    """

    at_ms: list[int]
    lat: list[float]
    lon: list[float]
    state: list[int]
    sure: list[bool]
    classes: set[str]


class _Columns:
    """Positions as they come, in columns."""

    def __init__(self) -> None:
        self.driver, self.at_ms, self.arrival_ms = array("q"), array("q"), array("q")
        self.lat, self.lon = array("d"), array("d")
        self.state, self.mock = array("b"), array("b")

    def add(self, driver: int, event: Position, arrival_ms: int) -> None:
        self.driver.append(driver)
        self.at_ms.append(event.event_time_ms)
        self.arrival_ms.append(arrival_ms)
        self.lat.append(event.lat)
        self.lon.append(event.lon)
        self.state.append(_STATES.index(event.state))
        self.mock.append(event.mock)


@dataclass
class Evidence:
    """Everything that was read, once each.

    Args:
        config: How the app dispatches.
        bound_ms: How far out of order events may come, ms (``stream.out_of_orderness``).
        margin_ms: What arrived within so long after an event may have been read before it, ms; -1: arrivals
            are batches, and of one batch all are read at once.
        future_ms: What is further ahead of its arrival is no event, ms; ``None``: anything is one.
        begin_ms: Of what happened before nothing may have been read, ms.

    Attributes:
        unreadable: Stream → messages that are no events: the app has dead letters of them.
        counts: Stream → events that were read, once each.
        requests: Request → what was asked for, as it first came.
        answers, cancellations, progress, commands: Request → what was said of it; commands about drivers and
            zones by those.
        statuses: Driver → coming on line and going off.
        handovers: Driver → from region to region.
        pairs: Rider and driver → what was said of the two, in order of arrival.
        venues: Venue → what was said of it, in order of arrival.
        pickups: Request → where its drivers were last told to meet the rider, degrees.
        offers, assignments, releases, trips: What the app said, in order of arrival.
    """

    config: DispatchConfig = field(default_factory=DispatchConfig)
    bound_ms: int = 0
    margin_ms: int = 0
    future_ms: int | None = None
    begin_ms: int = NEVER

    def __post_init__(self) -> None:
        self.unreadable: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.requests: dict[str, Said[RideRequest]] = {}
        self.answers: dict[str, list[Said[Answer]]] = {}
        self.cancellations: dict[str, list[Said[Cancellation]]] = {}
        self.progress: dict[str, list[Said[Progress]]] = {}
        self.commands: dict[str, list[Said[Command]]] = {}
        self.statuses: dict[str, list[Said[DriverStatus]]] = {}
        self.handovers: dict[str, list[Handover]] = {}
        self.pairs: dict[tuple[str, str], list[KeptPair]] = {}
        self.venues: dict[str, list[KeptVenue]] = {}
        self.pickups: dict[str, tuple[float, float]] = {}
        self.offers: list[Offer] = []
        self.assignments: list[Assignment] = []
        self.releases: list[Release] = []
        self.trips: list[Trip] = []
        self.end_ms = NEVER
        self._kept: list[Said[Any]] = []
        self._seen: set[tuple[str, str]] = set()
        self._names: dict[str, int] = {}
        self._classes: dict[str, set[str]] = {}
        self._columns = _Columns()
        self._first_heard: dict[str, int] = {}
        self._clock_at, self._clock_ms = array("q"), array("q")
        self._fixes: dict[str, Fixes] = {}
        self._takers: dict[type, Callable[[Any, int], None]] = {
            DriverStatus: self._take_status,
            RideRequest: self._take_request,
            Answer: lambda event, at: self._keep(self.answers, event.request_id, event, at),
            Cancellation: lambda event, at: self._keep(self.cancellations, event.request_id, event, at),
            Progress: lambda event, at: self._keep(self.progress, event.request_id, event, at),
            Command: self._take_command,
            Handover: lambda event, at: self.handovers.setdefault(event.driver_id, []).append(event),
        }

    def read(
        self, stream: str, key: str | None, value: bytes | None, arrival_ms: int, identity: str = ""
    ) -> None:
        """Take a message of a topic.

        Args:
            stream: Name of the topic's setting, of :data:`STREAMS`.
            key: Its key.
            value: Its JSON.
            arrival_ms: When the broker took it, UTC ms.
            identity: Of a message of the app: its ``event_id``; the app's messages may come twice on a topic.

        >>> evidence = Evidence()
        >>> evidence.read("offers", "all", b"{}", 0)
        >>> dict(evidence.unreadable)
        {'offers': 1}
        """
        if identity:
            if (stream, identity) in self._seen:
                return
            self._seen.add((stream, identity))
        try:
            event = _DECODERS[stream](value or b"")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.unreadable[stream] += 1
            return
        if stream == "control":
            self.switch(event, arrival_ms)
        elif stream in OUTPUTS:
            self.hear(stream, event)
        else:
            self.take(stream, event, arrival_ms, key)

    def hear(self, stream: str, record: Any) -> None:
        """Take what the app says: an offer, assignment, release, or a step of a trip."""
        self.counts[stream] += 1
        getattr(self, stream).append(record)
        if stream == "offers":
            self.pickups[record.request_id] = (record.pickup_lat, record.pickup_lon)

    def switch(self, control: Control, arrival_ms: int) -> None:
        """Take what operators say to all regions: of that, who is never to meet, and of venues."""
        self.counts["control"] += 1
        if isinstance(control, SetPair):
            of = self.pairs.setdefault((control.rider_id, control.driver_id), [])
            of.append(KeptPair(control, arrival_ms))
        elif isinstance(control, SetVenue | DropVenue):
            self.venues.setdefault(control.name, []).append(KeptVenue(control, arrival_ms))

    def take(self, stream: str, event: Event, arrival_ms: int, key: str | None = None) -> None:
        """Take an event of an input, unless it is one that no gate lets pass."""
        if not self._is_event(event, arrival_ms, key):
            self.unreadable[stream] += 1
            return
        at = event.event_time_ms
        if stream in CLOCKS:
            self._clock_at.append(arrival_ms)
            self._clock_ms.append(at)
            self.end_ms = max(self.end_ms, at)
        if isinstance(event, Position):
            name = event.driver_id
            self.counts[stream] += 1
            if not event.mock:
                self._hear_of(name, arrival_ms)
            self._classes.setdefault(name, set()).add(event.vehicle_class)
            self._columns.add(self._names.setdefault(name, len(self._names)), event, arrival_ms)
            return
        if not isinstance(event, Handover):
            once = (stream, identity_of(event))
            if once in self._seen:
                return
            self._seen.add(once)
        self.counts[stream] += 1
        self._takers[type(event)](event, arrival_ms)

    def passed(self, now_ms: int) -> None:
        """Note that the app's clock was moved to a time, whatever had come (a host in memory)."""
        self._clock_at.append(now_ms)
        # An event of that very moment is late, as it is behind a newest event by more than the bound.
        self._clock_ms.append(now_ms + self.bound_ms + 1)

    def close(self) -> None:
        """Sort what was read, and say of each event whether it was surely in time."""
        arrivals, newest = _running_max(
            np.frombuffer(self._clock_at, np.int64), np.frombuffer(self._clock_ms, np.int64)
        )

        def known_by(arrival_ms: Ints) -> Ints:
            place = np.searchsorted(arrivals, arrival_ms + self.margin_ms, side="right") - 1
            if not len(newest):
                return np.full(len(arrival_ms), NEVER)
            return np.where(place >= 0, newest[np.maximum(place, 0)], NEVER)

        if self._kept:
            arrived = np.array([one.arrival_ms for one in self._kept], np.int64)
            for one, known in zip(self._kept, known_by(arrived).tolist(), strict=True):
                one.prompt = one.event.event_time_ms >= known - self.bound_ms
                one.sure = one.prompt and not isinstance(one.event, Command)
        self._close_positions(known_by)
        self._close_pairs(known_by)
        for by in (self.answers, self.cancellations, self.progress, self.commands, self.statuses):
            for said in by.values():
                said.sort(key=lambda one: one.event.event_time_ms)
        for moved in self.handovers.values():
            moved.sort(key=lambda one: one.event_time_ms)

    def _close_pairs(self, known_by: Callable[[Ints], Ints]) -> None:
        """Say from when on pairs and venues hold: the app has read them before what came long after."""
        wait = _BATCH_MS if self.margin_ms >= 0 else 0
        words: list[KeptPair | KeptVenue] = [one for of in self.pairs.values() for one in of]
        words += [one for of in self.venues.values() for one in of]
        for kept in words:
            came = np.array([kept.arrival_ms - wait, kept.arrival_ms + wait], np.int64)
            before, after = known_by(came).tolist()
            kept.from_ms = max(kept.event.from_ms, before - self.bound_ms if before > NEVER else NEVER)
            kept.sure_ms = max(kept.event.from_ms, after + 1)

    @property
    def drivers(self) -> Iterable[str]:
        """All who have sent positions."""
        return self._fixes.keys()

    def had_heard_of(self, driver_id: str, arrival_ms: int) -> bool:
        """Return whether a driver was surely known when something came, whichever topic was read first."""
        first = self._first_heard.get(driver_id)
        ambiguous = _BATCH_MS if self.margin_ms >= 0 else 0
        return first is not None and arrival_ms > first + ambiguous

    def fixes(self, driver_id: str) -> Fixes | None:
        """Return the positions of a driver; ``None``: there are none."""
        return self._fixes.get(driver_id)

    def _is_event(self, event: Event, arrival_ms: int, key: str | None) -> bool:
        if key is not None and (not 0 < len(key) <= MAX_KEY or has_other_key(event, key)):
            return False
        if self.future_ms is not None and event.event_time_ms > arrival_ms + self.future_ms:
            return False
        if too_far_ahead(event):
            return False
        zone = getattr(event, "zone", "")
        if isinstance(event, Position | DriverStatus | Handover) or (isinstance(event, Command) and not zone):
            return True
        try:
            self.config.regions.of_zone(zone)
        except ValueError:
            return False
        return True

    def _keep(self, by: dict[str, list[Said[Any]]], about: str, event: Event, arrival_ms: int) -> None:
        said: Said[Any] = Said(event, arrival_ms)
        self._kept.append(said)
        by.setdefault(about, []).append(said)

    def _take_request(self, event: RideRequest, arrival_ms: int) -> None:
        said = self.requests[event.request_id] = Said(event, arrival_ms)
        self._kept.append(said)

    def _hear_of(self, driver_id: str, arrival_ms: int) -> None:
        self._first_heard[driver_id] = min(arrival_ms, self._first_heard.get(driver_id, arrival_ms))

    def _take_status(self, event: DriverStatus, arrival_ms: int) -> None:
        if event.lat is not None and event.lon is not None:
            self._hear_of(event.driver_id, arrival_ms)
        self._classes.setdefault(event.driver_id, set()).add(event.vehicle_class)
        self._keep(self.statuses, event.driver_id, event, arrival_ms)

    def _take_command(self, event: Command, arrival_ms: int) -> None:
        # Commands are no clock: when one is carried out hangs on when it comes.
        about = key_of(event)
        if about and about == event.zone and event.action in ("blackout", "lift"):
            about = zone_of(about)
        self._keep(self.commands, about, event, arrival_ms)
        if event.driver_id and event.request_id and key_of(event) != event.driver_id:
            self._keep(self.commands, event.driver_id, event, arrival_ms)

    def _close_positions(self, known_by: Callable[[Ints], Ints]) -> None:
        c = self._columns
        driver, at, arrival = (np.frombuffer(x, np.int64) for x in (c.driver, c.at_ms, c.arrival_ms))
        lat, lon = np.frombuffer(c.lat), np.frombuffer(c.lon)
        state, mock = np.frombuffer(c.state, np.int8), np.frombuffer(c.mock, np.int8)
        if not len(driver):
            return
        sure = at >= known_by(arrival) - self.bound_ms
        order = np.lexsort((arrival, at, driver))
        order = order[mock[order] == 0]  # what a phone says is made up is no position
        bounds = np.searchsorted(driver[order], np.arange(len(self._names) + 1))
        for number, name in enumerate(self._names):
            own = order[bounds[number] : bounds[number + 1]]
            certain = sure[own] & ~self._overtaken(name, at[own], arrival[own])
            kept = _believed(at[own], lat[own], lon[own], certain, self.config)
            own, certain = own[kept], certain[kept]
            self._fixes[name] = Fixes(
                at[own].tolist(), lat[own].tolist(), lon[own].tolist(), state[own].tolist(),
                certain.tolist(), self._classes.get(name, set()),
            )  # fmt: skip

    def _overtaken(self, driver_id: str, at: Ints, arrival: Ints) -> npt.NDArray[np.bool_]:
        """Return which positions may have come after a newer position or status: the gate passes none on.

        A status comes by another topic, so that it may be read before what had come before it.
        """
        statuses = self.statuses.get(driver_id, ())
        times = np.append(at, np.array([one.event.event_time_ms for one in statuses], np.int64))
        came = np.append(arrival, np.array([one.arrival_ms - _BATCH_MS for one in statuses], np.int64))
        arrivals, newest = _running_max(came, times)
        place = np.searchsorted(arrivals, arrival + self.margin_ms, side="right") - 1
        found: npt.NDArray[np.bool_] = (place >= 0) & (newest[np.maximum(place, 0)] > at)
        return found


def _running_max(arrival: Ints, time: Ints) -> tuple[Ints, Ints]:
    """Return arrivals in order, and the newest time that had come by each."""
    order = np.argsort(arrival, kind="stable")
    return arrival[order], np.maximum.accumulate(time[order]) if len(order) else time


#: Positions are wrong by so much, metres, and an arc of a degree is so long.
_NOISE_M: Final = 250.0
_M_PER_DEGREE: Final = EARTH_M * np.pi / 180
#: What is nearly as far as allowed is reckoned on the sphere, share of it.
_NEARLY: Final = 0.99


def _believed(
    at: Ints, lat: npt.NDArray[Any], lon: npt.NDArray[Any], certain: npt.NDArray[np.bool_],
    config: DispatchConfig,
) -> npt.NDArray[np.bool_]:  # fmt: skip
    """Return which positions of a driver, in order of time, a car can have been at.

    What no car gets to from the last believed one is none, until such positions agree for long enough.
    Among positions of which one may have been late nobody knows: all may count, and none surely.
    """
    most, size = config.most_m_per_s, len(at)
    kept = np.ones(size, bool)
    if not most or size < 2:
        return kept

    def reaches(a: int, b: int) -> bool:
        away = distance_m(float(lat[a]), float(lon[a]), float(lat[b]), float(lon[b]))
        return away <= _NOISE_M + most * int(at[b] - at[a]) / 1_000

    around = np.abs(np.diff(lon))
    around = np.minimum(around, 360.0 - around)  # by the shorter way
    steps = np.hypot(np.diff(lat), around * np.cos(np.radians(lat[:-1]))) * _M_PER_DEGREE
    # On a plain, so that a step is looked at that is shorter by some share than is allowed.
    if not (steps > _NEARLY * (_NOISE_M + most * np.diff(at) / 1_000)).any():
        return kept
    if not certain.all():
        certain[:] = False
        return kept
    last, first_doubt, doubt = 0, -1, -1
    for n in range(1, size):
        if reaches(last, n):
            last, doubt = n, -1
            continue
        agrees = doubt >= 0 and at[n] > at[doubt] and reaches(doubt, n)
        first_doubt = first_doubt if agrees else n
        doubt = n
        if agrees and at[n] - at[first_doubt] >= config.believe_ms:
            last, doubt = n, -1
        else:
            kept[n] = False
    return kept


@dataclass(frozen=True, slots=True)
class Sighting:
    """Where a driver may have been for all that the app could know.

    Attributes:
        at_ms: When, ms.
        lat: Degrees; ``None``: a sign of life without a place.
        lon: Degrees.
        idle: Whether the driver was free to be asked, by this.
        sure: Whether the app surely knew.
    """

    at_ms: int
    lat: float | None
    lon: float | None
    idle: bool
    sure: bool


class Whereabouts:
    """What could be known of drivers at a time: signs of life from positions, statuses, reports, handovers.

    Args:
        evidence: What was read; closed.
        grace_ms: After a handover positions may go to the old owner for so long, ms.
    """

    def __init__(self, evidence: Evidence, *, grace_ms: int = 60_000) -> None:
        self._evidence, self._grace_ms = evidence, grace_ms
        self._refresh_ms = evidence.config.refresh_ms
        self._moved: dict[str, list[Sighting]] = {}
        self._moved_at: dict[str, list[int]] = {}
        ended = {(t.request_id, t.driver_id, t.at_ms) for t in evidence.trips if t.state == "completed"}
        for said in evidence.progress.values():
            for one in said:
                p = one.event
                # A report of a trip's end is always taken; others only where the car can have been.
                sure = one.sure and (p.request_id, p.driver_id, p.event_time_ms) in ended
                self._add(p.driver_id, Sighting(p.event_time_ms, p.lat, p.lon, p.stage == "finished", sure))
        for name, statuses in evidence.statuses.items():
            for status in (one.event for one in statuses if one.event.status == "online"):
                self._add(name, Sighting(status.event_time_ms, status.lat, status.lon, True, False))
        for name, moves in evidence.handovers.items():
            for move in moves:
                self._add(name, Sighting(move.seen_ms, move.lat, move.lon, move.idle, False))
        ended_by_hand: set[str] = set()
        for said_commands in evidence.commands.values():
            for command in (one.event for one in said_commands if one.event.action == "end_trip"):
                for driver_id in _drivers_of(evidence, command):
                    self._add(driver_id, Sighting(command.event_time_ms, None, None, True, False))
                ended_by_hand.add(command.request_id)
        for step in evidence.trips:  # a command that comes late ends a trip when it comes
            if step.state == "completed" and step.request_id in ended_by_hand:
                self._add(step.driver_id, Sighting(step.at_ms, None, None, True, False))
        for name, found in self._moved.items():
            found.sort(key=lambda s: s.at_ms)
            self._moved_at[name] = [s.at_ms for s in found]

    def known(self, driver_id: str, now_ms: int) -> list[Sighting]:
        """Return the signs of life of a driver, by time, of which the newest known at a time is one."""
        fixes, found = self._evidence.fixes(driver_id), list[Sighting]()
        moved = self._moved.get(driver_id, [])
        last = bisect_right(self._moved_at.get(driver_id, []), now_ms)
        end = bisect_right(fixes.at_ms, now_ms) if fixes is not None else 0
        since = next((s.at_ms for s in reversed(moved[:last]) if s.sure), NEVER)
        if fixes is not None:
            place = next((n for n in range(end - 1, -1, -1) if fixes.sure[n]), -1)
            since = max(since, fixes.at_ms[place] if place >= 0 else NEVER)
        if since > NEVER:
            since = self._since(driver_id, since, now_ms)
        for n in range(end - 1, -1, -1):
            if fixes is None or fixes.at_ms[n] < since:
                break
            of = (fixes.at_ms[n], fixes.lat[n], fixes.lon[n], fixes.state[n] == 0, fixes.sure[n])
            found.append(Sighting(*of))
        for n in range(last - 1, -1, -1):
            if moved[n].at_ms < since:
                break
            found.append(moved[n])
        return sorted(found, key=lambda s: s.at_ms)

    def _since(self, driver_id: str, sure_ms: int, now_ms: int) -> int:
        """Return from when on what is known may be: of positions in a row the gate passes on only some."""
        since = sure_ms - self._refresh_ms
        for move in reversed(self._evidence.handovers.get(driver_id, [])):
            at = move.event_time_ms
            if at <= now_ms and sure_ms - at <= self._grace_ms:
                since = min(since, move.seen_ms)
            if sure_ms - at > self._grace_ms:
                break
        return since

    def _add(self, driver_id: str, sighting: Sighting) -> None:
        self._moved.setdefault(driver_id, []).append(sighting)


def _drivers_of(evidence: Evidence, command: Command) -> Sequence[str]:
    """Return the drivers whose trip a command can have ended."""
    if command.driver_id:
        return (command.driver_id,)
    return sorted({one.event.driver_id for one in evidence.answers.get(command.request_id, ())})

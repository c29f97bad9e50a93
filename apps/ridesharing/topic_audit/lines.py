"""Lines of venues, found anew from positions and from what became of offers, and offers held against them.

Of a driver it is said since when the driver may have waited at the earliest, and since when surely. Where
something may have come late, was said at a moment that nobody outside knows, or went from region to region,
the two differ or the driver may or may not wait; nothing is a violation that can be explained by that. So it
is with tickets of short trips: a driver has one, has none, or may have one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import h3.api.basic_int as h3i

from millrace.places import degrees_east, distance_m
from millrace_apps.ridesharing.contracts.events import Progress, RideRequest, SetVenue, ShortTrip
from millrace_apps.ridesharing.contracts.records import Trip
from millrace_apps.ridesharing.processes.geo import cell_of
from millrace_apps.ridesharing.processes.regions import ZONE_RESOLUTION
from millrace_apps.ridesharing.state.venues import FINEST, MOST_VENUES
from millrace_apps.ridesharing.topic_audit.evidence import NEVER, Evidence, KeptVenue, Whereabouts
from millrace_apps.ridesharing.topic_audit.findings import Findings
from millrace_apps.ridesharing.topic_audit.steps import EVER, Commitment

#: After a handover, and where there are regions, nobody surely waits before so long has passed, ms.
_SETTLES_MS: Final = 60_000
#: Distances are told to a tenth of a metre, and positions are rounded: nearer than the radius by so much, m.
_SURELY_M: Final = 100.0
#: Silences are looked at by whole seconds, ms.
_SECOND_MS: Final = 2_000

#: Straight lines are told to a tenth of a metre, and positions to less than so much, metres.
_ROUNDING_M: Final = 1.0
#: A cell is looked at so near to its edge, share of the way from its middle.
_NEARLY: Final = 0.999

Waits = Literal["no", "maybe", "yes"]
#: Request, attempt and driver.
Attempted = tuple[str, int, str]


class _Area:
    def __init__(self, cells: Sequence[str]) -> None:
        self._cells = frozenset(map(h3i.str_to_int, cells))
        self._resolutions = sorted({h3i.get_resolution(cell) for cell in self._cells})

    def has(self, lat: float, lon: float) -> bool:
        return any(cell_of(lat, lon, resolution) in self._cells for resolution in self._resolutions)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a venue is from a time on, and since when it has a line; ``None``: it is not."""

    said: KeptVenue
    event: SetVenue | None
    zone: _Area
    pen: _Area
    since_ms: int


class VenuesSaid:
    """The venues by what was said of them.

    Args:
        evidence: What was read; closed.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._plans: dict[str, list[_Plan]] = {}
        regions, crowd = evidence.config.regions, list(evidence.venues)[MOST_VENUES:]
        for name, words in sorted(evidence.venues.items()):
            plans = self._plans[name] = []
            for said in words:
                event = said.event if isinstance(said.event, SetVenue) else None
                is_one = "yes" if event is None else _can_be(event, regions)
                if is_one == "no":
                    continue
                if event is not None and name in crowd:
                    is_one = "maybe"  # refused, unless others had gone
                if is_one == "maybe":  # refused, unless regions were others when it was said
                    said = replace(said, sure_ms=EVER)
                # What was to hold later is taken back by what is said last.
                plans[:] = [one for one in plans if one.said.from_ms < said.from_ms or one.said is said]
                was = plans[-1].event if plans else None
                goes_on = was is not None and bool(was.pen) and plans[-1].said.sure_ms < EVER
                since = plans[-1].since_ms if goes_on else said.sure_ms
                zone, pen = (_Area(event.zone), _Area(event.pen)) if event else (_Area(()), _Area(()))
                plans.append(_Plan(said, event, zone, pen, since))

    def __bool__(self) -> bool:
        return bool(self._plans)

    def at(self, name: str, at_ms: int) -> list[_Plan | None]:
        """Return how a venue is at a time: one plan where that is sure, else those it may be."""
        plans = self._plans.get(name, [])
        sure = [n for n, one in enumerate(plans) if one.said.sure_ms <= at_ms]
        begun = plans[sure[-1] if sure else 0 :]
        may_be: list[_Plan | None] = [one for one in begun if one.said.from_ms <= at_ms]
        return may_be if sure else [None, *may_be]

    def where(self, what: Literal["zone", "pen"], lat: float, lon: float, at_ms: int) -> tuple[str, bool]:
        """Return in whose zone or pen a place is at a time, and whether that is sure; empty: in none."""
        for name in self._plans:
            inside = [
                one is not None and one.event is not None and getattr(one, what).has(lat, lon)
                for one in self.at(name, at_ms)
            ]
            if any(inside):
                return name, all(inside)
        return "", True

    def changes(self) -> list[tuple[int, int]]:
        """Return when venues become others, from when to when that is not sure, ms."""
        return [(one.said.from_ms, one.said.sure_ms) for plans in self._plans.values() for one in plans]

    def meeting_places(self, request: RideRequest) -> dict[tuple[float, float], set[str]]:
        """Return where drivers may be told to meet the rider of a request, degrees, and what it is called."""
        asked = (request.pickup_lat, request.pickup_lon)
        name, sure = self.where("zone", *asked, request.event_time_ms)
        found: dict[tuple[float, float], set[str]] = {} if name and sure else {asked: {""}}
        for plan in self.at(name, request.event_time_ms) if name else ():
            points = [p for p in plan.event.points if p.is_open] if plan is not None and plan.event else []
            named = [p for p in points if p.name == request.pickup_point]
            away = {p: round(distance_m(*asked, p.lat, p.lon), 1) for p in named or points}
            for point, metres in away.items():
                if metres == min(away.values()):
                    found.setdefault((point.lat, point.lon), set()).add(point.name)
            if not points:
                found.setdefault(asked, set()).add("")
        return found


def _can_be(said: SetVenue, regions: Any) -> Waits:
    """Return whether what is said is a venue; ``maybe``: with other regions it is one."""
    try:
        parts = {regions.of_zone(cell) for cell in said.zone}
        cells = [h3i.str_to_int(cell) for cell in (*said.zone, *said.pen)]
        fine = all(map(h3i.is_valid_cell, cells)) and all(
            ZONE_RESOLUTION <= h3i.get_resolution(cell) <= FINEST for cell in cells
        )
        fine = fine and len({point.name for point in said.points}) == len(said.points)
    except (ValueError, OverflowError):
        return "no"
    if not regions.is_one:
        parts |= {regions.of_place(*place) for cell in said.zone for place in _within(cell)}
    short = said.short_trip
    fine = fine and (short is None or short.minutes > 0 or short.km > 0)
    if not fine:
        return "no"
    zone = _Area(said.zone)
    if not all(zone.has(p.lat, p.lon) for p in said.points):
        return "no"
    return "yes" if len(parts) == 1 else "maybe"


def _within(name: str) -> Iterable[tuple[float, float]]:
    """Return places of a cell that is finer than those that requests are counted to, near to its edge."""
    cell = h3i.str_to_int(name)
    if h3i.get_resolution(cell) == ZONE_RESOLUTION:
        return
    lat, lon = h3i.cell_to_latlng(cell)
    corners = h3i.cell_to_boundary(cell)
    for n, (north, east) in enumerate(corners):
        for share in (0.0, 0.5):
            before = corners[n - 1]
            edge = north + share * (before[0] - north), east + share * degrees_east(east, before[1])
            yield lat + _NEARLY * (edge[0] - lat), lon + _NEARLY * degrees_east(lon, edge[1])


@dataclass(slots=True)
class _Place:
    """A driver's place in a line from a time on."""

    at_ms: int
    venue: str = ""
    waits: Waits = "no"
    early_ms: int = 0
    late_ms: int = 0
    away_ms: int = 0
    heard_ms: int = NEVER
    #: Whether the driver has joined with a ticket, and until when that is so whenever it was, ms.
    ticket: Waits = "no"
    ticket_ms: int = NEVER


@dataclass(frozen=True, slots=True)
class _Ticket:
    """What a short trip has earned: from when on, and until when surely and at most, ms."""

    venue: str
    earned_ms: int
    sure_ms: int
    until_ms: int
    is_sure: bool


def _ends_by(said: Progress, one: Commitment) -> bool:
    """Return whether a commitment ends by a driver's report."""
    ends = ("finished", one.driver_id, one.ends_ms)
    return (said.stage, said.driver_id, said.event_time_ms) == ends


class _Short:
    """Says which trips from lines were short, and what they have earned.

    Args:
        evidence: What was read; closed.
        venues: The venues.
        whereabouts: Where cars were.
        accepts: Attempt → when the driver has said yes, ms.
    """

    def __init__(
        self, evidence: Evidence, venues: VenuesSaid, whereabouts: Whereabouts,
        accepts: Mapping[Attempted, int],
    ) -> None:  # fmt: skip
        self._venues, self._whereabouts, self._accepts = venues, whereabouts, accepts
        self._progress = evidence.progress
        self._ends: dict[Attempted, Trip] = {
            (s.request_id, s.attempt, s.driver_id): s
            for s in evidence.trips if s.state == "completed" and s.before == "in_progress"
        }  # fmt: skip
        self._pickups = {(o.request_id, o.attempt): (o.pickup_lat, o.pickup_lon) for o in evidence.offers}

    def from_line(self, one: Commitment, place: _Place) -> Waits:
        """Return whether an offer is one to a driver in line, by the place before it."""
        pickup = self._pickups.get((one.request_id, one.attempt))
        if pickup is None or not one.by_offer or place.waits == "no":
            return "no"
        venue, sure = self._venues.where("zone", *pickup, one.begins_ms)
        if venue != place.venue:
            return "no"
        return "yes" if sure and place.waits == "yes" else "maybe"

    def earned(self, one: Commitment, venue: str, taken: Waits) -> _Ticket | None:
        """Return what the driver has earned where a commitment ends; ``None``: surely nothing.

        Args:
            one: The commitment.
            venue: In whose line the driver was when it began.
            taken: Whether that was so.
        """
        attempt = (one.request_id, one.attempt, one.driver_id)
        accepted, end = self._accepts.get(attempt), self._ends.get(attempt)
        if taken == "no" or accepted is None or end is None or end.at_ms != one.ends_ms:
            return None
        plans = self._venues.at(venue, end.at_ms)
        rules = [p.event.short_trip if p is not None and p.event and p.event.pen else None for p in plans]
        shorts = [self._is_short(rule, one, end.at_ms - accepted) for rule in rules]
        lengths = [int(r.back_minutes * 60_000) for r in rules if r is not None]
        if all(short == "no" for short in shorts):
            return None
        stood = all(p is not None and p.since_ms <= accepted for p in plans)
        sure = taken == "yes" and stood and all(short == "yes" for short in shorts)
        until = end.at_ms + min(lengths), end.at_ms + max(lengths)
        return _Ticket(venue, end.at_ms, *until, sure)

    def _is_short(self, rule: ShortTrip | None, one: Commitment, took_ms: int) -> Waits:
        if rule is None or (rule.minutes and took_ms > rule.minutes * 60_000):
            return "no"
        if not rule.km:
            return "yes"
        known = [
            (said.event.lat, said.event.lon)
            for said in self._progress.get(one.request_id, ())
            if said.sure and _ends_by(said.event, one)
        ] or [
            (sign.lat, sign.lon)
            for sign in self._whereabouts.known(one.driver_id, one.ends_ms)
            if sign.lat is not None and sign.lon is not None
        ]  # fmt: skip
        pickup, most = self._pickups[one.request_id, one.attempt], rule.km * 1_000
        ways = [distance_m(*pickup, *place) for place in known]
        if ways and max(ways) <= most - _ROUNDING_M:
            return "yes"
        return "no" if ways and min(ways) > most + _ROUNDING_M else "maybe"


class _Driver:
    """The places of one driver in lines, by time: a replay of all that is known of the driver."""

    def __init__(
        self, evidence: Evidence, venues: VenuesSaid, driver_id: str, own: Sequence[Commitment],
        accepts: Mapping[Attempted, int], short: _Short,
    ) -> None:  # fmt: skip
        self._accepts, self._short = accepts, short
        #: What the driver has earned and may not have spent; and in whose line the last offer was made.
        self._tickets: list[_Ticket] = []
        self._taken: tuple[str, Waits] = ("", "no")
        self._evidence, self._config, self._venues = evidence, evidence.config, venues
        self._now = _Place(NEVER)
        self._bound = self._off = False
        self._hazy_ms = NEVER
        self._fix: tuple[float, float, bool, bool] | None = None  # place, idle, sure
        self._kept: list[_Place] = []
        fixes = evidence.fixes(driver_id)
        log: list[tuple[int, int, str, Any]] = []
        if fixes is not None:
            values = zip(fixes.lat, fixes.lon, fixes.state, fixes.sure, strict=True)
            log += [
                (at, 3, "fix", (a, b, c == 0, d))
                for at, (a, b, c, d) in zip(fixes.at_ms, values, strict=True)
            ]
        for said in evidence.statuses.get(driver_id, ()):
            log.append((said.event.event_time_ms, 2, said.event.status, said))
        for move in evidence.handovers.get(driver_id, ()):
            log.append((move.event_time_ms, 2, "handover", move))
        for one in own:
            log.append((one.begins_ms, 1, "begins", one))
            log.append((one.ends_ms, 0, "ends", one))
            if (accepted := self._accepted(one)) is not None:
                log.append((accepted, 1, "accepted", one))
        for from_ms, sure_ms in venues.changes():
            log.append((from_ms, 4, "venues", sure_ms))
            log.append((sure_ms, 4, "venues", sure_ms))
        for at, _, what, about in sorted(log, key=lambda entry: entry[:2]):
            self._take(at, what, about)
            self._now.at_ms = at
            self._kept.append(replace(self._now))
        self._times = [one.at_ms for one in self._kept]

    def at(self, now_ms: int) -> _Place:
        """Return the place in a line before a time."""
        n = bisect_right(self._times, now_ms - 1)
        if not n:
            return _Place(NEVER)
        place = replace(self._kept[n - 1])
        self._expire(place, now_ms)
        return place

    def _accepted(self, one: Commitment) -> int | None:
        return self._accepts.get((one.request_id, one.attempt, one.driver_id))

    def _expire(self, place: _Place, at: int) -> None:
        """Let a place go that has run out by a time: away, or silent, for too long."""
        if place.waits == "no":
            return
        if place.away_ms and at - place.away_ms > self._config.pen_grace_ms:
            place.waits, place.away_ms = "no", 0
        silent = at - place.heard_ms
        if silent > self._config.ttl_ms + _SECOND_MS:
            place.waits, place.away_ms = "no", 0
        elif silent > self._config.ttl_ms - self._config.refresh_ms - _SECOND_MS:
            place.waits = "maybe"

    def _take(self, at: int, what: str, about: Any) -> None:
        now = self._now
        self._expire(now, at)
        if what == "fix":
            lat, lon, idle, sure = about
            # One that the gate may have held back is no surer when it is looked at again.
            self._fix = lat, lon, idle, sure and at >= self._hazy_ms
            if not self._off:
                now.heard_ms = at
                self._stand(at)
        elif what == "offline":
            self._off = True
            now.waits = "no" if about.sure or now.waits == "no" else "maybe"
        elif what == "online":
            self._off = False
            self._hazy_ms = max(self._hazy_ms, at + self._config.refresh_ms)
            event = about.event
            if event.lat is not None and event.lon is not None:
                self._fix, now.heard_ms = (event.lat, event.lon, True, False), at
                self._stand(at)
        elif what == "handover":
            self._hazy_ms = at + _SETTLES_MS
            now.waits = "no" if now.waits == "no" else "maybe"
        elif what == "begins":
            self._bound = True
            self._taken = now.venue, self._short.from_line(about, now)
        elif what == "accepted":
            now.waits, now.away_ms = "no", 0
        elif what == "ends":
            self._end(at, about)
        elif now.waits != "no":
            plans = self._venues.at(now.venue, at)
            there = [p is not None and p.event is not None and bool(p.event.pen) for p in plans]
            if not any(there):
                now.waits = "no"
            elif not all(there):
                now.waits = "maybe"
            elif now.early_ms < max(p.since_ms for p in plans if p is not None):
                now.waits = (
                    "no" if now.late_ms < min(p.said.from_ms for p in plans if p is not None) else "maybe"
                )

    def _end(self, at: int, one: Commitment) -> None:
        self._bound = False
        now, accepted = self._now, self._accepted(one) is not None
        if earned := self._short.earned(one, *self._taken):
            # Of one driver one ticket is kept, the newest.
            kept = [] if earned.is_sure else [replace(t, is_sure=False) for t in self._tickets]
            self._tickets = [*kept, earned]
        lets_go = accepted or (one.lost and self._config.decline_costs_place)
        busy = any(
            a.event.reason == "busy" and a.event.driver_id == one.driver_id and a.event.event_time_ms <= at
            for a in self._evidence.answers.get(one.request_id, ())
        )
        if lets_go:
            now.waits, now.away_ms = "no", 0
        for said in self._evidence.progress.get(one.request_id, ()):
            if _ends_by(said.event, one):
                # Where the trip has ended is known by that; it is a sign of life, too.
                self._fix = (said.event.lat, said.event.lon, True, False)
                now.heard_ms = max(now.heard_ms, at)
        if accepted or busy:
            # The book and the phone may say otherwise until the next position that goes on.
            self._hazy_ms = at + self._config.refresh_ms + _SECOND_MS
        if self._fix is not None and not self._off:
            self._stand(at)

    def _stand(self, at: int) -> None:
        """Let the driver join, stay or go by the newest position."""
        now = self._now
        if self._fix is None or (self._bound and (now.waits == "no" or not now.away_ms)):
            return
        lat, lon, idle, sure = self._fix
        venue, is_sure = self._venues.where("pen", lat, lon, at) if idle or at < self._hazy_ms else ("", True)
        sure = sure and is_sure and at >= self._hazy_ms
        if self._bound:  # who was away when the offer came, and is back
            if venue == now.venue:
                now.waits, now.away_ms = now.waits if sure else "maybe", 0
            return
        if venue and now.waits != "no" and venue != now.venue:
            now.waits, sure = "no", False
        if venue:
            if now.waits == "no":
                now.venue, now.early_ms, now.away_ms = venue, at, 0
                here = sure and self._config.regions.is_one
                now.waits, now.late_ms = ("yes", at) if here else ("maybe", at)
                now.ticket, now.ticket_ms = self._ticket_at(venue, at)
                self._spend(surely=here)
                if at - self._evidence.begin_ms <= max(self._config.ttl_ms, self._config.pen_grace_ms):
                    now.early_ms = NEVER  # the driver may have waited before anything was read
            elif now.waits == "maybe" and self._ticket_at(venue, at)[0] != "no" and now.ticket == "no":
                now.ticket = "maybe"  # the place may have been lost, and the driver have joined anew
                self._spend(surely=False)
            if now.waits == "maybe" and sure and at - now.early_ms >= self._settles_ms:
                now.waits, now.late_ms = "yes", at
                if now.ticket != "no":
                    now.ticket = "yes" if at <= now.ticket_ms else "maybe"
                    self._spend(surely=now.ticket == "yes")
            if now.waits == "yes":
                now.ticket_ms = NEVER
            if now.away_ms:
                now.waits, now.away_ms = now.waits if sure else "maybe", 0
        elif now.waits != "no":
            if sure:
                now.away_ms = now.away_ms or at
            else:  # the place, and with it the ticket that was spent for it, may be lost by the next position
                now.waits, now.ticket_ms = "maybe", NEVER

    def _ticket_at(self, venue: str, at: int) -> tuple[Waits, int]:
        """Return whether the driver joins the line of a venue with a ticket, and until when that is sure."""
        may_be = [t for t in self._tickets if t.venue == venue and t.earned_ms <= at <= t.until_ms]
        if not may_be:
            return ("maybe" if self._earned_before(venue, at) else "no"), NEVER
        newest, plans = self._tickets[-1], self._venues.at(venue, at)
        stood = all(p is not None and p.since_ms <= newest.earned_ms for p in plans)
        if stood and newest.is_sure and newest in may_be and at <= newest.sure_ms:
            return "yes", newest.sure_ms
        return "maybe", NEVER

    def _earned_before(self, venue: str, at: int) -> bool:
        """Return whether a ticket may hold that was earned before anything was read."""
        since_ms = at - self._evidence.begin_ms
        rules = [p.event.short_trip for p in self._venues.at(venue, at) if p is not None and p.event]
        return any(rule is not None and since_ms <= rule.back_minutes * 60_000 for rule in rules)

    def _spend(self, *, surely: bool) -> None:
        """Take what the driver had earned for spent, where a ticket counted; it may have been, or surely."""
        if self._now.ticket == "no":
            return
        here = self._now.venue
        self._tickets = [t for t in self._tickets if t.venue != here] if surely else [
            replace(t, is_sure=False) for t in self._tickets
        ]  # fmt: skip

    @property
    def _settles_ms(self) -> int:
        return 0 if self._config.regions.is_one else _SETTLES_MS


def check_lines(
    evidence: Evidence, venues: VenuesSaid, whereabouts: Whereabouts, commitments: Sequence[Commitment],
    since_ms: int, found: Findings,
) -> int:  # fmt: skip
    """Find offers at venues out of turn, and offers from elsewhere to who waits; return offers in turn.

    Args:
        evidence: What was read; closed.
        venues: The venues.
        whereabouts: Where cars were.
        commitments: What bound drivers.
        since_ms: Offers before then are not judged.
        found: Takes the violations.
    """
    if not venues:
        return 0
    by_driver: dict[str, list[Commitment]] = {}
    for one in commitments:
        by_driver.setdefault(one.driver_id, []).append(one)
    accepts = {
        (s.request_id, s.attempt, s.driver_id): s.at_ms for s in evidence.trips if s.state == "accepted"
    }
    short = _Short(evidence, venues, whereabouts, accepts)
    drivers = {
        name: _Driver(evidence, venues, name, by_driver.get(name, ()), accepts, short)
        for name in sorted(_who_waits(evidence, venues))
    }
    served = 0
    for offer in evidence.offers:
        now = offer.event_time_ms
        if now < since_ms:
            continue
        place = drivers[offer.driver_id].at(now) if offer.driver_id in drivers else _Place(NEVER)
        venue, sure = venues.where("zone", offer.pickup_lat, offer.pickup_lon, now)
        served += bool(venue) and place.venue == venue and place.waits != "no"
        about: dict[str, Any] = {
            "request_id": offer.request_id,
            "driver_id": offer.driver_id,
            "attempt": offer.attempt,
        }
        # Whose last one ends in that moment may have lost a place by that, or have joined in front.
        ends = any(one.ends_ms == now for one in by_driver.get(offer.driver_id, ()))
        if not sure or ends:
            continue
        if not venue or (place.waits == "yes" and place.venue != venue):
            if place.waits == "yes" and not evidence.config.line_elsewhere and place.late_ms < now:
                waited = f"waits at {place.venue} since {(now - place.late_ms) / 1_000:.1f} s before"
                found.add("taken_from_line", now, waited, **about)
            continue
        for name, driver in drivers.items():
            other = driver.at(now)
            ahead = (
                other.waits == "yes"
                and other.venue == venue
                and not other.away_ms
                and (place.waits == "no" or place.venue != venue or _comes_before(other, place))
            )
            if (
                name != offer.driver_id
                and ahead
                and _could_be_asked(evidence, by_driver.get(name, ()), name, offer)
            ):
                back = " and came back from a short trip" if other.ticket == "yes" else ""
                waited = f"{name} waits since {(now - other.late_ms) / 1_000:.1f} s before{back}"
                found.add("out_of_turn", now, waited, **about)
                break
    return served


def _comes_before(one: _Place, other: _Place) -> bool:
    """Return whether a place in a line surely comes before another one of it."""
    if one.ticket == "yes" and other.ticket == "no":
        return True
    return (one.ticket == "yes" or other.ticket == "no") and one.late_ms < other.early_ms


def _who_waits(evidence: Evidence, venues: VenuesSaid) -> list[str]:
    """Return the drivers who have been in a pen at any time."""
    found = []
    for name in evidence.drivers:
        fixes = evidence.fixes(name)
        if fixes is not None and any(
            venues.where("pen", lat, lon, at)[0]
            for at, lat, lon in zip(fixes.at_ms, fixes.lat, fixes.lon, strict=True)
        ):
            found.append(name)
    return found


def _could_be_asked(evidence: Evidence, own: Sequence[Commitment], name: str, offer: Any) -> bool:
    """Return whether a driver surely could have been offered a ride in place of who was."""
    now, config, asked = offer.event_time_ms, evidence.config, evidence.requests.get(offer.request_id)
    fixes = evidence.fixes(name)
    if asked is None or fixes is None:
        return False
    # What has just ended may have ended after the window; nobody is asked twice for one request.
    if any(one.begins_ms <= now <= one.ends_ms or one.request_id == offer.request_id for one in own):
        return False
    kept_apart = any(k.event.stands == "block" for k in evidence.pairs.get((asked.event.rider_id, name), ()))
    if kept_apart or name in evidence.commands or len(fixes.classes) != 1:
        return False
    (kind,) = fixes.classes
    last = bisect_right(fixes.at_ms, now - 1) - 1
    if last < 0 or not fixes.sure[last] or fixes.state[last] != 0:
        return False
    return (
        config.rules.fits(kind, asked.event.vehicle_class)
        and now - fixes.at_ms[last] <= config.ttl_ms - config.refresh_ms - _SECOND_MS
        and distance_m(fixes.lat[last], fixes.lon[last], offer.pickup_lat, offer.pickup_lon)
        <= config.rules.radius_m - _SURELY_M
    )

"""Steps of trips, held against the requests and what drivers, riders and operators did.

No step without its cause, no event without its effect, each request with one end, and nothing open for longer
than it may be.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

from millrace.places import distance_m
from millrace_apps.ridesharing.config import HOLD_MS
from millrace_apps.ridesharing.contracts.events import LAST_ATTEMPT, RideRequest
from millrace_apps.ridesharing.contracts.records import Assignment, Offer, Release, Trip
from millrace_apps.ridesharing.processes.geo import travel_ms
from millrace_apps.ridesharing.processes.regions import zone_of
from millrace_apps.ridesharing.state.lifecycle import COMMITTED, TERMINAL, may_follow
from millrace_apps.ridesharing.topic_audit.evidence import Evidence, Said, Whereabouts
from millrace_apps.ridesharing.topic_audit.findings import Findings

#: After all time.
EVER: Final = 1 << 62
#: A driver this near has arrived, metres.
_THERE_M: Final = 200.0
_IDLE, _ON_TRIP = 0, 3
#: The numbers that attempts may have, as text.
_NUMBERS: Final = frozenset(map(str, range(1, LAST_ATTEMPT + 1)))
#: After these states a search begins anew.
_ANEW: Final = ("", "booked", "accepted", "arrived")


@dataclass(frozen=True, slots=True)
class Commitment:
    """What binds a driver: from an offer, or an assignment by hand, to the step that frees the driver.

    Attributes:
        request_id: The request.
        driver_id: The driver.
        attempt: The attempt.
        region: Who says so.
        begins_ms: When it begins, ms.
        ends_ms: When it ends, ms; :data:`EVER`: it is open.
        by_offer: Whether there was an offer.
        lost: Whether the driver lost the request, and somebody else was searched; what an operator takes
            from a driver who has not answered is not lost.
    """

    request_id: str
    driver_id: str
    attempt: int
    region: str
    begins_ms: int
    ends_ms: int
    by_offer: bool
    lost: bool


@dataclass
class Open:
    """What is open at the end, by state.

    Attributes:
        count: How many.
        oldest_ms: Age of the oldest, ms.
        oldest: Its request.
    """

    count: int = 0
    oldest_ms: int = 0
    oldest: str = ""


@dataclass
class Ledger:
    """What the steps of trips say, in order.

    Attributes:
        trips: Request → its steps, by revision.
        commitments: What bound drivers.
        ends: How requests have ended, and ``open`` → how many.
        open: State → what is open in it at the end.
    """

    trips: dict[str, list[Trip]] = field(default_factory=dict)
    commitments: list[Commitment] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    open: dict[str, Open] = field(default_factory=dict)


def ledger_of(evidence: Evidence) -> Ledger:
    """Return the steps by request, and what they bound."""
    ledger = Ledger()
    for step in sorted(evidence.trips, key=lambda t: (t.request_id, t.revision)):
        ledger.trips.setdefault(step.request_id, []).append(step)
    # Who says no to what is taken away already loses nothing.
    said_no = {
        (one.event.driver_id, one.event.offer_id): one.event.event_time_ms
        for answers in evidence.answers.values()
        for one in answers
        if one.event.answer == "reject" and one.sure
    }
    for steps in ledger.trips.values():
        ledger.commitments += _commitments(steps, said_no)
    return ledger


def _commitments(steps: Sequence[Trip], said_no: Mapping[tuple[str, str], int]) -> Iterable[Commitment]:
    begun: Trip | None = None
    for step, after in zip_longest(steps, steps[1:]):
        if begun is None:
            begun = step if step.state in COMMITTED else None
        elif step.state not in COMMITTED:
            lost = step.state in ("processing", "no_drivers_available")
            if lost and step.before == "offered" and _is_given_by_hand(step, after):
                # The operator took it away, not the driver gave it up: who did neither may be asked again.
                offer_id = f"{begun.request_id}-o{begun.attempt}"
                lost = said_no.get((begun.driver_id, offer_id), EVER) <= step.at_ms
            yield _commitment(begun, step.at_ms, lost=lost)
            begun = None
    if begun is not None:
        yield _commitment(begun, EVER, lost=False)


def _is_given_by_hand(step: Trip, after: Trip | None) -> bool:
    """Return whether a search ends where it begins, with no offer: an operator has given the request away."""
    return after is not None and after.state == "accepted" and after.at_ms == step.at_ms


def _commitment(begun: Trip, ends_ms: int, *, lost: bool) -> Commitment:
    return Commitment(
        begun.request_id, begun.driver_id, begun.attempt, begun.region, begun.at_ms, ends_ms,
        begun.state == "offered", lost,
    )  # fmt: skip


class Steps:
    """Checks the steps of all trips.

    Args:
        evidence: What was read; closed.
        ledger: Its steps.
        found: Takes the violations.
        since_ms: What was asked for before is not judged.
        until_ms: What happened later is not judged: it may be on its way.
    """

    def __init__(
        self, evidence: Evidence, ledger: Ledger, found: Findings, since_ms: int, until_ms: int
    ) -> None:
        self._evidence, self._ledger, self._found = evidence, ledger, found
        self._since_ms, self._until_ms = since_ms, until_ms
        self._config = evidence.config
        self._whereabouts = Whereabouts(evidence)
        self._offers: dict[tuple[str, int], list[Offer]] = defaultdict(list)
        for offer in evidence.offers:
            self._offers[offer.request_id, offer.attempt].append(offer)
        self._assigned: dict[tuple[str, int], list[Assignment]] = defaultdict(list)
        for one in evidence.assignments:
            self._assigned[one.request_id, one.attempt].append(one)
        self._releases = {(r.request_id, r.driver_id, r.event_time_ms) for r in evidence.releases}
        # Word of a request's end takes a moment into another region.
        self._word_ms = HOLD_MS if self._config.asks_everywhere else 0
        self._open_of_rider: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for name, steps in ledger.trips.items():
            begins = [s.at_ms for s in steps if s.state != "booked" and s.state not in TERMINAL]
            ends = [s.at_ms for s in steps if s.state in TERMINAL]
            if begins:
                span = (begins[0], min(ends, default=EVER), name)
                self._open_of_rider[steps[0].rider_id].append(span)

    def check(self) -> None:
        """Check everything."""
        for name, steps in self._ledger.trips.items():
            if steps[0].requested_ms < self._since_ms:
                continue  # of what was asked for before, the begin may be missing
            self._check_chain(name, steps)
            asked = self._evidence.requests.get(name)
            if asked is None:
                self._add("no_request", steps[0], "there is no such request on the topic")
                continue
            self._check_request(asked.event, steps)
            for place, step in enumerate(steps):
                if step.at_ms <= self._until_ms:
                    self._check_step(asked, steps, place)
        self._check_messages()
        self._check_riders()
        self._check_effects()
        self._check_ends()

    # -- one request -----------------------------------------------------------------------------

    def _check_chain(self, name: str, steps: Sequence[Trip]) -> None:
        """Check that steps follow one another."""
        before, at, ends, attempt = "", 0, 0, 0
        for place, step in enumerate(steps):
            why = []
            if step.revision != place:
                why.append(f"revision {step.revision} in place {place}")
            if step.before != before:
                why.append(f"says that it was {step.before or 'nothing'}, and it was {before or 'nothing'}")
            if not may_follow(step.before, step.state):
                why.append(f"{step.state} follows {step.before or 'nothing'}")
            if step.at_ms < at:
                why.append(f"{at - step.at_ms:,} ms before the step that it follows")
            if why:
                self._add("forbidden_step", step, "; ".join(why))
            begins = step.state in COMMITTED and before not in COMMITTED
            if step.attempt != attempt + begins:
                self._add("attempts", step, f"attempt {step.attempt} follows attempt {attempt}")
            ends += step.state in TERMINAL
            if step.state in TERMINAL and ends > 1:
                self._add("two_ends", step, f"ended {ends} times, the last time {step.state}")
            before, at, attempt = step.state, max(at, step.at_ms), step.attempt

    def _check_request(self, asked: RideRequest, steps: Sequence[Trip]) -> None:
        wanted = max(asked.pickup_at_ms, asked.event_time_ms)
        for step in steps:
            other = [
                f"{what} {told}, asked for was {was}"
                for what, told, was in (
                    ("rider", step.rider_id, asked.rider_id),
                    ("class", step.vehicle_class, asked.vehicle_class),
                    ("zone", step.zone, zone_of(asked.zone)),
                    ("request at", step.requested_ms, asked.event_time_ms),
                    ("pick-up at", step.pickup_at_ms, wanted),
                )
                if told != was
            ]
            if other:
                self._add("not_as_asked", step, "; ".join(other))

    def _check_step(self, asked: Said[RideRequest], steps: Sequence[Trip], place: int) -> None:
        step = steps[place]
        first = step.state in ("booked", "processing", "refused")
        if not (place or first) or not getattr(self, _CAUSES[step.state])(asked, steps, place):
            self._add("no_cause", step, f"{step.before or 'nothing'} → {step.state}: {step.cause}")
        before = steps[place - 1] if place else None
        if step.state == "offered" and not self._offers.get((step.request_id, step.attempt)):
            self._add("offer_missing", step, "no offer of this attempt is on the topic")
        if step.state == "accepted" and not self._assigned.get((step.request_id, step.attempt)):
            self._add("assignment_missing", step, "no assignment of this attempt is on the topic")
        if step.state == "in_progress":
            self._check_wait(step)
        if before is not None and step.state not in COMMITTED:
            self._check_told(steps, place)
        if before is not None and before.state == "processing":
            since = self._searching_since(steps, place - 1)
            most = max(since + self._config.patience_ms, before.at_ms)
            if step.at_ms > most:
                self._add("waited", step, f"searched for {(step.at_ms - since) / 1_000:.0f} s")

    def _check_wait(self, step: Trip) -> None:
        """Check the wait that is told against the report of the pick-up, or the phone's word for it."""
        began = [
            one.event.event_time_ms
            for one in self._evidence.progress.get(step.request_id, ())
            if one.event.stage == "started" and one.event.driver_id == step.driver_id
            and one.explains(step.at_ms)
        ]  # fmt: skip
        if began and step.wait_ms not in {max(0, at - step.pickup_at_ms) for at in began}:
            waited = max(0, began[-1] - step.pickup_at_ms)
            self._add("wait", step, f"{step.wait_ms:,} ms are told; by the report it was {waited:,}")

    def _check_told(self, steps: Sequence[Trip], place: int) -> None:
        """Check that who loses or ends something is told: by name, and at once."""
        before, step = steps[place - 1], steps[place]
        driver_id = before.driver_id if before.state in COMMITTED else ""
        quiet = (
            (step.state == "completed" and self._ended_by_driver(steps, place))
            or (before.state == "offered" and self._rejected(before, step.at_ms))
            or (before.state == "offered" and self._given_again(before, step))
        )  # fmt: skip
        missing = []
        if driver_id and not quiet and (step.request_id, driver_id, step.at_ms) not in self._releases:
            missing.append(f"driver {driver_id}")
        to_rider = step.state in ("no_drivers_available", "refused")
        to_rider |= not driver_id and step.state in ("operator_cancelled", "no_show", "lost")
        if to_rider and (step.request_id, "", step.at_ms) not in self._releases:
            missing.append("the rider")
        if missing:
            self._add("not_told", step, f"{step.state}: {' and '.join(missing)} was not told")

    def _given_again(self, before: Trip, step: Trip) -> bool:
        """Return whether an operator gave the request to the driver who had the offer."""
        return any(
            one.event.action == "assign" and one.event.driver_id == before.driver_id
            and one.event.event_time_ms <= step.at_ms
            for one in self._evidence.commands.get(step.request_id, ())
        )  # fmt: skip

    # -- what may cause a step -------------------------------------------------------------------

    def _asked_for(self, asked: Said[RideRequest], steps: Sequence[Trip], place: int) -> bool:
        step, config = steps[place], self._config
        early = step.pickup_at_ms - config.ahead_ms > step.at_ms
        held = step.state == "booked" and self._word_ms > 0 and self._has_another(step)
        return asked.explains(step.at_ms) and (held or (step.state == "booked") == early)

    def _searched(self, asked: Said[RideRequest], steps: Sequence[Trip], place: int) -> bool:
        if place == 0:
            return self._asked_for(asked, steps, place)
        step, before = steps[place], steps[place - 1]
        if before.state == "booked":
            return step.at_ms >= step.pickup_at_ms - self._config.ahead_ms
        return self._lost_driver(before, step)

    def _lost_driver(self, before: Trip, step: Trip) -> bool:
        """Return whether there is a reason to take a request from its driver."""
        if self._went_off(before.driver_id, step.at_ms):
            return True
        if before.state == "offered":
            return (
                self._rejected(before, step.at_ms)
                or any(step.at_ms == offer.expires_ms for offer in self._offers_of(before))
                or self._command("assign", step)
            )
        cancelled = any(
            one.event.by == "driver" and one.event.driver_id == before.driver_id and one.explains(step.at_ms)
            for one in self._evidence.cancellations.get(step.request_id, ())
        )
        return cancelled or self._does_not_come(before, step)

    def _does_not_come(self, before: Trip, step: Trip) -> bool:
        """Return whether a driver on the way may have been replaced: looked at in time, and not there."""
        accepted = next(
            (s for s in reversed(self._ledger.trips[step.request_id])
             if s.state == "accepted" and s.revision <= before.revision), None,
        )  # fmt: skip
        if accepted is None or before.state != "accepted":
            return False
        passed = step.at_ms - accepted.at_ms
        if passed <= 0 or passed % self._config.approach_ms:
            return False
        if passed >= 8 * self._config.approach_ms:
            return True
        request = self._evidence.requests[step.request_id].event
        asked = (request.pickup_lat, request.pickup_lon)
        place = self._evidence.pickups.get(step.request_id, asked)
        known = self._whereabouts.known(before.driver_id, step.at_ms)
        ways = [
            distance_m(s.lat, s.lon, *place)
            for s in known if s.lat is not None and s.lon is not None
        ]  # fmt: skip
        silent = not known or step.at_ms - known[-1].at_ms > self._config.ttl_ms
        return silent or not ways or max(ways) > _THERE_M

    def _offered(self, asked: Said[RideRequest], steps: Sequence[Trip], place: int) -> bool:
        step = steps[place]
        return not self._offers_of(step) or any(
            o.driver_id == step.driver_id and o.event_time_ms == step.at_ms for o in self._offers_of(step)
        )

    def _accepted(self, asked: Said[RideRequest], steps: Sequence[Trip], place: int) -> bool:
        step, before = steps[place], steps[place - 1]
        if before.state != "offered":
            return self._command("assign", step)
        expires = max((o.expires_ms for o in self._offers_of(before)), default=EVER)
        return step.at_ms <= expires and any(
            one.event.answer == "accept" and one.event.driver_id == step.driver_id
            and one.event.offer_id == f"{step.request_id}-o{step.attempt}" and one.explains(step.at_ms)
            for one in self._evidence.answers.get(step.request_id, ())
        )  # fmt: skip

    def _arrived(self, asked: Said[RideRequest], steps: Sequence[Trip], place: int) -> bool:
        return self._reported("arrived", steps[place])

    def _started(self, asked: Said[RideRequest], steps: Sequence[Trip], place: int) -> bool:
        step = steps[place]
        return self._reported("started", step) or self._phone_said(_ON_TRIP, steps, place)

    def _completed(self, asked: Said[RideRequest], steps: Sequence[Trip], place: int) -> bool:
        return self._ended_by_driver(steps, place) or self._ended_by_hand(steps[place])

    def _ended_by_driver(self, steps: Sequence[Trip], place: int) -> bool:
        step = steps[place]
        return (
            self._reported("finished", step)
            or self._phone_said(_IDLE, steps, place)
            or self._went_off(step.driver_id, step.at_ms)
        )

    def _rider_cancelled(self, asked: Said[RideRequest], steps: Sequence[Trip], place: int) -> bool:
        step = steps[place]
        return any(
            one.event.by == "rider" and one.explains(step.at_ms)
            for one in self._evidence.cancellations.get(step.request_id, ())
        )

    def _no_show(self, asked: Said[RideRequest], steps: Sequence[Trip], place: int) -> bool:
        step, before = steps[place], steps[place - 1]
        waited = max(before.at_ms, before.pickup_at_ms) + self._config.no_show_ms
        if before.state == "arrived" and step.at_ms >= waited:
            return True
        return any(
            one.event.by == "driver" and one.event.reason == "no_show"
            and one.event.driver_id == before.driver_id and one.explains(step.at_ms)
            for one in self._evidence.cancellations.get(step.request_id, ())
        )  # fmt: skip

    def _operator_cancelled(self, asked: Said[RideRequest], steps: Sequence[Trip], place: int) -> bool:
        return self._command("cancel", steps[place])

    def _nobody(self, asked: Said[RideRequest], steps: Sequence[Trip], place: int) -> bool:
        step, before = steps[place], steps[place - 1]
        if before.state != "processing":
            enough = min(self._config.attempts, LAST_ATTEMPT)
            return step.attempt >= enough and self._lost_driver(before, step)
        return step.at_ms >= self._searching_since(steps, place - 1) + self._config.patience_ms

    def _lost(self, asked: Said[RideRequest], steps: Sequence[Trip], place: int) -> bool:
        step, before, config, request = steps[place], steps[place - 1], self._config, asked.event
        most = config.trip_ms
        if config.overdue_ms:
            asked_at = (request.pickup_lat, request.pickup_lon)
            begins = self._evidence.pickups.get(step.request_id, asked_at)
            way = distance_m(*begins, request.dropoff_lat, request.dropoff_lon)
            most = min(most, 3 * travel_ms(way) + config.overdue_ms)
        return step.at_ms - before.at_ms >= most

    def _refused(self, asked: Said[RideRequest], steps: Sequence[Trip], place: int) -> bool:
        return self._has_another(steps[place])

    def _has_another(self, step: Trip) -> bool:
        """Return whether the rider has another request open, or one whose end is not heard of yet."""
        return any(
            begins <= step.at_ms <= ends + self._late_word(name, step) and name != step.request_id
            for begins, ends, name in self._open_of_rider[step.rider_id]
        )

    def _late_word(self, name: str, step: Trip) -> int:
        return self._word_ms if self._ledger.trips[name][0].region != step.region else 0

    def _reported(self, stage: str, step: Trip) -> bool:
        return any(
            one.event.stage == stage and one.event.driver_id == step.driver_id and one.explains(step.at_ms)
            for one in self._evidence.progress.get(step.request_id, ())
        )

    def _phone_said(self, state: int, steps: Sequence[Trip], place: int) -> bool:
        """Return whether a phone has said so, for as long as it takes to be believed, since the last step."""
        step, since = steps[place], steps[place - 1].at_ms
        fixes = self._evidence.fixes(step.driver_id)
        if fixes is None or not self._config.reconcile_ms:
            return False
        said = [at for at, of in zip(fixes.at_ms, fixes.state, strict=True) if of == state and at >= since]
        return any(at <= step.at_ms - self._config.reconcile_ms for at in said) and any(
            step.at_ms - self._config.ttl_ms <= at <= step.at_ms for at in said
        )

    def _went_off(self, driver_id: str, at_ms: int) -> bool:
        return any(
            one.event.status == "offline" and one.explains(at_ms)
            for one in self._evidence.statuses.get(driver_id, ())
        )

    def _rejected(self, before: Trip, at_ms: int) -> bool:
        return any(
            one.event.answer == "reject" and one.event.driver_id == before.driver_id
            and one.event.offer_id == f"{before.request_id}-o{before.attempt}" and one.explains(at_ms)
            for one in self._evidence.answers.get(before.request_id, ())
        )  # fmt: skip

    def _command(self, action: str, step: Trip) -> bool:
        return any(
            one.event.action == action and one.event.event_time_ms <= step.at_ms
            and (action != "assign" or not step.driver_id or one.event.driver_id == step.driver_id)
            for one in self._evidence.commands.get(step.request_id, ())
        )  # fmt: skip

    def _ended_by_hand(self, step: Trip) -> bool:
        return self._command("end_trip", step)

    def _offers_of(self, step: Trip) -> list[Offer]:
        return self._offers.get((step.request_id, step.attempt), [])

    @staticmethod
    def _searching_since(steps: Sequence[Trip], place: int) -> int:
        """Return since when a driver is searched for: an offer that came to nothing begins nothing anew."""
        while place > 0 and not (steps[place].state == "processing" and steps[place].before in _ANEW):
            place -= 1
        return steps[place].at_ms

    # -- all requests ----------------------------------------------------------------------------

    def _check_messages(self) -> None:
        """Check that what is told is a step of a trip, each once, and that who is told of an end has one."""
        steps = {
            (s.request_id, s.attempt, s.driver_id, s.at_ms, s.state)
            for of in self._ledger.trips.values()
            for s in of
        }
        told: tuple[tuple[str, str, Sequence[Offer | Assignment]], ...] = (
            ("offer_alone", "offered", self._evidence.offers),
            ("assignment_alone", "accepted", self._evidence.assignments),
        )
        for reason, state, messages in told:
            seen = set()
            for one in messages:
                if one.event_time_ms < self._since_ms:
                    continue
                step = (one.request_id, one.attempt, one.driver_id, one.event_time_ms, state)
                if step not in steps or step in seen:
                    what = "told twice" if step in seen else "no step of a trip says so"
                    self._found.add(
                        reason, one.event_time_ms, what, request_id=one.request_id, driver_id=one.driver_id,
                        attempt=one.attempt,
                    )  # fmt: skip
                seen.add(step)
        bound: dict[tuple[str, str], list[Commitment]] = defaultdict(list)
        for commitment in self._ledger.commitments:
            bound[commitment.request_id, commitment.driver_id].append(commitment)
        for release in self._evidence.releases:
            self._check_release(release, bound.get((release.request_id, release.driver_id), ()))

    def _check_release(self, release: Release, bound: Sequence[Commitment]) -> None:
        """Check that nobody is told of an end who goes on with the ride."""
        for one in bound:
            if one.begins_ms <= release.event_time_ms < one.ends_ms:
                self._found.add(
                    "told_wrongly", release.event_time_ms, f"{release.reason}, and the ride went on",
                    request_id=release.request_id, driver_id=release.driver_id, attempt=one.attempt,
                )  # fmt: skip

    def _check_riders(self) -> None:
        """Find riders with two open requests, where one is all that they may have."""
        if not self._config.one_open:
            return
        for rider, spans in self._open_of_rider.items():
            latest = -EVER
            for begins, ends, name in sorted(spans):
                if begins < latest:
                    self._found.add(
                        "two_requests", begins, f"rider {rider} had another one open", request_id=name
                    )
                latest = max(latest, ends)

    def _check_effects(self) -> None:
        """Find events that should have changed a trip and did not, of those that were surely in time."""
        evidence = self._evidence
        for name, answers in evidence.answers.items():
            for one in answers:
                a = one.event
                number = a.offer_id.removeprefix(f"{name}-o")
                if number == a.offer_id or number not in _NUMBERS:
                    continue  # an answer to what no offer is called has no effect
                want, what = ("accepted", "a yes") if a.answer == "accept" else ("", "a no")
                self._demand(
                    one, name, a.driver_id, {"offered"}, want, f"{what} to an open offer", int(number)
                )
        for name, cancellations in evidence.cancellations.items():
            for cancelled in cancellations:
                c = cancelled.event
                if c.by == "rider":
                    states = {"booked", "processing", "offered", "accepted", "arrived"}
                    self._demand(cancelled, name, "", states, "rider_cancelled", "the rider cancelled")
        for name, progress in evidence.progress.items():
            for done in progress:
                p = done.event
                if p.stage == "finished":
                    states = {"accepted", "arrived", "in_progress"}
                    self._demand(done, name, p.driver_id, states, "completed", "the driver finished the trip")

    def _demand(
        self, one: Said[Any], name: str, driver_id: str, states: set[str], want: str, what: str,
        attempt: int = 0,
    ) -> None:  # fmt: skip
        """Demand that an event ends a state that it found; what happened in its millisecond is let go."""
        at: int = one.event.event_time_ms
        if not one.sure or at > self._until_ms or at < self._since_ms:
            return
        steps = self._ledger.trips.get(name, [])
        place = sum(s.at_ms < at for s in steps) - 1
        if place < 0 or steps[place].state not in states:
            return
        last = steps[place]
        if (driver_id and last.driver_id != driver_id) or (attempt and last.attempt != attempt):
            return
        now = [s.state for s in steps if s.at_ms == at]
        if not now or (want and want not in now and not set(now) & TERMINAL and "processing" not in now):
            self._add("no_effect", last, f"{what}, and it stayed {last.state}", at_ms=at)

    def _check_ends(self) -> None:
        """Give each request its one end, and see to what is open for too long."""
        ledger = self._ledger
        for name, asked in self._evidence.requests.items():
            at = asked.event.event_time_ms
            steps = ledger.trips.get(name)
            if not steps:
                ledger.ends["unheard"] += 1
                if self._since_ms <= at <= self._until_ms:
                    age = (self._evidence.end_ms - at) / 1_000
                    self._found.add("unheard", at, f"asked for {age:.0f} s before the end", request_id=name)
                continue
            last = steps[-1]
            ledger.ends[last.state if last.state in TERMINAL else "open"] += 1
            if last.state not in TERMINAL:
                self._check_open(asked.event, steps)

    def _check_open(self, asked: RideRequest, steps: Sequence[Trip]) -> None:
        last, now = steps[-1], self._evidence.end_ms
        age = now - last.at_ms
        kept = self._ledger.open.setdefault(last.state, Open())
        kept.count += 1
        if age >= kept.oldest_ms:
            kept.oldest_ms, kept.oldest = age, last.request_id
        most = self._latest_end(asked, steps)
        if self._until_ms > most:
            self._add(
                "overtime", last,
                f"{last.state} for {age / 1_000:.0f} s, {(self._until_ms - most) / 1_000:.0f} s too long",
            )  # fmt: skip

    def _latest_end(self, asked: RideRequest, steps: Sequence[Trip]) -> int:
        """Return when the last state of a request must have ended, ms."""
        config, last = self._config, steps[-1]
        if last.state == "booked":
            latest = max(last.pickup_at_ms, last.at_ms if self._word_ms else 0) + self._word_ms
            return max(last.pickup_at_ms - config.ahead_ms, latest if config.one_open else 0)
        if last.state == "processing":
            return max(self._searching_since(steps, len(steps) - 1) + config.patience_ms, last.at_ms)
        if last.state == "offered":
            return last.at_ms + config.offer_ms
        if last.state == "accepted":
            # The approach is looked at every so often, and ends at the first look after its limit.
            way = max((o.distance_m for o in self._offers_of(last)), default=config.rules.radius_m)
            reach = way + config.most_m_per_s * config.offer_ms / 1_000
            return last.at_ms + 3 * travel_ms(reach) + 9 * config.approach_ms
        if last.state == "arrived":
            # A phone that says that the rider is aboard is waited for, twice at most.
            return max(last.at_ms, last.pickup_at_ms) + config.no_show_ms + 2 * config.reconcile_ms
        return last.at_ms + config.trip_ms

    def _add(self, reason: str, step: Trip, detail: str, *, at_ms: int | None = None) -> None:
        self._found.add(
            reason, step.at_ms if at_ms is None else at_ms, detail, request_id=step.request_id,
            driver_id=step.driver_id, attempt=step.attempt,
        )  # fmt: skip


#: State → the method that says whether there is a cause for coming into it.
_CAUSES: Final = {
    "booked": "_asked_for",
    "processing": "_searched",
    "offered": "_offered",
    "accepted": "_accepted",
    "arrived": "_arrived",
    "in_progress": "_started",
    "completed": "_completed",
    "rider_cancelled": "_rider_cancelled",
    "no_show": "_no_show",
    "operator_cancelled": "_operator_cancelled",
    "no_drivers_available": "_nobody",
    "lost": "_lost",
    "refused": "_refused",
}

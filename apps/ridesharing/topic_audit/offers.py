"""Offers, held against where their drivers were, what their phones said, and what else they had to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.places import distance_m
from millrace_apps.ridesharing.contracts.events import RideRequest
from millrace_apps.ridesharing.contracts.records import Offer
from millrace_apps.ridesharing.processes.regions import zone_of
from millrace_apps.ridesharing.topic_audit.evidence import Evidence, Sighting, Whereabouts
from millrace_apps.ridesharing.topic_audit.findings import Findings
from millrace_apps.ridesharing.topic_audit.lines import VenuesSaid, check_lines
from millrace_apps.ridesharing.topic_audit.steps import Commitment

#: Takes a reason and a detail.
_Add = Callable[[str, str], None]
#: Distances are told to a tenth of a metre.
_ROUNDING_M: Final = 0.6
#: Who has gone off line stays so for so long, whatever positions come, ms.
_OFF_LINE_MS: Final = 43_200_000


@dataclass
class OfferFigures:
    """What was recomputed of offers.

    Attributes:
        offers: How many were looked at.
        sure: Of those, how many at a time when it was surely known where the driver was.
        oldest_ms: The oldest sign of life of a driver who was asked, ms.
        farthest_m: The longest recomputed way to a pick-up, straight line, metres.
        from_lines: Offers of rides at venues to drivers who waited in line.
    """

    offers: int = 0
    sure: int = 0
    oldest_ms: int = 0
    farthest_m: float = 0.0
    from_lines: int = 0


def check_offers(
    evidence: Evidence, commitments: Sequence[Commitment], since_ms: int, found: Findings
) -> OfferFigures:
    """Recompute age, distance and availability at every offer, and return figures of them.

    Args:
        evidence: What was read; closed.
        commitments: What bound drivers, by the steps of trips.
        since_ms: Offers before then, or of what was asked for before, are not judged: not all may be known.
        found: Takes the violations.
    """
    whereabouts, figures, venues = Whereabouts(evidence), OfferFigures(), VenuesSaid(evidence)
    earlier = {step.request_id for step in evidence.trips if step.requested_ms < since_ms}
    for offer in evidence.offers:
        if offer.event_time_ms >= since_ms and offer.request_id not in earlier:
            _check(evidence, whereabouts, venues, offer, figures, found)
    figures.from_lines = check_lines(evidence, venues, whereabouts, commitments, since_ms, found)
    _check_overlaps(commitments, found)
    _check_apart(evidence, [one for one in commitments if one.begins_ms >= since_ms], found)
    _check_cooling(evidence, commitments, found)
    return figures


def _check(
    evidence: Evidence, whereabouts: Whereabouts, venues: VenuesSaid, offer: Offer, figures: OfferFigures,
    found: Findings,
) -> None:  # fmt: skip
    config, now = evidence.config, offer.event_time_ms

    def add(reason: str, detail: str) -> None:
        found.add(
            reason, now, detail, request_id=offer.request_id, driver_id=offer.driver_id, attempt=offer.attempt
        )

    figures.offers += 1
    known = whereabouts.known(offer.driver_id, now)
    age = now - known[-1].at_ms if known else -1
    if age < 0 or age > config.ttl_ms:
        heard = f"{age / 1_000:.1f} s before" if known else "never"
        add("silent", f"last heard of {heard}; {config.ttl_ms / 1_000:.0f} s are allowed")
    else:
        figures.oldest_ms = max(figures.oldest_ms, age)
        _check_place(evidence, offer, known, figures, add)
        if not any(sighting.idle for sighting in known):
            add("not_free", f"the phone has not said so since {now - known[0].at_ms:,} ms before")
    if offer.expires_ms != now + config.offer_ms:
        add("expiry", f"open for {offer.expires_ms - now:,} ms; {config.offer_ms:,} are set")
    gone = _off_line_since(evidence, offer.driver_id, now)
    if gone is not None:
        add("off_line", f"off line for {(now - gone) / 1_000:.1f} s")
    _check_operators(evidence, offer, add)
    asked = evidence.requests.get(offer.request_id)
    if asked is None:
        add("no_request", "there is no such request on the topic")
        return
    request = asked.event
    names = venues.meeting_places(request).get((offer.pickup_lat, offer.pickup_lon))
    if names is None:
        away = distance_m(offer.pickup_lat, offer.pickup_lon, request.pickup_lat, request.pickup_lon)
        add("pick_up", f"{away:,.0f} m from where the rider is")
    elif offer.pickup_point and offer.pickup_point not in names:
        add("pick_up", f"told as {offer.pickup_point}; it is {' or '.join(sorted(names)) or 'no point'}")
    _check_fit(evidence, offer, request, add)


def _check_place(
    evidence: Evidence, offer: Offer, known: Sequence[Sighting], figures: OfferFigures, add: _Add
) -> None:
    config = evidence.config
    placed = [s for s in known if s.lat is not None and s.lon is not None]
    ways = [distance_m(s.lat or 0.0, s.lon or 0.0, offer.pickup_lat, offer.pickup_lon) for s in placed]
    if not ways:
        add("silent", "nothing says where the driver was")
        return
    figures.sure += placed[-1].sure
    figures.farthest_m = max(figures.farthest_m, min(ways))
    if min(ways) > config.rules.radius_m + _ROUNDING_M:
        add("too_far", f"{min(ways):,.0f} m at the nearest; {config.rules.radius_m:,.0f} are allowed")
    off = min(abs(way - offer.distance_m) for way in ways)
    if off > _ROUNDING_M:
        add("distance", f"{offer.distance_m:,.1f} m were told; by the topics it was {ways[-1]:,.1f} m")


def _check_fit(evidence: Evidence, offer: Offer, request: RideRequest, add: _Add) -> None:
    fixes = evidence.fixes(offer.driver_id)
    said = {one.event.vehicle_class for one in evidence.statuses.get(offer.driver_id, ())}
    classes = said | (fixes.classes if fixes is not None else set())
    serving = {(one.vehicle_class, one.wanted) for one in evidence.config.rules.serves}
    serving |= {(request.vehicle_class, request.vehicle_class)}
    if classes and not any((car, request.vehicle_class) in serving for car in classes):
        add("class", f"{request.vehicle_class} was asked for, the car is {', '.join(sorted(classes))}")


def _check_operators(evidence: Evidence, offer: Offer, add: _Add) -> None:
    """Check blocks and blackouts; a command counts from when it surely was carried out.

    A block of a driver of whom nobody has heard is a dead letter.
    """
    now = offer.event_time_ms
    pairs = [(offer.driver_id, "block", "unblock", "blocked")]
    request = evidence.requests.get(offer.request_id)
    if request is not None:
        pairs.append((zone_of(request.event.zone), "blackout", "lift", "blacked_out"))
    for about, begin, end, reason in pairs:
        said = evidence.commands.get(about, ())
        for one in said:
            command = one.event
            if command.action != begin or not command.event_time_ms < now < command.until_ms:
                continue
            if begin == "block" and not evidence.had_heard_of(about, one.arrival_ms):
                continue
            lifted = any(
                other.event.action == end and command.event_time_ms <= other.event.event_time_ms <= now
                for other in said
            )
            if one.prompt and not lifted:
                add(reason, f"since {now - command.event_time_ms:,} ms by {command.operator}")


def _off_line_since(evidence: Evidence, driver_id: str, now: int) -> int | None:
    """Return since when a driver surely was off line at a time."""
    gone = None
    for one in evidence.statuses.get(driver_id, ()):
        status = one.event
        if status.event_time_ms > now:
            break
        if status.status == "online":
            gone = None
        elif one.sure and now - status.event_time_ms < _OFF_LINE_MS:
            gone = status.event_time_ms
    return gone


def _check_overlaps(commitments: Sequence[Commitment], found: Findings) -> None:
    """Find drivers who were bound twice at once, in whatever regions."""
    latest: dict[str, Commitment] = {}
    for one in sorted(commitments, key=lambda c: (c.driver_id, c.begins_ms, c.ends_ms)):
        before = latest.get(one.driver_id)
        if before is not None and one.begins_ms < before.ends_ms:
            found.add(
                "two_commitments", one.begins_ms,
                f"request {before.request_id} was open in region {before.region}, this one in {one.region}",
                request_id=one.request_id, driver_id=one.driver_id, attempt=one.attempt,
            )  # fmt: skip
        if before is None or one.ends_ms > before.ends_ms:
            latest[one.driver_id] = one


def _check_apart(evidence: Evidence, commitments: Sequence[Commitment], found: Findings) -> None:
    """Find riders who were given a driver whom they were surely never to meet again by then."""
    for one in commitments:
        asked = evidence.requests.get(one.request_id)
        if asked is None:
            continue
        said = evidence.pairs.get((asked.event.rider_id, one.driver_id), ())
        # What is said last holds; while it may or may not have been read, both are right.
        sure = [kept for kept in said if kept.sure_ms <= one.begins_ms]
        may_be = said[said.index(sure[-1]) + 1 :] if sure else []
        undone = any(kept.event.stands != "block" and kept.from_ms <= one.begins_ms for kept in may_be)
        if sure and sure[-1].event.stands == "block" and not undone:
            found.add(
                "apart", one.begins_ms, f"kept apart by {sure[-1].event.operator}: {sure[-1].event.reason}",
                request_id=one.request_id, driver_id=one.driver_id, attempt=one.attempt,
            )  # fmt: skip


def _check_cooling(evidence: Evidence, commitments: Sequence[Commitment], found: Findings) -> None:
    """Find drivers who were asked again for a request that they had lost."""
    lost: dict[tuple[str, str], int] = {}
    for one in sorted(commitments, key=lambda c: (c.begins_ms, c.ends_ms)):
        pair = (one.request_id, one.driver_id)
        since = lost.get(pair)
        if since is not None and one.by_offer and one.begins_ms < since + evidence.config.cool_down_ms:
            found.add(
                "cooling", one.begins_ms, f"lost {(one.begins_ms - since) / 1_000:.1f} s before",
                request_id=one.request_id, driver_id=one.driver_id, attempt=one.attempt,
            )  # fmt: skip
        if one.lost:
            lost[pair] = one.ends_ms

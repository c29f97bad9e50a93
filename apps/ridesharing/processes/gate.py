"""The gate: every event is checked, freed of repeats, and sent to the region that owns what it is about."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

import msgspec

from millrace import (
    BroadcastContext,
    Context,
    KeyedProcess,
    arrival,
    broadcast_state,
    days,
    hours,
    map_state,
    side_output,
    value_state,
)
from millrace.parts.contents import digest_of
from millrace.places import distance_m
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import (
    GATE_INPUTS,
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
    QuoteRequest,
    RideRequest,
    SetVenue,
    has_other_key,
    identity_of,
    key_of,
    too_far_ahead,
)
from millrace_apps.ridesharing.contracts.records import Suspect, SuspectReason
from millrace_apps.ridesharing.processes.geo import cell_of
from millrace_apps.ridesharing.processes.regions import zone_name, zone_of
from millrace_apps.ridesharing.state.book import OFF_LINE_MS
from millrace_apps.ridesharing.state.venues import Venue, Venues, keep_venue
from millrace_apps.ridesharing.surge.records import Asked

#: A degree is nowhere longer, metres.
_MOST_M_PER_DEGREE: Final = 111_200.0
_SEEN: Final[Any] = bool | int
#: Positions are wrong by so much, metres.
_NOISE_M: Final = 250.0


class Track(msgspec.Struct, array_like=True, gc=False):
    """What is known of a driver at the gate.

    Attributes:
        owner: The region that has the driver.
        seen_ms: Time of the newest position or status, ms.
        sent_ms: Time of the last one that was sent on, ms.
        lat: Where that was, degrees.
        lon: Where that was, degrees.
        idle: What the driver said to be doing then.
        here: Where the driver was at ``seen_ms``, degrees; ``None`` where an earlier version has seen that.
        doubted: Place (degrees) and time (ms) of the last position that was not believed, and since when
            such positions have agreed with one another.
        said_ms: When the driver last came on line or went off, ms; 0: not heard of.
        off_line_ms: Since when the driver is off line by that, ms; 0: on line.
        block: The newest block by an operator, or its end: when it was said, and until when it holds (0: not
            at all), ms; ``None``: not heard of.
    """

    owner: str
    seen_ms: int
    sent_ms: int
    lat: float
    lon: float
    idle: bool
    here: tuple[float, float] | None = None
    doubted: tuple[float, float, int, int] | None = None
    said_ms: int = 0
    off_line_ms: int = 0
    block: tuple[int, int] | None = None


class Gate(KeyedProcess[Event | QuoteRequest, Position]):
    """Keyed by driver, request or quote: decides who owns a driver, and lets pass what matters.

    A driver belongs to one region until that region hands the driver over; the handover comes back here
    through its topic. Of positions only those pass that a region would act on: moved by ``move_m``,
    another state, in or out of a venue's pen, or ``refresh_ms`` after the last. Each stream has an output of
    its own; the main one is that of positions, which nearly all events are.
    """

    # A topic's key is the driver or the request, so each stream brings the events of a key in order. Where
    # two streams of a driver disagree about it, ownership does not: see DISCUSSION.md.
    order = arrival(in_order_per_key=True)

    inputs: ClassVar = GATE_INPUTS
    control_type: ClassVar[object] = Control
    track = value_state(Track, ttl=days(1))
    #: Identity → digest of what it said; true where an earlier version has seen it.
    seen = map_state(str, _SEEN, ttl=hours(2))
    #: Of a request: digest of what it said. Its identity is nobody else's for a month.
    asked = value_state(int, ttl=days(31))
    #: Places with a line of drivers: into it and out of it is worth telling.
    venues = broadcast_state(str, Venue)

    suspects = side_output(Suspect)
    status = side_output(DriverStatus)
    requests = side_output(RideRequest)
    answers = side_output(Answer)
    cancellations = side_output(Cancellation)
    progress = side_output(Progress)
    commands = side_output(Command)
    handovers = side_output(Handover)
    notices = side_output(Handover)
    asks = side_output(Asked)

    def __init__(self, config: DispatchConfig | None = None) -> None:
        self.config = config or DispatchConfig()

    def describe(self) -> dict[str, object]:
        """Return what owners of drivers depend on."""
        return {"regions": msgspec.to_builtins(self.config.regions)}

    def process(self, event: Event | QuoteRequest, ctx: Context) -> None:
        """Send one event on."""
        if isinstance(event, Position):
            self._position(event, ctx)
        elif len(ctx.key) > MAX_KEY:
            ctx.dead_letter("range", f"{ctx.input}: a key of {len(ctx.key):,} characters is nobody's")
        elif has_other_key(event, ctx.key):
            ctx.dead_letter("schema", f"{ctx.input}: an event about {key_of(event)} needs that as its key")
        elif ahead := too_far_ahead(event):
            ctx.dead_letter("range", f"{ctx.input}: {', '.join(ahead)} too long after the event")
        elif self._has_come(event, ctx):
            pass
        elif isinstance(event, DriverStatus):
            self._status(event, ctx)
        elif isinstance(event, QuoteRequest):
            self._ask(event, "quote", "", ctx)
        elif isinstance(event, Handover):
            if event.rider_id:
                ctx.output(self.notices, event)
            else:
                if not self.config.regions.has(event.region):  # as it was said, regions were others
                    here = self.config.regions.of_place(event.lat, event.lon)
                    event = msgspec.structs.replace(event, region=here)
                ctx.output(self.handovers, self._hand_over(event) if event.driver_id else event)
        else:
            self._send(event, ctx)

    def process_broadcast(self, control: Control, ctx: BroadcastContext) -> None:
        """Keep a venue; nothing else concerns what passes."""
        if isinstance(control, SetVenue | DropVenue):
            keep_venue(control, ctx.watermark, self.venues, self.config.regions)

    def on_late(self, event: Event | QuoteRequest, ctx: Context) -> None:
        """Note that it was late; it still counts, from now on, if nothing newer is known."""
        if not isinstance(event, Handover):  # the app's own: what caused them has passed when they are read
            self.emit_late(event, ctx)
        self.process(event, ctx)

    def _position(self, event: Position, ctx: Context) -> None:
        if event.driver_id != ctx.key:
            ctx.dead_letter("schema", "a position needs driver_id as its key")
            return
        kept, at, lat, lon, idle = (
            self.track,
            event.event_time_ms,
            event.lat,
            event.lon,
            event.state == "idle",
        )
        track = kept.value
        if event.mock:
            self._doubt(event, (lat, lon), "mock", 0.0, 0, ctx)
            return
        if track is None:
            owner = self.config.regions.of_place(lat, lon)
            kept.value = Track(owner, at, at, lat, lon, idle, (lat, lon))
            event.region = owner
            ctx.emit(event)
            return
        if at <= track.seen_ms:
            if at == track.seen_ms:
                what = "a position of this driver and time has come before"
                if track.here in (None, (lat, lon)):
                    ctx.dead_letter("duplicate", what)
                else:
                    ctx.dead_letter("conflict", f"{what}, and was elsewhere")
            return
        if track.here is not None and self._is_too_fast(track, event, ctx):
            kept.value = track
            return
        track.seen_ms, track.here, track.doubted = at, (lat, lon), None
        kept.value = track
        due = idle != track.idle or at - track.sent_ms >= self.config.refresh_ms
        if due or self._has_moved(track, lat, lon) or self._in_and_out(track, lat, lon, at):
            track.sent_ms, track.lat, track.lon, track.idle = at, lat, lon, idle
            event.region = track.owner
            ctx.emit(event)

    def _is_too_fast(self, track: Track, event: Position, ctx: Context) -> bool:
        """Return whether no car gets to a position; those that agree for long enough are believed."""
        most = self.config.most_m_per_s
        lat, lon, at = event.lat, event.lon, event.event_time_ms
        if not most or track.here is None or _can_be(track.here, track.seen_ms, lat, lon, at, most):
            return False
        since, last = at, track.doubted
        if last is not None and last[2] < at and _can_be(last[:2], last[2], lat, lon, at, most):
            since = last[3]
            if at - since >= self.config.believe_ms:
                return False
        track.doubted = (lat, lon, at, since)
        metres = distance_m(*track.here, lat, lon)
        self._doubt(event, (lat, lon), "impossible_speed", metres, at - track.seen_ms, ctx)
        return True

    def _doubt(
        self,
        event: Position | DriverStatus,
        place: tuple[float, float],
        reason: SuspectReason,
        metres: float,
        elapsed_ms: int,
        ctx: Context,
    ) -> None:
        about = (event.driver_id, reason, *place)
        ctx.output(self.suspects, Suspect(*about, round(metres, 1), elapsed_ms, event.event_time_ms))

    def _has_come(self, event: Event | QuoteRequest, ctx: Context) -> bool:
        """Return whether an event has come before; it is put aside then, else remembered."""
        identity = f"{ctx.input[:2]}{identity_of(event)}"
        known, content = self.seen.get(identity), digest_of(event)
        if known is None and isinstance(event, RideRequest):
            known = self.asked.value
        if known is None:
            self.seen.put(identity, content)
            if isinstance(event, RideRequest):
                self.asked.value = content
            return False
        what = f"{ctx.input}: {identity[2:]} has come before"
        if known is True or known == content:
            ctx.dead_letter("duplicate", what)
        else:
            ctx.dead_letter("conflict", f"{what}, and said something else")
        return True

    def _in_and_out(self, track: Track, lat: float, lon: float, at: int) -> bool:
        """Return whether a driver is in another venue's pen, or in none, than when last reported.

        One that has been removed meanwhile, and has come back, is another.
        """
        venues = self.venues.view(Venues)
        if not venues:
            return False
        here = venues.pen_of(lat, lon, at)
        if here != venues.pen_of(track.lat, track.lon, track.sent_ms):
            return True
        return bool(here) and not venues.has_line(here, track.sent_ms, at)

    def _has_moved(self, track: Track, lat: float, lon: float) -> bool:
        """Return whether a driver has moved far enough to be reported."""
        least = self.config.move_m
        degrees = abs(lat - track.lat) + abs(lon - track.lon)
        # No way is longer than first along the meridian and then along the parallel.
        if degrees <= 1e-9 or degrees * _MOST_M_PER_DEGREE < least:
            return False
        return distance_m(track.lat, track.lon, lat, lon) >= least

    def _status(self, event: DriverStatus, ctx: Context) -> None:
        at, track = event.event_time_ms, self.track.value
        if track is not None and at < track.said_ms:
            return  # what the driver has said later holds
        if track is not None and at < track.seen_ms and event.status == "online" and not track.off_line_ms:
            track.said_ms = at
            self.track.value = track
            return  # newer positions say the same
        lat, lon, is_there = self._place_of(event, track, ctx)
        if lat is None or lon is None:
            ctx.dead_letter("schema", "the first status of a driver needs lat and lon")
            return
        if track is None:
            track = Track(self.config.regions.of_place(lat, lon), at - 1, at, lat, lon, True, (lat, lon))
        elif (
            is_there and at > track.seen_ms
        ):  # a position of the same millisecond says more, and still counts
            track.seen_ms, track.here, track.doubted = at - 1, (lat, lon), None
        # What is late counts from now on, and keeps a driver off line from now on.
        track.said_ms = at
        track.off_line_ms = 0 if event.status == "online" else max(at, ctx.watermark)
        self.track.value = track
        event.lat, event.lon, event.region = lat, lon, track.owner
        ctx.output(self.status, event)

    def _place_of(
        self, event: DriverStatus, track: Track | None, ctx: Context
    ) -> tuple[float | None, float | None, bool]:
        """Return where a status comes from, degrees, and whether that is its own word.

        Of a status that says no place, or one that no car gets to, it is where the driver was last.
        """
        lat, lon, at, most = event.lat, event.lon, event.event_time_ms, self.config.most_m_per_s
        if lat is None or lon is None:
            return (None, None, False) if track is None else (*(track.here or (track.lat, track.lon)), False)
        if track is None or track.here is None or not most:
            return lat, lon, True
        if not _can_be(track.here, track.seen_ms, lat, lon, at, most):
            metres = distance_m(*track.here, lat, lon)
            self._doubt(event, (lat, lon), "impossible_speed", metres, at - track.seen_ms, ctx)
            return *track.here, False
        return lat, lon, True

    def _send(self, event: RideRequest | Answer | Cancellation | Progress | Command, ctx: Context) -> None:
        """Send what is about a request, or by an operator, to its region."""
        region = self._region_of(event)
        if region is None:
            driver_id = "" if isinstance(event, RideRequest) else event.driver_id
            ctx.dead_letter("range", f"{ctx.input}: no region for zone {event.zone!r}, driver {driver_id!r}")
            return
        if isinstance(event, Command) and event.action in ("block", "unblock"):
            self._keep_block(event)
        event.region = region
        if event.zone:
            event.zone = zone_of(event.zone)
        ctx.output(getattr(self, ctx.input), event)
        if isinstance(event, RideRequest):
            self._ask(event, "request", event.quote_id, ctx)

    def _ask(
        self,
        event: QuoteRequest | RideRequest,
        what: Literal["quote", "request"],
        quote_id: str,
        ctx: Context,
    ) -> None:
        """Tell who sets prices, if anybody does: the region of the cell of the pick-up."""
        if not self.config.free_ms:
            return
        cell = zone_name(cell_of(event.pickup_lat, event.pickup_lon))
        ahead = max(0, event.pickup_at_ms - event.event_time_ms)
        region = self.config.regions.of_zone(cell)
        ctx.output(self.asks, Asked(what, identity_of(event), event.rider_id, region, cell, quote_id, ahead))

    def _keep_block(self, event: Command) -> None:
        """Remember what holds of a block, for a region that gets the driver later."""
        track = self.track.value
        if track is not None and (track.block is None or event.event_time_ms >= track.block[0]):
            track.block = (event.event_time_ms, event.until_ms if event.action == "block" else 0)
            self.track.value = track

    def _region_of(self, event: RideRequest | Answer | Cancellation | Progress | Command) -> str | None:
        if isinstance(event, Command) and event.driver_id and not event.zone:
            track = self.track.value
            return track.owner if track is not None else None
        try:
            return self.config.regions.of_zone(event.zone)
        except ValueError:
            return None

    def _hand_over(self, event: Handover) -> Handover:
        """Note a driver's new owner, and tell it what only the old one may have been told meanwhile."""
        track, at = self.track.value, event.event_time_ms
        if track is None:
            track = Track(event.region, event.seen_ms, at, event.lat, event.lon, event.idle)
        track.owner = event.region
        self.track.value = track
        if track.off_line_ms and at - track.off_line_ms < OFF_LINE_MS:
            event = msgspec.structs.replace(event, off_line_ms=track.off_line_ms)
        if track.block is not None and track.block[0] >= event.block_said_ms:
            said, until = track.block
            event = msgspec.structs.replace(event, block_said_ms=said, blocked_ms=until)
        return event


def _can_be(
    place: tuple[float, float], then_ms: int, lat: float, lon: float, now_ms: int, most_m_per_s: float
) -> bool:
    """Return whether a car can be at a place when it was at another then."""
    reach = _NOISE_M + most_m_per_s * abs(now_ms - then_ms) / 1_000
    # No way is longer than first along the meridian and then along the parallel.
    if (abs(lat - place[0]) + abs(lon - place[1])) * _MOST_M_PER_DEGREE <= reach:
        return True
    return distance_m(*place, lat, lon) <= reach

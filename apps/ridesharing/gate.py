"""The gate: every signal is checked, freed of repeats, and sent to the region that owns what it is about."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from apps.ridesharing.config import DispatchConfig
from apps.ridesharing.events import REQUIRED, STREAMS, Signal
from apps.ridesharing.geo import distance_m
from millrace import Context, KeyedProcess, arrival, days, hours, map_state, value_state

#: A degree is nowhere longer, metres.
_MOST_M_PER_DEGREE: Final = 111_200.0


class Track(msgspec.Struct, array_like=True, gc=False):
    """What is known of a driver at the gate.

    Attributes:
        owner: The region that has the driver.
        seen_ms: Time of the newest position or status, ms.
        sent_ms: Time of the last one that was sent on, ms.
        lat: Where that was, degrees.
        lon: Where that was, degrees.
        idle: What the driver said to be doing then.
    """

    owner: str
    seen_ms: int
    sent_ms: int
    lat: float
    lon: float
    idle: bool


class Gate(KeyedProcess[Signal, Signal]):
    """Keyed by driver or request: decides who is the one owner of a driver, and lets pass what matters.

    A driver belongs to one region until that region hands the driver over; the handover comes back here
    through its topic. Of positions only those pass that a region would act on: moved by ``move_m``,
    another state, or ``refresh_ms`` after the last.
    """

    # A topic's key is the driver or the request, so each stream brings the signals of a key in order. Where
    # two streams of a driver disagree about it, ownership does not: see DISCUSSION.md.
    order = arrival(in_order_per_key=True)

    inputs: ClassVar = dict.fromkeys(STREAMS, Signal)
    track = value_state(Track, ttl=days(1))
    seen = map_state(str, bool, ttl=hours(2))

    def __init__(self, config: DispatchConfig | None = None) -> None:
        self.config = config or DispatchConfig()

    def describe(self) -> dict[str, object]:
        """Return what owners of drivers depend on."""
        return {"regions": msgspec.to_builtins(self.config.regions)}

    def process(self, event: Signal, ctx: Context) -> None:
        """Send one signal on."""
        stream = event.stream = ctx.input  # type: ignore[assignment]
        key = event.entity = ctx.key
        if stream == "locations":
            lat, lon = event.lat, event.lon
            if event.driver_id != key or lat is None or lon is None:
                ctx.dead_letter("schema", "a position needs driver_id (as its key), lat and lon")
            elif event.vehicle_class is None or event.state is None or not event.event_id:
                ctx.dead_letter("schema", "a position needs event_id, vehicle_class and state")
            else:
                self._position(event, ctx, lat, lon)
            return
        missing = [name for name in REQUIRED[stream] if getattr(event, name) in (None, "")]
        if stream == "answers" and event.attempt < 1:
            missing.append("attempt")
        if missing:
            ctx.dead_letter("schema", f"{stream}: {', '.join(missing)} missing")
            return
        if stream == "status":
            self._status(event, ctx)
            return
        identity = f"{stream[:2]}{event.event_id or event.command_id or event.request_id}"
        if identity in self.seen:
            ctx.dead_letter("duplicate", f"{stream}: {identity[2:]} has come before")
            return
        self.seen.put(identity, True)
        region = self._region_of(event)
        if region is None:
            ctx.dead_letter(
                "range", f"{stream}: no region for zone {event.zone!r}, driver {event.driver_id!r}"
            )
            return
        if stream == "handovers" and event.driver_id:
            self._hand_over(event)
        event.region = region
        ctx.emit(event)

    def on_late(self, event: Signal, ctx: Context) -> None:
        """Note that it was late; it still counts, from now on, if nothing newer is known."""
        if ctx.input != "handovers":  # the app's own: what caused them has passed when they are read
            self.emit_late(event, ctx)
        self.process(event, ctx)

    def _position(self, event: Signal, ctx: Context, lat: float, lon: float) -> None:
        kept, at, idle = self.track, event.event_time_ms, event.state == "idle"
        track = kept.value
        if track is None:
            owner = self.config.regions.of_place(lat, lon)
            kept.value = Track(owner, at, at, lat, lon, idle)
            event.region = owner
            ctx.emit(event)
            return
        if at <= track.seen_ms:
            if at == track.seen_ms:
                ctx.dead_letter("duplicate", "a position of this driver and time has come before")
            return
        track.seen_ms = at
        kept.value = track
        due = idle != track.idle or at - track.sent_ms >= self.config.refresh_ms
        if due or self._has_moved(track, lat, lon):
            track.sent_ms, track.lat, track.lon, track.idle = at, lat, lon, idle
            event.region = track.owner
            ctx.emit(event)

    def _has_moved(self, track: Track, lat: float, lon: float) -> bool:
        """Return whether a driver has moved far enough to be reported."""
        least = self.config.move_m
        degrees = abs(lat - track.lat) + abs(lon - track.lon)
        # No way is longer than first along the meridian and then along the parallel.
        if degrees <= 1e-9 or degrees * _MOST_M_PER_DEGREE < least:
            return False
        return distance_m(track.lat, track.lon, lat, lon) >= least

    def _status(self, event: Signal, ctx: Context) -> None:
        at, track = event.event_time_ms, self.track.value
        identity = f"st{event.event_id or f'{at}{event.status}'}"
        if identity in self.seen:
            ctx.dead_letter("duplicate", f"status: {identity[2:]} has come before")
            return
        self.seen.put(identity, True)
        if track is not None and at < track.seen_ms and event.status == "online":
            return  # newer positions say the same
        lat = event.lat if event.lat is not None else track.lat if track else None
        lon = event.lon if event.lon is not None else track.lon if track else None
        if lat is None or lon is None:
            ctx.dead_letter("schema", "the first status of a driver needs lat and lon")
            return
        if track is None:
            track = Track(self.config.regions.of_place(lat, lon), at, at, lat, lon, True)
        else:
            track.seen_ms = max(track.seen_ms, at)
        self.track.value = track
        event.lat, event.lon, event.region = lat, lon, track.owner
        ctx.emit(event)

    def _region_of(self, event: Signal) -> str | None:
        if event.stream == "handovers":
            return event.region
        if event.stream == "commands" and event.driver_id and not event.zone:
            track = self.track.value
            return track.owner if track is not None else None
        try:
            return self.config.regions.of_zone(event.zone)
        except ValueError:
            return None

    def _hand_over(self, event: Signal) -> None:
        track = self.track.value
        at, lat, lon = event.event_time_ms, event.lat or 0.0, event.lon or 0.0
        if track is None:
            self.track.value = Track(event.region, event.seen_ms, at, lat, lon, True)
        else:
            track.owner = event.region
            self.track.value = track

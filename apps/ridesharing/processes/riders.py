"""One open request per rider, whatever regions the rider asks in.

A region sees to that among its own requests. What it cannot know is that a rider has one open elsewhere; here
all requests of a rider come by, and regions tell what has become of theirs. A request whose rider has another
one open elsewhere goes on with a mark: its region holds it back until the mark is taken off, and refuses it
where that takes too long.
"""

from __future__ import annotations

from typing import ClassVar, Final, TypeAlias

import msgspec

from millrace import Context, KeyedProcess, Timer, days, value_state
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import Handover, RideRequest, Text

#: A booking lies ahead for a month at most, and its ride ends by itself within hours.
_KEPT: Final = days(33)


class Asked(RideRequest, omit_defaults=True, kw_only=True, gc=False):
    """A request with what is known of its rider.

    Attributes:
        other: The rider's open request in another region; empty: there is none.
        marks: How often that has changed; of two that come in one moment the higher holds.
    """

    other: Text = ""
    marks: int = 0


class RiderRequest(msgspec.Struct, array_like=True, gc=False):
    """A request of a rider that has not ended.

    Attributes:
        region: Who has it.
        opens_ms: From when on a car is searched for, ms.
        waits_for: The request in another region that it waits for; empty: for none.
        marks: How often that has changed.
        asked: The request as it came, JSON, while a mark may have to be set or taken off; else empty.
    """

    __stored_as__: ClassVar[str] = "Known"

    region: str
    opens_ms: int
    waits_for: str
    marks: int
    asked: bytes

    def is_open(self, now_ms: int) -> bool:
        """Return whether a car is searched for, or bound."""
        return not self.waits_for and self.opens_ms <= now_ms

    def begins(self, now_ms: int) -> bool:
        """Return whether it is open, or is in the next millisecond: no timer comes before that."""
        return not self.waits_for and self.opens_ms <= now_ms + 1


#: A request that was searched for so long ago has ended, whatever was heard of it, ms.
_LONGEST_MS: Final = 86_400_000

_BEGIN: Final = "begin"

#: Requests of a rider, by the time they were asked for.
Requests: TypeAlias = dict[str, RiderRequest]


class Riders(KeyedProcess[RideRequest | Handover, Asked]):
    """Keyed by rider: says of each request whether its rider has another one open in another region.

    The first that is asked for stands. Requests of one region are that region's business: they pass.
    """

    order = "event_time"
    inputs: ClassVar = {"notices": Handover, "requests": RideRequest}

    requests = value_state(Requests, ttl=_KEPT)

    def __init__(self, config: DispatchConfig | None = None) -> None:
        self.config = config or DispatchConfig()

    def describe(self) -> dict[str, object]:
        """Return what owners of requests depend on."""
        return {"regions": msgspec.to_builtins(self.config.regions)}

    def process(self, event: RideRequest | Handover, ctx: Context) -> None:
        """Take up a request, or what a region says of one."""
        self._take(event, ctx, ctx.event_time)

    def on_late(self, event: RideRequest | Handover, ctx: Context) -> None:
        """Take up what the watermark has passed, as of now: so does its region."""
        self._take(event, ctx, max(ctx.event_time, ctx.watermark))

    def _take(self, event: RideRequest | Handover, ctx: Context, now: int) -> None:
        kept = (self.requests.value or {}).items()
        requests = {name: known for name, known in kept if now - known.opens_ms < _LONGEST_MS}
        if isinstance(event, Handover):
            self._hear(event, requests, now, ctx)
        else:
            self._ask(event, requests, now, ctx)
        self._keep(requests, now, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Mark what lies ahead elsewhere, a moment before a booked ride is searched for."""
        requests = self.requests.value or {}
        for name, known in requests.items():
            if known.opens_ms == timer.at + 1 and not known.waits_for:
                self._mark_others(name, requests, timer.at, ctx)
        self._keep(requests, timer.at, ctx)

    def _keep(self, requests: Requests, now: int, ctx: Context) -> None:
        """Keep what has not ended, and wait for the next booked ride."""
        if not requests:
            self.requests.clear()
            ctx.timers.delete(_BEGIN)
            return
        self.requests.value = requests
        ahead = [k.opens_ms - 1 for k in requests.values() if k.opens_ms - 1 > now and not k.waits_for]
        if not ahead:
            ctx.timers.delete(_BEGIN)
        elif ctx.timers.pending(_BEGIN) != min(ahead):
            ctx.timers.at(min(ahead), _BEGIN)

    def _ask(self, event: RideRequest, requests: Requests, now: int, ctx: Context) -> None:
        opens = max(now, event.pickup_at_ms - self.config.ahead_ms)
        other = _open_elsewhere(requests, event.region, now)
        asked = msgspec.json.encode(event) if other or opens > now else b""
        requests[event.request_id] = RiderRequest(event.region, opens, other, 0, asked)
        ctx.emit(_marked(event, other, 0))
        if not other and requests[event.request_id].begins(now):
            self._mark_others(event.request_id, requests, now, ctx)

    def _hear(self, event: Handover, requests: Requests, now: int, ctx: Context) -> None:
        """Hear that a request has ended, or that a car is searched for it before or at its time."""
        name = event.request_id
        if name not in requests:
            return  # it has ended already
        if not event.is_over:
            # The region that said so may be another one by now: what is known is where the ride is.
            marks = requests[name].marks
            requests[name] = RiderRequest(
                requests[name].region, min(now, event.event_time_ms), "", marks, b""
            )
            self._mark_others(name, requests, now, ctx)
        else:
            del requests[name]
            for waiting, known in list(requests.items()):
                if known.waits_for == name:
                    self._mark(known, _open_elsewhere(requests, known.region, now), ctx)
                    if known.begins(now):
                        self._mark_others(waiting, requests, now, ctx)

    def _mark_others(self, name: str, requests: Requests, now: int, ctx: Context) -> None:
        """Mark what lies ahead elsewhere: it is not to begin while a request is open."""
        region = requests[name].region
        for known in requests.values():
            if known.region != region and known.asked and not known.waits_for and known.opens_ms > now:
                self._mark(known, name, ctx)

    def _mark(self, known: RiderRequest, other: str, ctx: Context) -> None:
        known.waits_for = other
        known.marks += 1
        ctx.emit(_marked(msgspec.json.decode(known.asked, type=RideRequest), other, known.marks))


def _open_elsewhere(requests: Requests, region: str, now: int) -> str:
    """Return the first request that is open in another region; empty: none."""
    return next((name for name, k in requests.items() if k.region != region and k.is_open(now)), "")


def _marked(event: RideRequest, other: str, marks: int) -> Asked:
    return Asked(**msgspec.structs.asdict(event), other=other, marks=marks)

"""Legs begin and end; what others took becomes the estimate of the next: recorded legs, for evaluations."""

from __future__ import annotations

from typing import Literal
from zoneinfo import ZoneInfo

import msgspec

from millrace import Context, KeyedProcess, days, event_time, hours, map_state
from millrace_apps.ridesharing.eta.features import Driver, Place, Sum, Told
from millrace_apps.ridesharing.eta.interval import Width
from millrace_apps.ridesharing.eta.times import TRIP, Expected, Model, Times


class Leg(msgspec.Struct, frozen=True, gc=False):
    """A leg begins or ends: a car goes to its rider, or with one.

    Attributes:
        what: ``begin`` or ``end``; of one moment what begins comes first.
        leg_id: Which.
        region: Its region; regions learn by themselves.
        at_ms: When, UTC ms.
        driver_id: Who drives.
        from_lat: Where it begins, degrees.
        from_lon: Where it begins, degrees.
        to_lat: Where it goes, degrees.
        to_lon: Where it goes, degrees.
    """

    what: Literal["begin", "end"]
    leg_id: str
    region: str
    at_ms: int
    driver_id: str
    from_lat: float
    from_lon: float
    to_lat: float
    to_lon: float


class Estimate(msgspec.Struct, gc=False):
    """What a leg should take.

    Attributes:
        leg_id: The leg.
        at_ms: When it begins, UTC ms.
        straight_s: By the straight line, seconds.
        table_s: By what legs between these places took.
        model_s: By the model; ``None``: there is none.
        low_s: So long at least, by the model; nine of ten legs are between the two.
        high_s: So long at most.
        model_version: The model's version; empty: none.
        features: What is known of it, by :data:`millrace_apps.ridesharing.eta.features.NAMES`, if that is
            asked for.
    """

    leg_id: str
    at_ms: int
    straight_s: float
    table_s: float
    model_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    model_version: str = ""
    features: list[float] = msgspec.field(default_factory=list)


class Open(msgspec.Struct, array_like=True):
    """A leg that has not ended.

    Attributes:
        at_ms: When it began, UTC ms.
        told: What was known of it.
        expected: What it should take.
    """

    at_ms: int
    told: Told
    expected: Expected


class TravelTimes(KeyedProcess[Leg, Estimate]):
    """Estimates legs as they begin, and learns from them as they end.

    Args:
        zone: Time zone of the city.
        model: Asks a model; ``None``: the table alone.
        tell_features: Whether estimates have the features, to learn from.
    """

    order = event_time()
    table = map_state(str, Sum, ttl=days(60), paged=True)
    late = map_state(str, Sum, ttl=hours(12), paged=True)
    drivers = map_state(str, Driver, ttl=days(60), paged=True)
    legs = map_state(str, Open, ttl=hours(12), paged=True)
    widths = map_state(str, Width, ttl=days(60))

    def __init__(self, zone: str = "UTC", model: Model | None = None, *, tell_features: bool = False) -> None:
        self._zone, self._model, self._tell = ZoneInfo(zone), model, tell_features

    def process(self, event: Leg, ctx: Context) -> None:
        """Estimate a leg, or learn from it."""
        kept = (self.table, self.late, self.drivers, self.widths)
        times = Times(TRIP, *kept, self._zone, self._model)
        place = Place(event.from_lat, event.from_lon, event.to_lat, event.to_lon)
        if event.what == "begin":
            ctx.emit(self._begin(event, place, times))
        else:
            self._end(event, place, times)

    def _begin(self, leg: Leg, place: Place, times: Times) -> Estimate:
        told, one = times.tell(place, leg.at_ms, leg.driver_id)
        times.begin(leg.at_ms)
        about = (one.straight_s, one.table_s, one.model_s, one.low_s, one.high_s, one.version)
        made = Estimate(leg.leg_id, leg.at_ms, *about)
        if self._tell:
            made.features = list(told.features)
        told.features = []  # they are not needed any more
        self.legs.put(leg.leg_id, Open(leg.at_ms, told, one))
        return made

    def _end(self, leg: Leg, place: Place, times: Times) -> None:
        kept = self.legs.get(leg.leg_id)
        if kept is None or leg.at_ms <= kept.at_ms:
            return  # of before this was running, or of no time
        self.legs.remove(leg.leg_id)
        took_s = (leg.at_ms - kept.at_ms) / 1_000
        times.end(kept.told, kept.expected, place, took_s, leg.at_ms, leg.driver_id)

"""Legs begin and end; what others took becomes the estimate of the next."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from math import exp
from typing import Any, ClassVar, Final, Literal
from zoneinfo import ZoneInfo

import msgspec

from apps.ridesharing.eta.features import (
    FEATURES_VERSION,
    NAMES,
    Driver,
    Place,
    Sum,
    Told,
    features_of,
    learned,
    table_s,
    unknown_s,
)
from apps.ridesharing.eta.interval import Spread, Width
from millrace import Context, KeyedProcess, days, event_time, hours, map_state, value_state
from millrace.models.boosted import BOOSTED, Boosted
from millrace.models.loading import Reader
from millrace.models.serving import Champion

#: Name under which the model is registered.
MODEL_NAME: Final = "ridesharing-eta"
READER: Final = Reader("regressor", FEATURES_VERSION, Boosted.of, BOOSTED, NAMES)
_PLACES: Final = {name: number for number, name in enumerate(NAMES)}
_QUARTER_MS: Final = 15 * 60_000
_DAY_MS: Final = 86_400_000
_BEGUN: Final = "begun"
_LEAST_S, _MOST_S = 1.0, 6 * 3_600.0


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
        features: What is known of it, by :data:`apps.ridesharing.eta.features.NAMES`, if that is asked for.
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
        low_s: Its interval, seconds; ``None``: it has none.
        high_s: The end of it.
    """

    at_ms: int
    told: Told
    low_s: float | None = None
    high_s: float | None = None


@dataclass(frozen=True)
class Model(Champion):
    """Asks the champion."""

    name: str = MODEL_NAME
    reader: ClassVar[Reader] = READER

    def estimate(self, features: list[float], nothing_s: float) -> tuple[float, str, Spread | None] | None:
        """Return seconds, the model's version, and the spread of its estimates; ``None`` without a model.

        Args:
            features: By :data:`apps.ridesharing.eta.features.NAMES`.
            nothing_s: What such a leg takes where nothing is known, seconds.
        """
        found = self.served.scored(lambda inputs: [[features[_PLACES[name]] for name in inputs]])
        if found is None:
            return None
        scores, model = found
        spread = msgspec.convert(model.about["spread"], Spread) if "spread" in model.about else None
        seconds = nothing_s * exp(min(max(scores.values[0], -5.0), 5.0))
        return min(max(seconds, _LEAST_S), _MOST_S), scores.version, spread


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
    width = value_state(Width, default_factory=Width)

    def __init__(self, zone: str = "UTC", model: Model | None = None, *, tell_features: bool = False) -> None:
        self._zone, self._model, self._tell = ZoneInfo(zone), model, tell_features

    def process(self, event: Leg, ctx: Context) -> None:
        """Estimate a leg, or learn from it."""
        if event.what == "begin":
            ctx.emit(self._begin(event))
        else:
            self._end(event)

    def _begin(self, leg: Leg) -> Estimate:
        place = Place(leg.from_lat, leg.from_lon, leg.to_lat, leg.to_lon)
        begun = (self.late.get(_BEGUN) or Sum()).recent(leg.at_ms, _QUARTER_MS)
        told = features_of(
            place,
            leg.at_ms,
            leg.at_ms + self._offset_ms(leg.at_ms),
            begun.weight,
            self.table,
            self.late,
            self.drivers.get(leg.driver_id) or Driver(),
        )
        self.late.put(_BEGUN, begun.add_recent(0.0, leg.at_ms, _QUARTER_MS))
        nothing_s = unknown_s(place.km)
        made = Estimate(leg.leg_id, leg.at_ms, nothing_s, table_s(place, told))
        kept = Open(leg.at_ms, told)
        if self._model is not None and (found := self._model.estimate(told.features, nothing_s)) is not None:
            made.model_s, made.model_version, spread = found
            if spread is not None:
                interval = self.width.value.interval(made.model_s, spread, told.hour % 24)
                made.low_s, made.high_s = kept.low_s, kept.high_s = interval
        if self._tell:
            made.features = list(told.features)
        told.features = []  # they are not needed any more
        self.legs.put(leg.leg_id, kept)
        return made

    def _end(self, leg: Leg) -> None:
        kept = self.legs.get(leg.leg_id)
        if kept is None or leg.at_ms <= kept.at_ms:
            return  # of before this was running, or of no time
        self.legs.remove(leg.leg_id)
        took_s = (leg.at_ms - kept.at_ms) / 1_000
        if kept.low_s is not None and kept.high_s is not None:
            width = self.width.value
            width.learn(kept.told.hour % 24, below=took_s < kept.low_s, above=took_s > kept.high_s)
            self.width.value = width
        place = Place(leg.from_lat, leg.from_lon, leg.to_lat, leg.to_lon)
        driver = self.drivers.get(leg.driver_id) or Driver()
        table, late, driver = learned(kept.told, place, took_s, leg.at_ms, self.table, self.late, driver)
        for key, changed in table.items():
            self.table.put(key, changed)
        for key, changed in late.items():
            self.late.put(key, changed)
        self.drivers.put(leg.driver_id, driver)

    def _offset_ms(self, at_ms: int) -> int:
        found: Any = datetime.fromtimestamp(at_ms / 1_000, UTC).astimezone(self._zone).utcoffset()
        return int(found.total_seconds() * 1_000)

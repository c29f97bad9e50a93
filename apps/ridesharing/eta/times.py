"""Estimates of legs as they begin, and what is learned as they end, over the states of any process."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from math import exp, log
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar
from zoneinfo import ZoneInfo

import msgspec

from millrace.models.boosted import BOOSTED, Boosted
from millrace.models.loading import Reader
from millrace.models.serving import Champion
from millrace_apps.ridesharing.eta.features import (
    FEATURES_VERSION,
    NAMES,
    Driver,
    Place,
    Sum,
    Told,
    features_of,
    learned,
    unknown_s,
)
from millrace_apps.ridesharing.eta.interval import Spread, Width
from millrace_apps.ridesharing.processes.geo import CIRCUITY, SPEED_M_PER_MS

#: Names under which the models are registered: of trips, and of the ways to the pick-ups.
MODEL_NAME: Final = "ridesharing-eta"
PICKUP_NAME: Final = "ridesharing-pickup"
READER: Final = Reader("regressor", FEATURES_VERSION, Boosted.of, BOOSTED, NAMES)
_PLACES: Final = {name: number for number, name in enumerate(NAMES)}
_QUARTER_MS: Final = 15 * 60_000
_BEGUN: Final = "begun"
_LEAST_S, _MOST_S = 1.0, 6 * 3_600.0
#: Of what nobody has taken nine of ten are expected between half of it and twice as much.
UNTRIED: Final = Spread((), (-0.7,), (0.7,))
T = TypeVar("T")


class Sums(Protocol[T]):
    """Values by name: a map state, or a dict with ``put``."""

    def get(self, key: str, /) -> T | None:
        """Return a value."""

    def put(self, key: str, value: T, /) -> None:
        """Keep a value."""

    def remove(self, key: str, /) -> None:
        """Forget a value."""


class Named(Sums[T]):
    """Those of the values of a map whose names begin alike.

    Args:
        of: The map.
        lead: How they begin.
    """

    __slots__ = ("_lead", "_of")

    def __init__(self, of: Sums[T], lead: str) -> None:
        self._of, self._lead = of, lead

    def get(self, key: str, /) -> T | None:
        """Return a value."""
        return self._of.get(self._lead + key)

    def put(self, key: str, value: T, /) -> None:
        """Keep a value."""
        self._of.put(self._lead + key, value)

    def remove(self, key: str, /) -> None:
        """Forget a value."""
        self._of.remove(self._lead + key)


@dataclass(frozen=True)
class Kind:
    """What sort of legs: with a rider, or on the way to one.

    Attributes:
        name: Its name.
        lead: How the names of its sums begin.
        shift_s: Added to what legs take before it is compared, seconds: of short ones little is said.
    """

    name: str
    lead: str
    shift_s: float = 0.0

    def nothing_s(self, km: float) -> float:
        """Return what such a leg takes where nothing is known, with the shift, seconds."""
        if self.name == "trip":
            return unknown_s(km)
        return km * CIRCUITY / SPEED_M_PER_MS + self.shift_s  # m/ms is km/s


TRIP: Final = Kind("trip", "")
PICKUP: Final = Kind("pickup", "p:", 30.0)


@dataclass(frozen=True)
class Model(Champion):
    """Asks the champion."""

    name: str = MODEL_NAME
    reader: ClassVar[Reader] = READER

    def estimate(self, features: list[float], nothing_s: float) -> tuple[float, str, Spread | None] | None:
        """Return seconds, the model's version, and the spread of its estimates; ``None`` without a model.

        Args:
            features: By :data:`millrace_apps.ridesharing.eta.features.NAMES`.
            nothing_s: What such a leg takes where nothing is known, seconds.
        """
        found = self.served.scored(lambda inputs: [[features[_PLACES[name]] for name in inputs]])
        if found is None:
            return None
        scores, model = found
        spread = msgspec.convert(model.about["spread"], Spread) if "spread" in model.about else None
        seconds = nothing_s * exp(min(max(scores.values[0], -5.0), 5.0))
        return min(max(seconds, _LEAST_S), _MOST_S), scores.version, spread


class Expected(NamedTuple):
    """What a leg should take, seconds.

    Attributes:
        straight_s: By the straight line.
        table_s: By what legs between these places took.
        model_s: By the model; ``None``: there is none.
        low_s: So long at least; nine of ten legs are between the two. ``None``: there is no interval.
        high_s: So long at most.
        version: The model's version; empty: none.
    """

    straight_s: float
    table_s: float
    model_s: float | None
    low_s: float | None
    high_s: float | None
    version: str

    @property
    def seconds(self) -> float:
        """By the model, or else by the table."""
        return self.table_s if self.model_s is None else self.model_s


class Times:
    """What legs of a kind took, kept in the states of a process.

    Args:
        kind: Which legs.
        table: Sums that stay.
        late: Sums of late.
        drivers: What is kept of drivers.
        widths: How wide intervals are, by what made the estimate.
        zone: Time zone of the city.
        model: Asks a model; ``None``: the table alone.
        untried: Spread of the table's estimates before any came true; ``None``: they have no interval.
    """

    def __init__(
        self,
        kind: Kind,
        table: Sums[Sum],
        late: Sums[Sum],
        drivers: Sums[Driver],
        widths: Sums[Width],
        zone: ZoneInfo,
        model: Model | None = None,
        untried: Spread | None = None,
    ) -> None:
        self.kind = kind
        self.table: Sums[Sum] = Named(table, kind.lead)
        self._late: Sums[Sum] = Named(late, kind.lead)
        self._drivers: Sums[Driver] = Named(drivers, kind.lead)
        self._widths: Sums[Width] = Named(widths, kind.lead)
        self._zone, self._model, self._untried = zone, model, untried

    def hour(self, at_ms: int) -> int:
        """Return the local hour of the week of a time (UTC ms)."""
        return (at_ms + self._offset_ms(at_ms)) // 3_600_000 % 168

    def tell(self, place: Place, at_ms: int, driver_id: str) -> tuple[Told, Expected]:
        """Return what is known of a leg that begins, and what it should take."""
        begun = (self._late.get(_BEGUN) or Sum()).recent(at_ms, _QUARTER_MS)
        told = features_of(
            place,
            at_ms,
            at_ms + self._offset_ms(at_ms),
            begun.weight,
            self.table,
            self._late,
            self._drivers.get(driver_id) or Driver(),
        )
        shift, nothing_s = self.kind.shift_s, self.kind.nothing_s(place.km)
        table_s = nothing_s * exp(told.table)
        seconds, version, spread, model_s = table_s, "", self._untried, None
        if self._model is not None and (found := self._model.estimate(told.features, nothing_s)) is not None:
            seconds, version, own = found
            spread = own or spread  # a model that does not say how wrong it is
            model_s = self._less(seconds)
        low = high = None
        if spread is not None:
            ends = self._width(version).interval(seconds, spread, told.hour % 24)
            low, high = (max(0.0, end - shift) for end in ends)
        straight_s = max(0.0, nothing_s - shift)
        return told, Expected(straight_s, self._less(table_s), model_s, low, high, version)

    def begin(self, at_ms: int) -> None:
        """Count a leg that begins."""
        begun = self._late.get(_BEGUN) or Sum()
        self._late.put(_BEGUN, begun.add_recent(0.0, at_ms, _QUARTER_MS))

    def end(
        self, told: Told, expected: Expected, place: Place, took_s: float, at_ms: int, driver_id: str
    ) -> None:
        """Learn from a leg that has ended.

        Args:
            told: What was known of it.
            expected: What it should have taken.
            place: Its ends.
            took_s: What it took, seconds.
            at_ms: When it ended, UTC ms.
            driver_id: Who drove.
        """
        if expected.low_s is not None and expected.high_s is not None:
            width = self._width(expected.version)
            below, above = took_s < expected.low_s, took_s > expected.high_s
            width.learn(told.hour % 24, below=below, above=above)
            self._widths.put(_by(expected.version), width)
        value = log((took_s + self.kind.shift_s) / self.kind.nothing_s(place.km))
        driver = self._drivers.get(driver_id) or Driver()
        table, late, driver = learned(told, place, value, at_ms, self.table, self._late, driver)
        for key, changed in table.items():
            self.table.put(key, changed)
        for key, changed in late.items():
            self._late.put(key, changed)
        self._drivers.put(driver_id, driver)

    def _width(self, version: str) -> Width:
        return self._widths.get(_by(version)) or Width()

    def _less(self, seconds: float) -> float:
        return (
            seconds - self.kind.shift_s
            if not self.kind.shift_s
            else max(_LEAST_S, seconds - self.kind.shift_s)
        )

    def _offset_ms(self, at_ms: int) -> int:
        found: Any = datetime.fromtimestamp(at_ms / 1_000, UTC).astimezone(self._zone).utcoffset()
        return int(found.total_seconds() * 1_000)


def _by(version: str) -> str:
    return "model" if version else "table"

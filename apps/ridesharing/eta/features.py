"""Features of a leg when it begins: its ends, its time, and recent legs of others.

Every feature is made of the leg itself and of legs that had ended by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import asinh, atan2, cos, exp, hypot, pi, radians, sin, tan
from typing import Final, NamedTuple, Protocol

import h3
import msgspec

from millrace.places import degrees_east

#: Version of the definitions, raised when the meaning of a feature changes.
FEATURES_VERSION: Final = 1
#: H3 resolutions of the table of places, the coarsest first, and for how many legs an estimate of the level
#: before it counts.
LEVELS: Final = ((7, 10.0), (8, 5.0), (9, 4.0))
_OF_A_PLACE: Final = 8
_OF_NOW: Final = 7
_KM: Final = 111.32
#: What a leg takes where nothing is known: seconds, and seconds for a kilometre to this power.
_START_S, _A_KM_S, _POWER = 120.0, 150.0, 0.85
_MINUTE_MS: Final = 60_000
#: What is recent: name → the time in which what was seen comes to count by the factor e less, ms.
_CITY: Final = {"city_15": 15 * _MINUTE_MS, "city_60": 60 * _MINUTE_MS}
_PLACE_MS: Final = 30 * _MINUTE_MS
_DRIVER_MS: Final = 120 * _MINUTE_MS
_ANGLES: Final = (0.0, 22.5, 45.0, 67.5)
_HOUR_MS: Final = 60 * _MINUTE_MS

NAMES: Final = (
    "from_x", "from_y", "to_x", "to_y", "from_u", "from_v", "to_u", "to_v", "middle_x", "middle_y",
    "km", "bearing", *(f"along_{a:g}" for a in _ANGLES), *(f"streets_{a:g}" for a in _ANGLES),
    "hour", "weekday", "begun_15", "of_pair_7", "of_pair_8", "of_pair_9", "of_from", "of_to", "of_hour",
    "of_driver", "driver_legs", "driver_now", "city_15", "city_60", "from_now", "to_now", "idle_min",
    "moved_km",
)  # fmt: skip


class Sum(msgspec.Struct, array_like=True):
    """How much longer legs took than where nothing is known: logarithms of the ratio, added up.

    Attributes:
        total: Their sum.
        weight: How many they count for.
        at_ms: When the last of them ended, UTC ms, where older ones count less.
    """

    total: float = 0.0
    weight: float = 0.0
    at_ms: int = 0

    def mean(self, prior: float, weight: float) -> float:
        """Return the mean, where ``prior`` counts for so many legs."""
        return (self.total + prior * weight) / (self.weight + weight)

    def add(self, value: float) -> Sum:
        """Add a leg."""
        return Sum(self.total + value, self.weight + 1.0)

    def recent(self, now_ms: int, scale_ms: int) -> Sum:
        """Return what of it counts now: what is ``scale_ms`` old by the e-th part."""
        if now_ms <= self.at_ms or not self.weight:
            return self
        share = exp((self.at_ms - now_ms) / scale_ms)
        return Sum(self.total * share, self.weight * share, now_ms)

    def add_recent(self, value: float, now_ms: int, scale_ms: int) -> Sum:
        """Add a leg that ended now, where older ones count less."""
        kept = self.recent(now_ms, scale_ms)
        return Sum(kept.total + value, kept.weight + 1.0, max(now_ms, self.at_ms))


class Table(Protocol):
    """Sums by name: a map state, or a dict."""

    def get(self, key: str, /) -> Sum | None:
        """Return a sum."""


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A leg's two ends.

    Attributes:
        from_lat: Degrees.
        from_lon: Degrees.
        to_lat: Degrees.
        to_lon: Degrees.
    """

    from_lat: float
    from_lon: float
    to_lat: float
    to_lon: float

    def keys(self) -> list[str]:
        """Return the names of its sums: for each level the pair of cells, then where it begins and ends."""
        pairs = [
            f"{h3.latlng_to_cell(self.from_lat, self.from_lon, level)}>"
            f"{h3.latlng_to_cell(self.to_lat, self.to_lon, level)}"
            for level, _ in LEVELS
        ]
        ends = pairs[[level for level, _ in LEVELS].index(_OF_A_PLACE)].split(">")
        now = pairs[[level for level, _ in LEVELS].index(_OF_NOW)].split(">")
        return [*pairs, f"from:{ends[0]}", f"to:{ends[1]}", f"from:{now[0]}", f"to:{now[1]}"]

    @property
    def km(self) -> float:
        """The straight line, km."""
        return hypot(*self.offset())

    def offset(self) -> tuple[float, float]:
        """Return how far it goes to the east and to the north, km."""
        east = _KM * cos(radians((self.from_lat + self.to_lat) / 2))
        return degrees_east(self.from_lon, self.to_lon) * east, (self.to_lat - self.from_lat) * _KM


def mercator(lat: float, lon: float) -> tuple[float, float]:
    """Return a place on Mercator's map, east and north of 0° 0°, in km at the equator: directions are true.

    >>> mercator(0.0, 1.0)
    (111.32, 0.0)
    """
    return lon * _KM, asinh(tan(radians(lat))) * _KM * 180.0 / pi


def unknown_s(km: float) -> float:
    """Return what a leg takes where nothing is known, seconds.

    >>> unknown_s(0.0)
    120.0
    """
    return float(_START_S + _A_KM_S * km**_POWER)


class Told(msgspec.Struct, array_like=True):
    """What is known of a leg when it begins.

    Attributes:
        features: By :data:`NAMES`.
        table: Logarithm of what it should take by the table over what it takes where nothing is known.
        keys: Names of its sums.
        hour: Local hour of the week.
    """

    features: list[float]
    table: float
    keys: list[str]
    hour: int


class Driver(msgspec.Struct, array_like=True):
    """What is kept of a driver.

    Attributes:
        slow: How much longer their legs took than the table said.
        now: The same, of late.
        ended_ms: End of their last leg, UTC ms; 0: they have made none.
        lat: Where it ended, degrees.
        lon: Where it ended, degrees.
    """

    slow: Sum = msgspec.field(default_factory=Sum)
    now: Sum = msgspec.field(default_factory=Sum)
    ended_ms: int = 0
    lat: float = 0.0
    lon: float = 0.0


_NOTHING: Final = Sum()


class Means(NamedTuple):
    """What the table says of a leg, as logarithms over what it takes where nothing is known.

    Attributes:
        pairs: Of its pair of cells, by :data:`LEVELS`: each is drawn towards the one before.
        begins: Of where it begins.
        ends: Of where it goes.
        of_hour: Of the hour of the week.
        everywhere: Of all legs.
    """

    pairs: list[float]
    begins: float
    ends: float
    of_hour: float
    everywhere: float

    @property
    def value(self) -> float:
        """What it should take by the table: the pair of cells of the middle level, at this hour."""
        return self.pairs[1] + self.of_hour - self.everywhere


def means_of(pairs: Sequence[str], begins: str, ends: str, hour: int, table: Table) -> Means:
    """Return what the table says of a leg.

    Args:
        pairs: Names of its pairs of cells, by :data:`LEVELS`; the last may be left out.
        begins: Name of where it begins.
        ends: Name of where it goes.
        hour: Local hour of the week.
        table: Sums by name.
    """

    def of(name: str) -> Sum:
        return table.get(name) or _NOTHING

    everywhere = of("all").mean(0.0, 1.0)
    begun = of(begins).mean(everywhere, 10.0)
    ended = of(ends).mean(everywhere, 10.0)
    value, found = begun + ended - everywhere, []
    for key, (_, weight) in zip(pairs, LEVELS, strict=False):
        value = of(key).mean(value, weight)
        found.append(value)
    return Means(found, begun, ended, of(f"hour:{hour}").mean(everywhere, 20.0), everywhere)


def features_of(
    place: Place, at_ms: int, local_ms: int, begun_15: float, table: Table, now: Table, driver: Driver
) -> Told:
    """Return what is known of a leg.

    Args:
        place: Its ends.
        at_ms: When it begins, UTC ms.
        local_ms: The same on the clocks of the city.
        begun_15: Legs that began in the last quarter of an hour, about.
        table: Sums by pair of cells, by end, and by hour of the week.
        now: Sums of late.
        driver: What is kept of its driver.
    """
    keys = place.keys()
    hour = local_ms // _HOUR_MS % 168

    def late(name: str, scale_ms: int, weight: float) -> float:
        return (now.get(name) or _NOTHING).recent(at_ms, scale_ms).mean(0.0, weight)

    of_places = means_of(keys[: len(LEVELS)], keys[len(LEVELS)], keys[len(LEVELS) + 1], hour, table)
    pairs = of_places.pairs
    dx, dy = place.offset()
    x, y = mercator(place.from_lat, place.from_lon)
    to_x, to_y = mercator(place.to_lat, place.to_lon)
    turned = [(dx * cos(a) + dy * sin(a), dy * cos(a) - dx * sin(a)) for a in map(radians, _ANGLES)]
    idle = (at_ms - driver.ended_ms) / _MINUTE_MS if driver.ended_ms else -1.0
    moved = -1.0
    if driver.ended_ms:
        moved = Place(driver.lat, driver.lon, place.from_lat, place.from_lon).km
    features = [
        x, y, to_x, to_y, x + y, y - x, to_x + to_y, to_y - to_x, (x + to_x) / 2, (y + to_y) / 2,
        hypot(dx, dy), atan2(dy, dx) / pi, *(along for along, _ in turned),
        *(abs(along) + abs(across) for along, across in turned),
        local_ms % (24 * _HOUR_MS) / _HOUR_MS, float((local_ms // (24 * _HOUR_MS) + 3) % 7), begun_15,
        pairs[0], pairs[1], pairs[2], of_places.begins, of_places.ends, of_places.of_hour,
        driver.slow.mean(0.0, 20.0), driver.slow.weight, driver.now.recent(at_ms, _DRIVER_MS).mean(0.0, 3.0),
        late("city_15", _CITY["city_15"], 10.0), late("city_60", _CITY["city_60"], 10.0),
        late(keys[-2], _PLACE_MS, 5.0), late(keys[-1], _PLACE_MS, 5.0), min(idle, 600.0), moved,
    ]  # fmt: skip
    return Told(features, of_places.value, keys, hour)


def learned(
    told: Told, place: Place, value: float, at_ms: int, table: Table, now: Table, driver: Driver
) -> tuple[dict[str, Sum], dict[str, Sum], Driver]:
    """Return what a leg that has ended changes: sums of the table, sums of late, and its driver.

    Args:
        told: What was known when it began.
        place: Its ends.
        value: Logarithm of what it took over what it takes where nothing is known.
        at_ms: When it ended, UTC ms.
        table: As it is.
        now: As it is.
        driver: As they are.
    """
    pair_keys = told.keys[: len(LEVELS) + 2]
    changed = {
        key: (table.get(key) or _NOTHING).add(value) for key in (*pair_keys, "all", f"hour:{told.hour}")
    }
    rest = value - told.table
    scales = {**_CITY, told.keys[-2]: _PLACE_MS, told.keys[-1]: _PLACE_MS}
    late = {key: (now.get(key) or _NOTHING).add_recent(rest, at_ms, scale) for key, scale in scales.items()}
    one = Driver(
        driver.slow.add(rest),
        driver.now.add_recent(rest, at_ms, _DRIVER_MS),
        max(at_ms, driver.ended_ms),
        place.to_lat,
        place.to_lon,
    )
    return changed, late, one

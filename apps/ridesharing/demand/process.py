"""Requests are counted by cell and quarter of an hour; as a quarter ends, the next one is foreseen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, TypeVar
from zoneinfo import ZoneInfo

import h3
import msgspec
import numpy as np
import numpy.typing as npt

from millrace import Context, KeyedProcess, Timer, days, event_time, map_state, value_state
from millrace.models.boosted import BOOSTED, Boosted
from millrace.models.loading import Reader
from millrace.models.serving import Champion
from millrace_apps.ridesharing.eta.features import mercator

QUARTER_MS: Final = 15 * 60_000
#: Quarters of a day, and of the week that is remembered.
DAY, WEEK = 96, 672
#: Name under which the model is registered.
MODEL_NAME: Final = "ridesharing-demand"
#: Version of the definitions, raised when the meaning of a feature changes.
FEATURES_VERSION: Final = 1
NAMES: Final = (
    "last_1", "last_2", "last_3", "last_4", "last_hour", "last_day", "around", "city", "city_hour",
    "yesterday", "yesterday_after", "week", "usual", "usual_days", "usual_city", "city_pace", "by_table",
    "days", "quarter", "weekday", "x", "y",
)  # fmt: skip
READER: Final = Reader("regressor", FEATURES_VERSION, Boosted.of, BOOSTED, NAMES)
_CLOSE: Final = "quarter"
#: How much of the city's pace the table follows: so many requests count for "as usual".
_USUAL: Final = 30.0
_LEAST: Final = 0.02

Counts = npt.NDArray[np.float64]
E = TypeVar("E")


class Ask(msgspec.Struct, frozen=True, gc=False):
    """Somebody asks for a ride.

    Attributes:
        request_id: Which request.
        region: Its region; regions are foreseen by themselves.
        at_ms: When, UTC ms.
        lat: Where, degrees.
        lon: Where, degrees.
    """

    request_id: str
    region: str
    at_ms: int
    lat: float
    lon: float


class Foreseen(msgspec.Struct, frozen=True, gc=False):
    """How many requests a cell will have in a quarter of an hour.

    Attributes:
        region: The region.
        cell: H3 cell.
        start_ms: Start of the quarter, UTC ms: told when the one before has ended.
        last: Requests of the quarter that has ended.
        table: Expected by what is usual there at that time, and how busy the city is.
        expected: Expected by the model; without a model by the table.
        low: So many at least; nine of ten quarters are between the two.
        high: So many at most.
        model_version: The model's version; empty: none.
        features: What is known, by :data:`NAMES`, if that is asked for.
    """

    region: str
    cell: str
    start_ms: int
    last: int
    table: float
    expected: float
    low: int
    high: int
    model_version: str = ""
    features: list[float] = msgspec.field(default_factory=list)


class Cell(msgspec.Struct, array_like=True):
    """Requests of a cell.

    Attributes:
        first: The quarter in which it was first heard of.
        counts: Requests by quarter of the week that has passed, :data:`WEEK` numbers.
    """

    first: int
    counts: list[int]


class Clock(msgspec.Struct, array_like=True):
    """Where a region's clock stands.

    Attributes:
        quarter: The quarter that has not ended; -1: nothing was heard yet.
        first: The first quarter.
        now: Requests of that quarter by cell.
        city: All requests by quarter of the week that has passed.
        silent: Quarters since anybody asked.
    """

    quarter: int = -1
    first: int = -1
    now: dict[str, int] = msgspec.field(default_factory=dict)
    city: list[int] = msgspec.field(default_factory=lambda: [0] * WEEK)
    silent: int = 0


@dataclass(frozen=True)
class Model(Champion):
    """Asks the champion."""

    name: str = MODEL_NAME
    reader: ClassVar[Reader] = READER

    def expected(self, features: Counts) -> tuple[Counts, str] | None:
        """Return requests, shape (n,), and the model's version; ``None`` without a model.

        Args:
            features: By :data:`NAMES`, shape (n, names).
        """
        scores = self.served.score(
            lambda inputs: features[:, [NAMES.index(name) for name in inputs]].tolist()
        )
        if scores is None:
            return None
        return np.exp(np.clip(np.asarray(scores.values, dtype=float), -7.0, 7.0)), scores.version


class Counting(KeyedProcess[E, Foreseen]):
    """Counts requests by cell, and foresees the next quarter of an hour of each cell it has heard of.

    A cell that nobody asked in for a week is forgotten; so is a region. How requests come is for those who
    stand on it to say.

    Args:
        zone: Time zone of the city.
        resolution: H3 resolution of the cells.
        model: Asks a model; ``None``: the table alone.
        tell_features: Whether forecasts have the features, to learn from.
    """

    order = event_time()
    cells = map_state(str, Cell, ttl=days(15), paged=True)
    clock = value_state(Clock, default_factory=Clock)

    def __init__(
        self,
        zone: str = "UTC",
        resolution: int = 8,
        model: Model | None = None,
        *,
        tell_features: bool = False,
    ) -> None:
        self._zone, self._resolution = ZoneInfo(zone), resolution
        self._model, self._tell = model, tell_features

    def count(self, region: str, at_ms: int, lat: float, lon: float, ctx: Context) -> None:
        """Count a request.

        Args:
            region: Its region, the key.
            at_ms: When, UTC ms.
            lat: Where, degrees.
            lon: Where, degrees.
            ctx: The context.
        """
        clock = self.clock.value
        quarter = at_ms // QUARTER_MS
        if clock.quarter < 0:
            clock.quarter = clock.first = quarter
        self._close(clock, quarter, region, ctx)
        cell = h3.latlng_to_cell(lat, lon, self._resolution)
        clock.now[cell] = clock.now.get(cell, 0) + 1
        self.clock.value = clock
        ctx.timers.at((quarter + 1) * QUARTER_MS, _CLOSE)

    def foresee(self, one: Foreseen, ctx: Context) -> None:
        """Say what is expected of a cell."""
        ctx.emit(one)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """End a quarter."""
        clock = self.clock.value
        self._close(clock, timer.at // QUARTER_MS, str(ctx.key), ctx)
        if clock.silent < WEEK:
            self.clock.value = clock
            ctx.timers.at((clock.quarter + 1) * QUARTER_MS, _CLOSE)
        else:
            self.clock.clear()

    def _close(self, clock: Clock, until: int, region: str, ctx: Context) -> None:
        """End the quarters before one, and foresee each that follows."""
        while clock.quarter < until:
            quarter, place = clock.quarter, clock.quarter % WEEK
            asked, clock.now = clock.now, {}
            kept: dict[str, Cell] = {}
            for name, cell in list(self.cells.items()):
                cell.counts[place] = asked.pop(name, 0)
                if quarter - cell.first >= WEEK and not any(cell.counts):
                    self.cells.remove(name)
                else:
                    kept[name] = cell
            for name, count in asked.items():
                kept[name] = Cell(quarter, [0] * WEEK)
                kept[name].counts[place] = count
            for name, cell in kept.items():
                self.cells.put(name, cell)
            clock.city[place] = sum(cell.counts[place] for cell in kept.values())
            clock.silent = 0 if clock.city[place] else clock.silent + 1
            clock.quarter += 1
            if kept:
                self._foresee(clock, kept, region, ctx)

    def _foresee(self, clock: Clock, kept: dict[str, Cell], region: str, ctx: Context) -> None:
        names = sorted(kept)
        features = self._features(clock, names, [kept[name] for name in names])
        table = features[:, NAMES.index("by_table")]
        expected, version = table, ""
        if self._model is not None and (found := self._model.expected(features)) is not None:
            expected, version = found
        low, high = interval(expected)
        for place, name in enumerate(names):
            one = Foreseen(
                region=region,
                cell=name,
                start_ms=clock.quarter * QUARTER_MS,
                last=int(features[place, 0]),
                table=float(table[place]),
                expected=float(expected[place]),
                low=int(low[place]),
                high=int(high[place]),
                model_version=version,
                features=features[place].tolist() if self._tell else [],
            )
            self.foresee(one, ctx)

    def _features(self, clock: Clock, names: list[str], cells: Sequence[Cell]) -> Counts:
        """Return what is known of the quarter that begins, shape (cells, names)."""
        coming = clock.quarter
        # The week that has passed, the newest last: a count of quarter q stands at q % WEEK.
        order = (coming + np.arange(WEEK)) % WEEK
        past = np.array([cell.counts for cell in cells], dtype=float)[:, order]
        city = np.array(clock.city, dtype=float)[order]
        number = {name: place for place, name in enumerate(names)}
        around = [
            sum(past[number[near], -1] for near in h3.grid_disk(name, 1) if near != name and near in number)
            for name in names
        ]
        days_known = min((coming - clock.first) / DAY, 7.0)
        # The same time of the days before, and a quarter around it.
        same = [WEEK - DAY * day for day in range(1, 8) if coming - DAY * day >= clock.first]
        ones = [place + off for place in same for off in (-1, 0, 1) if 0 <= place + off < WEEK]
        if ones:
            usual, usual_city = past[:, ones].mean(axis=1), float(city[ones].mean())
            hours = [place - back for place in same for back in (1, 2, 3, 4) if place - back >= 0]
            usual_hour = 4 * float(city[hours].mean()) if hours else 4 * usual_city
        else:  # of the first day: what was there so far
            known = max(1, min(coming - clock.first, WEEK))
            usual, usual_city = past[:, -known:].mean(axis=1), float(city[-known:].mean())
            usual_hour = 4 * usual_city
        hour = float(city[-4:].sum())
        pace = (hour + _USUAL) / (usual_hour + _USUAL)
        at = datetime.fromtimestamp(coming * QUARTER_MS / 1_000, UTC).astimezone(self._zone)
        places = [mercator(*h3.cell_to_latlng(name)) for name in names]
        every = np.ones(len(names))
        columns: dict[str, Any] = {
            "last_1": past[:, -1],
            "last_2": past[:, -2],
            "last_3": past[:, -3],
            "last_4": past[:, -4],
            "last_hour": past[:, -4:].sum(axis=1),
            "last_day": past[:, -DAY:].sum(axis=1),
            "around": np.array(around, dtype=float),
            "city": every * city[-1],
            "city_hour": every * hour,
            "yesterday": past[:, -DAY],
            "yesterday_after": past[:, -DAY + 1],
            "week": past[:, 0],
            "usual": usual,
            "usual_days": every * len(same),
            "usual_city": every * usual_city,
            "city_pace": every * pace,
            "by_table": np.maximum(usual * pace, _LEAST),
            "days": every * days_known,
            "quarter": every * ((at.hour * 60 + at.minute) // 15),
            "weekday": every * at.weekday(),
            "x": np.array([x for x, _ in places]),
            "y": np.array([y for _, y in places]),
        }
        return np.column_stack([columns[name] for name in NAMES])


class Demand(Counting[Ask]):
    """Counts requests as they come, and foresees."""

    def process(self, event: Ask, ctx: Context) -> None:
        """Count a request."""
        self.count(event.region, event.at_ms, event.lat, event.lon, ctx)


def interval(expected: Counts, coverage: float = 0.9) -> tuple[Counts, Counts]:
    """Return the quantiles of Poisson's distribution around what is expected, shape (n,) each.

    Example:
        >>> [bounds.tolist() for bounds in interval(np.array([0.02, 4.0]))]
        [[0.0, 1.0], [0.0, 8.0]]
    """
    from scipy.stats import poisson

    miss = (1.0 - coverage) / 2
    return poisson.ppf(miss, expected), poisson.ppf(1.0 - miss, expected)

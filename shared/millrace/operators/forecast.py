"""Holt-Winters: what level, trend and season of a series say of the values to come."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgspec

from millrace.errors import UserError
from millrace.operators.base import (
    Names,
    OperatorDefinitionError,
    OperatorProcess,
    SeriesDefinition,
    SeriesProcess,
    fraction,
    life_ms,
    name_for,
    names_of,
    whole,
)
from millrace.operators.series import Seasonal, Series, Smoothness
from millrace.process import Context
from millrace.state import ValueState
from millrace.windows.assigners import Duration, duration_ms
from millrace.windows.fields import Of

#: After more seasons than this without a value, the key begins anew.
_MOST_SEASONS_MISSED: Final = 10


class ForecastState(msgspec.Struct, array_like=True):
    """What is kept of a key.

    Attributes:
        step: The step of the last value.
        begun: The values so far, as long as there are too few to begin with.
        series: The series from then on.
    """

    __stored_as__: ClassVar[str] = "Known"

    step: int
    begun: list[float | None] = []
    series: Series | None = None


@dataclass(frozen=True, kw_only=True)
class ForecastDefinition(SeriesDefinition):
    """See :func:`holt_winters`.

    Attributes:
        smoothness: How the series is smoothed.
        every_ms: Length of a step, ms; ``None``: every value is one.
        ahead: How many steps are forecast.
    """

    kind = "holt_winters"
    smoothness: Smoothness
    every_ms: int | None
    ahead: int

    def describe(self) -> dict[str, Any]:
        """Return what the state hangs on."""
        how = self.smoothness
        return {
            "kind": self.kind,
            "season": how.season,
            "seasonal": how.seasonal,
            "every_ms": self.every_ms,
        }

    def build(self) -> OperatorProcess:
        """Return the process.

        Raises:
            OperatorDefinitionError: The value is no number, or columns have one name.
            WindowDefinitionError: The event has no such field.
        """
        return self.per_event(
            HoltWinters,
            "Forecast",
            [("value", float), ("expected", float | None), ("error", float | None)],
            [("level", float), ("trend", float), ("ahead", list[float])],
            known=ForecastState,
        )


class HoltWinters(SeriesProcess):
    """Keeps a number per place in the season and a few more."""

    known: ValueState[ForecastState | None]

    def __init__(self, definition: ForecastDefinition) -> None:
        super().__init__(definition)
        self._how = definition.smoothness
        self._every = definition.every_ms
        self._ahead = definition.ahead
        self._positive = self._how.season > 0 and self._how.seasonal == "multiplicative"

    def add(self, value: float, event: Any, ctx: Context) -> None:
        """Add the event's value; emit what was expected of it and what is expected now."""
        if self._positive and value <= 0:
            raise ValueError(f"holt_winters: a multiplicative season takes positive values, not {value}")
        known = self.known.value
        step = self._step(known, ctx.event_time)
        if known is None or step - known.step - 1 > self._most_missed(known):
            known = ForecastState(step - 1)
        expected = self._add(known, value, step)
        self.known.value = known  # written anew: its time to live begins anew
        series = known.series
        if series is not None:
            if not math.isfinite(series.level + series.trend):
                raise OverflowError(f"holt_winters: {value} is too large")
            forecast = self._how.ahead(series, self._ahead, self._place(step + 1))
            error = None if expected is None else value - expected
            self.emit_row(event, ctx, value, expected, error, series.level, series.trend, forecast)

    def _step(self, known: ForecastState | None, at: int) -> int:
        if self._every is None:
            return 0 if known is None else known.step + 1
        step = at // self._every
        if known is not None and step <= known.step:
            raise ValueError("holt_winters: a second value in one step: aggregate by step first")
        return step

    def _most_missed(self, known: ForecastState) -> int:
        """Return how many steps may be without a value; after more, all begins anew."""
        return max(self._how.season, 1) * (1 if known.series is None else _MOST_SEASONS_MISSED)

    def _place(self, step: int) -> int:
        return step % self._how.season if self._how.season else 0

    def _add(self, known: ForecastState, value: float, step: int) -> float | None:
        """Add a value; return what was expected of it, ``None`` where nothing was."""
        how, missed = self._how, step - known.step - 1
        known.step = step
        if known.series is not None:
            how.skip(known.series, missed)
            return how.add(known.series, value, self._place(step))
        known.begun = [*known.begun, *[None] * missed, value]
        if len(known.begun) >= how.first:
            begun, known.begun = known.begun, []
            first = step - len(begun) + 1
            known.series = series = how.begin(begun[: how.first], self._place(first))
            for number, earlier in enumerate(begun, first):
                if earlier is None:
                    how.skip(series, 1)
                else:
                    how.add(series, earlier, self._place(number))
        return None


def holt_winters(
    event_type: Any,
    of: Of,
    *,
    idle: Duration | None,
    season: int = 0,
    every: Duration | None = None,
    alpha: float = 0.3,
    beta: float | None = 0.1,
    gamma: float = 0.1,
    damping: float = 1.0,
    seasonal: Seasonal = "additive",
    ahead: int = 1,
    keep: Names = (),
    in_order: bool = False,
    key: Names = "key",
    name: str = "",
) -> OperatorProcess:
    """Forecast a series of evenly spaced values by exponential smoothing (Holt-Winters).

    A result per value, once there are two seasons of them (two values without a season): ``value``, what
    was ``expected`` of it and the ``error`` (``None`` for the first result), ``level`` and ``trend`` per
    step, and ``ahead``, what is expected of the next steps. A window's results are such a series, so this
    usually goes on where a window ends. A value that is ``None`` is left out; one that is not finite, not
    positive for a multiplicative season, or the second of its step, is a dead letter.

    State: ``season`` + 3 numbers per key (up to three seasons of values before there is a forecast), for
    ``idle`` after the key's last value.

    Args:
        event_type: Type of the events.
        of: The value: a field or a function of the event.
        idle: How long after its last value a key is forgotten and begins anew; ``None``: never, and the
            state grows with every key there ever was.
        season: Steps in a season, e.g. 24 for hours of a day; 0: none.
        every: Length of a step (event time). Steps without a value are then passed over (at
            most ten seasons of them, one before the first forecast), and the season is bound to the
            clock. Without it, every value is a step.
        alpha: How much a value changes the level, in (0, 1].
        beta: How much a change of level changes the trend, in (0, 1]; ``None``: there is no trend.
        gamma: How much a value changes its place in the season, in (0, 1].
        damping: By what the trend is multiplied at every step, in (0, 1].
        seasonal: ``"additive"``: so much more; ``"multiplicative"``: so many times more.
        ahead: How many steps are forecast.
        keep: Fields of the event that its result carries.
        in_order: The input has each key's events in order of event time: they are handled as they come.
            Otherwise they wait for the watermark.
        key: Name of the key's column, or of each of its parts.
        name: Name of the process in contracts and identities.

    Raises:
        OperatorDefinitionError: Something contradicts itself.
        WindowDefinitionError: The event has no such field, or a time is none.

    Example:
        >>> from millrace.testing import TestDriver
        >>> class Load(msgspec.Struct):
        ...     kw: float
        >>> driver = TestDriver(holt_winters(Load, "kw", season=2, ahead=2, idle=86_400_000))
        >>> for at, kw in enumerate([10.0, 20.0, 12.0, 22.0, 14.0]):
        ...     driver.send("mill", Load(kw), at=at)
        >>> driver.drain()
        >>> [round(v, 6) for v in driver.values()[-1].ahead]
        [24.0, 16.0]
    """
    _check_season(season, seasonal)
    how = Smoothness(
        fraction(alpha, "alpha"),
        None if beta is None else fraction(beta, "beta"),
        fraction(gamma, "gamma"),
        fraction(damping, "damping"),
        season,
        seasonal,
    )
    return ForecastDefinition(
        event_type=event_type,
        key=names_of(key),
        name=name_for(event_type, "holt_winters", name),
        of=of,
        smoothness=how,
        every_ms=None if every is None else duration_ms(every, "every"),
        ahead=whole(ahead, "ahead"),
        idle_ms=life_ms(idle),
        keep=names_of(keep),
        in_order=in_order,
    ).build()


def fit_holt_winters(
    values: Sequence[float],
    *,
    season: int = 0,
    seasonal: Seasonal = "additive",
    trend: bool = True,
    damped: bool = False,
) -> dict[str, Any]:
    """Choose the arguments of :func:`holt_winters` that fit a past series best, offline.

    Args:
        values: The series, evenly spaced; with a season two of them at least, better ten.
        season: Steps in a season; 0: none.
        seasonal: How the season goes in.
        trend: Whether there is a trend.
        damped: Whether the trend is damped.

    Returns:
        ``alpha``, ``beta``, ``gamma``, ``damping``, ``season`` and ``seasonal``, to be handed on:
        ``holt_winters(Load, "kw", idle=..., **fit_holt_winters(past, season=24))``.

    Raises:
        OperatorDefinitionError: There are too few values, or they do not fit the season.
        UserError: statsmodels is not installed.
    """
    _check_season(season, seasonal)
    if season and seasonal == "multiplicative" and min(values, default=1.0) <= 0:
        raise OperatorDefinitionError("fit_holt_winters: a multiplicative season takes positive values")
    if len(values) < max(2 * season, 4):
        raise OperatorDefinitionError(
            f"fit_holt_winters needs {max(2 * season, 4)} values, not {len(values)}"
        )
    try:
        smoothing = importlib.import_module("statsmodels.tsa.holtwinters").ExponentialSmoothing
    except ModuleNotFoundError as error:
        raise UserError("fit_holt_winters needs statsmodels: pip install statsmodels") from error
    how = Smoothness(1.0, 1.0 if trend else None, 1.0, 1.0, season, seasonal)
    begun = how.begin(values[: how.first], 0)  # as holt_winters will begin: what fits hangs on it
    damped = damped and trend
    model = smoothing(
        list(values),
        trend="add" if trend else None,
        damped_trend=damped,
        seasonal={"additive": "add", "multiplicative": "mul"}[seasonal] if season else None,
        seasonal_periods=season or None,
        initialization_method="known",
        initial_level=begun.level,
        initial_trend=begun.trend if trend else None,
        initial_seasonal=begun.season or None,
    )
    found = model.fit().params
    return {
        "alpha": _inside(found["smoothing_level"]),
        "beta": _inside(found["smoothing_trend"]) if trend else None,
        "gamma": _inside(found["smoothing_seasonal"]) if season else 0.1,
        "damping": _inside(found["damping_trend"]) if damped else 1.0,
        "season": season,
        "seasonal": seasonal,
    }


def _check_season(season: int, seasonal: Seasonal) -> None:
    if seasonal not in ("additive", "multiplicative"):
        raise OperatorDefinitionError(f"seasonal is 'additive' or 'multiplicative', not {seasonal!r}")
    if whole(season, "season", 0) == 1:
        raise OperatorDefinitionError("holt_winters: a season has at least 2 steps; 0 for none")


def _inside(value: float) -> float:
    """Return a fitted number within what is allowed: a fit may end on the border."""
    return min(max(float(value), 1e-6), 1.0)

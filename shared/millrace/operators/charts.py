"""Multivariate control charts of keys, as a process."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from millrace.operators.base import (
    Names,
    OperatorDefinitionError,
    OperatorProcess,
    PerEventDefinition,
    PerEventProcess,
    life_ms,
    name_for,
    names_of,
    whole,
)
from millrace.operators.control import Chart
from millrace.operators.detectors import Detector
from millrace.process import Context
from millrace.state import ValueState
from millrace.windows.assigners import Duration

#: A field of the event, several of them, or a function of it.
From = str | tuple[str, ...] | Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class ChartsDefinition(PerEventDefinition):
    """See :func:`control_chart`.

    Attributes:
        values: What gives the values of the sensors.
        regime: What gives the regime.
        chart: What is normal.
        smooth: The statistics are medians of so many rows.
        detector: What finds changes of the share of the limit.
    """

    values: From
    regime: From | None
    chart: Chart
    smooth: int
    detector: Detector

    def describe(self) -> dict[str, Any]:
        """Return what the state hangs on: not what is normal, which may be learned anew."""
        return {"kind": "control_chart", "detector": self.detector.label}

    def build(self) -> OperatorProcess:
        """Return the process.

        Raises:
            OperatorDefinitionError: Columns have one name.
        """
        return self.per_event(
            Charts,
            "ControlChart",
            [("regime", str), ("t2", float), ("q", float), ("t2_limit", float), ("q_limit", float)],
            [("score", float), ("statistic", Literal["t2", "q"]), ("sensor", str)],
            [("contributions", dict[str, float]), ("change", Literal["", "up", "down"])],
            recent=list[tuple[float, float]],
            watched=self.detector.state,
        )


class Charts(PerEventProcess):
    """Keeps the last statistics of a key, and the state of its detector."""

    recent: ValueState[Any]
    watched: ValueState[Any]

    def __init__(self, definition: ChartsDefinition) -> None:
        super().__init__(definition)
        self._values, self._regime = _getter(definition.values), _getter(definition.regime)
        self._chart, self._smooth, self._detector = definition.chart, definition.smooth, definition.detector

    def process(self, event: Any, ctx: Context) -> None:
        """Judge a row of values, and tell what it is."""
        values = self._values(event)
        if values is None or any(value is None for value in values):
            return
        regime = self._regime(event) or ""
        found = self._chart.read(regime, values)
        if found is None:
            return
        recent = [*(self.recent.value or ()), (found.t2_share, found.q_share)][-self._smooth :]
        self.recent.value = recent
        t2, q = (median(pair[i] for pair in recent) for i in (0, 1))
        share = max(t2, q)
        state = self.watched.value
        if state is None:
            state = self._detector.new()
        change = self._detector.add(state, share / (1 + share))
        self.watched.value = state  # written anew: its time to live begins anew
        known = self._chart.regimes[regime]
        sensors = self._chart.sensors
        most = max(range(len(sensors)), key=found.contributions.__getitem__)
        self.emit_row(
            event,
            ctx,
            regime,
            t2 * known.t2_limit,
            q * known.q_limit if q else found.q,
            known.t2_limit,
            known.q_limit,
            share / (1 + share),
            found.statistic,
            sensors[most],
            dict(zip(sensors, found.contributions, strict=True)),
            "" if change is None else change.direction,
        )


def _getter(of: From | None) -> Callable[[Any], Any]:
    if of is None:
        return lambda event: ""
    if isinstance(of, str):
        return operator.attrgetter(of)
    return operator.attrgetter(*of) if isinstance(of, tuple) else of


def control_chart(
    event_type: Any,
    values: From,
    chart: Chart,
    *,
    detector: Detector,
    idle: Duration | None,
    regime: From | None = None,
    smooth: int = 1,
    keep: Names = (),
    in_order: bool = False,
    key: Names = "key",
    name: str = "",
) -> OperatorProcess:
    """Judge what the sensors of a key say together, by T² and Q: a record for each row of values.

    A record has the event's time, the ``regime``, ``t2`` and ``q`` with their limits, the ``score`` (0 to 1;
    0.5 at the limit), which ``statistic`` is further, what each sensor has to do with it
    (``contributions``, which add up to 1; ``sensor`` is the first of them), and whether the score's mean
    has just changed (``change``: ``up`` or ``down``, else empty). Rows with a value that is missing, and of
    a regime that nobody has learned, are left out.

    State: two numbers for each of the ``smooth`` last rows, and the detector's, for ``idle`` after the
    key's last row.

    Args:
        event_type: Type of the events.
        values: The values of the sensors, in the chart's order: a field that has them, a field for each, or a
            function of the event.
        chart: What is normal: ``fit_chart(...)``.
        detector: What finds changes, e.g. ``cusum(...)``, of the score.
        idle: How long after its last row a key is forgotten and begins anew; ``None``: never.
        regime: The regime: a field or a function of the event; of a chart with one, which is called ``""``,
            not needed.
        smooth: The statistics are medians of so many rows.
        keep: Fields of the event that records carry.
        in_order: The input has each key's events in order of event time: they are handled as they come.
            Otherwise they wait for the watermark.
        key: Name of the key's column, or of each of its parts.
        name: Name of the process in contracts and identities.

    Raises:
        OperatorDefinitionError: Something contradicts itself.
        WindowDefinitionError: ``idle`` is no positive duration.
    """
    if not isinstance(chart, Chart) or not chart.sensors:
        raise OperatorDefinitionError(f"control_chart needs a chart: fit_chart(...), not {chart!r}")
    if not isinstance(detector, Detector):
        raise OperatorDefinitionError(f"control_chart needs a detector such as cusum(...), not {detector!r}")
    return ChartsDefinition(
        event_type=event_type,
        key=names_of(key),
        name=name_for(event_type, "control_chart", name),
        values=values,
        regime=regime,
        chart=chart,
        smooth=whole(smooth, "smooth"),
        detector=detector,
        idle_ms=life_ms(idle),
        keep=names_of(keep),
        in_order=in_order,
    ).build()

"""Anomaly scores of the values of keys, as a process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace.operators.anomaly import Novelty, Why
from millrace.operators.base import (
    Names,
    OperatorDefinitionError,
    OperatorProcess,
    SeriesDefinition,
    SeriesProcess,
    finite,
    life_ms,
    name_for,
    names_of,
)
from millrace.process import Context
from millrace.state import ValueState
from millrace.windows.assigners import Duration
from millrace.windows.fields import Of


@dataclass(frozen=True, kw_only=True)
class ScoresDefinition(SeriesDefinition):
    """See :func:`anomaly_scores`.

    Attributes:
        detector: What scores.
        least: What is below it is not told.
    """

    kind = "anomaly_scores"
    detector: Novelty
    least: float

    def describe(self) -> dict[str, Any]:
        """Return what the state hangs on: how many means it has; weights and thresholds may be tuned."""
        gains = {"levels": len(self.detector.levels), "changes": len(self.detector.changes)}
        return {"kind": self.kind, "detector": self.detector.label, **gains}

    def build(self) -> OperatorProcess:
        """Return the process.

        Raises:
            OperatorDefinitionError: The value is no number, or columns have one name.
            WindowDefinitionError: The event has no such field.
        """
        return self.per_event(
            Scores,
            "AnomalyScore",
            [("value", float), ("score", float), ("expected", float), ("residual", float)],
            [("low", float), ("high", float), ("why", Why)],
            watched=self.detector.state,
        )


class Scores(SeriesProcess):
    """Keeps what is known of one series per key."""

    watched: ValueState[Any]

    def __init__(self, definition: ScoresDefinition) -> None:
        super().__init__(definition)
        self._detector, self._least = definition.detector, definition.least

    def add(self, value: float, event: Any, ctx: Context) -> None:
        """Add the event's value, and tell its score."""
        state = self.watched.value
        if state is None:
            state = self._detector.new()
        found = self._detector.add(state, value, ctx.event_time)
        self.watched.value = state  # written anew: its time to live begins anew
        if found is not None and found.score >= self._least:
            self.emit_row(event, ctx, value, *found)


def anomaly_scores(
    event_type: Any,
    of: Of,
    detector: Novelty,
    *,
    idle: Duration | None,
    least: float = 0.0,
    keep: Names = (),
    in_order: bool = False,
    key: Names = "key",
    name: str = "",
) -> OperatorProcess:
    """Score how unusual each value of a key is after those before it: a record for each value.

    A record has the event's time, its ``value``, the ``score`` (0 to 1; 0.5: as far beyond what was seen as
    is tolerated), what was ``expected``, the ``residual``, between which values (``low``, ``high``) it would
    have been nothing new, and ``why`` it is. There is none for the values that a detector first learns from.
    A value that is ``None`` is left out; one that is not finite, or too large, is a dead letter.

    State: less than half a KiB per key, for ``idle`` after the key's last value.

    Args:
        event_type: Type of the events.
        of: The value: a field or a function of the event.
        detector: ``novelty(...)``.
        idle: How long after its last value a key is forgotten and begins anew; ``None``: never, and the
            state grows with every key there ever was.
        least: Scores below it are not told.
        keep: Fields of the event that records carry.
        in_order: The input has each key's events in order of event time: they are handled as they come.
            Otherwise they wait for the watermark.
        key: Name of the key's column, or of each of its parts.
        name: Name of the process in contracts and identities.

    Raises:
        OperatorDefinitionError: Something contradicts itself.
        WindowDefinitionError: The event has no such field, or ``idle`` is no positive duration.

    Example:
        >>> import msgspec
        >>> from millrace.operators import novelty
        >>> from millrace.testing import TestDriver
        >>> class Reading(msgspec.Struct):
        ...     bar: float
        >>> scores = anomaly_scores(Reading, "bar", novelty(), idle=86_400_000, least=0.5)
        >>> driver = TestDriver(scores)
        >>> for minute in range(300):
        ...     bar = 3.0 if minute == 250 else 1 + minute % 5 / 10
        ...     driver.send("pump", Reading(bar), at=minute * 60_000)
        >>> driver.drain()
        >>> [(r.event_time_ms // 60_000, r.why, r.score > 0.9) for r in driver.values()][0]
        (250, 'above the recent level', True)
    """
    if not isinstance(detector, Novelty):
        raise OperatorDefinitionError(f"anomaly_scores needs a detector: novelty(...), not {detector!r}")
    if not 0 <= finite(least, "least") <= 1:
        raise OperatorDefinitionError(f"least is in [0, 1], not {least!r}")
    return ScoresDefinition(
        event_type=event_type,
        key=names_of(key),
        name=name_for(event_type, "anomaly_scores", name),
        of=of,
        detector=detector,
        least=float(least),
        idle_ms=life_ms(idle),
        keep=names_of(keep),
        in_order=in_order,
    ).build()

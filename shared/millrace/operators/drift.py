"""Drift: tell when the values of a key are not what they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace.operators.base import (
    Names,
    OperatorDefinitionError,
    OperatorProcess,
    SeriesDefinition,
    SeriesProcess,
    life_ms,
    name_for,
    names_of,
)
from millrace.operators.detectors import Detector, Direction
from millrace.process import Context
from millrace.state import ValueState
from millrace.windows.assigners import Duration
from millrace.windows.fields import Of


@dataclass(frozen=True, kw_only=True)
class DriftDefinition(SeriesDefinition):
    """See :func:`drift`.

    Attributes:
        detector: What finds changes.
    """

    kind = "drift"
    detector: Detector

    def describe(self) -> dict[str, Any]:
        """Return what the state hangs on: not the detector's thresholds, which may be tuned."""
        return {"kind": self.kind, "detector": self.detector.label}

    def build(self) -> OperatorProcess:
        """Return the process.

        Raises:
            OperatorDefinitionError: The value is no number, or columns have one name.
            WindowDefinitionError: The event has no such field.
        """
        return self.per_event(
            Drift,
            "DriftDetected",
            [("detector", str), ("direction", Direction), ("value", float), ("mean", float)],
            [("statistic", float), ("threshold", float), ("n", int)],
            watched=self.detector.state,
        )


class Drift(SeriesProcess):
    """Keeps the state of one detector per key."""

    watched: ValueState[Any]

    def __init__(self, definition: DriftDefinition) -> None:
        super().__init__(definition)
        self._detector = definition.detector

    def add(self, value: float, event: Any, ctx: Context) -> None:
        """Add the event's value, and tell a change that it shows."""
        state = self.watched.value
        if state is None:
            state = self._detector.new()
        found = self._detector.add(state, value)
        self.watched.value = state  # written anew: its time to live begins anew
        if found is not None:
            stated = (found.direction, value, found.mean, found.statistic, found.threshold, found.n)
            self.emit_row(event, ctx, self._detector.label, *stated)


def drift(
    event_type: Any,
    of: Of,
    detector: Detector,
    *,
    idle: Duration | None,
    keep: Names = (),
    in_order: bool = False,
    key: Names = "key",
    name: str = "",
) -> OperatorProcess:
    """Tell when the values of a key change their mean: a record for each change.

    A record has the event that showed it (``event_time_ms``, ``value``, fields of ``keep``), the
    ``direction`` (``up`` or ``down``), the ``mean`` before, the test's ``statistic`` and ``threshold``,
    and ``n``, how many values the detector had. Then the detector begins anew (ADWIN keeps the newer part
    of its window). A value that is ``None`` is left out; one that is not finite is a dead letter.

    State: a few numbers per key (ADWIN: two per bucket), for ``idle`` after the key's last value.

    Args:
        event_type: Type of the events.
        of: The value: a field or a function of the event.
        detector: ``page_hinkley(...)``, ``cusum(...)`` or ``adwin(...)``.
        idle: How long after its last value a key is forgotten and begins anew; ``None``: never, and the
            state grows with every key there ever was.
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
        >>> from millrace.operators import page_hinkley
        >>> from millrace.testing import TestDriver
        >>> class Reading(msgspec.Struct):
        ...     bar: float
        >>> driver = TestDriver(drift(Reading, "bar", page_hinkley(threshold=10.0), idle=86_400_000))
        >>> for second in range(100):
        ...     driver.send("pump", Reading(1.0 if second < 60 else 3.0), at=second * 1_000)
        >>> driver.drain()
        >>> [(r.event_time_ms, r.direction, round(r.mean, 2)) for r in driver.values()]
        [(65000, 'up', 1.15)]
    """
    if not isinstance(detector, Detector):
        raise OperatorDefinitionError(f"drift needs a detector such as page_hinkley(...), not {detector!r}")
    return DriftDefinition(
        event_type=event_type,
        key=names_of(key),
        name=name_for(event_type, f"drift_{detector.label}", name),
        of=of,
        detector=detector,
        idle_ms=life_ms(idle),
        keep=names_of(keep),
        in_order=in_order,
    ).build()

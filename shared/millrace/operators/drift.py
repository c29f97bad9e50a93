"""Drift: tell when the values of a key are not what they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace.operators.base import (
    Names,
    OperatorDefinition,
    OperatorDefinitionError,
    OperatorProcess,
    keeper,
    kept_fields,
    key_fields,
    life_ms,
    make_process,
    measured,
    name_for,
    names_of,
    number_of,
    order_for,
    record_type,
)
from millrace.operators.detectors import Detector, Direction
from millrace.process import Context
from millrace.state import ValueState, value_state
from millrace.windows.assigners import Duration
from millrace.windows.fields import Of


@dataclass(frozen=True, kw_only=True)
class DriftDefinition(OperatorDefinition):
    """See :func:`drift`.

    Attributes:
        of: The value: a field or a function of the event.
        detector: What finds changes.
        idle_ms: How long a key without events is kept, ms.
        keep: Fields of the event that shows a change.
        in_order: Whether the input has each key's events in order of event time.
    """

    of: Of
    detector: Detector
    idle_ms: int | None
    keep: tuple[str, ...]
    in_order: bool

    def describe(self) -> dict[str, Any]:
        """Return what the state hangs on: not the detector's thresholds, which may be tuned."""
        return {"kind": "drift", "detector": self.detector.label}

    def build(self) -> OperatorProcess:
        """Return the process.

        Raises:
            OperatorDefinitionError: The value is no number, or columns have one name.
            WindowDefinitionError: The event has no such field.
        """
        number_of(self.of, self.event_type, "drift")
        output = record_type(
            self.event_type,
            "DriftDetected",
            key_fields(self.key),
            [("event_time_ms", int)],
            kept_fields(self.event_type, self.keep),
            [("detector", str), ("direction", Direction), ("value", float), ("mean", float)],
            [("statistic", float), ("threshold", float), ("n", int)],
        )
        watched = value_state(self.detector.state, ttl=self.idle_ms)
        return make_process(Drift, self, output, order_for(self.in_order), watched=watched)


class Drift(OperatorProcess):
    """Keeps the state of one detector per key."""

    watched: ValueState[Any]

    def __init__(self, definition: DriftDefinition) -> None:
        super().__init__(definition)
        self._get = number_of(definition.of, definition.event_type, "drift")
        self._keep = keeper(definition.keep)
        self._detector = definition.detector

    def process(self, event: Any, ctx: Context) -> None:
        """Add the event's value, and tell a change that it shows."""
        value = measured(self._get(event), "drift")
        if value is None:
            return
        state = self.watched.value
        if state is None:
            state = self._detector.new()
        found = self._detector.add(state, value)
        self.watched.value = state  # written anew: its time to live begins anew
        if found is not None:
            ctx.emit(
                self._record(
                    *self.key_parts(ctx),
                    ctx.event_time,
                    *self._keep(event),
                    self._detector.label,
                    found.direction,
                    value,
                    found.mean,
                    found.statistic,
                    found.threshold,
                    found.n,
                )
            )


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

"""Exponentially weighted mean and variance: what is older counts for less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
)
from millrace.parts.moving import Weighted
from millrace.process import Context
from millrace.state import ValueState
from millrace.windows.assigners import Duration, duration_ms
from millrace.windows.fields import Of


@dataclass(frozen=True, kw_only=True)
class SmoothingDefinition(SeriesDefinition):
    """See :func:`ewm`.

    Attributes:
        half_life_ms: After how long a value counts for half, ms; ``None`` where ``alpha`` is given.
        alpha: How much a new value counts; ``None`` where ``half_life_ms`` is given.
        adjust: Whether weights are those of a weighted mean from the first value on.
    """

    kind = "ewm"
    half_life_ms: int | None
    alpha: float | None
    adjust: bool

    def describe(self) -> dict[str, Any]:
        """Return what the state hangs on: not how fast it forgets, which may be tuned."""
        return {"kind": self.kind, "adjust": self.adjust}

    def build(self) -> OperatorProcess:
        """Return the process.

        Raises:
            OperatorDefinitionError: The value is no number, or columns have one name.
            WindowDefinitionError: The event has no such field.
        """
        columns = [("value", float), ("mean", float), ("variance", float | None), ("score", float | None)]
        return self.per_event(Smoothing, "Ewm", columns, smoothed=Weighted)


class Smoothing(SeriesProcess):
    """Keeps six numbers per key."""

    smoothed: ValueState[Weighted | None]

    def __init__(self, definition: SmoothingDefinition) -> None:
        super().__init__(definition)
        self._half_life = definition.half_life_ms
        alpha = definition.alpha or 0.0
        self._decay = 1.0 - alpha
        self._weight = 1.0 if definition.adjust else alpha

    def add(self, value: float, event: Any, ctx: Context) -> None:
        """Add the event's value, and emit what there is."""
        kept, at = self.smoothed.value, ctx.event_time
        if kept is None:
            kept = Weighted(at)
        decay = self._decay if self._half_life is None else 0.5 ** ((at - kept.at) / self._half_life)
        score = kept.score(value)
        kept.add(value, at, decay, self._weight)
        self.smoothed.value = kept  # written anew: its time to live begins anew
        self.emit_row(event, ctx, value, kept.mean, kept.variance(), score)


def ewm(
    event_type: Any,
    of: Of,
    *,
    idle: Duration | None,
    half_life: Duration | None = None,
    alpha: float | None = None,
    adjust: bool = True,
    keep: Names = (),
    in_order: bool = False,
    key: Names = "key",
    name: str = "",
) -> OperatorProcess:
    """Compute the exponentially weighted mean and variance of a value, a result per event.

    A result has ``value``, ``mean`` and ``variance`` (unbiased; ``None`` for the first value), the value
    included, and ``score``: by how many standard deviations the value is above the mean of those before
    it (``None`` where there is no deviation yet). The numbers are those of pandas' ``ewm``. A value that
    is ``None`` is left out; one that is not finite, or too large to be squared, is a dead letter.

    State: six numbers per key, for ``idle`` after the key's last value.

    Args:
        event_type: Type of the events.
        of: The value: a field or a function of the event.
        idle: How long after its last value a key is forgotten and begins anew; ``None``: never, and the
            state grows with every key there ever was.
        half_life: After how long (event time) a value counts for half: for events at uneven times.
        alpha: How much a new value counts, in (0, 1]: for events at even times. Either this or
            ``half_life``.
        adjust: With ``alpha``: weigh the values as a weighted mean from the first on. ``False``: the plain
            recursion, where the first value keeps a large weight for some time.
        keep: Fields of the event that its result carries.
        in_order: The input has each key's events in order of event time: they are handled as they come.
            Otherwise they wait for the watermark.
        key: Name of the key's column, or of each of its parts.
        name: Name of the process in contracts and identities.

    Raises:
        OperatorDefinitionError: Something is missing or contradicts itself.
        WindowDefinitionError: The event has no such field, or a time is none.

    Example:
        >>> import msgspec
        >>> from millrace.testing import TestDriver
        >>> class Reading(msgspec.Struct):
        ...     celsius: float
        >>> driver = TestDriver(ewm(Reading, "celsius", half_life=60_000, idle=86_400_000))
        >>> for minute, celsius in enumerate([20.0, 20.0, 23.5]):
        ...     driver.send("sensor", Reading(celsius), at=minute * 60_000)
        >>> driver.drain()
        >>> [r.mean for r in driver.values()]
        [20.0, 20.0, 22.0]
    """
    if (half_life is None) == (alpha is None):
        raise OperatorDefinitionError("ewm needs either half_life= (event time) or alpha= (per event)")
    if half_life is not None and not adjust:
        raise OperatorDefinitionError(
            "ewm: adjust=False is for alpha=: with a half-life weights hang on time"
        )
    return SmoothingDefinition(
        event_type=event_type,
        key=names_of(key),
        name=name_for(event_type, "ewm", name),
        of=of,
        half_life_ms=None if half_life is None else duration_ms(half_life, "half_life"),
        alpha=None if alpha is None else fraction(alpha, "alpha"),
        adjust=adjust,
        idle_ms=life_ms(idle),
        keep=names_of(keep),
        in_order=in_order,
    ).build()

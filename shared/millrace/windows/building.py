"""Windowed aggregations in one expression: ``window(...).aggregate(...)``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from millrace.parts.queue import AggregateQueue
from millrace.windows.aggregates import Aggregate
from millrace.windows.assigners import Assigner, Duration, whole_ms
from millrace.windows.definition import Emit, OrderMode, WindowDefinition
from millrace.windows.process import WindowProcess, build
from millrace.windows.triggers import AT_WATERMARK, Trigger


@dataclass(frozen=True)
class Window:
    """A window that waits for its aggregates; made by :func:`window`."""

    definition: WindowDefinition

    def aggregate(self, **aggregates: Aggregate) -> WindowProcess:
        """Return the process that computes ``aggregates``, a result column of each name.

        Raises:
            WindowDefinitionError: Something contradicts itself, or does not fit the type of events.
        """
        return build(replace(self.definition, aggregates=tuple(aggregates.items())))


def queue_of(event_type: Any, *aggregates: Aggregate) -> AggregateQueue:
    """Return a queue of events with aggregates over it, for a process of one's own.

    It is what sliding, look-back and count windows stand on; see :mod:`millrace.parts.queue`.

    Args:
        event_type: Type of the events.
        aggregates: What is told of the events in the queue, in this order.

    Raises:
        WindowDefinitionError: An aggregate does not fit the type of events.
    """
    return AggregateQueue([aggregate.bind_sliding(event_type) for aggregate in aggregates])


def window(
    event_type: Any,
    assigner: Assigner,
    *,
    allowed_lateness: Duration = 0,
    trigger: Trigger | None = None,
    emit: Emit = "final",
    order: OrderMode | None = None,
    key: str | tuple[str, ...] = "key",
    name: str = "",
) -> Window:
    """Begin a windowed aggregation; ``.aggregate(...)`` makes a process of it, which any host runs.

    Args:
        event_type: Type of the events.
        assigner: The windows: ``tumbling(...)``, ``hopping``, ``session``, ``sliding``, ``lookback``,
            ``count_tumbling``, ``count_hopping``, ``count_sliding`` or ``global_window``.
        allowed_lateness: How long after a window's end (by the watermark) late events still refine its
            result; later ones go to the side output ``late``.
        trigger: When there are results: ``watermark()``, with ``.early(...)`` and ``.late(...)``.
        emit: ``"final"``: when the trigger says so; ``"updates"``: the whole row at every event, to be
            kept by key and window; ``"changelog"``: rows that add and take back, so that sums over
            them stay right, with the column ``change``.
        order: ``"arrival"``: an event is handled when it comes; ``"event_time"``: when the watermark has
            passed it. Unless given: arrival if all aggregates give the same in any order.
        key: Name of the key's column in results, or a name for each of the key's parts.
        name: Name of the process in contracts and identities; made of event and window unless given.

    Example:
        >>> import msgspec
        >>> from millrace.testing import TestDriver
        >>> from millrace.windows import count, sum_of, tumbling, window
        >>> class Click(msgspec.Struct):
        ...     ms: int
        >>> per_minute = window(Click, tumbling(60_000)).aggregate(n=count(), total=sum_of("ms"))
        >>> driver = TestDriver(per_minute)
        >>> driver.send_batch([("a", 1_000, Click(5)), ("a", 59_999, Click(7)), ("a", 60_000, Click(1))])
        >>> driver.advance_watermark(59_999)
        >>> driver.values()
        [ClickWindow(key='a', window_start_ms=0, window_end_ms=60000, n=2, total=12)]
    """
    return Window(
        WindowDefinition(
            event_type,
            assigner,
            (),
            AT_WATERMARK if trigger is None else trigger,
            whole_ms(allowed_lateness, "allowed_lateness"),
            emit,
            order,
            (key,) if isinstance(key, str) else tuple(key),
            name
            or re.sub(r"\W+", "_", f"{getattr(event_type, '__name__', 'event')}_{assigner.label}").lower(),
        )
    )

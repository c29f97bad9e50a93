"""Joins as plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from millrace.joins.records import How, OnMerge
from millrace.windows.assigners import Assigner

Emit = Literal["corrections", "final"]


@dataclass(frozen=True)
class JoinDefinition:
    """What all joins have: plain data, picklable if its functions are.

    Attributes:
        left: Type of the left events.
        right: Type of the right events.
        how: Which events without a partner have a row too.
        on_merge: How two events become a record.
        record: Type of the records, where a function makes them.
        name: Name of the process.
    """

    left: Any
    right: Any
    how: How
    on_merge: OnMerge
    record: Any
    name: str


@dataclass(frozen=True)
class AsOfDefinition(JoinDefinition):
    """See :func:`asof_join`.

    Attributes:
        keep_ms: How long after its time a version is valid, ms; ``None``: until the next one.
        grace_ms: How far behind the watermark events are still taken, ms.
        emit: When there are rows.
        deletes: Whether a right event says that nothing is valid from its time on.
    """

    keep_ms: int | None
    grace_ms: int
    emit: Emit
    deletes: Callable[[Any], bool] | None


@dataclass(frozen=True)
class Interval:
    """How far a right event may be from the left one, both ends included; see :func:`interval`.

    Attributes:
        backward_ms: Before it, ms.
        forward_ms: After it, ms.
    """

    backward_ms: int
    forward_ms: int


@dataclass(frozen=True)
class IntervalDefinition(JoinDefinition):
    """See :func:`interval_join`.

    Attributes:
        within: Who meets whom.
        grace_ms: How far behind the watermark events are still taken, ms.
    """

    within: Interval
    grace_ms: int = 0


@dataclass(frozen=True)
class WindowJoinDefinition(JoinDefinition):
    """See :func:`window_join`.

    Attributes:
        assigner: The windows.
        grace_ms: How long after its end (by the watermark) a window takes events, ms.
    """

    assigner: Assigner
    grace_ms: int = 0

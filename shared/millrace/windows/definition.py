"""A windowed aggregation as plain data, and how one is written."""

from __future__ import annotations

import keyword
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from millrace.windows.aggregates import Aggregate
from millrace.windows.assigners import Assigner
from millrace.windows.fields import WindowDefinitionError, fields_of
from millrace.windows.triggers import AT_WATERMARK, Trigger

Emit = Literal["final", "updates", "changelog"]
OrderMode = Literal["arrival", "event_time"]
Pane = Literal["early", "on_time", "late"]
Change = Literal["insert", "update_before", "update_after", "delete"]

#: Columns of results besides the key and the aggregates.
COLUMNS = ("window_start_ms", "window_end_ms", "event_time_ms", "revision", "pane", "change")


@dataclass(frozen=True)
class WindowDefinition:
    """What a window process does, apart from how: plain data, picklable if its functions are.

    Attributes:
        event_type: Type of the events.
        assigner: Which windows an event is in.
        aggregates: Name → aggregate of each result column.
        trigger: When a window has results.
        allowed_lateness_ms: How long after its end (by the watermark) a window takes late events, ms.
        emit: What of the results is emitted.
        order: The order in which events are handled, ``None``: as the aggregates need it.
        key: Names of the key's columns in results.
        name: Name of the process.
    """

    event_type: Any
    assigner: Assigner
    aggregates: tuple[tuple[str, Aggregate], ...]
    trigger: Trigger = AT_WATERMARK
    allowed_lateness_ms: int = 0
    emit: Emit = "final"
    order: OrderMode | None = None
    key: tuple[str, ...] = ("key",)
    name: str = ""

    @property
    def may_repeat(self) -> bool:
        """Whether a window may have more than one result."""
        return self.emit != "final" or self.trigger.is_early or self.allowed_lateness_ms > 0

    @property
    def in_order(self) -> bool:
        """Whether what is asked for hangs on events coming in order of event time."""
        return self.assigner.in_order

    def check(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            WindowDefinitionError: It says what, and what to do.
        """
        self._check_names()
        self._check_modes()
        kind = self.assigner
        unknown = [name for name in kind.kept_fields if name not in fields_of(self.event_type)]
        if unknown:
            raise WindowDefinitionError(f"lookback(keep=...): the event has no field '{unknown[0]}'")
        if kind.in_order and self.order == "arrival":
            raise WindowDefinitionError(
                f"{kind.label} windows take events in order of event time: leave out order="
            )
        if self.allowed_lateness_ms and kind.refuses_lateness:
            raise WindowDefinitionError(kind.refuses_lateness)
        may_repeat = self.allowed_lateness_ms or self.emit != "final" or self.trigger != AT_WATERMARK
        if kind.has_one_result and may_repeat:
            raise WindowDefinitionError(
                f"{kind.label} windows have one final result: leave out allowed_lateness, trigger and emit"
            )

    def _check_names(self) -> None:
        names = [name for name, _ in self.aggregates]
        if not names:
            raise WindowDefinitionError("aggregate() needs at least one, e.g. .aggregate(n=count())")
        for name, aggregate in self.aggregates:
            if not isinstance(aggregate, Aggregate):
                raise WindowDefinitionError(f"{name}= is an aggregate such as count(), not {aggregate!r}")
        kept = self.assigner.kept_fields
        taken = [*self.key, *COLUMNS, *kept]
        for name in (*names, *self.key, *kept):
            if not name.isidentifier() or keyword.iskeyword(name):
                raise WindowDefinitionError(f"'{name}' cannot be the name of a column")
        for name in names:
            if name in taken:
                raise WindowDefinitionError(f"the name '{name}' is taken by another column of the result")
        if len(set(self.key + kept)) < len(self.key + kept) or set(self.key + kept) & set(COLUMNS):
            raise WindowDefinitionError(f"columns of one name: {', '.join(self.key + kept)}")

    def _check_modes(self) -> None:
        if self.emit not in ("final", "updates", "changelog"):
            raise WindowDefinitionError(f"emit is 'final', 'updates' or 'changelog', not {self.emit!r}")
        if self.order not in (None, "arrival", "event_time"):
            raise WindowDefinitionError(f"order is 'arrival' or 'event_time', not {self.order!r}")
        if self.allowed_lateness_ms < 0:
            raise WindowDefinitionError("allowed_lateness must not be negative")
        if self.emit == "updates" and self.trigger.is_early:
            raise WindowDefinitionError(
                "emit='updates' has a result at every event: an early trigger needs another emit"
            )
        if self.emit == "changelog" and self.trigger.discard:
            raise WindowDefinitionError(
                "a changelog corrects what a window said before, and discard=True begins anew: choose one"
            )

    def record_type(self, results: list[tuple[str, Any]]) -> type[msgspec.Struct]:
        """Return the type of result records.

        Args:
            results: Name and type of each aggregate's result.
        """
        fields: list[tuple[str, Any]] = [(name, str) for name in self.key]
        if self.assigner.is_per_event:
            fields.append(("event_time_ms", int))
        else:
            fields += [("window_start_ms", int), ("window_end_ms", int)]
        there = fields_of(self.event_type) if self.assigner.kept_fields else {}
        fields += [(name, there[name]) for name in self.assigner.kept_fields]
        fields += results
        if self.may_repeat:
            fields += [("revision", int), ("pane", Pane)]
        if self.emit == "changelog":
            fields.append(("change", Change))
        name = getattr(self.event_type, "__name__", "Event")
        return msgspec.defstruct(f"{name}Window", fields, frozen=True)

"""Records of joins: their type, made from a left and a right event."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from millrace.errors import UserError
from millrace.windows.fields import fields_of, or_none, without_none

#: Which events without a partner have a row too.
How = Literal["inner", "left", "right", "outer"]
#: Which side's field is taken where both have one of a name, or a function that makes the record.
OnMerge = Literal["keep-left", "keep-right", "raise"] | Callable[..., Any]


class JoinDefinitionError(UserError):
    """A join is not complete, contradicts itself, or does not fit the types of its events."""


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """What a join knows of a pair besides the two events: what a merge function may get.

    Attributes:
        left_ms: Event time of the left event, ms; ``None`` where there is none.
        right_ms: Event time of the right event, ms; ``None`` where there is none.
        left_id: As-of joins with corrections: identifies the left event.
        revision: As-of joins with corrections: 0, and one more with every correction.
        window_start_ms: Window joins: start of the window, ms.
        window_end_ms: Window joins: end of the window, ms.
    """

    left_ms: int | None = None
    right_ms: int | None = None
    left_id: str = ""
    revision: int = 0
    window_start_ms: int | None = None
    window_end_ms: int | None = None


Column = tuple[str, Any]


class Merge:
    """Makes the records of a join.

    Args:
        left: Type of the left events.
        right: Type of the right events.
        how: Which of them may be missing in a record.
        on_merge: See :data:`OnMerge`.
        record: What a function makes.
        columns: Names and types of what the join adds, in the order of its values.

    Attributes:
        type: The type of the records.

    Example:
        >>> class Reading(msgspec.Struct):
        ...     machine: str
        ...     value: float
        >>> class Status(msgspec.Struct):
        ...     machine: str
        ...     status: str
        >>> merge = Merge(Reading, Status, "left", "keep-left", None, [("left_ms", int)])
        >>> merge(Reading("m1", 0.5), Status("m1", "idle"), 7)
        ReadingStatus(machine='m1', value=0.5, status='idle', left_ms=7)
        >>> merge(Reading("m1", 0.5), None, 7)
        ReadingStatus(machine='m1', value=0.5, status=None, left_ms=7)
    """

    def __init__(
        self, left: Any, right: Any, how: How, on_merge: OnMerge, record: Any, columns: Sequence[Column]
    ) -> None:
        self._names = tuple(name for name, _ in columns)
        if callable(on_merge):
            if record is None:
                raise JoinDefinitionError(
                    "on_merge is a function: say with record=... what type of records it makes"
                )
            self.type = record
            self._function = on_merge
            self._wants_match = _parameters(on_merge) > 2
            self.make = self._by_function
            return
        if on_merge not in ("keep-left", "keep-right", "raise"):
            raise JoinDefinitionError(
                f"on_merge is 'keep-left', 'keep-right', 'raise' or a function, not {on_merge!r}"
            )
        if record is not None:
            raise JoinDefinitionError("record= goes with a function as on_merge, which makes it")
        fields = _Fields(left, right, how, on_merge)
        taken = [name for name, _ in fields.all if name in self._names]
        if taken:
            raise JoinDefinitionError(
                f"the name '{taken[0]}' is taken by a column of the join: rename the field, or give "
                "on_merge a function and record="
            )
        name = getattr(left, "__name__", "Left") + getattr(right, "__name__", "Right")
        self.type = msgspec.defstruct(name, [*fields.all, *columns], frozen=True)
        self._of_left, self._of_right = _getter(fields.from_left), _getter(fields.from_right)
        self._only_left = fields.instead("left")
        self._only_right = fields.instead("right")
        self.make = self._by_fields

    #: Returns a record of a left and a right event (one may be ``None``) and the join's columns.
    make: Callable[..., Any]

    def __call__(self, left: Any, right: Any, *columns: Any) -> Any:
        """Return a record; see :attr:`make`."""
        return self.make(left, right, *columns)

    def _by_fields(self, left: Any, right: Any, *columns: Any) -> Any:
        if right is None:
            values = tuple([None if n is None else getattr(left, n) for n in self._only_left])
        elif left is None:
            values = tuple([None if n is None else getattr(right, n) for n in self._only_right])
        else:
            values = self._of_left(left) + self._of_right(right)
        return self.type(*values, *columns)

    def _by_function(self, left: Any, right: Any, *columns: Any) -> Any:
        if self._wants_match:
            about = Match(**dict(zip(self._names, columns, strict=True)))
            return self._function(left, right, about)
        return self._function(left, right)


class _Fields:
    """Which fields a record has, from which side each is, and of which type."""

    def __init__(self, left: Any, right: Any, how: How, on_merge: OnMerge) -> None:
        lefts, rights = fields_of(left), fields_of(right)
        for tp, fields in ((left, lefts), (right, rights)):
            if not fields:
                raise JoinDefinitionError(
                    f"{getattr(tp, '__name__', tp)} has no fields to make a record of: give on_merge a "
                    "function and record="
                )
        both = [name for name in lefts if name in rights]
        if both and on_merge == "raise":
            raise JoinDefinitionError(
                f"Overlapping columns: {', '.join(both)}. Choose on_merge='keep-left' or 'keep-right', "
                "or give a function and record="
            )
        keep_right = on_merge == "keep-right"
        self.from_left = [n for n in lefts if not (keep_right and n in rights)]
        self.from_right = [n for n in rights if keep_right or n not in lefts]
        self._lefts, self._rights = lefts, rights
        self._no_left, self._no_right = how in ("right", "outer"), how in ("left", "outer")
        self.all = [
            *((n, self._type(n, lefts, rights, self._no_left)) for n in self.from_left),
            *((n, self._type(n, rights, lefts, self._no_right)) for n in self.from_right),
        ]

    @staticmethod
    def _type(name: str, own: dict[str, Any], other: dict[str, Any], missing: bool) -> Any:
        """Return the type of a field whose own side may be missing; the other side may have it then."""
        tp = own[name]
        if not missing:
            return tp
        if name not in other:
            return or_none(tp)
        plain, nullable = without_none(tp)
        instead, nullable_instead = without_none(other[name])
        if plain != instead:
            raise JoinDefinitionError(
                f"the field '{name}' is {_said(plain)} on one side and {_said(instead)} on the other, and "
                "either side may be missing: give on_merge a function and record="
            )
        return or_none(plain) if nullable or nullable_instead else tp

    def instead(self, side: Literal["left", "right"]) -> list[str | None]:
        """Return for each field its name on the one side that is there, ``None`` where it has none."""
        there = self._lefts if side == "left" else self._rights
        return [name if name in there else None for name, _ in self.all]


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that gives these attributes as a tuple."""
    if not names:
        return lambda _event: ()
    if len(names) == 1:
        get = operator.attrgetter(names[0])
        return lambda event: (get(event),)
    return operator.attrgetter(*names)


def _parameters(function: Callable[..., Any]) -> int:
    """Return how many arguments a function takes by position; 2 where it cannot be told."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _said(tp: Any) -> str:
    return getattr(tp, "__name__", str(tp))

"""State declarations: typed, named, with defaults, time to live and names that may change.

A declaration is a :class:`StateSpec`. It stands as a class attribute; a host puts a handle of the
same name on the process *instance*, so that ``self.balance`` is a plain attribute in the hot path.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from types import UnionType
from typing import Any, Literal

import msgspec

from millrace.errors import UserError
from millrace.time import ms

Kind = Literal["value", "map", "list", "reducing", "aggregating", "versioned", "broadcast"]
TimeDomain = Literal["event_time", "processing_time"]
Refresh = Literal["write", "read_write"]
#: A time to live: a duration, ``None`` for no limit, or ``"per_write"``: each write may name its own.
Ttl = timedelta | int | Literal["per_write"] | None

#: The names that a state had in earlier versions of the process.
Alias = str | tuple[str, ...] | None


class StateDeclarationError(UserError):
    """A process declares a state that cannot be kept."""


class StateTypeError(UserError):
    """A process put something into a state that its declaration does not allow."""


@dataclass(eq=False)
class StateSpec:
    """One declared state of a process.

    Attributes:
        kind: ``value``, ``map``, ``list``, ``reducing``, ``aggregating``, ``versioned`` or ``broadcast``.
        type: Type of the value, element or accumulator (of the map's values).
        key_type: Type of the map's keys, else ``None``.
        default: Makes the value that a read returns when nothing was written.
        ttl_ms: Time to live in milliseconds after a write, ``None`` for no limit.
        name: The attribute's name, set when the process class is made.
        per_write: Whether writes may name a time to live although the declaration names none.
        ttl_time: The clock that the time to live is measured on.
        refresh: What starts the time to live anew: a write, or a read as well.
        aliases: Names this state had before; what was kept under one of them is read.
        stored_as: The name it is kept under, where that is not the attribute's.
        history_ms: How long replaced versions of a versioned state can be read, event-time ms.
        reduce: Combines what is kept with what is added.
        aggregator: Makes, fills and reads the accumulator.
        paged: Whether the items of a map or list stand in parts of their own.
    """

    kind: Kind
    type: Any
    key_type: Any = None
    default: Callable[[], Any] = field(default=lambda: None)
    ttl_ms: int | None = None
    name: str = ""
    per_write: bool = False
    ttl_time: TimeDomain = "event_time"
    refresh: Refresh = "write"
    aliases: tuple[str, ...] = ()
    history_ms: int | None = None
    reduce: Callable[[Any, Any], Any] | None = None
    aggregator: Any = None
    paged: bool = False
    stored_as: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def stored_name(self) -> str:
        """The name it is kept under."""
        return self.stored_as or self.name

    @property
    def expires(self) -> bool:
        """Whether what is written carries an expiry."""
        return self.ttl_ms is not None or self.per_write

    @property
    def on_processing_time(self) -> bool:
        """Whether the expiry is a processing time."""
        return self.expires and self.ttl_time == "processing_time"


def type_name(tp: Any) -> str:
    """Return a type as text that does not change between runs.

    >>> type_name(float), type_name(list[int]), type_name(StateSpec | None)
    ('float', 'list[int]', 'StateSpec | None')
    """
    if isinstance(tp, UnionType):
        return " | ".join("None" if one is type(None) else type_name(one) for one in tp.__args__)
    if isinstance(tp, type) and not hasattr(tp, "__args__"):
        return tp.__qualname__
    return str(tp).replace("typing.", "")


def make_spec(
    kind: Kind,
    tp: Any,
    *,
    ttl: Ttl = None,
    ttl_time: TimeDomain = "event_time",
    refresh: Refresh = "write",
    alias: Alias = None,
    **more: Any,
) -> StateSpec:
    """Return a checked declaration.

    Raises:
        StateDeclarationError: An option is not one of those that exist, or contradicts another.
    """
    if ttl_time not in ("event_time", "processing_time"):
        raise StateDeclarationError(f"ttl_time is 'event_time' or 'processing_time', not {ttl_time!r}")
    if refresh not in ("write", "read_write"):
        raise StateDeclarationError(f"refresh is 'write' or 'read_write', not {refresh!r}")
    per_write = ttl == "per_write"
    life = None if per_write else duration_ms(ttl, "a time to live")
    if life is None and refresh == "read_write":
        raise StateDeclarationError("refresh='read_write' needs a ttl: a duration that a read starts anew")
    if life is None and not per_write and ttl_time == "processing_time":
        raise StateDeclarationError("ttl_time='processing_time' says which clock a ttl is on: give a ttl")
    return StateSpec(
        kind,
        tp,
        ttl_ms=life,
        per_write=per_write,
        ttl_time=ttl_time,
        refresh=refresh,
        aliases=aliases(alias),
        **more,
    )


def aliases(alias: Alias) -> tuple[str, ...]:
    """Return the names a state had before as a tuple."""
    return () if alias is None else (alias,) if isinstance(alias, str) else tuple(alias)


def duration_ms(duration: Any, what: str) -> int | None:
    """Return a positive duration in ms; ``None`` stays ``None``.

    Raises:
        StateDeclarationError: It is not a ``timedelta`` or whole number of milliseconds above zero.
    """
    if duration is None:
        return None
    if isinstance(duration, bool) or not isinstance(duration, timedelta | int):
        raise StateDeclarationError(f"{what} is a timedelta or milliseconds, not {duration!r}")
    value = ms(duration)
    if value <= 0:
        raise StateDeclarationError(f"{what} must be positive, not {duration!r}")
    return value


def check_key_type(key: Any, what: str) -> None:
    """Refuse map keys that would not come back as they were put in."""
    if key not in (str, int, bool):
        raise StateDeclarationError(f"{what} keys are str, int or bool, not {type_name(key)}")


def default_maker(default: Any, factory: Callable[[], Any] | None) -> Callable[[], Any]:
    """Return what makes the default of a value state."""
    if factory is not None:
        if default is not None:
            raise StateDeclarationError("give either default or default_factory, not both")
        return factory
    if is_mutable(default):
        raise StateDeclarationError(
            f"a mutable default ({default!r}) would be shared by all keys: use default_factory"
        )
    return lambda: default


_IMMUTABLE = (
    type(None), bool, int, float, complex, str, bytes, enum.Enum, decimal.Decimal, uuid.UUID,
    datetime.date, datetime.time, datetime.timedelta,
)  # fmt: skip


def is_mutable(value: Any) -> bool:
    """Return whether a value may change in place, so that each key needs one of its own.

    >>> is_mutable((1, "a")), is_mutable((1, []))
    (False, True)
    """
    if isinstance(value, _IMMUTABLE):
        return False
    if isinstance(value, tuple | frozenset):
        return any(is_mutable(v) for v in value)
    if isinstance(value, msgspec.Struct) and value.__struct_config__.frozen:
        return any(is_mutable(v) for v in msgspec.structs.astuple(value))
    return True

"""State declarations: typed, named, with defaults and event-time time-to-live.

A declaration is a :class:`StateSpec`. It stands as a class attribute; a host puts a handle of the
same name on the process *instance*, so that ``self.balance`` is a plain attribute in the hot path.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from millrace.errors import UserError
from millrace.time import ms

if TYPE_CHECKING:
    from millrace.state.handles import BroadcastState, MapState, ValueState

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Kind = Literal["value", "map", "broadcast"]


class StateDeclarationError(UserError):
    """A process declares a state that cannot be kept."""


class StateTypeError(UserError):
    """A process put something into a state that its declaration does not allow."""


@dataclass(eq=False)
class StateSpec:
    """One declared state of a process.

    Attributes:
        kind: ``value``, ``map`` or ``broadcast``.
        type: Type of the value (of the map's values).
        key_type: Type of the map's keys, else ``None``.
        default: Makes the value that a read returns when nothing was written.
        ttl_ms: Time to live in event-time milliseconds after a write, ``None`` for no limit.
        name: The attribute's name, set when the process class is made.
    """

    kind: Kind
    type: Any
    key_type: Any = None
    default: Callable[[], Any] = field(default=lambda: None)
    ttl_ms: int | None = None
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def describe(self) -> dict[str, Any]:
        """Return the declaration as plain data, as it stands in a checkpoint's contract."""
        return {
            "kind": self.kind,
            "type": type_name(self.type),
            "key_type": None if self.key_type is None else type_name(self.key_type),
            "ttl_ms": self.ttl_ms,
        }


def type_name(tp: Any) -> str:
    """Return a type as text that does not change between runs (``float``, ``list[int]``)."""
    if isinstance(tp, type) and not hasattr(tp, "__args__"):
        return tp.__qualname__
    return str(tp).replace("typing.", "")


def _ttl(ttl: timedelta | int | None) -> int | None:
    if ttl is None:
        return None
    value = ms(ttl)
    if value <= 0:
        raise StateDeclarationError(f"a time to live must be positive, not {ttl!r}")
    return value


def _default(default: Any, factory: Callable[[], Any] | None) -> Callable[[], Any]:
    if factory is not None:
        if default is not None:
            raise StateDeclarationError("give either default or default_factory, not both")
        return factory
    if isinstance(default, list | dict | set | bytearray):
        raise StateDeclarationError(
            f"a mutable default ({default!r}) would be shared by all keys: use default_factory"
        )
    return lambda: default


def value_state(
    tp: type[T],
    *,
    default: T | None = None,
    default_factory: Callable[[], T] | None = None,
    ttl: timedelta | int | None = None,
) -> ValueState[T]:
    """Declare one value per key.

    Args:
        tp: Type of the value: a scalar, a container of them or a msgspec struct.
        default: What a read returns before the first write, after ``clear()`` and after expiry.
        default_factory: Makes the default where it is mutable, e.g. ``list``.
        ttl: Event time after a write at which the value is gone; ``None``: it stays until cleared.

    Returns:
        A declaration; inside callbacks the attribute is a :class:`~millrace.state.ValueState`.

    Example:
        >>> from millrace import KeyedProcess, arrival, value_state
        >>> class Sum(KeyedProcess[int, int]):
        ...     order = arrival(commutes=True)
        ...     total = value_state(int, default=0)
        ...     def process(self, event, ctx):
        ...         self.total.value += event
        ...         ctx.emit(self.total.value)
    """
    return cast(
        "ValueState[T]", StateSpec("value", tp, default=_default(default, default_factory), ttl_ms=_ttl(ttl))
    )


def map_state(key: type[K], value: type[V], *, ttl: timedelta | int | None = None) -> MapState[K, V]:
    """Declare one map per key.

    Args:
        key: Type of the map's keys (str, int or bool).
        value: Type of the map's values.
        ttl: Event time after an entry's write at which that entry is gone.

    Returns:
        A declaration; inside callbacks the attribute is a :class:`~millrace.state.MapState`.
    """
    if key not in (str, int, bool):
        raise StateDeclarationError(f"map_state keys are str, int or bool, not {type_name(key)}")
    return cast("MapState[K, V]", StateSpec("map", value, key_type=key, default=dict, ttl_ms=_ttl(ttl)))


def broadcast_state(key: type[K], value: type[V]) -> BroadcastState[K, V]:
    """Declare a global map that control events change and every key reads.

    It is written in ``process_broadcast`` only and takes effect from the batch that brings the
    control event.

    Args:
        key: Type of the map's keys (str, int or bool).
        value: Type of the map's values.

    Returns:
        A declaration; inside callbacks the attribute is a :class:`~millrace.state.BroadcastState`.
    """
    if key not in (str, int, bool):
        raise StateDeclarationError(f"broadcast_state keys are str, int or bool, not {type_name(key)}")
    return cast("BroadcastState[K, V]", StateSpec("broadcast", value, key_type=key, default=dict))

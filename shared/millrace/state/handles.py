"""State handles: what ``self.balance`` is inside a callback.

All handles of a process share one :class:`Cursor`, which the host points at the entry of the key
whose event or timer is being handled. Visibility is judged at the cursor's time: a value whose time
to live has passed is never returned, whether or not the sweep has removed it yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from millrace.errors import MillraceError
from millrace.state.specs import StateSpec
from millrace.time import NEVER

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class StateAccessError(MillraceError):
    """State was used outside a callback, or written where it is read-only."""


class Cursor:
    """Points at the current entry and time; shared by the handles of one process instance.

    ``soonest`` is the time (ms) that no timer of the entry is before: as long as it is not reached,
    nobody has to look through the timers.
    """

    __slots__ = ("broadcast", "broadcast_writable", "entry", "min_expiry", "now", "soonest")

    def __init__(self) -> None:
        self.entry: Any = None
        self.now: int = 0
        self.min_expiry: int = NEVER
        self.soonest: int = NEVER
        self.broadcast: dict[str, dict[Any, Any]] = {}
        self.broadcast_writable = False


class ValueState(Generic[T]):
    """One value of the current key."""

    __slots__ = ("_cursor", "_default", "_name", "_ttl")

    def __init__(self, cursor: Cursor, spec: StateSpec) -> None:
        self._cursor = cursor
        self._name = spec.name
        self._default = spec.default
        self._ttl = spec.ttl_ms

    @property
    def value(self) -> T:
        """The value at the current time, or the declared default."""
        found = getattr(self._cursor.entry, self._name)
        if self._ttl is None:
            return found  # type: ignore[no-any-return]
        if found is None or found[0] <= self._cursor.now:
            return self._default()  # type: ignore[no-any-return]
        return found[1]  # type: ignore[no-any-return]

    @value.setter
    def value(self, new: T) -> None:
        cursor = self._cursor
        if self._ttl is None:
            setattr(cursor.entry, self._name, new)
            return
        expiry = cursor.now + self._ttl
        if expiry < cursor.min_expiry:
            cursor.min_expiry = expiry
        setattr(cursor.entry, self._name, (expiry, new))

    def clear(self) -> None:
        """Forget the value; the next read returns the default."""
        setattr(self._cursor.entry, self._name, None if self._ttl is not None else self._default())


class MapState(Generic[K, V]):
    """One map of the current key. Order of iteration is order of insertion."""

    __slots__ = ("_cursor", "_name", "_ttl")

    def __init__(self, cursor: Cursor, spec: StateSpec) -> None:
        self._cursor = cursor
        self._name = spec.name
        self._ttl = spec.ttl_ms

    def _live(self) -> dict[K, Any]:
        found: dict[K, Any] = getattr(self._cursor.entry, self._name)
        return found

    def get(self, key: K, default: V | None = None) -> V | None:
        """Return the value at ``key``, or ``default`` where there is none or it has expired."""
        found = self._live().get(key)
        if found is None:
            return default
        if self._ttl is None:
            return found  # type: ignore[no-any-return]
        return found[1] if found[0] > self._cursor.now else default

    def put(self, key: K, value: V) -> None:
        """Write the value at ``key``; with a time to live, it starts anew."""
        if self._ttl is None:
            self._live()[key] = value
            return
        cursor = self._cursor
        expiry = cursor.now + self._ttl
        if expiry < cursor.min_expiry:
            cursor.min_expiry = expiry
        live = self._live()
        found = live.get(key)
        if found is not None and found[0] <= cursor.now:
            del live[key]  # its place in the order is gone too, whether or not the sweep has been here
        live[key] = (expiry, value)

    def remove(self, key: K) -> None:
        """Forget ``key``; nothing happens where it is not there."""
        self._live().pop(key, None)

    def clear(self) -> None:
        """Forget all keys of the map."""
        self._live().clear()

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over the entries that are visible now."""
        if self._ttl is None:
            yield from list(self._live().items())
            return
        now = self._cursor.now
        for key, (expiry, value) in list(self._live().items()):
            if expiry > now:
                yield key, value

    def __contains__(self, key: object) -> bool:
        live = self._live()
        if self._ttl is None:
            return key in live
        found = live.get(key)  # type: ignore[arg-type]
        return found is not None and found[0] > self._cursor.now

    def __len__(self) -> int:
        if self._ttl is None:
            return len(self._live())
        return sum(1 for _ in self.items())


class BroadcastState(Generic[K, V]):
    """A global map: read everywhere, written in ``process_broadcast`` only."""

    __slots__ = ("_cursor", "_name", "_view")

    def __init__(self, cursor: Cursor, spec: StateSpec) -> None:
        self._cursor = cursor
        self._name = spec.name
        self._view: tuple[Any, Any, Any] = (None, None, None)

    def view(self, make: Callable[[list[tuple[K, V]]], T]) -> T:
        """Return ``make(entries)``, made anew only when the state may have changed.

        Args:
            make: Makes something of the entries (key, value), and of nothing else. One view is kept,
                so use one and the same function.

        Example:
            >>> from millrace.state.specs import StateSpec
            >>> cursor = Cursor()
            >>> cursor.broadcast = {"limits": {"a": 1, "b": 3}}
            >>> limits = BroadcastState(cursor, StateSpec("broadcast", int, key_type=str, name="limits"))
            >>> limits.view(lambda entries: sum(value for _, value in entries))
            4
        """
        entries = self._cursor.broadcast[self._name]
        of, by, view = self._view
        if of is not entries or by is not make:
            view = make(list(entries.items()))
            self._view = (entries, make, view)
        return view  # type: ignore[no-any-return]

    def get(self, key: K, default: V | None = None) -> V | None:
        """Return the value at ``key`` or ``default``."""
        return self._cursor.broadcast[self._name].get(key, default)

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over all entries."""
        return iter(list(self._cursor.broadcast[self._name].items()))

    def put(self, key: K, value: V) -> None:
        """Write the value at ``key``; in ``process_broadcast`` only."""
        self._writable()[key] = value

    def remove(self, key: K) -> None:
        """Forget ``key``; in ``process_broadcast`` only."""
        self._writable().pop(key, None)

    def _writable(self) -> dict[Any, Any]:
        if not self._cursor.broadcast_writable:
            raise StateAccessError(f"broadcast state '{self._name}' is read-only outside process_broadcast")
        self._view = (None, None, None)
        return self._cursor.broadcast[self._name]

    def __contains__(self, key: object) -> bool:
        return key in self._cursor.broadcast[self._name]

    def __len__(self) -> int:
        return len(self._cursor.broadcast[self._name])

"""State handles: what ``self.balance`` is inside a callback.

All handles of a process share one :class:`Cursor`, which the host points at the entry of the key
whose event or timer is being handled. Visibility is judged at the cursor's time: a value whose time
to live has passed is never returned, whether or not the sweep has removed it yet.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, Generic, TypeVar

from millrace.state.broadcast import Draft
from millrace.state.cursor import Cursor, Life, StateAccessError, refuse_ttl
from millrace.state.slots import UNSTARTED
from millrace.state.specs import StateSpec, is_mutable
from millrace.time import NEVER

__all__ = ["BroadcastState", "Cursor", "MapState", "StateAccessError", "ValueState"]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class ValueState(Generic[T]):
    """One value of the current key.

    A value that can change in place (a list, a struct) is kept as it is at the end of the callback.
    Only an assignment, ``set`` or, as declared, a read starts its time to live anew. None of them ends
    the life of what is there earlier than it would have ended: ``clear()`` does.
    """

    __slots__ = ("_cursor", "_default", "name")

    def __new__(cls, cursor: Cursor, spec: StateSpec) -> ValueState[T]:
        """Choose the handle that the declaration needs: this is the hottest path there is."""
        if cls is not ValueState or not spec.expires:
            return object.__new__(cls)
        usual = not spec.on_processing_time and spec.refresh == "write" and spec.ttl_ms is not None
        plain = usual and not is_mutable(spec.default())
        return object.__new__(_EventTimeValueState if plain else _ExpiringValueState)

    def __init__(self, cursor: Cursor, spec: StateSpec) -> None:
        self._cursor = cursor
        self.name = spec.name
        self._default = spec.default

    @property
    def value(self) -> T:
        """The value at the current time, or the declared default."""
        return getattr(self._cursor.entry, self.name)  # type: ignore[no-any-return]

    @value.setter
    def value(self, new: T) -> None:
        setattr(self._cursor.entry, self.name, new)

    def set(self, value: T, *, ttl: timedelta | int | None = None) -> None:
        """Write the value.

        Args:
            value: What to keep.
            ttl: How long, instead of the declared time to live (``timedelta`` or ms).

        Raises:
            StateAccessError: ``ttl`` is given, and the state is declared without.
        """
        refuse_ttl(self.name, ttl)
        self.value = value

    def clear(self) -> None:
        """Forget the value; the next read returns the default."""
        setattr(self._cursor.entry, self.name, self._default())


class _ExpiringValueState(ValueState[T]):
    """One value with a time to live: its slot is ``(expiry, value)``."""

    __slots__ = ("_life", "_placed", "_pristine")

    def __init__(self, cursor: Cursor, spec: StateSpec) -> None:
        super().__init__(cursor, spec)
        self._life = Life(cursor, spec)
        default = spec.default()
        #: A default that nobody changes, to know a changed one by; ``None`` where it cannot change.
        self._pristine = default if is_mutable(default) else None
        #: The default that a read put in place last, and in which callback.
        self._placed: tuple[Any, int] = None, -1

    @property
    def value(self) -> T:
        """The value at the current time, or the declared default."""
        life = self._life
        entry = self._cursor.entry
        found = getattr(entry, self.name)
        live = found is not None and found[0] > life.now()
        if not live:
            return self._default_in_place() if self._pristine is not None else self._default()  # type: ignore[no-any-return]
        if self._pristine is not None and found[1] == self._pristine:
            # Nothing but a default so far: its life begins with the change that may follow.
            self._place(found[1])
        elif life.on_read:
            setattr(entry, self.name, (life.longer(found[0]), found[1]))
        return found[1]  # type: ignore[no-any-return]

    @value.setter
    def value(self, new: T) -> None:
        self.set(new)

    def set(self, value: T, *, ttl: timedelta | int | None = None) -> None:
        """Write the value; ``ttl`` (``timedelta`` or ms) goes before the declared time to live."""
        entry, life = self._cursor.entry, self._life
        found = getattr(entry, self.name)
        if found is None or self._is_default(found[1]):
            expiry = life.until(ttl)
        else:
            expiry = life.longer(found[0], ttl)
        setattr(entry, self.name, (expiry, value))

    def _is_default(self, kept: Any) -> bool:
        """Return whether what is kept was never written: a read has put it in place."""
        if self._pristine is None:
            return False
        # In a later callback it may be the same object still, or one that was packed in between.
        placed, turn = self._placed
        return (kept is placed and turn == self._cursor.turn) or kept == self._pristine

    def clear(self) -> None:
        """Forget the value; the next read returns the default."""
        setattr(self._cursor.entry, self.name, None)

    def _default_in_place(self) -> Any:
        """Keep the default that is returned, so that a change in place is not lost.

        One that stays unchanged is forgotten at the end of the batch (``EntryLayout.is_empty``).
        """
        new = self._default()
        self._place(new)
        return new

    def _place(self, default: Any) -> None:
        life = self._life
        setattr(self._cursor.entry, self.name, (life.until(), default))
        self._placed = default, self._cursor.turn


class _EventTimeValueState(_ExpiringValueState[T]):
    """The usual case: event time, begun anew by writes, a default that cannot change in place."""

    __slots__ = ("_ttl",)

    def __init__(self, cursor: Cursor, spec: StateSpec) -> None:
        super().__init__(cursor, spec)
        self._ttl: int = spec.ttl_ms or NEVER

    @property
    def value(self) -> T:
        """The value at the current time, or the declared default."""
        cursor = self._cursor
        found = getattr(cursor.entry, self.name)
        if found is None or found[0] <= cursor.now:
            return self._default()  # type: ignore[no-any-return]
        return found[1]  # type: ignore[no-any-return]

    @value.setter
    def value(self, new: T) -> None:
        cursor = self._cursor
        entry, name = cursor.entry, self.name
        expiry = cursor.now + self._ttl
        found = getattr(entry, name)
        if found is not None and found[0] > expiry:
            expiry = found[0]  # a write of an earlier time that came later
        elif expiry < cursor.min_expiry:
            cursor.min_expiry = expiry
        elif expiry > NEVER:
            expiry = NEVER
        setattr(entry, name, (expiry, new))


class MapState(Generic[K, V]):
    """One map of the current key. Order of iteration is order of insertion."""

    __slots__ = ("_cursor", "_life", "name")

    def __init__(self, cursor: Cursor, spec: StateSpec) -> None:
        self._cursor = cursor
        self.name = spec.name
        self._life = Life(cursor, spec) if spec.expires else None

    def _kept(self) -> dict[K, Any]:
        found: dict[K, Any] = getattr(self._cursor.entry, self.name)
        return found

    def get(self, key: K, default: V | None = None) -> V | None:
        """Return the value at ``key``, or ``default`` where there is none or it has expired."""
        kept, life = self._kept(), self._life
        found = kept.get(key)
        if found is None:
            return default
        if life is None:
            return found  # type: ignore[no-any-return]
        if found[0] <= life.now():
            return default
        if life.on_read:
            kept[key] = (life.longer(found[0]), found[1])
        return found[1]  # type: ignore[no-any-return]

    def put(self, key: K, value: V, *, ttl: timedelta | int | None = None) -> None:
        """Write the value at ``key``; with a time to live, it starts anew, and ends no earlier than before.

        Args:
            key: Where.
            value: What to keep.
            ttl: How long, instead of the declared time to live (``timedelta`` or ms).

        Raises:
            StateAccessError: ``ttl`` is given, and the state is declared without.
        """
        kept, life = self._kept(), self._life
        if life is None:
            refuse_ttl(self.name, ttl)
            kept[key] = value
            return
        expiry = life.until(ttl)
        found = kept.get(key)
        if found is not None:
            if found[0] <= life.now():
                del kept[key]  # its place in the order is gone too, whether or not the sweep has been here
            elif found[0] > expiry or expiry > UNSTARTED:  # seldom: no call for it otherwise
                expiry = life.longer(found[0], ttl)
        kept[key] = (expiry, value)

    def remove(self, key: K) -> None:
        """Forget ``key``; nothing happens where it is not there."""
        self._kept().pop(key, None)

    def clear(self) -> None:
        """Forget all keys of the map."""
        self._kept().clear()

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over the entries that are visible now; as a read, it refreshes them where declared."""
        life = self._life
        if life is None:
            yield from list(self._kept().items())
            return
        now = life.now()
        kept = self._kept()
        for key, (expiry, value) in list(kept.items()):
            if expiry > now:
                if life.on_read:
                    kept[key] = (life.longer(expiry), value)
                yield key, value

    def fetch(self, keys: Iterable[K]) -> None:
        """Have at hand what stands at some keys; of a map that is paged their parts are read at once."""

    def some(self, place: int, of: int) -> list[tuple[K, V]]:
        """Return the entries that are visible now and stand at one of ``of`` places.

        An entry's place is a hash of its key, whatever else the map holds. Going through one place after the
        other is going through the map, at any pace; of a map that is paged about one part in ``of`` is read.

        Args:
            place: 0 to ``of`` - 1.
            of: How many places there are: a power of two.

        Raises:
            ValueError: ``of`` is no power of two, or there is no such place.
        """
        check_place(place, of)
        return [item for item in self.items() if hash_of(item[0]) & (of - 1) == place]

    def keys(self) -> Iterator[K]:
        """Iterate over the keys that are visible now."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[V]:
        """Iterate over the values that are visible now."""
        return (value for _, value in self.items())

    def __iter__(self) -> Iterator[K]:
        return self.keys()

    def __contains__(self, key: object) -> bool:
        if self._life is None:
            return key in self._kept()
        found = self._kept().get(key)  # type: ignore[arg-type]
        return found is not None and found[0] > self._life.now()

    def __len__(self) -> int:
        if self._life is None:
            return len(self._kept())
        now = self._life.now()
        return sum(1 for expiry, _ in self._kept().values() if expiry > now)


def hash_of(key: object) -> int:
    """Return a hash of a map's key that is the same everywhere."""
    return zlib.crc32(key.encode() if type(key) is str else f"{key}".encode())


def check_place(place: int, of: int) -> None:
    """Refuse a place that is none of 1, 2, 4, … places."""
    if of < 1 or of & (of - 1) or not 0 <= place < of:
        raise ValueError(f"place {place} of {of}: there must be 1, 2, 4, … places, counted from 0")


class BroadcastState(Generic[K, V]):
    """A global map: read everywhere, written in ``process_broadcast`` only."""

    __slots__ = ("_cursor", "name")

    def __init__(self, cursor: Cursor, spec: StateSpec) -> None:
        self._cursor = cursor
        self.name = spec.name

    def view(self, make: Callable[[list[tuple[K, V]]], T]) -> T:
        """Return ``make(entries)``, made anew only where the state may have changed.

        Where control events wait for their time, each version of the state keeps its view.

        Args:
            make: Makes something of the entries (key, value), and of nothing else. One view is kept,
                so use one and the same function.

        Example:
            >>> from millrace.state.broadcast import BroadcastMap
            >>> from millrace.state.specs import StateSpec
            >>> cursor = Cursor()
            >>> cursor.broadcast = {"limits": BroadcastMap({"a": 1, "b": 3})}
            >>> limits = BroadcastState(cursor, StateSpec("broadcast", int, key_type=str, name="limits"))
            >>> limits.view(lambda entries: sum(value for _, value in entries))
            4
        """
        entries = self._cursor.broadcast[self.name]
        if make is not entries.made_by:
            entries.view, entries.made_by = make(list(entries.items())), make
        return entries.view  # type: ignore[no-any-return]

    def get(self, key: K, default: V | None = None) -> V | None:
        """Return the value at ``key`` or ``default``."""
        return self._cursor.broadcast[self.name].get(key, default)  # type: ignore[no-any-return]

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over all entries."""
        return iter(list(self._cursor.broadcast[self.name].items()))

    def put(self, key: K, value: V) -> None:
        """Write the value at ``key``; in ``process_broadcast`` only."""
        self._draft().put(key, value)

    def remove(self, key: K) -> None:
        """Forget ``key``; in ``process_broadcast`` only."""
        self._draft().remove(key)

    def _draft(self) -> Draft:
        draft = self._cursor.broadcast[self.name]
        if not isinstance(draft, Draft):
            raise StateAccessError(f"broadcast state '{self.name}' is read-only outside process_broadcast")
        return draft

    def __contains__(self, key: object) -> bool:
        return key in self._cursor.broadcast[self.name]

    def __len__(self) -> int:
        return len(self._cursor.broadcast[self.name])

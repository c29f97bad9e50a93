"""Handles of states that things are added to: lists, reductions and aggregates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, Generic, TypeVar

from millrace.state.cursor import Cursor, Life, refuse_ttl
from millrace.state.specs import StateSpec, StateTypeError

T = TypeVar("T")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")


class ListState(Generic[T]):
    """One list of the current key; with a time to live, each element has its own."""

    __slots__ = ("_cursor", "_life", "_name")

    def __init__(self, cursor: Cursor, spec: StateSpec) -> None:
        self._cursor = cursor
        self._name = spec.name
        self._life = Life(cursor, spec) if spec.expires else None

    def _kept(self) -> list[Any]:
        found: list[Any] = getattr(self._cursor.entry, self._name)
        return found

    def append(self, value: T, *, ttl: timedelta | int | None = None) -> None:
        """Add one element at the end.

        Args:
            value: The element.
            ttl: How long it lives, instead of the declared time to live (``timedelta`` or ms).

        Raises:
            StateAccessError: ``ttl`` is given, and the state is declared without.
        """
        if self._life is None:
            refuse_ttl(self._name, ttl)
            self._kept().append(value)
        else:
            self._kept().append((self._life.until(ttl), value))

    def extend(self, values: Iterable[T], *, ttl: timedelta | int | None = None) -> None:
        """Add elements at the end; see :meth:`append`."""
        new = list(values)  # all or nothing, whatever the iterable does
        for value in new:
            self.append(value, ttl=ttl)

    def replace(self, values: Iterable[T], *, ttl: timedelta | int | None = None) -> None:
        """Keep ``values`` instead of what is there; see :meth:`append`."""
        new = list(values)
        self.clear()
        self.extend(new, ttl=ttl)

    def clear(self) -> None:
        """Forget all elements."""
        self._kept().clear()

    def __iter__(self) -> Iterator[T]:
        """Iterate over the elements that are visible now, in order; as a read, it refreshes them."""
        kept, life = self._kept(), self._life
        if life is None:
            return iter(list(kept))
        now = life.now()
        if life.on_read:
            kept[:] = [(life.longer(e), v) for e, v in kept if e > now]
        return iter([value for expiry, value in kept if expiry > now])

    def __len__(self) -> int:
        if self._life is None:
            return len(self._kept())
        now = self._life.now()
        return sum(1 for expiry, _ in self._kept() if expiry > now)


class _Single(Generic[Acc]):
    """One thing that is there or not, with or without a time to live."""

    __slots__ = ("_cursor", "_life", "_name")

    def __init__(self, cursor: Cursor, spec: StateSpec) -> None:
        self._cursor = cursor
        self._name = spec.name
        self._life = Life(cursor, spec) if spec.expires else None

    def _read(self) -> Acc | None:
        found = getattr(self._cursor.entry, self._name)
        life = self._life
        if life is None or found is None:
            return found  # type: ignore[no-any-return]
        if found[0] <= life.now():
            return None
        if life.on_read:
            setattr(self._cursor.entry, self._name, (life.longer(found[0]), found[1]))
        return found[1]  # type: ignore[no-any-return]

    def _write(self, new: Acc | None, ttl: timedelta | int | None, what: str) -> None:
        if new is None:
            raise StateTypeError(f"state '{self._name}': {what} gave None; it must return what to keep")
        if self._life is None:
            refuse_ttl(self._name, ttl)
            setattr(self._cursor.entry, self._name, new)
        else:
            entry, life = self._cursor.entry, self._life
            found = getattr(entry, self._name)
            expiry = life.until(ttl) if found is None else life.longer(found[0], ttl)
            setattr(entry, self._name, (expiry, new))

    def clear(self) -> None:
        """Forget everything that was added."""
        setattr(self._cursor.entry, self._name, None)


class ReducingState(_Single[T]):
    """One value of the current key that everything added is combined into."""

    __slots__ = ("_reduce",)

    def __init__(self, cursor: Cursor, spec: StateSpec) -> None:
        super().__init__(cursor, spec)
        self._reduce: Any = spec.reduce

    @property
    def value(self) -> T | None:
        """What everything added was combined into, ``None`` where there is nothing."""
        return self._read()

    def add(self, value: T, *, ttl: timedelta | int | None = None) -> None:
        """Combine ``value`` into what is kept.

        Args:
            value: What to add; the first one is kept as it is.
            ttl: How long the result lives, instead of the declared time to live (``timedelta`` or ms).

        Raises:
            StateTypeError: The reduce function returned nothing.
            StateAccessError: ``ttl`` is given, and the state is declared without.
        """
        kept = self._read()
        self._write(value if kept is None else self._reduce(kept, value), ttl, "the reduce function")


class AggregatingState(_Single[Acc], Generic[In, Acc, Out]):
    """One aggregate of the current key."""

    __slots__ = ("_how",)

    def __init__(self, cursor: Cursor, spec: StateSpec) -> None:
        super().__init__(cursor, spec)
        self._how: Any = spec.aggregator

    @property
    def value(self) -> Out | None:
        """The aggregate's result, ``None`` where nothing was added."""
        kept = self._read()
        return None if kept is None else self._how.result(kept)

    @property
    def accumulator(self) -> Acc | None:
        """What is kept, ``None`` where nothing was added."""
        return self._read()

    def add(self, value: In, *, ttl: timedelta | int | None = None) -> None:
        """Add ``value``.

        Args:
            value: What to add.
            ttl: How long the aggregate lives, instead of the declared time to live (``timedelta`` or ms).

        Raises:
            StateTypeError: The add function returned nothing.
            StateAccessError: ``ttl`` is given, and the state is declared without.
        """
        kept = self._read()
        self._write(self._how.add(self._how.create() if kept is None else kept, value), ttl, "add")

    def merge(self, accumulator: Acc, *, ttl: timedelta | int | None = None) -> None:
        """Add everything that was added to another accumulator."""
        kept = self._read()
        self._write(accumulator if kept is None else self._how.merge(kept, accumulator), ttl, "merge")

"""Paged maps and lists: too large for one entry, their items stand in parts of their own.

A *part* is an entry like any other, of the same slots, in the key group of the key that owns it. Its text is
the owner's, a separator that no key's text goes on with, the state and a number. So it is packed, checked,
swept, encrypted and brought over like the entries of keys; reading or writing an item costs what its part
holds. The owner's entry says which parts there are, in a slot beside the state's.

A map's items are spread over parts by linear hashing (Litwin 1980): with ``n`` parts an item is in part
``h mod 2^k``, or, where that is not yet there, in part ``h mod 2^(k-1)``. When a part has become too large,
the next one in turn is split, wherever that is; so the owner keeps one number, and parts come one by one. A
list's parts are filled one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, Final, TypeVar

from millrace.state.accumulate import ListState
from millrace.state.cursor import Cursor, Life
from millrace.state.entry_store import EntryStore
from millrace.state.handles import MapState, check_place, hash_of
from millrace.state.page import OpenEntry
from millrace.state.slots import UNSTARTED, started
from millrace.state.specs import StateSpec
from millrace.time import NEVER

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

#: A part with more items than this, or of more bytes and more than a few items, is too large.
PART_ITEMS: Final = 64
PART_BYTES: Final = 4_096
_LEAST: Final = 8
#: Parts that are read at once by whoever goes through all of them.
_AT_ONCE: Final = 256
#: Between the owner's text and what part it is: a key's text goes on with a digit.
_SEPARATOR: Final = "\x1f"
#: What the slot beside a paged state's is called: the state's name and this.
EXTENT: Final = "_parts_"
#: What the owner keeps: the first part, the one after the last, and the state's name when it was begun.
Extent = tuple[int, int, str]


def extent_of(spec: StateSpec) -> StateSpec:
    """Return what is kept in the owner's entry beside a state that is paged."""
    return StateSpec(
        "value",
        Extent,
        ttl_ms=spec.ttl_ms,
        name=f"{spec.name}{EXTENT}",
        stored_as=f"{spec.stored_name}{EXTENT}",
        per_write=spec.per_write,
        ttl_time=spec.ttl_time,
        refresh=spec.refresh,
        aliases=tuple(f"{old}{EXTENT}" for old in spec.aliases),
    )


def part_text(owner: str, state: str, number: int) -> str:
    """Return the text of a part.

    >>> owner_of(part_text("6:card-7", "seen", 12))
    ('6:card-7', ('seen', 12))
    """
    return f"{owner}{_SEPARATOR}{state}{_SEPARATOR}{number}"


def owner_of(text: str) -> tuple[str, tuple[str, int] | None]:
    """Return the key that an entry's text belongs to, and which part of it it is; ``None``: the key itself.

    >>> owner_of("1:a2:bc"), owner_of("")
    (('1:a2:bc', None), ('', None))
    """
    if _SEPARATOR not in text:
        return text, None
    data = text.encode()
    at = 0
    while at < len(data) and data[at : at + 1].isdigit():
        colon = data.find(b":", at)
        if colon < 0 or not data[at:colon].isdigit():
            return text, None  # no key's text
        at = colon + 1 + int(data[at:colon])
    if data[at : at + 1] != _SEPARATOR.encode():
        return text, None
    state, _, number = data[at + 1 :].decode().partition(_SEPARATOR)
    return data[:at].decode(), (state, int(number))


class _Part:
    """A part while a batch works on its owner.

    Attributes:
        opened: The part.
        begun: It as it was when the owner's batch began: bytes, and its expiries.
        kept: It as it was when the last snapshot was taken.
    """

    __slots__ = ("begun", "kept", "opened")

    def __init__(self, opened: OpenEntry) -> None:
        self.opened = opened
        body: Any = None if opened.before is None else opened.before.body
        if opened.touched:  # the batch has run this key before
            body, opened.packed = opened.packed or None, None
        opened.touched = True
        self.begun = self.kept = (body, opened.expiry, opened.processing_expiry)


class Parts:
    """The parts of a key that a batch has come to; what happens to the key's entry happens to them, too.

    Args:
        store: Where the entries are.
        key: The key's text.
    """

    __slots__ = ("_key", "_numbered", "_open", "_store")

    def __init__(self, store: EntryStore, key: str) -> None:
        self._store, self._key = store, key
        self._open: dict[str, _Part] = {}
        self._numbered: dict[tuple[str, int], OpenEntry] = {}

    def open(self, state: str, number: int) -> OpenEntry:
        """Return a part, new where there is none."""
        text = part_text(self._key, state, number)
        part = self._open.get(text)
        if part is None:
            part = self._open[text] = _Part(self._store.open(text))
        return part.opened

    def slot(self, state: str, number: int, name: str) -> Any:
        """Return the slot ``name`` of a part: what :meth:`open` comes to, sooner where it has been opened."""
        opened = self._numbered.get((state, number))
        if opened is None:
            opened = self._numbered[state, number] = self.open(state, number)
        return getattr(opened.entry, name)

    def fetch(self, state: str, numbers: Iterable[int]) -> None:
        """Have some parts at hand, read at once."""
        self._store.fetch(part_text(self._key, state, number) for number in numbers)

    def pack(self) -> None:
        """Pack all parts as they are to be kept.

        Raises:
            StateTypeError: One could not be packed, or not be read back.
            EntryTooLarge: One is beyond the limit.
        """
        for text, part in self._open.items():
            self._store.pack_entry(text, part.opened)

    def renew(self) -> None:
        """Take the snapshot anew; raises what :meth:`pack` does."""
        packed = []
        for part in self._open.values():
            opened = part.opened
            body = self._store.encode(opened.entry)
            self._store.check(body, self._key)
            packed.append((body, opened.expiry, opened.processing_expiry))
        # All or none: of a callback that leaves one part that cannot be kept nothing stays in the others.
        for part, kept in zip(self._open.values(), packed, strict=True):
            part.kept = kept

    def restore(self, *, to_the_beginning: bool = False) -> None:
        """Take all parts back to the last snapshot, or to how the key's batch began."""
        for part in self._open.values():
            opened = part.opened
            if to_the_beginning:
                part.kept = part.begun
            body, opened.expiry, opened.processing_expiry = part.kept
            opened.entry = type(opened.entry)() if body is None else self._store.decode(body)
            opened.packed = None


class _Paged:
    """What paged maps and lists have in common.

    Args:
        cursor: Where the owner's entry and its parts are.
        spec: The declaration.
        inner: The handle of a part's own slot.
    """

    def __init__(self, cursor: Cursor, spec: StateSpec, inner: Any) -> None:
        self._outer = cursor
        self._spec = spec
        self._beside = f"{spec.name}{EXTENT}"
        self._time = Life(cursor, spec) if spec.expires else None
        #: What the handle of a part looks at: the part's entry, at the owner's times.
        self._within = Cursor()
        self._inner: Any = object.__new__(inner)
        self._inner.__init__(self._within, spec)

    def extent(self) -> tuple[int, int, str]:
        """Return which parts there are; what an earlier version kept in the owner's entry is moved first."""
        slot = getattr(self._outer.entry, self._beside)
        if slot is not None:
            found: Extent = slot if self._time is None else slot[1]
            return found
        old = getattr(self._outer.entry, self._spec.name)
        if not old:
            return 0, 0, self._spec.stored_name
        setattr(self._outer.entry, self._spec.name, type(old)())
        count = self._spread(old)
        expiry = None if self._time is None else _latest(old, self._outer.processing_now)
        self._keep_extent((0, count, self._spec.stored_name), expiry)
        return 0, count, self._spec.stored_name

    def _spread(self, items: Any) -> int:
        """Put what an earlier version kept in the owner's entry into parts; return how many."""
        raise NotImplementedError

    def _new(self, number: int) -> Any:
        """Return the slot of a part for what comes from the owner's entry."""
        opened = self._outer.parts.open(self._spec.stored_name, number)
        opened.expiry = min(opened.expiry, self._outer.min_expiry)
        opened.processing_expiry = min(opened.processing_expiry, self._outer.min_processing_expiry)
        slot = self._slot(opened)
        slot.clear()
        return slot

    def _keep_extent(self, extent: Extent | None, expiry: int | None) -> None:
        kept = extent if self._time is None or extent is None else (expiry, extent)
        setattr(self._outer.entry, self._beside, kept)

    def _lives(self, extent: Extent, ttl: timedelta | int | None) -> None:
        """Keep which parts there are for at least as long as what is written now."""
        expiry = None
        if self._time is not None:
            slot = getattr(self._outer.entry, self._beside)
            expiry = self._time.until(ttl) if slot is None else self._time.longer(slot[0], ttl)
        self._keep_extent(extent, expiry)

    def _was_read(self) -> None:
        """Keep which parts there are for as long as what has been read, where a read starts a life anew."""
        if self._time is not None and self._time.on_read:
            self._lives(self.extent(), None)

    def _resized(self, extent: Extent) -> None:
        """Keep which parts there are as long as before."""
        slot = getattr(self._outer.entry, self._beside)
        self._keep_extent(extent, None if self._time is None else slot[0])

    def _at(self, name: str, number: int) -> OpenEntry:
        """Point the inner handle to a part."""
        outer, within = self._outer, self._within
        opened: OpenEntry = outer.parts.open(name, number)
        within.entry, within.now, within.turn = opened.entry, outer.now, outer.turn
        within.processing_now = outer.processing_now
        within.min_expiry, within.min_processing_expiry = opened.expiry, opened.processing_expiry
        return opened

    def _done(self, opened: OpenEntry) -> None:
        opened.expiry = self._within.min_expiry
        opened.processing_expiry = self._within.min_processing_expiry

    def _slot(self, opened: OpenEntry) -> Any:
        return getattr(opened.entry, self._spec.name)

    def _is_large(self, opened: OpenEntry) -> bool:
        items = len(self._slot(opened))
        return items > PART_ITEMS or (items > _LEAST and _stored(opened) > PART_BYTES)

    def _each(self) -> Iterator[OpenEntry]:
        """Yield every part, the inner handle pointed to it.

        Nothing that a process does may come in between: it could move items to parts that are behind.
        """
        first, end, name = self.extent()
        for low in range(first, end, _AT_ONCE):
            numbers = range(low, min(low + _AT_ONCE, end))
            if len(numbers) > 1:
                self._outer.parts.fetch(name, numbers)
            for number in numbers:
                opened = self._at(name, number)
                yield opened
                self._done(opened)

    def _forget(self) -> None:
        for opened in self._each():
            self._slot(opened).clear()
        self._keep_extent(None, None)

    def __len__(self) -> int:
        return sum(len(self._inner) for _ in self._each())

    def __bool__(self) -> bool:
        return any(len(self._inner) for _ in self._each())


class PagedMapState(_Paged, MapState[K, V]):
    """A map whose items stand in parts; order of iteration is that of the parts."""

    def __init__(self, cursor: Cursor, spec: StateSpec) -> None:
        MapState.__init__(self, cursor, spec)
        _Paged.__init__(self, cursor, spec, MapState)

    def get(self, key: K, default: V | None = None) -> V | None:
        """Return the value at ``key``, or ``default`` where there is none or it has expired."""
        extent = getattr(self._outer.entry, self._beside) if self._time is None else None
        _, count, name = extent or self.extent()
        if not count:
            return default
        if extent is not None:  # nothing expires: nobody has to look at the time
            kept: dict[K, V] = self._outer.parts.slot(name, part_of(key, count), self._spec.name)
            return kept.get(key, default)
        opened = self._at(name, part_of(key, count))
        found: V | None = self._inner.get(key, default)
        self._done(opened)
        if key in self._inner:
            self._was_read()
        return found

    def put(self, key: K, value: V, *, ttl: timedelta | int | None = None) -> None:
        """Write the value at ``key``; see :meth:`MapState.put`."""
        _, count, name = self.extent()
        opened = self._at(name, part_of(key, count or 1))
        if not count:
            self._slot(opened).clear()  # what was left by a state of that name which was declared away since
            count = 1
        before = len(self._slot(opened))
        self._inner.put(key, value, ttl=ttl)
        self._done(opened)
        self._lives((0, count, name), ttl)
        # Only what is new makes a part grow: else every write to one that stays large would split another.
        if len(self._slot(opened)) > before and self._is_large(opened):
            self._split()

    def remove(self, key: K) -> None:
        """Forget ``key``; nothing happens where it is not there."""
        _, count, name = self.extent()
        if not count:
            return
        opened = self._at(name, part_of(key, count))
        before = len(self._slot(opened))
        self._inner.remove(key)
        self._done(opened)
        if before > len(self._slot(opened)) < PART_ITEMS // 4:
            self._merge()

    def clear(self) -> None:
        """Forget all keys of the map."""
        self._forget()

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over the entries that are visible now, part by part; each part is read."""
        found = [item for _ in self._each() for item in self._inner.items()]
        if found:
            self._was_read()
        yield from found

    def fetch(self, keys: Iterable[K]) -> None:
        """Have at hand what stands at some keys: their parts are read at once."""
        _, count, name = self.extent()
        if count > 1:
            self._outer.parts.fetch(name, {part_of(key, count) for key in keys})

    def some(self, place: int, of: int) -> list[tuple[K, V]]:
        """Return the entries at one of ``of`` places, whose parts are read; see :meth:`MapState.some`."""
        check_place(place, of)
        _, count, name = self.extent()
        wanted = [number for number in range(count) if _may_hold(number, count, place, of)]
        if len(wanted) > 1:
            self._outer.parts.fetch(name, wanted)
        found: list[tuple[K, V]] = []
        for number in wanted:
            opened = self._at(name, number)
            found += [item for item in self._inner.items() if hash_of(item[0]) & (of - 1) == place]
            self._done(opened)
        return found

    def __contains__(self, key: object) -> bool:
        _, count, name = self.extent()
        if not count:
            return False
        self._at(name, part_of(key, count))
        return key in self._inner

    def _spread(self, items: dict[Any, Any]) -> int:
        count = max(1, 2 * len(items) // PART_ITEMS)
        parts = [self._new(number) for number in range(count)]
        for key, item in items.items():
            parts[part_of(key, count)][key] = item
        return count

    def _split(self) -> None:
        """Make one more part, of the half of the one whose turn it is."""
        _, count, name = self.extent()
        source = self._outer.parts.open(name, count - (1 << (count.bit_length() - 1)))
        target = self._outer.parts.open(name, count)
        mask = (1 << count.bit_length()) - 1
        items, moved = self._slot(source), self._slot(target)
        moved.clear()
        for key in [key for key in items if hash_of(key) & mask == count]:
            moved[key] = items.pop(key)
        _earlier(target, source)
        self._resized((0, count + 1, name))

    def _merge(self) -> None:
        """Put the last parts back to those that they were split from, as long as both have little.

        All that can be: whoever removes everything part by part empties the last one last, and no removal
        would come after it.
        """
        _, count, name = self.extent()
        before = count
        while count > 1:
            last = count - 1
            source = self._outer.parts.open(name, last)
            target = self._outer.parts.open(name, last - (1 << (last.bit_length() - 1)))
            items, kept = self._slot(source), self._slot(target)
            of_both = len(items) + len(kept)
            is_little = of_both <= PART_ITEMS // 2 and _stored(source) + _stored(target) <= PART_BYTES
            if not is_little and items and of_both > _LEAST:
                break
            kept.update(items)
            items.clear()
            _earlier(target, source)
            count = last
        if count == 1 and not self._slot(self._outer.parts.open(name, 0)):
            self._keep_extent(None, None)
        elif count < before:
            self._resized((0, count, name))


class PagedListState(_Paged, ListState[T]):
    """A list whose elements stand in parts, so many in each."""

    def __init__(self, cursor: Cursor, spec: StateSpec) -> None:
        ListState.__init__(self, cursor, spec)
        _Paged.__init__(self, cursor, spec, ListState)

    def append(self, value: T, *, ttl: timedelta | int | None = None) -> None:
        """Add one element at the end; see :meth:`ListState.append`."""
        first, end, name = self.extent()
        opened = self._at(name, max(end - 1, first))
        if end == first:
            self._slot(opened).clear()  # see PagedMapState.put
            end += 1
        elif self._is_large(opened) or len(self._slot(opened)) == PART_ITEMS:
            while first < end and not self._slot(self._outer.parts.open(name, first)):
                first += 1
            end += 1
            opened = self._at(name, end - 1)
            self._slot(opened).clear()
        self._inner.append(value, ttl=ttl)
        self._done(opened)
        self._lives((first, end, name), ttl)

    def _spread(self, items: list[Any]) -> int:
        lows = range(0, len(items), PART_ITEMS)
        for number, low in enumerate(lows):
            self._new(number)[:] = items[low : low + PART_ITEMS]
        return len(lows)

    def clear(self) -> None:
        """Forget all elements."""
        self._forget()

    def __iter__(self) -> Iterator[T]:
        """Iterate over the elements that are visible now, in order; each part is read."""
        found = [value for _ in self._each() for value in self._inner]
        if found:
            self._was_read()
        return iter(found)


def _latest(slot: Any, now: int) -> int:
    """Return the latest expiry of some items; as long as its clock is not known, what is less is later."""
    of_all = [item[0] for item in (slot.values() if isinstance(slot, dict) else slot)]
    expiries = [started(expiry, now) for expiry in of_all]
    waiting = [expiry for expiry in expiries if UNSTARTED < expiry < NEVER]
    return min(waiting) if waiting and NEVER not in expiries else max(expiries)


def _stored(opened: OpenEntry) -> int:
    """Return the bytes that a part had when it was read."""
    return 0 if opened.before is None else len(opened.before.body)


def _earlier(target: OpenEntry, source: OpenEntry) -> None:
    """Let what has come from another part expire no later than it could there."""
    target.expiry = min(target.expiry, source.expiry)
    target.processing_expiry = min(target.processing_expiry, source.processing_expiry)


def part_of(key: object, count: int) -> int:
    """Return the part of ``count`` that an item is in."""
    bits = hash_of(key)
    number = bits & ((1 << count.bit_length()) - 1)
    return number if number < count else bits & ((1 << (count.bit_length() - 1)) - 1)


def _may_hold(number: int, count: int, place: int, of: int) -> bool:
    """Return whether a part of ``count`` may hold what stands at a place.

    A part's items agree in the bits of its number: as many as those that have been split go by, or one less.
    """
    bits = count.bit_length()
    if number ^ (1 << (bits - 1)) >= count and number < 1 << (bits - 1):
        bits -= 1  # it has not been split in this round
    mask = min(1 << bits, of) - 1
    return number & mask == place & mask


def map_handle(cursor: Cursor, spec: StateSpec) -> MapState[Any, Any]:
    """Return the handle of a map."""
    return PagedMapState(cursor, spec) if spec.paged else MapState(cursor, spec)


def list_handle(cursor: Cursor, spec: StateSpec) -> ListState[Any]:
    """Return the handle of a list."""
    return PagedListState(cursor, spec) if spec.paged else ListState(cursor, spec)

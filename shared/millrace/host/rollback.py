"""How a failed callback is undone: an entry's bytes, and the callbacks to be run again over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millrace.process import soonest
from millrace.state.entry_store import EntryStore
from millrace.state.handles import Cursor
from millrace.state.paged import Parts
from millrace.state.pages import OpenEntry


class Rollback:
    """Lets a failed callback be undone at no cost to those that succeed.

    It keeps the entry's bytes as they were when the key's batch began and the callbacks that ran
    since. A process is deterministic, so restoring the bytes and running those callbacks again, with
    their outputs muted, gives the state just before the one that failed. The snapshot is renewed at
    each failure: no callback is repeated more than once.
    """

    __slots__ = (
        "_body", "_expiry", "_new", "_processing_expiry", "_store", "begun", "log", "parts", "watermark",
    )  # fmt: skip

    #: Whether what a callback leaves is packed at once.
    packs = False

    def __init__(self, store: EntryStore, opened: OpenEntry, watermark: int) -> None:
        self._store = store
        #: The watermark at which the snapshot was taken, ms.
        self.watermark = watermark
        #: The key's parts, where it has states that are paged.
        self.parts: Parts | None = None
        self._body: bytes | msgspec.Raw | None = None if opened.before is None else opened.before.body
        if opened.touched:  # the batch has run this key before
            self._body = opened.packed or None
            opened.packed = None
        self._new = type(opened.entry)
        self._expiry = opened.expiry
        self._processing_expiry = opened.processing_expiry
        #: Rows (with late, on time) and timers (with their clock) that were handled, and watermarks.
        self.log: list[tuple[Any, ...]] = []

    def first(self) -> tuple[bytes | msgspec.Raw | None, int, int]:
        """Return what the key began with: the packed entry, ``None`` for a new one, and its expiries."""
        found: tuple[bytes | msgspec.Raw | None, int, int] | None = getattr(self, "begun", None)
        return found or (self._body, self._expiry, self._processing_expiry)

    def restore(self, cursor: Cursor) -> None:
        """Put the entry back as it was when the snapshot was taken."""
        entry = cursor.entry = self._new() if self._body is None else self._store.decode(self._body)
        cursor.min_expiry, cursor.min_processing_expiry = self._expiry, self._processing_expiry
        cursor.soonest_processing = soonest(entry.processing_timers_)
        if self.parts is not None:
            self.parts.restore()

    def renew(self, cursor: Cursor, watermark: int, key: str) -> None:
        """Take the snapshot anew.

        Raises:
            StateTypeError: The entry could not be packed, or not be read back.
            EntryTooLarge: It is beyond the limit.
        """
        body = self._store.encode(cursor.entry)
        self._store.check(body, key)
        if self.parts is not None:
            self.parts.renew()
        self.begun = self.first()
        self.watermark, self._body = watermark, body
        self._expiry, self._processing_expiry = cursor.min_expiry, cursor.min_processing_expiry
        self.log.clear()


class PackingRollback(Rollback):
    """Finds the callback that leaves what cannot be kept: it packs the entry after each.

    It costs what packing costs, so it is for the keys alone of which a batch could not be kept.

    Args:
        store: Where the entries are.
        opened: The key's entry, which is taken back to how it was when the key's batch began.
        before: The rollback of the run that failed.
        key: The key.
        cursor: Where the entry is while it is worked on.
    """

    __slots__ = ()
    packs = True

    def __init__(
        self, store: EntryStore, opened: OpenEntry, before: Rollback, key: str, cursor: Cursor
    ) -> None:
        body, opened.expiry, opened.processing_expiry = before.first()
        opened.entry = type(opened.entry)() if body is None else store.decode(body)
        opened.packed = None
        super().__init__(store, opened, before.watermark)
        self._body = body
        self.parts = before.parts
        if self.parts is not None:
            self.parts.restore(to_the_beginning=True)
        self.log = _PackingLog(lambda: self.renew(cursor, self.watermark, key))


class _PackingLog(list[tuple[Any, ...]]):
    """Keeps nothing: what was handled is in the snapshot, which is taken anew."""

    def __init__(self, renew: Callable[[], None]) -> None:
        super().__init__()
        self._renew = renew

    def append(self, _handled: tuple[Any, ...]) -> None:
        self._renew()

"""A key group to try states on: handles over a paged store, with no runner in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from millrace.state import HANDLES
from millrace.state.cursor import Cursor
from millrace.state.layout import EntryLayout
from millrace.state.pages import PAGE_BYTES, PagedStore
from millrace.time import NO_WATERMARK

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


class DictBackend:
    """The bytes of a group, in memory."""

    def __init__(self) -> None:
        self.header: bytes | None = None
        self.pages: dict[int, bytes] = {}

    def get_header(self) -> bytes | None:
        return self.header

    def put_header(self, header: bytes) -> None:
        self.header = header

    def get_page(self, page: int) -> bytes:
        return self.pages[page]

    def get_pages(self, pages: Sequence[int]) -> list[bytes]:
        return [self.get_page(page) for page in pages]

    def put_page(self, page: int, data: bytes) -> None:
        self.pages[page] = data

    def delete_page(self, page: int) -> None:
        del self.pages[page]

    def clear(self) -> None:
        self.header = None

    def is_empty(self) -> bool:
        return self.header is None and self.pages == {}


def layout_of(owner: str = "Bed", **states: Any) -> EntryLayout:
    """A layout of states declared by name."""
    for name, spec in states.items():
        spec.name = name
    return EntryLayout(list(states.values()), owner=owner)


class Bed:
    """A key group whose states are those given by name.

    Every commit ends in a restart, unless the store is to live on from batch to batch. It may let go of every
    entry when it has been worked on, as a runner does.
    """

    def __init__(
        self,
        *,
        backend: DictBackend | None = None,
        page_bytes: int = PAGE_BYTES,
        label: int = 0,
        lives_on: bool = False,
        lets_go: bool = False,
        **states: Any,
    ) -> None:
        self.backend = backend or DictBackend()
        self.layout = layout_of(**states)
        self.cursor = Cursor()
        self.states = SimpleNamespace(
            **{name: HANDLES[spec.kind](self.cursor, spec) for name, spec in states.items()}
        )
        self.page_bytes = page_bytes
        self.label, self.lives_on, self.lets_go = label, lives_on, lets_go
        self.watermark = self.processing_time = NO_WATERMARK
        self.store = self._store()

    def _store(self) -> PagedStore:
        return PagedStore(self.backend, self.layout, page_bytes=self.page_bytes, label=self.label)

    @contextmanager
    def on(self, key: str = "1:k", *, now: int = 0) -> Iterator[SimpleNamespace]:
        """The states of a key in a callback at event time ``now``."""
        opened, cursor = self.store.open(key), self.cursor
        opened.packed = None
        cursor.entry, cursor.now, cursor.processing_now = opened.entry, now, self.processing_time
        cursor.min_expiry, cursor.min_processing_expiry = opened.expiry, opened.processing_expiry
        try:
            yield self.states
        finally:
            opened.expiry, opened.processing_expiry = cursor.min_expiry, cursor.min_processing_expiry
            cursor.entry = None
            if self.lets_go:
                self.store.pack_entry(key, opened)
                self.store.let_go(opened)

    def commit(self, watermark: int | None = None, *, processing_time: int | None = None) -> None:
        """End the batch, restart, and let the clocks go on."""
        self.watermark = self.watermark if watermark is None else watermark
        self.processing_time = self.processing_time if processing_time is None else processing_time
        self.store.commit(self.watermark, self.processing_time)
        self.metrics = self.store.metrics
        if not self.lives_on:
            self.store = self._store()

    def tick(self, processing_time: int) -> None:
        """A batch with nothing but a tick of processing time."""
        self.processing_time = processing_time
        self.store.due(self.watermark)
        self.store.due_processing(processing_time)
        self.commit()

    def kept(self) -> dict[str, Any]:
        """The kept entries by key."""
        return dict(self._store().entries())

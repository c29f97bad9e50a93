"""The engine's side of a key group's state: reads and writes of its cells as bytes, counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass
class CommitMetrics:
    """What a group read and wrote since its store was opened: one batch on an engine.

    Attributes:
        pages_read: Pages fetched; the one inside the header does not count.
        pages_written: Pages put; the one inside the header does not count.
        bytes_written: Bytes of pages, header and schemas put.
        largest_page_bytes: Size of the largest page that was packed.
        largest_entry_key: Key of the largest entry that was packed.
        largest_entry_bytes: Its size.
    """

    pages_read: int = 0
    pages_written: int = 0
    bytes_written: int = 0
    largest_page_bytes: int = 0
    largest_entry_key: str = ""
    largest_entry_bytes: int = 0


class GroupBackend(Protocol):
    """Bytes of one key group: a header and numbered pages."""

    def get_header(self) -> bytes | None:
        """Return the header, or ``None`` for a group never written."""

    def put_header(self, header: bytes) -> None:
        """Write the header."""

    def get_page(self, page: int) -> bytes:
        """Return a page that the header lists."""

    def get_pages(self, pages: Sequence[int]) -> list[bytes]:
        """Return several of them, in that order."""

    def put_page(self, page: int, data: bytes) -> None:
        """Write a page."""

    def delete_page(self, page: int) -> None:
        """Remove a page."""

    def clear(self) -> None:
        """Remove the header (its pages are gone already)."""

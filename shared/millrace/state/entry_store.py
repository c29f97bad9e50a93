"""The entry store: where a batch finds and leaves the entries of its keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from millrace.state.page import OpenEntry


class EntryStore(Protocol):
    """Where a batch finds and leaves the entries of its keys."""

    def fetch(self, keys: Iterable[str]) -> None:
        """Make the entries of some keys ready to be opened."""

    def open(self, key: str) -> OpenEntry:
        """Return the entry of a key, a new one where there is none."""

    def decode(self, body: bytes | msgspec.Raw) -> Any:
        """Unpack an entry."""

    def encode(self, entry: Any) -> bytes:
        """Pack an entry."""

    def check(self, body: bytes, key: str) -> None:
        """Refuse a packed entry that could not be read back."""

    def pack_entry(self, key: str, opened: OpenEntry) -> None:
        """Pack an entry as it will be kept; refuse one that could not be read back."""

    def pack_entries(self, keys: Sequence[str], entries: Sequence[OpenEntry]) -> None:
        """Pack several entries, each as :meth:`pack_entry` does."""

    def let_go(self, opened: OpenEntry) -> None:
        """Forget an entry that has been packed, until it is opened again."""

    def due(self, watermark: int) -> list[str]:
        """Return the keys with a timer or a waiting row at or before ``watermark``."""

    def due_processing(self, processing_time: int) -> list[str]:
        """Return the keys with a timer on processing time at or before ``processing_time``."""

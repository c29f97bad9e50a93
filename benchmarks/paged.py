"""Processes over paged state in memory: the bytes that a checkpoint would hold, without an engine."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from millrace import KeyedProcess
from millrace.checkpoints.groups import StoredGroup
from millrace.host.memory import MemoryHost
from millrace.host.memory_chain import MemoryChain
from millrace.host.rows import Row
from millrace.state.cells import encode
from millrace.state.pages import PagedStore

#: Key groups, as many as an app has by default.
GROUPS: Final = 64


class Stored:
    """A key group's bytes in memory."""

    def __init__(self) -> None:
        self.header: bytes | None = None
        self.pages: dict[int, bytes] = {}
        self.get_page, self.put_page = self.pages.__getitem__, self.pages.__setitem__
        self.delete_page = self.pages.__delitem__

    def get_pages(self, pages: Sequence[int]) -> list[bytes]:
        """Return some of the pages."""
        return [self.pages[page] for page in pages]

    def get_header(self) -> bytes | None:
        """Return the header, or ``None`` for a group never written."""
        return self.header

    def put_header(self, header: bytes | None) -> None:
        """Write the header."""
        self.header = header

    def clear(self) -> None:
        """Remove the header."""
        self.header = None

    @property
    def size(self) -> int:
        """Bytes of the header and all pages."""
        return len(self.header or b"") + sum(map(len, self.pages.values()))

    def entries(self) -> Iterator[tuple[str, int]]:
        """Yield the key of each entry, and its bytes in its page, the key's included."""
        if self.header is None:
            return
        for _, cells, _ in StoredGroup(self.header, self.pages).cells():
            for key, cell in cells.items():
                yield key, len(encode(key)) + len(encode(cell))


class PagedHost(MemoryHost):
    """The in-memory host with its state in key groups and pages, opened for each batch as on Spark.

    Args:
        process: The process to run.
        out_of_orderness_ms: Bound by which the watermark stays behind the newest event, ms.

    Example:
        >>> from millrace import KeyedProcess, arrival, value_state
        >>> class Count(KeyedProcess[str, int]):
        ...     order = arrival(commutes=True)
        ...     n = value_state(int, default=0)
        ...     def process(self, event, ctx):
        ...         self.n.value += 1
        >>> host = PagedHost(Count())
        >>> _ = host.run_batch([("a", 1, "x"), ("b", 2, "y"), ("a", 3, "z")])
        >>> sorted(key for key, _ in host.entries()), host.size > 0
        (['1:a', '1:b'], True)
    """

    def __init__(
        self, process: KeyedProcess[Any, Any], *, out_of_orderness_ms: int = 0, records: bool = False
    ) -> None:
        super().__init__(process, out_of_orderness_ms=out_of_orderness_ms, records=records)
        self.groups = [Stored() for _ in range(GROUPS)]

    @property
    def size(self) -> int:
        """Bytes of all that is kept."""
        return sum(group.size for group in self.groups)

    def entries(self) -> Iterator[tuple[str, int]]:
        """Yield the key of each entry and its bytes."""
        for group in self.groups:
            yield from group.entries()

    def read(self, wanted: str) -> Any:
        """Return the entry of a key, unpacked; ``None`` where there is none."""
        group = zlib.crc32(wanted.encode()) % GROUPS
        store = PagedStore(self.groups[group], self.runner.layout, label=group)
        return next((entry for key, entry in store.entries() if key == wanted), None)

    def _run(self, rows: dict[str, list[Row]], watermark: int, *, ahead: int, **more: Any) -> None:
        by_group: list[dict[str, list[Row]]] = [{} for _ in self.groups]
        for key, of_key in rows.items():
            by_group[zlib.crc32(key.encode()) % GROUPS][key] = of_key
        now = self.processing_time
        for label, (stored, of_group) in enumerate(zip(self.groups, by_group, strict=True)):
            store = PagedStore(stored, self.runner.layout, label=label)
            self.runner.run_batch(store, of_group, watermark, now, ahead=ahead, **more)
            store.commit(ahead, now)


class PagedChain(MemoryChain):
    """A chain of processes over paged state.

    Args:
        first: The first process.
        links: For each further process the field (or fields) that is its key, and the process.
        out_of_orderness_ms: Bound by which the watermark stays behind the newest event, ms.
    """

    host_type = PagedHost

    @property
    def paged(self) -> list[PagedHost]:
        """The hosts of the processes."""
        return [host for host in self.hosts if isinstance(host, PagedHost)]

"""One process over recorded events, in memory: what evaluations of arrival times and demand run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from millrace import KeyedProcess
from millrace.host.memory_chain import MemoryChain
from millrace.topology import Link, Topology

#: All of it is one region.
REGION: Final = "city"
_BATCH: Final = 5_000


class Timed(Protocol):
    """An event with a time."""

    @property
    def at_ms(self) -> int:
        """When, UTC ms."""


def chain_of(process: KeyedProcess[Any, Any]) -> MemoryChain:
    """Return a host of a process that takes and gives records as they are."""
    return MemoryChain(Topology({}, (Link(process),)), records=True)


def run(chain: MemoryChain, events: Sequence[Timed], until_ms: int | None = None) -> list[Any]:
    """Let events pass, in order, and the clock to a time (UTC ms); return what came out."""
    found: list[Any] = []
    for place in range(0, len(events), _BATCH):
        found += chain.run_batch([(REGION, one.at_ms, one) for one in events[place : place + _BATCH]])
    if until_ms is not None:
        found += chain.advance_watermark(until_ms)
    return [one.payload for one in found if one.output == "main"]

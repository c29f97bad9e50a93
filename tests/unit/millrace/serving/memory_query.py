"""A query in memory that writes a checkpoint as Spark does: for tests of what reads one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from millrace.chaos.hostile import Message
from millrace.chaos.memory import MemoryStation, StationBytes
from millrace.runtime.settings import AppSettings
from millrace.topology import Topology
from millrace.topology.contract import contract_of, station_contract
from tests.unit.millrace.checkpoints.spark_files import CheckpointWriter


class _Store(StationBytes):
    changed: dict[Any, bytes | None]

    def commit(self) -> None:
        self.changed = dict(self.batch)
        super().commit()


class MemoryQuery:
    """Runs an app's topology as a station; what it commits can be read by files.

    Args:
        root: An empty folder.
        topology: The topology.
        settings: The app's settings.
        topic: The topic whose offsets its checkpoint tells.
        versions: The versions of contracts that it reads.
    """

    def __init__(
        self,
        root: Path,
        topology: Topology,
        settings: AppSettings,
        topic: str,
        versions: Sequence[str] = ("1",),
    ) -> None:
        groups = [settings.spark.key_groups] * len(topology.links)
        kept = [link.process.stored_as for link in topology.links if link.process.keeps_broadcast()]
        contract = contract_of(topology, groups) | {"station": station_contract(kept, 1, None)}
        self.writer = CheckpointWriter(root, msgspec.json.decode(msgspec.json.encode(contract)), topic)
        self._station = MemoryStation(topology, settings, versions)
        self._store = self._station._store = _Store()
        self._topic, self._read = topic, 0

    def run(self, messages: Sequence[Message], *, commits: bool = True) -> list[tuple[str, Any]]:
        """Run a batch and return what comes out; it can be left to :meth:`settle` to commit it."""
        found = [(output, msgspec.json.decode(p)) for output, p in self._station.run(messages)]
        self._read += sum(m.topic == self._topic for m in messages)
        self.writer.plan(self._store.changed, {0: self._read})
        if commits:
            self.settle()
        return found

    def kept(self) -> dict[Any, bytes]:
        """Return all that it keeps, by its place."""
        return dict(self._store.kept)

    def settle(self) -> None:
        """Commit the batch that was run."""
        self.writer.settle()

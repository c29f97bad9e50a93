"""Writes a checkpoint as Spark does, as far as it is read by files: for tests without an engine."""

from __future__ import annotations

import json
import struct
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.checkpoints.checkpoint import Checkpoint
from millrace.host.groups import group_labels
from millrace.host.station import At

_MAGIC = 0x88E241B785F4CFF7
Changes = Mapping[bytes, bytes | None]


def varint(number: int) -> bytes:
    made = b""
    while number >= 0x80:
        made += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return made + bytes((number,))


def lz4_blocks(data: bytes, size: int = 1 << 16, *, packed: bool = True) -> bytes:
    """Return a stream of LZ4 as Java writes it."""
    made = b""
    for at in range(0, len(data), size):
        plain = data[at : at + size]
        block = pa.compress(plain, codec="lz4_raw", asbytes=True) if packed else plain
        made += struct.pack("<8sBiii", b"LZ4Block", 0x25 if packed else 0x15, len(block), len(plain), 0)
        made += block
    return made + struct.pack("<8sBiii", b"LZ4Block", 0x15, 0, 0, 0)


def changelog(lineage: Sequence[tuple[int, str]], changes: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """Return the changelog of a version, unpacked."""
    told = json.dumps([{"version": v, "checkpointUniqueId": i} for v, i in lineage]).encode()
    made = b"\x00\x02v4" + struct.pack(">H", len(told)) + told
    for key, value in changes:
        if value is None:
            made += b"\x10" + struct.pack(">i", len(key)) + key + struct.pack(">i", -1)
        else:
            made += b"\x01" + struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value
    return made + b"\x00"


def table(entries: Sequence[tuple[bytes, int, bytes | None]], *, block: int = 200, lz4: bool = True) -> bytes:
    """Return a table of RocksDB: keys with a sequence number and a value, ``None`` where it was removed."""
    made = bytearray()

    def put(plain: bytes) -> bytes:
        data = varint(len(plain)) + pa.compress(plain, codec="lz4_raw", asbytes=True) if lz4 else plain
        handle = varint(len(made)) + varint(len(data))
        made.extend(data + bytes((4 if lz4 else 0,)) + bytes(4))
        return handle

    def stamped(key: bytes, sequence: int, value: bytes | None) -> bytes:
        return key + struct.pack("<Q", sequence << 8 | (value is not None))

    index: list[tuple[bytes, bytes]] = []
    rows: list[tuple[bytes, bytes]] = []
    for key, sequence, value in sorted(entries, key=lambda e: (e[0], -e[1])):
        rows.append((stamped(key, sequence, value), value or b""))
        if sum(len(k) + len(v) for k, v in rows) > block:
            index.append((rows[-1][0][:-8], put(_block(rows))))
            rows = []
    if rows:
        index.append((rows[-1][0][:-8], put(_block(rows))))
    about = {
        b"rocksdb.block.based.table.index.type": bytes(4),
        b"rocksdb.index.key.is.user.key": varint(1),
        b"rocksdb.index.value.is.delta.encoded": varint(1),
        b"rocksdb.num.data.blocks": varint(len(index)),
    }
    properties = put(_block(sorted(about.items())))
    meta = put(_block([(b"rocksdb.properties", properties)]))
    handles = put(_index(index))
    footer = b"\x04" + (meta + handles).ljust(40, b"\0") + struct.pack("<IQ", 5, _MAGIC)
    return bytes(made) + footer


def _block(rows: Sequence[tuple[bytes, bytes]], restart: int = 4) -> bytes:
    made, restarts, before = b"", [], b""
    for number, (key, value) in enumerate(rows):
        shared = 0
        if number % restart:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        else:
            restarts.append(len(made))
        made += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    restarts = restarts or [0]
    return made + struct.pack(f"<{len(restarts)}I", *restarts) + struct.pack("<I", len(restarts))


def _index(rows: Sequence[tuple[bytes, bytes]]) -> bytes:
    made, restarts = b"", []
    for key, handle in rows:
        restarts.append(len(made))
        made += b"\0" + varint(len(key)) + key + handle
    restarts = restarts or [0]
    return made + struct.pack(f"<{len(restarts)}I", *restarts) + struct.pack("<I", len(restarts))


class PartitionWriter:
    """Writes the versions of a partition.

    Args:
        folder: Its folder.
        variables: Name → number, as a snapshot tells them.
    """

    def __init__(self, folder: Path, variables: Mapping[str, int]) -> None:
        folder.mkdir(parents=True)
        self.folder, self._variables = folder, dict(variables)
        self.lineage: list[tuple[int, str]] = []
        self.kept: dict[bytes, bytes] = {}

    def commit(self, changes: Sequence[tuple[bytes, bytes | None]], *, packed: bool = True) -> str:
        """Write the next version, and return its name."""
        name = str(uuid.uuid4())
        version = self.lineage[-1][0] + 1 if self.lineage else 1
        data = lz4_blocks(changelog(self.lineage, changes), packed=packed)
        (self.folder / f"{version}_{name}.changelog").write_bytes(data)
        self.lineage.append((version, name))
        for key, value in changes:
            if value is None:
                self.kept.pop(key, None)
            else:
                self.kept[key] = value
        return name

    def snapshot(self, *, parts: int = 1, old: Changes | None = None, lz4: bool = True) -> None:
        """Write a snapshot of the last version, in some tables, which have what was before, too."""
        version, name = self.lineage[-1]
        (self.folder / "SSTs").mkdir(exist_ok=True)
        tables: list[list[tuple[bytes, int, bytes | None]]] = [[] for _ in range(parts + 1)]
        for number, (key, value) in enumerate(sorted(self.kept.items())):
            tables[number % parts].append((key, 1_000 + number, value))
        for number, (key, value) in enumerate(sorted((old or {}).items())):
            tables[-1].append((key, 1 + number, value))
            if key not in self.kept:
                tables[number % parts].append((key, 5_000 + number, None))
        files = []
        for rows in filter(None, tables):
            file = f"{uuid.uuid4()}.sst"
            (self.folder / "SSTs" / file).write_bytes(table(rows, lz4=lz4))
            files.append({"localFileName": "1.sst", "dfsSstFileName": file, "sizeBytes": 1})
        about = {"sstFiles": files, "columnFamilyMapping": self._variables}
        with zipfile.ZipFile(self.folder / f"{version}_{name}.zip", "w") as packed:
            packed.writestr("metadata", b"v1\n" + json.dumps(about).encode())
            packed.writestr("000004.log", b"")
        self.lineage = [(version, name)]


def row_of(data: bytes) -> bytes:
    """Return a row with nothing but bytes, as Spark writes it."""
    return b"\0" + bytes(8) + struct.pack("<ii", len(data), 16) + data + bytes(-len(data) % 8)


def station_key(of_key: int, at: At, variable: int = 2) -> bytes:
    """Return the key of a value of a station, as Spark writes it."""
    link, label, number = at
    first = b"\0" + bytes(8) + struct.pack("<ii", 16, 16) + bytes(8) + struct.pack("<i4x", of_key)
    fields = struct.pack("<i4xi4xq", link, label, number)
    second = b"\0" + bytes(8) + struct.pack("<ii", 32, 16) + bytes(8) + fields
    return struct.pack("<Hi", variable, len(first)) + first + second


class CheckpointWriter:
    """Writes the checkpoint of a query that runs as a station.

    Args:
        root: An empty folder.
        contract: The contract beside it.
        topic: The topic that it reads.
    """

    def __init__(self, root: Path, contract: Mapping[str, Any], topic: str = "events") -> None:
        self.checkpoint = Checkpoint(root, root / "checkpoint")
        self._topic = topic
        for name in ("offsets", "commits", "state/0/_metadata/v2"):
            (root / "checkpoint" / name).mkdir(parents=True)
        (root / "contract.json").write_text(json.dumps(contract))
        variables = json.dumps(
            {"stateVariables": [{"stateName": "station", "stateVariableType": "MapState"}]}
        )
        about = {
            "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateInPySparkExec"},
            "stateStoreInfo": [{"storeName": "default", "numPartitions": 1, "stateSchemaFilePaths": []}],
            "operatorPropertiesJson": variables,
        }
        (root / "checkpoint/state/0/_metadata/v2/0").write_text("v2\n" + json.dumps(about))
        self.partition = PartitionWriter(root / "checkpoint/state/0/0", {"default": 1, "station": 2})
        self.batch = -1

    def commit(self, changes: Mapping[At, bytes | None], offsets: Mapping[int, int]) -> int:
        """Write a batch: what it changed, and where its source stands then."""
        self.plan(changes, offsets)
        return self.settle()

    def plan(self, changes: Mapping[At, bytes | None], offsets: Mapping[int, int]) -> None:
        """Write all of a batch but its commit."""
        self.batch += 1
        (label,) = group_labels(1)
        rows = [(station_key(label, at), None if d is None else row_of(d)) for at, d in changes.items()]
        self._name = self.partition.commit(rows)
        place = json.dumps({self._topic: {str(p): o for p, o in offsets.items()}})
        metadata = json.dumps({"conf": {"spark.sql.shuffle.partitions": "1"}})
        (self.checkpoint.folder / f"offsets/{self.batch}").write_text(f"v1\n{metadata}\n{place}")

    def settle(self) -> int:
        """Commit the batch that was planned."""
        told = json.dumps({"stateUniqueIds": {"0": [[self._name]]}})
        (self.checkpoint.folder / f"commits/{self.batch}").write_text(f"v2\n{told}")
        return self.batch

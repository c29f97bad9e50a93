"""State as rows: a row per key, for export and for comparing two versions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t

from millrace.checkpoints.entries import KeptEntry, as_json, key_name, reader_of, whole_entries
from millrace.checkpoints.groups import StoredGroup
from millrace.host.groups import decode_key
from millrace.state.paged import owner_of

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.checkpoints.reading import StateView

#: Scalars of a state's description → type of its column; everything else is JSON text.
_SCALARS: Mapping[str, t.DataType] = {
    "str": t.StringType(),
    "int": t.LongType(),
    "float": t.DoubleType(),
    "bool": t.BooleanType(),
    "datetime": t.TimestampType(),
    "bytes": t.BinaryType(),
}
_KEY_FIELDS = [
    t.StructField("key", t.StringType()),
    t.StructField("key_parts", t.ArrayType(t.StringType())),
    t.StructField("key_group", t.IntegerType()),
    t.StructField("bytes", t.LongType()),
    t.StructField("timers", t.StringType()),
    t.StructField("processing_timers", t.StringType()),
    t.StructField("waiting", t.LongType()),
    t.StructField("expires_at", t.StringType()),
]
_DIGEST_SCHEMA = "key string, digest binary, bytes bigint"


def state_types(contract: Mapping[str, Any], process: str) -> dict[str, t.DataType]:
    """Return the states of a process with the types of their columns.

    Values of text, numbers, times, bools and bytes have columns of their own kind; all else is JSON text.

    Args:
        contract: The contract beside the checkpoint.
        process: The process.
    """
    led = f"{process}." if "links" in contract else ""
    found: dict[str, t.DataType] = {}
    for name, about in contract["states"].items():
        if about["kind"] != "broadcast" and name.startswith(led):
            column: t.DataType = t.StringType()
            if about["kind"] in ("value", "reducing"):
                column = _SCALARS.get(_scalar(about["type"]), column)
            found[name.removeprefix(led)] = column
    return found


def _scalar(described: Any) -> str:
    """Return the scalar that a description comes to, also where it may be missing."""
    if isinstance(described, dict) and "union" in described:
        members = [m for m in described["union"] if m != "none"]
        described = members[0] if len(members) == 1 else described
    if isinstance(described, dict) and "scalar" in described:
        described = described["scalar"]
    return described if isinstance(described, str) else ""


def entries_of(view: StateView) -> DataFrame:
    """Return the state of a process as a DataFrame: a row per key.

    Args:
        view: The state; it must stay open while the DataFrame is used.

    Returns:
        Columns key (its parts with bars between them), key_parts, key_group, bytes, timers and
        processing_timers (JSON), waiting (events), expires_at (JSON) and states, a struct with a
        column per state: of its own kind for text, numbers, times and bools, else JSON.
    """
    made = EntryRows(view)
    return view.by_group(made, made.schema)


class EntryRows:
    """Makes rows of a key group's entries in a worker.

    Args:
        view: The state whose rows they are.

    Attributes:
        schema: Their columns.
    """

    def __init__(self, view: StateView) -> None:
        self._types = state_types(view.checkpoint.contract(), view.stage.process)
        fields = [t.StructField(name, kind) for name, kind in self._types.items()]
        states = [t.StructField("states", t.StructType(fields))] if fields else []
        self.schema = t.StructType([*_KEY_FIELDS, *states])
        self._numbers = view.numbers()

    def __call__(self, label: int, group: StoredGroup) -> pa.Table:
        """Return the rows of a key group."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        rows = []
        schemas = group.schemas()
        found = (
            (text, reader_of(schemas[info.schema]).read(cell.body), len(bytes(cell.body)))
            for info, cells, _ in group.cells()
            for text, cell in cells.items()
        )
        for key, entry, size in whole_entries(found):
            rows.append(self._row(key, self._numbers[label], entry, size))
        return pa.Table.from_pylist(rows, schema=to_arrow_schema(self.schema, timezone="UTC"))

    def _row(self, key: str, number: int, entry: KeptEntry, size: int) -> dict[str, Any]:
        data = entry.as_data()
        return {
            "key": key_name(key),
            "key_parts": list(decode_key(key)),
            "key_group": number,
            "bytes": size,
            "timers": as_json(data["timers"]),
            "processing_timers": as_json(data["processing_timers"]),
            "waiting": len(entry.waiting),
            "expires_at": as_json(data["expires_at"]),
            "states": {name: self._column(kind, data["states"].get(name))
                       for name, kind in self._types.items()},
        }  # fmt: skip

    @staticmethod
    def _column(kind: t.DataType, value: Any) -> Any:
        if value is None or (isinstance(kind, t.StringType) and isinstance(value, str)):
            return value
        if isinstance(kind, t.StringType):
            return as_json(value)
        if isinstance(kind, t.TimestampType) and isinstance(value, str):  # one without a zone: UTC
            return datetime.fromisoformat(value).replace(tzinfo=UTC)
        return float(value) if isinstance(kind, t.DoubleType) else value


def digests_of(view: StateView) -> DataFrame:
    """Return a row per key with a digest of its entry: what comparing two versions takes."""
    return view.by_group(_digests, _DIGEST_SCHEMA)


def _digests(_label: int, group: StoredGroup) -> pa.Table:
    import pyarrow as pa

    of_key: dict[str, list[tuple[str, bytes, int]]] = {}
    schemas = [hashlib.blake2b(schema, digest_size=16).digest() for schema in group.schemas()]
    for info, cells, _ in group.cells():
        for text, cell in cells.items():
            body = bytes(msgspec.msgpack.encode(cell))
            digest = hashlib.blake2b(body, digest_size=16, key=schemas[info.schema]).digest()
            of_key.setdefault(owner_of(text)[0], []).append((text, digest, len(bytes(cell.body))))
    digests = []
    for parts in of_key.values():
        of_all = hashlib.blake2b(digest_size=16)
        for text, digest, _ in sorted(parts):
            of_all.update(text.encode() + digest)
        digests.append(parts[0][1] if len(parts) == 1 else of_all.digest())
    return pa.table(
        {
            "key": pa.array(map(key_name, of_key), pa.string()),
            "digest": pa.array(digests, pa.binary()),
            "bytes": pa.array([sum(p[2] for p in parts) for parts in of_key.values()], pa.int64()),
        }
    )


def compared(before: DataFrame, after: DataFrame) -> DataFrame:
    """Return the keys whose state differs between two versions.

    Args:
        before: Digests of the earlier one (:func:`digests_of`).
        after: Digests of the later one.

    Returns:
        Columns key, change (``added``, ``removed``, ``changed``), bytes_before and bytes_after.
    """
    joined = before.alias("a").join(after.alias("b"), F.col("a.key") == F.col("b.key"), "full_outer")
    change = (
        F.when(F.col("a.key").isNull(), "added")
        .when(F.col("b.key").isNull(), "removed")
        .when(F.col("a.digest") != F.col("b.digest"), "changed")
    )
    return joined.select(
        F.coalesce("a.key", "b.key").alias("key"),
        change.alias("change"),
        F.coalesce("a.bytes", F.lit(0)).alias("bytes_before"),
        F.coalesce("b.bytes", F.lit(0)).alias("bytes_after"),
    ).filter(F.col("change").isNotNull())

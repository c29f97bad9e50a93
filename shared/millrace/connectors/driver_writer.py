"""Small batches: collected once and written by the driver in milliseconds.

Spark's own Delta write costs about a second for a batch of a few rows, whatever their number: a plan,
a job, a snapshot and a commit for each table. Here the batch is one job; tables are appended with the
native Delta library, topics with a plain producer. The tables remember batches by the same
transaction entries as Spark's writer does, so the two can take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from millrace.connectors.records import DEAD_LETTER_HEADERS
from millrace.connectors.router import DeadLetterLimit, Outputs
from millrace.errors import MillraceError
from millrace.host.spark_types import META_FIELDS, output_types, struct_type

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

#: Table properties: without deletion vectors every reader can read the tables, and a checkpoint of the
#: log every 50 commits keeps opening them quick.
TABLE_PROPERTIES = {"delta.enableDeletionVectors": "false", "delta.checkpointInterval": "50"}
_META = tuple(f.name for f in META_FIELDS)


class DeliveryFailed(MillraceError):
    """Kafka did not take the records of a batch."""


class DriverWriter:
    """Writes a batch from the driver.

    Args:
        outputs: What goes where.
        table_path: Name of a table → its folder.
        client_options: Options of the Kafka client, ``bootstrap.servers`` included.
        app_id: Identity of the query for the tables.
        limit: When a batch has too many dead letters.
    """

    def __init__(
        self,
        outputs: Outputs,
        table_path: Callable[[str], str],
        client_options: Mapping[str, Any],
        app_id: str,
        limit: DeadLetterLimit,
    ) -> None:
        self._outputs = outputs
        self._table_path = table_path
        self._client_options = dict(client_options)
        self._app_id = app_id
        self._limit = limit
        self._types = output_types(outputs.stream.process)
        self._decoders: dict[str, msgspec.json.Decoder[list[Any]]] = {}
        self._tables: dict[str, DeltaTable] = {}
        self._producer: Any = None

    def write(self, batch: DataFrame, batch_id: int) -> dict[str, int]:
        """Write one batch and return the number of records per output."""
        rows = batch.toArrow()
        counted = pc.value_counts(rows["output"].combine_chunks()).to_pylist() if rows.num_rows else []
        counts = {c["values"]: c["counts"] for c in counted}
        self._limit.check(batch_id, counts)
        for output in self._outputs.topics:
            if counts.get(output):
                self._produce(output, _of(rows, output))
        self._flush()
        for output in self._outputs.tables:
            if counts.get(output):
                self._append(output, _of(rows, output), batch_id)
        return counts

    def prepare(self) -> None:
        """Create the tables that do not exist, so that readers find them empty rather than missing."""
        for output in self._outputs.tables:
            self._table(output)

    # -- tables --------------------------------------------------------------------------------

    def _append(self, output: str, rows: pa.Table, batch_id: int) -> None:
        from deltalake import CommitProperties, Transaction, write_deltalake

        table = self._table(output)
        app_id = f"{self._app_id}:{self._outputs.tables[output]}"
        table.update_incremental()
        written = table.transaction_version(app_id)
        if written is not None and written >= batch_id:
            return
        write_deltalake(
            table,
            self.columns(output, rows),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction(app_id, batch_id)]),
        )

    def columns(self, output: str, rows: pa.Table) -> pa.Table:
        """Return the rows of one output with typed columns, as Spark's writer leaves them.

        Args:
            output: Name of the output.
            rows: Its rows as the process emitted them.
        """
        schema = self._schema(output)
        payloads = rows["payload"].to_pylist()
        names = [name for name in schema.names if name not in _META]
        if _arrow_reads(schema):
            arrays = _read_json(payloads, pa.schema([schema.field(n) for n in names]))
            return self._with_meta(arrays, rows, schema)
        records = self._decode(output, payloads)
        if names == ["value"] and not hasattr(self._types[output], "__struct_fields__"):
            values = [records]
        else:
            fields = {f.encode_name: f.name for f in msgspec.structs.fields(self._types[output])}
            values = [[_plain(getattr(r, fields[name])) for r in records] for name in names]
        arrays = [pa.array(v, schema.field(n).type) for n, v in zip(names, values, strict=True)]
        return self._with_meta(arrays, rows, schema)

    @staticmethod
    def _with_meta(arrays: Sequence[Any], rows: pa.Table, schema: pa.Schema) -> pa.Table:
        when = pc.multiply(rows["event_time_ms"], 1000).cast(pa.timestamp("us", "UTC"))
        return pa.Table.from_arrays(
            [*arrays, rows["event_id"].cast(pa.string()), when, rows["on_time"]], schema=schema
        )

    def _decode(self, output: str, payloads: Sequence[bytes]) -> list[Any]:
        decoder = self._decoders.get(output)
        if decoder is None:
            kind: Any = self._types[output]
            decoder = self._decoders[output] = msgspec.json.Decoder(list[kind])
        return decoder.decode(b"[" + b",".join(payloads) + b"]")

    def _schema(self, output: str) -> pa.Schema:
        from pyspark.sql.pandas.types import to_arrow_schema

        spark = t.StructType([*struct_type(self._types[output]).fields, *META_FIELDS])
        return to_arrow_schema(spark, timezone="UTC")

    def _table(self, output: str) -> DeltaTable:
        from deltalake import DeltaTable

        found = self._tables.get(output)
        if found is None:
            path = self._table_path(self._outputs.tables[output])
            found = self._tables[output] = DeltaTable.create(
                path, schema=self._schema(output), mode="ignore", configuration=TABLE_PROPERTIES
            )
        return found

    # -- topics --------------------------------------------------------------------------------

    def _produce(self, output: str, rows: pa.Table) -> None:
        if self._producer is None:
            from confluent_kafka import Producer

            from millrace.kafka.admin import quiet_config

            self._failures: list[str] = []
            self._producer = Producer(
                {
                    "enable.idempotence": True,
                    "compression.type": "lz4",
                    "linger.ms": 2,
                    **quiet_config(),
                    **self._client_options,
                }
            )
        for key, value, headers in self.records(output, rows):
            while True:
                try:
                    self._producer.produce(
                        self._outputs.topics[output], value, key, headers=headers, on_delivery=self._delivered
                    )
                    break
                except BufferError:
                    self._producer.poll(0.1)

    def records(
        self, output: str, rows: pa.Table
    ) -> list[tuple[bytes, bytes | None, list[tuple[str, bytes]]]]:
        """Return an output as Kafka records: key, value and headers, as Spark's writer leaves them.

        Args:
            output: Name of the output.
            rows: Its rows as the process emitted them.
        """
        keys = [k.partition(":")[2].encode() for k in rows["key"].to_pylist()]
        payloads, identities = rows["payload"].to_pylist(), rows["event_id"].to_pylist()
        if output != "dead_letters":
            return [
                (key, payload, _headers({"event_id": identity}))
                for key, payload, identity in zip(keys, payloads, identities, strict=True)
            ]
        letters = self._decode(output, payloads)
        made = []
        for key, letter, identity in zip(keys, letters, identities, strict=True):
            parts = {
                n: identity if f == "_event_id" else getattr(letter, f)
                for n, f in DEAD_LETTER_HEADERS.items()
            }
            source = [letter.topic, letter.partition, letter.offset]
            parts["dlq.source"] = ":".join(str(p) for p in source if p is not None)
            made.append((key, letter.value, _headers(parts)))
        return made

    def _flush(self) -> None:
        if self._producer is None:
            return
        left = self._producer.flush(60)
        failures, self._failures = self._failures, []
        if left or failures:
            why = failures[0] if failures else "no answer within 60 s"
            raise DeliveryFailed(f"Kafka did not take {left + len(failures)} records: {why}")

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failures.append(str(error))


def _arrow_reads(schema: pa.Schema) -> bool:
    """Return whether Arrow's JSON reader gives every column as it was written.

    It takes base64 for text and knows not all forms of a time.
    """

    def plain(kind: pa.DataType) -> bool:
        if pa.types.is_struct(kind):
            return all(plain(field.type) for field in kind)
        if pa.types.is_list(kind):
            return plain(kind.value_type)
        return any(is_a(kind) for is_a in (pa.types.is_string, pa.types.is_int64, pa.types.is_float64,
                                           pa.types.is_boolean))  # fmt: skip

    return all(plain(field.type) for field in schema if field.name not in _META)


def _read_json(payloads: Sequence[bytes], schema: pa.Schema) -> list[pa.ChunkedArray]:
    """Return the columns of one JSON object per payload."""
    from pyarrow import json as arrow_json

    text = b"\n".join(payloads)
    table = arrow_json.read_json(
        pa.BufferReader(text),
        read_options=arrow_json.ReadOptions(block_size=max(1 << 20, min(len(text) + 1, 8 << 20))),
        parse_options=arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    return [table[name] for name in schema.names]


def _of(rows: pa.Table, output: str) -> pa.Table:
    return rows.filter(pc.equal(rows["output"], output))


def _headers(parts: Mapping[str, str | None]) -> list[tuple[str, bytes]]:
    return [(name, value.encode()) for name, value in parts.items() if value is not None]


def _plain(value: Any) -> Any:
    """Return a field as plain data where it holds structs."""
    if isinstance(value, msgspec.Struct) or (
        isinstance(value, Sequence) and value and isinstance(value[0], msgspec.Struct)
    ):
        return msgspec.to_builtins(value)
    return value

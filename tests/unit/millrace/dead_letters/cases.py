"""Tables of dead letters as apps write them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import write_deltalake

from millrace.connectors.driver_writer import TABLE_PROPERTIES
from millrace.dead_letters import DeadLetter
from millrace.host.spark_records import TypedColumns

TOPIC = "demo.events"
SCHEMA = TypedColumns(DeadLetter).schema


def identity(number: int) -> str:
    return hashlib.blake2b(str(number).encode(), digest_size=12).hexdigest()


def letter(number: int, **changes: Any) -> dict[str, Any]:
    """Return a row of the table; its event stands in partition ``number % 2``."""
    made = DeadLetter(
        reason="schema",
        stage="decode",
        process="Demo",
        error="ValidationError: Expected `float` > 0",
        error_digest="d1",
        key=f"{len(f'key-{number}')}:key-{number}",
        event_time_ms=1_767_225_600_000 + number,
        topic=TOPIC,
        partition=number % 2,
        offset=number // 2,
        value=b'{"n": %d}' % number,
        headers=msgspec.json.encode({"ce_id": f"e-{number}"}).decode(),
    )
    meta = {"_event_id": identity(number), "_event_time": datetime(2026, 1, 1, tzinfo=UTC), "_on_time": True}
    return {**msgspec.structs.asdict(made), **meta, **changes}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Append a batch."""
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    write_deltalake(str(path), table, mode="append", configuration=TABLE_PROPERTIES)

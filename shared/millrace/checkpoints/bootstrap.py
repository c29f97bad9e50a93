"""Bootstrap: a checkpoint made from a table, for a query to begin with."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.checkpoints.checkpoint import Checkpoint, Position
from millrace.checkpoints.reshape import (
    CELLS_SCHEMA,
    GroupPacker,
    GroupShape,
    Shared,
    cell_rows,
    new_cell,
    shared_rows,
    with_every_group,
)
from millrace.checkpoints.savepoints import Restored, new_checkpoint, new_contract
from millrace.checkpoints.writer import GROUPS_SCHEMA, assemble, keep_link, write_groups, write_stations
from millrace.errors import UserError
from millrace.host.groups import encode_key, key_part
from millrace.process import kept_states
from millrace.runtime.contract import CONTRACT_FILE, ENCRYPTION, owned
from millrace.state.layout import EntryLayout
from millrace.state.slots import EXPIRING, slot_form
from millrace.state.specs import StateSpec, StateTypeError
from millrace.time import NEVER
from millrace.time.clock import from_watermark

if TYPE_CHECKING:
    from millrace.host.spark import ProcessedStream

_PARTITIONS = "spark.sql.shuffle.partitions"


class BootstrapError(UserError):
    """A table cannot become the state of a process."""


def bootstrap(
    stream: ProcessedStream,
    table: DataFrame,
    to: str | Path,
    *,
    written_at: datetime | int | None = None,
    watermark: datetime | int | None = None,
    sources: int = 1,
) -> Restored:
    """Make a checkpoint whose state comes from a table; the query of ``stream`` then goes on from it.

    A row per key: the columns of the key, by the names that ``keyed`` was given, and a column for each
    state that is to hold something. Values, accumulators and structs as they are declared; a map as a
    map, a list as an array, a versioned state as an array of structs (valid_from in ms, value). Null is
    nothing. Timers are not set.

    Args:
        stream: The stream that will run, of one process; nothing of it is started.
        table: The rows, of a bounded DataFrame.
        to: The folder that ``write_to`` will be given, or an app's ``storage.root``; without a checkpoint.
        written_at: Event time (UTC; ms or datetime) at which values with a time to live count as written.
        watermark: The watermark that the query begins with (ms or datetime); what is older is late.
        sources: How many sources the query reads; all of them from where they are told to start.

    Raises:
        BootstrapError: Columns do not fit the process, a key stands in the table twice, or there is a
            checkpoint already.

    Example:
        >>> bootstrap(balances, spark.read.parquet("opening"), "out/state")  # doctest: +SKIP
        >>> balances.write_to({"main": "out/balances"}, "out/state")  # doctest: +SKIP
    """
    specs = _checked(stream, table, written_at is not None)
    root = Path(to).absolute()
    begins_at = _ms(watermark)
    clock = None if begins_at is None else from_watermark(begins_at, stream.clock.bound_ms)
    stations = stream.front.stations if stream.front.plan == "station" else 0
    keys = stream.state_keys
    shape = GroupShape(stream.process.stored_as, stream.key_groups[0], keys, clock, stations=stations)
    fill = EntryFiller(kept_states(stream.process), specs, stream.keys, shape, _ms(written_at))
    columns = [*(F.col(k) for k in stream.keys), *(F.col(s) for s in specs)]
    cells = table.select(*columns).mapInArrow(lambda batches: fill(batches), CELLS_SCHEMA)
    pack = GroupPacker(shape, Shared(), EntryLayout(kept_states(stream.process)).schema)
    if clock is not None and not stations:  # every group has it, also those without keys
        cells = with_every_group(cells, shape.key_groups)
    groups = cells.groupBy("station", "label").applyInArrow(lambda key, rows: pack(key, rows), GROUPS_SCHEMA)
    session = table.sparkSession
    with owned(root), tempfile.TemporaryDirectory(prefix="bootstrap-", dir=root) as work:
        if (root / "checkpoint").exists() or (root / CONTRACT_FILE).exists():
            raise BootstrapError(f"{root} has a checkpoint already: choose another folder")
        if stations:
            keep_link(groups, shared_rows(shape, Shared()), Path(work), 0)
            written = write_stations(session, Path(work), [None], stations)
        else:
            written = write_groups(
                groups,
                Path(work),
                partitions=int(session.conf.get(_PARTITIONS) or 1),
                has_broadcast=stream.process.keeps_broadcast(),
            )
        nowhere = Position(0, (None,) * sources, {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
        contract = new_contract(stream.contract(), {"bootstrapped": True})
        if keys is not None and ENCRYPTION in contract:
            contract[ENCRYPTION] = {**contract[ENCRYPTION], "keys": [keys.ids[0]]}
        with new_checkpoint(root, contract) as folder:
            assemble(folder, {0: written}, position=nowhere, sources=None)
    return Restored(Checkpoint(root, root / "checkpoint"), contract["incarnation"])


def _checked(stream: ProcessedStream, table: DataFrame, has_time: bool) -> list[str]:
    """Return the states that the table has columns for."""
    process, keys = stream.process, stream.keys
    if len(stream.topology.links) > 1:
        raise BootstrapError("only a stream of one process can be begun with a table, this is a chain")
    missing = [k for k in keys if k not in table.columns]
    if missing:
        raise BootstrapError(f"the table has no column {', '.join(missing)}, which the key is made of")
    specs = {s.name: s for s in process.states if s.kind != "broadcast"}
    named = [c for c in table.columns if c not in keys]
    unknown = [c for c in named if c not in specs]
    if unknown or not named:
        what = f"the columns {', '.join(unknown)} are" if unknown else "no column is"
        raise BootstrapError(f"{what} a state of {process.name}; it has {', '.join(specs)}")
    expiring = [n for n in named if specs[n].expires and not specs[n].on_processing_time]
    if expiring and not has_time:
        raise BootstrapError(
            f"{', '.join(expiring)} lives for a limited time: say with written_at from when it counts"
        )
    twice = table.groupBy(*keys).count().filter("count > 1").limit(1).collect()
    if twice:
        key = "|".join(str(twice[0][k]) for k in keys)
        raise BootstrapError(f"the key {key} stands in the table {twice[0]['count']} times: one row per key")
    return named


def _ms(time: datetime | int | None) -> int | None:
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise BootstrapError(f"{time} has no time zone: give a datetime with one, or ms since the epoch")
        return round(time.timestamp() * 1_000)
    return time


@dataclass
class EntryFiller:
    """Makes entries of rows, in a worker; pass it to ``mapInArrow``.

    Attributes:
        states: All states of the process, in their order.
        named: Those that the rows have.
        keys: Columns of the key.
        shape: Where keys belong.
        written_at: Event time from which values with a time to live count, ms.
    """

    states: tuple[StateSpec, ...]
    named: list[str]
    keys: tuple[str, ...]
    shape: GroupShape
    written_at: int | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return a row per key."""
        layout = EntryLayout(self.states)
        specs = [s for s in layout.specs if s.name in self.named]
        for batch in batches:
            rows = []
            for row in batch.to_pylist():
                text = encode_key(tuple(key_part(row[k]) for k in self.keys))
                entry = layout.new()
                for spec in specs:
                    if row[spec.name] is not None:
                        setattr(entry, spec.name, self.slot(spec, row[spec.name], text))
                cell = new_cell(layout, entry)
                if cell is not None:
                    layout.check(bytes(cell.body), text)
                    rows.append((*self.shape.place(text), text, layout.schema, msgspec.msgpack.encode(cell)))
            yield from cell_rows(rows).to_batches()

    def slot(self, spec: StateSpec, value: Any, key: str) -> Any:
        """Return a column's value as it is kept.

        Raises:
            StateTypeError: It is not of the state's type.
        """
        try:
            kept = _typed(spec, value)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise StateTypeError(f"{spec.name} of key '{key}' is not what is declared: {error}") from error
        if slot_form(spec) != EXPIRING:
            return kept
        expiry = self._expiry(spec)
        if spec.kind == "map":
            return {k: (expiry, v) for k, v in kept.items()}
        return [(expiry, v) for v in kept] if spec.kind == "list" else (expiry, kept)

    def _expiry(self, spec: StateSpec) -> int:
        if spec.ttl_ms is None:
            return NEVER
        if spec.on_processing_time:  # begins with the first tick
            return NEVER - spec.ttl_ms
        return (self.written_at or 0) + spec.ttl_ms


def _typed(spec: StateSpec, value: Any) -> Any:
    """Return a value of Arrow's as one of the state's type."""
    if spec.kind == "map":
        pairs = value.items() if isinstance(value, dict) else value
        return {
            msgspec.convert(k, spec.key_type): msgspec.convert(v, spec.type, strict=False) for k, v in pairs
        }
    if spec.kind == "list":
        return [msgspec.convert(v, spec.type, strict=False) for v in value]
    if spec.kind == "versioned":
        versions = [
            (int(v["valid_from"]), msgspec.convert(v["value"], spec.type | None, strict=False)) for v in value
        ]
        return sorted(versions, key=lambda version: version[0])
    return msgspec.convert(value, spec.type, strict=False)

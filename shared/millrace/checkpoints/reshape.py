"""Cells of entries on their way to other key groups, and key groups put together from them, in workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from millrace.checkpoints.groups import StoredGroup, packed_group
from millrace.host.groups import decode_key, encode_key, group_labels, key_group, station_of
from millrace.host.station import BROADCAST, HEADER, SHARED, place_of
from millrace.process import kept_states
from millrace.state.cells import CLOCK_PAGE, Cell, StateCorrupted, encode, present
from millrace.state.conversion import Conversion, Converter
from millrace.state.earlier_entries import OlderLayout
from millrace.state.envelope import wrap
from millrace.state.keyring import KeyReference
from millrace.state.layout import EntryLayout
from millrace.state.paged import owner_of
from millrace.time import NO_WATERMARK
from millrace.time.clock import ClockState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.process import KeyedProcess

#: A row per entry: the station and the group where it belongs, its key, what its slots are, and the cell.
CELLS_SCHEMA: Final = "station int, label int, key string, schema binary, cell binary"
_TYPES: Final = {
    "station": pa.int32(),
    "label": pa.int32(),
    "key": pa.string(),
    "schema": pa.binary(),
    "cell": pa.binary(),
}


def cell_rows(rows: list[tuple[int, int, str, bytes, bytes]]) -> pa.Table:
    """Return cells as a table of :data:`CELLS_SCHEMA`."""
    columns = list(zip(*rows, strict=True)) or [()] * len(_TYPES)
    return pa.table({n: pa.array(c, tp) for (n, tp), c in zip(_TYPES.items(), columns, strict=True)})


def with_every_group(cells: DataFrame, key_groups: int) -> DataFrame:
    """Return cells with a row for each key group, so that those without keys are packed too."""
    labels = [(0, label, None, None, None) for label in group_labels(key_groups)]
    return cells.unionByName(cells.sparkSession.createDataFrame(labels, CELLS_SCHEMA))


def new_cell(layout: EntryLayout, entry: Any) -> Cell | None:
    """Return an entry as a cell, ``None`` if nothing is kept in it."""
    expiry, processing_expiry = layout.expire(entry, NO_WATERMARK)
    if layout.is_empty(entry):
        return None
    return Cell(
        layout.timer(entry),
        present(expiry),
        msgspec.Raw(layout.encode(entry)),
        layout.processing_timer(entry),
        present(processing_expiry),
    )


@dataclass(frozen=True)
class Shared:
    """What is the same for all key groups of a process.

    Attributes:
        broadcast: The broadcast state, packed.
        processing_time: The last tick of processing time, ms.
    """

    broadcast: bytes | None = None
    processing_time: int | None = None


@dataclass(frozen=True)
class GroupShape:
    """What the state of a process is to be.

    Attributes:
        process: Its name.
        key_groups: Its number of key groups.
        keys: What encrypts it.
        clock: How far its clock is; ``None``: it has not begun.
        newest: The process as it is now, where several versions have written.
        stations: How many stations it is in, each of which has what is the same for all key groups once,
            beside them; 0: it is a link of a chain.
        conversion: What becomes of what an earlier version of it kept; with ``newest``.
    """

    process: str
    key_groups: int
    keys: KeyReference | None
    clock: ClockState | None
    newest: KeyedProcess[Any, Any] | None = None
    stations: int = 0
    conversion: Conversion | None = None

    def place(self, key: str) -> tuple[int, int]:
        """Return the station and the label of the key group where a key belongs."""
        label = group_labels(self.key_groups)[key_group(key, self.key_groups)]
        return station_of(key, self.stations) if self.stations > 1 else 0, label


class CellRows:
    """Takes a key group apart, in a worker: a row per key, with the group where it belongs now."""

    def __init__(self, shape: GroupShape, processing_time: int | None) -> None:
        self._shape = shape
        self._processing_time = NO_WATERMARK if processing_time is None else processing_time

    def __call__(self, _label: int, group: StoredGroup) -> pa.Table:
        """Return a row per entry of a group."""
        schemas = group.schemas()
        rows = []
        for info, cells, _ in group.cells():
            schema = schemas[info.schema]
            for key, cell in cells.items():
                text, kept = key, cell
                if self._shape.newest is not None:
                    text, renewed = self._renewed(schema, key, cell)
                    if renewed is None:
                        continue
                    kept = renewed
                place = self._shape.place(owner_of(text)[0])
                rows.append((*place, text, schema, msgspec.msgpack.encode(kept)))
        return cell_rows(rows)

    def _renewed(self, schema: bytes, text: str, cell: Cell) -> tuple[str, Cell | None]:
        """Return key and entry in the form that the process has now; ``None`` if nothing is left of it."""
        assert self._shape.newest is not None  # noqa: S101  (the caller's)
        clock = self._shape.clock or ClockState()
        if not hasattr(self, "_layout"):
            self._layout = EntryLayout(kept_states(self._shape.newest), owner=self._shape.process)
            self._layout.lag_ms = clock.lag_ms
        layout = self._layout
        if self._shape.conversion is not None:
            owner, part = owner_of(text)
            converter = self._converter(schema, self._shape.conversion, is_part=part is not None)
            watermark = None if clock.watermark == NO_WATERMARK else clock.watermark
            key = decode_key(owner)
            now, entry = converter.convert(key, cell.body, watermark, clock.own(), self._processing_time)
            return (text if now == key else encode_key(now)), new_cell(layout, entry)
        if schema == layout.schema:
            return text, cell
        if schema not in layout.older:
            layout.older[schema] = OlderLayout(layout, schema)
        entry = layout.older[schema].decode(cell.body, clock.own(), self._processing_time)
        return text, new_cell(layout, entry)

    def _converter(self, schema: bytes, conversion: Conversion, *, is_part: bool) -> Converter:
        """Return what converts entries of a schema; a part of one has items alone, which only get names."""
        place = schema + bytes([is_part])
        if place not in self._layout.older:
            if is_part:
                conversion = replace(conversion, rewrite=None)
            self._layout.older[place] = Converter(self._layout, schema, conversion)
        found: Converter = self._layout.older[place]
        return found


class GroupPacker:
    """Puts a new key group together, in a worker, and seals it for its place."""

    def __init__(self, shape: GroupShape, shared: Shared, schema: bytes) -> None:
        self._shape = shape
        self._shared = Shared() if shape.stations else shared
        self._schema = schema

    def __call__(self, key: Any, table: pa.Table) -> pa.Table:
        """Return the rows of the group that these entries make."""
        station, label = (part.as_py() for part in key)
        schema, cells = self._schema, {}
        decode = msgspec.msgpack.Decoder(Cell).decode
        names = (table.column(name).to_pylist() for name in ("key", "schema", "cell"))
        for text, of_key, packed in zip(*names, strict=True):
            if text is not None:
                schema = schema if self._shape.newest is not None else of_key
                if text in cells:
                    raise StateCorrupted(f"two entries of {self._shape.process} would have the key {text}")
                cells[text] = decode(packed)
        clock = None if self._shape.stations else self._shape.clock
        group = packed_group(
            cells,
            schema,
            broadcast=self._shared.broadcast,
            processing_time=self._shared.processing_time,
            clock=None if clock is None else encode(clock),
        )
        found: dict[int, bytes] = {}
        if cells or group.broadcast is not None or self._shared.processing_time is not None:
            found[HEADER] = group.header
        else:  # nothing but a clock
            group.pages.clear()
        if group.clock is not None:
            group.pages[CLOCK_PAGE] = group.clock
        if group.broadcast is not None:
            found[BROADCAST] = group.broadcast
        return wrapped_rows(self._shape, label, {**found, **group.pages}, station)


def wrapped_rows(shape: GroupShape, label: int, values: Mapping[int, bytes], station: int = 0) -> pa.Table:
    """Return values as rows of a key group, each sealed for its place.

    Args:
        shape: What they belong to.
        label: Label of the key group; ``SHARED``: what a station has beside them.
        values: Number → bytes.
        station: The station that they are in.
    """
    ring = None if shape.keys is None else shape.keys.ring()
    rows = [(n, wrap(data, place_of(shape.process, label, n, station), ring)) for n, data in values.items()]
    numbers, sealed = zip(*rows, strict=True) if rows else ((), ())
    return pa.table(
        {
            "station": pa.array([station] * len(rows), pa.int32()),
            "label": pa.array([label] * len(rows), pa.int32()),
            "number": pa.array(numbers, pa.int64()),
            "data": pa.array(sealed, pa.binary()),
        }
    )


def shared_rows(shape: GroupShape, shared: Shared) -> pa.Table:
    """Return the rows of what each station has beside its key groups."""
    values: dict[int, bytes] = {}
    if shape.clock is not None:
        values[CLOCK_PAGE] = encode(shape.clock)
    if shared.broadcast is not None:
        values[BROADCAST] = shared.broadcast
    return pa.concat_tables([wrapped_rows(shape, SHARED, values, n) for n in range(shape.stations)])

"""Rescaling: a checkpoint with other partitions, other key groups, or other keys.

Partitions are Spark's, and are changed by Spark's own offline repartition: whole key groups move. The
number of key groups is ours: every entry is put into the group where its key belongs now. So is what state
is encrypted with. All of it happens in a copy, which takes the place of the checkpoint when it is complete.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.checkpoints import positions
from millrace.checkpoints.checkpoint import Checkpoint, relocate
from millrace.checkpoints.gathering import Entries, gathered, scattered
from millrace.checkpoints.groups import StoredGroup
from millrace.checkpoints.reading import StateView, opened, view_of
from millrace.checkpoints.reshape import (
    CELLS_SCHEMA,
    CellRows,
    GroupPacker,
    GroupShape,
    Shared,
    new_cell,
    shared_rows,
    with_every_group,
)
from millrace.checkpoints.savepoints import new_checkpoint, new_contract
from millrace.checkpoints.stages import Stage, stages_of
from millrace.checkpoints.writer import (
    GROUPS_SCHEMA,
    Written,
    assemble,
    keep_link,
    write_groups,
    write_stations,
)
from millrace.errors import UserError
from millrace.host.spark_input import Plan
from millrace.process import kept_states
from millrace.runtime.contract import (
    ENCRYPTION,
    RESTORED,
    conversions_of,
    is_older,
    links_of,
    owned,
    refuse_older,
    with_own_clock,
)
from millrace.state.broadcast import renamed_maps
from millrace.state.cells import SCHEMA_PAGE, Cell
from millrace.state.keyring import CIPHER, KeyReference
from millrace.state.layout import EntryLayout
from millrace.time.clock import ClockState, from_watermark
from millrace.topology.contract import STATION, station_contract, stations_of

if TYPE_CHECKING:
    from millrace.process import KeyedProcess


class Regroup(Protocol):
    """Gives entries of processes other keys.

    Attributes:
        processes: Names of the processes whose entries it changes.
    """

    @property
    def processes(self) -> Sequence[str]:
        """Names of the processes whose entries it changes."""

    def __call__(self, entries: dict[str, Entries]) -> None:
        """Give entries (process → key → entry) other keys, in place.

        Raises:
            UserError: Something has no place among the new keys; nothing is written then.
        """


class RescaleError(UserError):
    """A checkpoint cannot be brought into that shape."""


@dataclass(frozen=True)
class Rescaled:
    """What a checkpoint has become.

    Attributes:
        batch: The batch that it goes on from.
        partitions: Into how many its state is divided.
        key_groups: Key groups by process.
        incarnation: Its identity; another one where the state was written anew.
    """

    batch: int
    partitions: int
    key_groups: dict[str, int]
    incarnation: str


def repartition(spark: SparkSession, checkpoint: Checkpoint, partitions: int) -> Rescaled:
    """Divide the state of a stopped query into another number of partitions.

    Args:
        spark: A session.
        checkpoint: The checkpoint; it stays what it is unless all goes well.
        partitions: How many.

    Raises:
        RescaleError: They are that many already, or a batch stands in a table and not in the checkpoint.
        CheckpointInUse: The query runs.
    """
    if partitions < 1:
        raise RescaleError(f"a query has at least one partition, not {partitions}")
    with owned(checkpoint.root):
        batch = _last_settled(checkpoint)
        if checkpoint.position(batch).partitions == partitions:
            raise RescaleError(f"the state in {checkpoint.folder} has {partitions} partitions already")
        refuse_older(checkpoint.root)
        contract = checkpoint.contract()
        if STATION in contract:
            raise RescaleError(
                f"{checkpoint.folder} is of {_named(stations_of(contract))}, whose state has one partition "
                f"each: make it a chain with --plan chain --partitions {partitions}, or stations with "
                f"--stations {partitions}"
            )
        few = [s for s in stages_of(checkpoint, batch) if s.key_groups < partitions]
        if few:
            raise RescaleError(
                f"{few[0].process} has {few[0].key_groups} key groups, so no more partitions than that can "
                "have work: give it more with --key-groups"
            )
        with new_checkpoint(checkpoint.root, contract) as folder:
            folder.rmdir()  # the copy makes it
            checkpoint.copy(folder, batch)
            relocate(folder)
            spark._streamingCheckpointManager.repartition(str(folder), partitions)
            done = Checkpoint(checkpoint.root, folder).last()
    groups = {s.process: s.key_groups for s in stages_of(checkpoint, done)}
    return Rescaled(done, partitions, groups, contract["incarnation"])


def _last_settled(checkpoint: Checkpoint) -> int:
    """Return the last committed batch, if no table has more than that.

    A batch that was planned and not committed is planned anew, perhaps with other events; what it wrote
    before it was cut off would stay.
    """
    from millrace.connectors.merging import waiting_batches

    last = checkpoint.last()
    incarnation = checkpoint.contract()["incarnation"]
    for table, kind in positions.tables_of(checkpoint.root).items():
        written = positions.last_written(table, kind, incarnation, waiting_batches(table))
        if written is not None and written > last:
            raise RescaleError(
                f"batch {written} stands in {table} and was not committed: start the query once more, so "
                "that it finishes the batch, and stop it"
            )
    return last


def rekey(
    spark: SparkSession,
    checkpoint: Checkpoint,
    *,
    key_groups: int | None = None,
    partitions: int | None = None,
    processes: Sequence[KeyedProcess[Any, Any]] = (),
    key_file: str | None = None,
    keys: KeyReference | None = None,
    reseal: bool = False,
    plan: Plan | None = None,
    stations: int | None = None,
) -> Rescaled:
    """Write the state of a stopped query anew: other key groups, other keys, a station or a chain.

    Args:
        spark: A session.
        checkpoint: The checkpoint; it stays what it is unless all goes well.
        key_groups: How many; unless given, as many as there are.
        partitions: Into how many the state is divided; unless given, as now.
        processes: Where several versions of a process have written: the process as it is now, which
            brings what earlier ones wrote into its form.
        key_file: The file of keys that opens the state, if it is encrypted.
        keys: With ``reseal``: the keys of which the first one encrypts from now on; ``None``: it is
            to be in clear.
        reseal: Whether the encryption changes.
        plan: ``station`` or ``chain``; unless given, what it is.
        stations: How many stations; unless given, as many as there are, or one.

    Raises:
        RescaleError: Something was written that cannot be brought over, or stands in a table only.
        CheckpointInUse: The query runs.
    """
    with owned(checkpoint.root):
        refuse_older(checkpoint.root, processes)
        return rekey_owned(
            spark,
            checkpoint,
            key_groups=key_groups,
            partitions=partitions,
            processes=processes,
            key_file=key_file,
            keys=keys,
            reseal=reseal,
            plan=plan,
            stations=stations,
        )


def rekey_owned(
    spark: SparkSession,
    checkpoint: Checkpoint,
    *,
    key_groups: int | None = None,
    partitions: int | None = None,
    processes: Sequence[KeyedProcess[Any, Any]] = (),
    key_file: str | None = None,
    keys: KeyReference | None = None,
    reseal: bool = False,
    plan: Plan | None = None,
    stations: int | None = None,
    becomes: Mapping[str, Any] | None = None,
    regroup: Regroup | None = None,
    begun: Sequence[str] = (),
) -> Rescaled:
    """Do what :func:`rekey` does with a checkpoint that the caller owns already.

    One of before becomes one of now. ``becomes`` is the contract that it has then, unless what it has with
    the core's own clock. ``regroup`` gives entries other keys; its processes are among ``processes``. So are
    those that are ``begun``: they stand in ``becomes`` and not in the checkpoint yet, and keep nothing.
    """
    batch = _last_settled(checkpoint)
    contract = checkpoint.contract()
    newest = {process.stored_as: process for process in processes}
    conversions = conversions_of(contract, processes)
    started_at = _engine_clock(checkpoint, batch) if is_older(contract) else None
    position = checkpoint.position(batch)
    stages = stages_of(checkpoint, batch)
    if becomes is not None and begun:
        stages = _with_begun(stages, becomes, newest)
    were = stations_of(contract)
    now = _stations(were, stages, plan, stations)
    parts = _partitions(position.partitions, partitions, were=were, now=now)
    groups: dict[str, int] = {}
    ticks: list[int | None] = []
    with tempfile.TemporaryDirectory(prefix="rescale-", dir=checkpoint.root) as work:
        written: dict[int, Written] = {}
        regrouped: dict[str, list[tuple[str, Any]]] = {}
        if regroup is not None:
            regrouped = _regrouped(spark, checkpoint, batch, stages, regroup, newest, key_file)
        for place, stage in enumerate(stages):
            # What begins is where the process is that stood at its place, or else the last one.
            stood = next((s for s in (*stages[place:], *reversed(stages)) if s.process not in begun), stage)
            with view_of(spark, checkpoint, batch=batch, process=stood.process, key_file=key_file) as view:
                shape = GroupShape(
                    stage.process,
                    key_groups or stage.key_groups,
                    keys if reseal else view.keys,
                    next(iter(view.clocks().values()), started_at),
                    newest.get(stage.process),
                    now,
                    conversions.get(stage.process),
                )
                if stage.process in begun:
                    rows, shared = _empty(view, shape)
                else:
                    rows, shared = _reshaped(view, shape, regrouped.get(stage.process))
                groups[stage.process] = shape.key_groups
                if now:
                    keep_link(rows, shared_rows(shape, shared), Path(work), place)
                    ticks.append(shared.processing_time)
                    continue
                # Spark numbers the operators from the end of the query.
                operator = len(stages) - 1 - place
                folder = Path(work) / str(operator)
                folder.mkdir()
                written[operator] = write_groups(
                    rows, folder, partitions=parts, has_broadcast=stage.has_broadcast
                )
        if now:
            written[0] = write_stations(spark, Path(work), ticks, now)
        made = new_contract(
            _with_plan(_with_groups(becomes or with_own_clock(contract), groups), stages, now),
            {**contract.get(RESTORED, {}), "rescaled_after": batch},
        )
        if reseal:
            made.pop(ENCRYPTION, None)
            if keys is not None:
                made[ENCRYPTION] = {"cipher": CIPHER, "keys": [keys.ids[0]]}
        with new_checkpoint(checkpoint.root, made) as folder:
            assemble(
                folder,
                written,
                position=position,
                sources=checkpoint.folder / "sources",
            )
    return Rescaled(checkpoint.last(), parts, groups, made["incarnation"])


def _engine_clock(checkpoint: Checkpoint, batch: int) -> ClockState | None:
    """Return the clock of a checkpoint in which the engine kept it: the watermark of its next batch.

    Nothing that this watermark has passed may come again: it is where the clock begins.
    """
    watermark = int(checkpoint.commit(batch).get("nextBatchWatermarkMs") or 0)
    return from_watermark(watermark, 0) if watermark else None


def _with_groups(contract: Mapping[str, Any], groups: dict[str, int]) -> dict[str, Any]:
    """Return a contract with other numbers of key groups."""
    if "links" not in contract:
        return {**contract, "key_groups": groups[contract["process"]]}
    links = [{**link, "key_groups": groups[link["process"]]} for link in contract["links"]]
    return {**contract, "links": links}


def _named(stations: int) -> str:
    return "a station" if stations == 1 else f"{stations} stations"


def _stations(were: int, stages: list[Stage], plan: Plan | None, wanted: int | None) -> int:
    """Return how many stations there are to be; 0: it is to be a chain."""
    if plan == "chain" or (plan is None and wanted is None and not were):
        if wanted is not None:
            raise RescaleError("a chain has no --stations")
        return 0
    now = wanted or were or 1
    first = {stage.key[0] for stage in stages}
    if now > 1 and len(first) > 1:
        raise RescaleError(
            f"{now} stations need one field that all keys begin with; these begin with "
            f"{', '.join(sorted(first))}"
        )
    return now


def _partitions(had: int, wanted: int | None, *, were: int, now: int) -> int:
    """Return into how many partitions state is divided."""
    if not now:
        if wanted is None and were:
            raise RescaleError("a chain made of a station needs --partitions, such as the number of cores")
        return wanted or had
    if wanted not in (None, now):
        raise RescaleError(f"{_named(now)} has one partition each, not {wanted} in all")
    return now


def _with_plan(contract: dict[str, Any], stages: list[Stage], stations: int) -> dict[str, Any]:
    """Return a contract of another plan."""
    made = {name: value for name, value in contract.items() if name != STATION}
    if stations:
        kept = [stage.process for stage in stages if stage.has_broadcast]
        made[STATION] = station_contract(kept, stations, stages[0].key[0])
    return made


def _regrouped(
    spark: SparkSession,
    checkpoint: Checkpoint,
    batch: int,
    stages: Sequence[Stage],
    regroup: Regroup,
    newest: Mapping[str, KeyedProcess[Any, Any]],
    key_file: str | None,
) -> dict[str, list[tuple[str, Any]]]:
    """Return the entries that have other keys now, text and entry by process; all are in memory here."""
    entries: dict[str, Entries] = {}
    layouts = {
        name: EntryLayout(kept_states(newest[name]), owner=name)
        for name in regroup.processes
        if name in newest
    }
    for stage in stages:
        if stage.process not in layouts:
            continue
        with view_of(spark, checkpoint, batch=batch, process=stage.process, key_file=key_file) as view:
            clock = next(iter(view.clocks().values()), None)
            shape = GroupShape(stage.process, stage.key_groups, view.keys, clock, newest[stage.process])
            shared = view.shared(_headers(view))
            rows = view.by_group(CellRows(shape, shared.processing_time), CELLS_SCHEMA).collect()
        decode = msgspec.msgpack.Decoder(Cell).decode
        cells = ((row.key, decode(bytes(row.cell)).body) for row in rows)
        entries[stage.process] = gathered(layouts[stage.process], cells)
    regroup(entries)
    return {name: list(scattered(layouts[name], found)) for name, found in entries.items()}


def _reshaped(
    view: StateView, shape: GroupShape, entries: Sequence[tuple[str, Any]] | None = None
) -> tuple[DataFrame, Shared]:
    """Return the rows of the new key groups, and what is the same for all of them.

    Args:
        view: The state.
        shape: What it is to be.
        entries: In place of the entries that there are: texts of keys and entries.
    """
    headers = _headers(view)
    found = {schema for group in headers.values() for schema in group.schemas()}
    if len(found) > 1 and shape.newest is None:
        raise RescaleError(
            f"{len(found)} versions of {shape.process} have written this state: name the process that runs "
            "now with --process-class MODULE:CLASS, so that all of it is brought into its form"
        )
    shared = view.shared(headers)
    if shape.conversion is not None and shared.broadcast is not None:
        shared = replace(shared, broadcast=renamed_maps(shared.broadcast, shape.conversion.states))
    layout = None if shape.newest is None else EntryLayout(kept_states(shape.newest), owner=shape.process)
    if entries is None or layout is None:
        cells = view.by_group(CellRows(shape, shared.processing_time), CELLS_SCHEMA)
    else:
        packed = [(text, cell) for text, entry in entries if (cell := new_cell(layout, entry)) is not None]
        rows_of = [
            (*shape.place(text), text, layout.schema, msgspec.msgpack.encode(cell)) for text, cell in packed
        ]
        cells = view.spark.createDataFrame(rows_of, CELLS_SCHEMA)
    # What a group keeps beside its keys every group has, also those without keys.
    beside = shared.processing_time is not None or shared.broadcast is not None or shape.clock is not None
    if beside and not shape.stations:
        cells = with_every_group(cells, shape.key_groups)
    schema = next(iter(found), b"[]") if layout is None else layout.schema
    pack = GroupPacker(shape, shared, schema)
    rows = cells.groupBy("station", "label").applyInArrow(lambda key, table: pack(key, table), GROUPS_SCHEMA)
    return rows, shared


def _with_begun(
    stages: Sequence[Stage], becomes: Mapping[str, Any], newest: Mapping[str, KeyedProcess[Any, Any]]
) -> list[Stage]:
    """Return the processes that a checkpoint is to have, those among them that it has not yet."""
    known = {stage.process: stage for stage in stages}
    return [
        known.get(link["process"])
        or Stage(
            -1,
            link["process"],
            tuple(link["key"]),
            int(link["key_groups"]),
            newest[link["process"]].keeps_broadcast(),
        )
        for link in links_of(becomes)
    ]


def _empty(view: StateView, shape: GroupShape) -> tuple[DataFrame, Shared]:
    """Return the rows of the key groups of a process that begins: nothing but how far its clock is."""
    assert shape.newest is not None  # noqa: S101  (the caller's)
    layout = EntryLayout(kept_states(shape.newest), owner=shape.process)
    cells = view.spark.createDataFrame([], CELLS_SCHEMA)
    if not shape.stations:
        cells = with_every_group(cells, shape.key_groups)
    pack = GroupPacker(shape, Shared(), layout.schema)
    rows = cells.groupBy("station", "label").applyInArrow(lambda key, table: pack(key, table), GROUPS_SCHEMA)
    return rows, Shared()


def _headers(view: StateView) -> dict[tuple[int, int], StoredGroup]:
    """Return the headers, schemas and broadcast states of all groups, by station and label."""
    rows: dict[tuple[int, int], dict[int, bytes]] = {}
    for row in view.stored(pages=F.col("number") == SCHEMA_PAGE).collect():
        rows.setdefault((row.station, row.label), {})[row.number] = bytes(row.data)
    process, keys = view.stage.process, view.keys
    return {(s, label): opened(process, label, found, keys, s) for (s, label), found in rows.items()}

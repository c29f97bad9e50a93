"""Entries on their way to other key groups, or out of a table, without Spark: what its workers do."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace import (
    Context,
    KeyedProcess,
    arrival,
    event_time,
    hours,
    list_state,
    map_state,
    reducing_state,
    value_state,
    versioned_state,
)
from millrace.checkpoints.bootstrap import BootstrapError, EntryFiller, _ms
from millrace.checkpoints.checkpoint import Checkpoint, CheckpointError, Position
from millrace.checkpoints.entries import EntryReader
from millrace.checkpoints.groups import StoredGroup, packed_group
from millrace.checkpoints.positions import WAITING, last_written, record_tables
from millrace.checkpoints.reading import opened
from millrace.checkpoints.rescale import RescaleError, rekey, repartition
from millrace.checkpoints.reshape import CellRows, GroupPacker, GroupShape, Shared, cell_rows
from millrace.checkpoints.stages import load_process
from millrace.checkpoints.writer import Written, assemble
from millrace.connectors.merging import _keep, waiting_batches
from millrace.host.groups import encode_key, group_labels, key_group
from millrace.host.memory import MemoryHost, _Memory
from millrace.process import kept_states
from millrace.runtime.contract import CheckpointInUse, owned
from millrace.state.cells import CLOCK_PAGE, SCHEMA_PAGE, Cell, StateCorrupted, read_clock
from millrace.state.keyring import configured_keys, write_key_file
from millrace.state.layout import EntryLayout
from millrace.state.paged import owner_of
from millrace.state.pages import PagedStore
from millrace.state.specs import StateTypeError
from millrace.time import NEVER
from millrace.time.clock import ClockState, Minimum
from tests.unit.millrace.checkpoints.cases import LAST, kept_checkpoint

HOUR = hours(1)
CLOCK = ClockState(5_000, 6_001, 6_100, (Minimum(6_001, "visits:0"),))


class Visit(msgspec.Struct):
    n: int


class Visits(KeyedProcess[Visit, int]):
    order = arrival(commutes=True)
    total = value_state(int, default=0)
    last = list_state(int)

    def process(self, event: Visit, ctx: Context) -> None:
        self.total.value += event.n
        self.last.append(event.n)
        ctx.timers.after(HOUR, "soon")


class VisitsNow(KeyedProcess[Visit, int]):
    """A later version: what was `last` is `amounts`, and there is one more state."""

    name = "Visits"
    order = arrival(commutes=True)
    most = reducing_state(int, max)
    amounts = list_state(int, alias="last")
    total = value_state(int, default=0)

    def process(self, event: Visit, ctx: Context) -> None: ...


def cells_of(visits: list[tuple[str, int]]) -> dict[str, Cell]:
    host = MemoryHost(Visits())
    host.run_batch([(who, 1_000 + i, Visit(n)) for i, (who, n) in enumerate(visits)])
    return dict(host.store.cells)


def stored(cells: dict[str, Cell], groups: int, **beside: Any) -> dict[int, StoredGroup]:
    parts: dict[int, dict[str, Cell]] = {label: {} for label in group_labels(groups)}
    for key, cell in cells.items():
        parts[group_labels(groups)[key_group(key, groups)]][key] = cell
    schema = EntryLayout(Visits.states).schema
    return {label: packed_group(part, schema, **beside) for label, part in parts.items()}


def reshaped(groups: dict[int, StoredGroup], shape: GroupShape, pack: GroupPacker) -> dict[int, StoredGroup]:
    """Return the new groups that keep anything, their seals opened, as Spark brings the rows together."""
    take = CellRows(shape, None)
    rows = pa.concat_tables([take(label, group) for label, group in groups.items()]).to_pylist()
    made = {}
    for label in group_labels(shape.key_groups):
        mine = [row for row in rows if row["label"] == label]
        cells = cell_rows([tuple(row.values()) for row in mine])
        written = pack((pa.scalar(0), pa.scalar(label, pa.int32())), cells).to_pylist()
        values = {row["number"]: row["data"] for row in written}
        if not values:
            continue
        made[label] = opened(shape.process, label, values, shape.keys)
    return made


def entries(groups: dict[int, StoredGroup], key_groups: int, layout: EntryLayout) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    labels = group_labels(key_groups)
    for label, group in groups.items():
        store = PagedStore(_Memory(group.header or None, group.pages), layout)
        for key, entry in store.entries():
            assert labels[key_group(key, key_groups)] == label
            found[key] = layout.encode(entry)
    return found


@settings(deadline=None)  # labels of so many groups are searched for once
@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=5), st.integers(1, 9)), max_size=40),
    st.sampled_from([(1, 4), (4, 16), (16, 3), (8, 8)]),
    st.sampled_from([None, CLOCK]),
)
def test_every_entry_is_in_the_group_of_its_key_and_what_it_was(
    visits: list[tuple[str, int]], shapes: tuple[int, int], clock: ClockState | None
) -> None:
    cells, layout = cells_of(visits), EntryLayout(Visits.states)
    shape = GroupShape("Visits", shapes[1], None, clock)
    made = reshaped(stored(cells, shapes[0]), shape, GroupPacker(shape, Shared(), layout.schema))
    assert entries(made, shapes[1], layout) == {key: bytes(cell.body) for key, cell in cells.items()}
    own = {group_labels(shapes[1])[key_group(key, shapes[1])] for key in cells}
    assert {label for label, group in made.items() if group.header} == own
    assert made.keys() == (own if clock is None else set(group_labels(shapes[1])))


@pytest.mark.parametrize("encrypted", [False, True])
def test_every_new_group_has_the_clock_that_the_old_ones_had(tmp_path: Path, encrypted: bool) -> None:
    """Also a group without a key, of which nothing else is kept: it has no header, and no schema."""
    write_key_file(tmp_path / "keys")
    keys = configured_keys(tmp_path / "keys", {}) if encrypted else None
    layout = EntryLayout(Visits.states)
    shape = GroupShape("Visits", 8, keys, CLOCK)
    pack = GroupPacker(shape, Shared(), layout.schema)
    made = reshaped(stored(cells_of([("a", 1)]), 2), shape, pack)
    assert made.keys() == set(group_labels(8))
    assert [read_clock(group.pages[CLOCK_PAGE]) for group in made.values()] == [CLOCK] * 8
    own = group_labels(8)[key_group("1:a", 8)]
    assert {label: sorted(group.pages) for label, group in made.items() if label != own} == {
        label: [CLOCK_PAGE] for label in group_labels(8) if label != own
    }
    assert sorted(made[own].pages) == [CLOCK_PAGE, SCHEMA_PAGE]
    one, other = group_labels(8)[:2]
    rows = pack((pa.scalar(0), pa.scalar(one, pa.int32())), cell_rows([])).to_pylist()
    assert [row["number"] for row in rows] == [CLOCK_PAGE]
    if encrypted:
        with pytest.raises(StateCorrupted, match=f"the clock of key group {other} .* cannot be"):
            opened("Visits", other, {row["number"]: row["data"] for row in rows}, keys)


def test_a_group_of_which_nothing_is_kept_gets_no_rows() -> None:
    shape = GroupShape("Visits", 8, None, None)
    table = GroupPacker(shape, Shared(), b"[]")((pa.scalar(0), pa.scalar(3, pa.int32())), cell_rows([]))
    assert table.num_rows == 0
    assert table.schema.names == ["station", "label", "number", "data"]


def test_broadcast_state_and_ticks_are_in_every_new_group(tmp_path: Path) -> None:
    layout = EntryLayout(Visits.states)
    shape = GroupShape("Visits", 8, None, None)
    made = reshaped(
        stored(cells_of([("a", 1)]), 2, broadcast=b"rules", processing_time=5), shape,
        GroupPacker(shape, Shared(b"rules", 5), layout.schema),
    )  # fmt: skip
    assert len(made) == 8
    assert {group.broadcast for group in made.values()} == {b"rules"}
    assert {group.read_header.processing_time for group in made.values()} == {5}


def test_new_groups_are_sealed_for_their_new_place(tmp_path: Path) -> None:
    write_key_file(tmp_path / "keys")
    keys = configured_keys(tmp_path / "keys", {})
    layout, cells = EntryLayout(Visits.states), cells_of([(f"k{i}", i + 1) for i in range(20)])
    shape = GroupShape("Visits", 4, keys, None)
    pack = GroupPacker(shape, Shared(), layout.schema)
    made = reshaped(stored(cells, 2), shape, pack)  # opens every value in its place
    assert entries(made, 4, layout).keys() == cells.keys()
    table = CellRows(shape, None)(0, next(iter(stored(cells, 1).values())))
    one, other = group_labels(4)[:2]
    rows = pack((pa.scalar(0), pa.scalar(one, pa.int32())), table).to_pylist()
    with pytest.raises(StateCorrupted, match="cannot be decrypted"):
        opened("Visits", other, {row["number"]: row["data"] for row in rows}, keys)


def test_what_an_older_version_wrote_is_brought_into_the_form_of_now() -> None:
    cells = cells_of([("a", 3), ("a", 4), ("b", 5)])
    now = VisitsNow()
    layout = EntryLayout(now.states)
    shape = GroupShape("Visits", 4, None, CLOCK, now)
    made = reshaped(stored(cells, 2), shape, GroupPacker(shape, Shared(), layout.schema))
    found = {k: EntryReader(layout.schema).read(b).as_data() for k, b in entries(made, 4, layout).items()}
    assert {k: d["states"] for k, d in found.items()} == {
        "1:a": {"total": 7, "amounts": [3, 4]}, "1:b": {"total": 5, "amounts": [5]},
    }  # fmt: skip
    assert [t["at"] for t in found["1:a"]["timers"]] == [1_001 + HOUR]
    assert all(group.schemas() == [layout.schema] for group in made.values() if group.header)


# -- out of a table ----------------------------------------------------------------------------


class Place(msgspec.Struct):
    name: str
    visits: int = 0


class Keeper(KeyedProcess[Visit, int]):
    order = arrival(commutes=True)
    total = value_state(int, default=0)
    place = value_state(Place, ttl=HOUR)
    seen = map_state(int, str, ttl=HOUR)
    brief = list_state(int, ttl=HOUR)
    most = reducing_state(int, max)
    rate = versioned_state(float, history=HOUR)
    given = value_state(str, ttl="per_write")
    session = value_state(str, ttl=HOUR, ttl_time="processing_time")

    def process(self, event: Visit, ctx: Context) -> None: ...


def filled(*rows: dict[str, Any], keys: tuple[str, ...] = ("who",)) -> dict[str, Any]:
    named = [n for n in rows[0] if n not in keys]
    fill = EntryFiller(Keeper.states, named, keys, GroupShape("Keeper", 8, None, None), 1_000)
    reader = EntryReader(EntryLayout(Keeper.states).schema)
    found = {}
    for batch in fill([pa.RecordBatch.from_pylist(list(rows))]):
        for row in batch.to_pylist():
            assert row["label"] == group_labels(8)[key_group(row["key"], 8)]
            cell = msgspec.msgpack.decode(row["cell"], type=Cell)
            found[row["key"]] = (reader.read(cell.body).as_data(), cell)
    return found


def test_columns_become_states_with_lives_from_when_they_count_as_written() -> None:
    row = {
        "who": "ann", "total": 7, "place": {"name": "mill", "visits": 2}, "seen": [(1, "x")], "brief": [4, 5],
        "most": 9, "rate": [{"valid_from": 5, "value": 0.5}, {"valid_from": 2, "value": 0.25}], "given": "g",
        "session": "s",
    }  # fmt: skip
    shape = GroupShape("Keeper", 8, None, None)
    fill = EntryFiller(Keeper.states, [n for n in row if n != "who"], ("who",), shape, 1_000)
    specs = {s.name: s for s in Keeper.states}
    slots = {name: fill.slot(specs[name], value, "ann") for name, value in row.items() if name != "who"}
    assert slots == {
        "total": 7,
        "place": (1_000 + HOUR, Place("mill", 2)),
        "seen": {1: (1_000 + HOUR, "x")},
        "brief": [(1_000 + HOUR, 4), (1_000 + HOUR, 5)],
        "most": 9,
        "rate": [(2, 0.25), (5, 0.5)],
        "given": (NEVER, "g"),
        "session": (NEVER - HOUR, "s"),
    }


def test_rows_become_entries_and_null_is_nothing() -> None:
    found = filled(
        {"who": "ann", "total": 7, "brief": [1]}, {"who": "bob", "total": None, "brief": None},
        {"who": "cid", "total": 0, "brief": []},
    )  # fmt: skip
    assert found.keys() == {"3:ann"}
    data, cell = found["3:ann"]
    assert data["states"] == {"total": 7, "brief": [1]}
    assert cell.expiry == 1_000 + HOUR


def test_a_key_of_several_columns_is_the_key_of_the_stream() -> None:
    found = filled({"who": "ann", "shop": 5, "total": 1}, keys=("who", "shop"))
    assert found.keys() == {encode_key(("ann", "5"))}


def test_a_value_of_another_type_names_its_key() -> None:
    with pytest.raises(StateTypeError, match=r"total of key '3:ann' is not what is declared"):
        filled({"who": "ann", "total": "many"})


def test_times_without_a_zone_are_refused() -> None:
    assert _ms(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1_000
    with pytest.raises(BootstrapError, match="has no time zone"):
        _ms(datetime(1970, 1, 1))  # noqa: DTZ001


# -- whole checkpoints -------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path) -> Checkpoint:
    return kept_checkpoint(tmp_path / "query")


NO_SESSION: Any = None


def test_a_batch_that_stands_in_a_table_only_keeps_a_checkpoint_from_being_reshaped(
    kept: Checkpoint, tmp_path: Path
) -> None:
    incarnation = kept.contract()["incarnation"]
    (tmp_path / "table" / f"batch={incarnation}-{LAST + 1:08}").mkdir(parents=True)
    record_tables(kept.root, {str(tmp_path / "table"): "parquet"})
    with pytest.raises(RescaleError, match=r"batch 5 stands in .*table and was not committed"):
        repartition(NO_SESSION, kept, 4)
    with pytest.raises(RescaleError, match=r"batch 5 stands in .*table and was not committed"):
        rekey(NO_SESSION, kept, key_groups=8)
    assert kept.last() == LAST


def test_a_batch_that_waits_for_a_table_keeps_a_checkpoint_from_being_reshaped(
    kept: Checkpoint, tmp_path: Path
) -> None:
    """Killed between the file and the commit: the batch is planned anew, and its rows would come by both."""
    incarnation = kept.contract()["incarnation"]
    table, rows = tmp_path / "table", pa.table({"_event_id": ["a"]})
    write_deltalake(str(table), rows)
    (table / WAITING).mkdir()
    record_tables(kept.root, {str(table): "delta"})
    _keep(table / WAITING / "1.arrow", rows, f"app:{incarnation}:table", LAST)
    _keep(table / WAITING / "2.arrow", rows, "app:another:table", LAST + 7)
    assert last_written(table, "delta", incarnation, waiting_batches(table)) == LAST
    _keep(table / WAITING / "3.arrow", rows, f"app:{incarnation}:table", LAST + 1)
    for partitions in (4, 8):
        with pytest.raises(RescaleError, match=r"batch 5 stands in .*table and was not committed"):
            repartition(NO_SESSION, kept, partitions)
    with pytest.raises(RescaleError, match=r"batch 5 stands in .*table and was not committed"):
        rekey(NO_SESSION, kept, key_groups=8)


def test_a_running_query_is_not_reshaped(kept: Checkpoint) -> None:
    with owned(kept.root), pytest.raises(CheckpointInUse):
        repartition(NO_SESSION, kept, 4)


@pytest.mark.parametrize(
    ("partitions", "message"),
    [(2, "has 2 partitions already"), (5, "has 4 key groups, so"), (0, "at least one")],
)
def test_partitions_that_make_no_sense_are_refused(kept: Checkpoint, partitions: int, message: str) -> None:
    with pytest.raises(RescaleError, match=message):
        repartition(NO_SESSION, kept, partitions)


def test_written_state_and_old_offsets_become_a_checkpoint(kept: Checkpoint, tmp_path: Path) -> None:
    """State of two operators, each written by a query of its own, goes on where the old query was."""
    parts = {}
    for operator in (0, 1):
        copy = Checkpoint(tmp_path, tmp_path / f"written-{operator}")
        kept.copy(copy.folder, 0)
        parts[operator] = Written(copy, 0)
    folder = tmp_path / "new"
    folder.mkdir()
    sources = kept.folder / "sources"
    assemble(folder, parts, position=kept.position(3), sources=sources)
    made = Checkpoint(tmp_path, folder)
    assert made.batches() == [0]
    assert made.commit(0)["nextBatchWatermarkMs"] == 0  # the engine keeps no watermark of ours
    assert made.position(0).sources == kept.position(3).sources
    assert made.position(0).metadata["batchWatermarkMs"] == 0
    assert [o.id for o in made.operators(0)] == [0, 1]
    assert {f.split("/")[1] for f in made.files(0) if f.startswith("state/")} == {"0", "1"}
    assert (folder / "sources" / "0" / "3").exists()
    assert '"operatorId":1' in (folder / "state/1/_metadata/v2/0").read_text()


def test_a_checkpoint_without_sources_so_far_begins_where_they_are_told_to(
    kept: Checkpoint, tmp_path: Path
) -> None:
    copy = Checkpoint(tmp_path, tmp_path / "written")
    kept.copy(copy.folder, 0)
    folder = tmp_path / "new"
    folder.mkdir()
    nowhere = Position(0, (None, None), {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
    assemble(folder, {0: Written(copy, 0)}, position=nowhere, sources=None)
    assert (folder / "offsets" / "0").read_text().splitlines()[2:] == ["-", "-"]
    made = Checkpoint(tmp_path, folder)
    assert made.position(0).sources == (None, None)
    assert made.position(0).partitions == 2
    assert made.watermark(0) is None
    assert not (folder / "sources").exists()


def test_a_process_is_loaded_by_its_name() -> None:
    assert load_process("tests.unit.millrace.checkpoints.test_reshape:VisitsNow").name == "Visits"
    with pytest.raises(CheckpointError, match="is no process: name a KeyedProcess as module:Class"):
        load_process("millrace.checkpoints.stages:dataclass")
    for name in ("no.such.module:Thing", "millrace.checkpoints.stages:Nothing", "nothing"):
        with pytest.raises(CheckpointError, match="cannot be loaded"):
            load_process(name)


class Devices(KeyedProcess[Visit, int]):
    """Machines with clocks of their own, a minute behind the stream at most."""

    name = "Devices"
    order = event_time(clock="key", patience=60_000)
    stream_timers = True
    seen = value_state(int, ttl=10_000)

    def process(self, event: Visit, ctx: Context) -> None:
        self.seen.value = event.n
        ctx.timers.at(100_000, "said", clock="stream")


class DevicesNow(Devices):
    """A later version, with one more state."""

    stream_timers = True
    more = value_state(int)


def test_a_process_that_is_behind_the_stream_is_so_in_its_new_form_too() -> None:
    host = MemoryHost(Devices())
    host.run_rows(host.rows_of([("a", 40_000, Visit(1)), ("a", 40_002, Visit(2))]), to=50_000)
    schema = EntryLayout(kept_states(Devices())).schema
    group = packed_group(dict(host.store.cells), schema)
    # The stream has passed the end of what was seen, the process has not.
    clock = ClockState(90_000, 90_001).behind(60_000, ClockState())
    shape = GroupShape("Devices", 1, None, clock, DevicesNow())
    (row,) = CellRows(shape, None)(0, group).to_pylist()
    cell = msgspec.msgpack.decode(row["cell"], type=Cell)
    layout = EntryLayout(kept_states(DevicesNow()), owner="Devices")
    layout.lag_ms = 60_000
    entry = layout.decode(cell.body)
    assert entry.seen is not None
    assert cell.timer == layout.timer(entry) == 40_000, (
        "when the stream's timer is due by the process's clock"
    )


class Wide(KeyedProcess[Visit, int]):
    order = arrival(commutes=True)
    pages = map_state(str, int, paged=True)

    def process(self, event: Visit, ctx: Context) -> None:
        for number in range(event.n):
            self.pages.put(f"page-{number}", number)


def test_parts_go_where_their_keys_go() -> None:
    host = MemoryHost(Wide())
    host.run_batch([(f"k{n}", 1_000, Visit(500)) for n in range(6)])
    shape = GroupShape("Wide", 16, None, None)
    schema = EntryLayout(kept_states(Wide())).schema
    labels = group_labels(16)
    whole = {group_labels(1)[0]: packed_group(host.store.cells, schema)}
    made = reshaped(whole, shape, GroupPacker(shape, Shared(), schema))
    found: dict[str, int] = {}
    for label, group in made.items():
        for _, cells, _ in group.cells():
            for text in cells:
                owner, _part = owner_of(text)
                assert label == labels[key_group(owner, 16)]
                found[owner] = found.get(owner, 0) + 1
    assert len(found) == 6
    assert all(parts > 8 for parts in found.values())

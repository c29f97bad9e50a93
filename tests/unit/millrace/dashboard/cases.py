"""Tables, checkpoints and apps for the tests of the dashboard."""

from __future__ import annotations

import hashlib
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from millrace import KeyedProcess, arrival
from millrace.dashboard.data import AppData
from millrace.dashboard.live import LivePage
from millrace.dashboard.page import DashboardPage
from millrace.dashboard.views import Numbers
from millrace.runtime.apps import App, Topic, Topics
from millrace.runtime.clock_files import write_status
from millrace.runtime.settings import AppSettings
from millrace.time.clock import ClockStatus
from millrace.topology import Input, Topology, read

NOW = 1_795_000_000_000


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self, now: int = NOW) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def later(self, ms: int = 10_000) -> None:
        self.now += ms


class _Sale(msgspec.Struct):
    n: int
    at: int


class _Sales(KeyedProcess[_Sale, _Sale]):
    order = arrival(commutes=True)

    def process(self, event: _Sale, ctx: Any) -> None:
        raise AssertionError("the dashboard never handles an event")


def _topology(settings: Any) -> Topology:
    read_in = read(Input("sales", key="n", event_time="at"), control="control")
    return read_in.process(_Sales()).write(
        tables={"main": "sales", "dead_letters": "dead_letters", "late": "late"}
    )


def shop(**more: Any) -> App:
    return App(
        "shop", "Sales of a shop.", AppSettings, _topology, lambda s: Topics((Topic("sales"),)), **more
    )


def put(root: Path, table: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None = None) -> None:
    """Append rows to a table."""
    write_deltalake(
        str(root / "tables" / table), pa.Table.from_pylist(list(rows), schema=schema), mode="append"
    )


_ARROW = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def _arrow(tp: Any) -> pa.DataType:
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin in (typing.Union, types.UnionType):
        return _arrow(next(a for a in args if a is not type(None)))
    if origin is typing.Literal:
        return pa.string()
    if origin is list:
        return pa.list_(_arrow(args[0]))
    if origin is dict:
        return pa.map_(_arrow(args[0]), _arrow(args[1]))
    if isinstance(tp, type) and issubclass(tp, msgspec.Struct):
        return pa.struct([(name, _arrow(kind)) for name, kind in typing.get_type_hints(tp).items()])
    return _ARROW[tp]


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value) if isinstance(value, list) else value


def put_records(
    root: Path, table: str, records: Sequence[msgspec.Struct], *, key: Sequence[str] = ()
) -> None:
    """Append records to a table, typed as the apps' writer types them; with a key, merge them."""
    kind = type(records[0])
    fields = [(name, _arrow(tp)) for name, tp in typing.get_type_hints(kind).items()]
    rows = []
    for record in records:
        row = {
            name: list(value.items()) if isinstance(value, dict) else _plain(value)
            for name, value in msgspec.structs.asdict(record).items()
        }
        identity = hashlib.sha256(msgspec.json.encode(record)).hexdigest()[:16]
        rows.append({**row, "_event_id": identity})
    schema = pa.schema([*fields, ("_event_id", pa.string())])
    if not key:
        put(root, table, rows, schema)
        return
    path = str(root / "tables" / table)
    DeltaTable.create(path, schema, mode="ignore").merge(
        pa.Table.from_pylist(rows, schema=schema),
        " AND ".join(f"t.{name} = s.{name}" for name in key),
        source_alias="s",
        target_alias="t",
    ).when_matched_update_all().when_not_matched_insert_all().execute()


def put_checkpoint(
    root: Path,
    offsets: Mapping[str, Mapping[str, int]],
    *,
    batch: int = 0,
    watermark: int | None = None,
    held_by: str = "",
) -> None:
    """Write what is left of a committed batch: by Spark, and beside it of the clock."""
    for folder in ("offsets", "commits"):
        (root / "checkpoint" / folder).mkdir(parents=True, exist_ok=True)
    about = {"batchWatermarkMs": 0, "batchTimestampMs": NOW, "conf": {}}
    lines = ["v1", json.dumps(about), json.dumps(offsets)]
    (root / "checkpoint" / "offsets" / str(batch)).write_text("\n".join(lines))
    commit = ["v1", json.dumps({"nextBatchWatermarkMs": 0})]
    (root / "checkpoint" / "commits" / str(batch)).write_text("\n".join(commit))
    if watermark is not None:
        write_status(root, batch, ClockStatus(watermark - 1, watermark, watermark + 5_001, held_by=held_by))


def data_of(
    root: Path,
    *,
    app: App | None = None,
    clock: Callable[[], int] | None = None,
    page: DashboardPage | None = None,
) -> AppData:
    folders = page.folders if page else ()
    return AppData(app or shop(), AppSettings(), root, clock or Clock(), folders)


def panel_of(page: DashboardPage, data: AppData, panel: str) -> Any:
    """Return what a panel shows."""
    return next(p for p in page.panels if p.id == panel).make(data)


def figures(view: Any) -> dict[str, Any]:
    """Return a panel's figures by their label."""
    assert isinstance(view, Numbers)
    return {n.label: n.value for n in view.items}


def frame(records: list[Any]) -> pd.DataFrame:
    return pd.DataFrame([msgspec.structs.asdict(r) for r in records])


def check_panels(page: DashboardPage, data: AppData, empty: AppData) -> None:
    """Every panel shows something of a full folder and nothing of an empty one, and none fails."""
    for panel in page.panels:
        assert panel.make(data) is not None, panel.id
        assert panel.make(empty) is None, panel.id
    for of in (data, empty):
        live = LivePage(of, page)
        live.refresh()
        bodies = b"".join(live.changed({}))
        assert b"this panel failed" not in bodies
        assert of is data or b'"tone":"bad"' not in bodies


def without_rows(page: DashboardPage, data: AppData, clock: Clock) -> dict[str, Any]:
    """Return what the panels show once all tables are there, as at the start of a job, and none has a row."""
    for name in data.table_names():
        table = data.table(name)
        assert table is not None
        DeltaTable(str(table.folder)).delete()
    clock.later()
    shown = {panel.id: panel.make(data) for panel in page.panels}
    return {panel: view for panel, view in shown.items() if view is not None}

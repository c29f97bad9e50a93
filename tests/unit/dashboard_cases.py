"""Tables, checkpoints and apps for the tests of the dashboard."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from millrace.dashboard.data import AppData
from millrace.dashboard.page import DashboardPage
from millrace.runtime.apps import App, Topic, Topics
from millrace.runtime.settings import AppSettings

NOW = 1_795_000_000_000


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self, now: int = NOW) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def later(self, ms: int = 10_000) -> None:
        self.now += ms


def _no_pipeline(streams: Mapping[str, Any], settings: Any) -> Any:
    raise AssertionError("the dashboard never builds a pipeline")


def shop(**more: Any) -> App:
    return App(
        "shop", "Sales of a shop.", AppSettings, _no_pipeline, lambda s: Topics((Topic("sales"),)), **more
    )


def put(root: Path, table: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None = None) -> None:
    """Append rows to a table."""
    write_deltalake(
        str(root / "tables" / table), pa.Table.from_pylist(list(rows), schema=schema), mode="append"
    )


def put_checkpoint(
    root: Path, offsets: Mapping[str, Mapping[str, int]], *, batch: int = 0, watermark: int = 0
) -> None:
    """Write what Spark leaves of a committed batch."""
    for folder in ("offsets", "commits"):
        (root / "checkpoint" / folder).mkdir(parents=True, exist_ok=True)
    about = {"batchWatermarkMs": watermark, "batchTimestampMs": NOW, "conf": {}}
    lines = ["v1", json.dumps(about), json.dumps(offsets)]
    (root / "checkpoint" / "offsets" / str(batch)).write_text("\n".join(lines))
    commit = ["v1", json.dumps({"nextBatchWatermarkMs": watermark})]
    (root / "checkpoint" / "commits" / str(batch)).write_text("\n".join(commit))


def data_of(
    root: Path,
    *,
    app: App | None = None,
    clock: Callable[[], int] | None = None,
    page: DashboardPage | None = None,
) -> AppData:
    folders = page.folders if page else ()
    return AppData(app or shop(), AppSettings(), root, clock or Clock(), folders)

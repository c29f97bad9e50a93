"""The tables of the streaming case work, written by the writer of small batches; read as the page does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from millrace.connectors.driver_writer import DriverWriter
from millrace.connectors.router import DeadLetterLimit, Outputs
from millrace.dashboard.data import AppData
from millrace.errors import UserError
from millrace.host.chunks import encode_emissions
from millrace.host.memory_chain import MemoryChain
from millrace.host.runner import Emission
from millrace.runtime.settings import AppSettings, load_settings
from millrace_apps.fraud.app import app as fraud
from millrace_apps.fraud.cases.app import FraudCasesSettings, topology
from millrace_apps.fraud.cases.book import CaseBook
from millrace_apps.fraud.cases.live import LiveCases
from millrace_apps.fraud.cases.queue import ReviewQueue
from millrace_apps.fraud.cases.store import TABLES, act, case_view, dispose
from tests.unit.apps.fraud.case_book_cases import DAY, START_MS, event, history
from tests.unit.millrace.dashboard.cases import Clock, put_checkpoint

SETTINGS = FraudCasesSettings(cases={"capacity": 3})


class Batch:
    """Emissions as the query hands them to the writer."""

    def __init__(self, emissions: Sequence[Emission]) -> None:
        self._chunks = encode_emissions(emissions)

    def toArrow(self) -> pa.Table:
        names, counts, chunks = zip(*self._chunks, strict=True) if self._chunks else ((), (), ())
        return pa.table({"output": pa.array(names, pa.string()), "records": pa.array(counts, pa.int64()),
                         "chunk": pa.array(chunks, pa.binary())})  # fmt: skip


def writer_of(folder: Path) -> DriverWriter:
    wired = topology(SETTINGS)
    wanted = Outputs(wired, wired.tables)  # type: ignore[arg-type]
    made = DriverWriter(wanted, lambda table: str(folder / TABLES / table), {}, "cases:1", DeadLetterLimit())
    made.prepare()
    return made


def data_of(folder: Path) -> AppData:
    return AppData(fraud, AppSettings(), folder, Clock(START_MS + 21 * DAY), (TABLES,))


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(str(folder / TABLES / name)).to_pyarrow_table().to_pylist()
    return rows


@pytest.mark.parametrize("seed", [1, 2])
def test_merged_tables_are_the_last_revisions_however_batches_are_cut_and_repeated(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    events = sorted((event(e) for e in history(seed)), key=lambda e: e[1])
    chain = MemoryChain(CaseBook(SETTINGS.cases.rules()), ("queue", ReviewQueue(3)))
    writer, live = writer_of(tmp_path), LiveCases(SETTINGS.cases.rules(), 3)
    at = number = 0
    while at < len(events):
        size = random.randrange(1, 12)
        taken = [(k, t, e, "alerts") for k, t, e in events[at : at + size]]
        batch = Batch(chain.run_batch(taken))
        for _ in range(random.choice([1, 2])):  # a batch that was cut off comes again
            writer.write(batch, number)  # type: ignore[arg-type]
        at, number = at + size, number + 1
    newest = events[-1][1]
    writer.write(Batch(chain.advance_watermark(newest)), number)  # type: ignore[arg-type]
    live.add_alerts([e for _, _, e in events])  # type: ignore[misc]
    live.settle()
    view = case_view(data_of(tmp_path), SETTINGS)
    assert view is not None
    assert view.streamed
    assert [(r.rank, r.place, r.case) for r in view.ranked] == [tuple(r) for r in live.ranked()]
    assert len(table(tmp_path, "cases")) == len(live.cases)
    assert {r["case_id"]: r["revision"] for r in table(tmp_path, "queue")} == {
        i: e.revision for i, e in live.entries.items()
    }


def test_while_the_stream_runs_a_decision_needs_the_broker(tmp_path: Path) -> None:
    chain = MemoryChain(CaseBook(), ("queue", ReviewQueue(3)))
    key, at, what = event(history(3)[0])
    emissions = chain.run_batch([(key, at, what, "alerts")]) + chain.advance_watermark(at)
    writer_of(tmp_path).write(Batch(emissions), 0)  # type: ignore[arg-type]
    data = data_of(tmp_path)
    view = case_view(data, SETTINGS)
    assert view is not None
    with pytest.raises(UserError, match="no broker is named"):
        dispose(data, SETTINGS, view.ranked[0].case.case_id, "fraud", by="eva")
    assert data.table("dispositions") is None


def test_what_is_said_of_a_stream_of_the_past_is_later_than_what_was_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one time the order of a claim and a decision were open; before the watermark both would be late."""
    chain = MemoryChain(CaseBook(), ("queue", ReviewQueue(3)))
    key, at, what = event(history(3)[0])
    emissions = chain.run_batch([(key, at, what, "alerts")]) + chain.advance_watermark(at)
    writer_of(tmp_path).write(Batch(emissions), 0)  # type: ignore[arg-type]
    put_checkpoint(tmp_path / "cases", {"fraud.alerts": {"0": 5}}, batch=2, watermark=at + DAY)
    monkeypatch.setattr("millrace_apps.fraud.cases.store._send", lambda data, topic, events, what: None)
    settings = load_settings(fraud.settings, app="fraud", overrides=["kafka.bootstrap=127.0.0.1:9"], env={})
    data = AppData(fraud, settings, tmp_path, Clock(START_MS + 21 * DAY), (TABLES,))
    view = case_view(data, SETTINGS)
    assert view is not None
    case_id = view.ranked[0].case.case_id
    claimed = act(data, SETTINGS, case_id, "claim", by="eva")
    data.now_ms.later()  # type: ignore[attr-defined] # tables are looked at anew
    said = dispose(data, SETTINGS, case_id, "fraud", by="eva")
    assert at + DAY < claimed.at_ms < said.at_ms

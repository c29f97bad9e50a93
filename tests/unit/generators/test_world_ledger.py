"""The ledger of a domain: recomputed here from the messages alone; flat, in two formats, and never torn."""

from __future__ import annotations

import json
import threading
from collections import Counter
from functools import lru_cache
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from millrace.errors import UserError
from millrace.testing.record_file import LineRecords, open_records, read_records
from millrace.testing.world_ledger import ReadLedger, WorldRun, read_world_ledger
from millrace_apps.generators import world_ledger
from millrace_apps.generators.engine import Generated
from millrace_apps.generators.engine.disturb import Disturbances
from millrace_apps.generators.engine.simulated import Truth
from millrace_apps.generators.engine.world import deliver_domain
from millrace_apps.generators.file_sinks import FolderSink
from millrace_apps.generators.run import run
from millrace_apps.generators.world_ledger import WorldLedger
from tests.unit.generators.world import METERS, MeterProfile

PROFILE = MeterProfile(seed=2, events=2_000, late=0.05, lateness_ms=2_000, duplicates=0.05, malformed=0.05)
WRONG = Disturbances(
    loss=0.05, drift=0.05, unknown_version=0.02, clock_skew=0.2, silence_ms=300, silence_every_ms=5_000
)
RUN = WorldRun("meters", 2, {"reports": "r", "openings": "o"}, {}, {})


@lru_cache
def messages() -> tuple[Generated, ...]:
    return tuple(deliver_domain(METERS, PROFILE, WRONG))


def write(path: Path) -> ReadLedger:
    with FolderSink(path.parent / "out", list(METERS.streams)) as sink, WorldLedger(path, RUN) as ledger:
        run(messages(), sink, ledger, threading.Event())
    return read_world_ledger(path)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> ReadLedger:
    return write(tmp_path_factory.mktemp("ledger") / "ledger.jsonl")


def test_the_summary_equals_a_recount_of_the_messages(ledger: ReadLedger) -> None:
    sent = [m for m in messages() if not m.dropped]
    events = [m for m in sent if m.is_event]
    summary = ledger.summary
    assert summary.sent == len(sent)
    assert summary.valid_unique == len(events) == len({m.transaction_id for m in events})
    assert summary.streams == Counter(m.stream for m in events)
    assert summary.faults == Counter(m.fault.kind for m in messages() if m.fault)
    assert set(summary.faults) == {
        *("late", "lost", "drifted", "unknown_version", "duplicate", "malformed", "wrong_clock", "silence")
    }
    times = [m.event_time_ms for m in events]
    assert (summary.first_event_time_ms, summary.last_event_time_ms) == (min(times), max(times))
    # Every event is valid, lost or withheld.
    withheld = sum(int(s.detail.rpartition("=")[2]) for s in ledger.silences)
    rest = PROFILE.events - len(events) - summary.faults["lost"] if PROFILE.events else 0
    assert 0 < rest <= withheld


def test_every_fault_names_its_message(ledger: ReadLedger) -> None:
    told = {(f.kind, f.event_id, f.expected, f.stream) for f in ledger.faults}
    done = {
        (m.fault.kind, m.transaction_id, m.fault.expected, m.stream)
        for m in messages()
        if m.fault and m.fault.kind != "silence"
    }
    assert told == done
    assert len({f.id for f in ledger.faults}) == len(ledger.faults)


def test_every_truth_names_its_events_and_those_that_were_disturbed(ledger: ReadLedger) -> None:
    wanted: dict[str, list[str]] = {}
    disturbed: dict[str, set[str]] = {}
    for message in messages():
        for truth in message.truths:
            if not message.dropped:
                wanted.setdefault(truth.truth_id, []).append(message.transaction_id)
            if message.fault and message.fault.expected != "accepted":
                disturbed.setdefault(truth.truth_id, set()).add(message.transaction_id)
    assert {t.truth_id: t.event_ids for t in ledger.truths} == wanted
    assert {t.truth_id: set(t.disturbed) for t in ledger.truths if t.disturbed} == disturbed
    assert {(t.kind, t.entity, t.expected) for t in ledger.truths} == {("leak", "meter-003", "alert")}


def test_a_parquet_ledger_says_the_same(ledger: ReadLedger, tmp_path: Path) -> None:
    assert write(tmp_path / "ledger.parquet") == ledger
    table = pq.read_table(tmp_path / "ledger.parquet")
    late = table.filter(table["kind"].to_numpy(zero_copy_only=False) == "late")
    assert set(late["event_id"].to_pylist()) == {f.event_id for f in ledger.faults if f.kind == "late"}


def test_memory_is_flat_and_pieces_of_a_truth_are_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world_ledger, "_OPEN", 3)
    monkeypatch.setattr(world_ledger, "_PIECE", 4)
    path = tmp_path / "ledger.jsonl"
    wanted: dict[str, list[str]] = {}
    with WorldLedger(path, RUN) as ledger:
        for number in range(100):
            message = Generated(f"e{number}", b"k", b"v", [], number, "", 0)
            message.stream = "reports"
            name = "always" if number % 3 == 0 else f"t{number // 10}-{number % 2}"
            message.truths = (Truth(truth_id=name, kind="leak", entity="x"),)
            wanted.setdefault(name, []).append(message.transaction_id)
            ledger.add(message)
            assert len(ledger._open) <= 3
        ledger.finish()
    found = read_world_ledger(path)
    assert {truth.truth_id: truth.event_ids for truth in found.truths} == wanted
    always = next(t for t in found.truths if t.truth_id == "always")
    assert (always.first_event_time_ms, always.last_event_time_ms) == (0, 99)


def test_a_torn_ledger_proves_nothing(ledger: ReadLedger, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with pytest.raises(UserError, match="has no summary"):
        read_world_ledger(path)
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    with pytest.raises(UserError, match="contradicts itself"):
        read_world_ledger(path)
    path.write_bytes(b"".join([lines[1], *lines]))
    with pytest.raises(UserError, match="record 1 is a World"):
        read_world_ledger(path)
    path.write_bytes(b'{"record":"what"}\n')
    with pytest.raises(UserError, match="record 1 is no record"):
        read_world_ledger(path)
    with pytest.raises(UserError, match="cannot read the ledger"):
        read_world_ledger(tmp_path / "nowhere.jsonl")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="no complete Parquet ledger"):
        read_world_ledger(tmp_path / "torn.parquet")


@pytest.mark.parametrize("kept", range(0, 40, 3))
def test_records_go_on_where_a_torn_file_ends(kept: int, tmp_path: Path) -> None:
    path, records = tmp_path / "records.jsonl", [b'{"n":%d}' % n for n in range(8)]
    path.write_bytes(b"".join(record + b"\n" for record in records[:5])[:kept])
    again = LineRecords(path, resume=True)
    for record in records:
        again.write(record)
    again.sync()
    again.close()
    assert list(read_records(path)) == records
    assert [json.loads(line)["n"] for line in path.read_bytes().splitlines()] == list(range(8))


def test_records_of_another_run_are_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"n":1}\n{"n":2}\n')
    again = LineRecords(path, resume=True)
    again.write(b'{"n":1}')
    with pytest.raises(UserError, match="ledger of another stream from byte 8 on"):
        again.write(b'{"n":3}')
    again.close()
    assert path.read_bytes() == b'{"n":1}\n{"n":2}\n'


def test_a_parquet_ledger_cannot_be_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--resume needs a ledger of JSON lines"):
        open_records(tmp_path / "ledger.parquet", resume=True)
    with pytest.raises(UserError, match="cannot write the ledger"):
        open_records(tmp_path / "no" / "ledger.parquet")


def test_the_ledgers_records_are_readable_by_anyone(tmp_path: Path) -> None:
    write(tmp_path / "ledger.jsonl")
    kinds = Counter(msgspec.json.decode(line)["record"] for line in read_records(tmp_path / "ledger.jsonl"))
    assert kinds["run"] == kinds["summary"] == 1
    assert kinds.keys() == {"run", "fault", "silence", "truth", "summary"}

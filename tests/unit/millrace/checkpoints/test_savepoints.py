"""Savepoints as files: complete or refused, with an identity of their own, and with their tables."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.checkpoints import positions, savepoints
from millrace.checkpoints.checkpoint import Checkpoint, CheckpointError, locate
from millrace.checkpoints.positions import TablePosition
from millrace.checkpoints.savepoints import Savepoint, SavepointCorrupted, SavepointError
from millrace.connectors.merging import _keep
from millrace.runtime.clock_files import Epoch, keep_settings, read_settings, write_status
from millrace.runtime.contract import (
    CheckpointInUse,
    ContractMismatch,
    check_contract,
    owned,
    restored_from,
)
from millrace.time.clock import ClockSettings, ClockStatus
from tests.unit.millrace.checkpoints.cases import LAST, WATERMARKS, kept_checkpoint

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def kept(tmp_path: Path) -> Checkpoint:
    return kept_checkpoint(tmp_path / "query")


@pytest.fixture
def made(kept: Checkpoint) -> Savepoint:
    return savepoints.create(kept, name="monday", now=NOW)


def contract_of(root: Path) -> dict[str, Any]:
    return dict(json.loads((root / "contract.json").read_text()))


def test_a_savepoint_has_the_batch_its_offsets_and_its_watermark(kept: Checkpoint, made: Savepoint) -> None:
    assert made.path == kept.root / "savepoints" / "monday"
    manifest = savepoints.load(made.path).manifest
    assert manifest["batch"] == LAST
    assert manifest["offsets"] == ['{"logOffset":3}']
    assert manifest["watermark_ms"] == WATERMARKS[LAST]
    assert manifest["partitions"] == 2
    assert manifest["created_at"] == "2026-01-02T00:00:00+00:00"
    assert manifest["contract"] == contract_of(kept.root)
    assert set(manifest["files"]) == set(kept.files(LAST))
    savepoints.verify(made)
    assert locate(str(made.path)).contract() == contract_of(kept.root)


def test_an_earlier_batch_can_be_kept_too(kept: Checkpoint) -> None:
    made = savepoints.create(kept, batch=2)
    assert (made.name, made.batch, made.manifest["watermark_ms"]) == ("batch-2", 2, WATERMARKS[2])


def test_savepoints_are_listed_by_batch_and_half_made_ones_are_not(kept: Checkpoint, made: Savepoint) -> None:
    savepoints.create(kept, batch=1)
    (made.path.parent / ".part-0123").mkdir()
    assert [s.name for s in savepoints.list_savepoints(made.path.parent)] == ["batch-1", "monday"]
    assert savepoints.list_savepoints(kept.root / "nothing") == []


@pytest.mark.parametrize("name", ["monday", "", "a/b", ".hidden"])
def test_a_name_that_is_taken_or_none_is_refused_and_nothing_is_left(
    kept: Checkpoint, made: Savepoint, name: str
) -> None:
    with pytest.raises(SavepointError, match=r"already|cannot be the name"):
        savepoints.create(kept, name=name)
    assert sorted(p.name for p in made.path.parent.iterdir()) == ["monday"]


def test_a_drained_checkpoint_makes_no_savepoint(kept: Checkpoint) -> None:
    (kept.root / "drained").write_text("drained\n")
    with pytest.raises(SavepointError, match="has been drained"):
        savepoints.create(kept)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def first_changelog(made: Savepoint) -> Path:
    return sorted((made.path / "checkpoint" / "state").rglob("*.changelog"))[0]


DAMAGES: dict[str, tuple[Callable[[Savepoint], object], str]] = {
    "a flipped bit in state": (lambda s: flip(first_changelog(s), 100), "is damaged"),
    "a file that is cut off": (lambda s: first_changelog(s).write_bytes(b""), "is damaged"),
    "a file that is missing": (lambda s: first_changelog(s).unlink(), "is missing"),
    "no state at all": (lambda s: shutil.rmtree(s.path / "checkpoint" / "state"), "is missing"),
    "a file too many": (
        lambda s: (s.path / "checkpoint" / "offsets" / "9").write_text("v1"),
        "does not belong",
    ),
    "another offset": (lambda s: flip(s.path / "checkpoint" / "offsets" / "4", -2), "is damaged"),
    "a flipped bit in the manifest": (
        lambda s: flip(s.path / "manifest.json", 90),
        "manifest.json is damaged",
    ),
    "a manifest that is cut off": (
        lambda s: (s.path / "manifest.json").write_bytes((s.path / "manifest.json").read_bytes()[:200]),
        "manifest.json is damaged",
    ),
    "no manifest": (lambda s: (s.path / "manifest.json").unlink(), "no complete savepoint"),
    "an empty manifest": (lambda s: (s.path / "manifest.json").write_bytes(b""), "no complete savepoint"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_half_copied_savepoint_is_refused_and_nothing_is_written(
    kept: Checkpoint, made: Savepoint, tmp_path: Path, damage: str
) -> None:
    break_it, message = DAMAGES[damage]
    break_it(made)
    with pytest.raises(SavepointCorrupted, match=message):
        savepoints.restore(savepoints.load(made.path), tmp_path / "new")
    assert not (tmp_path / "new" / "checkpoint").exists()


def test_a_restored_checkpoint_is_the_same_batch_with_an_identity_of_its_own(
    kept: Checkpoint, made: Savepoint, tmp_path: Path
) -> None:
    to = tmp_path / "new"
    restored = savepoints.restore(made, to)
    assert restored.checkpoint.last() == LAST
    assert restored.checkpoint.files(LAST) == kept.files(LAST)
    assert restored.checkpoint.watermark(LAST) == WATERMARKS[LAST]
    assert str(to) in (to / "checkpoint/state/0/_metadata/v2/0").read_text()
    before, after = contract_of(kept.root), contract_of(to)
    assert after["incarnation"] == restored.incarnation != before["incarnation"]
    assert after.pop("restored") == {"savepoint": "monday"}
    assert {**after, "incarnation": ""} == {**before, "incarnation": ""}
    ids = {(c.folder / "metadata").read_text() for c in (kept, restored.checkpoint)}
    assert len(ids) == 2, "two queries of one id cannot run in one session"
    assert sorted(p.name for p in to.iterdir()) == ["checkpoint", "clock", "contract.json", "owner.lock"]


def test_what_the_clock_of_another_query_went_by_goes_with_its_checkpoint(
    made: Savepoint, tmp_path: Path
) -> None:
    """A batch that the other one planned, under settings of its own, is not to run again under them."""
    other = kept_checkpoint(tmp_path / "other")
    shutil.copy(other.folder / "offsets" / "4", other.folder / "offsets" / "5")
    keep_settings(other.root, ClockSettings(bound_ms=99))
    write_status(other.root, 5, ClockStatus(1, 2, 3))
    restored = savepoints.restore(made, other.root, replace=True)
    assert read_settings(other.root) == []
    assert (restored.checkpoint.watermark(5), restored.checkpoint.watermark(0)) == (None, None)
    own = ClockSettings(bound_ms=7)
    assert keep_settings(other.root, own) == [Epoch(LAST + 1, own)]


def test_two_restores_are_two_identities(made: Savepoint, tmp_path: Path) -> None:
    assert len({savepoints.restore(made, tmp_path / n).incarnation for n in ("a", "b")}) == 2


def test_a_checkpoint_that_is_there_is_replaced_only_when_asked(
    kept: Checkpoint, made: Savepoint, tmp_path: Path
) -> None:
    (kept.root / "drained").write_text("drained\n")
    with pytest.raises(SavepointError, match="has a checkpoint already"):
        savepoints.restore(made, kept.root)
    old = contract_of(kept.root)["incarnation"]
    restored = savepoints.restore(made, kept.root, replace=True)
    assert contract_of(kept.root)["incarnation"] == restored.incarnation != old
    assert not (kept.root / "drained").exists()
    assert not [p for p in kept.root.iterdir() if p.name.startswith("checkpoint-")]


def test_a_restore_over_a_running_query_is_refused(kept: Checkpoint, made: Savepoint) -> None:
    with owned(kept.root), pytest.raises(CheckpointInUse, match="is in use by"):
        savepoints.restore(made, kept.root, replace=True)
    assert kept.last() == LAST


def test_a_restore_that_is_cut_off_leaves_nothing_to_start_on(
    made: Savepoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(savepoints.shutil, "copyfile", full)
    with pytest.raises(OSError, match="no space left"):
        savepoints.restore(made, tmp_path / "new")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["owner.lock"]


def process_contract(root: Path, **changes: Any) -> dict[str, Any]:
    return {n: v for n, v in contract_of(root).items() if n not in ("incarnation", "restored")} | changes


def test_another_version_of_the_process_goes_on_from_a_savepoint_but_not_from_a_checkpoint(
    kept: Checkpoint, made: Savepoint, tmp_path: Path
) -> None:
    newer = process_contract(kept.root, version=2)
    with pytest.raises(ContractMismatch, match="version was 1, is now 2"):
        check_contract(kept.root, newer)
    to = tmp_path / "new"
    incarnation = savepoints.restore(made, to).incarnation
    assert check_contract(to, newer) == incarnation
    assert contract_of(to)["version"] == 2
    assert restored_from(to) == {"savepoint": "monday", "started": True}
    with pytest.raises(ContractMismatch, match="version was 2, is now 3"):
        check_contract(to, process_contract(kept.root, version=3))


def test_a_process_that_cannot_read_the_state_is_refused_with_what_differs(
    kept: Checkpoint, made: Savepoint, tmp_path: Path
) -> None:
    to = tmp_path / "new"
    savepoints.restore(made, to)
    states = {**contract_of(to)["states"]}
    states["number"] = {**states["number"], "type": "str"}
    with pytest.raises(ContractMismatch, match=r'number\.type was "int", is now "str"'):
        check_contract(to, process_contract(to, states=states))
    with pytest.raises(ContractMismatch, match="key_groups was 4, is now 8"):
        check_contract(to, process_contract(to, key_groups=8))


def test_savepoints_are_found_by_path_and_by_name(kept: Checkpoint, made: Savepoint, tmp_path: Path) -> None:
    assert savepoints.find(str(made.path)).name == "monday"
    assert savepoints.find("monday", str(kept.root)).path == made.path
    for name, near in (("tuesday", str(kept.root)), ("tuesday", None), (str(tmp_path / "x"), None)):
        with pytest.raises(SavepointError, match="there is no savepoint"):
            savepoints.find(name, near)


# -- tables ------------------------------------------------------------------------------------


class DeltaLog:
    """The log of a Delta table, as far as positions look at it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "_delta_log").mkdir(parents=True)
        self._next = 0

    def commit(self, app: str | None = None, batch: int = 0) -> None:
        actions: list[dict[str, Any]] = [{"commitInfo": {"operation": "WRITE"}}]
        if app is not None:
            actions.append({"txn": {"appId": app, "version": batch}})
        path = self.folder / "_delta_log" / f"{self._next:020}.json"
        path.write_text("\n".join(json.dumps(a) for a in actions))
        self._next += 1


def test_a_delta_table_stands_where_the_last_kept_batch_left_it(tmp_path: Path) -> None:
    log = DeltaLog(tmp_path / "t")
    log.commit()  # the table is made
    for batch in range(4):
        log.commit("fraud:abc:decisions", batch)
    assert positions.position_of(log.folder, "delta", "abc", 9) == TablePosition("delta", 4, "abc")
    kept = positions.position_of(log.folder, "delta", "abc", 2)
    assert kept == TablePosition("delta", 3, "abc")
    assert positions.has_moved(log.folder, kept)
    assert positions.last_written(log.folder, "delta", "abc") == 3
    assert positions.last_written(log.folder, "delta", "xyz") is None
    assert positions.position_of(tmp_path / "none", "delta", "abc", 2) is None


def test_what_another_writer_did_before_the_next_batch_belongs_to_the_savepoint(tmp_path: Path) -> None:
    log = DeltaLog(tmp_path / "t")
    log.commit("millrace:abc", 0)
    log.commit()  # somebody optimizes the table
    log.commit("millrace:abc", 1)
    assert positions.position_of(log.folder, "delta", "abc", 0) == TablePosition("delta", 1, "abc")


def with_tables(kept: Checkpoint, tmp_path: Path) -> tuple[DeltaLog, Path, str]:
    incarnation = kept.contract()["incarnation"]
    log, parquet = DeltaLog(tmp_path / "delta"), tmp_path / "parquet"
    for batch in range(LAST + 1):
        log.commit(f"millrace:{incarnation}", batch)
        (parquet / f"batch={incarnation}-{batch:08}").mkdir(parents=True)
    positions.record_tables(kept.root, {str(log.folder): "delta", str(parquet): "parquet"})
    return log, parquet, incarnation


def test_tables_that_are_where_they_were_need_nothing(kept: Checkpoint, tmp_path: Path) -> None:
    with_tables(kept, tmp_path)
    made = savepoints.create(kept)
    assert {p.name: (t.format, t.version) for p, t in made.tables.items()} == {
        "delta": ("delta", LAST), "parquet": ("parquet", LAST),
    }  # fmt: skip
    assert savepoints.restore(made, tmp_path / "new").done == ()


def test_tables_that_have_moved_on_refuse_a_restore_that_says_nothing_of_them(
    kept: Checkpoint, tmp_path: Path
) -> None:
    log, parquet, incarnation = with_tables(kept, tmp_path)
    made = savepoints.create(kept)
    (parquet / f"batch={incarnation}-{LAST + 1:08}").mkdir()
    with pytest.raises(SavepointError, match=r"written to .*parquet, and .*--rollback .*--merge .*--keep"):
        savepoints.restore(made, tmp_path / "new")
    log.commit(f"millrace:{incarnation}", LAST + 1)
    with pytest.raises(SavepointError, match="and 1 more tables"):
        savepoints.restore(made, tmp_path / "new")
    assert not (tmp_path / "new" / "checkpoint").exists()
    assert savepoints.restore(made, tmp_path / "new", tables="keep").done == ()


def test_rolling_a_parquet_table_back_removes_the_batches_after_the_savepoint(
    kept: Checkpoint, tmp_path: Path
) -> None:
    _, parquet, incarnation = with_tables(kept, tmp_path)
    (parquet / "batch=0123456789ab-00000099").mkdir()  # of another query
    made = savepoints.create(kept, batch=2)
    shutil.rmtree(tmp_path / "delta")
    done = savepoints.restore(made, tmp_path / "new", tables="rollback").done
    assert [line.partition(": ")[2] for line in done] == ["2 batches after 2 removed"]
    left = sorted(p.name for p in parquet.iterdir())
    assert left == ["batch=0123456789ab-00000099"] + [f"batch={incarnation}-{b:08}" for b in range(3)]


def leave(table: Path, incarnation: str, batch: int, *ids: str | None) -> Path:
    """Have a batch leave rows for a table, as a killed job has."""
    (table / positions.WAITING).mkdir(exist_ok=True)
    file = table / positions.WAITING / f"{batch:012d}.arrow"
    _keep(file, pa.table({"_event_id": pa.array(ids, pa.string())}), f"app:{incarnation}:delta", batch)
    return file


def test_what_waits_for_a_table_refuses_a_restore_that_says_nothing_of_it(
    kept: Checkpoint, tmp_path: Path
) -> None:
    """The next start would bring it in, and the new query would write it again."""
    log, _, incarnation = with_tables(kept, tmp_path)
    made = savepoints.create(kept)
    file = leave(log.folder, incarnation, LAST + 1, "a")
    with pytest.raises(SavepointError, match=r"written to .*delta, and .*--rollback .*--merge .*--keep"):
        savepoints.restore(made, tmp_path / "new")
    assert savepoints.restore(made, tmp_path / "kept", tables="keep").done == ()
    assert file.exists()
    done = savepoints.restore(made, tmp_path / "new", tables="rollback").done
    assert done == (f"{log.folder}: 1 files of rows that waited for it removed",)
    assert not file.exists()
    assert savepoints.restore(made, tmp_path / "again").done == ()


def test_what_waits_for_a_table_is_left_out_by_a_query_that_merges(kept: Checkpoint, tmp_path: Path) -> None:
    log, _, incarnation = with_tables(kept, tmp_path)
    made = savepoints.create(kept)
    leave(log.folder, incarnation, LAST + 1, "a", "b")
    file = leave(log.folder, incarnation, LAST + 2, "c")
    savepoints.restore(made, tmp_path / "new", tables="merge")
    (ids,) = positions.kept_ids(tmp_path / "new").values()
    assert positions.read_ids(ids) == {"a", "b", "c"}
    assert file.exists()
    leave(log.folder, incarnation, LAST + 3, None)
    with pytest.raises(positions.TablePositionError, match="records without an _event_id"):
        savepoints.restore(made, tmp_path / "other", tables="merge")


def test_which_tables_a_query_writes_is_noted_once(tmp_path: Path) -> None:
    positions.record_tables(tmp_path, {"x": "parquet"})
    noted = (tmp_path / "tables.json").stat().st_mtime_ns
    positions.record_tables(tmp_path, {"x": "parquet"})
    assert (tmp_path / "tables.json").stat().st_mtime_ns == noted
    assert positions.tables_of(tmp_path) == {Path("x").absolute(): "parquet"}


def test_a_checkpoint_that_lost_its_contract_makes_no_savepoint(kept: Checkpoint) -> None:
    (kept.root / "contract.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no contract\.json"):
        savepoints.create(kept)
    assert list((kept.root / "savepoints").iterdir()) == []


def test_a_restore_whose_tables_cannot_be_brought_back_leaves_nothing_to_start_on(
    kept: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, parquet, incarnation = with_tables(kept, tmp_path)
    made = savepoints.create(kept)
    (parquet / f"batch={incarnation}-{LAST + 1:08}").mkdir()

    def fail(*_: Any) -> str:
        raise positions.TablePositionError("the version is gone")

    monkeypatch.setattr(positions, "roll_back", fail)
    with pytest.raises(positions.TablePositionError):
        savepoints.restore(made, kept.root, tables="rollback", replace=True)
    with pytest.raises(ContractMismatch, match=r"has no contract\.json beside it"):
        check_contract(kept.root, {})
    (aside,) = kept.root.glob("checkpoint-old-*")
    assert {p.name for p in aside.iterdir()} == {"checkpoint", "clock", "contract.json"}

"""A checkpoint read as files: its batches, what a batch needs, and copies of it while a query runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from millrace.checkpoints import checkpoint as module
from millrace.checkpoints import state_files as files_module
from millrace.checkpoints.checkpoint import Checkpoint, CheckpointError, held, locate, relocate
from millrace.checkpoints.stages import keys_for, stage_of, stages_of
from millrace.checkpoints.state_files import read_lineage
from millrace.errors import UserError
from millrace.runtime.clock_files import write_status
from millrace.time import NO_WATERMARK
from millrace.time.clock import ClockStatus
from tests.unit.millrace.checkpoints.cases import LAST, WATERMARKS, kept_checkpoint


@pytest.fixture
def kept(tmp_path: Path) -> Checkpoint:
    return kept_checkpoint(tmp_path / "query")


def state_files(checkpoint: Checkpoint, batch: int) -> set[str]:
    return {f for f in checkpoint.files(batch) if "/0/0/" in f and "SSTs" not in f}


def test_batches_positions_and_watermarks_are_those_that_the_query_wrote(kept: Checkpoint) -> None:
    assert kept.batches() == [0, 1, 2, 3, 4]
    assert kept.last() == LAST
    assert kept.planned() == []
    assert [kept.watermark(batch) for batch in kept.batches()] == list(WATERMARKS)
    position = kept.position(3)
    assert position.sources == ('{"logOffset":3}',)
    assert position.partitions == 2


def test_a_batch_before_the_first_event_or_whose_clock_nobody_noted_has_no_watermark(
    kept: Checkpoint,
) -> None:
    write_status(kept.root, 1, ClockStatus(NO_WATERMARK, NO_WATERMARK))
    write_status(kept.root, 2, ClockStatus(-90_000, -60_000, -50_000))
    (kept.root / "clock" / "3").unlink()
    assert [kept.watermark(batch) for batch in (1, 2, 3)] == [None, -60_000, None]
    shutil.rmtree(kept.root / "clock")
    assert kept.watermark(LAST) is None


def test_a_batch_that_was_planned_and_not_committed_is_no_batch_yet(kept: Checkpoint) -> None:
    shutil.copy(kept.folder / "offsets" / "4", kept.folder / "offsets" / "5")
    assert kept.last() == LAST
    assert kept.planned() == [5]
    assert "offsets/5" not in kept.files(LAST)


@pytest.mark.parametrize("left", [b"", b"v1", b"v1\n", b'v1\n{"batch', b"v1\n[]", b"\xff\xfe\n\x00\n"])
def test_a_log_that_was_cut_off_is_named(kept: Checkpoint, left: bytes) -> None:
    """As a machine leaves one that lost its power: there, and with a part of what was written."""
    for log, read in (("offsets", kept.position), ("commits", kept.commit)):
        path = kept.folder / log / f"{LAST}"
        path.write_bytes(left)
        with pytest.raises(CheckpointError, match=f"{path} was cut off or is damaged"):
            read(LAST)


@pytest.mark.parametrize("file", ["0/_metadata/v2/0", "0/0/*.zip"])
@pytest.mark.parametrize("left", [0, 0.5])
def test_state_that_was_cut_off_is_named(kept: Checkpoint, tmp_path: Path, file: str, left: float) -> None:
    (path, *_) = sorted((kept.folder / "state").glob(file))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * left)])
    with pytest.raises(UserError, match=f"{path.name} was cut off or is damaged"):
        kept.copy(tmp_path / "copy")
    if path.suffix != ".zip":
        with pytest.raises(CheckpointError, match=f"{path} was cut off or is damaged"):
            kept.operators(LAST)


def test_a_batch_that_is_held_outlives_what_its_query_removes(kept: Checkpoint) -> None:
    """Of some batches the first that is there; what cannot be had is told by what was asked for first."""
    wanted = kept.files(1)
    for log in ("offsets", "commits"):
        (kept.folder / log / "0").unlink()
    with held(kept, [0, 1, 2]) as (copy, batch), held(kept, [None]) as (_, last):
        shutil.rmtree(kept.folder)
        assert (batch, last) == (1, LAST)
        assert copy.files(1) == [name for name in wanted if name not in ("offsets/0", "commits/0")]
        assert copy.position(1).batch == 1
    assert not copy.folder.exists()


def test_batches_none_of_which_is_kept_are_told(kept: Checkpoint) -> None:
    for wanted, said in [([77, 78], "does not keep batch 77"), ([], "went one after the other")]:
        with pytest.raises(CheckpointError, match=said), held(kept, wanted):
            pass


def test_the_operator_and_its_process_are_known(kept: Checkpoint) -> None:
    (operator,) = kept.operators(LAST)
    assert set(operator.variables) == {"header", "pages", "broadcast"}
    (stage,) = stages_of(kept, LAST)
    assert (stage.process, stage.key, stage.key_groups, stage.has_broadcast) == (
        "Everything", ("who",), 4, True,
    )  # fmt: skip
    assert stage_of(kept, LAST, "Everything") == stage
    with pytest.raises(CheckpointError, match="the query has no process Other; it has Everything"):
        stage_of(kept, LAST, "Other")


def test_a_batch_needs_its_snapshot_and_the_changelogs_since(kept: Checkpoint) -> None:
    needed = state_files(kept, LAST)
    assert len([f for f in needed if f.endswith(".changelog")]) == 5
    assert len([f for f in needed if f.endswith(".zip")]) == 1
    earlier = state_files(kept, 1)
    assert earlier < needed
    assert len([f for f in earlier if f.endswith(".changelog")]) == 2


def test_what_a_retried_task_left_is_not_part_of_a_batch(kept: Checkpoint) -> None:
    folder = kept.folder / "state" / "0" / "0"
    of_last = next(folder.glob("5_*.changelog"))
    stray = folder / "5_00000000-0000-0000-0000-000000000000.changelog"
    shutil.copy(of_last, stray)
    assert f"state/0/0/{stray.name}" not in kept.files(LAST)
    assert f"state/0/0/{of_last.name}" in kept.files(LAST)


def test_files_that_are_being_written_are_left_out(kept: Checkpoint) -> None:
    (kept.folder / "sources" / "0" / ".4.12345.tmp").write_text("half")
    assert not [f for f in kept.files(LAST) if f.endswith(".tmp")]


def test_a_changelog_names_the_versions_that_it_stands_on(kept: Checkpoint) -> None:
    changelog = next((kept.folder / "state" / "0" / "0").glob("5_*.changelog"))
    before = read_lineage(changelog.read_bytes())
    assert before is not None
    assert [version for version, _ in before] == [1, 2, 3, 4]
    assert read_lineage(b"something else altogether") is None
    assert read_lineage(b"zzzzzzzz" + b"\x20" + bytes(12) + b"x") is None


def test_where_no_lineage_is_known_all_earlier_versions_are_taken(
    kept: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = state_files(kept, LAST)
    monkeypatch.setattr(files_module, "read_lineage", lambda _: None)
    assert state_files(kept, LAST) == known
    folder = kept.folder / "state" / "0" / "0"
    shutil.copy(
        next(folder.glob("5_*.changelog")), folder / "6_00000000-0000-0000-0000-000000000000.changelog"
    )
    assert state_files(kept, LAST) == known


@pytest.mark.parametrize("link", [True, False])
def test_a_copy_has_what_the_batch_needs_and_knows_its_own_place(
    kept: Checkpoint, tmp_path: Path, link: bool
) -> None:
    copy = Checkpoint(kept.root, tmp_path / "copy")
    assert kept.copy(copy.folder, 3, link=link) == 3
    assert copy.batches() == [2, 3]
    assert copy.files(3) == kept.files(3)
    metadata = json.loads((copy.folder / "state/0/_metadata/v2/0").read_text().split("\n", 1)[1])
    (schema,) = metadata["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert Path(schema.removeprefix("file:")).parent == copy.folder / "state/0/_stateSchema/default"
    assert Path(schema.removeprefix("file:")).exists()
    # The original keeps its own place: the file that says it was not shared.
    assert str(tmp_path / "copy") not in (kept.folder / "state/0/_metadata/v2/0").read_text()


def test_a_linked_copy_outlives_what_a_running_query_removes(kept: Checkpoint, tmp_path: Path) -> None:
    copy = Checkpoint(kept.root, tmp_path / "copy")
    kept.copy(copy.folder, link=True)
    files = copy.files(LAST)
    shutil.rmtree(kept.folder)
    assert all((copy.folder / name).read_bytes() for name in files)


def test_files_that_go_while_they_are_copied_begin_the_copy_anew_with_a_later_batch(
    kept: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_back = {log: (kept.folder / log / "4").read_bytes() for log in ("offsets", "commits")}
    for log in held_back:
        (kept.folder / log / "4").unlink()
    copy_file, gone = module._copy, next((kept.folder / "state/0/0").glob("4_*.changelog"))

    def copy(source: Path, target: Path, link: bool) -> None:
        if source == gone and not (kept.folder / "commits" / "4").exists():
            for log, data in held_back.items():  # the query commits a batch meanwhile
                (kept.folder / log / "4").write_bytes(data)
            raise FileNotFoundError(source)
        copy_file(source, target, link)

    monkeypatch.setattr(module, "_copy", copy)
    assert kept.copy(tmp_path / "copy") == LAST
    assert Checkpoint(tmp_path, tmp_path / "copy").files(LAST) == kept.files(LAST)


def test_a_checkpoint_whose_files_always_go_is_given_up_with_a_reason(
    kept: Checkpoint, tmp_path: Path
) -> None:
    next((kept.folder / "state/0/1").glob("3_*.changelog")).unlink()
    with pytest.raises(CheckpointError, match="files of batch 4 went while they were copied, 5 times"):
        kept.copy(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert kept.copy(tmp_path / "copy", 1) == 1


def test_a_batch_that_is_not_kept_any_more_is_refused(kept: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"does not keep batch 9 \(kept: 0, 1, 2, 3, 4\)"):
        kept.copy(tmp_path / "copy", 9)


def test_a_query_that_has_committed_nothing_yet_is_told_of(kept: Checkpoint) -> None:
    shutil.rmtree(kept.folder / "commits")
    with pytest.raises(CheckpointError, match="has no committed batch yet"):
        kept.last()


def test_a_checkpoint_is_found_by_its_folder_or_the_one_around_it(kept: Checkpoint, tmp_path: Path) -> None:
    assert locate(str(kept.root)) == kept
    assert locate(str(kept.folder)) == kept
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        locate(str(tmp_path))
    with pytest.raises(CheckpointError, match="no folder nowhere-at-all and no app of that name"):
        locate("nowhere-at-all")


def test_an_app_that_has_not_run_is_told_with_its_last_demo(
    kept: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"fraud has no checkpoint in .*: run it first$"):
        locate("fraud")
    demo = tmp_path / "home" / "demo" / "fraud"
    shutil.copytree(kept.folder, demo / "checkpoint")
    with pytest.raises(CheckpointError, match=f"run it first, or name that of its last demo: {demo}$"):
        locate("fraud")


def test_a_checkpoint_without_a_contract_is_told_of(kept: Checkpoint) -> None:
    (kept.root / "contract.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        kept.contract()
    (kept.root / "contract.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no contract\.json"):
        kept.contract()


def test_a_contract_of_another_query_is_refused(kept: Checkpoint) -> None:
    contract = kept.contract()
    (kept.root / "contract.json").write_text(json.dumps({**contract, "links": [contract, contract]}))
    with pytest.raises(CheckpointError, match="1 operators with key groups, its contract names 2 processes"):
        stages_of(kept, LAST)


def test_relocating_to_a_later_place_names_that_place(kept: Checkpoint, tmp_path: Path) -> None:
    relocate(kept.folder, tmp_path / "later")
    text = (kept.folder / "state/0/_metadata/v2/0").read_text()
    assert f"file:{tmp_path}/later/state/0/_stateSchema/default/" in text


def test_encrypted_state_without_its_keys_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLRACE_STATE_SECRET_KEYS", raising=False)
    assert keys_for({}) is None
    with pytest.raises(CheckpointError, match="encrypted with key 0a0b0c0d"):
        keys_for({"encryption": {"cipher": "AES-256-GCM", "keys": ["0a0b0c0d"]}})


def test_checksums_of_what_a_file_was_before_go_when_it_is_written_anew(
    kept: Checkpoint, tmp_path: Path
) -> None:
    folder = kept.folder / "state/0/_metadata/v2"
    for name in (".0.crc", "0.crc"):
        (folder / name).write_bytes(b"sum")
    relocate(kept.folder, tmp_path / "later")
    assert [p.name for p in folder.iterdir()] == ["0"]

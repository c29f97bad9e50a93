"""`millrace savepoint …` from the command line, without Spark, and what the others refuse at once."""

from __future__ import annotations

import doctest
import importlib
import json
import pkgutil
import sys
from pathlib import Path

import pytest

import millrace.checkpoints
from millrace import cli
from tests.unit.millrace.checkpoints.cases import LAST, kept_checkpoint


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return kept_checkpoint(tmp_path / "query").root


class Command:
    """`millrace` in this process: exit code, and what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: object) -> tuple[int, str]:
        self._monkeypatch.setattr(sys, "argv", ["millrace", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        printed = self._capsys.readouterr()
        assert "Traceback" not in printed.err
        return code, printed.out + printed.err


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


def test_a_savepoint_is_made_listed_checked_and_restored(
    command: Command, root: Path, tmp_path: Path
) -> None:
    code, text = command("savepoint", "create", root, "--name", "monday")
    assert (code, f"monday: batch {LAST}" in text) == (0, True)
    code, text = command("savepoint", "list", root)
    assert (code, text.startswith(f"monday  batch {LAST}  ")) == (0, True)
    assert "Everything version 1" in text
    code, text = command("savepoint", "list", root, "--format", "json")
    assert [(s["name"], s["process"], s["partitions"]) for s in json.loads(text)] == [
        ("monday", "Everything", 2)
    ]
    code, text = command("savepoint", "check", root / "savepoints" / "monday")
    assert (code, text.rstrip().endswith("all as written")) == (0, True)
    code, text = command("savepoint", "restore", root / "savepoints" / "monday", "--to", tmp_path / "new")
    assert (code, f"goes on after batch {LAST} of monday" in text) == (0, True)
    code, text = command("savepoint", "restore", "monday", "--to", root)
    assert (code, "has a checkpoint already" in text) == (2, True)
    code, text = command("savepoint", "restore", "monday", "--to", root, "--replace")
    assert code == 0


def test_what_was_kept_and_restored_is_told_as_json(command: Command, root: Path, tmp_path: Path) -> None:
    code, text = command("savepoint", "create", root, "--name", "monday", "--json")
    made = json.loads(text)
    assert (code, made["name"], made["batch"]) == (0, "monday", LAST)
    code, text = command("savepoint", "restore", made["path"], "--to", tmp_path / "new", "--json")
    done = json.loads(text)
    assert (code, done["checkpoint"]) == (0, str(tmp_path / "new" / "checkpoint"))
    assert (done["name"], done["batch"], done["tables"]) == ("monday", LAST, [])


def test_a_damaged_savepoint_ends_in_one_line_and_exit_code_2(command: Command, root: Path) -> None:
    command("savepoint", "create", root, "--name", "monday")
    path = root / "savepoints" / "monday"
    next((path / "checkpoint" / "state").rglob("*.changelog")).unlink()
    for arguments in (("check", path), ("restore", path, "--to", root / "new")):
        code, text = command("savepoint", *arguments)
        assert (code, text.count("\n"), "is missing" in text) == (2, 1, True)


def test_a_folder_without_savepoints_says_so(command: Command, root: Path) -> None:
    assert command("savepoint", "list", root) == (0, "no savepoints\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("state", "list", "nothing-here"), "no folder nothing-here and no app of that name"),
        (("state", "show", "ROOT", "-k", "a", "-f", "parquet"), "export` writes Parquet"),
        (("state", "export", "ROOT", "-f", "parquet"), "name it with --out"),
        (("state", "export", "ROOT", "--out", "ROOT"), "is there already"),
        (("state", "diff", "ROOT", "-f", "parquet"), "name it with --out"),
        (("rescale", "ROOT"), "say what is to change"),
        (("savepoint", "restore", "x", "--to", "ROOT"), "there is no savepoint"),
        (("savepoint", "restore", "x", "--to", "ROOT", "--merge", "--rollback"), "give one of"),
        (("savepoint", "create", "ROOT", "--batch", "77"), "does not keep batch 77"),
        (("savepoint", "check", "nothing-here"), "there is no savepoint nothing-here"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    command: Command, root: Path, arguments: tuple[str, ...], message: str
) -> None:
    code, text = command(*(str(root) if a == "ROOT" else a for a in arguments))
    assert (code, text.count("\n")) == (2, 1)
    assert message in text


def test_what_went_wrong_in_a_worker_is_told_in_its_own_words() -> None:
    from millrace.checkpoints.session import reason

    text = (
        "Job aborted due to stage failure\n  File cells.py, line 1\n"
        "millrace.state.cells.StateCorrupted: page 3\n"
    )
    assert reason(text) == "page 3"
    assert reason("[SOMETHING] went wrong\nat org.apache") == "[SOMETHING] went wrong"
    assert reason("") == "unknown error"


@pytest.mark.parametrize("name", [m.name for m in pkgutil.iter_modules(millrace.checkpoints.__path__)])
def test_examples_of_docstrings_run_as_they_stand(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"millrace.checkpoints.{name}")).failed == 0

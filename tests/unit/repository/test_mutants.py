"""The list of mutants is as it says: each can be applied, compiles, and names tests that exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.__main__ import main
from tests.mutants.areas import AREAS
from tests.mutants.mutant import DoesNotApply, Mutant
from tests.mutants.runner import GOOD, Bench, Ran, verdict

ROOT = Path(__file__).resolve().parents[3]
ALL = [mutant for mutants in AREAS.values() for mutant in mutants]


@cache
def text(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def applied(mutant: Mutant) -> str | None:
    """Return the changed source, ``None`` where the mutant does not apply."""
    try:
        return mutant.applied_to(text(mutant.file))
    except (OSError, DoesNotApply):
        return None


def compiles(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def several(mutants: list[Mutant], source: str) -> tuple[str, list[Mutant]]:
    """Apply as many mutants of one file as can be; return the source and those that are left."""
    left = []
    for mutant in mutants:
        try:
            source = mutant.applied_to(source)
        except DoesNotApply:
            left.append(mutant)
    return source, left


def exists(test: str) -> bool:
    """Tell whether a file, folder, class or function of tests is there."""
    place, *names = test.partition("[")[0].split("::")
    if not (ROOT / place).exists():
        return False
    return not names or all(re.search(rf"^\s*(def|class) {name}\b", text(place), re.M) for name in names)


def test_every_mutants_text_stands_exactly_once_in_its_file() -> None:
    assert [mutant.name for mutant in ALL if applied(mutant) is None] == []


def test_every_mutant_compiles() -> None:
    """To read a source takes long, so those of a file are tried together, and one by one only if need be."""
    wrong = []
    by_file: dict[str, list[Mutant]] = {}
    for mutant in ALL:
        if applied(mutant) is not None:
            by_file.setdefault(mutant.file, []).append(mutant)
    for file, mutants in by_file.items():
        while mutants:
            source, left = several(mutants, text(file))
            if not compiles(source):
                wrong += [m.name for m in mutants if m not in left and not compiles(applied(m) or "")]
            mutants = left
    assert wrong == []


def test_every_mutant_names_tests_that_exist() -> None:
    assert [test for mutant in ALL for test in mutant.tests if not exists(test)] == []
    assert [mutant.name for mutant in ALL if not mutant.tests] == []


def test_names_tell_mutants_apart() -> None:
    assert [name for name, number in Counter(mutant.name for mutant in ALL).items() if number > 1] == []


def test_no_two_mutants_are_the_same_change() -> None:
    changes = Counter((m.file, m.old, m.new) for m in ALL)
    assert [change for change, number in changes.items() if number > 1] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [("gone", "x"), ("a", "x"), ("", "x"), ("b = a", "b = a")],
    ids=["no", "twice", "empty", "same"],
)
def test_what_is_not_there_exactly_once_or_changes_nothing_does_not_apply(old: str, new: str) -> None:
    with pytest.raises(DoesNotApply):
        Mutant("m", "m.py", old, new, "", ()).applied_to("b = a\nc = a\n")


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("shared/millrace/host/rows.py", "millrace.host.rows"),
        ("shared/millrace/joins/__init__.py", "millrace.joins"),
        ("apps/fraud/demo.py", "millrace_apps.fraud.demo"),
        ("generators/cli.py", "millrace_apps.generators.cli"),
    ],
)
def test_a_mutant_knows_by_which_name_its_file_is_imported(file: str, module: str) -> None:
    assert Mutant("m", file, "", "", "", ()).module == module


COPY = Path("/copy")
THERE = {"sums.adding": "/copy/sums/adding.py"}


def judged(code: int | None, failed: tuple[str, ...], imported: dict[str, str], **more: Any) -> str:
    mutant = Mutant("m", "sums/adding.py", "a", "b", "adding", ("t.py",), **more)
    return verdict(mutant, Ran(code, failed, imported, "", 1.0), COPY).outcome


@pytest.mark.parametrize(
    ("code", "failed", "imported", "outcome"),
    [
        (1, ("t.py::t",), THERE, "killed"),
        (0, (), THERE, "SURVIVED"),
        (None, (), {}, "TIMED OUT"),
        (2, (), THERE, "WORTHLESS"),
        (4, (), {}, "WORTHLESS"),
        (1, ("t.py::t",), {"sums.adding": "/installed/sums/adding.py"}, "WORTHLESS"),
        (0, (), {}, "WORTHLESS"),
    ],
    ids=["fails", "passes", "too long", "not collected", "no such test", "not the copy's", "not imported"],
)
def test_a_mutant_is_killed_by_a_test_that_fails_on_the_copys_own_module_and_by_nothing_else(
    code: int | None, failed: tuple[str, ...], imported: dict[str, str], outcome: str
) -> None:
    assert judged(code, failed, imported) == outcome


def test_running_out_of_time_kills_only_what_is_said_to_hang() -> None:
    assert judged(None, (), {}, hangs=True) == "killed"


def test_a_known_survivor_must_survive() -> None:
    assert judged(0, (), THERE, known_survivor="why") == "survived as known"
    assert judged(1, ("t.py::t",), THERE, known_survivor="why") == "KILLED AFTER ALL"
    assert {"killed", "survived as known"} == GOOD


def test_a_mutant_that_does_not_apply_is_told_and_its_file_stays(tmp_path: Path) -> None:
    (tmp_path / "adding.py").write_text("a + b\n")
    result = Bench(tmp_path).judge(Mutant("m", "adding.py", "a - b", "a + b", "", ("t.py",)))
    assert (result.outcome, result.is_good) == ("DID NOT APPLY", False)
    assert (tmp_path / "adding.py").read_text() == "a + b\n"


def test_the_list_is_shown_and_can_be_narrowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "visitor.py"]) == 0
    shown = capsys.readouterr().out
    assert "a browser's timer is never brought forward" in shown
    assert "sessionize" not in shown


@pytest.mark.parametrize("arguments", [["--only", "no such mutant"], ["--jobs", "0"]])
def test_what_cannot_be_run_is_said_in_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)

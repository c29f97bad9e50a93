"""Comparing today's tree with a commit: orientation, figures, order, worktrees, failures, clean ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace_apps.benchmarks import compare, machine, reference
from millrace_apps.benchmarks.cli import app
from millrace_apps.benchmarks.compare import Measured, Plan, Side, SideFailed
from millrace_apps.benchmarks.metered import Metered

#: What the command of the tiny repository does: it says which number its tree has.
TOOL = """\
import json, os, sys
from number import NUMBER
given = sys.argv[1:]
if "--fail" in given:
    sys.exit("first line\\nNUMBER is wrong")
if "--out" in given:
    with open(given[given.index("--out") + 1], "w") as file:
        json.dump({"systems": {"ours": {"speed": NUMBER}}, "given": len(given)}, file)
with open(os.environ["CALLS"], "a") as calls:
    calls.write(f"{NUMBER} {os.getcwd()} {' '.join(given)}\\n")
"""


@pytest.fixture(autouse=True)
def quick_look_at_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_ADDITIONS", 1_000)
    monkeypatch.setattr(machine, "condition", lambda: machine.Condition(0.5, 30.0))


# -- which side is better ----------------------------------------------------------------------------


def side(name: str) -> Side:
    assert name in ("today", "reference")
    return Side(name, name, Path("/"), ("true",))  # type: ignore[arg-type]


def results(plan: Plan, today: Measured, ref: Measured) -> dict[str, object]:
    runs = {"today": today, "reference": ref}
    return compare.run_pairs(
        plan, side("today"), side("reference"), lambda which: runs[which.name], lambda _: None
    )


def test_ratios_are_above_1_where_todays_tree_takes_less() -> None:
    found = results(Plan(("x",)), Measured(wall_s=2.0, cpu_s=1.0), Measured(wall_s=3.0, cpu_s=4.0))
    assert found["ratio"] == {"median": 1.5, "low": 1.5, "high": 1.5}
    assert found["cpu_ratio"] == {"median": 4.0, "low": 4.0, "high": 4.0}
    assert found["not_slower"] is True


def test_ratios_are_below_1_where_todays_tree_takes_more() -> None:
    found = results(Plan(("x",)), Measured(wall_s=4.0, cpu_s=4.0), Measured(wall_s=3.0, cpu_s=1.0))
    assert found["ratio"] == {"median": 0.75, "low": 0.75, "high": 0.75}
    assert found["cpu_ratio"] == {"median": 0.25, "low": 0.25, "high": 0.25}
    assert found["not_slower"] is False


@pytest.mark.parametrize(("better", "wanted"), [("higher", 2.0), ("lower", 0.5)])
def test_a_figure_stands_for_the_wall_and_says_itself_what_is_better(
    better: compare.Better, wanted: float
) -> None:
    today, ref = Measured(1.0, 1.0, figure=200.0), Measured(9.0, 2.0, figure=100.0)
    found = results(Plan(("x",), figure="f", better=better), today, ref)
    assert found["ratio"] == {"median": wanted, "low": wanted, "high": wanted}
    assert found["cpu_ratio"] == {"median": 2.0, "low": 2.0, "high": 2.0}, "CPU time is always better low"


def test_a_cpu_figure_stands_for_the_time_of_all_processes_and_is_better_low() -> None:
    today, ref = Measured(1.0, 9.0, cpu_figure=10.0), Measured(1.0, 1.0, cpu_figure=30.0)
    found = results(Plan(("x",), cpu_figure="c", better="higher"), today, ref)
    assert found["cpu_ratio"] == {"median": 3.0, "low": 3.0, "high": 3.0}


def test_every_ratio_is_of_the_two_runs_of_a_pair_and_the_sides_take_turns() -> None:
    """The machine gets slower all the time: only runs next to each other can be compared."""
    calls: list[str] = []

    def run(which: Side) -> Measured:
        calls.append(which.name)
        slower = 2.0 ** ((len(calls) - 1) // 2)  # both runs of a pair on an equal machine
        return Measured((1.0 if which.name == "today" else 1.1) * slower, 1.0)

    plan = Plan(("x",), pairs=4, warm_up=1)
    found = compare.run_pairs(plan, side("today"), side("reference"), run, lambda _: None)
    a, b = "today", "reference"
    assert calls == [a, b, a, b, b, a, a, b, b, a]
    assert [pair["order"] for pair in found["pairs"]] == [[a, b], [b, a], [a, b], [b, a]]
    assert found["ratio"] == {"median": 1.1, "low": 1.1, "high": 1.1}


def test_warm_up_runs_do_not_count() -> None:
    walls = iter([9.0, 1.0, 1.0, 1.0])
    found = compare.run_pairs(
        Plan(("x",), pairs=1, warm_up=1),
        side("today"),
        side("reference"),
        lambda _: Measured(next(walls), 1.0),
        lambda _: None,
    )
    assert found["ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}


@pytest.mark.parametrize(("pairs", "enough"), [(4, False), (5, True)])
def test_fewer_than_five_pairs_are_not_enough(pairs: int, enough: bool) -> None:
    found = results(Plan(("x",), pairs=pairs), Measured(1.0, 1.0), Measured(1.0, 1.0))
    assert found["enough_pairs"] is enough
    assert isinstance(found["pairs"], list)
    assert found["pairs"][0]["load_before"] == 0.5
    assert found["pairs"][0]["speed_before"] == 30.0


@pytest.mark.parametrize(("wall", "not_slower"), [(1.03, True), (1.04, False)])
def test_less_than_three_percent_is_not_slower(wall: float, not_slower: bool) -> None:
    assert results(Plan(("x",)), Measured(wall, 1.0), Measured(1.0, 1.0))["not_slower"] is not_slower


# -- figures of a report -----------------------------------------------------------------------------

REPORT = {"systems": {"fraud to kafka": {"rows_per_s": 5}, "a.b": {"c": 2.5}}, "batches": [1, 4], "ok": True}


@pytest.mark.parametrize(
    ("path", "wanted"),
    [("systems.fraud to kafka.rows_per_s", 5.0), ("systems.a.b.c", 2.5), ("batches.1", 4.0)],
)
def test_a_figure_is_found_by_its_path(path: str, wanted: float) -> None:
    assert compare.figure_of(REPORT, path) == wanted


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("systems.theirs.rows_per_s", "no theirs; there are fraud to kafka, a.b"),
        ("batches.2", "no figure batches.2"),
        ("ok", "not a number but true"),
        ("systems", "not a number but"),
    ],
)
def test_a_figure_that_is_not_there_is_told_of_with_what_is(path: str, why: str) -> None:
    with pytest.raises(SideFailed, match=why):
        compare.figure_of(REPORT, path)


def test_no_ratio_is_taken_of_nothing() -> None:
    with pytest.raises(SideFailed, match="above 0"):
        compare.figure_of({"a": 0}, "a")


def test_a_side_that_fails_is_named_with_its_last_words() -> None:
    took = Metered(1.0, 1.0, 3, ("a", "b", "c", "d", "e", "ValueError: no"))
    with pytest.raises(SideFailed, match=r"^reference failed with exit code 3: b \| c \| d \| e \| Val"):
        compare.measured(side("reference"), Plan(("x",)), took, None)
    with pytest.raises(SideFailed, match="must take --out FILE"):
        compare.measured(side("today"), Plan(("x",), figure="a"), Metered(1.0, 1.0, 0), None)


# -- two trees ---------------------------------------------------------------------------------------


def git(repo: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", *who, "-C", str(repo), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny repository with two commits, whose command says 100 in the first and 150 in the second."""
    tree = tmp_path_factory.mktemp("template") / "today"
    tree.mkdir()
    git(tree, "init", "--quiet", "--initial-branch", "main")
    (tree / "tool.py").write_text(TOOL)
    (tree / ".gitignore").write_text("/.venv/\n__pycache__/\n")
    for number in (100, 150):
        (tree / "number.py").write_text(f"NUMBER = {number}\n")
        git(tree, "add", ".")
        git(tree, "commit", "--quiet", "-m", f"number {number}")
    return tree


class Repository:
    """A copy of the tiny repository, and what was done with it."""

    def __init__(self, template: Path, folder: Path) -> None:
        self.today, self.cache, self.calls = folder / "today", folder / "cache", folder / "calls"
        self.set_up: list[Path] = []
        self.told: list[str] = []
        shutil.copytree(template, self.today)
        self.first = git(self.today, "rev-parse", "HEAD^")
        self.environment(self.today)

    def environment(self, tree: Path) -> None:
        """Stand in for the set-up, which takes minutes."""
        self.set_up.append(tree)
        folder = tree / ".venv" / "bin"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("python", "millrace"):
            if not (folder / name).exists():
                (folder / name).symlink_to(sys.executable)

    def compare(
        self, *command: str, ref: str = "HEAD^", fresh: bool = False, **plan: object
    ) -> dict[str, object]:
        made = replace(Plan(command or ("python", "tool.py"), pairs=1, warm_up=0), **plan)  # type: ignore[arg-type]
        return compare.compare(
            made,
            ref,
            folder=self.today,
            cache=self.cache,
            fresh=fresh,
            set_up=lambda tree, _: self.environment(tree),
            say=self.told.append,
        )

    @property
    def ran(self) -> list[list[str]]:
        """What ran: number, folder and arguments of each call."""
        return [line.split() for line in self.calls.read_text().splitlines()]


@pytest.fixture
def repo(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    made = Repository(template, tmp_path)
    monkeypatch.setenv("CALLS", str(made.calls))
    return made


def test_each_side_runs_its_own_code_in_its_own_tree(repo: Repository) -> None:
    found = repo.compare(figure="systems.ours.speed", better="higher")
    assert [call[0] for call in repo.ran] == ["150", "100"]
    tree = repo.cache / repo.first / "tree"
    assert [Path(call[1]) for call in repo.ran] == [repo.today, tree]
    assert found["ratio"] == {"median": 1.5, "low": 1.5, "high": 1.5}
    assert found["reference"] == {"commit": repo.first, "ref": "HEAD^"}
    (pair,) = found["pairs"]  # type: ignore[misc]
    assert (pair["today"]["figure"], pair["reference"]["figure"]) == (150.0, 100.0)
    assert pair["reference"]["figures"] == {"systems.ours.speed": 100, "given": 2}
    assert pair["today"]["wall_s"] > 0


def test_a_figure_that_is_better_low_turns_the_ratio_round(repo: Repository) -> None:
    found = repo.compare(figure="systems.ours.speed", better="lower")
    assert found["ratio"] == {"median": 0.6667, "low": 0.6667, "high": 0.6667}


def made_again(repo: Repository) -> Path:
    return reference.reference(
        repo.today, repo.first, repo.cache, set_up=repo.environment, say=repo.told.append
    )


def test_the_second_comparison_finds_tree_and_environment(repo: Repository) -> None:
    marker = made_again(repo) / ".venv" / "marker"
    marker.touch()
    assert made_again(repo) / ".venv" / "marker" == marker
    assert marker.exists()
    assert sum("a worktree of" in line for line in repo.told) == 1


def test_fresh_makes_tree_and_environment_anew(repo: Repository) -> None:
    tree = made_again(repo)
    (tree / ".venv" / "marker").touch()
    repo.compare(fresh=True)
    assert not (tree / ".venv" / "marker").exists()
    assert repo.ran[-1][:2] == ["100", str(tree)]
    assert git(repo.today, "worktree", "list").count(str(tree)) == 1


@pytest.mark.parametrize("harm", ["changed", "lost", "unfinished"])
def test_a_reference_that_is_not_its_commit_any_more_is_made_anew(repo: Repository, harm: str) -> None:
    tree = made_again(repo)
    if harm == "changed":
        (tree / "number.py").write_text("NUMBER = 1\n")
    elif harm == "lost":
        (tree / "tool.py").unlink()
    else:
        shutil.rmtree(tree)
        tree.mkdir()
    assert made_again(repo) == tree
    assert (tree / "number.py").read_text() == "NUMBER = 100\n"
    assert (tree / "tool.py").exists()


def test_a_comparison_is_of_todays_tree_as_it_is_and_says_so(repo: Repository) -> None:
    (repo.today / "number.py").write_text("NUMBER = 7\n")
    today = repo.compare()["today"]
    assert isinstance(today, dict)
    assert (today["dirty"], today["changed_meanwhile"]) == (True, False)
    assert today["commit"] == git(repo.today, "rev-parse", "HEAD")
    assert repo.ran[0][0] == "7"


def test_trees_that_differ_have_other_hashes_of_their_changes(repo: Repository) -> None:
    states = [reference.state_of(repo.today)]
    for name, text in (("number.py", "7\n"), ("new.py", "1\n"), ("new.py", "2\n")):
        (repo.today / name).write_text(text)
        states.append(reference.state_of(repo.today))
    assert [state.dirty for state in states] == [False, True, True, True]
    assert len({state.changes for state in states}) == 4
    assert len({state.commit for state in states}) == 1


def test_changes_while_it_is_measured_are_told_of(repo: Repository) -> None:
    code = "import pathlib; pathlib.Path('number.py').write_text('NUMBER = 8')"
    found = repo.compare("python", "-c", code, fresh=True)
    assert found["today"]["changed_meanwhile"] is True  # type: ignore[index]


def test_arguments_of_one_side_go_to_that_side_behind_those_of_both(repo: Repository) -> None:
    repo.compare(
        "python", "{today}/tool.py", "--both", today_args=("--set", "a=1"), ref_args=("--set", "b=1")
    )
    # {today} is the same file on both sides: a driver, which imports what stands beside it.
    assert [call[2:] for call in repo.ran] == [["--both", "--set", "a=1"], ["--both", "--set", "b=1"]]
    assert [Path(call[1]) for call in repo.ran] == [repo.today, repo.cache / repo.first / "tree"]


def test_programs_are_the_sides_own(repo: Repository) -> None:
    """``millrace`` of this environment is a link to Python here; other programs come by the PATH."""
    repo.compare("millrace", "tool.py")
    own = repo.today / ".venv" / "bin" / "tool"
    own.write_text("#!/bin/sh\nexec python tool.py own\n")
    own.chmod(0o755)
    other = repo.cache / repo.first / "tree" / ".venv" / "bin" / "tool"
    shutil.copy(own, other)
    repo.compare("tool")
    assert [call[0] for call in repo.ran] == ["150", "100", "150", "100"]
    assert [call[2:] for call in repo.ran[2:]] == [["own"], ["own"]]
    other.unlink()
    with pytest.raises(UserError, match=f"the reference {repo.first[:10]} has no command tool"):
        repo.compare("tool")


@pytest.mark.parametrize(
    ("which", "title"), [("today_args", "today's tree"), ("ref_args", "the reference [0-9a-f]{10}")]
)
def test_a_command_that_fails_on_a_side_ends_the_comparison(repo: Repository, which: str, title: str) -> None:
    with pytest.raises(UserError, match=rf"^{title} failed with exit code 1: first line \| NUMBER is wrong$"):
        repo.compare(**{which: ("--fail",)})


def test_an_unknown_commit_is_refused_before_anything_is_made(repo: Repository) -> None:
    with pytest.raises(UserError, match="--ref nosuch: no such commit"):
        repo.compare(ref="nosuch")
    assert not repo.cache.exists()


def test_a_tree_without_an_environment_is_told_of(repo: Repository) -> None:
    shutil.rmtree(repo.today / ".venv")
    with pytest.raises(UserError, match=r"today's tree has no environment in .*: run make setup"):
        repo.compare()


def with_setup_script(tree: Path, code: str) -> Path:
    (tree / "scripts").mkdir(parents=True)
    (tree / "scripts" / "setup.py").write_text(code)
    return tree


def test_an_environment_is_made_by_the_trees_own_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    code = "import os\nprint('[1/1] packages'); print(' + numpy'); print(os.environ.get('PYTHONPATH'))\n"
    tree = with_setup_script(tmp_path / "tree", code + "open('made', 'w').close()")
    told: list[str] = []
    reference.set_up(tree, told.append)
    assert (tree / "made").exists()
    assert told[1:] == ["  [1/1] packages"]
    assert (tmp_path / "setup.log").read_text() == "[1/1] packages\n + numpy\nNone\n"


def test_an_environment_that_cannot_be_made_is_told_of_in_one_line(tmp_path: Path) -> None:
    tree = with_setup_script(tmp_path / "tree", "import sys\nsys.exit('setup: no network')")
    with pytest.raises(UserError, match="failed with exit code 1: setup: no network"):
        reference.set_up(tree, lambda _: None)
    with pytest.raises(UserError, match=r"has no scripts/setup\.py"):
        reference.set_up(tmp_path, lambda _: None)


def test_a_folder_outside_of_any_repository_cannot_be_compared(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="in no git repository"):
        reference.repository(tmp_path)


def test_runs_leave_no_temporary_files(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    code = "import tempfile, os; print(tempfile.mkdtemp()); open(os.environ['CALLS'], 'a').write('x x\\n')"
    repo.compare("python", "-c", code)
    assert len(repo.ran) == 2
    assert list(folder.iterdir()) == []


def test_a_mistake_of_the_user_is_one_line_and_exit_code_2(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "repository", lambda _: repo.today)
    done = CliRunner().invoke(app, ["compare", "--ref", "nosuch", "--", "true"])
    assert isinstance(done.exception, UserError)
    assert done.exception.exit_code == 2
    assert str(done.exception).startswith("--ref nosuch: no such commit in ")
    assert "\n" not in str(done.exception)


def test_words_of_the_command_are_not_taken_for_our_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Plan] = []

    def fake(plan: Plan, ref: str, **_: object) -> dict[str, object]:
        seen.append(plan)
        return {"ratio": {"median": 1.0}, "ref": ref}

    monkeypatch.setattr(compare, "compare", fake)
    arguments = ["compare", "--ref", "abc", "--pairs", "2", "--better", "higher", "--figure", "a.b"]
    arguments += ["--today-arg", "--set x=1", "--today-arg", "'--y=a b'", "--out", str(tmp_path / "r.json")]
    done = CliRunner().invoke(app, [*arguments, "--", "millrace", "bench", "w2", "--pairs", "9", "--quick"])
    assert done.exit_code == 0, done.output
    (plan,) = seen
    assert plan.command == ("millrace", "bench", "w2", "--pairs", "9", "--quick")
    assert (plan.pairs, plan.better, plan.figure) == (2, "higher", "a.b")
    assert (plan.today_args, plan.ref_args) == (("--set", "x=1", "--y=a b"), ())
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["ratio"] == {"median": 1.0}
    assert written["configuration"]["measure"] == "a.b"


# -- interrupted -------------------------------------------------------------------------------------

_SCRIPT = """\
import signal, sys
from pathlib import Path
from millrace_apps.benchmarks import compare
signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
today, cache = map(Path, sys.argv[1:3])
plan = compare.Plan(("python", "-c", sys.argv[3]), pairs=1, warm_up=0)


def set_up(tree, say):
    (tree / ".venv").symlink_to(today / ".venv")


compare.compare(plan, "HEAD^", folder=today, cache=cache, set_up=set_up)
"""
#: Its child has a session of its own, and outlives it.
_ENDLESS = """\
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open(os.environ["CALLS"], "w") as file:
    file.write(f"{os.getpid()} {child.pid} .")
time.sleep(600)
"""


def eventually(holds: Callable[[], bool], limit_s: float = 30.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_takes_its_processes_and_files_with_it(
    repo: Repository, tmp_path: Path, number: signal.Signals
) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    running = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(repo.today), str(repo.cache), _ENDLESS],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(scratch)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert eventually(lambda: repo.calls.exists() and repo.calls.read_text().endswith("."))
        pids = [int(pid) for pid in repo.calls.read_text().split()[:2]]
        assert list(scratch.iterdir()) != []
        running.send_signal(number)
        assert running.wait(30) != 0
        # It ends when all is clean; killed, it cannot, and somebody else must see to it.
        limit_s = 30.0 if number is signal.SIGKILL else 0.0
        assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), limit_s)
        assert eventually(lambda: list(scratch.iterdir()) == [], limit_s)
    finally:
        running.kill()
        running.wait()

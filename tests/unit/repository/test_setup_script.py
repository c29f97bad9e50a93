"""The set-up script: what it refuses, when it has nothing to do, what it repairs, when pip takes over."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "setup.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


setup = load()


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with an environment whose Python is content with everything."""
    root = tmp_path / "tree"
    for name in setup.INPUTS:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    executable(root / ".venv" / "bin" / "python", "exit 0")
    (root / ".venv" / "pyvenv.cfg").write_text("version = 3.11.7\n")
    return root


class Commands:
    """Stands for running commands: records them, and fails those with a given word."""

    def __init__(self, failing: str | None = None) -> None:
        self.lines: list[str] = []
        self.failing = failing

    def __call__(self, command: list[str], cwd: Path) -> bool:
        line = " ".join(command)
        self.lines.append(line)
        return self.failing is None or self.failing not in line


@pytest.fixture
def run_commands(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], Commands]:
    def install(failing: str | None = None) -> Commands:
        commands = Commands(failing)
        monkeypatch.setattr(setup, "succeeds", commands)
        return commands

    return install


def test_an_old_python_can_read_the_script_far_enough_to_be_told() -> None:
    ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 8))
    with pytest.raises(
        setup.SetupError, match=r"^Python 3\.11 or newer is needed, /usr/bin/python3 is 3\.9\.2"
    ):
        setup.check_python((3, 9, 2), "/usr/bin/python3")


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 14, 1)])
def test_python_from_3_11_will_do(version: tuple[int, int, int]) -> None:
    assert setup.check_python(version, "python") == ".".join(map(str, version))


#: What a Python says of how it was built.
SLOW = {"CONFIG_ARGS": "'--enable-shared'", "PGO_PROF_USE_FLAG": "-fprofile-use"}
QUICK = {"CONFIG_ARGS": "'--enable-optimizations'", "PGO_PROF_USE_FLAG": "-fprofile-use"}


def python_that(path: Path, told: dict[str, str], version: Sequence[int] = sys.version_info[:3]) -> Path:
    """Return a program that answers what a Python of this build would."""
    name = "python{}.{}".format(*sys.version_info[:2])
    said = json.dumps({"version": [*version], "told": told}).replace("'", "'\\''")
    return executable(path / name, f"echo '{said}'")


@pytest.fixture
def nothing_beside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Python stands anywhere that the PATH does not name."""
    monkeypatch.setattr(setup, "_BESIDE", ())
    monkeypatch.setattr(setup, "_UV_PYTHONS", str(tmp_path / "uv"))


@pytest.mark.usefixtures("nothing_beside")
def test_the_first_python_of_the_version_that_was_built_with_optimisations_is_the_quicker_one(
    tmp_path: Path,
) -> None:
    name = "python{}.{}".format(*sys.version_info[:2])
    executable(tmp_path / "torn" / name, "exit 1")
    executable(tmp_path / "odd" / name, "echo no JSON")
    python_that(tmp_path / "slow", SLOW)
    python_that(tmp_path / "other", QUICK, (3, 99, 0))
    path = os.pathsep.join(str(tmp_path / folder) for folder in ("none", "torn", "odd", "slow", "other", ""))
    assert setup.quicker_python(path) is None
    wanted = python_that(tmp_path / "quick", QUICK)
    python_that(tmp_path / "later", QUICK)
    found = setup.quicker_python(os.pathsep.join([path, str(tmp_path / "quick"), str(tmp_path / "later")]))
    assert found == str(wanted)


@pytest.mark.usefixtures("nothing_beside")
def test_pythons_that_uv_has_fetched_are_looked_at(tmp_path: Path) -> None:
    wanted = python_that(tmp_path / "uv" / "cpython-3.x" / "bin", QUICK)
    assert setup.quicker_python("") == str(wanted)


@pytest.mark.usefixtures("nothing_beside")
@pytest.mark.parametrize(
    ("told", "there", "named", "taken", "says"),
    [
        (QUICK, True, False, "this", []),
        (SLOW, True, False, "other", ["was built without", "has them, and is taken"]),
        (SLOW, True, True, "this", ["was built without"]),  # who names one gets it
        (SLOW, False, False, "this", ["was built without", "With another one"]),
    ],
)
def test_a_python_without_optimisations_gives_way_to_one_that_has_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    told: dict[str, str],
    there: bool,
    named: bool,
    taken: str,
    says: list[str],
) -> None:
    monkeypatch.setattr(setup.sysconfig, "get_config_vars", lambda: told)
    other = python_that(tmp_path / "there", QUICK) if there else None
    found = setup.python_to_use({"PATH": str(tmp_path / "there")}, not named)
    assert found == (str(other) if taken == "other" else sys.executable)
    lines = capsys.readouterr().out.splitlines()
    assert [word in line for word, line in zip(says, lines, strict=True)] == [True] * len(says)


@pytest.mark.parametrize(("given", "any_python"), [([], True), (["PYTHON=python3"], False)])
def test_make_says_whether_somebody_has_named_the_python(given: list[str], any_python: bool) -> None:
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "MAKEFLAGS")}
    command = ["make", "--dry-run", "setup", *given]
    ran = subprocess.run(
        command, cwd=SCRIPT.parents[1], env=environ, capture_output=True, text=True, check=True
    )
    assert ("--any-python" in ran.stdout) is any_python


@pytest.mark.parametrize("version", ["17.0.15", "21", "21.0.2+13"])
def test_java_17_and_21_will_do(version: str) -> None:
    assert setup.check_java_version(f'openjdk version "{version}" 2025-04-15', "java") == version


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('java version "1.8.0_392"', r"java is 1\.8\.0_392"),
        ('openjdk version "11.0.2"', r"java is 11\.0\.2"),
        ('openjdk version "170.1"', r"java is 170\.1"),
        ("no such thing", "java is of an unknown version"),
    ],
)
def test_other_java_is_refused_with_its_version(answer: str, said: str) -> None:
    with pytest.raises(setup.SetupError, match=f"^Java 17 or 21 is needed, {said}"):
        setup.check_java_version(answer, "java")


def test_java_is_taken_from_java_home_before_the_path(tmp_path: Path) -> None:
    executable(tmp_path / "home" / "bin" / "java", """echo 'openjdk version "21.0.1"' >&2""")
    executable(tmp_path / "path" / "java", """echo 'openjdk version "17.0.1"' >&2""")
    path = str(tmp_path / "path")
    assert setup.check_java({"PATH": path, "JAVA_HOME": str(tmp_path / "home")}) == "21.0.1"
    assert setup.check_java({"PATH": path}) == "17.0.1"


def test_missing_java_is_told_in_one_line_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        setup.SetupError, match=r"^no Java found: install a Java 17 or 21 runtime, or set JAVA_HOME"
    ):
        setup.check_java({"PATH": str(tmp_path)})
    with pytest.raises(setup.SetupError, match="does not run: install a Java 17 or 21"):
        setup.check_java({"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)})


def test_finished_set_up_is_done_and_runs_no_command(
    tree: Path, run_commands: Callable[[str | None], Commands]
) -> None:
    env = setup.Environment(tree)
    assert not env.is_done()
    env.note_done()
    commands = run_commands(None)
    assert setup.main(tree) == 0
    assert commands.lines == []


@pytest.mark.parametrize("name", [*setup.INPUTS, ".venv/pyvenv.cfg"])
def test_change_of_any_input_makes_it_undone(tree: Path, name: str) -> None:
    env = setup.Environment(tree)
    env.note_done()
    (tree / name).write_text("changed")
    assert not env.is_done()


def test_missing_jars_make_it_undone(tree: Path) -> None:
    env = setup.Environment(tree)
    env.note_done()
    executable(env.python, 'case "$2" in *jar_paths*) exit 1;; esac')
    assert not env.is_done()


def test_damaged_note_makes_it_undone(tree: Path) -> None:
    env = setup.Environment(tree)
    env.note_done()
    (tree / ".venv" / ".millrace-setup.json").write_text("{")
    assert not env.is_done()


def test_moved_tree_is_made_anew_as_its_scripts_name_the_old_place(tree: Path, tmp_path: Path) -> None:
    setup.Environment(tree).note_done()
    assert setup.Environment(tree).is_usable()
    moved = setup.Environment(tree.rename(tmp_path / "elsewhere"))
    assert (moved.is_done(), moved.is_usable()) == (False, False)


def test_environment_without_a_working_python_is_made_anew(
    tree: Path, run_commands: Callable[[str | None], Commands]
) -> None:
    env = setup.Environment(tree)
    (tree / ".venv" / "stale").write_text("")
    for break_it in (lambda: executable(env.python, "exit 1"), env.python.unlink):
        break_it()
        assert not env.is_usable()
    commands = run_commands(None)
    setup.make_environment(env)
    assert commands.lines == [f"{sys.executable} -m venv {tree / '.venv'}"]
    assert not (tree / ".venv").exists()


def test_interrupted_run_leaves_a_mark_and_the_next_one_starts_afresh(tree: Path) -> None:
    env = setup.Environment(tree)
    with pytest.raises(KeyboardInterrupt), env.changing():
        raise KeyboardInterrupt
    assert not env.is_usable()


def test_failed_step_leaves_the_environment_usable_but_not_done(tree: Path) -> None:
    env = setup.Environment(tree)
    env.note_done()
    with pytest.raises(setup.SetupError), env.changing():
        raise setup.SetupError("no network")
    assert (env.is_usable(), env.is_done()) == (True, False)


def test_uv_installs_from_its_lock_into_the_environment(
    tree: Path, run_commands: Callable[[str | None], Commands]
) -> None:
    commands = run_commands(None)
    setup.install_packages(setup.Environment(tree), with_uv=True)
    (line,) = commands.lines
    assert line.startswith(
        f"{tree}/.venv/bin/uv sync --frozen --inexact --no-install-workspace --extra apps "
    )


@pytest.mark.parametrize(("with_uv", "tried"), [(True, 2), (False, 1)])
def test_pip_with_hashes_takes_over_when_uv_fails_or_is_missing(
    tree: Path, run_commands: Callable[[str | None], Commands], with_uv: bool, tried: int
) -> None:
    commands = run_commands("bin/uv")
    setup.install_packages(setup.Environment(tree), with_uv=with_uv)
    assert len(commands.lines) == tried
    assert commands.lines[-1].startswith(f"{tree}/.venv/bin/python -m pip install ")
    assert commands.lines[-1].endswith(f"--require-hashes -r {tree}/requirements.lock")


def test_project_is_built_by_the_locked_builder_and_brings_no_packages(tree: Path) -> None:
    command = setup.project_command(setup.Environment(tree))
    assert command[-4:] == ["--editable", str(tree), "--editable", str(tree / "shared")]
    assert {"--no-deps", "--no-build-isolation"} <= set(command)


def test_packages_that_cannot_be_had_end_in_one_line(
    tree: Path,
    run_commands: Callable[[str | None], Commands],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_commands("requirements")
    monkeypatch.setattr(setup, "check_java", lambda environ: "17")
    assert setup.main(tree) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("setup: the Python packages cannot be installed")
    assert "PIP_INDEX_URL" in line


def test_all_steps_are_done_in_order_and_noted(
    tree: Path,
    run_commands: Callable[[str | None], Commands],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands = run_commands(None)
    monkeypatch.setattr(setup, "check_java", lambda environ: "17")
    assert setup.main(tree) == 0
    words = ["requirements-uv.txt", "sync", "--editable", "jars fetch"]
    assert [word in line for word, line in zip(words, commands.lines, strict=True)] == [True] * 4
    out = capsys.readouterr().out
    assert [f"[{number}/{setup.STEPS}]" in out for number in range(1, setup.STEPS + 1)] == [
        True
    ] * setup.STEPS
    assert setup.Environment(tree).is_done()


def test_settings_that_would_mislead_the_tools_are_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example")
    environ = setup.child_environ()
    assert "PYTHONPATH" not in environ
    assert environ["PIP_INDEX_URL"] == "https://mirror.example"


def test_long_silent_command_shows_a_sign_of_life_in_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "_SIGN_OF_LIFE_S", 0.02)
    slow = executable(tmp_path / "slow", "sleep 0.3")
    assert setup.succeeds([str(slow)], tmp_path)
    assert "still at it" in capsys.readouterr().out
    assert not setup.succeeds([str(tmp_path / "missing")], tmp_path)


def test_bare_python_runs_the_script_as_it_is(tmp_path: Path) -> None:
    """Without site-packages: the script must import nothing that a fresh machine lacks."""
    root = tmp_path / "tree"
    (root / "scripts").mkdir(parents=True)
    shutil.copy(SCRIPT, root / "scripts")
    environ = {**os.environ, "JAVA_HOME": str(tmp_path / "no-java")}
    command = [sys.executable, "-I", "-S", str(root / "scripts" / "setup.py")]
    answer = subprocess.run(command, capture_output=True, text=True, env=environ, check=False, timeout=60)
    assert answer.returncode == 2
    assert "setup: " in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert "install a Java 17 or 21 runtime" in answer.stderr
    assert not (root / ".venv").exists()

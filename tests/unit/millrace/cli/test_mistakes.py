"""Every command with every mistake that its options and arguments allow: one line, exit code 2, no traceback.

What is tried is made from what a command says of itself: an option that there is not, an argument too many,
none at all, no number, a number out of bounds, a word that is no choice, a time or duration that is none, a
setting that there is not; a file that is not there, that is a folder, empty, nested without an end, or full
of anything; a folder that is a file; an address that is none.
"""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn

import pandas as pd
import pytest

from millrace.cli.commands import examples_of
from millrace.cli.conventions import WRITTEN, long_name
from tests.cases import case_count, sampled
from tests.unit.millrace.cli.test_commands import COMMANDS, ids, run

#: Of each command so many of its mistakes are tried; `MILLRACE_CASES=1000` tries them all.
_TRIED = case_count(3)
#: A mistake is told within so many seconds.
_TOLD_S: Final = 20
_NO_FILE = "/nowhere/millrace/none.yaml"
#: What stands for files of a test: nothing can be at `{below}`, since what is above it is a file.
_BELOW, _FOLDER = "{below}", "{folder}"
_BINARY, _DEEP, _EMPTY = "{binary}", "{deep}", "{empty}"
#: Options that name what is written: there may be a file already.
_WRITTEN: Final = WRITTEN | {"--ids", "--rotate", "--write"}
#: Files that examples name, so that a mistake is not hidden by one that is not there.
_TABLES: Final = {
    "trips.parquet": {
        "trip_id": ["a", "b"], "pickup_time": ["2008-05-18T03:00Z", "2008-05-24T03:00Z"],
        "pickup_lat": [37.7, 37.7], "pickup_lon": [-122.4, -122.4], "dropoff_lat": [37.8, 37.8],
        "dropoff_lon": [-122.4, -122.4], "duration_s": [60.0, 60.0], "cab_id": ["x", "y"],
    },
    "gps.parquet": {
        "cab_id": ["x"], "event_time": ["2008-05-18T03:00Z"], "lat": [37.7], "lon": [-122.4], "occupied": [0],
    },
    **{
        f"{name}.parquet": {"session_id": [1, 1], "item_id": [1, 2], "event_time": [1_000, 2_000]}
        for name in ("train", "test", "clicks")
    },
}  # fmt: skip
#: Metavar → values that are none of it.
_NO_VALUES: Final = {
    "TIME": ["x", "2026-13-01", "2026-01-01T25:00"],
    "DURATION": ["x", "5 parsecs"],
    "HOST:PORT": ["localhost", "localhost:none", "localhost:99999", ":"],
    "NAME=VALUE": ["no-value"],
    "LIST=VALUE": ["no-value"],
    "LAW": ["x", "uniform(", "uniform(-1)"],
    "SHAPE": ["x"],
    "BYTES": ["x"],
    "LAST": ["x"],
    "UNIT": ["x"],
    "MS": ["x"],
    "X": ["x", "0", "-1"],
    "SHARE": ["x", "-0.1", "1.5", "nan"],
    "MINUTES": ["x"],
}


def example_of(words: tuple[str, ...], command: Any) -> list[str]:
    """Return the arguments of the first example of a command's help."""
    typed = shlex.split(examples_of(words, command)[0])[1:]
    return typed[len(words) :] if typed[0] == words[0] else typed[3:]


def without(args: list[str], option: Any) -> list[str]:
    """Return arguments less an option and its value."""
    kept, skip = [], False
    for arg in args:
        if skip or arg.partition("=")[0] in option.opts:
            skip = not skip and "=" not in arg
        else:
            kept.append(arg)
    return kept


def wrong_values(option: Any) -> list[str]:
    """Return values that an option cannot take, whatever else is said."""
    name, kind = long_name(option.opts), option.type_descriptor
    if kind.is_choice:
        return ["nosuch"]
    if name == "--set":
        return ["no.such.setting=1", "no-value"]
    if name == "--config":
        return [_NO_FILE, ".", _BELOW, _BINARY, _DEEP]
    shown = option.display_type(None)
    found = list(_NO_VALUES.get(option.metavar, ()))
    if "int" in shown:
        found += ["x", "1.5", "", "9" * 5_000]
    elif "float" in shown:
        found += ["x", ""]
    for bound, step in ((getattr(kind, "min", None), -1), (getattr(kind, "max", None), 1)):
        if bound is not None:
            found.append(str(bound + step))
    return list(dict.fromkeys([*found, *wrong_paths(option)]))


def wrong_paths(place: Any) -> list[str]:
    """Return paths at which an option or argument cannot find or make what it wants."""
    shown = place.display_type(None)
    if not any(kind in shown for kind in ("path", "file", "dir", "Path")):
        return []
    if place.param_type_name == "option" and long_name(place.opts) in _WRITTEN:
        return [_BELOW]
    if place.metavar == "FOLDER":
        return [_BELOW, _BINARY]
    return [_BELOW, _BINARY, _DEEP, _EMPTY, _FOLDER]


def mistakes_of(words: tuple[str, ...], command: Any) -> Iterator[list[str]]:
    """Yield arguments of a command, each with one mistake."""
    good = example_of(words, command)
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    places = [one for one in command.params if one.param_type_name == "argument"]
    needed = [arg for one in options if one.required for arg in (long_name(one.opts), "x")]
    yield ["--no-such-option", *good]
    if not any(place.nargs == -1 for place in places):
        yield [*good, *(f"surplus-{n}" for n in range(1 + len(places)))]
    if any(place.required for place in places):
        yield needed
    for option in options:
        name = long_name(option.opts)
        if not option.is_flag and not (name == "--ledger" and "--sample" in good):  # of a sample none is kept
            for value in wrong_values(option):
                yield [f"{name}={value}", *without(good, option)]
        if option.required:
            yield without(good, option)
    for place in places:
        for value in ["nosuch"] if place.type_descriptor.is_choice else wrong_paths(place):
            yield [value, *needed]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that examples and mistakes name."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "binary").write_bytes(bytes(range(256)) * 4)
    (folder / "deep").write_text("[" * 3_000)
    (folder / "empty").touch()
    (folder / "folder").mkdir()
    for name, columns in _TABLES.items():
        pd.DataFrame(columns).to_parquet(folder / name)
    return folder


@pytest.fixture
def paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Yield the paths that mistakes name; none of them may start a process or take long."""

    def starts(*_args: Any, **_more: Any) -> NoReturn:
        raise AssertionError("a process is started")

    def is_slow(*_args: Any) -> NoReturn:
        raise AssertionError(f"it is not told in {_TOLD_S} s")

    monkeypatch.setattr(subprocess.Popen, "__init__", starts)
    monkeypatch.setattr(subprocess.Popen, "__del__", lambda _: None)
    before = signal.signal(signal.SIGALRM, is_slow)
    monkeypatch.chdir(folder)
    named = {name.strip("{}"): str(folder / name.strip("{}")) for name in (_BINARY, _DEEP, _EMPTY, _FOLDER)}
    yield {**named, "below": str(folder / "empty" / "none")}
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("found", sampled(COMMANDS), ids=ids)
def test_whatever_is_wrong_with_a_command_is_one_line_and_exit_code_2(
    found: tuple[tuple[str, ...], Any], paths: dict[str, str]
) -> None:
    words, command = found
    tried = list(mistakes_of(words, command))
    random.Random(" ".join(words)).shuffle(tried)
    for args in tried[:_TRIED]:
        given = [placed(arg, paths) for arg in args]
        signal.alarm(_TOLD_S)
        code, _, errors = run(*words, *given)
        signal.alarm(0)
        told = f"millrace {shlex.join([*words, *args])[:300]}: {errors[:2_000]}"
        assert code == 2, told
        assert errors.startswith("millrace: "), told
        assert len(errors.strip().splitlines()) == 1, told


def placed(arg: str, paths: dict[str, str]) -> str:
    """Return an argument with the path that stands in it in place of its name."""
    for name, path in paths.items():
        arg = arg.replace(f"{{{name}}}", path)
    return arg


def test_every_kind_of_mistake_is_made() -> None:
    tried = [" ".join(args) for words, command in COMMANDS for args in mistakes_of(words, command)]
    assert len(tried) > 3_000
    for part in (
        "--no-such-option",
        "surplus-0",
        "=nosuch",
        "=no.such.setting=1",
        f"--config={_NO_FILE}",
        "=1.5",
        "=5 parsecs",
        "=2026-13-01",
        _BELOW,
        _BINARY,
        _DEEP,
        _EMPTY,
        _FOLDER,
    ):
        assert sum(part in one for one in tried) > 20, part


def typed(*args: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Return what `millrace` did in a process of its own."""
    command = [sys.executable, "-m", "millrace", *args]
    return subprocess.run(command, env=os.environ | env, capture_output=True, timeout=60, check=False)


def drained(root: Path) -> list[str]:
    """Return words that start a job whose input has ended: it says where, and is refused."""
    root.mkdir(parents=True)
    (root / "drained").write_text("drained\n")
    return ["run", "fraud", "--bootstrap", "127.0.0.1:1", "-s", f"storage.root={root}"]


def test_a_folder_is_called_by_its_name_whatever_it_is(tmp_path: Path) -> None:
    for name in ("[prod]", "[/b]", "a-name-that-makes-a-line-longer-than-a-terminal-has-columns" * 2):
        code, out, errors = run(*drained(tmp_path / name))
        assert (code, errors.count("\n")) == (2, 1)
        assert f" → {tmp_path / name} (Ctrl-C" in out


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_that_the_terminal_has_no_letters_for_is_told_by_number(tmp_path: Path, encoding: str) -> None:
    done = typed(*drained(tmp_path / "日本"), PYTHONIOENCODING=encoding)
    assert done.returncode == 2
    assert b"127.0.0.1:1 \\u2192 " in done.stdout
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
@pytest.mark.parametrize("args", [["size", "--rate", "1", "--keys", "1"], ["config", "show", "fraud"]])
def test_output_to_a_full_disk_is_a_line(args: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "millrace", *args]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, b"millrace: No space left on device\n")


def test_who_leaves_an_upgrade_is_told_that_no_job_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Left:
        app = SimpleNamespace(name="fraud")

        def run(self, say: Callable[[str], None]) -> NoReturn:
            say("asked to end after its running batch")
            raise KeyboardInterrupt

    monkeypatch.setattr("millrace.cli.upgrade_plan.planned", lambda *_, **__: Left())
    code, _, errors = run("upgrade", "fraud", "--json")
    assert code == 130
    assert "`millrace status fraud` says what runs" in errors

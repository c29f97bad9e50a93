"""How jobs do, put together from records, figures and checkpoints; and the commands that show it."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from millrace.cli.jobs_shown import Places
from millrace.console.jobs_view import jobs_table
from millrace.errors import UserError
from millrace.local.home import demo_path
from millrace.observing.figures import FIGURES_FILE, ModelFigures, write_figures
from millrace.observing.jobs import record_path, write_atomically
from millrace.observing.reading import Jobs, JobStatus, chosen
from millrace.runtime import installed
from tests.unit.millrace.checkpoints.cases import LAST, kept_checkpoint
from tests.unit.millrace.cli.test_commands import run
from tests.unit.millrace.observing.cases import NOW, another_process, figures, record


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def keep(home: Path, root: Path, *, with_record: bool = True, **more: Any) -> None:
    """Leave what a job leaves."""
    root.mkdir(parents=True, exist_ok=True)
    now = figures(root, **more)
    write_figures(root, now)
    if with_record:
        write_atomically(record_path(home / "jobs", "fraud", root), msgspec.json.encode(now.job))


def jobs(home: Path) -> Jobs:
    return Jobs(home / "jobs", wall_ms=lambda: NOW)


def test_a_running_job_has_the_figures_of_its_own_run(home: Path, tmp_path: Path) -> None:
    keep(home, tmp_path / "a")
    (found,) = jobs(home).all()
    assert (found.state, found.since_ms) == ("running", NOW - 60_000)
    assert found.figures == figures(tmp_path / "a")
    before = figures(tmp_path / "a", job=record(tmp_path / "a", began_ms=1))
    write_figures(tmp_path / "a", before)
    (found,) = jobs(home).all()
    assert (found.state, found.figures) == ("starting", None), "those are of the run before"


@pytest.mark.parametrize(
    ("more", "state", "note"),
    [
        ({"ended_ms": NOW - 5, "phase": "ended"}, "stopped", ""),
        ({"ended_ms": NOW - 5, "error": "disk full"}, "failed", "disk full"),
        ({}, "running", ""),  # started with another MILLRACE_HOME
        ({"job": record("x", process_started=1.0)}, "died", ""),
    ],
)
def test_a_folder_without_a_record_says_how_its_job_did(
    home: Path, tmp_path: Path, more: dict[str, Any], state: str, note: str
) -> None:
    keep(home, tmp_path / "a", with_record=False, **more)
    (found,) = jobs(home).all([("fraud", tmp_path / "a")])
    assert (found.state, found.note) == (state, note)
    (nothing,) = jobs(home).all([("fraud", tmp_path / "b")])
    assert (nothing.state, nothing.figures) == ("never run", None)


def test_figures_that_cannot_be_read_are_none(home: Path, tmp_path: Path) -> None:
    keep(home, tmp_path / "a")
    (tmp_path / "a" / "figures.json").write_text('{"job": 7')
    (found,) = jobs(home).all()
    assert (found.state, found.figures) == ("starting", None)


def status(root: str, state: Any = "running", app: str = "fraud") -> JobStatus:
    return JobStatus(app, state, root)


def test_the_job_that_is_meant_is_the_one_that_runs(tmp_path: Path) -> None:
    found = [status("/a", "stopped"), status("/b"), status("/c", app="iot")]
    assert chosen(found, "fraud", None).root == "/b"
    assert chosen(found, "fraud", Path("/a")).root == "/a"
    assert chosen([status("/d", "died"), *found], "fraud", None).root == "/b"
    with pytest.raises(UserError, match="runs in /b, /d: name one with --root"):
        chosen([*found, status("/d", "starting")], "fraud", None)
    died = [status("/b", "stopped"), status("/c", "died"), status("/d", "died")]
    assert chosen(died[:2], "fraud", None).root == "/c"
    with pytest.raises(UserError, match="has died in /c, /d: name one with --root"):
        chosen(died, "fraud", None)
    assert chosen([*found, status("/d")], "fraud", Path("/d")).root == "/d"
    with pytest.raises(UserError, match="no job of fraud is known in /z"):
        chosen(found, "fraud", Path("/z"))


# -- commands --------------------------------------------------------------------------------------


def test_no_job_at_all(home: Path) -> None:
    code, out, _ = run("status", "--json")
    assert code == 0
    assert {one["state"] for one in json.loads(out)} == {"never run"}
    assert {"fraud", "iot"} <= {one["app"] for one in json.loads(out)}
    assert run("status", "fraud")[0] == 1
    code, out, _ = run("stop", "fraud")
    assert (code, out.startswith("fraud: does not run in ")) == (0, True)
    code, _, errors = run("logs", "fraud")
    assert (code, errors.startswith("fraud has logged nothing")) == (1, True)


def test_status_and_top_say_the_same(home: Path, tmp_path: Path) -> None:
    keep(home, tmp_path / "a")
    (home / "jobs" / "iot-bad.json").write_text("{")
    found = {one["app"]: one for one in json.loads(run("status", "--json")[1]) if one["state"] != "never run"}
    (top,) = run("top", "--once", "--json")[1].splitlines()
    assert found == {one["app"]: one for one in json.loads(top) if one["state"] != "never run"}
    assert (found["fraud"]["state"], found["iot"]["state"]) == ("running", "unreadable")
    code, out, _ = run("status", "fraud")
    assert code == 0
    for said in ("running", "in:1", "card-7", "malformed 4", "version 3", "100/s in"):
        assert said in out
    assert "running" in run("top", "--once")[1]


def test_names_and_times_of_any_kind_are_shown_as_they_are(home: Path, tmp_path: Path) -> None:
    odd = msgspec.structs.replace(
        figures(tmp_path / "a"), watermark_ms=10**17, newest_ms=10**17 + 5,
        models={"[/z]/champion": ModelFigures("[/v]", NOW, NOW)},
    )  # fmt: skip
    keep(home, tmp_path / "a")
    write_figures(tmp_path / "a", odd)
    code, out, _ = run("status", "fraud")
    assert code == 0
    assert "model [/z]/champion" in out
    assert "100,000,000,000,000,000 ms" in out


def test_a_folder_is_shown_whatever_else_is_known_of_its_app(home: Path, tmp_path: Path) -> None:
    keep(home, tmp_path / "a")
    (home / "jobs" / "fraud-bad.json").write_text("{")
    (tmp_path / "b").mkdir()
    code, out, _ = run("status", "fraud", "--root", str(tmp_path / "b"), "--json")
    assert (code, [(one["state"], one["root"]) for one in json.loads(out)]) == (
        1,
        [("never run", str(tmp_path / "b"))],
    )
    code, out, _ = run("stop", "fraud", "--root", str(tmp_path / "b"))
    assert (code, out) == (0, f"fraud: does not run in {tmp_path / 'b'}\n")


def test_of_a_job_whose_record_cannot_be_read_nobody_says_that_it_does_not_run(
    home: Path, tmp_path: Path
) -> None:
    (home / "jobs").mkdir(parents=True)
    (home / "jobs" / "fraud-bad.json").write_text("{")
    for words in (["stop"], ["logs"], ["upgrade", "--check"]):
        code, _, errors = run(*words, "fraud")
        assert (code, "fraud-bad.json is no record of this version" in errors) == (2, True)
    places = {one["app"]: one["root"] for one in json.loads(run("status", "--json")[1])}
    keep(home, Path(places["iot"]).with_name("fraud"), with_record=False, ended_ms=NOW)
    code, _, errors = run("stop", "fraud")
    assert (code, "fraud-bad.json is no record of this version" in errors) == (2, True)
    assert chosen([status("", "unreadable"), status("/a", "stopped")], "fraud", None).root == "/a"


@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_a_checkpoint_that_was_cut_off_hides_no_job(home: Path, tmp_path: Path, log: str) -> None:
    keep(home, tmp_path / "a")
    checkpoint = kept_checkpoint(tmp_path / "a").folder
    (checkpoint / log / f"{LAST}").write_text("")
    (found,) = jobs(home).all()
    assert (found.state, found.batch) == ("running", None if log == "offsets" else LAST)
    assert run("status", "fraud")[0] == 0


def test_top_shows_jobs_on_a_terminal_that_has_no_cursor(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "dumb")
    looks = iter([None])

    def sleep(_: float) -> None:
        if next(looks, "ends") == "ends":
            raise KeyboardInterrupt

    # Threads that other tests have left sleep by their own module.
    monkeypatch.setattr("millrace.cli.top.time", SimpleNamespace(sleep=sleep))
    code, out, _ = run("top")
    assert (code, out.count("clickstream")) == (0, 2)
    assert "…" not in out, "it has 80 columns, and those are as many as fit"


def test_in_a_pipe_no_column_is_left_out_and_no_line_is_cut(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    folder = tmp_path / "a-long-name-of-a-folder" / "which-is-that-of-a-job"
    keep(home, folder)
    assert run("status")[1].splitlines()[1].split()[-3:] == ["dead", "keys", "state"]
    assert str(folder) in run("status", "fraud")[1]


def test_two_folders_of_one_app_have_to_be_named(home: Path, tmp_path: Path) -> None:
    with another_process() as (process, started):
        for name in ("a", "b"):
            own = record(tmp_path / name, pid=process.pid, process_started=started)
            keep(home, tmp_path / name, job=own)
        code, _, errors = run("stop", "fraud")
        assert (code, "name one with --root" in errors) == (2, True)
        assert process.poll() is None
        process.kill()
        process.wait()
        code, out, _ = run("stop", "fraud", "--root", str(tmp_path / "a"), "--json")
        assert (code, json.loads(out)["did"]) == (0, "died")
        (left,) = jobs(home).records()
        assert left.record is not None
        assert left.record.root == str(tmp_path / "b")


def test_the_log_is_shown_as_it_is_or_as_json(home: Path, tmp_path: Path) -> None:
    keep(home, tmp_path / "a")
    (tmp_path / "a" / "logs").mkdir()
    (tmp_path / "a" / "logs" / "job.log").write_text('one\n{"message": "two"}\n3\n')
    assert run("logs", "fraud", "-n", "2")[1] == '{"message": "two"}\n3\n'
    assert [json.loads(line) for line in run("logs", "fraud", "--json")[1].splitlines()] == [
        {"message": "one"}, {"message": "two"}, {"message": "3"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("status nosuch", "nosuch"),
        ("status --root nosuch", "no folder"),
        ("stop nosuch", "nosuch"),
        ("stop fraud --timeout soon", "soon"),
        ("logs fraud -n -1", "--lines"),
        ("top --every 0", "--every"),
    ],
)
def test_a_mistake_is_one_line(home: Path, args: str, said: str) -> None:
    code, _, errors = run(*args.split())
    assert (code, len(errors.strip().splitlines())) == (2, 1), errors
    assert said in errors


def test_a_table_of_jobs_shows_what_it_shows_whole() -> None:
    from rich.console import Console

    def shown(width: int) -> list[str]:
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(jobs_table([status("/b")], NOW, width=width))
        return console.export_text().splitlines()

    widest = [line.split() for line in shown(200)]
    for width in range(36, 200, 4):
        lines = [line.split() for line in shown(width)]
        assert len(lines) == len(widest)
        for line, whole in zip(lines, widest, strict=True):
            assert line == whole[: len(line)] or set("".join(line)) == {"─"}
        assert "…" not in "".join(map("".join, lines))


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_table_of_jobs_fits_its_terminal(width: int, tmp_path: Path) -> None:
    from rich.console import Console

    evil = JobStatus("fr\x1b[31maud", "failed", "/a", note="line\nbreak\x07")
    console = Console(width=width, record=True, file=(tmp_path / "out").open("w"))
    console.print(jobs_table([evil, status("/b")], NOW, width=width))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert "\x07" not in text


@pytest.mark.parametrize("way", ["a/../a", "link", "a/"])
def test_a_folder_is_the_same_by_whichever_way_it_is_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    keep(home, tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    code, out, errors = run("status", "fraud", "--root", way, "--json")
    assert (code, errors) == (0, "")
    assert [(one["state"], one["root"]) for one in json.loads(out)] == [("running", str(tmp_path / "a"))]


def test_what_a_job_logs_that_has_no_figures_yet_is_waited_for(home: Path, tmp_path: Path) -> None:
    """It has just begun: its record is there, and its first figures are to come."""
    with another_process() as (process, started):
        keep(home, tmp_path / "a", job=record(tmp_path / "a", pid=process.pid, process_started=started))
        (tmp_path / "a" / FIGURES_FILE).unlink()
        (tmp_path / "a" / "logs").mkdir()
        log = tmp_path / "a" / "logs" / "job.log"
        log.write_text("one\n")

        def goes_on() -> None:
            with log.open("a") as file:
                file.write("two\n")
            process.kill()
            process.wait()

        timer = threading.Timer(1.0, goes_on)
        timer.start()
        assert run("logs", "fraud", "-f")[1] == "one\ntwo\n"
        timer.join()


def test_waiting_for_what_a_job_logs_ends_with_the_job(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace.observing import tail

    with another_process() as (process, started):
        keep(home, tmp_path / "a", job=record(tmp_path / "a", pid=process.pid, process_started=started))
        (tmp_path / "a" / "logs").mkdir()
        log = tmp_path / "a" / "logs" / "job.log"
        log.write_text("one\n")

        def end(_: float) -> None:
            if process.poll() is None:
                with log.open("a") as file:
                    file.write("two\n")
                process.kill()
                process.wait()

        sleeping: Callable[[float], None] = end
        monkeypatch.setattr(tail.following, "__defaults__", (sleeping,))
        assert run("logs", "fraud", "-f")[1] == "one\ntwo\n"


def test_installed_apps_are_looked_up_once_and_a_demo_that_begins_later_is_found(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = installed.list_apps

    def list_apps() -> dict[str, str]:
        asked.append("apps")
        return real()

    monkeypatch.setattr(installed, "list_apps", list_apps)
    places = Places(None, [])
    before = places.of([])
    assert {app for app, _ in before} == set(real())
    demo = demo_path("iot")
    demo.mkdir(parents=True)
    write_figures(demo, figures(demo))
    assert set(places.of([])) - set(before) == {("iot", demo)}
    assert asked == ["apps"]
    with pytest.raises(UserError, match="nosuch"):
        places.of(["nosuch"])

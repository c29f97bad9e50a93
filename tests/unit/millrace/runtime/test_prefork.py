"""Forks of a process that has loaded their libraries, started as if they were Python."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.runtime.prefork import launcher

#: A module that says where it finds itself, and does as it is told.
TELLS = """
import json, os, sys, time

def main():
    print(json.dumps({
        "argv": sys.argv[1:], "env": os.environ.get("MILLRACE_TOLD"), "cwd": os.getcwd(),
        "read": sys.stdin.readline(), "loaded": "heavy" in sys.modules,
        "hidden": os.environ.get("MILLRACE_SERVER_ONLY"),
    }), flush=True)
    if "wait" in sys.argv:
        time.sleep(60)
    if "raise" in sys.argv:
        raise ValueError("as told")
    sys.exit(int(sys.argv[-1]) if sys.argv[-1].isdigit() else 0)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two modules on the path of what is started from here."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "tells.py").write_text(TELLS)
    (folder / "heavy.py").write_text("LOADED = True\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.fixture
def python(tmp_path: Path, modules: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A launcher that forks the module, with another one loaded."""
    folder = tmp_path / "fork"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("MILLRACE_SERVER_ONLY", "1")
    with launcher(folder, ["heavy", "no_such_module"], modules=["tells"], libraries=()) as made:
        assert made is not None
        deadline_in(folder / "fork")
        monkeypatch.delenv("MILLRACE_SERVER_ONLY")
        yield made


def deadline_in(path: Path) -> None:
    """Wait until the server listens."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX) as probe:
            if path.exists() and probe.connect_ex(str(path)) == 0:
                return
        time.sleep(0.01)
    raise AssertionError("the server does not listen")


def run(python: Path, *arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *arguments], capture_output=True, text=True, timeout=60, check=False, **more
    )  # type: ignore[call-overload,no-any-return]


def test_a_fork_has_arguments_environment_folder_and_streams_of_its_launcher_and_loaded_modules(
    python: Path, tmp_path: Path
) -> None:
    told = os.environ | {"MILLRACE_TOLD": "yes"}
    done = run(python, "-m", "tells", "a", "b c", input="line\n", cwd=tmp_path, env=told)
    said = json.loads(done.stdout)
    assert said == {
        "argv": ["a", "b c"],
        "env": "yes",
        "cwd": str(tmp_path),
        "read": "line\n",
        "loaded": True,
        "hidden": None,
    }
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("code", [0, 3])
def test_a_launcher_ends_with_the_exit_code_of_its_fork(python: Path, code: int) -> None:
    assert run(python, "-m", "tells", str(code), input="").returncode == code


def test_what_a_fork_raises_is_told_as_python_would(python: Path) -> None:
    done = run(python, "-m", "tells", "raise", input="")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ValueError: as told")


def test_a_signal_to_the_launcher_ends_the_fork(python: Path) -> None:
    process = subprocess.Popen(
        [python, "-m", "tells", "wait"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    json.loads(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    assert process.stdout.read() == ""  # nobody holds its end any more
    process.stdout.close()


def test_many_at_once_are_kept_apart(python: Path) -> None:
    running = [
        subprocess.Popen(
            [python, "-m", "tells", str(n)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        for n in range(12)
    ]
    for n, process in enumerate(running):
        out, _ = process.communicate(timeout=60)
        assert (json.loads(out)["argv"], process.returncode) == ([str(n)], n)


def test_anything_else_is_what_python_does(python: Path) -> None:
    assert run(python, "-c", "import sys; print(sys.executable)").stdout.strip() == sys.executable
    assert json.loads(run(python, "-m", "json.tool", input="[1]").stdout) == [1]


def test_without_a_server_a_module_is_started_by_python_itself(modules: Path, tmp_path: Path) -> None:
    with launcher(tmp_path, modules=["tells"], libraries=()) as made:
        assert made is not None
    done = run(made, "-m", "tells", "5", input="")
    assert (done.returncode, json.loads(done.stdout)["loaded"]) == (5, False)


def test_the_server_ends_with_whoever_started_it(modules: Path, tmp_path: Path) -> None:
    """The block's process is killed: no end of the block is reached."""
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom millrace.runtime import prefork\n"
        "started = prefork.subprocess.Popen\n"
        "def tell(*a, **k):\n    server = started(*a, **k)\n    print(server.pid, flush=True)\n"
        "    return server\n"
        "prefork.subprocess.Popen = tell\n"
        f"with prefork.launcher(Path({str(tmp_path)!r}), modules=['tells'], libraries=()):\n"
        "    time.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    server = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    owner.stdout.close()
    end = time.monotonic() + 30
    while (
        Path(f"/proc/{server}").exists()
        and "Z" not in Path(f"/proc/{server}/stat").read_text().split(")")[1][:3]
    ):
        assert time.monotonic() < end, "the server goes on"
        time.sleep(0.02)


def test_a_python_whose_path_no_script_can_name_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", f"/{'a' * 130}/python")
    with launcher(tmp_path) as made:
        assert made is None
    assert list(tmp_path.iterdir()) == []

"""A third party's app in an environment of its own: made, installed, tested, and seen in every command.

Broker, generator, Spark and Delta: its demo runs there, and every check holds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from millrace.scaffold.writing import new_app

ROOT = Path(__file__).resolve().parents[2]


def ran(*command: str | Path, folder: Path, seconds: float) -> str:
    """Run a command of the new environment, of which it knows nothing of ours, and return what it says."""
    kept = ("PATH", "HOME", "JAVA_HOME", "LANG", "MILLRACE_JARS", "UV_CACHE_DIR", "TMPDIR")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an environment `env` that has the app `parcels`, which stands beside it.

    The three wheels are installed there. All else is found where the set-up has put it, by its path: so what
    is installed there for editing, Millrace itself, is not.
    """
    folder = tmp_path_factory.mktemp("third")
    new_app("parcels", folder / "parcels")
    for project in (ROOT, ROOT / "shared", folder / "parcels"):
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
        subprocess.run(build, cwd=project, check=True, capture_output=True, timeout=120)
    python = folder / "env" / "bin" / "python"
    ran(sys.executable, "-m", "venv", "--without-pip", folder / "env", folder=folder, seconds=60)
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    ran(
        Path(sys.executable).with_name("uv"), "pip", "install", "--offline", "--no-index", "--no-deps",
        "--find-links", folder / "dist", "--python", python, "parcels", "millrace", "millrace-apps",
        folder=folder, seconds=120,
    )  # fmt: skip
    return folder


def test_a_new_app_passes_its_tests_and_is_seen_where_nothing_else_is(environment: Path) -> None:
    programs, repository = environment / "env" / "bin", environment / "parcels"
    where = "import millrace, millrace_apps, parcels; print(millrace.__file__, millrace_apps.__file__)"
    told = ran(programs / "python", "-c", where, folder=environment, seconds=60).split()
    assert all(Path(file).is_relative_to(environment / "env") for file in told)
    assert "8 passed" in ran(programs / "python", "-m", "pytest", "-q", folder=repository, seconds=240)
    assert "Parcels" in ran(programs / "millrace", "topology", "parcels", folder=environment, seconds=60)
    assert "parcels" in ran(programs / "millrace", "generate", "list", folder=environment, seconds=60)


def test_the_demo_of_a_new_app_holds(environment: Path) -> None:
    demo = (environment / "env" / "bin" / "millrace", "demo", "parcels", "--duration", "40s", "--rate", "200")
    assert "all checks hold" in ran(*demo, folder=environment / "parcels", seconds=420)

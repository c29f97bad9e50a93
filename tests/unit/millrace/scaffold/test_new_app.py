"""A new app: what is written can be installed, is found by every command, and passes its own tests."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from millrace.errors import UserError
from millrace.runtime.installed import list_apps
from millrace.scaffold.writing import new_app

ROOT = Path(__file__).resolve().parents[4]
NAME, PACKAGE = "late-parcels", "late_parcels"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new") / NAME
    new_app(NAME, folder)
    return folder


@pytest.fixture(scope="module")
def installed(repository: Path) -> dict[str, str]:
    """Build the wheel and unpack it, which is what an installer does; return an environment with it."""
    dist, site = repository.parent / "dist", repository.parent / "site"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist)]
    subprocess.run(build, cwd=repository, check=True, capture_output=True, timeout=120)
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return os.environ | {"PYTHONPATH": str(site), "MILLRACE_CONFIG": ""}


def run(installed: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder, env=installed, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_every_file_has_the_name_put_in(repository: Path) -> None:
    files = [path for path in repository.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {
        "pyproject.toml", "README.md", ".gitignore", "app.py", "events.py", "process.py", "topology.py",
        "settings.py", "generator.py", "demo.py", "test_app.py", "test_process.py",
    }  # fmt: skip
    for path in files:
        text = path.read_text("utf-8")
        assert "$" not in text, path
        assert "\N{GREEK SMALL LETTER MU}" not in text
        compile(text, str(path), "exec") if path.suffix == ".py" else None
    readme = (repository / "README.md").read_text("utf-8")
    named = {part for part in readme.split("`") if part.startswith(f"{PACKAGE}/")}
    assert named == {f"{PACKAGE}/{path.name}" for path in (repository / PACKAGE).glob("*.py")} - {
        f"{PACKAGE}/__init__.py"
    }


def test_its_own_tests_pass(repository: Path, installed: dict[str, str]) -> None:
    done = run(installed, repository, "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout


def test_every_command_finds_it(tmp_path: Path, installed: dict[str, str]) -> None:
    def said(*words: str) -> str:
        done = run(installed, tmp_path, "millrace", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "Parcels" in said("topology", NAME)
    assert "parcels.patience" in said("config", "show", NAME)
    assert NAME in said("generate", "list")
    assert said("generate", NAME, "--sample", "3").count('"parcel_id"') >= 3
    assert said("lint-state", NAME)
    assert "unknown" not in said("contracts", "show", NAME)


@pytest.mark.parametrize(
    "name", ["Parcels", "1st", "a b", "", "a" * 41, "../x", "class", "a--b", "a-", "tests"]
)
def test_what_cannot_be_a_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        new_app(name, tmp_path / "there")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("name", [*list_apps(), "json", "millrace", "pytest"])
def test_what_is_taken_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="already"):
        new_app(name, tmp_path / "there")


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(UserError, match="--folder"):
        new_app("parcels-two", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
    (empty := tmp_path / "empty").mkdir()
    assert new_app("parcels-two", empty)

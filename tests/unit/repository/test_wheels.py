"""Two wheels: the core's brings `millrace` alone, the other everything else under one name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
APPS = {"aggregates", "clickstream", "fraud", "iot_maintenance", "ridesharing"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build both; return distribution → its wheel."""
    dist = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist)]
    for project in (ROOT, ROOT / "shared"):
        subprocess.run(build, cwd=project, check=True, capture_output=True, timeout=120)
    return {wheel.name.partition("-")[0]: wheel for wheel in dist.glob("*.whl")}


@pytest.fixture(scope="module")
def site(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both wheels unpacked, which is what an installer does."""
    folder = tmp_path_factory.mktemp("site")
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder


def members(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if ".dist-info/" not in name]


def metadata(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []


def test_each_wheel_brings_one_top_level_name(wheels: dict[str, Path]) -> None:
    found = {name: {member.partition("/")[0] for member in members(path)} for name, path in wheels.items()}
    assert found == {"millrace": {"millrace"}, "millrace_apps": {"millrace_apps"}}


def test_the_apps_wheel_has_every_tracked_file_of_their_folders(wheels: dict[str, Path]) -> None:
    folders = [*(f"apps/{app}" for app in sorted(APPS)), "generators", "benchmarks", "recipes"]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *folders],
        cwd=ROOT, check=True, capture_output=True,
    ).stdout.decode()  # fmt: skip
    wanted = {f"millrace_apps/{name.removeprefix('apps/')}" for name in filter(None, listed.split("\0"))}
    there = set(members(wheels["millrace_apps"]))
    assert wanted - there == set()
    assert there - wanted == {"millrace_apps/__init__.py", "millrace_apps/py.typed"}


def test_the_extra_apps_brings_the_apps_of_its_own_version(wheels: dict[str, Path]) -> None:
    version = re.search(r"-([\d.]+)-py3", wheels["millrace"].name)
    assert version is not None
    asked = [line for line in metadata(wheels["millrace"]) if line.startswith("millrace-apps")]
    assert [line.replace(" ;", ";") for line in asked] == [f"millrace-apps=={version[1]}; extra == 'apps'"]
    assert metadata(wheels["millrace_apps"]) == [f"millrace=={version[1]}"]


def run(site: Path, folder: Path, code: str) -> str:
    """Run a piece of Python that sees what is installed, and the tree not at all."""
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_installed_is_whole_without_the_tree(site: Path, tmp_path: Path) -> None:
    code = """
import importlib.metadata, pathlib
points = importlib.metadata.distribution("millrace-apps").entry_points
names = {point.name: point.value for point in points.select(group="millrace.apps")}
import millrace, millrace_apps.fraud.app, millrace_apps.generators.cli, millrace_apps.recipes.catalogue
for module in (millrace, millrace_apps.fraud.app, millrace_apps.generators.cli):
    print(pathlib.Path(module.__file__).resolve())
print(len(millrace_apps.recipes.catalogue.catalogue()) > 20)
print(names["fraud"])
"""
    *files, recipes, app = run(site, tmp_path, code).splitlines()
    assert all(Path(file).is_relative_to(site.resolve()) for file in files)
    assert recipes == "True"
    assert app == "millrace_apps.fraud.app:app"

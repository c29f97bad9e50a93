"""The lock files say the same: pyproject.toml, uv.lock, requirements.lock, jars.lock."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from millrace.local.jar_lock import load_lock, lock_path

ROOT = Path(__file__).resolve().parents[3]
SHA256 = re.compile(r"sha256:[0-9a-f]{64}")


def toml(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / name).read_text(encoding="utf-8"))


@cache
def uv_packages() -> dict[str, dict[str, Any]]:
    return {package["name"]: package for package in toml("uv.lock")["package"]}


def declared() -> list[str]:
    project, apps = toml("pyproject.toml")["project"], toml("shared/pyproject.toml")["project"]
    extras = project["optional-dependencies"].values()
    assert [Requirement(line).name for line in apps["dependencies"]] == ["millrace"]
    return [*project["dependencies"], *(line for extra in extras for line in extra)]


@cache
def pinned(name: str) -> dict[str, tuple[str, set[str]]]:
    """Return package → (version, hashes) of a requirements file."""
    text = re.sub(r"#.*", "", (ROOT / name).read_text(encoding="utf-8")).replace("\\\n", " ")
    found = {}
    for line in filter(str.strip, text.splitlines()):
        requirement, _, _ = line.partition(" --hash")
        name_of, _, version = requirement.partition(";")[0].partition("==")
        found[name_of.strip()] = (version.strip(), set(SHA256.findall(line)))
    return found


def test_requirements_lock_pins_what_uv_lock_pins_with_the_same_hashes() -> None:
    plain = pinned("requirements.lock")
    for name, (version, hashes) in plain.items():
        package = uv_packages()[name]
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        assert (name, version, hashes) == (name, package["version"], {file["hash"] for file in files})


def test_requirements_lock_misses_no_package_but_the_project_itself() -> None:
    assert set(uv_packages()) - set(pinned("requirements.lock")) == {"millrace", "millrace-apps"}


@pytest.mark.parametrize("line", declared())
def test_declared_dependency_is_locked_within_its_range(line: str) -> None:
    requirement = Requirement(line)
    locked = uv_packages()[requirement.name]["version"]
    assert requirement.specifier.contains(Version(locked))


def test_uv_itself_is_pinned_with_hashes() -> None:
    ((name, (version, hashes)),) = pinned("requirements-uv.txt").items()
    assert (name, bool(re.fullmatch(r"[\d.]+", version)), len(hashes) > 1) == ("uv", True, True)


def test_every_dependency_has_its_reason_written_down() -> None:
    reasons = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    missing = [name for line in declared() if f"| {(name := Requirement(line).name)} |" not in reasons]
    assert missing == []


def test_jars_lock_is_one_file_at_the_root_and_in_the_package() -> None:
    assert lock_path().read_bytes() == (ROOT / "jars.lock").read_bytes()


def test_no_jar_is_locked_twice_and_no_two_share_a_file_name() -> None:
    for group in ("spark", "broker"):
        names = [choice.file_name for jar in load_lock().jar if jar.group == group for choice in jar.choices]
        assert len(names) == len(set(names)) > 0


def test_the_kafka_clients_of_spark_and_of_the_broker_are_in_groups_of_their_own() -> None:
    clients = [jar for jar in load_lock().jar if ":kafka-clients:" in jar.coordinate]
    assert [(jar.group, jar.coordinate.rpartition(":")[2]) for jar in clients] == [
        ("spark", "3.9.2"),
        ("broker", "4.3.1"),
    ]


def test_delta_jar_and_delta_package_are_of_one_version() -> None:
    (jar,) = [jar for jar in load_lock().jar if ":delta-spark_" in jar.coordinate]
    assert jar.coordinate.rpartition(":")[2] == uv_packages()["delta-spark"]["version"]


def test_connector_jar_and_spark_are_of_one_version() -> None:
    (jar,) = [jar for jar in load_lock().jar if ":spark-sql-kafka" in jar.coordinate]
    assert jar.coordinate.rpartition(":")[2] == uv_packages()["pyspark"]["version"]

"""What goes along to a cluster: the libraries that extras ask for, and a Python that finds them anywhere."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from importlib.metadata import distribution
from pathlib import Path

import pytest

from millrace.errors import UserError
from millrace.runtime import packaging, shipping
from millrace.runtime.packaging import Packed, closure, files_of
from tests.unit.millrace.cli.test_commands import run


def names(*extras: str) -> set[str]:
    return {one.metadata["Name"].lower().replace("_", "-") for one in closure("millrace", extras)}


def test_what_extras_ask_for_goes_along_with_all_that_it_needs() -> None:
    core, apps = names(), names("apps")
    assert {"pyspark", "py4j", "numpy", "pandas", "pyarrow", "msgspec"} <= core < apps
    assert {"deltalake", "confluent-kafka", "pydantic-core", "h3", "scipy"} <= apps
    # Ours goes along as code, not as an installed package.
    assert not {"pytest", "mypy", "mlflow", "millrace", "millrace-apps"} & apps
    assert "mlflow" in names("apps", "model")


def test_an_extra_that_is_none_is_told() -> None:
    with pytest.raises(UserError, match="no extra aps; there are apps, connect"):
        closure("millrace", ["aps"])


def test_sparks_jars_and_what_is_outside_stay_here() -> None:
    kept = [name for _, name in files_of(distribution("pyspark"))]
    assert "pyspark/sql/session.py" in kept
    assert not [name for name in kept if name.startswith(("pyspark/jars/", "../", "/")) or ".pyc" in name]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small environment, unpacked where nothing else of this is; its folder has a space."""
    folder = tmp_path_factory.mktemp("cluster") / "a node"
    packed = tmp_path_factory.mktemp("packed") / "environment.tar.gz"
    small = [distribution(name) for name in ("msgspec", "py4j")]
    packaging._write(packed, small, sys.executable)
    with tarfile.open(packed) as archive:
        archive.extractall(folder)  # noqa: S202  (our own; Python 3.11.2 knows no filters)
    return folder


def asked(folder: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [folder / "bin" / "python", "-S", "-c", code], capture_output=True, text=True, env=env, check=False
    )


def test_its_python_finds_its_libraries_wherever_it_was_unpacked(unpacked: Path) -> None:
    where = "import msgspec, msgspec._core, py4j; print(msgspec.__file__, msgspec.json.encode([1]))"
    done = asked(unpacked, where, PATH="/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(unpacked / "site-packages" / "msgspec"))
    more = asked(unpacked, "import sys; print(sys.path[1:3])", PATH="/usr/bin:/bin", PYTHONPATH="/else")
    assert more.stdout.strip() == str([str(unpacked / "site-packages"), "/else"])


def test_a_node_without_that_python_says_so_in_a_line(unpacked: Path) -> None:
    done = asked(unpacked, "1", PATH="/usr/bin:/bin", MILLRACE_PYTHON="/nowhere/python")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "no Python 3." in done.stderr
    assert "/nowhere/python" in done.stderr


def test_the_command_names_what_was_made() -> None:
    packed = Packed(Path("dist/code.zip"), Path("dist/environment.tar.gz"), ("a 1",), "/usr/bin/python3")
    assert packed.command.startswith("cd dist && spark-submit --master ")
    assert "--py-files code.zip --archives environment.tar.gz#environment " in packed.command
    assert "spark.pyspark.python=./environment/bin/python" in packed.command


def test_the_command_is_typed_as_it_is_printed_whatever_the_folder_is_called() -> None:
    packed = Packed(Path("my dist/code.zip"), Path("my dist/e.tar.gz"), (), "/usr/bin/python3")
    words = shlex.split(packed.command)
    assert words[:3] == ["cd", "my dist", "&&"]
    assert words[3:] == [*packed.arguments, "JOB.py"]


def test_what_was_made_is_told_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Packed(tmp_path / "code.zip", tmp_path / "environment.tar.gz", ("a 1",), "/usr/bin/python3")

    def package(out: Path, extras: Sequence[str], told: Callable[[str], None]) -> Packed:
        told("code")
        return made

    monkeypatch.setattr(packaging, "package", package)
    code, out, _ = run("package", "--json", "--out", str(tmp_path))
    assert (code, json.loads(out)) == (
        0,
        {
            "code": str(made.code), "environment": str(made.environment), "distributions": ["a 1"],
            "python": "/usr/bin/python3", "command": made.command,
        },
    )  # fmt: skip


def test_of_a_folder_only_older_archives_of_the_code_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "project_packages", lambda: {"one": tmp_path / "one"})
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.py").write_text("")
    for name in ("millrace-backup.zip", f"millrace-{'0' * 16}.zip"):
        (tmp_path / name).write_text("")
    made = shipping.project_archive(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.zip")) == sorted([made.name, "millrace-backup.zip"])

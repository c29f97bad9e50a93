"""The doctor names what is wrong with a machine and what to do; fake programs stand for other machines."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.cli.doctor import app as doctor_app
from millrace.errors import UserError
from millrace.local import jars
from millrace.local.java import JavaError
from millrace.local.java_check import check_java
from millrace.runtime import doctor
from millrace.runtime.doctor import Finding, Machine, quick_check, run_checks

MODULES = "java.base@{0}\njdk.incubator.vector@{0}\n"
OLD = 'echo \'{0} version "1.8.0_392"\' >&2; [ "$1" = -version ]'

FakeJava = Callable[..., dict[str, str]]


@pytest.fixture
def fake_java(tmp_path: Path) -> FakeJava:
    """Make a `java` that lists the modules of `version`, and return the environment that finds it."""

    def make(
        version: str = "17.0.15", *, modules: str | None = None, script: str | None = None
    ) -> dict[str, str]:
        folder = tmp_path / "jvm" / "bin"
        folder.mkdir(parents=True)
        listed = (MODULES if modules is None else modules).format(version)
        body = script or f"printf '%s' '{listed}'"
        (folder / "java").write_text(f"#!/bin/sh\n{body}\n")
        (folder / "java").chmod(0o755)
        return {"PATH": str(folder)}

    return make


@pytest.fixture
def cached_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def found(group: str) -> list[Path]:
        return [tmp_path / f"{group}.jar"]

    monkeypatch.setattr(jars, "jar_paths", found)


@pytest.fixture
def missing_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(group: str) -> list[Path]:
        raise UserError(f"jar a:b:1 ({group}): not in the cache; run: millrace jars fetch")

    monkeypatch.setattr(jars, "jar_paths", missing)


def finding(name: str, machine: Machine, *, quick: bool = False) -> Finding:
    (one,) = [f for f in run_checks(machine, quick=quick) if f.name == name]
    return one


class TestJava:
    @pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.4", "21-ea"])
    def test_tested_versions_are_ok(self, version: str, fake_java: FakeJava, cached_jars: None) -> None:
        assert finding("Java", Machine(env=fake_java(version)), quick=True).status == "ok"

    @pytest.mark.parametrize("version", ["18.0.2", "25"])
    def test_other_new_versions_are_a_warning(
        self, version: str, fake_java: FakeJava, cached_jars: None
    ) -> None:
        found = finding("Java", Machine(env=fake_java(version)), quick=True)
        assert (found.status, "untested" in found.found) == ("warning", True)

    @pytest.mark.parametrize("version", ["11.0.22", "16"])
    def test_old_versions_are_broken(self, version: str, fake_java: FakeJava, cached_jars: None) -> None:
        found = finding("Java", Machine(env=fake_java(version)), quick=True)
        assert (found.status, "too old" in found.found, "17 or 21" in found.advice) == ("broken", True, True)

    def test_java_8_has_no_modules_and_is_still_recognized(self, fake_java: FakeJava) -> None:
        with pytest.raises(JavaError, match=r"Java 1\.8\.0_392, too old"):
            check_java(fake_java(script=OLD.format("openjdk")))

    def test_a_trimmed_runtime_is_broken(self, fake_java: FakeJava) -> None:
        with pytest.raises(JavaError, match=r"without the module jdk\.incubator\.vector"):
            check_java(fake_java(modules="java.base@{0}\n"))

    def test_a_program_that_is_no_java_is_broken(self, fake_java: FakeJava) -> None:
        with pytest.raises(JavaError, match="does not work"):
            check_java(fake_java(script="exit 3"))

    def test_no_java_at_all_says_what_to_install(self, tmp_path: Path) -> None:
        with pytest.raises(JavaError, match=r"no Java found .*install .* 17 or 21"):
            check_java({"PATH": str(tmp_path)})

    def test_java_home_wins_over_the_path_as_it_does_for_spark(
        self, fake_java: FakeJava, tmp_path: Path
    ) -> None:
        env = fake_java("21.0.4") | {"PATH": "/usr/bin:/bin", "JAVA_HOME": str(tmp_path / "jvm")}
        assert check_java(env).version == "21.0.4"

    def test_a_wrong_java_home_is_broken_though_the_path_has_a_java(self, fake_java: FakeJava) -> None:
        with pytest.raises(JavaError, match=r"JAVA_HOME.*/nowhere.* no bin/java"):
            check_java(fake_java() | {"JAVA_HOME": "/nowhere"})

    def test_nothing_is_remembered_between_two_calls(self, fake_java: FakeJava, tmp_path: Path) -> None:
        env = fake_java("17")
        assert check_java(env).major == 17
        (tmp_path / "jvm" / "bin" / "java").unlink()
        with pytest.raises(JavaError):
            check_java(env)


class TestQuickCheck:
    def test_a_good_machine_passes(self, fake_java: FakeJava, cached_jars: None) -> None:
        quick_check(fake_java())

    def test_a_missing_java_is_one_line(self, tmp_path: Path, cached_jars: None) -> None:
        with pytest.raises(UserError) as caught:
            quick_check({"PATH": str(tmp_path)})
        assert "\n" not in str(caught.value)

    def test_missing_jars_are_one_line(self, fake_java: FakeJava, missing_jars: None) -> None:
        with pytest.raises(UserError, match="run: millrace jars fetch"):
            quick_check(fake_java())


class TestMachine:
    @pytest.fixture(autouse=True)
    def _jars(self, cached_jars: None) -> None:
        pass

    def test_old_python_is_broken(self) -> None:
        assert finding("Python", Machine(python=(3, 10, 4))).status == "broken"

    @pytest.mark.parametrize(("optimised", "status"), [(True, "ok"), (False, "warning")])
    def test_a_python_without_optimisations_is_told(self, optimised: bool, status: str) -> None:
        found = finding("Python", Machine(python=(3, 11, 7), optimised=optimised))
        assert (found.status, "--enable-optimizations" in found.advice) == (status, not optimised)

    @pytest.mark.parametrize(("gigabytes", "status"), [(3.9, "warning"), (4.1, "ok")])
    def test_little_memory_is_a_warning(self, gigabytes: float, status: str) -> None:
        machine = Machine(available_memory=int(gigabytes * 1024**3))
        assert finding("memory", machine).status == status

    def test_little_disk_is_broken(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(doctor, "NEEDED_DISK_GB", 10**9)
        found = finding("disk", Machine(env={"MILLRACE_CACHE": str(tmp_path / "not" / "yet")}))
        assert (found.status, "GB free" in found.found) == ("broken", True)

    def test_a_temporary_folder_that_is_not_there_is_broken(self, tmp_path: Path) -> None:
        found = finding("temporary folder", Machine(env={"TMPDIR": str(tmp_path / "gone")}))
        assert (found.status, "No such file" in found.found) == ("broken", True)

    def test_a_usable_temporary_folder_is_left_as_it_was(self, tmp_path: Path) -> None:
        assert finding("temporary folder", Machine(env={"TMPDIR": str(tmp_path)})).status == "ok"
        assert list(tmp_path.iterdir()) == []

    def test_the_same_python_for_the_workers_is_ok(self) -> None:
        assert finding("PYSPARK_PYTHON", Machine(env={"PYSPARK_PYTHON": sys.executable})).status == "ok"

    @pytest.mark.parametrize(
        ("prints", "status", "says"),
        [
            ("3.9", "broken", "is Python 3.9, this is"),
            (f"{sys.version_info[0]}.{sys.version_info[1]}", "warning", "another installation"),
            ("", "broken", "is no Python"),
        ],
    )
    def test_another_python_for_the_workers(
        self, prints: str, status: str, says: str, tmp_path: Path
    ) -> None:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\necho '{prints}'\n")
        program.chmod(0o755)
        found = finding("PYSPARK_PYTHON", Machine(env={"PYSPARK_PYTHON": str(program)}))
        assert (found.status, says in found.found) == (status, True)

    @pytest.mark.parametrize(
        ("jar", "says"),
        [(None, "holds no Spark"), ("spark-core_2.13-3.5.1.jar", "is Spark 3.5.1, the Python side is")],
    )
    def test_a_foreign_spark_home_is_broken(self, jar: str | None, says: str, tmp_path: Path) -> None:
        (tmp_path / "jars").mkdir()
        if jar:
            (tmp_path / "jars" / jar).touch()
        found = finding("SPARK_HOME", Machine(env={"SPARK_HOME": str(tmp_path)}))
        assert (found.status, says in found.found, found.advice) == ("broken", True, "unset SPARK_HOME")

    def test_a_version_outside_its_pin_is_broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.metadata, "requires", lambda _: ["pandas<1", "pyspark>=4", "rich<1"])
        found = finding("packages", Machine())
        assert found.status == "broken"
        assert found.found.startswith("pandas ")
        assert found.found.endswith("(needs <1)")

    def test_what_is_installed_here_fits_its_pins(self) -> None:
        assert finding("packages", Machine()).status == "ok"

    def test_what_other_users_can_read_or_change_is_a_warning(self, tmp_path: Path) -> None:
        reachable = Path(tempfile.mkdtemp(prefix="millrace-test-"))  # pytest's own are closed to others
        try:
            reachable.chmod(0o755)
            root, config, cache = (reachable / name for name in ("root", "millrace.yaml", "cache"))
            (cache / "jars").mkdir(parents=True)
            root.mkdir(0o700)
            config.write_text("kafka: {options: {sasl.password: hUnter2}}")
            config.chmod(0o600)
            machine = Machine(env={"MILLRACE_CACHE": str(cache)}, storage=root, config=config)
            assert finding("permissions", machine).status == "ok"
            for path, told in ((root, "read"), (config, "holds secrets"), (cache, "others can write")):
                before = path.stat().st_mode
                path.chmod(0o777)
                found = finding("permissions", machine)
                assert (found.status, told in found.found) == ("warning", True)
                assert "hUnter2" not in str(found)
                reachable.chmod(0o700)
                # What nobody can get at is out of reach, however open it is.
                assert finding("permissions", machine).status == ("ok" if path != cache else "warning")
                reachable.chmod(0o755)
                path.chmod(before)
            config.write_text("kafka: {bootstrap: host:9092}")
            config.chmod(0o644)
            assert finding("permissions", machine).status == "ok"
        finally:
            shutil.rmtree(reachable)

    def test_one_check_that_fails_does_not_hide_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def explode(_: Machine) -> Finding:
            raise RuntimeError("password=hunter2")

        monkeypatch.setattr(doctor, "_ports", explode)
        found = run_checks(Machine())
        assert len(found) == 14
        (failed,) = [f for f in found if f.name == "ports"]
        assert failed.status == "broken"
        assert "hunter2" not in failed.found

    def test_no_broker_configured_is_fine(self) -> None:
        assert finding("broker", Machine()).status == "ok"

    def test_a_machine_shows_no_options_and_no_environment(self) -> None:
        assert "hunter2" not in repr(
            Machine(env={"X": "hunter2"}, kafka_options={"sasl.password": "hunter2"})
        )


class TestCommand:
    @pytest.fixture(autouse=True)
    def _in_an_empty_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("JAVA_HOME", raising=False)

    def test_all_well_is_exit_code_0_and_a_line_per_check(
        self, fake_java: FakeJava, cached_jars: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", fake_java()["PATH"])
        result = CliRunner().invoke(doctor_app, ["--quick"])
        assert result.exit_code == 0
        assert [line.split()[0] for line in result.output.splitlines()] == ["ok", "ok", "ok"]

    def test_a_warning_is_exit_code_0(
        self, fake_java: FakeJava, cached_jars: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", fake_java("25")["PATH"])
        result = CliRunner().invoke(doctor_app, ["--quick"])
        assert result.exit_code == 0
        assert "warning Java: 25, which is untested" in result.output

    def test_something_broken_is_exit_code_1_with_what_to_do(
        self, fake_java: FakeJava, missing_jars: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", fake_java()["PATH"])
        result = CliRunner().invoke(doctor_app, ["--quick", "--format", "json"])
        assert result.exit_code == 1
        broken = [f for f in json.loads(result.output) if f["status"] == "broken"]
        assert [(f["name"], f["advice"]) for f in broken] == [("jars for Spark", "run: millrace jars fetch")]

"""The broker of compose.yaml is the embedded one in another shape, and its file is in Compose's form."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from millrace.kafka.server import SINGLE_NODE, Server

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return loaded


@pytest.fixture(scope="module")
def kafka(compose: dict[str, Any]) -> dict[str, Any]:
    service: dict[str, Any] = compose["services"]["kafka"]
    return service


def properties(environment: dict[str, str]) -> dict[str, str]:
    """Return the broker settings that the image makes of the variables: KAFKA_A_B is a.b."""
    prefix = "KAFKA_"
    named = {key: value for key, value in environment.items() if key.startswith(prefix)}
    named.pop("KAFKA_HEAP_OPTS")  # for the image's start script
    return {key.removeprefix(prefix).lower().replace("_", "."): value for key, value in named.items()}


def listeners(value: str) -> dict[str, str]:
    return dict(item.split("://") for item in value.split(","))


def test_only_keys_that_compose_knows_are_used(compose: dict[str, Any], kafka: dict[str, Any]) -> None:
    assert set(compose) == {"services"}
    assert set(kafka) == {"image", "hostname", "ports", "environment", "healthcheck"}
    assert set(kafka["healthcheck"]) == {"test", "interval", "timeout", "retries", "start_period"}
    assert kafka["healthcheck"]["test"][0] == "CMD"


def test_values_are_text_so_that_yaml_does_not_change_them(kafka: dict[str, Any]) -> None:
    assert {key for key, value in kafka["environment"].items() if not isinstance(value, str)} == set()


def test_it_is_the_release_that_the_embedded_broker_runs(kafka: dict[str, Any]) -> None:
    lock = tomllib.loads((ROOT / "jars.lock").read_text())
    (broker,) = [j for j in lock["jar"] if j["coordinate"].startswith("org.apache.kafka:kafka_2.13:")]
    assert kafka["image"] == f"apache/kafka:{broker['coordinate'].rpartition(':')[2]}"


def test_a_single_nodes_settings_are_those_of_the_embedded_broker(kafka: dict[str, Any]) -> None:
    ours = Server(Path("/data"), Path("/log"), 1, 2).properties()
    theirs = properties(kafka["environment"])
    own_to_each = {"listeners", "advertised.listeners", "controller.quorum.voters", "log.dirs"}
    own_to_each |= {"listener.security.protocol.map"}
    assert set(theirs) == set(ours)
    assert {key: theirs[key] for key in SINGLE_NODE} == SINGLE_NODE
    differing = {key for key in ours if theirs[key] != ours[key]}
    assert differing == own_to_each


def test_clients_outside_and_inside_reach_it_at_the_address_they_are_told(kafka: dict[str, Any]) -> None:
    settings = properties(kafka["environment"])
    bound, told = listeners(settings["listeners"]), listeners(settings["advertised.listeners"])
    port = "${MILLRACE_KAFKA_PORT:-9092}"
    assert kafka["ports"] == [f"127.0.0.1:{port}{bound['HOST']}"]
    assert told["HOST"] == f"localhost:{port}"
    assert told["PLAINTEXT"] == f"{kafka['hostname']}{bound['PLAINTEXT']}"
    assert settings["controller.quorum.voters"] == f"1@{kafka['hostname']}{bound['CONTROLLER']}"
    assert kafka["healthcheck"]["test"][-1] == told["PLAINTEXT"]
    assert set(bound) == {
        pair.split(":")[0] for pair in settings["listener.security.protocol.map"].split(",")
    }


def test_the_cluster_id_is_one_that_kafka_takes(kafka: dict[str, Any]) -> None:
    assert len(base64.urlsafe_b64decode(kafka["environment"]["CLUSTER_ID"] + "==")) == 16


class TestScript:
    """`scripts/e2e-compose` with a `docker` that is not there, or has no engine, or works."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        for name in ("scripts", ".venv/bin", "bin"):
            (tmp_path / name).mkdir(parents=True)
        (tmp_path / "scripts" / "e2e-compose").write_text((ROOT / "scripts" / "e2e-compose").read_text())
        for tool in ("bash", "dirname"):
            found = subprocess.check_output(["bash", "-c", f"command -v {tool}"], text=True).strip()
            (tmp_path / "bin" / tool).symlink_to(found)
        return tmp_path

    def program(self, path: Path, body: str) -> None:
        path.write_text(f"#!/usr/bin/env bash\n{body}\n")
        path.chmod(0o755)

    def run(self, tree: Path) -> subprocess.CompletedProcess[str]:
        env = {"PATH": str(tree / "bin"), "MILLRACE_KAFKA_PORT": "19999"}
        script = [str(tree / "bin" / "bash"), str(tree / "scripts" / "e2e-compose"), "-x"]
        return subprocess.run(script, env=env, capture_output=True, text=True, timeout=60)

    @pytest.mark.parametrize(
        ("docker", "says"),
        [
            (None, "docker is not installed"),
            ("exit 1", "docker has no compose plugin"),
            ('[ "$1" = compose ]', "no Docker engine answers"),
            ("exit 0", "run: make setup"),
        ],
    )
    def test_what_is_missing_is_said_in_one_line(self, docker: str | None, says: str, tree: Path) -> None:
        if docker is not None:
            self.program(tree / "bin" / "docker", docker)
        answer = self.run(tree)
        assert (answer.returncode, answer.stdout) == (2, "")
        assert re.fullmatch(rf"e2e-compose: .*{says}.*\n", answer.stderr)

    @pytest.mark.parametrize("code", [0, 1])
    def test_the_broker_is_removed_and_the_tests_exit_code_kept(self, code: int, tree: Path) -> None:
        calls = tree / "calls"
        self.program(tree / "bin" / "docker", f'echo "docker $*" >> {calls}')
        bootstrap = "$KAFKA_BOOTSTRAP_SERVERS"
        self.program(tree / ".venv/bin/pytest", f'echo "pytest $* {bootstrap}" >> {calls}; exit {code}')
        assert self.run(tree).returncode == code
        up, tests, down = calls.read_text().splitlines()[2:]
        assert re.fullmatch(r"docker compose --project-name millrace-e2e-\d+ up -d --wait", up)
        assert tests == "pytest tests/e2e -x localhost:19999"
        assert down == up.replace("up -d --wait", "down -v --remove-orphans")

    def test_a_broker_that_is_never_healthy_is_removed_and_shows_its_log(self, tree: Path) -> None:
        calls = tree / "calls"
        self.program(tree / "bin" / "docker", f'echo "$*" >> {calls}; [[ "$*" != *" up "* ]] || exit 1')
        self.program(tree / ".venv/bin/pytest", "exit 0")
        answer = self.run(tree)
        assert (answer.returncode, "did not become healthy" in answer.stderr) == (2, True)
        assert [line.split()[3] for line in calls.read_text().splitlines()[2:]] == ["up", "logs", "down"]


def test_the_script_can_be_executed() -> None:
    assert os.access(ROOT / "scripts" / "e2e-compose", os.X_OK)

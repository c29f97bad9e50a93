"""Several demos at once, checked as each by itself; a broker that is killed meanwhile."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import psutil
import pytest

from millrace.runtime.apps import load_app
from millrace.runtime.demo_settings import published_settings
from millrace.runtime.installed import list_apps
from tests.e2e.fraud_runs import MILLRACE, Command, until

#: What the machine of a laptop has to spare, bytes.
MOST_MEMORY = 8 << 30


def started_by(command: Command) -> list[psutil.Process]:
    """Return what a command has started that runs, in whatever session."""
    return psutil.Process(command.pid).children(recursive=True)


def broker_of(command: Command) -> psutil.Process:
    """Return the process of the broker that a demo has started."""
    for process in started_by(command):
        try:
            if process.name() == "java" and "kafka.Kafka" in process.cmdline():
                return process
        except psutil.NoSuchProcess:
            continue
    raise AssertionError("no broker runs")


def memory_of(command: Command) -> int:
    """Return the memory of a command and of all that it started, bytes: pages that are shared count once."""
    total = 0
    for process in started_by(command):
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def demo(home: Path, name: str, *more: str) -> Command:
    # Their broker is their own, whatever this test run has.
    env = {"MILLRACE_HOME": str(home), "KAFKA_BOOTSTRAP_SERVERS": ""}
    return Command([*MILLRACE, "demo", name, "-s", "spark.master=local[2]", *more], home, env=env)


@pytest.mark.long
def test_two_apps_go_on_after_their_broker_was_killed_and_nothing_is_left(tmp_path: Path) -> None:
    """A broker is killed while both apps read; what each app checks of a short demo holds all the same."""
    port = free_port()
    more = ["--duration", "12s", "--rate", "200", "--port", str(port)]
    with demo(tmp_path, "fraud,iot", *more) as command:
        command.until_said("iot: query  ")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
            assert answer.status == 200
        command.until(lambda: "iot         [" in command.out, "both are shown at work")
        broker_of(command).kill()
        started = started_by(command)
        code = command.wait()
        command.check_nothing_left()
        until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in started), "gone")
        said = command.out
    assert "the broker has ended; it is started again" in said
    assert "broker: started again 1 times" in said
    assert "NO" not in said.split(), said
    # So short a run has too little for some checks; those are named, and nothing else.
    assert code in (0, 1), f"{said}\n{command.err}"
    assert code == 0 or "nothing to compare" in command.err, command.err
    for app, other in (("fraud", "iot"), ("iot", "fraud")):
        assert f"{app}: all " in said
        log = (tmp_path / "demo" / app / "logs" / "job.log").read_text()
        assert f"{app} began in " in log
        assert f"{other} began in " not in log
        assert f"{app} has ended" in log
        assert published_settings(tmp_path / "demo" / app) == ()
    with socket.socket() as taken:
        assert taken.connect_ex(("127.0.0.1", port)) != 0, "the dashboard has ended, too"


@pytest.mark.matrix
@pytest.mark.parametrize("kills", [0, 1])
def test_all_apps_at_once_hold_all_their_checks(tmp_path: Path, kills: int) -> None:
    with demo(tmp_path, "all", "--port", "0") as command:
        most = 0
        command.until(lambda: command.out.count(": first result") >= 4, "all have results")
        for _ in range(kills):
            broker_of(command).kill()

        def ended() -> bool:
            nonlocal most
            most = max(most, memory_of(command))
            return not command.running()

        until(ended, "it ends by itself", 600)
        assert command.wait() == 0, f"{command.out}\n{command.err}"
        command.check_nothing_left()
        said = command.out
    assert "all checks hold" in said
    assert ("broker: started again 1 times" in said) == bool(kills)
    apps = [name for name in list_apps() if load_app(name).demo is not None]
    firsts = {line.split(":")[0]: float(line.split()[-2]) for line in said.splitlines() if
              line.endswith(" s") and ": first result after" in line}  # fmt: skip
    assert set(firsts) == set(apps)
    assert max(firsts.values()) <= 150
    assert most <= MOST_MEMORY

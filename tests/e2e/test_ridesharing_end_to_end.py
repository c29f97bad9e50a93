"""The ridesharing app on a real broker and real tables, compared with the same processes in memory."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from millrace.experiments import Switchback
from millrace.testing.kafka import TopicFactory, consume_all
from millrace_apps.ridesharing.contracts.events import GATE_INPUTS
from millrace_apps.ridesharing.evaluation.fleet import Fleet
from millrace_apps.ridesharing.evaluation.replay import Faults, Replay, run_replay
from millrace_apps.ridesharing.evaluation.replay_report import Plan
from millrace_apps.ridesharing.evaluation.willing import Willing
from millrace_apps.ridesharing.settings import RidesTopics
from tests.e2e.fraud_runs import MILLRACE, Command, committed_batches, table
from tests.unit.apps.ridesharing.test_audit import START, line_of_requests

#: What comes out, besides the streams.
OUT = (
    "control", "offers", "assignments", "releases", "trips", "violations", "dead_letters",
    "quotes", "fares", "surge", "arrivals", "pickups", "lines", "tickets", "hints",
)  # fmt: skip
COLUMNS = (
    "request_id",
    "attempt",
    "driver_id",
    "state",
    "offered_ms",
    "accepted_ms",
    "closed_ms",
    "revision",
)


@dataclass
class Town:
    """A quarter of an hour of a small town: what was sent where, and what must come of it."""

    names: dict[str, str]
    replay: Replay
    bootstrap: str
    bound: str = "5m"

    @property
    def sets(self) -> list[str]:
        own = [f"topics.{name}={topic}" for name, topic in self.names.items()]
        same = ["dispatch.window=10s", "dispatch.radius_km=3", "dispatch.refresh=30s"]
        same += ["acceptance.on=true", "dispatch.fairness=30s"]
        same += ["experiment.name=turns", "experiment.block=4m", "experiment.guard=0s"]
        return [*own, *same, f"stream.out_of_orderness={self.bound}", "spark.quick_start=true"]

    def arguments(self, root: Path, *more: str) -> list[str]:
        """Return the arguments of ``millrace run``, that of which it is first left out."""
        sets = [f"storage.root={root}", *self.sets, *more]
        where = ["--bootstrap", self.bootstrap, "--master", "local[2]", "--until-end"]
        return ["ridesharing", *where, *(f"--set={item}" for item in sets)]

    def wanted(self) -> dict[tuple[str, int], tuple[Any, ...]]:
        """Return the last row of every attempt, from memory."""
        rows = sorted(self.replay.records["attempts"], key=lambda r: r["revision"])
        return {(r["request_id"], r["attempt"]): tuple(r[c] for c in COLUMNS) for r in rows}


@pytest.fixture
def town(kafka_bootstrap: str, topic_factory: TopicFactory) -> Town:
    return build_town(kafka_bootstrap, topic_factory)


def build_town(
    kafka_bootstrap: str, topic_factory: TopicFactory, faults: Faults | None = None, bound: str = "5m"
) -> Town:
    """Send a quarter of an hour of events to topics of their own."""
    plan = Plan(
        START, START + 600_000, 10, "optimal", 10_000, 3_000.0, 3, acceptance=True, fairness_ms=30_000,
        switchback=Switchback("turns", ("fifo", "optimal"), 240_000),
    )  # fmt: skip
    about = (plan.fleet, plan.seed, plan.start_ms, plan.end_ms)
    fleet = Fleet(line_of_requests(36, 15), *about, willing=Willing(plan.seed))
    replay = run_replay(fleet, plan.config, faults=faults, keep_log=True)
    names = {name: topic_factory(1) for name in (*GATE_INPUTS, *OUT)}
    assert set(names) == set(RidesTopics.model_fields) - {"partitions"}
    producer = Producer({"bootstrap.servers": kafka_bootstrap})
    for batch in replay.log:
        for stream, key, _, value in batch:
            producer.produce(names[stream], value, key.encode())
        producer.poll(0)
    producer.produce(names["requests"], b"no json", b"r-broken")
    assert producer.flush(30) == 0
    return Town(names, replay, kafka_bootstrap, bound)


def check(town: Town, root: Path, *, repeats: bool) -> None:
    """The tables have what memory had, each once, and the topics what the tables have."""
    rows = table(root, "assignments")
    assert {(r["request_id"], r["attempt"]): tuple(r[c] for c in COLUMNS) for r in rows} == town.wanted()
    assert len(rows) == len(town.wanted()) > 20
    assert table(root, "violations") == []
    trips = table(root, "trips")
    assert len({(t["request_id"], t["revision"]) for t in trips}) == len(trips)
    assert len(trips) == len(town.replay.records["trips"])
    for name, place in {
        "places": ("driver_id", "at_ms", "lat", "lon", "state"),
        "journeys": ("request_id",),
        "chances": ("request_id", "attempt", "driver_id", "answer", "expected"),
        "windows": ("window_end_ms", "policy", "objective_ms"),
    }.items():
        written, wanted = table(root, name), town.replay.records[name]
        assert {tuple(r[c] for c in place) for r in written} == {tuple(r[c] for c in place) for r in wanted}
        assert len(written) == len(wanted) > 20, name
    offers = table(root, "offers")
    sent = [msgspec.json.decode(m.value()) for m in consume_all(town.bootstrap, town.names["offers"])]
    assert {o["offer_id"] for o in sent} == {o["offer_id"] for o in offers}
    assert repeats or len(sent) == len(offers) == len(town.replay.records["offers"])
    (letter,) = table(root, "dead_letters")
    assert (letter["reason"], letter["value"], letter["kafka_key"]) == ("malformed", b"no json", b"r-broken")
    assert (letter["topic"], letter["key"]) == (town.names["requests"], "8:r-broken")


def audited(root: Path, folder: Path) -> Any:
    """Return the report of ``millrace ridesharing audit`` over the tables."""
    report = folder / "audit.json"
    with Command(
        [*MILLRACE, "ridesharing", "audit", "--root", str(root), "--out", str(report)], folder
    ) as audit:
        assert audit.wait() == 0, f"{audit.out}\n{audit.err}"
    return msgspec.json.decode(report.read_bytes())


def test_kafka_and_delta_give_the_assignments_that_memory_gives_and_the_audit_holds(
    town: Town, tmp_path: Path
) -> None:
    root = tmp_path / "app"
    with Command([*MILLRACE, "run", *town.arguments(root)], tmp_path) as command:
        assert command.wait() == 0, f"{command.out}\n{command.err}"
        command.check_nothing_left()
    check(town, root, repeats=False)
    found = audited(root, tmp_path)
    assert (found["violations"], found["checked"]["assignments"]) == (0, len(town.wanted()))
    report = tmp_path / "topics.json"
    options = ["--bootstrap", town.bootstrap, "--out", str(report), *(f"--set={item}" for item in town.sets)]
    with Command([*MILLRACE, "ridesharing", "audit-topics", *options], tmp_path) as audit:
        assert audit.wait() == 0, f"{audit.out}\n{audit.err}"
    told = msgspec.json.decode(report.read_bytes())
    assert (told["violations"], told["offers"]["offers"]) == (0, len(town.wanted()))


@pytest.mark.matrix
@pytest.mark.parametrize("point", ["offsets", "state", "tables"])
def test_killed_in_the_middle_of_a_batch_nothing_is_dispatched_twice(
    town: Town, tmp_path: Path, point: str
) -> None:
    root = tmp_path / "app"
    arguments = town.arguments(root, "stream.max_offsets_per_trigger=250")
    for batch in (1, 3):
        script = [sys.executable, "-m", "tests.crash.killed_run", point, str(batch)]
        with Command([*script, *arguments], tmp_path) as command:
            command.wait()
            command.until_gone()
        assert committed_batches(root)[-1:] == [batch - 1]
    with Command([*MILLRACE, "run", *arguments], tmp_path) as command:
        assert command.wait() == 0, f"{command.out}\n{command.err}"
    check(town, root, repeats=True)


@pytest.mark.matrix
@pytest.mark.timeout(1_800)
def test_killed_twenty_times_with_repeats_and_late_signals_the_audit_holds(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    faults = Faults(duplicates=0.05, late=0.05, seed=3)
    town = build_town(kafka_bootstrap, topic_factory, faults, bound="5s")
    sent = sum(map(len, town.replay.log))
    root = tmp_path / "app"
    arguments = town.arguments(root, f"stream.max_offsets_per_trigger={sent // 24}")
    points = ("offsets", "state", "tables")
    for batch in range(20):
        script = [sys.executable, "-m", "tests.crash.killed_run", points[batch % len(points)], str(batch)]
        with Command([*script, *arguments], tmp_path) as command:
            assert command.wait() == -signal.SIGKILL, f"{command.out}\n{command.err}"
            command.until_gone()
        assert committed_batches(root)[-1:] == ([batch - 1] if batch else [])
    with Command([*MILLRACE, "run", *arguments], tmp_path) as command:
        assert command.wait() == 0, f"{command.out}\n{command.err}"
        command.check_nothing_left()
    assert table(root, "late"), "nothing was late"
    letters = table(root, "dead_letters")
    assert {letter["reason"] for letter in letters} == {"malformed", "duplicate"}
    attempts = table(root, "assignments")
    assert len({(a["request_id"], a["attempt"]) for a in attempts}) == len(attempts) > 20
    trips = table(root, "trips")
    assert len({(t["request_id"], t["revision"]) for t in trips}) == len(trips)
    assert table(root, "violations") == []
    found = audited(root, tmp_path)
    assert (found["violations"], found["checked"]["assignments"]) == (0, len(attempts))


@pytest.mark.matrix
def test_the_demo_closes_the_loop_over_kafka_and_its_checks_hold(tmp_path: Path) -> None:
    arguments = ["demo", "ridesharing", "--duration", "60s", "--rate", "1000", "-s", "spark.master=local[2]"]
    with Command([*MILLRACE, *arguments], tmp_path, env={"MILLRACE_HOME": str(tmp_path)}) as command:
        assert command.wait() == 0, f"{command.out}\n{command.err}"
        assert "all checks hold" in command.out
        command.check_nothing_left()

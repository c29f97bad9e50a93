"""The iot app on a real broker and real tables, compared with the same monitor in memory."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from millrace.cli import build
from millrace.host.memory import MemoryHost
from millrace.rules import PublishRule
from millrace.runtime.settings import load_settings
from millrace.testing.kafka import TopicFactory, consume_all
from millrace_apps.generators.iot import IotProfile, simulate
from millrace_apps.iot_maintenance.contracts.events import Action, Status
from millrace_apps.iot_maintenance.contracts.signals import INPUTS, KEYS
from millrace_apps.iot_maintenance.processes.monitor import MachineMonitor
from millrace_apps.iot_maintenance.settings import IotSettings, IotTopics, forecasting, monitoring, scoring
from tests.e2e.fraud_runs import MILLRACE, Command, committed_batches, table, until

START = 1_767_261_600_000
#: Batches take a share of every topic: how far the streams come apart is part of it.
BOUND_MS = 150_000
_INPUTS = ("equipment", "status", "maintenance", "errors", "heartbeats", "readings", "actions", "counts")
_OUT = (
    *("control", "alarms", "liveness", "shifts", "health", "alarm_kpis", "notices", "clocks", "work_orders"),
    *("anomalies", "forecasts", "machine_health", "dead_letters"),
    *("risks", "remaining_life", "maintenance_plan"),
)


_RULES = """\
- {id: busy, title: it turns, quantities: [speed], levels: [{above: 0}]}
- {id: shaky, title: it is warm, quantities: [bed_temperature], levels: [{above: 0}]}
"""


@dataclass
class Plant:
    """Some minutes of a small fleet: what was sent where, and what must come of it."""

    names: dict[str, str]
    events: list[tuple[str, Any]]
    bootstrap: str

    def publish(self, folder: Path, root: Path) -> None:
        """Publish rules by command, which hold from a time within the stream on, one of them in shadow."""
        rules = folder / "rules.yaml"
        rules.write_text(_RULES)
        command = ["rules", "iot", "publish", str(rules), "--by", "ann", "--bootstrap", self.bootstrap]
        where = ["--root", str(root), f"--set=topics.control={self.names['control']}"]
        begins = str(self.events[len(self.events) * 2 // 3][1].event_time_ms)
        for more in (["--state", "active", "--only", "busy"], ["--only", "shaky"]):
            done = CliRunner().invoke(build(), [*command, *more, "--from", begins, *where])
            assert done.exit_code == 0, (done.output, done.exception)

    def controls(self) -> list[PublishRule]:
        """Return the control events that stand in the topic, less the engine's own."""
        values = [m.value() or b"" for m in consume_all(self.bootstrap, self.names["control"])]
        return [msgspec.json.decode(v, type=PublishRule) for v in values if b'"kind"' in v]

    def settings(self) -> list[str]:
        own = [f"topics.{name}={topic}" for name, topic in self.names.items()]
        same = ["monitor.device_timeout=4s", "spark.quick_start=true", "stream.max_future_skew=100000d"]
        # Every reading is scored soon, so that minutes have scores and forecasts.
        same += ["scores.interval=0", "scores.learn=20", "forecast.every=1s", "forecast.ahead=10m"]
        same += ["monitor.tree=names"]  # a registry holds no time back: when it is read would be told
        return [*own, *same, f"stream.out_of_orderness={BOUND_MS}"]

    def arguments(self, root: Path, *more: str) -> list[str]:
        """Return the arguments of a bounded ``millrace run``."""
        sets = [f"storage.root={root}", *self.settings(), *more]
        where = ["--bootstrap", self.bootstrap, "--master", "local[2]", "--until-end"]
        return ["iot", *where, *(f"--set={item}" for item in sets)]

    def in_memory(self) -> dict[str, list[dict[str, Any]]]:
        """Return what the monitor makes of the same events, an event a batch."""
        settings = load_settings(IotSettings, app="iot", overrides=self.settings(), env={})
        host = MemoryHost(
            MachineMonitor(monitoring(settings), scoring(settings), forecasting(settings)),
            out_of_orderness_ms=BOUND_MS,
        )
        found: dict[str, list[dict[str, Any]]] = {}
        emitted = host.broadcast(*self.controls())
        for name, event in self.events:
            emitted += host.run_batch([(getattr(event, KEYS[name]), event.event_time_ms, event)])
        for e in (*emitted, *host.drain()):
            found.setdefault(e.output, []).append(msgspec.json.decode(e.payload))
        return found


def _key(topic: str, event: Any) -> str:
    return str(getattr(event, {"heartbeats": "device_id", "actions": "entity_id"}.get(topic, "machine_id")))


@pytest.fixture
def plant(kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path) -> Plant:
    names = {name: topic_factory(1) for name in (*_INPUTS, *_OUT)}
    assert set(names) == set(IotTopics.model_fields) - {"partitions", "enriched"}
    profile = IotProfile(
        seed=9, start_ms=START, machines=12, event_rate=40.0, acceleration=600.0, failure_scale=4,
        sensor_fault_rate=30.0, outage_rate=60.0, registry=0, events=6_000,
    )  # fmt: skip
    producer = Producer({"bootstrap.servers": kafka_bootstrap})
    events: list[tuple[str, Any]] = []

    def send(topic: str, event: Any) -> None:
        events.append((topic, msgspec.convert(event, INPUTS[topic], from_attributes=True)))
        producer.produce(names[topic], msgspec.json.encode(event), _key(topic, event).encode())
        producer.poll(0)

    # This action is read with the first batch, long before the readings of its time.
    send("actions", Action("a1", "p01-l01-m001", "*", "suppress", START + 20_000, "ann", 10_000, "tests"))
    for simulated in simulate(profile):
        send(simulated.stream, simulated.event)
    # A status out of order, within the bound.
    last = max(e.event_time_ms for _, e in events)
    send("status", Status("s-late", "p01-l01-m001", "idle", last - 50_000, 0, 0))
    # Whenever they are read, what is planned after all that happens is not late.
    for n in range(1, 9):
        plan = ("seal", "plan", last + n, "ann", 15_000, "new seal", "", last + 20_000 + n, n % 2 == 0)
        send("actions", Action(f"plan-{n}", f"p01-l01-m00{n}", *plan))
    send("actions", Action("unplan", "p01-l01-m003", "seal", "unplan", last + 9_000, "bob"))
    producer.produce(names["readings"], b"no json", b"broken")
    assert producer.flush(30) == 0
    made = Plant(names, events, kafka_bootstrap)
    made.publish(tmp_path, tmp_path / "app")
    return made


def check(plant: Plant, root: Path, *, repeats: bool) -> None:
    """The tables have what memory has, each row once, and the topics what the tables have."""
    wanted = plant.in_memory()
    compared = {"main": "readings", "alarms": "alarm_history", "liveness": "liveness", "scores": "scores"}
    for output, name in compared.items():
        rows = [_plain(row) for row in table(root, name)]
        assert len(rows) == len(wanted[output]) > 20, name
        assert sorted(map(repr, rows)) == sorted(repr(_plain(row)) for row in wanted[output]), name
    orders: dict[str, dict[str, Any]] = {}
    for row in wanted["orders"]:
        if row["revision"] >= orders.get(row["order_id"], row)["revision"]:
            orders[row["order_id"]] = row
    assert len(orders) == 8
    assert {row["state"] for row in orders.values()} >= {"overdue", "cancelled"}
    found = [_plain(row) for row in table(root, "work_orders")]
    assert sorted(map(repr, found)) == sorted(repr(_plain(row)) for row in orders.values())
    history = table(root, "alarm_history")
    states = table(root, "alarms")
    last = {row["alarm_id"]: (row["event_time_ms"], row["number"])
            for row in sorted(history, key=lambda r: (r["event_time_ms"], r["number"]))}  # fmt: skip
    assert {row["alarm_id"]: (row["event_time_ms"], row["number"]) for row in states} == last
    assert len(states) == len(last)
    (letter,) = table(root, "dead_letters")
    assert (letter["reason"], letter["value"], letter["kafka_key"]) == ("malformed", b"no json", b"broken")
    assert letter["topic"] == plant.names["readings"]
    of_rules = Counter(
        (row["rule_id"], row["shadow"]) for row in history if row["rule_id"] in ("busy", "shaky")
    )
    assert of_rules.keys() == {("busy", False), ("shaky", True)}
    begins = plant.controls()[0].from_ms
    assert min(row["event_time_ms"] for row in history if row["rule_id"] in ("busy", "shaky")) >= begins
    assert {(r["subject"], r["by"]) for r in table(root, "rule_audit")} == {("shaky", "ann"), ("busy", "ann")}
    sent = [dict(m.headers())["event_id"] for m in consume_all(plant.bootstrap, plant.names["alarms"])]
    assert {identity.decode() for identity in sent} == {row["_event_id"] for row in history}
    assert repeats or len(sent) == len(history)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without the columns of the engine, its maps as sorted pairs."""
    return {
        name: sorted(dict(value).items()) if isinstance(value, dict | list) else value
        for name, value in sorted(row.items())
        if not name.startswith("_")
    }


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_kafka_and_delta_give_what_memory_gives_and_a_killed_run_gives_it_too(
    plant: Plant, tmp_path: Path, killed: bool
) -> None:
    """A run that is killed in the middle and goes on could not be told from one that is not."""
    root = tmp_path / "app"
    arguments = plant.arguments(root, f"stream.max_offsets_per_trigger={1000 if killed else 1500}")
    done = 0
    if killed:
        with Command([*MILLRACE, "run", *arguments], tmp_path) as command:
            until(lambda: len(committed_batches(root)) >= 2, "two batches are done")
            for process in command.processes():
                process.send_signal(signal.SIGKILL)
            command.until_gone()
        done = len(committed_batches(root))
    with Command([*MILLRACE, "run", *arguments], tmp_path) as command:
        assert command.wait() == 0, f"{command.out}\n{command.err}"
        command.check_nothing_left()
    assert len(committed_batches(root)) > done, "there was something left to do"
    check(plant, root, repeats=killed)


@pytest.mark.matrix
@pytest.mark.parametrize("point", ["offsets", "state", "topics", "table", "tables"])
def test_killed_at_any_point_of_a_batch_nothing_is_lost_and_nothing_comes_twice(
    plant: Plant, tmp_path: Path, point: str
) -> None:
    root = tmp_path / "app"
    arguments = plant.arguments(root, "stream.max_offsets_per_trigger=1500")
    for batch in (1, 3):
        script = [sys.executable, "-m", "tests.crash.killed_run", point, str(batch)]
        with Command([*script, *arguments], tmp_path) as command:
            command.wait()
            command.until_gone()
        assert committed_batches(root)[-1:] == [batch - 1]
    with Command([*MILLRACE, "run", *arguments], tmp_path) as command:
        assert command.wait() == 0, f"{command.out}\n{command.err}"
    check(plant, root, repeats=True)


@pytest.mark.matrix
def test_the_demo_ends_by_itself_and_its_checks_hold(tmp_path: Path) -> None:
    arguments = ["demo", "iot", "--duration", "75s", "--rate", "1000", "-s", "spark.master=local[2]"]
    with Command([*MILLRACE, *arguments], tmp_path, env={"MILLRACE_HOME": str(tmp_path)}) as command:
        assert command.wait() == 0, f"{command.out}\n{command.err}"
        assert "all checks hold" in command.out
        command.check_nothing_left()


@pytest.mark.matrix
def test_other_batches_and_the_packed_profile_give_the_same(plant: Plant, tmp_path: Path) -> None:
    root = tmp_path / "app"
    arguments = plant.arguments(root, "stream.driver_write_max_records=0")
    with Command([*MILLRACE, "run", *arguments], tmp_path) as command:
        assert command.wait() == 0, f"{command.out}\n{command.err}"
        command.check_nothing_left()
    check(plant, root, repeats=False)

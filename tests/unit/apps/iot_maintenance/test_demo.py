"""The demo's checks on a small plant through the monitor in memory: they hold, and they can fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from apps.iot_maintenance import demo
from apps.iot_maintenance.evaluation.stream import settings_for
from apps.iot_maintenance.process import MachineMonitor
from apps.iot_maintenance.settings import IotSettings, monitoring
from apps.iot_maintenance.signals import INPUTS, as_row
from generators.engine.world import deliver_domain
from generators.iot import DOMAIN, IotProfile
from generators.world_ledger import WorldLedger
from millrace.dead_letters import reason_of
from millrace.demo import DemoRun
from millrace.host.memory import MemoryHost
from millrace.testing.world_ledger import ReadLedger, WorldRun, read_world_ledger

PROFILE = IotProfile(
    seed=3, start_ms=1_767_261_600_000, machines=6, machines_per_line=2, event_rate=100.0,
    events=10_000, acceleration=180.0, failure_scale=4, sensor_fault_rate=500.0, outage_rate=300.0,
    disorder_ms=300, late=0.002, lateness_ms=5_000, duplicates=0.005, malformed=0.001,
)  # fmt: skip
#: Output of the monitor → table.
OUTPUTS = {"main": "readings", "alarms": "alarm_history"}
Row = dict[str, Any]
Tables = dict[str, list[Row]]


def settings() -> IotSettings:
    return settings_for(demo.settings(""))


def run_app(ledger: WorldLedger) -> Tables:
    """Send the streams, and return what stands in the tables."""
    decoders = {name: msgspec.json.Decoder(kind) for name, kind in INPUTS.items()}
    monitor = MachineMonitor(monitoring(settings()))
    host = MemoryHost(monitor, out_of_orderness_ms=1_000, records=True)
    found: Tables = {name: [] for name in ("readings", "late", "dead_letters", "alarm_history", "liveness")}
    batch: list[Any] = []
    emitted = []
    for message in deliver_domain(DOMAIN, PROFILE):
        ledger.add(message)
        try:
            event = decoders[message.stream].decode(message.value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            found["dead_letters"].append({"reason": reason_of(error)})
            continue
        batch.append((*as_row(message.stream, event), message.stream))
        if len(batch) == 400:
            emitted += host.run_batch(batch)
            batch = []
    emitted += host.run_batch(batch)
    emitted += host.advance_watermark(ledger.totals().last_event_time_ms or 0)
    for number, e in enumerate(emitted):
        table = OUTPUTS.get(e.output, e.output)
        if table in found:
            found[table].append({**msgspec.structs.asdict(e.payload), "_event_id": str(number)})
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tables, ReadLedger]:
    path = tmp_path_factory.mktemp("demo") / "ledger.jsonl"
    ledger = WorldLedger(path, WorldRun("iot", PROFILE.seed, dict.fromkeys(DOMAIN.streams, "t"), {}, {}))
    tables = run_app(ledger)
    ledger.finish()
    return tables, read_world_ledger(path)


@pytest.fixture
def checked(
    seen: tuple[Tables, ReadLedger], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., dict[str, Any]]:
    """Name of each check → the check, with the rows of some tables changed."""

    def check(**changes: Callable[[list[Row]], list[Row]]) -> dict[str, Any]:
        tables, ledger = seen
        changed = {**tables, **{name: change(tables[name]) for name, change in changes.items()}}
        monkeypatch.setattr(demo, "app_rows", lambda folder, name, columns=None: changed[name])
        run = DemoRun("", tmp_path, settings(), 60.0, 100, PROFILE.seed)
        told = {row["_event_id"] for row in tables["alarm_history"]}
        return {check.name: check for check in demo.checks(run, ledger, told)}

    return check


def test_every_check_of_the_demo_holds(checked: Callable[..., dict[str, Any]]) -> None:
    found = checked()
    assert [check for check in found.values() if not check.ok] == []
    kinds = {name.removeprefix("found: ") for name in found if name.startswith("found: ")}
    assert kinds >= {"gateway outage", "machine silence", "sensor fault: stuck", "sensor fault: dropout"}


def test_nothing_that_is_checked_is_missing_from_the_streams(seen: tuple[Tables, ReadLedger]) -> None:
    tables, ledger = seen
    assert min(ledger.summary.faults[kind] for kind in ("late", "duplicate", "malformed")) > 3
    assert min(len(rows) for rows in tables.values()) > 0
    assert sum(row["change"] == "active" for row in tables["alarm_history"]) > 20


def less(rows: list[Row]) -> list[Row]:
    return rows[1:]


def twice(rows: list[Row]) -> list[Row]:
    return [*rows, rows[-1]]


def none(rows: list[Row]) -> list[Row]:
    return []


def unknown(rows: list[Row]) -> list[Row]:
    return [{**row, "status": None} for row in rows]


def stopped(rows: list[Row]) -> list[Row]:
    alarm = next(row for row in rows if row["change"] == "active")
    of_stopped = {"category": "process", "announced": True, "status": "off", "quantity": "vibration"}
    return [*rows, {**alarm, **of_stopped}]


@pytest.mark.parametrize(
    ("table", "change", "broken"),
    [
        ("readings", less, "readings sent = rows in readings + late"),
        ("readings", twice, "no reading twice"),
        ("readings", unknown, "readings know their status"),
        ("late", lambda rows: [*rows, {"input": "readings"}], "readings sent = rows in readings + late"),
        ("dead_letters", none, "repeats in dead letters"),
        ("dead_letters", less, "broken in dead letters"),
        ("alarm_history", twice, "changes on the topic = alarm history"),
        ("alarm_history", stopped, "alarms of stopped machines"),
        ("liveness", none, "found: gateway outage"),
        ("alarm_history", none, "found: sensor fault: dropout"),
    ],
)
def test_a_check_of_the_demo_fails_where_rows_are_missing_too_many_or_wrong(
    table: str, change: Any, broken: str, checked: Callable[..., dict[str, Any]]
) -> None:
    assert not checked(**{table: change})[broken].ok

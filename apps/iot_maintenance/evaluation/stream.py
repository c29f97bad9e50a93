"""Events through the app's pipeline: on Spark, as it runs, or on the in-memory host for a quick look."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from millrace.runtime.settings import load_settings
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule
from millrace_apps.iot_maintenance.contracts.signals import KEYS, as_row
from millrace_apps.iot_maintenance.settings import IotSettings

Engine = Literal["spark", "memory"]


class Sent(NamedTuple):
    """An event as it is sent.

    Attributes:
        topic: Setting of its topic, e.g. ``readings``.
        event: One of :mod:`millrace_apps.iot_maintenance.contracts.events`.
    """

    topic: str
    event: Any


@dataclass(frozen=True)
class Result:
    """What came out.

    Attributes:
        rows: Rows of each table that was asked for, as dicts.
        events: Events that went in.
        seconds: How long it took.
        dead: How many events became dead letters.
        late: How many came too late for everything.
    """

    rows: dict[str, list[dict[str, Any]]]
    events: int
    seconds: float
    dead: int
    late: int

    @property
    def events_per_s(self) -> float:
        """Events per second."""
        return self.events / max(self.seconds, 1e-9)


def settings_for(overrides: Sequence[str]) -> IotSettings:
    """Return settings that hang on nothing but these overrides."""
    return load_settings(IotSettings, app="iot", overrides=list(overrides), env={})


def run(
    events: Sequence[Sent],
    settings: IotSettings,
    tables: Sequence[str],
    *,
    engine: Engine = "spark",
    batch: int = 5_000,
    told: Callable[[int, int], None] = lambda done, of: None,
) -> Result:
    """Run events through the pipeline.

    Args:
        events: The events in order of arrival.
        settings: The app's settings.
        tables: Tables wanted: ``readings``, ``alarm_history``, ``liveness``.
        engine: ``spark``: the app's topology as a query, into Delta tables; ``memory``: in this process.
        batch: Events per micro-batch.
        told: Called with how many batches are done, of how many.
    """
    parts = [events[low : low + batch] for low in range(0, len(events), batch)]
    return (_on_spark if engine == "spark" else _in_memory)(parts, settings, tables, told)


def _in_memory(
    parts: Sequence[Sequence[Sent]],
    settings: IotSettings,
    tables: Sequence[str],
    told: Callable[[int, int], None],
) -> Result:
    from millrace.host.memory_chain import MemoryChain
    from millrace.time import ms
    from millrace.topology.sinks import table_name
    from millrace_apps.iot_maintenance.topology import topology

    wired = topology(settings)
    host = MemoryChain(wired, out_of_orderness_ms=ms(settings.stream.out_of_orderness))
    named: dict[str, list[str]] = {}
    for output, one in wired.written:
        named.setdefault(output, []).append(table_name(one))
    rows: dict[str, list[dict[str, Any]]] = {table: [] for table in tables}
    counts = dict.fromkeys(("dead_letters", "dead_alarms", "late"), 0)
    count, began = 0, time.perf_counter()
    for number in range(len(parts) + 1):
        if number < len(parts):
            emitted = host.run_batch([as_row(topic, event) for topic, event in parts[number]])
            count += len(parts[number])
        else:
            emitted = host.drain()
        for e in emitted:
            for table in named.get(e.output, ()):
                if table in rows:
                    rows[table].append(msgspec.json.decode(e.payload))
                elif table in counts:
                    counts[table] += 1
        told(number + 1, len(parts) + 1)
    took = time.perf_counter() - began
    return Result(rows, count, took, counts["dead_letters"] + counts["dead_alarms"], counts["late"])


def _on_spark(
    parts: Sequence[Sequence[Sent]],
    settings: IotSettings,
    tables: Sequence[str],
    told: Callable[[int, int], None],
) -> Result:
    from millrace.runtime.replay import Record, run_records
    from millrace_apps.iot_maintenance.app import app

    named = {**KEYS, "heartbeats": "device_id"}

    def records() -> Iterator[list[Record]]:
        for part in parts:
            yield [
                Record(
                    getattr(settings.topics, topic),
                    msgspec.json.encode(event),
                    getattr(event, named[topic]).encode(),
                    event.event_time_ms,
                )
                for topic, event in part
            ]

    with tempfile.TemporaryDirectory(prefix="millrace-iot-") as name:
        folder = Path(name)
        run = run_records(
            app, settings, folder, records(), on_batch=lambda batch, _: told(batch + 1, len(parts) + 1)
        )
        rows = {}
        for table in tables:
            found = (folder / "tables" / table).exists()
            rows[table] = [plain(row) for row in run.table(table).to_pylist()] if found else []
        dead = run.outputs.get("MachineMonitor.dead_letters", 0) + run.outputs.get("dead_letters", 0)
        late = run.outputs.get("MachineMonitor.late", 0)
        return Result(rows, run.rows, run.seconds, dead, late)


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a table with its maps as dicts: Arrow gives them as lists of pairs."""
    return {
        name: dict(value) if isinstance(value, list) and name in _MAPS else value
        for name, value in row.items()
    }


_MAPS = frozenset({"attributes", "last_maintenance_ms", "component_age_days", "errors_24h"})


class written:
    """Write rules to a file for as long as a block runs.

    Args:
        alarm_rules: The rules.
        rest: What else the file of a fleet has.
    """

    def __init__(self, alarm_rules: Sequence[AlarmRule], **rest: Any) -> None:
        self._content = msgspec.json.encode({"rules": alarm_rules, **rest})

    def __enter__(self) -> Path:
        self._folder = tempfile.TemporaryDirectory(prefix="millrace-rules-")
        path = Path(self._folder.name) / "fleet.json"
        path.write_bytes(self._content)
        return path

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

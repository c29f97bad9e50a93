"""The iot app for the benchmarks: every reading is enriched, some raise an alarm."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from millrace_apps.benchmarks.app_bench import Answers, AppBench, Key, Record, Rows, Sent
from millrace_apps.iot_maintenance.settings import DEFAULTS

#: A limit within what is usual, without a delay: readings cross it all the time.
_CROSSED: Final[dict[str, Any]] = {
    "id": "bench-vibration",
    "title": "Vibration above its usual level",
    "quantities": ["vibration"],
    "levels": [{"severity": "low", "above": 2.0}],
}


def check(rows: Rows, sent: Sent) -> Record:
    """Compare the enriched readings with the readings: each has one first row, or is late."""
    wanted = Counter(event["reading_id"] for event in sent("readings"))
    found = Counter(
        r["reading_id"] for r in rows("readings", ["reading_id", "revision"]) if not r["revision"]
    )
    late = [r for r in rows("late", ["input", "event"]) if r["input"] == "readings"]
    letters = rows("dead_letters", ["reason"])
    together = found + Counter(json.loads(r["event"])["reading_id"] for r in late)
    return {
        "rows_in_table": found.total(),
        "late": len(late),
        "dead_letters": len(letters),
        "correct": together == wanted and not letters,
    }


def rules(folder: Path) -> Sequence[str]:
    """Return settings with the app's own rules and one that asks for no delay, so that readings alarm."""
    import yaml

    fleet = yaml.safe_load(DEFAULTS.read_text(encoding="utf-8"))
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump({**fleet, "rules": [*fleet["rules"], _CROSSED]}), encoding="utf-8")
    return [f"monitor.fleet_file={path}"]


def _reading(event: Record) -> Key:
    return event["machine_id"], event["quantity"], event["event_time_ms"]


def _alarm(alarm: Record) -> Key:
    # What a timer raises, such as silence or a delay that is over, has the time of no reading.
    raised = alarm["change"] in ("active", "raised")
    return (alarm["entity_id"], alarm["quantity"], alarm["event_time_ms"]) if raised else None


bench: Final = AppBench(
    name="iot",
    streams=("readings", "status", "maintenance", "errors", "heartbeats", "equipment"),
    entities="machines",
    usual=2_000,
    answers=Answers("alarm", "alarms", "readings", asked=_reading, answered=_alarm),
    check=check,
    preload={},
    # Batches take a share of every topic: how far the streams come apart is part of the bound.
    catch_up=("stream.out_of_orderness=60s",),
    live={"machines": 400},
    paced=rules,
)

"""The iot app's demo: what is sent, what is shown, and what must come out of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from apps.iot_maintenance.alarms.record import AlarmEvent
from apps.iot_maintenance.settings import IotSettings
from millrace.console.live_panels import AlertLine
from millrace.console.report import Check, equal
from millrace.demo import DemoRun, DemoSpec
from millrace.runtime.commands import app_rows
from millrace.testing.world_ledger import ReadLedger, WorldTruth, read_world_ledger
from millrace.time import ms

#: Share of what happened that must be found.
_FOUND: Final = 0.9
#: Topics of the settings that are the demo's own on a broker that others use.
_TOPICS: Final = (
    "readings", "status", "maintenance", "errors", "heartbeats", "equipment", "actions", "control",
    "alarms", "liveness", "shifts", "health", "alarm_kpis", "dead_letters",
)  # fmt: skip
#: Sensor faults that must be found. A drift looks like wear of a component to whoever sees one sensor.
FAULTS: Final = ("stuck", "spike", "dropout", "wrong_unit", "gap", "noise")
#: A sensor is judged by what it was like before: faults in its first seconds have nothing to differ from.
_LEARN_MS: Final = 45_000
_decode_alarm = msgspec.json.Decoder(AlarmEvent).decode


def settings(run_id: str) -> list[str]:
    """Return settings for the run: topics of its own on a broker that others use."""
    names = IotSettings().topics
    own = [f"topics.{t}={getattr(names, t)}.demo-{run_id}" for t in _TOPICS] if run_id else []
    # On a busy machine the generator's streams come further apart than a plant's.
    return [*own, "monitor.grace=30s", "stream.out_of_orderness=1s"]


def generate(run: DemoRun) -> Sequence[str]:
    """Return the generator's arguments: a minute is three hours in the life of the machines."""
    names = run.settings.topics
    arguments: list[object] = ["iot", "--quiet", "--ledger", run.ledger, "--bootstrap", run.bootstrap]
    for stream in ("readings", "status", "maintenance", "errors", "heartbeats"):
        arguments += ["--topic", f"{stream}={getattr(names, stream)}"]
    options: dict[str, object] = {
        "--rate": run.rate,
        "--duration": f"{run.duration_s:g}s",
        "--seed": run.seed,
        "--partitions": names.partitions,
        "--acceleration": 180,
        "--failure-scale": 4,
        "--sensor-fault-rate": 40,
        "--outage-rate": 40,
        "--disorder-ms": 300,
        "--late": 0.002,
        "--lateness": "5s",
        "--duplicates": 0.005,
        "--malformed": 0.001,
    }
    return [str(part) for part in (*arguments, *(p for pair in options.items() for p in pair))]


def alarm_line(value: bytes) -> AlertLine:
    """Return what is shown of a change of an alarm."""
    alarm = _decode_alarm(value)
    at = datetime.fromtimestamp(alarm.event_time_ms / 1000, UTC)
    what = alarm.title or alarm.alarm
    reasons = f"{alarm.change} {alarm.severity}: {what}" + (f" ({alarm.reason})" if alarm.reason else "")
    value_shown = "" if alarm.value is None else f"{alarm.value:,.2f}"
    return AlertLine(f"{at:%H:%M:%S}", alarm.entity_id, reasons, None, value_shown)


def checks(run: DemoRun, ledger: ReadLedger, alarm_ids: set[str]) -> list[Check]:
    """Compare the tables with the ledger.

    Args:
        run: The run.
        ledger: What the generator did.
        alarm_ids: Identities of the changes of alarms seen on the topic.
    """
    folder = run.folder
    readings = app_rows(folder, "readings", ["reading_id", "revision", "status", "late"])
    first = [row["reading_id"] for row in readings if row["revision"] == 0]
    late = [row["input"] for row in app_rows(folder, "late", ["input"])]
    late_readings = late.count("readings")
    reasons = Counter(r["reason"] for r in app_rows(folder, "dead_letters", ["reason"]))
    history = app_rows(
        folder,
        "alarm_history",
        ["entity_id", "quantity", "category", "change", "event_time_ms", "announced", "status", "_event_id"],
    )
    liveness = app_rows(folder, "liveness", ["device_id", "state", "cause", "event_time_ms"])
    # A heartbeat that comes twice is none the worse for it.
    faults = Counter(f.kind for f in ledger.faults if (f.kind, f.stream) != ("duplicate", "heartbeats"))
    sent = ledger.summary.streams.get("readings", 0)
    found = [
        _equal("readings sent = rows in readings + late", sent, len(first) + late_readings),
        _equal("no reading twice", 0, len(first) - len(set(first))),
        _equal("repeats in dead letters", faults["duplicate"], reasons["duplicate"], late=len(late)),
        _equal("broken in dead letters", faults["malformed"], sum(reasons[r] for r in _BROKEN)),
        Check(
            "readings know their status",
            "all but the first moments",
            f"{sum(row['status'] is None for row in readings):,} do not",
            sum(row["status"] is None for row in readings) <= 0.01 * max(1, len(readings)),
        ),
        _equal(
            "changes on the topic = alarm history",
            len(history),
            len(alarm_ids & {row["_event_id"] for row in history}),
        ),
    ]
    process = [row for row in history if row["category"] == "process" and row["announced"]]
    stopped = sum(1 for row in process if row["status"] in ("off", "maintenance", "failed")
                  and row["change"] == "active" and row["quantity"] in _SUPPRESSED)  # fmt: skip
    found.append(_equal("alarms of stopped machines", 0, stopped))
    last = ledger.summary.last_event_time_ms or 0
    found += _happenings(run, ledger.truths, history, liveness, last)
    return found


_BROKEN: Final = ("malformed", "schema", "range", "no_event_time", "future")
_SUPPRESSED: Final = frozenset({"vibration", "current", "pressure", "flow", "speed", "power"})


def _happenings(
    run: DemoRun,
    truths: Iterable[WorldTruth],
    history: list[dict[str, Any]],
    liveness: list[dict[str, Any]],
    last: int,
) -> list[Check]:
    """Return a check for each kind of thing that happened."""
    monitor = run.settings.monitor
    raised: dict[str, list[int]] = defaultdict(list)
    for row in history:
        if row["change"] == "active":
            raised[f"{row['entity_id']}.{row['quantity']}"].append(row["event_time_ms"])
    silent: dict[str, list[int]] = defaultdict(list)
    for row in liveness:
        if row["state"] == "silent":
            silent[row["device_id"]].append(row["event_time_ms"])
    begin = min((t.first_event_time_ms for t in truths), default=0)
    timeout = ms(monitor.device_timeout)
    hits: dict[str, list[bool]] = defaultdict(list)
    for truth in truths:
        kind = truth.kind.removeprefix("sensor_")
        start, end = int(truth.detail.get("begin_ms", 0)), int(truth.detail.get("end_ms", 0))
        if kind in FAULTS and start > begin + _LEARN_MS and end + 5_000 < last:
            if kind == "gap" and end - start < ms(monitor.sensor_least) + 2_000:
                continue
            at = [*raised[truth.entity], *silent[truth.entity]]
            hits[f"sensor fault: {kind}"].append(any(start <= t <= end + 15_000 for t in at))
        elif kind in ("gateway_outage", "machine_silence") and min(end, last) - start > timeout + 1_000:
            hits[kind.replace("_", " ")].append(any(start <= t <= end for t in silent[truth.entity]))
    found = []
    for name, ok in sorted(hits.items()):
        # Of few, one may be missed.
        enough = sum(ok) >= min(_FOUND * len(ok), len(ok) - 1) and any(ok)
        found.append(Check(f"found: {name}", f"at least {_FOUND:.0%} of {len(ok)}", sum(ok), enough))
    return found


def _equal(name: str, expected: int, found: int, *, late: int = 0) -> Check:
    if late and found < expected <= found + late:
        return Check(name, f"{expected:,}", f"{found:,}", True, "the others came too late to be told")
    return equal(name, expected, found)


def _sent(ledger: ReadLedger) -> int:
    return ledger.summary.sent


spec = DemoSpec(
    settings=settings,
    generate=generate,
    alert_topic=lambda s: str(s.topics.alarms),
    alert_line=alarm_line,
    checks=checks,
    read_ledger=read_world_ledger,
    sent=_sent,
)

"""The iot app's demo: what is sent, what is shown, and what must come out of it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from millrace.console.live_panels import AlertLine
from millrace.console.report import Check, equal, same
from millrace.demo import DemoRun, DemoSpec
from millrace.runtime.commands import app_rows
from millrace.testing.world_ledger import ReadLedger, WorldTruth, read_world_ledger
from millrace.time import NEVER, ms
from millrace_apps.iot_maintenance.alarms.language import FORESIGHT
from millrace_apps.iot_maintenance.alarms.record import AlarmEvent
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule
from millrace_apps.iot_maintenance.evaluation import demo_causes, demo_foreseen, demo_health
from millrace_apps.iot_maintenance.processes.quality import LEARN
from millrace_apps.iot_maintenance.settings import IotSettings, monitoring

#: Shares of what happened that must be found: of silences; of all sensor faults, and of those of one kind.
#: In 24 worlds (six seeds, four hours of the day) it was at least 89 % of all, and 60 % of a kind.
_SILENCES: Final = 0.9
_FAULTS: Final = 0.8
_OF_A_KIND: Final = 0.5
_FAULT: Final = "sensor fault: "
#: How much faster than event time machines live: a minute is three hours.
ACCELERATION: Final = 180.0
_HOUR_MS: Final = 3_600_000
#: Machines at most, and events a second of one: where fewer are sent there are fewer machines, not slower
#: sensors, of which nothing could be learned in time.
MACHINES: Final = 40
_OF_A_MACHINE: Final = 25
#: Sensors speak every 0.14 to 1.4 seconds. So that there is enough to learn from in a minute each value is
#: scored, a step ahead is the interval of the fastest, and six seconds are looked ahead: eighteen minutes of
#: a machine's life, on a way to a failure of half an hour to two hours.
LEARNING: Final = (
    "scores.interval=0",
    "scores.learn=100",
    "scores.threshold=0.6",
    "forecast.every=150ms",
    "forecast.ahead=6s",
    "forecast.learn=30",
)
#: The champion that failures are foreseen with, learned before on other worlds
#: (``python -m millrace_apps.benchmarks.iot_demo_models``): a minute is too short to learn it in.
MODELS: Final = Path(__file__).with_name("demo_models")
#: What is normal for machines, learned there of worlds in which nothing is wrong, and in which intervals they
#: are held against it, ms: longer than the slowest sensor waits, four minutes of a machine's life.
NORMAL: Final = MODELS / "normal.json"
TOGETHER_MS: Final = 1_500
WELL: Final = (f"health.charts={NORMAL}", f"health.interval={TOGETHER_MS}ms")
#: A step is three minutes of a machine's life.
LOOKING: Final = ("foresight.on=true", "foresight.every=1s", f"foresight.exports={MODELS}")
#: What the checks call the topic of forecasts.
FORECASTS: Final = "forecasts"
#: Sensor faults that must be found, and by which words. A drift looks like wear of a component to whoever
#: sees one sensor; of a gap there are no readings.
WORDS: Final[Mapping[str, frozenset[str]]] = {
    "stuck": frozenset({"stuck"}),
    "spike": frozenset({"rate", "range"}),
    "dropout": frozenset({"missing"}),
    "wrong_unit": frozenset({"unit", "range"}),
    "gap": frozenset(),
    "noise": frozenset({"noise", "range"}),
}
#: The rule of sensors that are not to be believed, and how long after a fault its alarm may come, ms.
_SENSOR_FAULT: Final = "sensor-fault"
_TELL_MS: Final = 15_000
#: Words that say nothing against a value: a sensor is learned from such readings.
_BELIEVED: Final = frozenset({"", "gap", "spike"})
_decode_alarm = msgspec.json.Decoder(AlarmEvent).decode


def settings(run_id: str) -> list[str]:
    """Return settings for the run: topics of its own on a broker that others use."""
    names = IotSettings().topics
    # All but the one that is not named: enriched readings go to their table alone.
    topics = [name for name in type(names).model_fields if name != "partitions" and getattr(names, name)]
    own = [f"topics.{t}={getattr(names, t)}.demo-{run_id}" for t in topics] if run_id else []
    # On a busy machine the generator's streams come further apart than a plant's.
    return [*own, "monitor.grace=30s", "stream.out_of_orderness=1s", *LEARNING, *LOOKING, *WELL]


def generate(run: DemoRun) -> Sequence[str]:
    """Return the generator's arguments: a minute is three hours in the life of the machines."""
    names = run.settings.topics
    arguments: list[object] = ["iot", "--quiet", "--ledger", run.ledger, "--bootstrap", run.bootstrap]
    for stream in ("readings", "status", "maintenance", "errors", "heartbeats", "equipment"):
        arguments += ["--topic", f"{stream}={getattr(names, stream)}"]
    options: dict[str, object] = {
        "--rate": run.rate,
        "--duration": f"{run.duration_s:g}s",
        "--seed": run.seed,
        "--machines": min(MACHINES, max(3, round(run.rate / _OF_A_MACHINE))),
        "--partitions": names.partitions,
        "--acceleration": ACCELERATION,
        "--failure-scale": 4,
        "--worn": 0.8,
        "--worn-from": 0.5,
        "--warning-scale": 30,
        "--sensor-fault-rate": 200,
        "--outage-rate": 150,
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
    readings = app_rows(
        folder,
        "readings",
        [
            "reading_id",
            "machine_id",
            "quantity",
            "event_time_ms",
            "value",
            "unit",
            "revision",
            "status",
            "status_since_ms",
            "fault",
        ],
    )
    first = [row for row in readings if row["revision"] == 0]
    ids = [row["reading_id"] for row in first]
    late = [row["input"] for row in app_rows(folder, "late", ["input"])]
    reasons = Counter(r["reason"] for r in app_rows(folder, "dead_letters", ["reason"]))
    history = app_rows(
        folder,
        "alarm_history",
        ["alarm_id", "entity_id", "rule_id", "quantity", "category", "change", "event_time_ms",
         "announced", "status", "_event_id"],
    )  # fmt: skip
    liveness = app_rows(folder, "liveness", ["device_id", "state", "cause", "event_time_ms"])
    # A heartbeat that comes twice is none the worse for it.
    faults = Counter(f.kind for f in ledger.faults if (f.kind, f.stream) != ("duplicate", "heartbeats"))
    sent = ledger.summary.streams.get("readings", 0)
    unknown = sum(row["status"] is None for row in readings)
    process = [row for row in history if row["category"] == "process" and row["change"] == "active"
               and row["quantity"] in _SUPPRESSED]  # fmt: skip
    stopped = sum(row["announced"] and row["status"] in _STOPPED for row in process)
    changes = [row["_event_id"] for row in history]
    found = [
        _equal("readings sent = rows in readings + late", sent, len(first) + late.count("readings")),
        equal("no reading twice", 0, len(ids) - len(set(ids)), of=len(ids)),
        _equal("repeats in dead letters", faults["duplicate"], reasons["duplicate"], late=len(late)),
        equal("broken in dead letters", faults["malformed"], sum(reasons[r] for r in _BROKEN)),
        Check(
            "readings know their status",
            "all but the first moments",
            f"{unknown:,} do not",
            unknown <= 0.01 * len(readings),
            compared=len(readings),
        ),
        same("changes on the topic = alarm history", set(changes), alarm_ids),
        equal("no change of an alarm twice", 0, len(changes) - len(set(changes)), of=len(changes)),
        equal("alarms of stopped machines", 0, stopped, of=len(process)),
        *_impossible(run.settings, first),
    ]
    last = ledger.summary.last_event_time_ms or 0
    seen_ms = last - min((row["event_time_ms"] for row in first), default=last)
    lived_h = len({row["machine_id"] for row in first}) * seen_ms * ACCELERATION / _HOUR_MS
    rules = [rule for rule in monitoring(run.settings).rules if rule.source == FORESIGHT]
    names = {rule.id for rule in rules}
    measured = [row for row in history if row["rule_id"] not in names]
    judged = demo_causes.judge(ledger.truths, measured, last)
    warnings = [row for row in history if row["rule_id"] in names]
    return [
        *found,
        *_happenings(run, ledger.truths, first, history, liveness, last),
        *demo_causes.checks(judged, lived_h, ACCELERATION),
        *_foreseen(run, ledger.truths, readings, last, lived_h),
        *_warnings(run, ledger.truths, rules, warnings, first, last, lived_h),
    ]


def _warnings(
    run: DemoRun,
    truths: Sequence[WorldTruth],
    rules: Sequence[AlarmRule],
    history: Sequence[dict[str, Any]],
    readings: Sequence[dict[str, Any]],
    last: int,
    lived_h: float,
) -> list[Check]:
    """Return the checks of alarms of what is foreseen."""
    risks = app_rows(run.folder, "risks", ["machine_id", "component", "event_time_ms", "probability"])
    steps = app_rows(run.folder, "machine_features", ["machine_id", "event_time_ms"])
    looked = {(row["machine_id"], row["event_time_ms"]) for row in risks}
    warned = demo_foreseen.judge_warnings(
        demo_causes.degradations(truths), history, looked, readings, _STOPPED, last
    )
    return [
        same("steps with risks = steps", {(r["machine_id"], r["event_time_ms"]) for r in steps}, looked),
        demo_foreseen.raised_as_told(rules, risks, history),
        *demo_foreseen.warning_checks(warned, lived_h, ACCELERATION),
    ]


def _foreseen(
    run: DemoRun, truths: Sequence[WorldTruth], readings: list[dict[str, Any]], last: int, lived_h: float
) -> list[Check]:
    """Return the checks of scores, forecasts, and what sensors say together."""
    key = ["machine_id", "quantity", "subject", "event_time_ms"]
    scores = app_rows(run.folder, "scores", [*key, "sensor_id", "score"])
    told = app_rows(run.folder, "anomalies", [*key, "sensor_id", "score"])
    newest = app_rows(run.folder, "forecasts", [*key, "side", "in_h"])
    said = [msgspec.json.decode(value) for value in run.told.get(FORECASTS, ())]
    causes = demo_foreseen.Causes(truths, readings, last)
    ahead_ms = ms(run.settings.forecast.ahead)
    scored = demo_foreseen.judge_scores(causes, scores, told, last)
    foretold = demo_foreseen.judge_forecasts(causes, said, scores, ahead_ms, last)
    together = app_rows(run.folder, "machine_health", ["machine_id", "event_time_ms", "score"])
    well = demo_health.judge_health(causes, together, last)
    return [
        *demo_foreseen.consistent(scores, told, run.settings.scores.threshold, said, newest),
        *demo_foreseen.checks(scored, foretold, lived_h, ACCELERATION),
        *demo_health.health_checks(well, lived_h, ACCELERATION),
    ]


_BROKEN: Final = ("malformed", "schema", "range", "no_event_time", "future")
_STOPPED: Final = ("off", "maintenance", "failed")
_SUPPRESSED: Final = frozenset({"vibration", "current", "pressure", "flow", "speed", "power"})


def _impossible(settings: IotSettings, readings: list[dict[str, Any]]) -> list[Check]:
    """Return a check for values that are not there, and for those beyond what is physically possible."""
    limits = monitoring(settings).limits
    beyond, told = set(), set()
    for row in readings:
        known, value, name = limits.get(row["quantity"]), row["value"], row["reading_id"]
        if known is None or value is None or row["unit"] != known.unit:
            continue  # what is in another unit is converted before it is judged
        if (known.low is not None and value < known.low) or (known.high is not None and value > known.high):
            beyond.add(name)
        if row["fault"] == "range":
            told.add(name)
    return [
        same(
            "readings without a value are missing",
            {r["reading_id"] for r in readings if r["value"] is None},
            {r["reading_id"] for r in readings if r["fault"] == "missing"},
        ),
        same("impossible values are out of range", beyond, told),
    ]


class _Span(NamedTuple):
    """From when to when something held, ms."""

    begin: int
    end: int


def _standing(history: Iterable[dict[str, Any]]) -> dict[str, list[_Span]]:
    """Return when sensors were said not to be believed: sensor → spans of time."""
    found: dict[str, list[_Span]] = defaultdict(list)
    since: dict[str, int] = {}
    for row in sorted(history, key=lambda r: r["event_time_ms"]):
        if row["rule_id"] != _SENSOR_FAULT:
            continue
        name, at = f"{row['entity_id']}.{row['quantity']}", row["event_time_ms"]
        if row["change"] == "active":
            since.setdefault(name, at)
        elif row["change"] == "inactive" and name in since:
            found[name].append(_Span(since.pop(name), at))
    for name, at in since.items():
        found[name].append(_Span(at, NEVER))
    return found


def _happenings(
    run: DemoRun,
    truths: Iterable[WorldTruth],
    readings: list[dict[str, Any]],
    history: list[dict[str, Any]],
    liveness: list[dict[str, Any]],
    last: int,
) -> list[Check]:
    """Return a check for each kind of thing that can happen.

    A sensor fault is found where one of its own readings was judged by a word for it and the sensor's alarm
    stood meanwhile; a gap where the sensor was said to be silent. A sensor is judged by what it was like
    before: faults of one that is not known yet have nothing to differ from, and where a machine stands still
    nothing is the same in any unit.
    """
    monitor = run.settings.monitor
    judged = {row["reading_id"]: row["fault"] for row in readings}
    still = {row["reading_id"] for row in readings if row["status"] in _STOPPED}
    believed: dict[str, list[int]] = defaultdict(list)
    for row in sorted(readings, key=lambda r: r["event_time_ms"]):
        if row["fault"] in _BELIEVED and row["value"] is not None:
            believed[f"{row['machine_id']}.{row['quantity']}"].append(row["event_time_ms"])
    standing = _standing(history)
    silent: dict[str, list[int]] = defaultdict(list)
    for row in liveness:
        if row["state"] == "silent":
            silent[row["device_id"]].append(row["event_time_ms"])
    timeout = ms(monitor.device_timeout)
    kinds = [*(f"{_FAULT}{kind}" for kind in WORDS), "gateway outage", "machine silence"]
    hits: dict[str, list[bool]] = {kind: [] for kind in sorted(kinds)}
    for truth in truths:
        kind = truth.kind.removeprefix("sensor_")
        start, end = int(truth.detail.get("begin_ms", 0)), int(truth.detail.get("end_ms", 0))
        if kind in WORDS and end + 5_000 < last:
            if bisect_left(believed[truth.entity], start) <= LEARN:
                continue
            if kind == "gap":
                if end - start >= ms(monitor.sensor_least) + 2_000:
                    gone = any(start <= t <= end + _TELL_MS for t in silent[truth.entity])
                    hits[f"{_FAULT}{kind}"].append(gone)
                continue
            if truth.detail.get("unit_says_so") is False and still.issuperset(truth.event_ids):
                continue
            told = any(judged.get(i) in WORDS[kind] for i in truth.event_ids)
            alarm = any(span.begin <= end + _TELL_MS and span.end >= start for span in standing[truth.entity])
            hits[f"{_FAULT}{kind}"].append(told and alarm)
        elif kind in ("gateway_outage", "machine_silence") and min(end, last) - start > timeout + 1_000:
            hits[kind.replace("_", " ")].append(any(start <= t <= end for t in silent[truth.entity]))
    found = []
    for name, ok in hits.items():
        # Of few, one may be missed.
        least = _OF_A_KIND if name.startswith(_FAULT) else _SILENCES
        enough = sum(ok) >= min(least * len(ok), len(ok) - 1) and (any(ok) or not ok)
        wanted = f"at least {least:.0%} of {len(ok)}"
        found.append(Check(f"found: {name}", wanted, sum(ok), enough, compared=len(ok)))
    faults = [ok for name, of in hits.items() if name.startswith(_FAULT) for ok in of]
    wanted, enough = f"at least {_FAULTS:.0%} of {len(faults)}", sum(faults) >= _FAULTS * len(faults)
    found.append(
        Check("found: sensor faults of all kinds", wanted, sum(faults), enough, compared=len(faults))
    )
    return found


def _equal(name: str, expected: int, found: int, *, late: int = 0) -> Check:
    if late and found < expected <= found + late:
        note = "the others came too late to be told"
        return Check(name, f"{expected:,}", f"{found:,}", True, note, compared=expected)
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
    also=lambda s: {FORECASTS: str(s.topics.forecasts)},
)

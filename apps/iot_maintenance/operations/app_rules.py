"""The alarm rules as `millrace rules iot` goes by them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from millrace.errors import UserError
from millrace.operations.app_rules import AppRules, History, WhatIf
from millrace.rules import Rule, RuleEvent
from millrace.time import ms
from millrace_apps.iot_maintenance.alarms.book import read_rules
from millrace_apps.iot_maintenance.alarms.language import language
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, alarm_language, read_rule
from millrace_apps.iot_maintenance.foresight.past import read_foreseen
from millrace_apps.iot_maintenance.operations.backtest import Report, backtest, read_table
from millrace_apps.iot_maintenance.settings import IotSettings, monitoring

_COLUMNS: Final = ("rule", "alarms", "a day", "machines", "floods", "most in 10 min")
_SOURCES: Final = ("reading", "machine", "error")


def written(rule: AlarmRule) -> Rule:
    """Return an alarm rule as it is published: its condition is the rule as JSON."""
    return Rule(rule.id, msgspec.json.encode(rule).decode(), description=rule.title)


def _read(file: Path) -> list[Rule]:
    return [written(rule) for rule in read_rules(file)]


def _built_in(settings: IotSettings) -> list[Rule]:
    return _read(Path(settings.monitor.fleet_file))


def _what_if(rules: list[Rule], settings: IotSettings, history: History) -> WhatIf:
    started = time.perf_counter()
    if history.labels is not None:
        raise UserError("alarms have no labels: leave --labels out")
    path = history.table or settings.storage.path("tables", "readings")
    table = read_table(path, last_ms=history.last_ms, check=history.check)
    say, count = history.say, len(table)
    times = table.column("event_time_ms")
    foreseen = read_foreseen(
        Path(path).parent,
        since_ms=times[0].as_py() if count else 0,
        until_ms=times[-1].as_py() if count else 0,
        by_interval=settings.foresight.judged_by == "interval",
    )
    report = backtest(
        [read_rule(rule.when) for rule in rules],
        monitoring(settings),
        table,
        foreseen=foreseen,
        every_ms=ms(settings.foresight.every),
        progress=None if say is None else lambda done: say(done, count),
    )
    report.seconds = round(time.perf_counter() - started, 3)
    return _shown(report)


def _shown(report: Report) -> WhatIf:
    title = f"{report.readings:,} readings, {report.days:.1f} days, {report.seconds:.1f} s"
    rows: list[tuple[object, ...]] = [
        (o.rule, f"not tried: {o.not_tried}", *("-",) * 4)
        if o.not_tried
        else (o.rule, f"{o.alarms:,}", f"{o.alarms_per_day:,.1f}", o.machines, o.floods, o.worst)
        for o in (*report.rules, report.together)
    ]
    return WhatIf(report, title, _COLUMNS, rows)


def _words(about: Sequence[str]) -> Iterable[tuple[str, str, str]]:
    source, *quantities = about or ("reading",)
    if source not in _SOURCES:
        raise UserError(f"there is no source '{source}'; there are {', '.join(_SOURCES)}")
    return language(cast(Any, source), tuple(quantities)).describe()


RULES: Final = AppRules(
    app="iot",
    settings=IotSettings,
    control=RuleEvent,
    language=lambda settings: alarm_language(two_person=settings.monitor.two_person),
    read=_read,
    words=_words,
    backtest=_what_if,
    shown=lambda rule: rule.description,
    built_in=_built_in,
    publisher_owns=True,
)

"""The fraud rules as `millrace rules fraud` goes by them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from millrace.errors import UserError
from millrace.operations.app_rules import AppRules, History, WhatIf
from millrace.rules import Rule, check_rules
from millrace_apps.fraud.contracts.events import Control
from millrace_apps.fraud.operations.backtest import (
    Report,
    backtest,
    columns_of,
    count_rows,
    read_declined,
    read_labels,
    read_table,
)
from millrace_apps.fraud.operations.governed_book import book_of
from millrace_apps.fraud.processes.rulebook import LANGUAGE, check_reach
from millrace_apps.fraud.settings import FraudSettings

_COLUMNS: Final = (
    *("rule", "action", "alerts", "a day", "new", "cards", "amount", "frauds", "precision", "recall"),
)


def _read(file: Path) -> list[Rule]:
    rules, problems = check_rules(LANGUAGE, file)
    if problems:
        raise UserError("\n".join(problems))
    return rules


def _words(about: Sequence[str]) -> Iterable[tuple[str, str, str]]:
    if about:
        raise UserError(f"fraud has one language, and none about '{about[0]}'")
    return LANGUAGE.describe()


def _warnings(rule: Rule, settings: FraudSettings) -> list[str]:
    from millrace.runtime.plans import settled
    from millrace_apps.fraud.app import app

    return check_reach(rule, settled(app, settings).features.stages)


def _what_if(rules: list[Rule], settings: FraudSettings, history: History) -> WhatIf:
    started = time.perf_counter()
    path = history.table or settings.storage.path("tables", "transactions")
    history.check(count_rows(path))
    read = read_table(path, sorted(columns_of(rules)), from_ms=None, until_ms=None)
    known = history.labels or own_labels(settings)
    # A table of its own without a label says nothing, so also not that there was no fraud.
    found = (None if known is None else read_labels(known)) or (None if history.labels is None else {})
    say, count = history.say, len(read)
    report = backtest(
        rules,
        read,
        found,
        declined=read_declined(Path(path).parent / "authorisations", rules),
        from_ms=_start(history.last_ms, read),
        progress=None if say is None else lambda done: say(done, count),
    )
    report.seconds = round(time.perf_counter() - started, 3)
    return _shown(report)


def own_labels(settings: FraudSettings) -> Path | None:
    """Return where the app's table of labels is; ``None``: there is none."""
    path = Path(settings.storage.path("tables", "labels"))
    return path if path.is_dir() else None


def _start(last_ms: int | None, table: Any) -> int | None:
    if last_ms is None:
        return None
    newest: int = table.column("event_time_ms")[len(table) - 1].as_py()
    return newest - last_ms + 1


def _shown(report: Report) -> WhatIf:
    title = f"{report.transactions:,} transactions, {report.days:.1f} days, {report.seconds:.1f} s"
    rows: list[tuple[object, ...]] = []
    for o in (*report.rules, report.together):
        shares = (f"{v:.1%}" if v is not None else "-" for v in (o.precision, o.recall))
        frauds = "-" if o.frauds is None else f"{o.frauds:,}"
        rows.append((o.rule, o.action, f"{o.alerts:,}", f"{o.alerts_per_day:,.1f}", f"{o.new:,}",
                     f"{o.cards:,}", f"{o.amount:,.2f}", frauds, *shares))  # fmt: skip
    return WhatIf(report, title, _COLUMNS, rows)


RULES: Final = AppRules(
    app="fraud",
    settings=FraudSettings,
    control=Control,
    language=lambda settings: settings.governance.law().language(),
    book=book_of,
    read=_read,
    words=_words,
    backtest=_what_if,
    warnings=_warnings,
)

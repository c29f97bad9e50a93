from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from millrace.rules import PublishRule, Rule, RuleError
from millrace_apps.fraud.contracts.events import Decision
from millrace_apps.fraud.operations.backtest import (
    BacktestError,
    backtest,
    columns_of,
    read_labels,
    read_table,
)
from millrace_apps.fraud.operations.cli import app
from tests.unit.apps.fraud.cases import DAY, START_MS
from tests.unit.apps.fraud.chain import ALL, Chain, some_life

RULES = [
    Rule("burst", "count(card, 1 d) >= 3 and amount > 5", "review"),
    Rule("shared", "distinct(card, device, 30 d) >= 3", "review"),
    Rule("tested", "small_then_large(1, 20, 1 d)", "review"),
    Rule("own", "zscore > 1 and terminals_24h >= 2 and kind == 'purchase'", "review"),
    Rule("pair", "count(card_terminal, 20 d) >= 5 or sum(amount, ip, 7 d) > 700", "review"),
    Rule("never", "amount > 1e6", "review"),
]


def rows_of(decisions: list[Decision]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(d) | {"windows": None} for d in decisions]


@pytest.fixture(scope="module")
def decided() -> list[Decision]:
    chain = Chain(ALL)
    chain.control(*(PublishRule(rule, 1, "ann", 0, "active") for rule in RULES))
    for tx in some_life(Random(8), 150):
        chain.send(tx)
    return chain.decisions


@pytest.fixture(scope="module")
def table(decided: list[Decision], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fraud") / "tables" / "transactions"
    path.parent.mkdir()
    rows = rows_of(decided)
    Random(1).shuffle(rows)
    write_deltalake(
        str(path), pa.Table.from_pylist([{k: v for k, v in r.items() if k != "windows"} for r in rows])
    )
    return path


def test_a_back_test_finds_what_the_stream_found_with_the_same_rules(
    decided: list[Decision], table: Path
) -> None:
    found: dict[str, list[Decision]] = defaultdict(list)
    for decision in decided:
        for name in decision.rules:
            found[name.partition("@")[0]].append(decision)
    report = backtest(RULES, read_table(table, sorted(columns_of(RULES)), from_ms=None, until_ms=None))
    assert report.transactions == len(decided)
    for outcome in report.rules:
        hits = found[outcome.rule]
        assert outcome.alerts == len(hits), outcome.rule
        assert outcome.amount == pytest.approx(sum(d.amount for d in hits))
        assert outcome.cards == len({d.card_id for d in hits})
        assert (outcome.alerts > 0) == (outcome.rule != "never")
    either = [d for d in decided if d.rules]
    assert report.together.alerts == len(either)
    assert report.together.precision is None


def test_precision_and_recall_are_those_of_the_labels(
    decided: list[Decision], table: Path, tmp_path: Path
) -> None:
    labels = {d.transaction_id: d.amount > 100 for d in decided if d.kind == "purchase"}
    read = read_table(table, [], from_ms=None, until_ms=None)
    rules = [Rule("large", "amount > 30", "review")]
    (outcome,) = backtest(rules, read, labels).rules
    above = [d for d in decided if d.amount > 30]
    frauds = [d for d in above if labels.get(d.transaction_id)]
    assert outcome.frauds == len(frauds)
    assert outcome.precision == pytest.approx(len(frauds) / len(above))
    assert outcome.recall == 1.0
    assert outcome.fraud_amount == pytest.approx(sum(d.amount for d in frauds))
    lines = [
        {"transaction_id": i, "is_fraud": f, "event_time_ms": n}
        for f, n in ((True, 1), (False, 2))
        for i in ("a", "b")
    ]
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(map(json.dumps, reversed(lines))))
    assert read_labels(path) == {"a": False, "b": False}  # the newest holds


def test_time_before_the_start_fills_windows_and_is_not_counted(table: Path) -> None:
    read = read_table(table, [], from_ms=None, until_ms=None)
    rules = [Rule("busy", "count(card, 30 d) >= 5", "review")]
    start = START_MS + 8 * DAY
    whole, later = backtest(rules, read), backtest(rules, read, from_ms=start)
    cut_off = backtest(rules, read_table(table, [], from_ms=start, until_ms=None))
    assert later.from_ms >= start
    assert whole.rules[0].alerts > later.rules[0].alerts > cut_off.rules[0].alerts


def test_what_cannot_be_tested_on_is_one_line(tmp_path: Path, table: Path) -> None:
    with pytest.raises(BacktestError, match="there is no table of transactions in"):
        read_table(tmp_path, [], from_ms=None, until_ms=None)
    other = tmp_path / "other"
    write_deltalake(str(other), pa.table({"x": [1]}))
    with pytest.raises(BacktestError, match="it has no column 'transaction_id'"):
        read_table(other, [], from_ms=None, until_ms=None)
    with pytest.raises(BacktestError, match="no transaction in that time"):
        read_table(table, [], from_ms=START_MS + 900 * DAY, until_ms=None)
    with pytest.raises(BacktestError, match="cannot be read"):
        read_labels(tmp_path / "none.jsonl")
    with pytest.raises(RuleError):
        backtest([Rule("bad", "amont > 1", "review")], read_table(table, [], from_ms=None, until_ms=None))


def test_the_command_writes_the_report_and_a_table(table: Path, tmp_path: Path) -> None:
    rules, out = tmp_path / "rules.json", tmp_path / "report.json"
    rules.write_bytes(msgspec.json.encode(RULES))
    command = ["rules", "backtest", str(rules), "--table", str(table), "--out", str(out), "--last", "10d"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    assert [r["rule"] for r in report["rules"]] == [r.id for r in RULES]
    assert 9 < report["days"] <= 10
    assert "burst" in result.output

"""Rules that ask for what labels have said: in the stream, in the back-test, in the commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from millrace.rules import PublishRule, Rule
from millrace_apps.fraud.contracts.events import Decision, Label, Transaction
from millrace_apps.fraud.operations.backtest import backtest, columns_of, read_table
from millrace_apps.fraud.operations.cli import app
from millrace_apps.fraud.processes.rulebook import FIELDS, LANGUAGE, check_reach
from millrace_apps.fraud.state.labels import LabelRisk, TerminalLabels
from tests.unit.apps.fraud.cases import DAY, HOUR, label, transaction
from tests.unit.apps.fraud.chain import Chain, a_life_with_labels, cut

CARD = Rule("card", "card_labels.frauds >= 1", "review", owner="ann")
TERMINAL = Rule("terminal", "terminal_labels.frauds + terminal_labels.frauds_high >= 2", "review")
RULES = [
    CARD,
    TERMINAL,
    Rule("share", "card_labels.frauds / card_labels.known > 0.5 and amount > 1", "review"),
    Rule("unsaid", "card_labels.known is missing", "review"),
    Rule("lately", "coalesce(terminal_labels.run_last_days, 90) < 2", "review"),
    Rule("window", "terminal_labels.risk_7d > 0", "review"),
]


def said_before(
    tx: Transaction, life: list[Transaction | Label], whose: Callable[[Transaction], str]
) -> list[bool]:
    """What the newest word was, when ``tx`` came, on each transaction before it of the same entity."""
    words: dict[str, tuple[int, str, bool]] = {}
    of = {e.transaction_id: e for e in life if isinstance(e, Transaction)}
    for word in life:
        if not isinstance(word, Label) or word.event_time_ms > tx.event_time_ms:
            continue
        spoken = of[word.transaction_id]
        if whose(spoken) == whose(tx) and spoken.event_time_ms < tx.event_time_ms:
            newer = (word.event_time_ms, word.label_id, word.is_fraud)
            words[word.transaction_id] = max(newer, words.get(word.transaction_id, newer))
    return [fraud for _, _, fraud in words.values()]


def decided(life: list[Transaction | Label], seed: int = 0) -> list[Decision]:
    """Decisions on a life by all rules."""
    chain = Chain(("terminal",))
    chain.control(*(PublishRule(rule, 1, "ann", 0, "active") for rule in RULES))
    for batch in cut(Random(seed), life):
        chain.send(*batch)
    assert not chain.dead
    return chain.decisions


def holding(decisions: list[Decision], rule: str) -> set[str]:
    return {d.transaction_id for d in decisions if f"{rule}@1" in d.rules}


def test_every_field_of_both_kinds_of_labels_can_be_asked_for_and_may_be_missing() -> None:
    for column, of in (("card_labels", LabelRisk), ("terminal_labels", TerminalLabels)):
        for name in of.__struct_fields__:
            field = FIELDS[f"{column}.{name}"]
            assert (field.type, field.nullable) == ("number", True)
            assert field.about
    told = [text for text, _, _ in LANGUAGE.describe()]
    assert "terminal_labels.risk_7d" in told
    assert "card_labels.risk_7d" not in told  # a card has no such windows


@pytest.mark.parametrize("seed", range(4))
def test_a_rule_holds_by_what_labels_had_said_when_the_transaction_came(seed: int) -> None:
    life = a_life_with_labels(Random(seed))
    decisions = decided(life, seed)
    of_card, of_terminal, share, unsaid = set(), set(), set(), set()
    for tx in life:
        if not isinstance(tx, Transaction):
            continue
        card = said_before(tx, life, lambda t: t.card_id)
        terminal = said_before(tx, life, lambda t: t.terminal_id)
        of_card |= {tx.transaction_id} if sum(card) >= 1 else set()
        of_terminal |= {tx.transaction_id} if sum(terminal) >= 2 else set()
        share |= {tx.transaction_id} if card and sum(card) / len(card) > 0.5 else set()
        unsaid |= {tx.transaction_id} if not card else set()
    assert holding(decisions, "card") == of_card
    assert holding(decisions, "terminal") == of_terminal
    assert holding(decisions, "share") == share
    assert holding(decisions, "unsaid") == unsaid
    assert of_card
    assert of_terminal
    assert unsaid


def test_the_card_alone_asks_for_its_own_labels_and_has_none_of_the_terminal() -> None:
    chain = Chain(())
    rules = (CARD, Rule("t", "not (terminal_labels.frauds >= 1)", "review"))
    chain.control(*(PublishRule(rule, 1, "ann", 0, "active") for rule in rules))
    first, second = transaction(0, 10), transaction(2 * DAY, 10)
    for event in (first, label(first, HOUR), second):
        chain.send(event)
    assert [d.rules for d in chain.decisions] == [[], ["card@1"]]
    (alert,) = chain.alerts
    assert alert.reasons[0].code == "RULE:card"
    assert alert.reasons[0].limit == 1.0
    assert len(alert.reasons) >= 3


def test_a_back_test_reads_what_labels_had_said_when_it_was_decided(tmp_path: Path) -> None:
    decisions = decided(a_life_with_labels(Random(2)))
    folder = tmp_path / "transactions"
    rows = [msgspec.to_builtins(d) | {"windows": None} for d in decisions]
    write_deltalake(
        str(folder), pa.Table.from_pylist([{k: v for k, v in r.items() if k != "windows"} for r in rows])
    )
    assert columns_of(RULES) == {"card_labels", "terminal_labels", "amount"}
    report = backtest(RULES, read_table(folder, sorted(columns_of(RULES)), from_ms=None, until_ms=None))
    for outcome in report.rules:
        assert outcome.alerts == len(holding(decisions, outcome.rule)), outcome.rule
        assert outcome.alerts > 0, outcome.rule


def test_a_back_test_on_a_table_from_before_labels_finds_nothing_said(tmp_path: Path) -> None:
    rows = [msgspec.to_builtins(d) for d in decided(a_life_with_labels(Random(2)))]
    left = ("windows", "card_labels", "terminal_labels")
    write_deltalake(
        str(tmp_path / "t"),
        pa.Table.from_pylist([{k: v for k, v in r.items() if k not in left} for r in rows]),
    )
    report = backtest(
        RULES, read_table(tmp_path / "t", sorted(columns_of(RULES)), from_ms=None, until_ms=None)
    )
    assert {o.rule: o.alerts for o in report.rules if o.alerts} == {"unsaid": len(rows)}


def test_a_rule_on_labels_of_a_terminal_without_a_stage_is_told(tmp_path: Path) -> None:
    assert check_reach(TERMINAL, ["terminal"]) == check_reach(CARD, []) == []
    assert check_reach(TERMINAL, ["device"]) == [
        "the stage 'terminal' does not run: terminal_labels.frauds is missing",
        "the stage 'terminal' does not run: terminal_labels.frauds_high is missing",
    ]
    path = tmp_path / "rules.yaml"
    path.write_text("- {id: a, when: 'terminal_labels.risk_7d > 0.2', action: review}")
    none = ["-s", "features.entities=none"]
    said = CliRunner().invoke(app, ["rules", "validate", str(path), *none]).output
    assert "warning: rule 'a': the stage 'terminal' does not run: terminal_labels.risk_7d is missing" in said
    there = (
        CliRunner().invoke(app, ["rules", "validate", str(path), "-s", "features.entities=terminal"]).output
    )
    assert "warning" not in there
    path.write_text("- {id: a, when: 'card_labels.risk_7d > 0.2', action: review}")
    refused = CliRunner().invoke(app, ["rules", "validate", str(path)])
    assert "there is no field 'card_labels.risk_7d'" in str(refused.exception)

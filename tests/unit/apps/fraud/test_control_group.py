"""Payments that would be blocked and are let through by chance, so that it comes out what they were."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import ValidationError

from millrace.experiments import share
from millrace.rules import ApproveRule, PublishRule, PutListEntry, Rule
from millrace.testing import TestDriver
from millrace_apps.fraud.app import app
from millrace_apps.fraud.processes.control_group import ControlGroup
from millrace_apps.fraud.settings import DecisionSettings, FraudSettings
from tests.unit.apps.fraud.cases import DAY, HOUR, START_MS, transaction
from tests.unit.apps.fraud.chain import Chain

#: Everything above 100 is blocked.
BLOCKS = (
    PublishRule(Rule("r", "amount > 100", "block", owner="ann"), 1, "ann", 0, "active"),
    ApproveRule("r", 1, "eve", 0),
)


def decided(
    action: Literal["approve", "review"], *, part: float = 0.1, entities: tuple[str, ...] = ()
) -> Chain:
    """A thousand payments that would be blocked, of as many cards, and some that would not."""
    chain = Chain(entities, control_group=ControlGroup(part, action))
    chain.control(*BLOCKS)
    chain.send(*(transaction(n, 200, id=f"tx-{n}", card=f"card-{n}") for n in range(1_000)))
    chain.send(*(transaction(n, 50, id=f"small-{n}", card=f"card-{n}") for n in range(100)))
    return chain


@pytest.mark.parametrize("entities", [(), ("terminal",)])
@pytest.mark.parametrize("action", ["approve", "review"])
def test_a_share_of_the_blocks_is_let_through_by_chance_and_recorded(
    action: Literal["approve", "review"], entities: tuple[str, ...]
) -> None:
    chain = decided(action, entities=entities)
    through = {d.transaction_id for d in chain.decisions if d.control_group}
    assert through == {f"tx-{n}" for n in range(1_000) if share(f"tx-{n}", "fraud-blocks") < 0.1}
    assert 70 < len(through) < 130
    for d in chain.decisions:
        would = "block" if d.amount > 100 else "approve"
        assert d.action == (action if d.control_group else would)
        assert d.rule_action == would  # what it would have been stays there, and so do its reasons
        assert bool(d.reasons) == (d.amount > 100)
    alerts = {(a.transaction_id, a.action) for a in chain.alerts}
    blocked = {(f"tx-{n}", "block") for n in range(1_000) if f"tx-{n}" not in through}
    assert alerts == blocked | ({(t, "review") for t in through} if action == "review" else set())


def test_a_replay_lets_the_same_ones_through() -> None:
    first, again = decided("approve"), decided("approve")
    assert first.decisions == again.decisions
    larger = {d.transaction_id for d in decided("approve", part=0.2).decisions if d.control_group}
    assert {d.transaction_id for d in first.decisions if d.control_group} < larger


def test_nobody_on_the_list_blocked_is_let_through() -> None:
    chain = Chain((), control_group=ControlGroup(0.2))
    chain.control(PutListEntry("blocked", "card:thief", START_MS + DAY, "ann", 0), *BLOCKS)
    chain.send(*(transaction(n, 200, card="thief") for n in range(300)))
    assert {(d.action, d.control_group) for d in chain.decisions} == {("block", False)}


def test_without_the_setting_nobody_is_let_through() -> None:
    assert FraudSettings().decisions.control() is None
    chain = Chain(())
    chain.control(*BLOCKS)
    chain.send(*(transaction(n, 200) for n in range(100)))
    assert {(d.action, d.control_group) for d in chain.decisions} == {("block", False)}


def test_the_setting_reaches_the_stage_that_decides() -> None:
    settings = FraudSettings.model_validate({"decisions": {"control_share": 0.2, "control_action": "review"}})
    target = TestDriver(app.topology(settings))
    target.broadcast(*BLOCKS)
    target.receive(*(transaction(n * HOUR, 200) for n in range(60)))
    found = {(d.action, d.control_group) for d in target.values()}
    assert found == {("block", False), ("review", True)}


@pytest.mark.parametrize("part", [-0.1, 0.21, 1])
def test_a_share_is_at_most_a_fifth(part: float) -> None:
    with pytest.raises(ValidationError):
        DecisionSettings(control_share=part)

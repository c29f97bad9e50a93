"""Who must agree with what lets payments pass, held by the stream itself; what changes would have done."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from millrace.errors import UserError
from millrace.rules import ApproveRule, PublishRule, PutListEntry, RemoveListEntry, Rule, SetRuleState
from millrace_apps.fraud.contracts.control_events import (
    ApproveChange,
    Propose,
    RejectChange,
    ResetThreshold,
    SetThreshold,
    UndoChange,
)
from millrace_apps.fraud.contracts.events import Decision
from millrace_apps.fraud.operations.governance import (
    COVERED,
    DEFAULTS,
    MAX_PROPOSALS,
    Governance,
    NotAgreed,
    take_control,
)
from millrace_apps.fraud.operations.governed_book import GovernedControlState, book_of
from millrace_apps.fraud.operations.what_if import what_if
from millrace_apps.fraud.settings import FraudSettings
from tests.unit.apps.fraud.cases import DAY, HOUR, START_MS, transaction
from tests.unit.apps.fraud.chain import Chain, some_life

ALL_OF_IT = Governance(frozenset(COVERED))
FAR = START_MS + 900 * DAY
#: What one person alone approved six payments of 9,000 with.
ALONE: dict[str, list[Any]] = {
    "an entry on allowed": [PutListEntry("allowed", "card:card-1", FAR, "eve", 1)],
    "a rule that approves": [
        PublishRule(Rule("mine", "card == 'card-1'", "approve", owner="eve"), 1, "eve", 1, "active")
    ],
    "thresholds": [SetThreshold("block_score", 1e9, "eve"), SetThreshold("review_score", 1e9, "eve"),
                   SetThreshold("model_block", 2, "eve"), SetThreshold("model_review", 2, "eve")],
    "a proposal of one's own": [
        Propose("p", [PutListEntry("allowed", "card:card-1", FAR, "eve", 1)], "eve", 1),
        ApproveChange("p", "eve", 2),
    ],
    "a rule that looks into a list": [
        PublishRule(Rule("vip", "listed(card, 'vip')", "approve", owner="ann"), 1, "ann", 1, "active"),
        ApproveRule("vip", 1, "bob", 2),
        PutListEntry("vip", "card-1", FAR, "eve", 3),
    ],
    "an undo of one's own": [
        Propose("q", [PutListEntry("allowed", "card:card-1", FAR, "eve", 1)], "eve", 1),
        UndoChange("q", "eve", 2),
    ],
}  # fmt: skip


class Sure:
    """A model that is sure of everything."""

    def score(self, seen: Any) -> list[tuple[float, str]]:
        return [(0.99, "1")] * len(seen)


def governed(law: Governance, *, scorer: Any = None) -> Chain:
    chain = Chain(("terminal",), scorer=scorer)
    for host in chain.chain.hosts:
        host.runner.process.governance = law  # type: ignore[attr-defined]
    return chain


def six_payments(chain: Chain) -> list[str]:
    chain.send(*(transaction(n * HOUR, 9_000.0, id=f"t{n}", card="card-1") for n in range(6)))
    return [d.action for d in chain.decisions]


def test_without_a_change_six_payments_of_9000_scored_99_are_blocked() -> None:
    assert six_payments(governed(ALL_OF_IT, scorer=Sure())) == ["block"] * 6


@pytest.mark.parametrize("how", ALONE)
def test_no_single_person_can_have_six_payments_of_9000_scored_99_approved(how: str) -> None:
    """F6: the stream refuses what lacks the second person, whoever writes to its topic."""
    chain = governed(ALL_OF_IT, scorer=Sure())
    chain.control(*ALONE[how])
    assert six_payments(chain) == ["block"] * 6
    if how != "a rule that approves":  # it waits in shadow: that is no mistake
        letters = [msgspec.json.decode(p) for p in chain.of("dead_letters")]
        assert letters
        assert {letter["stage"] for letter in letters} == {"broadcast"}


def test_two_persons_can() -> None:
    chain = governed(ALL_OF_IT, scorer=Sure())
    chain.control(ALONE["a proposal of one's own"][0], ApproveChange("p", "bob", 2))
    assert six_payments(chain) == ["approve"] * 6


@pytest.mark.parametrize("how", ALONE)
def test_as_it_comes_nobody_alone_lets_more_pass(how: str) -> None:
    """F6, by the settings that nobody has touched."""
    chain = governed(FraudSettings().governance.law(), scorer=Sure())
    chain.control(*ALONE[how])
    assert six_payments(chain) == ["block"] * 6


def test_as_it_comes_a_card_is_blocked_and_unblocked_by_one_person() -> None:
    made = book_of(FraudSettings())
    made.apply(PutListEntry("blocked", "card:a", FAR, "ann", 1))
    made.apply(RemoveListEntry("blocked", "card:a", "ann", 1))
    made.apply(SetThreshold("block_score", 0.5, "ann"))
    assert (made.lists["blocked"], dict(made.overrides)) == ({}, {"block_score": 0.5})


def test_nothing_needs_two_persons_where_that_is_said() -> None:
    law = FraudSettings(governance={"two_person": "none"}).governance.law()
    chain = governed(law, scorer=Sure())
    chain.control(*ALONE["a rule that approves"])
    chain.send(transaction(0, 9_000.0, card="card-1"))
    assert [d.rules for d in chain.decisions] == [["mine@1"]]


@pytest.mark.parametrize("text", ["thresholds,thresholds", "all", "none,allowed"])
def test_what_is_covered_is_named_or_refused(text: str) -> None:
    with pytest.raises(ValueError, match="name each of"):
        FraudSettings(governance={"two_person": text})


# -- one by one -----------------------------------------------------------------------------------------


def book(covers: str = ",".join(COVERED)) -> GovernedControlState:
    return book_of(FraudSettings(governance={"two_person": covers}))


@pytest.mark.parametrize(
    ("change", "needs"),
    [
        (SetThreshold("block_score", 0.9), True),
        (SetThreshold("block_score", 0.8), False),
        (SetThreshold("spree_busy", 100), True),
        (SetThreshold("small_amount", 2), False),
        (SetThreshold("min_history", 9), True),
        (ResetThreshold("review_score"), True),
        (ResetThreshold("block_score"), False),
        (PutListEntry("allowed", "card:a", FAR, "ann", 1), True),
        (RemoveListEntry("allowed", "card:a", "ann", 1), False),
        (PutListEntry("blocked", "card:b", FAR - 1, "ann", 1), True),
        (PutListEntry("blocked", "card:b", FAR + 1, "ann", 1), True),
        (RemoveListEntry("blocked", "card:b", "ann", 1), True),
        (RemoveListEntry("blocked", "card:c", "ann", 1), False),
        (PutListEntry("looked_for", "card:c", FAR, "ann", 1), False),
    ],
)
def test_what_lets_more_pass_needs_a_second_person(change: Any, *, needs: bool) -> None:
    made = book()
    made.overrides.put("review_score", 0.3)
    made.lists["blocked"] = {"card:b": FAR}
    if needs:
        with pytest.raises(NotAgreed, match="propose it"):
            made.apply(change)
        made.apply(Propose("p", [change], "ann", 1))
        assert made.proposals["p"].status == "waiting"
    else:
        made.apply(change)


@pytest.mark.parametrize("other", ["Ann", " ann", "ANN ", "\uff41nn", "ann\u00a0"])
def test_a_name_written_otherwise_is_no_second_person(other: str) -> None:
    made = book()
    made.apply(Propose("p", [SetThreshold("block_score", 0.9)], "ann", 1))
    with pytest.raises(NotAgreed, match="a second person must agree"):
        made.apply(ApproveChange("p", other, 2))
    rule = Rule("mine", "amount > 5", "approve", owner="ann")
    made.apply(PublishRule(rule, 1, "bob", 1, "active"))
    for name in (other, "Bob"):
        with pytest.raises(UserError, match="a second person must approve"):
            made.apply(ApproveRule("mine", 1, name, 2))
    made.apply(ApproveRule("mine", 1, "cat", 2))


@pytest.mark.parametrize(
    ("when", "action", "on_needs", "off_needs"),
    [
        ("listed(card, 'some')", "approve", True, False),
        ("amount > 5 and not listed(card, 'some')", "approve", False, True),
        ("amount > 5 and not listed(card, 'some')", "block", True, False),
        ("amount > 5 and listed(card, 'some')", "review", False, True),
        ("amount > 5 or (listed(card, 'some') == (amount > 9))", "block", True, True),
    ],
)
def test_a_list_by_which_rules_let_more_pass_needs_a_second_person(
    when: str, action: str, *, on_needs: bool, off_needs: bool
) -> None:
    """A value on a list that a blocking rule leaves out passes, though the list is not called allowed."""
    made = book()
    made.lists["some"] = {"card-2": FAR}
    made.apply(PublishRule(Rule("r", when, action, owner="ann"), 1, "ann", 1, "active"))  # type: ignore[arg-type]
    for change, needs in (
        (PutListEntry("some", "card-1", FAR, "eve", 1), on_needs),
        (RemoveListEntry("some", "card-2", "eve", 1), off_needs),
    ):
        if needs:
            with pytest.raises(NotAgreed, match="looks into some"):
                made.apply(change)
        else:
            made.apply(change)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_threshold_that_is_no_amount_is_refused(value: float) -> None:
    made = book("none")
    for event in (
        SetThreshold("block_score", value),
        Propose("p", [SetThreshold("block_score", value)], "a", 1),
    ):
        with pytest.raises(UserError, match="a threshold is a number from 0"):
            made.apply(event)
    assert (dict(made.overrides), dict(made.proposals)) == ({}, {})


def test_a_proposal_that_waits_until_its_entry_has_ended_cannot_be_agreed_with_and_is_rejected() -> None:
    made = book()
    made.apply(Propose("p", [PutListEntry("allowed", "card:a", START_MS, "ann", 1)], "ann", 1))
    with pytest.raises(UserError, match="until_ms is past"):
        take_control(ApproveChange("p", "bob", 2), made.kept, made.law, now_ms=START_MS)
    take_control(RejectChange("p", "bob", 3), made.kept, made.law, now_ms=START_MS)
    assert (made.proposals["p"].status, made.lists) == ("rejected", {})


def test_a_block_does_not_end_a_longer_one() -> None:
    """A verdict blocks a card for a month that somebody has blocked for a year."""
    made = book("none")
    made.apply(PutListEntry("blocked", "card:a", FAR, "ann", 1))
    with pytest.raises(NotAgreed, match="blocked for longer already"):
        made.apply(PutListEntry("blocked", "card:a", FAR - 1, "eva", 2, "case case-1 is fraud"))
    assert made.lists["blocked"] == {"card:a": FAR}
    made.apply(PutListEntry("blocked", "card:a", FAR + 1, "eva", 3))
    made.apply(Propose("p", [PutListEntry("blocked", "card:a", FAR - 1, "eva", 4)], "eva", 4))
    assert made.lists["blocked"] == {"card:a": FAR - 1}
    with pytest.raises(NotAgreed):
        take_control(
            PutListEntry("blocked", "card:a", FAR - 2, "eva", 5), made.kept, made.law, now_ms=FAR - 5
        )
    made.apply(RemoveListEntry("blocked", "card:a", "eva", 5))
    made.apply(PutListEntry("blocked", "card:a", FAR - 2, "eva", 6))
    assert made.lists["blocked"] == {"card:a": FAR - 2}


def test_an_undo_after_an_entry_has_ended_takes_it_off_and_no_undo_is_undone() -> None:
    made = book("none")
    made.apply(PutListEntry("blocked", "card:a", START_MS, "ann", 1))
    made.apply(Propose("p", [PutListEntry("blocked", "card:a", FAR, "ann", 1)], "ann", 1))
    take_control(UndoChange("p", "bob", 2), made.kept, made.law, now_ms=START_MS)
    assert (made.proposals["p"].status, made.lists["blocked"]) == ("undone", {})
    with pytest.raises(NotAgreed, match="is undone"):
        take_control(UndoChange("p", "bob", 3), made.kept, made.law, now_ms=START_MS)


def test_when_five_hundred_proposals_wait_another_is_refused_and_settled_ones_make_room() -> None:
    made = book("thresholds")
    for n in range(MAX_PROPOSALS):
        made.apply(Propose(f"p{n}", [SetThreshold("block_score", 0.9)], "ann", n))
    one_more = Propose("more", [SetThreshold("block_score", 0.95)], "bob", 0)
    with pytest.raises(NotAgreed, match="500 proposals wait"):
        made.apply(one_more)
    made.apply(RejectChange("p7", "bob", 1))
    made.apply(one_more)
    assert len(made.proposals) == MAX_PROPOSALS
    assert "p7" not in made.proposals


def test_a_proposal_is_approved_by_somebody_else_and_undone_to_what_was_before() -> None:
    made = book("thresholds,allowed,unblock")
    made.apply(SetThreshold("block_score", 0.7))
    made.lists["blocked"] = {"card:b": FAR}
    changes = [SetThreshold("block_score", 0.9), SetThreshold("model_block", 0.99),
               RemoveListEntry("blocked", "card:b", "ann", 1)]  # fmt: skip
    made.apply(Propose("p", changes, "ann", 1, "fewer wrong blocks"))
    assert (dict(made.overrides), made.lists["blocked"]) == ({"block_score": 0.7}, {"card:b": FAR})
    with pytest.raises(NotAgreed, match="a second person must agree"):
        made.apply(ApproveChange("p", "ann", 2))
    made.apply(ApproveChange("p", "bob", 2))
    assert (dict(made.overrides), made.lists["blocked"]) == ({"block_score": 0.9, "model_block": 0.99}, {})
    made.apply(UndoChange("p", "cat", 3))  # lets less pass: nobody has to agree
    assert (dict(made.overrides), made.lists["blocked"]) == ({"block_score": 0.7}, {"card:b": FAR})
    assert made.proposals["p"].status == "undone"


def test_an_undo_that_lets_more_pass_waits_for_a_second_person_too() -> None:
    made = book("thresholds")
    made.apply(Propose("p", [SetThreshold("block_score", 0.5)], "ann", 1))
    assert made.overrides == {"block_score": 0.5}  # stricter: held at once
    made.apply(UndoChange("p", "ann", 2))
    assert (made.proposals["p"].status, dict(made.overrides)) == ("undoing", {"block_score": 0.5})
    with pytest.raises(NotAgreed):
        made.apply(ApproveChange("p", "ann", 3))
    made.apply(ApproveChange("p", "bob", 3))
    assert (made.proposals["p"].status, dict(made.overrides)) == ("undone", {})


def test_what_was_changed_since_is_not_undone() -> None:
    made = book("none")
    made.apply(Propose("p", [SetThreshold("block_score", 0.5)], "ann", 1))
    made.apply(SetThreshold("block_score", 0.6))
    with pytest.raises(NotAgreed, match="block_score was changed since p"):
        made.apply(UndoChange("p", "ann", 2))


def test_a_proposal_holds_together_or_not_at_all() -> None:
    made = book("none")
    bad = Propose("p", [SetThreshold("block_score", 0.5), SetThreshold("no_such", 1)], "ann", 1)
    with pytest.raises(UserError, match="there is no threshold"):
        made.apply(bad)
    assert (dict(made.overrides), dict(made.proposals)) == ({}, {})


def test_a_rejected_proposal_changes_nothing_and_repeats_are_refused() -> None:
    made = book("thresholds")
    one = Propose("p", [SetThreshold("block_score", 0.9)], "ann", 1)
    made.apply(one)
    made.apply(RejectChange("p", "bob", 2))
    for event in (one, ApproveChange("p", "bob", 3), UndoChange("p", "bob", 3), RejectChange("p", "bob", 3)):
        with pytest.raises(NotAgreed):
            made.apply(event)
    assert dict(made.overrides) == {}


# -- many random histories -----------------------------------------------------------------------------------

PEOPLE = ("ann", "bob", "eve")


def some_change(random: Random) -> Any:
    by = random.choice(PEOPLE)
    kind = random.randrange(4)
    if kind == 0:
        return SetThreshold(
            random.choice(["block_score", "spree_busy"]), random.choice([0.5, 1.0, 200.0]), by
        )
    if kind == 1:
        return ResetThreshold(random.choice(["block_score", "spree_busy"]), by)
    name, entry = random.choice(["allowed", "blocked"]), random.choice(["card:a", "card:b"])
    if kind == 2:
        return PutListEntry(name, entry, random.choice([FAR, FAR + 1]), by, 1)
    return RemoveListEntry(name, entry, by, 1)


def some_event(random: Random, name: str, by: str, at: int) -> Any:
    kind = random.randrange(5)
    if kind == 0:
        return some_change(random)
    if kind == 1:
        return Propose(name, [some_change(random) for _ in range(random.randrange(1, 4))], by, at)
    return (ApproveChange, UndoChange, RejectChange)[kind - 2](name, by, at)


def passes(made: GovernedControlState) -> dict[str, float]:
    """What may pass, as numbers that grow with it."""
    value = {
        name: made.overrides.get(name, getattr(DEFAULTS, name)) for name in ("block_score", "spree_busy")
    }
    found = {"block": value["block_score"], "busy": -value["spree_busy"]}
    for card in ("card:a", "card:b"):
        found[f"allowed {card}"] = made.lists.get("allowed", {}).get(card, 0)
        found[f"blocked {card}"] = -made.lists.get("blocked", {}).get(card, 0)
    return found


def test_in_ten_thousand_histories_more_passes_only_by_two_persons_and_undo_brings_back() -> None:
    """What may pass grows only where somebody agrees with what somebody else asked for."""
    random, grown, undone = Random(6), 0, 0
    law = "thresholds,allowed,unblock"
    for _ in range(10_000):
        made, asked, before = book(law), {}, {}  # type: ignore[var-annotated]
        for step in range(random.randrange(4, 14)):
            name, by = f"p{random.randrange(4)}", random.choice(PEOPLE)
            event = some_event(random, name, by, step)
            was = passes(made)
            values = (dict(made.overrides), {k: dict(v) for k, v in made.lists.items()})
            status = made.proposals[name].status if name in made.proposals else ""
            try:
                made.apply(event)
            except UserError:
                assert passes(made) == was
                continue
            now = passes(made)
            if isinstance(event, Propose | UndoChange):
                asked[name] = by
            more = any(now[k] > was[k] for k in now)
            if more:
                assert isinstance(event, ApproveChange), event
                assert event.by != asked[name]
                grown += 1
            if name not in made.proposals or made.proposals[name].status == status:
                continue
            if made.proposals[name].status == "applied" and status in ("", "waiting"):
                before[name] = values
            elif made.proposals[name].status == "undone":
                undone += 1
                touched = set(made.proposals[name].before)
                overrides, lists = before[name]
                for place in touched:
                    of, sign, entry = place.partition("/")
                    if sign:
                        assert made.lists.get(of, {}).get(entry) == lists.get(of, {}).get(entry)
                    else:
                        assert made.overrides.get(of) == overrides.get(of)
    assert grown > 500
    assert undone > 500


def test_proposals_outlive_a_restart() -> None:
    chain = governed(ALL_OF_IT, scorer=Sure())
    chain.control(ALONE["a proposal of one's own"][0])
    chain.restart()
    for host in chain.chain.hosts:
        host.runner.process.governance = ALL_OF_IT  # type: ignore[attr-defined]
    chain.control(ApproveChange("p", "bob", 2))
    assert six_payments(chain) == ["approve"] * 6


# -- what changes would have done ----------------------------------------------------------------------


class Half:
    """A model whose probability hangs on the amount."""

    def score(self, seen: Any) -> list[tuple[float, str]]:
        return [(min(1.0, s.tx.amount / 200), "1") for s in seen]


def decided(seed: int, *control: Any) -> list[Decision]:
    random = Random(seed)
    life = [msgspec.structs.replace(t, transaction_id=f"t-{n}") for n, t in enumerate(some_life(random, 400))]
    chain = Chain(("terminal", "device"), scorer=Half())
    chain.control(
        PublishRule(Rule("odd", "amount > 60 and amount < 80", "review", owner="ann"), 1, "ann", 1, "active"),
        PublishRule(Rule("ok", "amount > 40 and amount < 65", "approve", owner="ann"), 1, "ann", 1, "active"),
        ApproveRule("ok", 1, "bob", 1),
        *control,
    )
    chain.send(*life)
    assert chain.of("dead_letters") == []
    return chain.decisions


def table_of(decisions: list[Decision], folder: Path) -> Path:
    rows = [{k: v for k, v in msgspec.to_builtins(d).items() if k != "windows"} for d in decisions]
    write_deltalake(str(folder / "transactions"), pa.Table.from_pylist(rows))
    return folder / "transactions"


CHANGES: dict[str, list[Any]] = {
    "scores": [SetThreshold("review_score", 0.2), SetThreshold("block_score", 0.6)],
    "the model's": [SetThreshold("model_review", 0.1), SetThreshold("model_block", 0.4)],
    "reasons": [SetThreshold("deviation_ratio", 1.1), SetThreshold("deviation_sigmas", 0.1),
                SetThreshold("min_history", 2), SetThreshold("new_ratio", 0.5),
                SetThreshold("device_cards", 1)],
    "lists": [PutListEntry("blocked", "terminal:t-1", FAR, "ann", 1),
              PutListEntry("allowed", "card:c-1", FAR, "ann", 1)],
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_would_have_done_is_what_the_stream_does_with_them(what: str, tmp_path: Path) -> None:
    now, then = decided(3), decided(3, *CHANGES[what])
    frauds = {d.transaction_id for d in now[::7]}
    made = book("none")
    found = what_if(CHANGES[what], made.kept, table_of(now, tmp_path), frauds, approving={"ok@1"})
    for counts, decisions in ((found.now, now), (found.then, then)):
        by = {a: [d for d in decisions if d.action == a] for a in ("approve", "review", "block")}
        assert (counts.blocks, counts.reviews) == (len(by["block"]), len(by["review"]))
        assert counts.block_amount == pytest.approx(sum(d.amount for d in by["block"]))
        assert (counts.frauds_blocked, counts.frauds_reviewed, counts.frauds_passed) == tuple(
            sum(d.transaction_id in frauds for d in by[a]) for a in ("block", "review", "approve")
        )
    assert found.now != found.then
    assert found.recomputed == (what == "reasons")
    assert dict(made.overrides) == {}  # looking changes nothing


def test_only_the_last_days_are_looked_at_where_that_is_asked_for(tmp_path: Path) -> None:
    now = decided(3)
    table, newest = table_of(now, tmp_path), max(d.event_time_ms for d in now)
    found = what_if(CHANGES["scores"], book("none").kept, table, last_ms=DAY)
    assert found.decisions == sum(d.event_time_ms > newest - DAY for d in now)


def test_a_rule_is_set_active_by_one_and_approved_by_another() -> None:
    made = book("approve_rules")
    rule = Rule("mine", "amount < 5", "approve", owner="eve")
    made.apply(PublishRule(rule, 1, "eve", 1, "draft"))
    made.apply(SetRuleState("mine", 1, "active", "bob", 2))
    with pytest.raises(UserError, match="second person"):
        made.apply(ApproveRule("mine", 1, "eve", 3))
    made.apply(ApproveRule("mine", 1, "cat", 3))
    assert made.entry("mine").versions[0].state_at(FAR) == "active"

"""The decision stage: reasons, rules, lists and a model's score become one decision.

In order of weight: the list ``blocked`` blocks, the list ``allowed`` approves, then the strictest of what
rules, the built-in reasons and the model say. A rule with the action ``approve`` takes back what built-in
reasons say, not what another rule, a list or the model says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import astuple

from millrace.rules import Match
from millrace_apps.fraud.contracts.events import Action, Alert, Decision, Reason, Transaction
from millrace_apps.fraud.processes.billing import billed
from millrace_apps.fraud.processes.control_group import ControlGroup
from millrace_apps.fraud.processes.reasons import comparisons, entity_reasons, ring_of, score_of
from millrace_apps.fraud.processes.rulebook import Facts, Rules, Windows, windows_of
from millrace_apps.fraud.processes.scorer import Observed
from millrace_apps.fraud.processes.scoring import Thresholds, action_for, own_reasons
from millrace_apps.fraud.processes.windows import CardWindows

#: Raised when a feature comes to mean something else.
FEATURES_VERSION: Final = "3"
#: Lists that need no rule; their values are ``kind:value``, for example ``card:card-1``.
BLOCKED: Final = "blocked"
ALLOWED: Final = "allowed"
#: So many fields of a transaction stand at the beginning of a decision.
_TOLD_FIRST: Final = 9
#: From here on its fields stand near the end …
_TOLD_LAST: Final = 18
#: … up to here: what was billed stands at the very end, as far as it is known.
_TOLD: Final = 20
#: What labels said, of what is known last: the entities of later versions stand at the end.
_LABELS: Final = 2
#: So many of the card's own features stand behind them; the others at the end.
_OWN_FIRST: Final = 15
_STRICTNESS: Final[dict[Action, int]] = {"approve": 0, "review": 1, "block": 2}

Lists = Mapping[str, Mapping[str, int]]


def decide(
    seen: Observed,
    thresholds: Thresholds,
    rules: Rules,
    lists: Lists,
    model: tuple[float, str] | None,
    challenger: tuple[float, str] | None = None,
    control: ControlGroup | None = None,
) -> tuple[Decision, Alert | None]:
    """Decide on a transaction.

    Args:
        seen: All that is known.
        thresholds: Those in force.
        rules: Those that are kept.
        lists: List → value → event time until which it is on it, ms.
        model: Probability and version of the model; None: there is none.
        challenger: The same of a model in shadow, which is recorded and has no effect.
        control: Who is let through though it would be blocked; None: nobody.

    Returns:
        The decision, and the alert where somebody must look.
    """
    # This runs for every transaction, most of which have no reason, no rule that holds and no model.
    tx, own, card, _, terminal, device, _, windows, *_ = seen
    purchase = tx.kind == "purchase"
    reasons: list[Reason] = []
    score = 0.0
    action: Action = "approve"
    if purchase:
        reasons = own_reasons(own, billed(tx) or 0.0, thresholds)
        reasons += entity_reasons(tx, own, card, terminal, device, thresholds)
        if reasons:
            reasons.sort(key=_by_weight)
            score = score_of(reasons)
            action = action_for(score, thresholds)
    hits: list[Match] = []
    shadow: list[Match] = []
    if rules.version:
        if not isinstance(windows, Windows):
            windows = Windows(windows)
        hits, shadow = _ask(seen, windows, rules, lists, score, model)
    rule_action: Action = "approve"
    if hits:
        rule_action = _strictest([_action(m) for m in hits])
        if any(m.rule.action == "approve" for m in hits):
            action = "approve"
    by_model: Action = "approve"
    if model is not None and purchase:
        by_model = "block" if model[0] >= thresholds.model_block else "review"
        by_model = by_model if model[0] >= thresholds.model_review else "approve"
    listed: list[Reason] = []
    if hits or model is not None or lists:
        action, listed = _by_list(tx, lists, _strictest([action, rule_action, by_model]))
    if action != "approve":
        told = [*listed, *(_rule_reason(m, tx) for m in hits if m.rule.action != "approve")]
        if by_model != "approve" and model is not None:
            limit = thresholds.model_block if by_model == "block" else thresholds.model_review
            told.append(Reason("MODEL", model[0], 0.0, limit, 0.0))
        reasons = [*told, *reasons]
        reasons += comparisons(tx, own, card, reasons)
    let_through = action == "block" and control is not None and not listed and control.has(tx.transaction_id)
    if let_through and control is not None:
        action = control.action
    decision = _decision(
        seen, windows, score, action, reasons, hits, shadow, rules.version, rule_action, model, challenger,
        let_through,
    )  # fmt: skip
    return decision, None if action == "approve" else _alert(decision, thresholds)


def _ask(
    seen: Observed,
    windows: Windows,
    rules: Rules,
    lists: Lists,
    score: float,
    model: tuple[float, str] | None,
) -> tuple[list[Match], list[Match]]:
    """Return the rules that hold: those in force, those in shadow."""
    in_force = rules.in_force.at(seen.tx.event_time_ms)
    if not len(in_force):
        return [], []
    entities = (seen.account, seen.terminal, seen.device, seen.address)
    probability = None if model is None else model[0]
    said = (seen.card_labels, seen.terminal_labels)
    if isinstance(windows, CardWindows) and (first := in_force.first):
        windows.fill(first)
    facts = Facts(seen.tx, seen.own, seen.card, entities, windows, lists, score, probability, *said)
    found = in_force.matches(facts)
    return [m for m in found if not m.shadow], [m for m in found if m.shadow]


def _by_weight(reason: Reason) -> float:
    return -reason.weight


def _action(match: Match) -> Action:
    return match.rule.action  # type: ignore[return-value] # one of the language's actions


def _strictest(actions: Sequence[Action]) -> Action:
    return max(actions, key=_STRICTNESS.__getitem__, default="approve")


def _by_list(tx: Transaction, lists: Lists, action: Action) -> tuple[Action, list[Reason]]:
    if not lists:
        return action, []
    values = [f"card:{tx.card_id}", f"terminal:{tx.terminal_id}"]
    values += [
        f"{kind}:{value}"
        for kind, value in (("device", tx.device_id), ("ip", tx.ip), ("account", tx.account_id))
        if value
    ]
    for name, then in ((BLOCKED, "block"), (ALLOWED, "approve")):
        entries = lists.get(name)
        if entries and any(entries.get(value, 0) > tx.event_time_ms for value in values):
            if then == "block":
                return "block", [Reason("BLOCK_LIST", 1.0, 0.0, 1.0, 0.0)]
            return "approve", []
    return action, []


def _rule_reason(match: Match, tx: Transaction) -> Reason:
    limit = next((t.constant for t in match.condition.tests if t.sign in (">", ">=")), 0.0)
    return Reason(f"RULE:{match.rule.reason or match.rule.id}", billed(tx) or 0.0, 0.0, float(limit), 0.0)


def _alert(d: Decision, thresholds: Thresholds) -> Alert:
    return Alert(
        card_id=d.card_id,
        transaction_id=d.transaction_id,
        event_time_ms=d.event_time_ms,
        amount=d.amount,
        currency=d.currency,
        score=d.score,
        action=d.action,
        reasons=d.reasons,
        thresholds=thresholds.as_dict(),
        rules=d.rules,
        rules_version=d.rules_version,
        model_score=d.model_score,
        model_version=d.model_version,
        features_version=d.features_version,
        terminal_id=d.terminal_id,
        device_id=d.device_id,
        ip=d.ip,
        country=d.country,
        billing_amount=d.billing_amount,
        billing_currency=d.billing_currency,
        ring=ring_of(d.reasons, device_id=d.device_id, terminal_id=d.terminal_id),
    )


def _named(matches: list[Match]) -> list[str]:
    return [f"{m.rule.id}@{m.version}" for m in matches]


def _told(windows: Mapping[str, float | None], held: Sequence[Match]) -> dict[str, float]:
    """Return what the windows of rules that hold gave.

    Which others were computed on the way hangs on the index over the rules, and so on what a worker has seen.
    """
    texts = sorted({text for match in held for text in windows_of(match.condition.uses)})
    return {text: value for text in texts if (value := windows[text]) is not None}


def _decision(
    seen: Observed,
    windows: Mapping[str, float | None],
    score: float,
    action: Action,
    reasons: list[Reason],
    hits: list[Match],
    shadow: list[Match],
    rules_version: str,
    rule_action: Action,
    model: tuple[float, str] | None,
    challenger: tuple[float, str] | None,
    control_group: bool,
) -> Decision:
    # By position, and in runs of fields that stand in the same order (a test holds them so): one by one, by
    # name, it takes twice as long.
    tx, own, card, account, terminal, device, address, _, *rest = seen
    of_transaction = astuple(tx)
    amount, rate = (tx.billing_amount, tx.billing_rate) if tx.billing_currency else (tx.amount, 1.0)
    return Decision(  # type: ignore[call-arg,misc] # mypy does not know how many the starred ones are
        *of_transaction[:_TOLD_FIRST],
        *astuple(own)[:_OWN_FIRST],
        score,
        action,
        reasons,
        *of_transaction[_TOLD_FIRST:_TOLD_LAST],
        card,
        account,
        terminal,
        device,
        address,
        _told(windows, [*hits, *shadow]) if hits or shadow else {},
        _named(hits) if hits else [],
        _named(shadow) if shadow else [],
        rules_version,
        rule_action,
        None if model is None else model[0],
        None if model is None else model[1],
        FEATURES_VERSION,
        None if challenger is None else challenger[0],
        None if challenger is None else challenger[1],
        *rest[:_LABELS],
        control_group,
        own.excluded_1m,
        own.excluded_1h,
        own.excluded_24h,
        *of_transaction[_TOLD_LAST:_TOLD],
        *rest[_LABELS:],
        billing_amount=amount,
        billing_currency=tx.billing_currency or tx.currency,
        billing_rate=rate,
    )

"""The stages of account, terminal, device, IP address, customer and merchant, each keyed by its entity.

What comes from the stage before is on time by definition; a card's transactions come in its order,
those of an entity in the order in which batches bring them. A transaction sees what was handled before it
and is not later in event time, as in the card's stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from millrace import Context, KeyedProcess, arrival, days, value_state
from millrace.errors import UserError
from millrace.parts.lookback import link_of
from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.fraud.processes.billing import billed, cents_of
from millrace_apps.fraud.processes.cards import CardMonitor, CardStage
from millrace_apps.fraud.processes.control_group import ControlGroup
from millrace_apps.fraud.processes.decision_stage import DecisionStage
from millrace_apps.fraud.processes.entity import look_at
from millrace_apps.fraud.processes.scorer import Scorer
from millrace_apps.fraud.processes.stages import (
    Enriched,
    Forgotten,
    Labelled,
    LaterStage,
    Passed,
    Responded,
    Stage,
)
from millrace_apps.fraud.processes.window_functions import ENTITIES, compute, without_amounts
from millrace_apps.fraud.state.history import HORIZON_MS, MAX_KEPT, History, look_of
from millrace_apps.fraud.state.known_labels import LabelRules, TerminalLog, Word
from millrace_apps.fraud.state.profile import HALF_LIFE_DAYS


class _Entity(LaterStage):
    """What is kept of an entity, and what is known of it at each transaction.

    Attributes:
        entity: Its name in rules.
        found: The field of the record that it fills.
        of_card: The feature of a card that counts its purchases with the entity; empty: there is none.
    """

    entity: ClassVar[str] = ""
    found: ClassVar[str] = ""
    of_card: ClassVar[str] = ""

    order = arrival(in_order_per_key=True)
    object_reuse = True
    history = value_state(History, ttl=days(31))

    def process(self, event: Passed, ctx: Context) -> None:
        """Find out what is known of the entity at one transaction."""
        if isinstance(event, Forgotten):
            ctx.emit(event)
            return
        if not isinstance(event, Enriched):
            self.update_labels(event, ctx)
            return
        tx = event.tx
        if getattr(tx, ENTITIES[self.entity]) is not None:
            event = replace(event, **self._look(event, tx, ctx))
        ctx.emit(event)

    def on_late(self, event: Passed, ctx: Context) -> None:
        """Handle a label: it has the time of its transaction, which is past."""
        self.process(event, ctx)

    def update_labels(self, event: Labelled | Responded, ctx: Context) -> None:
        """Hand on what has become known of a transaction."""
        ctx.emit(event)

    def _look(self, event: Enriched, tx: Transaction, ctx: Context) -> dict[str, Any]:
        """Return the fields of the record that are known here."""
        found: dict[str, Any] = {}
        cents, purchase = cents_of(tx), tx.kind == "purchase"
        bought = cents if purchase else 0
        history = self.history.value
        asked = self.rules_now().asked.get(self.entity)
        if asked:
            if purchase and not cents:
                asked, bought = without_amounts(asked), 1
            windows = dict(event.windows)
            compute(asked, windows, look_of(history, ctx.event_time), tx, bought)
            found["windows"] = tuple(windows.items())
        if history is None:
            history = History(since=ctx.event_time)
        elif ctx.event_time < history.since:
            history.since = ctx.event_time
        history.balance += -cents if purchase else cents
        card = link_of(tx.card_id)
        if purchase:
            history.add(ctx.event_time, cents, (card,))
        history.forget(ctx.watermark, MAX_KEPT)
        self.history.value = history
        of_card = 0
        if self.of_card and purchase and not event.card.truncated:
            of_card = (getattr(event.card, self.of_card) or 0) + 1
        found[self.found] = look_at(history, ctx.event_time, card, of_card)
        return found


class AccountStage(_Entity, KeyedProcess[Passed, Passed]):
    """The account that pays: its running balance, and all its cards together."""

    name, entity, found = "AccountMonitor", "account", "account"


class TerminalStage(_Entity, KeyedProcess[Passed, Passed]):
    """The terminal: how busy it is, with how many cards, and what labels have said of its purchases.

    Args:
        rules: How labels are read.
        tells: Whether a later stage wants labels.
    """

    name, entity, found = "TerminalMonitor", "terminal", "terminal"
    of_card = "terminal_before"

    # A label may speak of what is long past, and what it writes lives from that time on.
    labelled = value_state(TerminalLog, ttl=days(180))

    def __init__(self, rules: LabelRules | None = None, *, tells: bool = False) -> None:
        super().__init__()
        self._labels, self._tells = rules or LabelRules(), tells

    def _look(self, event: Enriched, tx: Transaction, ctx: Context) -> dict[str, Any]:
        kept = self.labelled.value or TerminalLog()
        kept.settle(ctx.watermark)
        labels = kept.counts(ctx.event_time, self._labels)
        if tx.kind == "purchase":
            count, cents = look_of(self.history.value, ctx.event_time).numbers(HORIZON_MS)
            high = self._labels.is_high(billed(tx) or 0.0, event.own.median_before, count, cents / 100)
            kept.add(ctx.event_time, high=high)
        self.labelled.value = kept
        return {**super()._look(event, tx, ctx), "terminal_labels": labels}

    def update_labels(self, event: Labelled | Responded, ctx: Context) -> None:
        """Learn a label, or the response to a payment."""
        kept = self.labelled.value or TerminalLog()
        if isinstance(event, Responded):
            kept.record(Word.of_response(event.response), ctx.watermark)
        else:
            kept.record(Word.of(event.label), ctx.watermark)
            if self._tells:
                ctx.emit(event)
        self.labelled.value = kept


class DeviceStage(_Entity, KeyedProcess[Passed, Passed]):
    """The customer's device: who shares it."""

    name, entity, found = "DeviceMonitor", "device", "device"
    of_card = "device_before"


class AddressStage(_Entity, KeyedProcess[Passed, Passed]):
    """The IP address: who shares it."""

    name, entity, found = "AddressMonitor", "ip", "address"
    of_card = "ip_before"


class CustomerStage(_Entity, KeyedProcess[Passed, Passed]):
    """The customer: all cards and accounts of one person together."""

    name, entity, found = "CustomerMonitor", "customer", "customer"


class MerchantStage(_Entity, KeyedProcess[Passed, Passed]):
    """The merchant: all terminals of one together."""

    name, entity, found = "MerchantMonitor", "merchant", "merchant"


_STAGES: dict[str, type[_Entity]] = {
    "account": AccountStage,
    "terminal": TerminalStage,
    "device": DeviceStage,
    "ip": AddressStage,
    "customer": CustomerStage,
    "merchant": MerchantStage,
}


def stages(
    entities: Sequence[str],
    scorer: Scorer | None = None,
    challenger: Scorer | None = None,
    labels: LabelRules | None = None,
    *,
    measures: bool = False,
    control_group: ControlGroup | None = None,
    half_life: int = HALF_LIFE_DAYS,
) -> tuple[Stage, list[tuple[str, Stage]]]:
    """Return the first stage, and for each further one the field that is its key, and the stage.

    Args:
        entities: Which entities have a stage, in this order: of account, terminal, device, ip, customer,
            merchant.
        scorer: A model; None: rules only.
        challenger: A model in shadow, beside the other.
        labels: How the terminal's stage reads labels.
        measures: Whether the decision stage keeps scores, to be judged by the labels that come later.
        control_group: Who is let through though it would be blocked.
        half_life: Half-life of what is usual for a card, days.

    Raises:
        UserError: There is no such entity, or it is named twice.

    >>> first, rest = stages(["terminal", "device"])
    >>> [first.name, *(f"{key}: {stage.name}" for key, stage in rest)]
    ['CardMonitor', 'terminal_key: TerminalMonitor', 'device_key: DeviceMonitor', 'card_key: DecisionDesk']
    """
    unknown = [e for e in entities if e not in _STAGES]
    if unknown or len(set(entities)) < len(entities):
        known = ", ".join(_STAGES)
        raise UserError(f"features.entities: {', '.join(entities)}: name each of {known} at most once")
    if not entities and scorer is None and not measures:
        return CardMonitor(control_group=control_group, half_life=half_life), []
    rest: list[tuple[str, Stage]] = []
    for entity in entities:
        stage = TerminalStage(labels, tells=measures) if entity == "terminal" else _STAGES[entity]()
        rest.append((f"{entity}_key", stage))
    decision = DecisionStage(scorer, challenger, measures=measures, control_group=control_group)
    responds = "terminal" in entities
    first = CardStage(tells=measures or responds, responds=responds, half_life=half_life)
    return first, [*rest, ("card_key", decision)]

"""The stages of account, terminal, device and IP address, each keyed by its entity, and the desk.

What comes from the stage before is on time by definition; a card's transactions come in its order,
those of an entity in the order in which batches bring them. A transaction sees what was handled before it
and is not later in event time, as in the card's stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from apps.fraud.entity import look_at
from apps.fraud.events import Decision, to_cents
from apps.fraud.feature_types import EntityFeatures
from apps.fraud.history import History, Look, link_of
from apps.fraud.process import CardMonitor, CardStage
from apps.fraud.rulebook import ENTITIES, compute
from apps.fraud.scorer import Scorer
from apps.fraud.stages import Enriched, Stage
from millrace import BroadcastContext, Context, KeyedProcess, arrival, days, value_state
from millrace.batch import Batch
from millrace.errors import UserError


class _Later(Stage):
    """A stage after the card's."""

    def process_broadcast(self, control: Any, ctx: BroadcastContext) -> None:
        """Take over what the card's stage takes over; what is refused has been reported there."""
        try:
            super().process_broadcast(control, ctx)
        except UserError:
            return


class _Entity(_Later):
    """What is kept of an entity, and what is known of it at each transaction.

    Attributes:
        entity: Its name in rules.
        found: The field of the record that it fills.
    """

    entity: ClassVar[str] = ""
    found: ClassVar[str] = ""

    order = arrival(in_order_per_key=True)
    history = value_state(History, ttl=days(31))

    def process(self, event: Enriched, ctx: Context) -> None:
        """Find out what is known of the entity at one transaction."""
        tx = event.tx
        if getattr(tx, ENTITIES[self.entity]) is not None:
            setattr(event, self.found, self._look(event, ctx))
        ctx.emit(event)

    def _look(self, event: Enriched, ctx: Context) -> EntityFeatures:
        tx = event.tx
        cents = to_cents(tx.amount)
        bought = cents if tx.kind == "purchase" else 0
        history = self.history.value
        asked = self.rules_now().asked.get(self.entity)
        if asked:
            compute(asked, event.windows, Look(history, ctx.event_time), tx, bought)
        if history is None:
            history = History(since=ctx.event_time)
        elif ctx.event_time < history.since:
            history.since = ctx.event_time
        history.balance += -cents if bought else cents
        card = link_of(tx.card_id)
        if bought:
            history.add(ctx.event_time, cents, (card,))
        history.prune(ctx.watermark)
        self.history.value = history
        return look_at(history, ctx.event_time, card)


class AccountStage(_Entity, KeyedProcess[Enriched, Enriched]):
    """The account that pays: its running balance, and all its cards together."""

    name, entity, found = "AccountMonitor", "account", "account"


class TerminalStage(_Entity, KeyedProcess[Enriched, Enriched]):
    """The terminal: how busy it is, and with how many cards."""

    name, entity, found = "TerminalMonitor", "terminal", "terminal"


class DeviceStage(_Entity, KeyedProcess[Enriched, Enriched]):
    """The customer's device: who shares it."""

    name, entity, found = "DeviceMonitor", "device", "device"


class AddressStage(_Entity, KeyedProcess[Enriched, Enriched]):
    """The IP address: who shares it."""

    name, entity, found = "AddressMonitor", "ip", "address"


class Desk(_Later, KeyedProcess[Enriched, Decision]):
    """Decides on what the stages before found, by card again; keeps nothing of its own."""

    name = "DecisionDesk"
    order = arrival(commutes=True)

    def process(self, event: Enriched, ctx: Context) -> None:
        """Decide on one transaction."""
        self.decide_now(event.observed(), ctx)

    def process_batch(self, batch: Batch[Enriched]) -> None:
        """Decide on all transactions of a batch: a model is asked once."""
        found = [self.decided(*one) for one in self.scored([event.observed() for event in batch.events])]
        batch.emit(decision for decision, _ in found)
        alerts = [(alert, row) for row, (_, alert) in enumerate(found) if alert is not None]
        batch.output(self.alerts, [alert for alert, _ in alerts], [row for _, row in alerts])


_STAGES: dict[str, type[_Entity]] = {
    "account": AccountStage,
    "terminal": TerminalStage,
    "device": DeviceStage,
    "ip": AddressStage,
}


def stages(
    entities: Sequence[str], scorer: Scorer | None = None, challenger: Scorer | None = None
) -> tuple[Stage, list[tuple[str, Stage]]]:
    """Return the first stage, and for each further one the field that is its key, and the stage.

    Args:
        entities: Which entities have a stage, in this order: of account, terminal, device, ip.
        scorer: A model; None: rules only.
        challenger: A model in shadow, beside the other.

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
    if not entities and scorer is None:
        return CardMonitor(), []
    rest: list[tuple[str, Stage]] = [(f"{entity}_key", _STAGES[entity]()) for entity in entities]
    return CardStage(), [*rest, ("card_key", Desk(scorer, challenger))]

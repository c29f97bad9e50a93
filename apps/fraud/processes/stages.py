"""Control events and hand-over records that the stages of the fraud app share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec

from millrace import BroadcastContext, Context, KeyedProcess, broadcast_state, side_output
from millrace.errors import UserError
from millrace.rules import Entry
from millrace_apps.fraud.contracts.events import (
    Alert,
    Authorisation,
    Control,
    Decision,
    Label,
    SetRate,
    Transaction,
)
from millrace_apps.fraud.contracts.feature_types import CardFeatures, EntityFeatures
from millrace_apps.fraud.operations.governance import Governance, Kept, Proposal, take_control
from millrace_apps.fraud.processes.control_group import ControlGroup
from millrace_apps.fraud.processes.decision import decide
from millrace_apps.fraud.processes.features import Features
from millrace_apps.fraud.processes.rulebook import Rules, rules_view
from millrace_apps.fraud.processes.scorer import Observed, Scorer
from millrace_apps.fraud.processes.scoring import thresholds_with
from millrace_apps.fraud.state.labels import LabelRisk, TerminalLabels

Scored = tuple[float, str] | None


class Enriched(msgspec.Struct, frozen=True, gc=False, tag="enriched"):
    """A transaction on its way through the stages, with what is known so far.

    Attributes:
        card_key: The card.
        account_key: The key of the account's stage: the account, or, where there is none, something of the
            card's own, so that what has none is not all at one place. So for the others.
        terminal_key: The key of the terminal's stage.
        device_key: The key of the device's stage.
        ip_key: The key of the address's stage.
        tx: The transaction.
        own: The card's totals and last 24 hours.
        card: The card's last 30 days.
        windows: What the rules' window functions gave, by their texts.
        account: What the account's stage found.
        terminal: What the terminal's stage found.
        device: What the device's stage found.
        address: What the address's stage found.
        card_labels: What was known of the card's transactions by labels.
        terminal_labels: The same of the terminal's.
        is_fraud: Whether a label that came before the transaction says that it is one; None: there is no such
            label. Only who judges scores may look at it.
        customer_key: The key of the customer's stage.
        merchant_key: The key of the merchant's stage.
        customer: What the customer's stage found.
        merchant: What the merchant's stage found.
    """

    card_key: str
    account_key: str
    terminal_key: str
    device_key: str
    ip_key: str
    tx: Transaction
    own: Features
    card: CardFeatures
    windows: tuple[tuple[str, float], ...]
    account: EntityFeatures | None = None
    terminal: EntityFeatures | None = None
    device: EntityFeatures | None = None
    address: EntityFeatures | None = None
    card_labels: LabelRisk | None = None
    terminal_labels: TerminalLabels | None = None
    is_fraud: bool | None = None
    customer_key: str = ""
    merchant_key: str = ""
    customer: EntityFeatures | None = None
    merchant: EntityFeatures | None = None

    def observed(self) -> Observed:
        """Return all that is known of a transaction."""
        # By position: one is made for every payment.
        return Observed(
            self.tx,
            self.own,
            self.card,
            self.account,
            self.terminal,
            self.device,
            self.address,
            dict(self.windows),
            self.card_labels,
            self.terminal_labels,
            self.customer,
            self.merchant,
        )


class Labelled(msgspec.Struct, frozen=True, gc=False, tag="labelled"):
    """A label on its way to the stages that want it; of one time it comes after the transaction, by its tag.

    Attributes:
        card_key: The card.
        account_key: The key by which it passes the account's stage; so for the others.
        terminal_key: The terminal, which learns it.
        device_key: The key by which it passes the device's stage.
        ip_key: The key by which it passes the address's stage.
        label: The label.
        newest: Whether nothing later has been said of its transaction.
        customer_key: The key by which it passes the customer's stage.
        merchant_key: The key by which it passes the merchant's stage.
    """

    card_key: str
    account_key: str
    terminal_key: str
    device_key: str
    ip_key: str
    label: Label
    newest: bool
    customer_key: str = ""
    merchant_key: str = ""


class Responded(msgspec.Struct, frozen=True, gc=False, tag="responded"):
    """The response to a payment on its way to its terminal; of one time it comes last, by its tag.

    Attributes:
        card_key: The card.
        account_key: The key by which it passes the account's stage; so for the others.
        terminal_key: The terminal, which learns it.
        device_key: The key by which it passes the device's stage.
        ip_key: The key by which it passes the address's stage.
        response: The authorisation: ``declined``, or ``captured``.
        customer_key: The key by which it passes the customer's stage.
        merchant_key: The key by which it passes the merchant's stage.
    """

    card_key: str
    account_key: str
    terminal_key: str
    device_key: str
    ip_key: str
    response: Authorisation
    customer_key: str = ""
    merchant_key: str = ""


class Forgotten(msgspec.Struct, frozen=True, gc=False, tag="forgotten"):
    """That a card is to be forgotten, on its way through the stages to the decision.

    Attributes:
        card_key: The card.
        account_key: The key by which it passes the account's stage; so for the others.
        terminal_key: The key by which it passes the terminal's stage.
        device_key: The key by which it passes the device's stage.
        ip_key: The key by which it passes the address's stage.
        customer_key: The key by which it passes the customer's stage.
        merchant_key: The key by which it passes the merchant's stage.
    """

    card_key: str
    account_key: str
    terminal_key: str
    device_key: str
    ip_key: str
    customer_key: str = ""
    merchant_key: str = ""


#: What goes from one stage to the next.
Passed = Enriched | Labelled | Responded | Forgotten


class Stage(KeyedProcess[Any, Any]):
    """A stage that knows rules, lists and thresholds; the last of a chain decides.

    Args:
        scorer: A model, for the stage that decides; None: rules only.
        challenger: A model in shadow.
        control_group: Who is let through though it would be blocked, for the stage that decides.
    """

    control_type: ClassVar[object] = Control
    #: What needs two persons.
    governance = Governance()

    #: The currency that amounts are reckoned in.
    currency = "EUR"

    overrides = broadcast_state(str, float)
    rules = broadcast_state(str, Entry)
    lists = broadcast_state(str, dict[str, int])
    proposals = broadcast_state(str, Proposal)
    alerts = side_output(Alert)

    def __init__(
        self,
        scorer: Scorer | None = None,
        challenger: Scorer | None = None,
        control_group: ControlGroup | None = None,
    ) -> None:
        self._scorer, self._challenger, self._control_group = scorer, challenger, control_group

    def process_broadcast(self, control: Any, ctx: BroadcastContext) -> None:
        """Set or reset a threshold, change a rule or a list, take what is proposed, for all keys."""
        if isinstance(control, SetRate):
            self._set_rate(control)
            return
        kept = Kept(self.overrides, self.lists, self.rules, self.proposals)
        take_control(control, kept, self.governance, ctx.watermark)

    def _set_rate(self, control: SetRate) -> None:
        """Take a rate, where amounts are turned: at the card's stage, whose payments go on with it."""

    def forget_key(self) -> None:
        """Clear all that is kept of the key."""
        for state in self.states:
            if state.kind != "broadcast":
                getattr(self, state.name).clear()

    def rules_now(self) -> Rules:
        """Return the rules that are kept, ready to be asked."""
        return self.rules.view(rules_view)

    def scored(self, seen: Sequence[Observed]) -> Iterator[tuple[Observed, Scored, Scored]]:
        """Yield each transaction with what the model and the challenger say."""
        nothing: Sequence[Scored] = [None] * len(seen)
        scores = nothing if self._scorer is None else self._scorer.score(seen)
        others = nothing if self._challenger is None else self._challenger.score(seen)
        return zip(seen, scores, others, strict=True)

    def decided(self, seen: Observed, model: Scored, challenger: Scored) -> tuple[Decision, Alert | None]:
        """Decide by what is kept of thresholds, rules and lists."""
        thresholds = self.overrides.view(thresholds_with)
        rules, lists = self.rules.view(rules_view), self.lists.view(dict)
        return decide(seen, thresholds, rules, lists, model, challenger, self._control_group)

    def decide_now(self, seen: Observed, ctx: Context) -> None:
        """Decide on one transaction, and emit what comes of it."""
        if self._scorer is None and self._challenger is None:
            decision, alert = self.decided(seen, None, None)
        else:
            decision, alert = self.decided(*next(self.scored([seen])))
        ctx.emit(decision)
        if alert is not None:
            ctx.output(self.alerts, alert)


class LaterStage(Stage):
    """A stage after the card's."""

    def process_broadcast(self, control: Any, ctx: BroadcastContext) -> None:
        """Take over what the card's stage takes over; what is refused has been reported there."""
        try:
            super().process_broadcast(control, ctx)
        except UserError:
            return

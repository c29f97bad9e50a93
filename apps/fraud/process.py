"""The card monitor: one decision per transaction, alerts where somebody must look."""

from __future__ import annotations

from typing import ClassVar

from apps.fraud.card import DAY_MS, Account, Recent
from apps.fraud.events import (
    Action,
    Alert,
    Control,
    Decision,
    Reason,
    SetThreshold,
    Transaction,
    to_cents,
)
from apps.fraud.features import Features, observe
from apps.fraud.scoring import THRESHOLD_NAMES, action_for, assess, thresholds_with
from millrace import (
    BroadcastContext,
    Context,
    KeyedProcess,
    Timer,
    arrival,
    broadcast_state,
    days,
    side_output,
    value_state,
)
from millrace.errors import UserError

_EXPIRE = "expire"


class UnknownThreshold(UserError):
    """A control event names a threshold that does not exist."""


class CardMonitor(KeyedProcess[Transaction, Decision]):
    """Decides on every transaction of a card by the card's own history.

    A transaction that was decided on in the last 24 hours is a duplicate: it goes to the dead letters
    and changes nothing. One behind the watermark goes to ``late``: its moment to be decided on has
    passed, and it changes no feature.
    """

    # A decision cannot wait for the watermark. The topic's key is the card, so a partition brings a
    # card's transactions in the order of their happening; what little disorder a producer adds is
    # seen by nobody else than the transactions that it concerns (see DISCUSSION.md).
    order = arrival(in_order_per_key=True)
    control_type: ClassVar[object] = Control

    account = value_state(Account, ttl=days(90))
    recent = value_state(Recent)
    overrides = broadcast_state(str, float)
    alerts = side_output(Alert)

    def process(self, event: Transaction, ctx: Context) -> None:
        """Decide on one transaction."""
        recent = self._recent(event, ctx)
        if recent is None:
            return
        account = self.account.value or Account()
        purchase = event.kind == "purchase"
        features = observe(account, recent, ctx.event_time, to_cents(event.amount), purchase=purchase)
        self.account.value = account  # its 90 days begin anew
        thresholds = self.overrides.view(thresholds_with)
        score, reasons = assess(features, event.amount, thresholds, purchase=purchase)
        action = action_for(score, thresholds) if reasons else "approve"
        ctx.emit(_decision(event, features, score, action, reasons))
        if action != "approve":
            ctx.output(
                self.alerts,
                Alert(
                    event.card_id,
                    event.transaction_id,
                    event.event_time_ms,
                    event.amount,
                    event.currency,
                    score,
                    action,
                    reasons,
                    thresholds.as_dict(),
                ),
            )

    def on_late(self, event: Transaction, ctx: Context) -> None:
        """Put a late transaction aside, once."""
        if self._recent(event, ctx) is not None:
            self.emit_late(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Forget the last 24 hours of a card once they are over."""
        recent = self.recent.value
        if recent is not None and recent.until > timer.at:
            recent.prune(ctx.watermark)
            ctx.timers.at(recent.until, _EXPIRE)
        else:
            self.recent.clear()

    def process_broadcast(self, control: Control, ctx: BroadcastContext) -> None:
        """Set or reset a threshold, for all cards."""
        if control.name not in THRESHOLD_NAMES:
            raise UnknownThreshold(
                f"there is no threshold '{control.name}'; there are {', '.join(sorted(THRESHOLD_NAMES))}"
            )
        if isinstance(control, SetThreshold):
            self.overrides.put(control.name, control.value)
        else:
            self.overrides.remove(control.name)

    def _recent(self, event: Transaction, ctx: Context) -> Recent | None:
        """Return the card's last 24 hours, this transaction remembered; ``None`` for a duplicate."""
        # A late event is remembered from when it came: its own 24 hours may be over already.
        now = ctx.event_time if ctx.event_time > ctx.watermark else ctx.watermark
        recent = self.recent.value
        if recent is None:
            recent = self.recent.value = Recent()
            # Only when it fires is it seen whether there has been more: cheaper than moving it each time.
            ctx.timers.at(now + DAY_MS, _EXPIRE)
        else:
            recent.prune(ctx.watermark)
        if recent.remember(event.transaction_id, now):
            return recent
        ctx.dead_letter("duplicate", f"transaction {event.transaction_id} of this card has come before")
        return None


def _decision(
    event: Transaction, f: Features, score: float, action: Action, reasons: list[Reason]
) -> Decision:
    # By position: names take longer to be matched, and mypy sees a wrong number or type.
    return Decision(
        event.transaction_id,
        event.card_id,
        event.terminal_id,
        event.mcc,
        event.country,
        event.amount,
        event.currency,
        event.kind,
        event.event_time_ms,
        f.purchases_before,
        f.mean_before,
        f.std_before,
        f.median_before,
        f.per_hour_before,
        f.zscore,
        f.count_1m,
        f.sum_1m,
        f.count_1h,
        f.sum_1h,
        f.count_24h,
        f.sum_24h,
        f.small_count_1m,
        f.large_count_5m,
        f.balance,
        score,
        action,
        reasons,
    )

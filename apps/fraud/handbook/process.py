"""The history of customers and of terminals: two keyed processes in a chain.

:class:`CustomerHistory` is keyed by the customer, :class:`TerminalHistory` by the terminal; what comes out
has the Handbook's features and our own beside them, and nothing that was not known at the payment's time.
The same objects compute the features that a model is trained on and those that it scores.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from millrace import Context, KeyedProcess, days, value_state
from millrace.errors import UserError
from millrace_apps.fraud.handbook.events import CustomerFeatures, CustomerView, Payment, PaymentFeatures
from millrace_apps.fraud.handbook.habits import Habits, is_high
from millrace_apps.fraud.handbook.windows import CustomerWindows, during_night, during_weekend, look_at_labels
from millrace_apps.fraud.state.labels import DAY_MS, FRAUD, GENUINE, PENDING, LabelLog, LabelRisk

#: The state of a silent customer or terminal must not go before its windows are empty.
_LIFE: Final = days(90)
_MOST_DELAY_MS: Final = 45 * DAY_MS
#: In one step so many transactions are forgotten at least.
_STEP: Final = 32


class Customer(msgspec.Struct, array_like=True, gc=False):
    """State of a customer."""

    windows: CustomerWindows = msgspec.field(default_factory=CustomerWindows)
    habits: Habits = msgspec.field(default_factory=Habits)


class CustomerHistory(KeyedProcess[Payment, CustomerView]):
    """Adds what a payment is beside its customer's earlier ones."""

    order = "event_time"
    customer = value_state(Customer, ttl=_LIFE)

    def process(self, event: Payment, ctx: Context) -> None:
        """Handle a payment; a label goes on to its terminal."""
        if event.label_of_ms is not None:
            ctx.emit(
                CustomerView(
                    event.transaction_id,
                    event.event_time_ms,
                    event.customer_id,
                    event.terminal_id,
                    event.amount,
                    event.is_fraud,
                    event.label_of_ms,
                )
            )
            return
        customer = self.customer.value or Customer()
        at, out_of_order = event.event_time_ms, False
        if at < customer.habits.last:
            at, out_of_order = customer.habits.last, True
        windows = customer.windows
        if windows.thirty.start >= _STEP:
            windows.forget(windows.thirty.start)
        features = CustomerFeatures(
            *windows.observe(at, event.amount), customer.habits.observe(at, event.amount)
        )
        self.customer.value = customer  # its life begins anew
        ctx.emit(
            CustomerView(
                event.transaction_id,
                event.event_time_ms,
                event.customer_id,
                event.terminal_id,
                event.amount,
                event.is_fraud,
                None,
                features,
                out_of_order,
            )
        )


class TerminalHistory(KeyedProcess[CustomerView, PaymentFeatures]):
    """Adds what is known of a payment's terminal, and makes the record of all features.

    Args:
        label_delay_ms: How long the labels of recorded history stay unseen, and how far behind the
            present the Handbook's risk windows end, ms.
        unlabelled_is_genuine: Take a payment that nobody has spoken of within the delay for genuine: for live
            streams, where only frauds and disputes are labelled.
    """

    order = "event_time"
    log = value_state(LabelLog, ttl=_LIFE)

    def __init__(self, label_delay_ms: int = 7 * DAY_MS, *, unlabelled_is_genuine: bool = False) -> None:
        if not 0 < label_delay_ms <= _MOST_DELAY_MS:
            raise UserError(f"the label delay must be above 0 and at most 45 days, not {label_delay_ms} ms")
        self._delay = label_delay_ms
        self._unlabelled_is_genuine = unlabelled_is_genuine

    def describe(self) -> dict[str, Any]:
        """Return what the state depends on."""
        return {"label_delay_ms": self._delay, "silence_is_genuine": self._unlabelled_is_genuine}  # as stored

    def process(self, event: CustomerView, ctx: Context) -> None:
        """Handle a payment, or learn a label."""
        log = self.log.value
        if event.features is None:
            if log is not None and event.label_of_ms is not None and event.is_fraud is not None:
                log.learn(event.label_of_ms, FRAUD if event.is_fraud else GENUINE)
                self.log.value = log
            return
        if log is None:
            log = LabelLog()
        at, out_of_order = event.event_time_ms, event.out_of_order
        if at < (last := log.last()):
            at, out_of_order = last, True
        windows, risk = look_at_labels(
            log, at, self._delay, unlabelled_is_genuine=self._unlabelled_is_genuine
        )
        ctx.emit(_record(event, event.features, out_of_order, windows, risk))
        fraud = event.is_fraud
        label = PENDING if fraud is None else FRAUD if fraud else GENUINE
        high = is_high(event.amount, event.features.standing.ratio)
        log.add(at, label, high=high, sealed=fraud is not None)
        self.log.value = log


def _record(
    event: CustomerView,
    f: CustomerFeatures,
    out_of_order: bool,
    windows: tuple[int, float, int, float, int, float],
    risk: LabelRisk,
) -> PaymentFeatures:
    s = f.standing
    at = event.event_time_ms
    # By position: names take longer to be matched, and mypy sees a wrong number or type.
    return PaymentFeatures(
        event.transaction_id,
        at,
        event.customer_id,
        event.terminal_id,
        event.amount,
        event.is_fraud,
        out_of_order,
        during_weekend(at),
        during_night(at),
        f.count_1d,
        f.mean_1d,
        f.count_7d,
        f.mean_7d,
        f.count_30d,
        f.mean_30d,
        *windows,
        s.ratio,
        s.median,
        s.seen,
        s.raised,
        s.high,
        s.higher,
        s.highest,
        s.high_last_days,
        s.high_first_days,
        s.most,
        s.gap_hours,
        risk.fraud_run,
        risk.run_first_days,
        risk.run_last_days,
        risk.run_open_days,
        risk.run_first_midnights,
        risk.run_open_midnights,
        risk.frauds,
        risk.frauds_high,
        risk.last_label,
        risk.last_label_days,
        risk.genuine_days,
        risk.pending,
        risk.known,
    )

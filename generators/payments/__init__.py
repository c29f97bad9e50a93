"""Payments: transactions of cards at terminals and online, nine kinds of fraud, labels that come later."""

from millrace_apps.generators.engine.simulated import Domain, StreamSpec
from millrace_apps.generators.payments.events import Label, Transaction
from millrace_apps.generators.payments.profile import SCENARIOS, PaymentsProfile
from millrace_apps.generators.payments.simulation import simulate

__all__ = ["DOMAIN", "SCENARIOS", "Label", "PaymentsProfile", "Transaction", "simulate"]

DOMAIN = Domain(
    name="payments",
    description="card transactions with devices, positions and nine kinds of fraud; labels that come later",
    streams={
        "transactions": StreamSpec(
            topic="payments.transactions",
            event_type=Transaction,
            id_field="transaction_id",
            time_field="event_time_ms",
        ),
        "labels": StreamSpec(
            topic="payments.labels", event_type=Label, id_field="label_id", time_field="event_time_ms"
        ),
    },
    profile=PaymentsProfile,
    simulate=simulate,
    scenarios=SCENARIOS | {"wrong_label": "a label that is wrong, and usually corrected later"},
)

"""The world of payments: cards at terminals and online, ten kinds of fraud, what is said later."""

from millrace_apps.fraud.contracts.events import Authorisation, Label, Transaction
from millrace_apps.generators.engine.simulated import Domain, StreamSpec
from millrace_apps.generators.fraud.ordinary import billed_cents
from millrace_apps.generators.fraud.profile import SCENARIOS, FraudProfile
from millrace_apps.generators.fraud.simulation import simulate

__all__ = ["DOMAIN", "SCENARIOS", "FraudProfile", "simulate"]


def _billed(event: Transaction) -> tuple[str, int]:
    return event.kind, billed_cents(event)


DOMAIN = Domain(
    name="fraud",
    description="card transactions with devices, positions and ten kinds of fraud; labels that come later",
    streams={
        "transactions": StreamSpec(
            topic="fraud.transactions",
            event_type=Transaction,
            id_field="transaction_id",
            time_field="event_time_ms",
            sums=_billed,
        ),
        "labels": StreamSpec(
            topic="fraud.labels", event_type=Label, id_field="label_id", time_field="event_time_ms"
        ),
        "authorisations": StreamSpec(
            topic="fraud.authorisations",
            event_type=Authorisation,
            id_field="authorisation_id",
            time_field="event_time_ms",
            sums=lambda event: (event.status, 1),
        ),
    },
    profile=FraudProfile,
    simulate=simulate,
    scenarios=SCENARIOS | {"wrong_label": "a label that is wrong, and usually corrected later"},
)

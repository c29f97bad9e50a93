"""The Fraud Detection Handbook's payments: its table, and the same as a stream."""

from millrace_apps.generators.engine.simulated import Domain, StreamSpec
from millrace_apps.generators.handbook.payments import SCENARIOS, Payment, simulate
from millrace_apps.generators.handbook.table import Handbook, HandbookProfile, simulate_handbook, write_table

__all__ = ["DOMAIN", "SCENARIOS", "Handbook", "HandbookProfile", "Payment", "simulate", "simulate_handbook"]

DOMAIN = Domain(
    name="handbook",
    description="the table of the Fraud Detection Handbook: payments with its three scenarios of fraud",
    streams={
        "transactions": StreamSpec(
            topic="handbook.transactions",
            event_type=Payment,
            id_field="TRANSACTION_ID",
            time_field="TX_DATETIME",
        ),
    },
    profile=HandbookProfile,
    simulate=simulate,
    scenarios=SCENARIOS,
    usual={"seed": 0, "start": "2018-04-01"},
    paced=True,
    table=write_table,
)

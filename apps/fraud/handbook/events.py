"""Input and output types of the Handbook's histories of customers and terminals."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from millrace_apps.fraud.handbook.habits import Standing

Identifier = Annotated[str, Meta(min_length=1, max_length=128)]
#: Hundredths of it fit the integers of the state.
Amount = Annotated[float, Meta(ge=0, le=1e9)]


class Payment(msgspec.Struct, frozen=True, gc=False):
    """A payment, or a label on one.

    Attributes:
        transaction_id: Identity; payments of one time are handled in order of it, so it is padded where it
            is a number.
        event_time_ms: When it happened, UTC ms; of a label: when it became known.
        customer_id: Who paid.
        terminal_id: Where.
        amount: Currency units.
        is_fraud: Of a label: what it says. Of a payment of recorded history: what it turned out to be,
            which stays unseen until the label delay is over. ``None``: nobody has said.
        label_of_ms: Of a label: the time of the payment that it speaks of.
    """

    transaction_id: Identifier
    event_time_ms: int
    customer_id: Identifier
    terminal_id: Identifier
    amount: Amount = 0.0
    is_fraud: bool | None = None
    label_of_ms: int | None = None


class CustomerFeatures(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Numbers and mean amounts over 1, 7 and 30 days, this payment included, and how it stands."""

    count_1d: int
    mean_1d: float
    count_7d: int
    mean_7d: float
    count_30d: int
    mean_30d: float
    standing: Standing


class CustomerView(msgspec.Struct, frozen=True, gc=False):
    """A payment as its customer's history shows it; a label has no ``features``."""

    transaction_id: Identifier
    event_time_ms: int
    customer_id: Identifier
    terminal_id: Identifier
    amount: float
    is_fraud: bool | None = None
    label_of_ms: int | None = None
    features: CustomerFeatures | None = None
    out_of_order: bool = False


class PaymentFeatures(msgspec.Struct, frozen=True, gc=False):
    """A payment with all its features, one column each.

    The first fields are those of :class:`Payment`; ``out_of_order``: it came behind a later one of the same
    customer or terminal, and was taken as if it had happened at that one's time (in arrival order only).
    ``weekend`` to ``terminal_risk_30d`` are the Handbook's 14 features; what follows is explained at
    :class:`~millrace_apps.fraud.handbook.habits.Standing` and
    :class:`~millrace_apps.fraud.state.labels.LabelRisk`.
    """

    transaction_id: str
    event_time_ms: int
    customer_id: str
    terminal_id: str
    amount: float
    is_fraud: bool | None
    out_of_order: bool
    weekend: int
    night: int
    customer_count_1d: int
    customer_mean_1d: float
    customer_count_7d: int
    customer_mean_7d: float
    customer_count_30d: int
    customer_mean_30d: float
    terminal_count_1d: int
    terminal_risk_1d: float
    terminal_count_7d: int
    terminal_risk_7d: float
    terminal_count_30d: int
    terminal_risk_30d: float
    customer_ratio: float
    customer_median: float
    customer_seen: int
    customer_raised: int
    customer_high: int
    customer_higher: int
    customer_highest: int
    customer_high_last_days: float
    customer_high_first_days: float
    customer_most: float
    customer_gap_hours: float
    terminal_fraud_run: int
    terminal_run_first_days: float
    terminal_run_last_days: float
    terminal_run_open_days: float
    terminal_run_first_midnights: int
    terminal_run_open_midnights: int
    terminal_frauds: int
    terminal_frauds_high: int
    terminal_last_label: int
    terminal_last_label_days: float
    terminal_genuine_days: float
    terminal_pending: int
    terminal_known: int


#: The Handbook's 14 features by our names: two of the time, six of the customer, six of the terminal.
HANDBOOK: Final = PaymentFeatures.__struct_fields__[7:21]
#: Our own.
OWN: Final = PaymentFeatures.__struct_fields__[21:]

"""The streams of the web shop: clicks, customers, consents, refunds, requests for erasure, items."""

from __future__ import annotations

from typing import Final

from millrace_apps.clickstream.contracts.events import (
    Click,
    Consent,
    Customer,
    Erasure,
    ItemChange,
    Refund,
)
from millrace_apps.generators.engine.simulated import StreamSpec

STREAMS: Final = {
    "clicks": StreamSpec(
        topic="clickstream.clicks", event_type=Click, id_field="event_id", time_field="event_time_ms"
    ),
    "customers": StreamSpec(
        topic="clickstream.customers", event_type=Customer, id_field="change_id", time_field="event_time_ms"
    ),
    "consents": StreamSpec(
        topic="clickstream.consents", event_type=Consent, id_field="consent_id", time_field="event_time_ms"
    ),
    "refunds": StreamSpec(
        topic="clickstream.refunds", event_type=Refund, id_field="refund_id", time_field="event_time_ms"
    ),
    "erasures": StreamSpec(
        topic="clickstream.erasures", event_type=Erasure, id_field="request_id", time_field="event_time_ms"
    ),
    "items": StreamSpec(
        topic="clickstream.items", event_type=ItemChange, id_field="change_id", time_field="event_time_ms"
    ),
}

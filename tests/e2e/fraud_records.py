"""Transactions and labels as records of the app's topics, for replays without a broker."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millrace.runtime.replay import Record
from millrace_apps.fraud.contracts.events import Label, Transaction
from millrace_apps.fraud.settings import FraudSettings


def in_batches(
    settings: FraudSettings, events: Sequence[Transaction | Label], batches: int = 3
) -> list[list[Record]]:
    """The events in their order, in so many batches."""
    topics = settings.topics
    records = [
        Record(
            topics.labels if isinstance(event, Label) else topics.transactions,
            msgspec.json.encode(event),
            event.card_id.encode(),
            event.event_time_ms,
        )
        for event in events
    ]
    size = len(records) // batches + 1
    return [records[i : i + size] for i in range(0, len(records), size)]

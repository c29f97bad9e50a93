"""Sending records to Kafka."""

from __future__ import annotations

import pytest

from millrace.connectors.producing import Delivery, DeliveryFailed, event_records
from millrace.host.chunks import OutputChunk


def test_a_record_has_the_key_of_its_process_and_its_identity() -> None:
    rows = OutputChunk(["e1", None], ["3:a:b", "2:ü"], [5, 6], b"11", [b"{}", b"[]"])

    assert list(event_records(rows)) == [
        ("a:b", b"{}", [("event_id", "e1")]),
        ("ü", b"[]", []),
    ]


def test_what_does_not_arrive_is_an_error() -> None:
    delivery = Delivery({"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 100})
    delivery.send("t", [(b"k", b"v", [("event_id", b"e")])])

    with pytest.raises(DeliveryFailed, match="did not take 1 records"):
        delivery.flush()
    delivery.flush()  # and it is not said twice

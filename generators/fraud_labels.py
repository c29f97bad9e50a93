"""Labels on the transactions of ``fraud``: what becomes known of them, later, by the law of ``payments``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from millrace_apps.generators.engine import Generated
from millrace_apps.generators.engine.randomness import substream
from millrace_apps.generators.ledger import BESIDE
from millrace_apps.generators.payments.events import Label
from millrace_apps.generators.payments.labels import LABELLED_GENUINE, Labels

TOPIC: Final = "fraud.labels"
EVENT_TYPE: Final = "millrace.fraud.label"
SCHEMA_VERSION: Final = "1"
SOURCE: Final = "millrace/generators/fraud"


class _Sold(msgspec.Struct, frozen=True, gc=False):
    """What a label says of its transaction."""

    transaction_id: str
    event_time_ms: int
    card_id: str
    terminal_id: str


class FraudLabels:
    """Makes the labels of a stream of transactions, and sends them when they become known.

    Args:
        domain: Names the random numbers.
        seed: Their seed.
        scale: Factor on all delays.
        topic: Topic of the labels.
    """

    def __init__(self, domain: str, seed: int, scale: float, topic: str = TOPIC) -> None:
        self._labels, self._topic = Labels(scale), topic
        self._draw = substream(seed, domain, "labels").random
        self._decode = msgspec.json.Decoder(_Sold).decode

    def heard(self, simulation: Iterable[Generated]) -> Iterator[Generated]:
        """Yield the transactions, and plan what becomes known of each purchase."""
        draw = self._draw
        for message in simulation:
            message.stream = "transactions"
            if message.kind == "purchase":
                # As many numbers for each, so that what one is does not move what becomes known of others.
                numbers = draw(), draw(), draw(), draw()
                if message.episode is not None:
                    self._labels.fraud(self._decode(message.value), iter(numbers).__next__)
                elif numbers[0] < LABELLED_GENUINE:
                    sold, others = self._decode(message.value), iter(numbers[1:])
                    self._labels.genuine(sold, numbers[0], others.__next__, known=True)
            yield message

    def among(self, sent: Iterable[Generated]) -> Iterator[Generated]:
        """Yield the messages in the order of their sending, the labels among them as they become known.

        The stream ends with its last transaction: what becomes known later is left out.
        """
        for message in sent:
            for found in self._labels.until(message.due_ms):
                if isinstance(found.event, Label):
                    yield self._message(found.event)
            yield message

    def _message(self, label: Label) -> Generated:
        at = datetime.fromtimestamp(label.event_time_ms / 1000, UTC)
        made = Generated(
            label.label_id,
            label.card_id.encode(),
            msgspec.json.encode(label),
            [
                ("ce_specversion", b"1.0"),
                ("ce_id", label.label_id.encode()),
                ("ce_type", EVENT_TYPE.encode()),
                ("ce_source", SOURCE.encode()),
                ("ce_time", f"{at:%Y-%m-%dT%H:%M:%S}.{label.event_time_ms % 1000:03d}Z".encode()),
                ("content-type", b"application/json"),
                ("schema_version", SCHEMA_VERSION.encode()),
            ],
            label.event_time_ms,
            "label",
            0,
        )
        made.stream, made.topic = BESIDE, self._topic
        return made

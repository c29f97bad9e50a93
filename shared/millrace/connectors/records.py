"""What both writers leave: the columns of a table row, the parts of a Kafka record."""

from __future__ import annotations

#: Kafka header of a dead letter → its field.
DEAD_LETTER_HEADERS = {
    "event_id": "_event_id",
    "dlq.reason": "reason",
    "dlq.stage": "stage",
    "dlq.process": "process",
    "dlq.error": "error",
    "dlq.headers": "headers",
}

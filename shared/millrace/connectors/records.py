"""Sink records: the columns of a table row, the parts of a Kafka record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

#: Kafka header of a dead letter → its field.
DEAD_LETTER_HEADERS: Final = {
    "event_id": "_event_id",
    "dlq.reason": "reason",
    "dlq.stage": "stage",
    "dlq.process": "process",
    "dlq.error": "error",
    "dlq.headers": "headers",
    "dlq.timestamp": "timestamp_ms",
}

#: A dead letter of more bytes does not go into its topic whole: brokers and clients take a megabyte at most,
#: unless told otherwise, and what they do not take would end the job, again and again.
MOST_LETTER_BYTES: Final = 900_000
#: A key of more bytes is left out with the rest.
MOST_KEY_BYTES: Final = 10_000
#: The header that says how many bytes the event had, where they are left out.
LEFT_OUT_HEADER: Final = "dlq.left_out"


def is_dead_letters(output: str) -> bool:
    """Say whether an output has dead letters: of a process, or of an earlier one of its chain.

    >>> is_dead_letters("dead_letters"), is_dead_letters("Cards.dead_letters"), is_dead_letters("main")
    (True, True, False)
    """
    return output.rpartition(".")[2] == "dead_letters"


class _Why(msgspec.Struct):
    reason: str


_why = msgspec.json.Decoder(_Why)


def reasons_of(payloads: Iterable[bytes]) -> Counter[str]:
    """Return how many dead letters there are of each reason.

    Args:
        payloads: Dead letters as JSON.

    >>> sorted(reasons_of([b'{"reason": "late"}', b'{"reason": "future"}', b'{"reason": "late"}']).items())
    [('future', 1), ('late', 2)]
    """
    return Counter(_why.decode(payload).reason for payload in payloads)


def dead_letter_record(
    letter: Any, key: str | bytes, identity: str | None, stamp: Mapping[str, str]
) -> tuple[str | bytes, bytes | None, list[tuple[str, str | bytes | None]]]:
    """Return a dead letter as a Kafka record: key, value and headers.

    Of one that is too large for a topic the event's bytes and headers stand in the table alone.

    Args:
        letter: A :class:`~millrace.dead_letters.DeadLetter`.
        key: The process's key, for letters that did not keep the event's own.
        identity: Its identity.
        stamp: Header → text that all letters of an app have.
    """
    found: dict[str, Any] = {
        header: identity if field == "_event_id" else getattr(letter, field)
        for header, field in DEAD_LETTER_HEADERS.items()
    }
    source = [letter.topic, letter.partition, letter.offset]
    found["dlq.source"] = ":".join(str(part) for part in source if part is not None)
    of_event, value = key if letter.kafka_key is None else letter.kafka_key, letter.value
    own = len(of_event if isinstance(of_event, bytes) else of_event.encode())
    if own + len(value or b"") + len((letter.headers or "").encode()) > MOST_LETTER_BYTES:
        found["dlq.headers"], found[LEFT_OUT_HEADER], value = None, len(value or b""), None
        of_event = of_event if own <= MOST_KEY_BYTES else b""
    headers: list[tuple[str, str | bytes | None]] = []
    headers += [(name, str(text).encode()) for name, text in found.items() if text is not None]
    headers += [(name, text.encode()) for name, text in stamp.items()]
    return of_event, value, headers

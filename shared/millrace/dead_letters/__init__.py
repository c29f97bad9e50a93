"""Dead letters: what could not be handled, with everything needed to understand and replay it."""

from __future__ import annotations

import hashlib
import re
import traceback
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

Reason = Literal[
    "malformed",
    "schema",
    "range",
    "unknown_version",
    "no_event_time",
    "future",
    "process_error",
    "duplicate",
    "conflict",
    "late",
]
REASONS: Final = frozenset(get_args(Reason))
#: The Kafka header that names the version of an event's contract.
VERSION_HEADER: Final = "schema_version"

#: What decoding an event raises: nesting without end is refused with RecursionError, text that is not
#: UTF-8 with UnicodeDecodeError.
NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Stage = Literal["decode", "time", "process", "timer", "broadcast", "table"]


class DeadLetter(msgspec.Struct, frozen=True):
    """An event (or timer) that was put aside.

    Attributes:
        reason: Why, in one word.
        stage: Where it happened.
        process: Name of the process.
        error: The error in one line.
        error_digest: Hash of the exception's type and place, the same for every event that fails
            at the same line of code.
        key: The key, where it was known.
        event_time_ms: Event time in ms, where it was known.
        topic: Kafka topic, partition and offset of the event, where it came from Kafka.
        value: The original bytes.
        headers: The original Kafka headers as a JSON object.
        kafka_key: The original Kafka key, where it was kept with the headers.
        timestamp_ms: When Kafka got the event, UTC ms, where it was kept with the headers.
    """

    reason: Reason
    stage: Stage
    process: str
    error: str
    error_digest: str = ""
    key: str | None = None
    event_time_ms: int | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    value: bytes | None = None
    headers: str | None = None
    kafka_key: bytes | None = None
    timestamp_ms: int | None = None


_MOST_ERROR: Final = 500
#: How msgspec says that a number, a time or a length is outside of the bounds that its type sets.
_OUT_OF_BOUNDS: Final = re.compile(
    r"Expected `[^`]+` (?:of length )?(?:[<>]=? ?-?[\d.]|that's a multiple of)|out of range"
)


def reason_of(error: Exception) -> Literal["malformed", "schema", "range"]:
    """Return why an event could not be decoded, of the error that its decoder raised.

    ``range`` is an event of the right shape of which a number, a time or a length is outside of the bounds
    of its contract; ``schema`` breaks the contract in any other way; ``malformed`` is no JSON.

    >>> from typing import Annotated
    >>> try:
    ...     msgspec.json.decode(b"-1", type=Annotated[int, msgspec.Meta(ge=0)])
    ... except msgspec.DecodeError as error:
    ...     reason_of(error)
    'range'
    """
    if not isinstance(error, msgspec.ValidationError):
        return "malformed"
    return "range" if _OUT_OF_BOUNDS.search(str(error)) else "schema"


def error_digest(error: BaseException) -> str:
    """Return a short hash of where and what an exception was, without its message or addresses."""
    frames = [f"{f.name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
    text = type(error).__qualname__ + "|" + "|".join(frames)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def one_line(error: BaseException) -> str:
    """Return an exception as one line of at most 500 characters."""
    said = f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()
    return shortened(" ".join(said.split()))


def shortened(text: str) -> str:
    """Return a text of at most 500 characters: Kafka's records are to have room for it."""
    return text if len(text) <= _MOST_ERROR else text[: _MOST_ERROR - 3] + "..."


def check_given(reason: Any, error: Any) -> None:
    """Refuse what a process gives as a reason, or as an error, that no reader of dead letters would take.

    Raises:
        ValueError: The reason is none of ``REASONS``.
        TypeError: The error is no text.
    """
    if reason not in REASONS:
        raise ValueError(f"a dead letter has one of the reasons {', '.join(sorted(REASONS))}, not {reason!r}")
    if not isinstance(error, str):
        raise TypeError(f"the error of a dead letter is a text, not {type(error).__name__}")


class Kept(NamedTuple):
    """What was kept of a record in Kafka beside its value.

    Attributes:
        headers: Its headers as a JSON object of texts; of several of one name, a list.
        key: Its key.
        timestamp_ms: When Kafka got it, UTC ms.
    """

    headers: str | None = None
    key: bytes | None = None
    timestamp_ms: int | None = None


def kept_of(text: str | None) -> Kept:
    """Return what a host kept of a record as text: its headers alone, or key and timestamp with them.

    >>> kept_of('{"key": "Yy0x", "timestamp": 5, "headers": [{"key": "ce_id", "value": "dHgtMQ=="}]}')
    Kept(headers='{"ce_id":"tx-1"}', key=b'c-1', timestamp_ms=5)
    """
    if text is None or not text.startswith("{"):
        return Kept(readable_headers(text))
    try:
        found = msgspec.json.decode(text, type=_Record)
    except msgspec.DecodeError:
        return Kept(text)  # not Kafka's: as it is
    return Kept(_readable(found.headers) if found.headers else None, found.key, found.timestamp)


def readable_headers(headers: str | None) -> str | None:
    """Return Kafka headers as a JSON object of texts; of several of one name, a list.

    Args:
        headers: JSON as Spark writes it: a list of ``{"key": …, "value": base64}``.

    >>> readable_headers('[{"key": "ce_id", "value": "dHgtMQ=="}]')
    '{"ce_id":"tx-1"}'
    """
    if headers is None:
        return None
    try:
        pairs = msgspec.json.decode(headers, type=list[_Header])
    except msgspec.DecodeError:
        return headers  # not Kafka's: as it is
    return _readable(pairs)


def _readable(pairs: list[_Header]) -> str:
    found: dict[str, list[str]] = {}
    for pair in pairs:
        found.setdefault(pair.key, []).append((pair.value or b"").decode(errors="backslashreplace"))
    return msgspec.json.encode({k: v[0] if len(v) == 1 else v for k, v in found.items()}).decode()


class _Header(msgspec.Struct):
    key: str
    value: bytes | None = None


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    key: bytes | None = None
    timestamp: int | None = None
    headers: list[_Header] | None = None


def position(source_id: str | None) -> tuple[str | None, int | None, int | None]:
    """Split ``topic:partition:offset`` as the Kafka source writes it; ``None`` for other sources.

    >>> position("payments:3:42")
    ('payments', 3, 42)
    """
    parts = (source_id or "").rsplit(":", 2)
    if len(parts) != 3 or not parts[1].isdigit() or not parts[2].isdigit():
        return None, None, None
    return parts[0], int(parts[1]), int(parts[2])

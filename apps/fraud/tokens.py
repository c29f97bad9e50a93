"""Card numbers become tokens before anything is kept: in tables, topics, dead letters, logs and pages.

A token is a keyed hash (HMAC-SHA-256, RFC 2104) cut to 96 bits: equal numbers have equal tokens, so features
work as before, and without the key a token can neither be turned back nor guessed by trying all numbers.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

#: Shortest key, bytes.
MIN_KEY: Final = 32
# Numbers of 13 to 19 digits that begin like a card's (ISO/IEC 7812-1: 2 to 6). Times in ms begin with 1.
_NUMBER: Final = re.compile(rb"(?<![0-9A-Za-z.])[2-6]\d{12,18}(?![0-9A-Za-z.])")


class TokenKeyError(UserError):
    """The key for tokens cannot be used."""


def read_key(path: Path) -> bytes:
    """Return the key in a file, without the white space around it.

    Raises:
        TokenKeyError: It cannot be read or is too short.
    """
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise TokenKeyError(f"privacy.token_key_file: {path} cannot be read: {error.strerror}") from None
    if len(key) < MIN_KEY:
        raise TokenKeyError(
            f"privacy.token_key_file: {path} has {len(key)} bytes; it needs {MIN_KEY} or more"
        )
    return key


def is_card_number(digits: bytes) -> bool:
    """Return whether the check digit is right (Luhn's algorithm, ISO/IEC 7812-1 annex B).

    >>> is_card_number(b"4111111111111111"), is_card_number(b"4111111111111112")
    (True, False)
    """
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = digit - 48
        if place % 2:
            value = value * 2 - 9 * (value > 4)
        total += value
    return total % 10 == 0


class Tokens:
    """Replaces card numbers by tokens.

    Args:
        key: The key.

    Example:
        >>> tokens = Tokens(b"0" * 32)
        >>> tokens.replaced(b'{"card_id": "4111111111111111", "event_time_ms": 1767225600000}')
        b'{"card_id": "card-237ee474b94d38c4e6358ec1", "event_time_ms": 1767225600000}'
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._token = lru_cache(maxsize=65_536)(self._made)

    def replaced(self, text: bytes) -> bytes:
        """Return a text in which card numbers are tokens."""
        return _NUMBER.sub(lambda found: self._token(found[0]), text)

    def _made(self, digits: bytes) -> bytes:
        if not is_card_number(digits):
            return digits
        return b"card-" + hmac.new(self._key, digits, hashlib.sha256).hexdigest()[:24].encode()


def replacing(key: bytes) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that replaces card numbers in the binary columns ``key`` and ``value`` of batches.

    Args:
        key: The key for tokens.
    """

    def replace(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        tokens = Tokens(key)
        for batch in batches:
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            for name in ("key", "value"):
                found = [v if v is None else tokens.replaced(v) for v in columns[name].to_pylist()]
                columns[name] = pa.array(found, columns[name].type)
            yield pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)

    return replace


def tokenised(records: DataFrame, key: bytes) -> DataFrame:
    """Return Kafka records whose key and value have tokens in place of card numbers.

    Args:
        records: Records with the binary columns ``key`` and ``value``.
        key: The key for tokens; it goes to the workers with the plan.
    """
    return records.mapInArrow(replacing(key), records.schema)

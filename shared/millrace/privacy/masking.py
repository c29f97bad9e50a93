"""Card numbers go from messages before anything keeps them, whether or not the messages can be read.

Nearly all messages have none, and one pass over their bytes tells. Of a JSON message only what is replaced
changes; one that is no JSON is looked through as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.dead_letters import NOT_JSON
from millrace.privacy.fields import Treatment
from millrace.privacy.numbers import LONGEST, SHORTEST, digits_of, is_card_number, replaced

if TYPE_CHECKING:
    import pyarrow as pa

#: How a token begins.
PREFIX: Final = "card-"
#: A token: the id of its key, unless that is of before keys had ids, and 96 bits.
TOKEN: Final = re.compile(rf"{PREFIX}(?:[0-9a-f]{{8}}-)?[0-9a-f]{{24}}(?![0-9a-f])")

# What bytes are to a first look: A begins a card number, 0 is another digit, U must be read to know.
_FIRST: Final = b"2345689"
_LOOK: Final = bytes(
    65 if b in _FIRST else 48 if 48 <= b <= 57 else 85 if b >= 128 or b == 92 else 32 for b in range(256)
)
_LETTERS: Final = frozenset(b'"\\') | {b for b in range(128) if chr(b).isalnum()}
_BETWEEN: Final = bytes(b for b in range(128) if b not in _LETTERS)
_NOT_ASCII: Final = bytes(range(128, 256))
_suspicious = re.compile(rb"U|A[A0]{%d}" % (SHORTEST - 1)).search
_long_enough = re.compile(rb"A[A0]{%d}" % (SHORTEST - 1)).search
#: The same as an expression over the bytes as they are.
_SUSPICIOUS: Final = rf'[2-689](?:[^0-9A-Za-z"]*[0-9]){{{SHORTEST - 1}}}|[\\\x80-\xff]'
_other_digit = re.compile(r"(?![0-9])\d").search

_PARTS: Final = re.compile(rb'("[^"\\]*(?:\\.[^"\\]*)*")(\s*:)?|(-?\d[-+.0-9eE]*)|([{}\[\]])', re.DOTALL)
_WHITE: Final = {"n": "\n", "t": "\t", "r": "\r"}
_ESCAPED: Final = re.compile(r"\\u([0-9a-fA-F]{4})|\\([^u])", re.DOTALL)


def may_have_number(message: bytes) -> bool:
    """Return whether a message must be looked at more closely; never false where it has a card number.

    >>> may_have_number(b'{"at_ms":1767225600000}'), may_have_number(b'{"note":"4111-1111-1111-1111"}')
    (False, True)
    """
    found = _suspicious(message.translate(_LOOK, _BETWEEN))
    if found is None:
        return False
    if found[0] != b"U" or b"\\" in message:
        return True
    if _long_enough(message.translate(_LOOK, _BETWEEN + _NOT_ASCII)) is not None:
        return True
    try:
        return _other_digit(message.decode()) is not None
    except UnicodeDecodeError:
        return True


class Masker:
    """Replaces card numbers in messages.

    Args:
        token: Number → token, ASCII.
        fields: Name of a field of JSON objects → how it is treated (see :mod:`millrace.privacy.fields`);
            all other texts are looked through.

    Example:
        >>> masker = Masker(lambda number: "card-x", {"card": "card", "id": "kept"})
        >>> masker.message(b'{"id": "4111111111111111", "card": "4111-1111-1111-1111", "at": 17}')
        b'{"id": "4111111111111111", "card": "card-x", "at": 17}'
    """

    def __init__(self, token: Callable[[str], str], fields: Mapping[str, Treatment] | None = None) -> None:
        self._token = token
        self._of_digits = lru_cache(maxsize=65_536)(self._made)
        self._fields = dict(fields or {})
        cards = sorted(name for name, treatment in self._fields.items() if treatment == "card")
        self._plain_card: re.Pattern[bytes] | None = None
        if cards:
            names = "|".join(map(re.escape, cards))
            text = rf'("(?:{names})"\s*:\s*")([0-9]{{{SHORTEST},{LONGEST}}})(?=")'
            self._plain_card = re.compile(text.encode())

    def messages(self, values: list[bytes], column: pa.Array | None = None) -> list[bytes]:
        """Return messages without card numbers: the same list where there are none.

        Args:
            values: The messages.
            column: The same as Arrow has them.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if column is None:
            column = pa.array(values, pa.binary())
        # One pass of Arrow over all of them takes a quarter of what a look at each takes here.
        doubtful = pc.indices_nonzero(pc.match_substring_regex(column, _SUSPICIOUS)).to_pylist()
        if not doubtful:
            return values
        made = list(values)
        for at in doubtful:
            made[at] = self.message(values[at])
        return made

    def message(self, value: bytes) -> bytes:
        """Return a message without card numbers."""
        return self._read(value) if may_have_number(value) else value

    def text(self, text: str) -> str:
        """Return a text without card numbers; tokens in it stay as they are."""
        if PREFIX not in text:
            return replaced(text, self._token)
        parts, end = [], 0
        for token in TOKEN.finditer(text):
            parts += [replaced(text[end : token.start()], self._token), token[0]]
            end = token.end()
        return "".join([*parts, replaced(text[end:], self._token)])

    def value(self, value: Any) -> Any:
        """Return texts, bytes, and what is made of them, without card numbers: headers, keys of records."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes):
            return self.message(value)
        if isinstance(value, list):
            return [self.value(one) for one in value]
        if isinstance(value, dict):
            return {name: self.value(one) for name, one in value.items()}
        return value

    def _read(self, message: bytes) -> bytes:
        if self._plain_card is not None and b"\\" not in message:
            message = self._plain_card.sub(self._of_field, message)
            if not may_have_number(message):
                return message
        try:
            msgspec.json.decode(message)
        except NOT_JSON:
            return self._unreadable(message)
        return self._json(message)

    def _of_field(self, found: re.Match[bytes]) -> bytes:
        return found[1] + self._of_digits(found[2])

    def _made(self, digits: bytes) -> bytes:
        number = digits.decode()
        return self._token(number).encode() if is_card_number(number) else digits

    def _json(self, message: bytes) -> bytes:
        """Return a JSON message without card numbers; bytes beside them stay as they are."""
        parts: list[bytes] = []
        end = depth = 0
        name = ""
        for part in _PARTS.finditer(message):
            text, colon, number, bracket = part.groups()
            if bracket is not None:
                depth += 1 if bracket in b"{[" else -1
                continue
            if text is not None:
                made = self._json_text(text, None if colon or depth != 1 else self._fields.get(name))
                if colon:
                    name = msgspec.json.decode(text)
                changed, start, stop = made != text, part.start(1), part.end(1)
            else:
                made = self._json_number(number, self._fields.get(name) if depth == 1 else None)
                # A message that is nothing but a number, as keys of records are, gets no quotes.
                made = made if depth else made.strip(b'"')
                changed, (start, stop) = made != number, part.span()
            if changed:
                parts += [message[end:start], made]
                end = stop
        return b"".join([*parts, message[end:]]) if parts else message

    def _json_text(self, literal: bytes, treatment: Treatment | None) -> bytes:
        if len(literal) < SHORTEST + 2 or treatment == "kept":
            return literal
        text: str = msgspec.json.decode(literal)
        if treatment == "card" and (digits := digits_of(text)) and is_card_number(digits):
            return msgspec.json.encode(self._token(digits))
        made = self.text(text)
        return literal if made == text else msgspec.json.encode(made)

    def _json_number(self, literal: bytes, treatment: Treatment | None) -> bytes:
        if treatment in ("number", "kept"):
            return literal
        digits = literal.lstrip(b"-").decode()
        if digits.isdecimal() and is_card_number(digits):
            return msgspec.json.encode(self._token(digits))
        return literal

    def _unreadable(self, message: bytes) -> bytes:
        text = message.decode(errors="surrogateescape")
        made = self.text(text)
        if "\\" in made:
            plain = _ESCAPED.sub(_plain, made)
            without = self.text(plain)
            if without != plain:
                made = without
        return message if made == text else made.encode(errors="surrogateescape")


def _plain(escape: re.Match[str]) -> str:
    r"""Return what an escape of JSON stands for, where that is a digit or something between digits."""
    char = chr(int(escape[1], 16)) if escape[1] else _WHITE.get(escape[2], escape[2])
    return escape[0] if char.isalpha() or "\ud800" <= char <= "\udfff" else char

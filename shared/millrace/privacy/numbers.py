"""Card numbers in texts: what is one, and where they stand, however they are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Final, NamedTuple

#: Lengths of card numbers, digits.
SHORTEST: Final = 13
LONGEST: Final = 19
#: How the numbers of the networks begin, and how long they are (ISO/IEC 7812-1; the issuers' ranges of
#: Visa, Mastercard, Maestro, American Express, Diners Club, JCB, Discover, UnionPay, RuPay, Mir and Troy).
_ISSUED: Final = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"
    r"|5[1-5]\d{14}|(?:50|5[6-8]|63|67)\d{11,17}|6\d{15,18}"
    r"|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|220[0-4]\d{12,15}"
    r"|3[47]\d{13}|3(?:0[0-59]|[689]\d)\d{11,16}|35(?:2[89]|[3-8]\d)\d{12,15}"
    r"|8[12]\d{14}|9792\d{12}"
)
# Digits of any script, between two of which at most three characters stand that are no letters.
_RUN: Final = re.compile(rf"\d(?:[\W_]{{0,3}}\d){{{SHORTEST - 1},}}")
_GROUP: Final = re.compile(r"\d+")
_DOUBLED: Final = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)


def has_check_digit(digits: str) -> bool:
    """Return whether the check digit is right (Luhn's algorithm, ISO/IEC 7812-1 annex B).

    >>> has_check_digit("4111111111111111"), has_check_digit("4111111111111112")
    (True, False)
    """
    values = list(map(int, reversed(digits)))
    return (sum(values[::2]) + sum([_DOUBLED[value] for value in values[1::2]])) % 10 == 0


def is_card_number(digits: str) -> bool:
    """Return whether ASCII digits are a card's number: beginning, length and check digit fit.

    >>> is_card_number("4111111111111111"), is_card_number("1767225600000"), is_card_number("0" * 16)
    (True, False, False)
    """
    return _ISSUED.fullmatch(digits) is not None and has_check_digit(digits)


def digits_of(text: str) -> str | None:
    """Return the digits of a text that has nothing else but what may separate them; ``None``: it has.

    >>> digits_of("4111 1111-1111.1111"), digits_of("PAN4111")
    ('4111111111111111', None)
    """
    digits = text if text.isdecimal() else "".join(c for c in text if c.isdecimal())
    if digits is not text and any(c.isalnum() and not c.isdecimal() for c in text):
        return None
    return digits if digits.isascii() else "".join(str(int(c)) for c in digits)


class Found(NamedTuple):
    """A place in a text where card numbers stand.

    Attributes:
        start: Where it begins.
        end: Where it ends.
        numbers: The numbers; several where what stands there can be read in more than one way.
    """

    start: int
    end: int
    numbers: tuple[str, ...]


def find(text: str) -> Iterator[Found]:
    """Yield the places of card numbers in a text, in order.

    A number begins and ends where digits begin and end: letters stand before and behind it, or something else
    that is no digit. Within it up to three characters that are no letters may stand between any two digits.

    Example:
        >>> [found.numbers for found in find("PAN4111 1111-1111.1111, for 12.99")]
        [('4111111111111111',)]
    """
    for run in _RUN.finditer(text):
        groups = [(g.start(), g.end(), digits_of(g[0]) or "") for g in _GROUP.finditer(run[0])]
        hits = list(_hits([digits for _, _, digits in groups]))
        # Readings that overlap are one place.
        reach, place, places = -1, 0, []
        for hit in hits:
            place += hit[0] > reach
            reach = max(reach, hit[1])
            places.append((place, hit))
        for _, of_place in groupby(places, key=lambda each: each[0]):
            found = [hit for _, hit in of_place]
            first, last = found[0][0], max(hit[1] for hit in found)
            numbers = tuple(dict.fromkeys(hit[2] for hit in found))
            yield Found(run.start() + groups[first][0], run.start() + groups[last][1], numbers)


def _hits(groups: list[str]) -> Iterator[tuple[int, int, str]]:
    """Yield first group, last group and digits of what is a card number."""
    for first in range(len(groups)):
        digits = ""
        for last in range(first, len(groups)):
            digits += groups[last]
            if len(digits) > LONGEST:
                break
            if len(digits) >= SHORTEST and is_card_number(digits):
                yield first, last, digits


def replaced(text: str, token: Callable[[str], str]) -> str:
    """Return a text with tokens in place of card numbers.

    Args:
        text: The text.
        token: Number → token.

    Example:
        >>> replaced("card 4111 1111 1111 1111 (Ann)", lambda number: "card-x")
        'card card-x (Ann)'
    """
    parts, end = [], 0
    for found in find(text):
        parts += [text[end : found.start], " ".join(map(token, found.numbers))]
        end = found.end
    return "".join([*parts, text[end:]]) if parts else text

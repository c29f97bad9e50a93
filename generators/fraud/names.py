"""Ids that tell nothing: numbers of one series are unique, and scattered so that no order shows."""

from __future__ import annotations

from typing import Final

_MASK: Final = (1 << 48) - 1
_FIRST: Final = 0x9E3779B97F4B
_SECOND: Final = 0xBF58476D1CE5

#: The ordinary world's ids; every kind of fraud has a number of its own, 1 to 15.
ORDINARY: Final = 0


def scattered(number: int, owner: int) -> str:
    """Return 12 hexadecimal digits that no other pair of number and owner has.

    Ids of one owner do not depend on how many another has made; and whether a transaction is a fraud cannot
    be read from its id.

    Args:
        number: Count of the thing, below 2**44.
        owner: Who makes it, 0 to 15.

    >>> scattered(0, 1) != scattered(1, 0) != scattered(1, 1)
    True
    """
    # Odd factors and a shift's exclusive or can be undone (mod 2**48), so different stays different.
    mixed = ((number << 4 | owner) * _FIRST + _SECOND) & _MASK
    mixed ^= mixed >> 23
    return f"{mixed * _SECOND & _MASK:012x}"

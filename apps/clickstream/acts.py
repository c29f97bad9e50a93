"""What passes between the app's processes, and the keys it passes by.

The first process knows a browser by its cookie. What it learns goes on under another key, whose first
letters say whose it is: ``p:`` a person (``p:u:`` an account, ``p:v:`` a browser that nobody is known by),
``c:`` a cart, ``s:`` one of some shards that count, ``o:`` an order.
"""

from __future__ import annotations

from typing import Final, Literal
from zlib import crc32

import msgspec

Kind = Literal[
    "count",
    "cart",
    "view",
    "add_to_cart",
    "checkout",
    "purchase",
    "search",
    "visit",
    "link",
    "abandoned",
    "refund",
    "consent",
    "erase",
    "customer",
    "window",
    "attributed",
]

#: How many shards count; an item is always in the same one, so a ranking of all is one of their rankings.
SHARDS: Final = 16


class Act(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Something that a process tells another.

    Attributes:
        key: Whom it concerns.
        kind: What happened.
        at_ms: When, UTC ms.
        cause: The event that it follows from.
        visitor: The browser.
        person: The person it is known as, as the part of a key after ``p:``.
        subject: Item, order, cart, campaign or the like.
        category: Category of the item.
        device: Kind of device.
        stage: How far a cart has come; arm of an experiment.
        cents: Money, cents.
        quantity: How many.
        lo_ms: A window's start; the first of some windows' ends.
        hi_ms: A window's end; the last of some windows' ends.
        first_ms: When a first touch was.
        first: The first touch.
        last_ms: When a last touch was.
        last: The last touch.
        marketing: Whether something may be offered.
        gender: As stated with the account.
        birth_year: As stated with the account.
        counts: Numbers by name.
        revision: Grows with every correction.
    """

    key: str
    kind: Kind
    at_ms: int
    cause: str = ""
    visitor: str = ""
    person: str = ""
    subject: str = ""
    category: str = ""
    device: str = ""
    stage: str = ""
    cents: int = 0
    quantity: int = 0
    lo_ms: int = 0
    hi_ms: int = 0
    first_ms: int = 0
    first: str = ""
    last_ms: int = 0
    last: str = ""
    marketing: bool = False
    gender: str = ""
    birth_year: int = 0
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    revision: int = 0


def shard_of(name: str) -> str:
    """Return the key of the shard that counts something.

    >>> shard_of("item-1") == shard_of("item-1")
    True
    """
    return _SHARD_KEYS[crc32(name.encode()) % SHARDS]


_SHARD_KEYS: Final = tuple(f"s:{number:02}" for number in range(SHARDS))


def share_of(*names: str) -> float:
    """Return a number in [0, 1) that hangs on some names alone: who is in which arm of an experiment.

    >>> 0 <= share_of("person", "experiment") < 1
    True
    """
    import hashlib

    digest = hashlib.blake2b("\0".join(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64

"""Event types that use everything a contract knows."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class Grade(Enum):
    low = "low"
    high = "high"


class Part(msgspec.Struct, frozen=True):
    """A part of an order.

    Attributes:
        sku: Which article.
        count: How many.
    """

    sku: str
    count: Annotated[int, Meta(ge=1)] = 1


class Order(msgspec.Struct, frozen=True):
    """An order as the shop sends it.

    More about it, with ``code`` and a :class:`~somewhere.Else`.

    Attributes:
        order_id: Its identity.
        total: What it costs,
            in units of the currency.
        state: Where it stands (as the shop says).
    """

    order_id: Annotated[str, Meta(min_length=1)]
    total: Annotated[float, Meta(gt=0)]
    state: Literal["new", "paid"]
    grade: Grade
    at: Annotated[datetime, Meta(tz=True)]
    raw: bytes
    urgent: bool
    parts: list[Part]
    prices: dict[str, float]
    first: Part
    note: str | None
    discount: float | None = None
    retries: int = 3
    labels: list[str] = msgspec.field(default_factory=list)
    gift: Part | None = None
    stock: dict[str, Part] = msgspec.field(default_factory=dict)


def order(**changes: object) -> Order:
    made = Order(
        order_id="o-1",
        total=12.5,
        state="paid",
        grade=Grade.high,
        at=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        raw=b"\x00\xff",
        urgent=False,
        parts=[Part("a"), Part("b", 2)],
        prices={"a": 1.5, "b": 0.0},
        first=Part("a"),
        note=None,
        labels=["x"],
        stock={"a": Part("a", 7)},
    )
    return msgspec.structs.replace(made, **changes)


#: Events at the edges: nothing optional, everything optional, zeros and empty values.
ORDERS = (
    order(),
    order(note="", discount=0.0, retries=0, labels=[], gift=Part("", 1), stock={}),
    order(parts=[], prices={}, raw=b"", at=datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    order(total=1e-9, urgent=True, note="ö…", retries=-(2**63), discount=-1.5),
)

"""A shop's topology: two inputs, three links, of which the last takes from both others."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from millrace import Context, KeyedProcess, arrival, side_output, value_state
from millrace.topology import FirstOf, Input, RecordKey, Topology, Upsert, read


class Sale(msgspec.Struct, frozen=True):
    card: str
    shop: str
    cents: int
    at: int


class Back(msgspec.Struct, frozen=True):
    card: str
    cents: int
    at: int
    why: str | None = None


class Total(msgspec.Struct, frozen=True):
    card: str
    cents: int
    shop: str | None = None


class Turnover(msgspec.Struct, frozen=True):
    shop: str
    sales: int


class Seen(msgspec.Struct, frozen=True):
    key: str
    input: str
    number: int


class Cards(KeyedProcess[Sale | Back, Total]):
    """A card's total; what is sold goes on by another output."""

    order = arrival(commutes=True)
    inputs: ClassVar = {"sales": Sale, "backs": Back}
    sold = side_output(Sale)
    cents = value_state(int, default=0)

    def process(self, event: Sale | Back, ctx: Context) -> None:
        if ctx.input == "sales":
            self.cents.value += event.cents
            ctx.output(self.sold, event)  # type: ignore[arg-type]
        else:
            self.cents.value -= event.cents
        ctx.emit(Total(event.card, self.cents.value, getattr(event, "shop", None)))


class Shops(KeyedProcess[Sale, Turnover]):
    order = arrival(commutes=True)
    number = value_state(int, default=0)

    def process(self, event: Sale, ctx: Context) -> None:
        self.number.value += 1
        ctx.emit(Turnover(event.shop, self.number.value))


class Audit(KeyedProcess[Total | Turnover | Sale, Seen]):
    """Counts what it sees by input."""

    order = arrival(commutes=True)
    inputs: ClassVar = {"totals": Total, "turnovers": Turnover, "sales": Sale}
    control_type: ClassVar[Any] = dict
    number = value_state(int, default=0)

    def process(self, event: Any, ctx: Context) -> None:
        self.number.value += 1
        ctx.emit(Seen(str(ctx.key), ctx.input, self.number.value))

    def process_broadcast(self, control: Any, ctx: Any) -> None:
        pass


def shop() -> Topology:
    inputs = {
        "sales": Input("shop.sales", "card", "at"),
        "backs": Input("shop.backs", FirstOf(("card", RecordKey())), "at", clock=False),
    }
    return (
        read(inputs, control="shop.control")
        .process(Cards())
        .key_by("shop", output="sold")
        .process(Shops())
        .key_by("shop", output={"totals": "Cards.main", "turnovers": "main", "sales": "Cards.sold"})
        .process(Audit())
        .write(
            tables={
                "main": "seen",
                "Cards.main": Upsert("totals", ("card",)),
                "Shops.main": "turnovers",
                "Cards.late": "late",
                "Cards.dead_letters": "dead",
                "dead_letters": "dead_seen",
            },
            topics={"Cards.sold": "shop.sold"},
        )
    )

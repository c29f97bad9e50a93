"""The process of orders: by what they came, and what is left of them after refunds."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from millrace import Context, KeyedProcess, days, value_state
from millrace_apps.clickstream.contracts.messages import OrderPlaced, OrderRefunded, OrderValued
from millrace_apps.clickstream.processes.channels import DIRECT, Channels, built_in


class Attribution(msgspec.Struct, frozen=True, gc=False):
    """Where an order came from; a row by ``order_id``, the highest ``revision`` holds.

    Attributes:
        order_id: The order.
        at_ms: When it was made, UTC ms.
        first_touch: Source, medium and campaign that the person first came by; ``direct`` for none.
        last_touch: Those it came by last before the order.
        amount_cents: Its value in the shop's currency; 0 where its rate is not known.
        refunded_cents: What was paid back or cancelled.
        net_cents: What is left.
        revision: 0, and one more for every refund.
        first_channel: The channel of the first touch.
        last_channel: That of the last one.
    """

    order_id: str
    at_ms: int
    first_touch: str
    last_touch: str
    amount_cents: int
    refunded_cents: int
    net_cents: int
    revision: int
    first_channel: str = DIRECT
    last_channel: str = DIRECT


class Order(msgspec.Struct, array_like=True, gc=False):
    """An order and what came back of it; a refund may be known before the order.

    Attributes:
        at_ms: When it was made, UTC ms.
        first: First touch.
        last: Last touch before it.
        cents: Its value.
        refunds: Refund → what was paid back; it holds where nobody has told what is left of the order.
        known: Whether the order has been told.
        revision: How many rows have been written.
        valued: The newest of what was told of its value: revision, value and what was taken back, cents.
    """

    at_ms: int = 0
    first: str = ""
    last: str = ""
    cents: int = 0
    refunds: dict[str, int] = msgspec.field(default_factory=dict)
    known: bool = False
    revision: int = 0
    valued: tuple[int, int, int] | None = None

    @property
    def money(self) -> tuple[int, int]:
        """Its value, and what was taken back, cents."""
        if self.valued is not None:
            return self.valued[1:]
        return self.cents, sum(self.refunds.values())


class Attributions(KeyedProcess[OrderPlaced, Attribution]):
    """Says what brought an order, and again with whatever changes its value.

    Args:
        channels: What tells where visits come from.
    """

    name = "Orders"
    # Revisions count in order of time.
    order = "event_time"
    inputs: ClassVar = {"placed": OrderPlaced, "refunded": OrderRefunded, "valued": OrderValued}
    bought = value_state(Order, ttl=days(400))

    def __init__(self, channels: Channels | None = None) -> None:
        self._channels = channels or built_in()

    def process(self, event: OrderPlaced | OrderRefunded | OrderValued, ctx: Context) -> None:
        """Take down an order, a refund or its value; tell of the order if it is known."""
        order = self.bought.value or Order()
        before = (order.known, order.at_ms, order.first, order.last, *order.money)
        if isinstance(event, OrderPlaced):
            told = (event.at_ms, event.cents, event.first or "direct", event.last or "direct")
            # An order is one by its id, whatever events tell of it: the earliest holds, in any order.
            if order.known and told >= (order.at_ms, order.cents, order.first, order.last):
                return
            order.known = True
            order.at_ms, order.cents, order.first, order.last = told
        elif isinstance(event, OrderRefunded):
            if order.valued is None:
                order.refunds.setdefault(event.refund_id, event.cents)
        elif order.valued is None or event.revision > order.valued[0]:
            order.valued, order.refunds = (event.revision, event.cents, event.back_cents), {}
        after = (order.known, order.at_ms, order.first, order.last, *order.money)
        if order.known and after != before:
            cents, back = order.money
            row = Attribution(
                order_id=ctx.key,
                at_ms=order.at_ms,
                first_touch=order.first,
                last_touch=order.last,
                amount_cents=cents,
                refunded_cents=back,
                net_cents=cents - back,
                revision=order.revision,
                first_channel=self._channels.channel(order.first),
                last_channel=self._channels.channel(order.last),
            )
            ctx.emit(row, revision=order.revision)
            order.revision += 1
        self.bought.value = order

    def on_late(self, event: OrderPlaced | OrderRefunded | OrderValued, ctx: Context) -> None:
        """Orders and refunds are never too late."""
        self.process(event, ctx)

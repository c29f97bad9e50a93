"""The process of carts: which are left, after how long, how far they had come, and what they are worth."""

from __future__ import annotations

from bisect import insort
from typing import Final

import msgspec

from millrace import Context, KeyedProcess, Timer, arrival, days, side_output, value_state
from millrace_apps.clickstream.contracts.messages import CartChange, CartOwner, EraseCart, Shopping, ToCart
from millrace_apps.clickstream.state.suppression import SUPPRESSED, Suppressed, is_suppressed

#: A cart is forgotten this long after anything last happened to it: later purchases still find it, ms.
LIFE_MS: Final = 8 * 86_400_000
#: A cart is left when nothing happens to it for longer than this, ms.
CART_TIMEOUT_MS: Final = 30 * 60_000
_IDLE: Final = "cart"
#: So many orders of a cart are known.
_ORDERS: Final = 4
#: So many owners of a cart are known, the first ones since it was bought.
_OWNERS: Final = 8
#: So many items of a cart are known, those that were changed last.
MOST_ITEMS: Final = 50


class Step(msgspec.Struct, array_like=True, frozen=True, order=True, gc=False):
    """Something that happened to a cart.

    Attributes:
        at_ms: When, ms.
        cause: The event.
        stage: ``cart``, a step of the checkout, or ``bought``.
        cents: How much its value changed.
        visitor: The browser in which it happened.
        person: The person that was known by it.
        marketing: Whether something might be offered there.
        order_id: The order, where it was bought.
        item: What was put in or taken out.
        pieces: How many pieces of it; less than 0: taken out.
        device: Kind of device.
        channel: The channel that the visit came by.
    """

    at_ms: int
    cause: str
    stage: str
    cents: int
    visitor: str = ""
    person: str = ""
    marketing: bool = False
    order_id: str = ""
    item: str = ""
    pieces: int = 0
    device: str = ""
    channel: str = ""


class Cart(msgspec.Struct, array_like=True, gc=False):
    """A cart, whatever browser it is filled in.

    Attributes:
        steps: What happened to it since it was last judged, in order of time.
        cents: Its value before the first of them.
        judged_ms: Time of the last step that has been judged, ms; earlier ones are too late to matter.
        bought_ms: When it was last bought; 0: it was not.
        visitor: The browser in which something last happened.
        person: The person that is known by it.
        marketing: Whether something may be offered there.
        last_ms: When that was.
        told: How many times it has been reported as left.
        owner: Of an earlier version, which had one of them: whom its browser turned out to be of.
        owner_ms: Of an earlier version: since when that was known.
        orders: The last orders that it was bought by: one that is told again buys nothing.
        items: What was in it before the first of the steps: item → pieces.
        owners: Since when (UTC ms) it is whose, of those who came after it was last bought: the first ones.
    """

    steps: list[Step] = msgspec.field(default_factory=list)
    cents: int = 0
    judged_ms: int = 0
    bought_ms: int = 0
    visitor: str = ""
    person: str = ""
    marketing: bool = False
    last_ms: int = 0
    told: int = 0
    owner: str = ""
    owner_ms: int = 0
    orders: list[str] = msgspec.field(default_factory=list)
    items: dict[str, int] = msgspec.field(default_factory=dict)
    owners: list[tuple[int, str]] = msgspec.field(default_factory=list)

    def owned(self, event: CartOwner) -> None:
        """Take down whose it is; of several the first one since it was bought: it was filled before that."""
        insort(self.known_owners(), (event.at_ms, event.person))
        del self.owners[_OWNERS:]

    def known_owners(self) -> list[tuple[int, str]]:
        """Return since when whose it is."""
        if self.owner:
            self.owners, self.owner = [*self.owners, (self.owner_ms, self.owner)], ""
        return self.owners

    def whose(self, person: str, at_ms: int) -> str:
        """Return whose the last step was, with what had been learned by a moment (UTC ms) of nobody's."""
        since, owner = next(iter(self.known_owners()), (0, ""))
        return owner if owner and since <= at_ms and person.startswith("v:") else person

    def take(self, change: CartChange) -> None:
        """Take down what happened; order makes no difference."""
        at = change.at_ms
        step = Step(
            at_ms=at,
            cause=change.cause,
            stage=change.stage,
            cents=change.cents,
            visitor=change.visitor,
            person=change.person,
            marketing=change.marketing,
            order_id=change.order_id,
            item=change.item,
            pieces=change.pieces,
            device=change.device,
            channel=change.channel,
        )
        insort(self.steps, step)
        if at >= self.last_ms:
            self.last_ms, self.visitor, self.person = at, change.visitor, change.person
            self.marketing = change.marketing
        if change.stage == "bought":
            self.bought_ms = max(self.bought_ms, at)

    def left(self, until_ms: int, timeout_ms: int) -> list[tuple[Step, int, list[str], str]]:
        """Return the steps after which it lay idle for longer than a timeout, each once.

        Args:
            until_ms: All that happened up to this time is known, ms.
            timeout_ms: The timeout, ms.

        Returns:
            Each step with the cart's value after it, cents, what was in it, most pieces first, and the person
            whose it was.
        """
        found, settled, cents = [], 0, self.cents
        steps = self.steps
        for place, step in enumerate(steps):
            if step.at_ms + timeout_ms > until_ms:
                break  # what comes after it may still be to come
            cents = self._after(step, cents)
            after = steps[place + 1].at_ms if place + 1 < len(steps) else None
            idle = after is None or after - step.at_ms > timeout_ms
            if idle and cents > 0 and step.stage != "bought":
                inside = sorted(self.items, key=lambda item: (-self.items[item], item))
                # A step kept by an earlier version has none.
                person = self.whose(step.person or self.person, until_ms)
                found.append((step, cents, inside[:MOST_ITEMS], person))
            settled = place + 1
            self.cents, self.judged_ms = cents, step.at_ms
        del steps[:settled]
        return found

    def _after(self, step: Step, cents: int) -> int:
        """Return what is in it after a step, cents: once it is bought, nothing."""
        if step.stage != "bought":
            if step.item:
                pieces = self.items.pop(step.item, 0) + step.pieces
                if pieces > 0:
                    self.items[step.item] = pieces
                if len(self.items) > MOST_ITEMS:
                    del self.items[next(iter(self.items))]
            return cents + step.cents
        if step.order_id and step.order_id in self.orders:
            return cents
        self.orders = [*self.orders[1 - _ORDERS :], step.order_id]
        # What is put into it from now on is another cart's, by whoever.
        self.owners = [one for one in self.known_owners() if one[0] > step.at_ms]
        self.items = {}
        return 0


class Abandonment(msgspec.Struct, frozen=True, gc=False):
    """A cart that was left: nothing happened to it for longer than the timeout.

    Attributes:
        cart_id: The cart.
        since_ms: When something last happened to it, UTC ms.
        noticed_ms: When the timeout was over.
        stage: How far it had come: ``cart``, ``address``, ``delivery`` or ``payment``.
        value_cents: What was in it.
        visitor_id: The browser in which something last happened.
        user_id: The account, where that is known and allowed.
        time: 1 for the first time that it was left, 2 for the next.
        items: What was in it, most pieces first; of a cart with more than 50 items those changed last.
        device: Kind of device on which something last happened to it; empty: not known.
        channel: The channel that visit came by; empty: not known.
    """

    cart_id: str
    since_ms: int
    noticed_ms: int
    stage: str
    value_cents: int
    visitor_id: str
    user_id: str | None
    time: int
    items: list[str] = []
    device: str = ""
    channel: str = ""


class Carts(KeyedProcess[ToCart, Shopping]):
    """Tells which carts were left, and the person whose they were where that is allowed.

    Args:
        timeout_ms: A cart is left when nothing happens to it for longer than this, ms.
    """

    name = "Carts"
    # A cart is judged when the watermark has passed what it is judged by.
    order = arrival(commutes=True)
    # Carts end by themselves; the time to live is for what nobody thought of.
    cart = value_state(Cart, ttl=days(30))
    erased = value_state(Suppressed, ttl=SUPPRESSED)
    abandonments = side_output(Abandonment)

    def __init__(self, timeout_ms: int = CART_TIMEOUT_MS) -> None:
        self._timeout_ms = timeout_ms

    def process(self, event: ToCart, ctx: Context) -> None:
        """Take down what happened to a cart, or forget it."""
        if isinstance(event, EraseCart):
            self.cart.clear()
            self.erased.value = Suppressed(event.at_ms, event.request_id).after(self.erased.value)
            ctx.timers.delete(_IDLE)
            return
        if is_suppressed(self.erased.value, event.at_ms):
            return
        if isinstance(event, CartOwner):
            known = self.cart.value
            if known is not None:
                known.owned(event)
                self.cart.value = known
            return
        cart = self.cart.value or Cart()
        cart.take(event)
        self.cart.value = cart
        due = cart.steps[0].at_ms + self._timeout_ms
        pending = ctx.timers.pending(_IDLE)
        if pending is None or due < pending or len(cart.steps) == 1:
            ctx.timers.at(due, _IDLE)

    def on_late(self, event: ToCart, ctx: Context) -> None:
        """Forget a cart also late; a late purchase only keeps it from being told of again."""
        if isinstance(event, EraseCart | CartOwner):
            self.process(event, ctx)
            return
        if is_suppressed(self.erased.value, event.at_ms):
            return
        cart = self.cart.value
        if cart is not None and event.stage == "bought" and event.at_ms >= cart.judged_ms:
            cart.take(event)
            self.cart.value = cart
        self.emit_late(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Tell of the cart if it was left."""
        cart = self.cart.value
        if cart is None:
            return
        at = timer.at
        for step, cents, inside, person in cart.left(at, self._timeout_ms):
            cart.told += 1
            # As it was then: what the cart knows may be of later. A step kept by an earlier version has none.
            who = step if step.person else cart
            user = person[2:] if person.startswith("u:") else None
            ctx.output(
                self.abandonments,
                Abandonment(
                    cart_id=ctx.key,
                    since_ms=step.at_ms,
                    noticed_ms=at,
                    stage=step.stage,
                    value_cents=cents,
                    visitor_id=who.visitor,
                    user_id=user,
                    time=cart.told,
                    items=inside,
                    device=step.device,
                    channel=step.channel,
                ),
            )
            if who.marketing:
                ctx.emit(
                    Shopping(person, "abandoned", at, step.cause, who.visitor, ctx.key, device=step.device,
                             stage=step.stage, cents=cents, since_ms=step.at_ms, channel=step.channel)
                )  # fmt: skip
        if cart.steps:
            ctx.timers.at(cart.steps[0].at_ms + self._timeout_ms, _IDLE)
        elif (cart.bought_ms and cart.cents <= 0) or at >= cart.last_ms + LIFE_MS:
            self.cart.clear()
            return
        else:
            ctx.timers.at(max(cart.last_ms + LIFE_MS, at + 1), _IDLE)
        self.cart.value = cart

    def last_due(self, latest: int) -> int:
        """Return what is later than the end of any cart."""
        return latest + self._timeout_ms + LIFE_MS + 60_000

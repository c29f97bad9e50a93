"""Persons, carts and shards: the second process, whose keys say what they are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from apps.clickstream.acts import Act
from apps.clickstream.carts import LIFE_MS, Abandonment, Cart
from apps.clickstream.counters import MINUTE_MS, SPANS, ItemFeatures, Shard, item_features, tell
from apps.clickstream.events import Forget
from apps.clickstream.profiles import Person, profile_row
from apps.clickstream.profiles import Profile as ProfileRow
from millrace import Context, KeyedProcess, Timer, arrival, days, side_output, value_state

_CART, _PERSON, _SHARD = "cart", "person", "shard"
#: When a shard looks again for what it can drop, ms.
_DROP_MS: Final = 3_600_000
#: Longer than anything that is kept of an entity goes on without events, ms.
_END_MS: Final = 366 * 86_400_000
#: So many carts of a person are remembered, to be forgotten with it.
_CARTS: Final = 10
_VIEWED: Final = ("view", "search", "add_to_cart", "checkout")


@dataclass(frozen=True, kw_only=True)
class EntityRules:
    """What the process of persons, carts and shards is told.

    Attributes:
        cart_timeout_ms: A cart is left when nothing happens to it for longer than this, ms.
        profile_every_ms: How often a profile's row is written, ms; at purchases always.
        count_lateness_ms: How long after its end a window is corrected by late events, ms.
    """

    cart_timeout_ms: int = 30 * MINUTE_MS
    profile_every_ms: int = 10 * MINUTE_MS
    count_lateness_ms: int = 60 * MINUTE_MS


class Entities(KeyedProcess[Act, Act]):
    """Handles acts by what their key is of: a person, a cart or a shard.

    Args:
        rules: What it is told.
    """

    name = "Entities"
    # Counts and profiles are sums; carts and purchases are judged when the watermark has passed them.
    order = arrival(commutes=True)
    person = value_state(Person, ttl=days(395))
    # Carts and shards end by themselves; a time to live is for what nobody thought of.
    cart = value_state(Cart, ttl=days(30))
    shard = value_state(Shard, ttl=days(7))
    abandonments = side_output(Abandonment)
    profiles = side_output(ProfileRow)
    forget = side_output(Forget)
    items = side_output(ItemFeatures)

    def __init__(self, rules: EntityRules | None = None) -> None:
        self._rules = rules or EntityRules()

    def process(self, event: Act, ctx: Context) -> None:
        """Handle an act that is in time."""
        kind = event.key[:2]
        if kind == "s:":
            self._count(event, ctx)
        elif kind == "c:":
            self._cart(event, ctx)
        elif kind == "p:":
            self._person(event, ctx)
        else:
            ctx.emit(event)

    def on_late(self, event: Act, ctx: Context) -> None:
        """Let a late act do what it still can: correct windows, erase, tell of a purchase."""
        if event.key[:2] == "c:" and event.kind == "cart":
            cart = self.cart.value
            if cart is not None and event.stage == "bought":
                cart.bought_ms = cart.bought_ms or event.at_ms
                self.cart.value = cart
            self.emit_late(event, ctx)
            return
        self.process(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Judge what the watermark has passed."""
        if timer.name == _SHARD:
            self._windows(timer.at, ctx)
        elif timer.name == _CART:
            self._left(timer.at, ctx)
        else:
            self._bought(timer.at, ctx)

    def last_due(self, latest: int) -> int:
        """Return what is later than all that follows: windows, carts and purchases end by themselves."""
        return latest + _END_MS

    # -- shards ----------------------------------------------------------------------------------

    def _count(self, act: Act, ctx: Context) -> None:
        shard = self.shard.value
        if shard is None:
            shard = Shard()
        if act.kind == "visit":
            shard.visit(act)
        else:
            shard.count(act)
        self.shard.value = shard
        if ctx.on_time:
            # Where that is over already it fires in this batch: nobody has been told of that window yet.
            due = (act.at_ms // MINUTE_MS + 1) * MINUTE_MS - 1
        else:
            self._correct(shard, act, ctx)
            later = shard.next_end((ctx.watermark + 1) // MINUTE_MS)
            due = ctx.watermark + _DROP_MS if later is None else later * MINUTE_MS - 1
        ctx.timers.bring_forward(due, _SHARD)

    def _windows(self, at: int, ctx: Context) -> None:
        shard = self.shard.value
        if shard is None:
            return
        end = (at + 1) // MINUTE_MS
        if end * MINUTE_MS == at + 1:
            for act in tell(shard, ctx.key, end, 0):
                ctx.emit(act)
            for row in item_features(shard, end):
                ctx.output(self.items, row)
        shard.forget(end - self._rules.count_lateness_ms // MINUTE_MS)
        later = shard.next_end(end)
        if later is None:
            if shard.empty:
                self.shard.clear()
                return
            # Nothing to tell, but panes to drop once no late event can need them.
            later = end + _DROP_MS // MINUTE_MS
        self.shard.value = shard
        ctx.timers.at(later * MINUTE_MS - 1, _SHARD)

    def _correct(self, shard: Shard, act: Act, ctx: Context) -> None:
        """Tell the windows again that are over and have changed, if they may still change."""
        minute = act.at_ms // MINUTE_MS
        oldest = (ctx.watermark - self._rules.count_lateness_ms) // MINUTE_MS
        ends: set[int] = set()
        over = (ctx.watermark + 1) // MINUTE_MS
        for length, every in SPANS.values():
            first = -(-(minute + 1) // every) * every
            ends.update(range(first, min(minute + length, over) + 1, every))
        for end in sorted(e for e in ends if e > oldest):
            for told in tell(shard, ctx.key, end, ctx.watermark):
                ctx.emit(told, on_time=True, revision=1)

    # -- carts -----------------------------------------------------------------------------------

    def _cart(self, act: Act, ctx: Context) -> None:
        if act.kind == "erase":
            self.cart.clear()
            ctx.timers.delete(_CART)
            return
        cart = self.cart.value or Cart()
        cart.take(act)
        self.cart.value = cart
        due = cart.steps[0].at_ms + self._rules.cart_timeout_ms
        pending = ctx.timers.pending(_CART)
        if pending is None or due < pending or len(cart.steps) == 1:
            ctx.timers.at(due, _CART)

    def _left(self, at: int, ctx: Context) -> None:
        cart = self.cart.value
        if cart is None:
            return
        name = ctx.key[2:]
        for step, cents in cart.left(at, self._rules.cart_timeout_ms):
            cart.told += 1
            # As it was then: what the cart knows may be of later. A step kept by an earlier version has none.
            who = step if step.person else cart
            user = who.person[2:] if who.person.startswith("u:") else None
            ctx.output(
                self.abandonments,
                Abandonment(name, step.at_ms, at, step.stage, cents, who.visitor, user, cart.told),
            )
            if who.marketing:
                ctx.emit(
                    Act(f"p:{who.person}", "abandoned", at, step.cause, who.visitor, who.person, name, "",
                        "", step.stage, cents, marketing=True)
                )  # fmt: skip
        if cart.steps:
            ctx.timers.at(cart.steps[0].at_ms + self._rules.cart_timeout_ms, _CART)
        elif cart.bought_ms or at >= cart.last_ms + LIFE_MS:
            self.cart.clear()
            return
        else:
            ctx.timers.at(max(cart.last_ms + LIFE_MS, at + 1), _CART)
        self.cart.value = cart

    # -- persons ---------------------------------------------------------------------------------

    def _person(self, act: Act, ctx: Context) -> None:
        person = self.person.value or Person()
        kind = act.kind
        if kind == "erase":
            self._erase(act, person, ctx)
            return
        if kind == "customer":
            person.gender, person.birth_year = act.gender, act.birth_year
        elif kind == "link" and act.stage == "withdrawn":
            person.visitors.pop(act.visitor, None)
            person.firsts.pop(act.visitor, None)
            person.lasts.pop(act.visitor, None)
        elif kind == "link":
            person.visitors.setdefault(act.visitor, act.at_ms)
            person.touched(act)
        elif kind == "purchase":
            insort_act(person.purchases, act)
            ctx.timers.at(person.purchases[0].at_ms, _PERSON)
        if kind in ("add_to_cart", "purchase") and act.stage and act.stage not in person.carts:
            person.carts = [*person.carts[1 - _CARTS :], act.stage]
        # Of a browser whose owner has allowed no profile, nothing comes but purchases.
        allowed = ctx.key.startswith("p:u:") or act.marketing or kind in _VIEWED
        counts = allowed and kind not in ("link", "customer", "consent")
        if counts:
            person.observe(act)
        # At once, and not when a purchase is attributed: what came by then hangs on the batches.
        bought = kind == "purchase" and (ctx.key.startswith("p:u:") or person.viewed > 0)
        if counts or bought:
            self._write(person, ctx, at_once=bought)
        self.person.value = person
        self._pass_on(act, person, ctx)

    def _pass_on(self, act: Act, person: Person, ctx: Context) -> None:
        """Tell the offers, with what they may ask about the person."""
        if not act.marketing and act.kind != "consent":
            return
        ctx.emit(
            msgspec.structs.replace(
                act,
                counts=person.features(act.at_ms),
                gender=person.gender,
                birth_year=person.birth_year,
            )
        )

    def _write(self, person: Person, ctx: Context, *, at_once: bool) -> None:
        if not at_once and person.seen_ms - person.written_ms < self._rules.profile_every_ms:
            return
        person.written_ms = person.seen_ms
        person.revision += 1
        ctx.output(self.profiles, profile_row(ctx.key[2:], person), revision=person.revision)

    def _bought(self, at: int, ctx: Context) -> None:
        """Attribute the purchases that all before is known of."""
        person = self.person.value
        if person is None:
            return
        while person.purchases and person.purchases[0].at_ms <= at:
            act = person.purchases.pop(0)
            first, last = person.attribution(act)
            ctx.emit(
                Act(f"o:{act.subject}", "attributed", at, act.cause, subject=act.subject, cents=act.cents,
                    first=first, last=last)
            )  # fmt: skip
        if person.purchases:
            ctx.timers.at(person.purchases[0].at_ms, _PERSON)
        if ctx.key.startswith("p:v:") and not person.viewed and not person.purchases:
            self.person.clear()  # without consent nothing else is kept of it
            return
        self.person.value = person

    def _erase(self, act: Act, person: Person, ctx: Context) -> None:
        person.revision += 1
        ctx.output(self.profiles, profile_row(ctx.key[2:], person, deleted=True), revision=person.revision)
        for visitor in sorted(person.visitors):
            ctx.output(self.forget, Forget(act.subject, visitor, act.at_ms))
        for cart in person.carts:
            ctx.output(self.forget, Forget(act.subject, f"c:{cart}", act.at_ms))
        self.person.clear()
        ctx.timers.delete(_PERSON)
        ctx.emit(act)


def insort_act(acts: list[Act], act: Act) -> None:
    """Insert an act by its time, then by its cause."""
    place = len(acts)
    while place and (acts[place - 1].at_ms, acts[place - 1].cause) > (act.at_ms, act.cause):
        place -= 1
    acts.insert(place, act)

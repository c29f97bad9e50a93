"""The process of persons: their profiles, and by what touch each of their orders came."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import Final

from millrace import Context, Timer, arrival, days, side_output, value_state
from millrace_apps.clickstream.contracts.events import Consent, Forget
from millrace_apps.clickstream.contracts.messages import (
    Absorb,
    Absorbed,
    Activity,
    CapsBack,
    CapsBought,
    CapsGo,
    ConsentSaid,
    Details,
    ErasePerson,
    Link,
    Marked,
    MarketingConsent,
    OrderPlaced,
    Purchase,
    Shopping,
    ToPerson,
    Unlink,
)
from millrace_apps.clickstream.contracts.rows import digest_of
from millrace_apps.clickstream.processes.funnels import Funnel
from millrace_apps.clickstream.processes.person_ways import PersonWays
from millrace_apps.clickstream.state.activity_counts import HOUR_MS
from millrace_apps.clickstream.state.browser_state import HOLDOUT
from millrace_apps.clickstream.state.consent import STITCH, purposes_of
from millrace_apps.clickstream.state.offers import OUTCOME_MS
from millrace_apps.clickstream.state.profiles import LOOK_BACK_MS, Person, Profile, profile_row
from millrace_apps.clickstream.state.suppression import SUPPRESSED, Suppressed, is_suppressed

_BOUGHT: Final = "person"
_STALE: Final = "stale"
_PASSED: Final = "passed"
#: What browsers tell when the watermark passes it, and what ends a profile: rows hang on these.
_IN_ORDER: Final = (Activity, Purchase, Absorb, Absorbed, Unlink, ConsentSaid, ErasePerson)
#: So many carts of a person are remembered, to be forgotten with it.
_CARTS: Final = 10
#: What was done before logins is told apart for so many browsers of a person.
_BROWSERS: Final = 16
#: A login is known for so long, ms: an order that is a day late still finds it.
_KNOWN_MS: Final = OUTCOME_MS + 24 * HOUR_MS


class Persons(PersonWays):
    """Keeps profiles, attributes purchases to touches, and tells the offers what a person does.

    Args:
        profile_every_ms: How often a profile's row is written, ms; at purchases always, and so long after
            the last thing done, so that nothing is missing from the row of somebody who has gone.
        look_back_ms: A touch so long before an order has not brought it, ms.
        merges_caps: Whether what was offered in a browser counts for whoever logs in there.
        funnels: Funnels of persons.
        holdout: Share of the persons who are offered nothing by any rule, by which the arm of their rows is.
        lateness_ms: So long behind the watermark a browser may still tell of a step, ms.
    """

    name = "Persons"
    # Profiles are sums; a purchase is attributed when the watermark has passed it.
    order = arrival(commutes=True)
    person = value_state(Person, ttl=days(395))
    erased = value_state(Suppressed, ttl=SUPPRESSED)
    profiles = side_output(Profile)
    forget = side_output(Forget)
    consents = side_output(Consent)
    placed = side_output(OrderPlaced)

    def __init__(
        self,
        profile_every_ms: int = 10 * 60_000,
        look_back_ms: int = LOOK_BACK_MS,
        *,
        merges_caps: bool = False,
        funnels: tuple[Funnel, ...] = (),
        holdout: float = HOLDOUT,
        lateness_ms: int = 2 * HOUR_MS,
    ) -> None:
        self._profile_every_ms, self._look_back_ms = profile_every_ms, look_back_ms
        self._merges_caps = merges_caps
        super().__init__(funnels, holdout, lateness_ms)

    def process(self, event: ToPerson, ctx: Context) -> None:
        """Let an event count for the person whom it concerns."""
        person = self.person.value or Person()
        if isinstance(event, _IN_ORDER):
            self._catch_up(person, ctx)
        erased = self.erased.value
        if isinstance(event, Marked):
            self._marked(event, person.register, erased, ctx)
        elif erased is not None and not isinstance(event, ErasePerson) and is_suppressed(erased, event.at_ms):
            self._of_before(event, erased, ctx)
        elif isinstance(event, Unlink) and event.forgotten and self.person.value is None:
            return  # nothing is known of the person: nor is by that
        elif isinstance(event, ConsentSaid):
            self._said(event, person, ctx)
        elif isinstance(event, Activity):
            if person.register.no_profile(event.at_ms):
                return
            if event.kind == "add_to_cart":
                _remember(person, event.cart_id)
            person.observe(event.kind, event.at_ms, event.subject, event.category, event.cents)
            self._write(person, ctx)
            self.person.value = person
            if event.marketing and not person.register.no_offer(event.at_ms):
                ctx.emit(_done(event, person))
        elif isinstance(event, Purchase):
            self._purchase(event, person, ctx)
        elif isinstance(event, ErasePerson):
            self._erase(event, person, ctx)
        else:
            if isinstance(event, Link):
                if not event.past:
                    self._knows(event.visitor, 0, person, ctx)
                person.touched(event)
            elif isinstance(event, Unlink):
                person.visitors.pop(event.visitor, None)
                person.came.pop(event.visitor, None)
                if event.passed:
                    ctx.timers.at(max(ctx.event_time, ctx.timers.pending(_PASSED) or 0), _PASSED)
                else:
                    for kept in (person.firsts, person.lasts, person.touched_by):
                        kept.pop(event.visitor, None)
                if person.parts.pop(event.visitor, None) is not None:
                    self._write(person, ctx, at_once=True)
                if self._merges_caps or event.forgotten:
                    ctx.emit(CapsBack(event.person, event.at_ms, event.visitor, event.forgotten))
            elif isinstance(event, Absorb):
                self._absorb(event, person, ctx)
            elif isinstance(event, Absorbed):
                self._absorbed(person, ctx)
                if self._merges_caps:
                    ctx.emit(CapsGo(event.person, event.at_ms, event.into))
            elif isinstance(event, Details):
                person.gender, person.birth_year = event.gender, event.birth_year
            self.person.value = person
            if isinstance(event, MarketingConsent):
                ctx.emit(event)

    def on_late(self, event: ToPerson, ctx: Context) -> None:
        """Nothing is too late for a person: what is late for offers they say themselves."""
        self.process(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Attribute the purchases that all before is known of; write what is not written yet."""
        person = self.person.value
        if person is None:
            return
        if timer.name == _STALE:
            if person.unwritten:
                self._write(person, ctx, at_once=True)
                self.person.value = person
            return
        if timer.name == _PASSED:
            person.passed(timer.at)
            self.person.value = person
            return
        while person.purchases and person.purchases[0].at_ms <= timer.at:
            bought = person.purchases.pop(0)
            first, last = person.attribution(bought, self._look_back_ms)
            ctx.output(self.placed, OrderPlaced(bought.order_id, bought.at_ms, bought.cents, first, last))
        if person.purchases:
            ctx.timers.at(person.purchases[0].at_ms, _BOUGHT)
        if _nobody(ctx.key) and not person.seen_ms and not person.purchases:
            self.person.clear()  # without consent nothing else is kept of it
            return
        self.person.value = person

    def last_due(self, latest: int) -> int:
        """Return what is later than any purchase or row that waits."""
        return latest + self._profile_every_ms + 60_000

    @staticmethod
    def _ordered(order: Purchase, person: Person, ctx: Context) -> None:
        """Let an order wait until the watermark has passed it: all touches before it are known then."""
        insort(person.purchases, order, key=lambda p: (p.at_ms, p.cause))
        ctx.timers.at(person.purchases[0].at_ms, _BOUGHT)

    def _purchase(self, event: Purchase, person: Person, ctx: Context) -> None:
        self._ordered(event, person, ctx)
        _remember(person, event.cart_id)
        # Of a browser whose owner has allowed no profile, nothing comes but purchases.
        allowed = not person.register.no_profile(event.at_ms)
        news = True
        if allowed and (not _nobody(ctx.key) or event.marketing):
            news = person.bought(event.order_id, event.at_ms, event.cents)
        if not news:  # another browser has told of it before
            self.person.value = person
            return
        # At once, and not when a purchase is attributed: what came by then hangs on the batches.
        if allowed and (not _nobody(ctx.key) or person.viewed > 0):
            self._write(person, ctx, at_once=True)
        elif allowed and event.marketing:
            self._write(person, ctx)
        self.person.value = person
        if event.marketing and not person.register.no_offer(event.at_ms):
            ctx.emit(_done(event, person))
            for told in _told_to_browsers(event, person):
                ctx.emit(told)

    def _said(self, event: ConsentSaid, person: Person, ctx: Context) -> None:
        """Take an answer: what is withdrawn in one browser ends in all of them."""
        register = person.register
        before = register.refused
        ways = self._standing(register, ctx)
        news = register.take(event.bits, event.at_ms, event.granted)
        if event.bits & STITCH:
            self._ways_said(event, ways, register, ctx)
        self.person.value = person
        ctx.emit(event)
        if not news:
            return
        for visitor in sorted(person.visitors):
            if visitor != event.visitor:
                self._emit_consents(visitor, event.visitor, person, ctx, only=news)
        after = register.refused
        if after & STITCH and not before & STITCH:
            person.forget_profile()
            self._no_profile(person, ctx)

    def _emit_consents(
        self, visitor: str, said_in: str, person: Person, ctx: Context, *, only: int = 7
    ) -> None:
        """Tell a browser of the person what holds for it, too; it comes by the topic of answers."""
        for bit, at_ms, granted in person.register.entries():
            if bit & only:
                identity = digest_of(f"{ctx.key} {visitor} {bit} {at_ms} {granted}")
                answer = Consent(
                    identity, visitor, ctx.key[2:], purposes_of(bit), granted, at_ms, said_in or ctx.key
                )
                ctx.output(self.consents, answer)

    def _knows(self, visitor: str, since_ms: int, person: Person, ctx: Context) -> None:
        """Know a browser for the person's; since when (UTC ms) is 0 while that is not settled."""
        if visitor not in person.visitors:  # who is linked has been told
            self._emit_consents(visitor, "", person, ctx)
        person.visitors[visitor] = person.visitors.get(visitor) or since_ms

    def _absorb(self, event: Absorb, person: Person, ctx: Context) -> None:
        """Know a browser for the account's, and let what was done there before count, browser by browser."""
        self._knows(event.visitor, event.at_ms, person, ctx)
        for cart in event.carts:  # it knows whose it is, also where no profile may be kept
            _remember(person, cart)
        if person.register.no_profile(event.at_ms):
            return
        if event.part is None:
            return
        if self._merges_caps:
            person.comes(event.visitor, event.at_ms, _KNOWN_MS)
        if event.visitor in person.parts:
            person.parts[event.visitor].add(event.part)
        else:
            if len(person.parts) >= _BROWSERS:  # the oldest can be told apart no more
                person.add(person.parts.pop(min(person.parts, key=lambda name: person.parts[name].seen_ms)))
            person.parts[event.visitor] = event.part
        self._write(person, ctx, at_once=True)

    def _absorbed(self, person: Person, ctx: Context) -> None:
        """Let nothing stand of a browser's profile that is part of an account's now."""
        if person.revision:
            self._no_profile(person, ctx)
        person.forget_profile()
        person.carts = []  # they are the account's

    def _catch_up(self, person: Person, ctx: Context) -> None:
        """Write the row that was due before an event, whose batch may bring both: it is not in that row."""
        due = ctx.timers.pending(_STALE)
        if due is None or due >= ctx.event_time:
            return
        ctx.timers.delete(_STALE)
        if person.unwritten:
            self._write(person, ctx, at_once=True)
            self.person.value = person

    def _write(self, person: Person, ctx: Context, *, at_once: bool = False) -> None:
        if not at_once and person.seen_ms - person.written_ms < self._profile_every_ms:
            person.unwritten = True
            if ctx.timers.pending(_STALE) is None:
                ctx.timers.at(ctx.event_time + self._profile_every_ms, _STALE)
            return
        person.written_ms, person.unwritten = person.seen_ms, False
        person.revision += 1
        ctx.output(self.profiles, profile_row(ctx.key, person), revision=person.revision)

    def _of_before(self, event: ToPerson, erased: Suppressed, ctx: Context) -> None:
        """Let what was done before the erasure bring nobody back; its browser and carts are forgotten."""
        carts = event.carts if isinstance(event, Absorb) else []
        if isinstance(event, Activity | Purchase) and event.cart_id:
            carts = [event.cart_id]
        for cart in carts:  # it has been told whose it is
            ctx.output(self.forget, Forget(erased.request_id, cart, erased.at_ms, "cart"))
        if isinstance(event, Link | Absorb):
            ctx.output(self.forget, Forget(erased.request_id, event.visitor, erased.at_ms, "browser"))
        elif isinstance(event, Purchase):
            ctx.output(self.placed, OrderPlaced(event.order_id, event.at_ms, event.cents, "", ""))

    def _no_profile(self, person: Person, ctx: Context) -> None:
        person.revision += 1
        ctx.output(self.profiles, profile_row(ctx.key, person, deleted=True), revision=person.revision)

    def _erase(self, event: ErasePerson, person: Person, ctx: Context) -> None:
        self._no_profile(person, ctx)
        for bought in person.purchases:
            first, last = person.attribution(bought, self._look_back_ms)
            ctx.output(self.placed, OrderPlaced(bought.order_id, bought.at_ms, bought.cents, first, last))
        if not event.withdrawn:
            self.erased.value = Suppressed(event.at_ms, event.request_id).after(self.erased.value)
            # Of who takes back consent carts are still counted, as of who never gave it.
            for visitor in sorted(person.visitors):
                ctx.output(self.forget, Forget(event.request_id, visitor, event.at_ms, "browser"))
            for cart in person.carts:
                ctx.output(self.forget, Forget(event.request_id, cart, event.at_ms, "cart"))
        self._no_ways(event.at_ms, person.register, ctx)
        self.person.clear()
        for name in (_BOUGHT, _STALE, _PASSED):
            ctx.timers.delete(name)
        ctx.emit(event)


def _nobody(key: str) -> bool:
    """Return whether a person is a browser that nobody is known by."""
    return key.startswith("v:")


def _remember(person: Person, cart: str) -> None:
    if cart and cart not in person.carts:
        person.carts = [*person.carts[1 - _CARTS :], cart]


def _told_to_browsers(event: Purchase, person: Person) -> Iterator[CapsBought]:
    """Yield what decides offers that were made in the person's browsers before a login there."""
    at = event.at_ms
    for visitor, times in sorted(person.came.items()):
        since = [since for since in times if since <= at < since + OUTCOME_MS]
        if since:
            yield CapsBought(f"v:{visitor}", at, event.cause, event.order_id, event.cents, since)


def _done(event: Activity | Purchase, person: Person) -> Shopping:
    """Return what somebody did, with what rules of offers may ask about the person."""
    known = (person.gender, person.birth_year, person.features(event.at_ms))
    if isinstance(event, Purchase):
        return Shopping(
            event.person, "purchase", event.at_ms, event.cause, event.visitor, event.order_id, "",
            event.device, "", event.cents, event.quantity, *known, channel=event.channel,
        )  # fmt: skip
    return Shopping(
        event.person, event.kind, event.at_ms, event.cause, event.visitor, event.subject, event.category,
        event.device, event.step, event.cents, event.quantity, *known, channel=event.channel,
    )  # fmt: skip

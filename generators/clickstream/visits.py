"""Whole visits: who comes, how, what they do, and whether they come back for their cart."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final, TypeAlias

from millrace_apps.clickstream.contracts.events import Customer, Erasure
from millrace_apps.generators.clickstream import truths
from millrace_apps.generators.clickstream.answers import Answers, Left
from millrace_apps.generators.clickstream.browsing import Browser
from millrace_apps.generators.clickstream.campaigns import DIRECT, channel
from millrace_apps.generators.clickstream.carts import Cart
from millrace_apps.generators.clickstream.catalogue import Catalogue
from millrace_apps.generators.clickstream.checkout import STEPS, buy, do_step, remove_some, steps_done
from millrace_apps.generators.clickstream.consents import Consents
from millrace_apps.generators.clickstream.heartbeats import Heartbeats
from millrace_apps.generators.clickstream.lists import Lists
from millrace_apps.generators.clickstream.offers import responds
from millrace_apps.generators.clickstream.orders import Settlement
from millrace_apps.generators.clickstream.profile import DOMAIN_NAME, ClickstreamProfile, Names
from millrace_apps.generators.clickstream.returns import Return, plan_return
from millrace_apps.generators.clickstream.trail import SESSION_GAP_MS, SHOP, Trail
from millrace_apps.generators.clickstream.visitors import Device, Person, Population
from millrace_apps.generators.engine.randomness import substream
from millrace_apps.generators.engine.simulated import Simulated

#: Something to happen later: gives its events when its time has come.
Plan: TypeAlias = Callable[[], list[Simulated]]
#: Puts a plan on the agenda: ``(at_ms, plan)``.
Later: TypeAlias = Callable[[int, Plan], None]

#: Logins of people with an account: when a visit begins (at most), at the checkout; logouts at the end.
_EARLY_LOGIN, _CHECKOUT_LOGIN, _LOGOUT = 0.4, 0.7, 0.1
_CART_PAGE_SHARE: Final = 0.7


class Visits:
    """Plans every visit at its beginning, with all that follows from it.

    Args:
        profile: What decides it all.
        names: Makes identifiers.
        catalogue: What is for sale.
        later: Takes what is to happen at a later time.
        answers: Remembers the carts that are left, where visitors react to offers.
        lists: Remembers who has stopped looking around, where visitors read lists of next items.
    """

    def __init__(
        self,
        profile: ClickstreamProfile,
        names: Names,
        catalogue: Catalogue,
        later: Later,
        answers: Answers | None = None,
        lists: Lists | None = None,
    ) -> None:
        def draws(purpose: str) -> Callable[[], float]:
            return substream(profile.seed, DOMAIN_NAME, purpose).random

        self._profile = profile
        self._names = names
        self._later, self._answers, self._lists = later, answers, lists
        self._population = Population(profile, names)
        self._settlement = Settlement(profile, names, later)
        self._browser = Browser(profile, catalogue)
        self._consents = Consents(profile, names)
        self._heartbeats = Heartbeats(profile) if profile.heartbeat_s else None
        self._numbers = count()
        self._draw_who = draws("who")
        self._draw_shared = draws("shared")
        self._draw_channel = draws("channel")
        self._draw_login = draws("login")
        self._draw_checkout = draws("checkout")
        self._draw_pace = draws("pace")
        self._draw_remove = draws("remove")
        self._draw_return = draws("return")
        self._draw_erasure = draws("erasure")

    def plan(self, at_ms: int) -> list[Simulated]:
        """Return the events of a visit that begins now."""
        number = self._number()
        person, device, shared = self._who(number, at_ms)
        trail = Trail(self._names, number, device, at_ms, heartbeats=self._heartbeats)
        how = channel(self._draw_channel())
        if shared:
            how = DIRECT
        landing = self._browser.arrive(trail, how)
        self._consents.ask(trail)
        early = self._draw_login()
        if (
            person is not None
            and device.user_id is None
            and (shared or early < person.loyalty * _EARLY_LOGIN)
        ):
            trail.wait(self._some_seconds())
            self._log_in(trail, person, shared=shared)
        cart = self._browser.browse(trail, how, landing, lambda: self._names.of("cart", number), once=shared)
        returns = self._settle(trail, cart, person, shared=shared) if cart.lines else None
        self._leave(trail, person, shared=shared, returning=returns is not None)
        if person is not None:
            end = trail.at_ms if returns is None else max(trail.at_ms, returns.end_ms)
            person.household.free_at_ms = end + SESSION_GAP_MS
        events = trail.finish()
        if self._lists is not None and person is None and not cart.lines:
            self._lists.remember(events)
        return events

    def _number(self) -> int:
        # Even; bots' visits have the odd numbers.
        return 2 * next(self._numbers)

    def _who(self, number: int, at_ms: int) -> tuple[Person | None, Device, bool]:
        known, shares = self._draw_who() < self._profile.known, self._draw_shared() < self._profile.shared
        person = self._population.somebody(at_ms) if known else None
        if person is None:
            return None, self._population.stranger(number), False
        if shares:
            return person, self._population.tablet_of(person), True
        return person, self._population.device_of(person), False

    def _log_in(self, trail: Trail, person: Person, *, shared: bool) -> None:
        device = trail.device
        device.user_id = person.user_id
        device.linked = device.linked or not shared
        place = trail.click("login", "account", f"{SHOP}/account/login")
        trail.mark(place, truths.identity(device, person.user_id, shared=shared))
        if not person.registered:
            person.registered = True
            change = Customer(
                self._names.of("change", trail.number),
                person.user_id,
                person.gender,
                person.birth_year,
                person.country,
                trail.at_ms,
            )
            trail.other("customers", person.user_id, change)

    def _some_seconds(self) -> int:
        return 3_000 + int(self._draw_pace() * 57_000)

    def _settle(self, trail: Trail, cart: Cart, person: Person | None, *, shared: bool) -> Return | None:
        """Bring the cart to its end in this visit; returns the visit that buys it later, if any."""
        if self._draw_checkout() < _CART_PAGE_SHARE:
            trail.wait(self._some_seconds())
            trail.click("page_view", "cart", f"{SHOP}/cart")
        remove_some(trail, cart, self._draw_remove)
        if not cart.lines:
            self._mark_abandoned(trail, cart)
            return None
        steps, bought = steps_done(self._profile.conversion, self._draw_checkout())
        logs_in = self._draw_login() < _CHECKOUT_LOGIN
        if steps and person is not None and trail.device.user_id is None and logs_in:
            trail.wait(self._some_seconds())
            self._log_in(trail, person, shared=shared)
        for step, _ in STEPS[:steps]:
            trail.wait(self._some_seconds())
            do_step(trail, cart, step)
        returns = None
        if bought:
            trail.wait(self._some_seconds())
            self._buy(trail, cart, person)
        elif responds(self._profile, trail.visitor_id, None):
            returns = self._plan_return(trail, cart, person, shared=shared)
        self._mark_abandoned(trail, cart, returns)
        if self._answers is not None and not bought:
            life = person.life if person else 0
            self._answers.leave(Left(cart, trail.device, person, life, shared, trail.at_ms, returns))
        return returns

    def _buy(self, trail: Trail, cart: Cart, person: Person | None) -> None:
        order_id = self._names.of("order", trail.number)
        order = buy(trail, cart, order_id, self._settlement.currency(), person=person)
        self._settlement.follow(trail, person, order)

    def _mark_abandoned(self, trail: Trail, cart: Cart, returns: Return | None = None) -> None:
        """Mark the cart's events if it was abandoned, those of its return included."""
        to_come = [] if returns is None else returns.cart_steps()
        truth = truths.abandonment(cart, to_come, trail.device)
        if truth is not None:
            trail.mark_all(cart.places, truth)
            if returns is not None:
                returns.truth = truth
        # From here on the places are those of the visit that comes back.
        cart.places = []

    def _plan_return(self, trail: Trail, cart: Cart, person: Person | None, *, shared: bool) -> Return:
        returns = plan_return(
            self._number(),
            trail.at_ms,
            cart,
            trail.device,
            person,
            shared=shared,
            draw=self._draw_return,
            some_seconds=self._some_seconds,
        )
        self.come_back(returns, shared=shared)
        return returns

    def come_back(self, returns: Return, *, shared: bool) -> None:
        """Have a visit happen that buys what an earlier one left in the cart.

        Args:
            returns: The visit.
            shared: Whether it is made with a household's device.
        """
        self._later(returns.at_ms, lambda: self._come_back(returns, shared=shared))

    def _come_back(self, returns: Return, *, shared: bool) -> list[Simulated]:
        """Return the events of a visit that buys what an earlier one left in the cart."""
        cart, person = returns.cart, returns.person
        trail = Trail(self._names, returns.number, returns.device, returns.at_ms, heartbeats=self._heartbeats)
        trail.land(returns.how, "cart", f"{SHOP}/cart")
        trail.wait(returns.pauses[0])
        elsewhere = cart.visitor_id != trail.visitor_id
        if person is not None and trail.device.user_id is None and (elsewhere or shared):
            self._log_in(trail, person, shared=shared)
        for (step, _), pause in zip(STEPS, returns.pauses[1:], strict=False):
            trail.wait(pause)
            do_step(trail, cart, step)
        trail.wait(returns.pauses[-1])
        self._buy(trail, cart, person)
        if returns.truth is not None:
            trail.mark_all(cart.places, returns.truth)
        if shared:
            self._log_out(trail)
        return trail.finish()

    def _leave(self, trail: Trail, person: Person | None, *, shared: bool, returning: bool) -> None:
        """Reconsider consent, ask for erasure, log out."""
        self._consents.reconsider(trail)
        leaves, logs_out = self._draw_erasure(), self._draw_login()
        if person is None:
            return
        if person.registered and not returning and leaves < self._profile.erasures / 1000:
            self._erase(trail, person)
        elif trail.device.user_id is not None and (shared or logs_out < _LOGOUT):
            trail.wait(self._some_seconds())
            self._log_out(trail)

    def _log_out(self, trail: Trail) -> None:
        trail.click("logout", "account", f"{SHOP}/account/logout")
        trail.device.user_id = None
        trail.device.parted = True

    def _erase(self, trail: Trail, person: Person) -> None:
        trail.wait(self._some_seconds())
        request_id = self._names.of("erasure", trail.number)
        request = Erasure(request_id, person.user_id, trail.at_ms)
        place = trail.other("erasures", person.user_id, request)
        trail.mark(place, truths.erasure(request_id, person))
        trail.device.user_id = None
        self._population.renew(person)

"""The process of offers: made to persons by rules, within caps, and what came of them."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from millrace import Context, KeyedProcess, Timer, days, side_output, value_state
from millrace_apps.clickstream.contracts.messages import (
    CapsBack,
    ConsentSaid,
    ErasePerson,
    MarketingConsent,
    Shopping,
    ToOffers,
)
from millrace_apps.clickstream.processes.offer_rules import DEFAULT_RULES, OfferRule
from millrace_apps.clickstream.state.browser_state import HOLDOUT
from millrace_apps.clickstream.state.consent import OFFER
from millrace_apps.clickstream.state.offers import KeptOffers, Offer, OfferBook, OfferOutcome

_TIDY: Final = "tidy"
#: Longer than an offer is waited for or capped, ms.
_END_MS: Final = 366 * 86_400_000


class OffersBase:
    """What is kept of a person to find whom rules match, and when.

    Args:
        rules: The rules.
        holdout: Share of the persons who are offered nothing by any rule.
    """

    person: Any

    def __init__(self, rules: tuple[OfferRule, ...] = DEFAULT_RULES, holdout: float = HOLDOUT) -> None:
        self._rules, self._holdout = rules, holdout
        self._book = OfferBook(rules, holdout)

    def __reduce__(self) -> tuple[type[OffersBase], tuple[tuple[OfferRule, ...], float]]:
        # What the rules are compiled to has functions and types that cannot travel: it is made anew.
        return type(self), (self._rules, self._holdout)

    def _make(self, event: Shopping, state: KeptOffers, ctx: Context) -> None:
        """Offer what an event completes."""
        raise NotImplementedError

    def _bought(self, event: Shopping, state: KeptOffers | None, ctx: Context) -> None:
        """Say what came of offers by a purchase."""
        raise NotImplementedError

    def _take(self, event: ToOffers, state: KeptOffers, ctx: Context) -> None:
        """Let what somebody did go on with every rule."""
        if isinstance(event, MarketingConsent | ConsentSaid):
            self._said(event, state)
            self.person.value = state
            return
        if not isinstance(event, Shopping) or state.forbids(event.visitor, event.at_ms):
            return
        if event.kind == "purchase":
            if not state.buys(event):
                return
            self._bought(event, state, ctx)
        elif event.kind == "abandoned" and event.since_ms <= state.bought_ms:
            return  # something else was bought meanwhile: nobody has gone
        self._make(event, state, ctx)
        self._tidy(state, event.at_ms, ctx)

    def _said(self, event: MarketingConsent | ConsentSaid, state: KeptOffers) -> None:
        """Take down what was said about consent; of a withdrawal nothing that was begun goes on."""
        if isinstance(event, ConsentSaid):
            state.register.take(event.bits, event.at_ms, event.granted)
            refused = state.register.refuses(OFFER)
        else:
            if event.granted:
                state.withdrawn.pop(event.visitor, None)
            state.browser_says(event.visitor, event.at_ms, event.granted, event.revision)
            refused = not event.granted
        if refused:
            state.partials.clear()

    def _parts(self, event: CapsBack, state: KeptOffers, ctx: Context) -> None:
        """Let nothing have the name of a browser that is forgotten; what was begun does not go on."""
        if event.forgotten:
            state.browsers.pop(event.visitor, None)
            state.withdrawn.pop(event.visitor, None)
            state.partials.clear()
            state.before.clear()
            self._tidy(state, event.at_ms, ctx)

    def _erase(self, event: ErasePerson, state: KeptOffers, ctx: Context) -> None:
        ctx.timers.delete(_TIDY)
        if event.withdrawn and state.tells_of_consent:
            self.person.value = KeptOffers(
                withdrawn=state.withdrawn, register=state.register, browsers=state.browsers
            )
        else:
            self.person.clear()

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Say of which offers nothing came; drop what is over."""
        state = self.person.value
        if state is not None:
            self._over(state, timer.at, ctx)
            self._tidy(state, timer.at, ctx)

    def _over(self, state: KeptOffers, now_ms: int, ctx: Context) -> None:
        """Say of which offers nothing came."""

    def last_due(self, latest: int) -> int:
        """Return what is later than all that follows: offers, caps and outcomes end by themselves."""
        return latest + _END_MS

    def _tidy(self, state: KeptOffers, now_ms: int, ctx: Context) -> None:
        due = self._book.tidy(state, now_ms)
        if due is None and not state.tells_of_consent and not state.before:
            self.person.clear()
            ctx.timers.delete(_TIDY)
            return
        self.person.value = state
        if due is not None:
            ctx.timers.at(max(due, now_ms + 1), _TIDY)


class Offers(OffersBase, KeyedProcess[ToOffers, Offer]):
    """Makes offers, and says what came of each.

    Args:
        rules: The rules.
        holdout: Share of the persons who are offered nothing by any rule.
    """

    name = "Offers"
    # Patterns, caps and withdrawn consent hang on the order of events.
    order = "event_time"
    inputs: ClassVar = {"persons": ToOffers, "carts": Shopping}
    person = value_state(KeptOffers, ttl=days(30))
    outcomes = side_output(OfferOutcome)

    def process(self, event: ToOffers, ctx: Context) -> None:
        """Let what somebody did go on with every rule."""
        state = self.person.value or KeptOffers()
        if isinstance(event, ErasePerson):
            self._erase(event, state, ctx)
        elif isinstance(event, CapsBack):
            self._parts(event, state, ctx)
        else:
            self._take(event, state, ctx)

    def on_late(self, event: ToOffers, ctx: Context) -> None:
        """Withdrawals and erasures are never too late; an offer is."""
        if isinstance(event, ErasePerson | MarketingConsent | ConsentSaid | CapsBack):
            self.process(event, ctx)
            return
        if isinstance(event, Shopping) and event.kind == "purchase":
            self._bought(event, self.person.value, ctx)
        self.emit_late(event, ctx)

    def _make(self, event: Shopping, state: KeptOffers, ctx: Context) -> None:
        offer = self._book.take(state, event)
        if offer is not None:
            ctx.emit(offer)

    def _bought(self, event: Shopping, state: KeptOffers | None, ctx: Context) -> None:
        if state is not None:
            for outcome in self._book.bought(state, event):
                ctx.output(self.outcomes, outcome)
            self.person.value = state

    def _over(self, state: KeptOffers, now_ms: int, ctx: Context) -> None:
        for outcome in self._book.over(state, now_ms):
            ctx.output(self.outcomes, outcome)

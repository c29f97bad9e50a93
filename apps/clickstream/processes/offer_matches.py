"""The process of matches: whom rules of offers match, by browser or account; caps are one link further.

What a browser's key has made reaches the account's in the order of events: at a login it is handed on, and
where the browser is no longer the person's it is taken back.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from millrace import Context, KeyedProcess, days, value_state
from millrace_apps.clickstream.contracts.messages import (
    CapsBack,
    CapsBought,
    CapsGo,
    ConsentSaid,
    ErasePerson,
    MarketingConsent,
    Shopping,
    ToOffers,
)
from millrace_apps.clickstream.processes.offering import OffersBase
from millrace_apps.clickstream.state.offers import KeptOffers, Offer

#: Stands for any rule where it is told when an offer was last made.
ANY: Final = ""


class Matched(msgspec.Struct, frozen=True, gc=False, tag="matched"):
    """Rules have matched at an event of a person.

    Attributes:
        person: Who.
        at_ms: When, UTC ms.
        offers: The offer of each rule, in the order of the rules: the first that caps allow is made.
    """

    person: str
    at_ms: int
    offers: list[Offer]


class Brought(msgspec.Struct, frozen=True, gc=False, tag="brought"):
    """What was offered in a browser while nobody was known by it is somebody's now.

    Attributes:
        person: Whose.
        at_ms: When that was known, UTC ms.
        visitor: The browser.
        made: Rule → times of its offers, UTC ms.
    """

    person: str
    at_ms: int
    visitor: str
    made: dict[str, list[int]]


ToCaps = Matched | Brought | CapsGo | CapsBought | CapsBack | Shopping | ErasePerson


class OfferMatches(OffersBase, KeyedProcess[ToOffers, ToCaps]):
    """Finds whom rules match, and tells the process of caps; of browsers it knows what was offered there.

    Args:
        rules: The rules.
        holdout: Share of the persons who are offered nothing by any rule.
    """

    name = "OfferMatches"
    order = "event_time"
    inputs: ClassVar = {"persons": ToOffers, "carts": Shopping}
    person = value_state(KeptOffers, ttl=days(30))

    def process(self, event: ToOffers, ctx: Context) -> None:
        """Let what somebody did go on with every rule."""
        state = self.person.value or KeptOffers()
        if isinstance(event, CapsGo):
            ctx.emit(event)
            self._forward(event, state, ctx)
        elif isinstance(event, CapsBought):
            if not state.forbids(event.person[2:], event.at_ms):
                ctx.emit(event)
        elif isinstance(event, CapsBack):
            ctx.emit(event)
            self._parts(event, state, ctx)
        elif isinstance(event, ErasePerson):
            ctx.emit(event)
            self._erase(event, state, ctx)
        else:
            self._take(event, state, ctx)

    def on_late(self, event: ToOffers, ctx: Context) -> None:
        """Whose a browser is, is never too late; an offer is."""
        if isinstance(event, CapsGo | CapsBought | CapsBack | ErasePerson | MarketingConsent | ConsentSaid):
            self.process(event, ctx)
        else:
            if isinstance(event, Shopping) and event.kind == "purchase":
                self._bought(event, self.person.value, ctx)
            self.emit_late(event, ctx)

    def _make(self, event: Shopping, state: KeptOffers, ctx: Context) -> None:
        nobody = event.person.startswith("v:")
        found = self._book.matches(state, event)
        if nobody:
            # No browser is handed anything on: what its own caps allow is what is offered.
            one = self._book.first_allowed(state, found, event.at_ms)
            found = [] if one is None else [one]
        if found:
            ctx.emit(Matched(event.person, event.at_ms, found))

    def _bought(self, event: Shopping, state: KeptOffers | None, ctx: Context) -> None:
        ctx.emit(event)

    def _forward(self, event: CapsGo, state: KeptOffers, ctx: Context) -> None:
        """Tell an account what was offered in this browser since somebody was last known by it."""
        made = {
            rule: times
            for rule, all_ in state.made.items()
            if (times := [t for t in all_ if t > state.handed_ms])
        }
        if state.last_ms > state.handed_ms:
            made[ANY] = [state.last_ms]  # a cool-down may be longer than the time of a cap
        if made:
            state.handed_ms = max(max(times) for times in made.values())
            self.person.value = state
            ctx.emit(Brought(event.into, event.at_ms, event.person[2:], made))

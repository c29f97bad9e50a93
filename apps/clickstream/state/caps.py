"""Caps of offers of a person over all browsers: what was offered before a login counts for the account.

Who matches a rule is found by the browser or the account that the events are of; whether something is offered
is decided here, one link further, by person. So what a browser's key has made reaches the account's in the
order of events: at a login it is handed on, and where the browser is no longer the person's it is taken back.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from millrace import Context, KeyedProcess, Timer, days, side_output, value_state
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
from millrace_apps.clickstream.processes.offer_rules import DEFAULT_RULES, OfferRule
from millrace_apps.clickstream.processes.offering import OffersBase
from millrace_apps.clickstream.state.browser_state import HOLDOUT
from millrace_apps.clickstream.state.offers import (
    OUTCOME_MS,
    KeptOffers,
    Offer,
    OfferBook,
    OfferOutcome,
    Waiting,
)

_TIDY: Final = "tidy"
#: What was offered before logins is told apart for so many browsers of a person.
MOST_BROWSERS: Final = 16
#: Stands for any rule where it is told when an offer was last made.
ANY: Final = ""
#: Longer than an offer is waited for or capped, ms.
_END_MS: Final = 366 * 86_400_000


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


class CapChange(msgspec.Struct, frozen=True, gc=False):
    """What was offered in a browser counts for a person from now on, or does no more.

    Attributes:
        person: Who.
        visitor_id: The browser.
        at_ms: When, UTC ms.
        change: ``merged``, or ``unmerged``.
        offers: Rule → how many of its offers.
    """

    person: str
    visitor_id: str
    at_ms: int
    change: str
    offers: dict[str, int]


class KeptCaps(msgspec.Struct, gc=False):
    """What is kept of a person's offers.

    Attributes:
        made: Rule → times of its offers within the time of its cap, UTC ms.
        brought: Browser → the same, of what was offered there before a login.
        waiting: Offers whose outcome is not known.
    """

    made: dict[str, list[int]] = msgspec.field(default_factory=dict)
    brought: dict[str, dict[str, list[int]]] = msgspec.field(default_factory=dict)
    waiting: list[Waiting] = msgspec.field(default_factory=list)

    def times(self, rule: str) -> list[int]:
        """Return when offers of a rule were made, by whichever browser."""
        return [*self.made.get(rule, ()), *(t for made in self.brought.values() for t in made.get(rule, ()))]

    def last_ms(self, at_ms: int) -> int:
        """Return when any offer was last made, up to a moment, UTC ms; 0: none was."""
        all_ = (made for made in (self.made, *self.brought.values()))
        return max((t for made in all_ for times in made.values() for t in times if t <= at_ms), default=0)


class OfferMatches(OffersBase, KeyedProcess[ToOffers, ToCaps]):
    """Finds whom rules match, and tells :class:`Caps`; of browsers it knows what was offered there.

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
            self._hand_on(event, state, ctx)
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

    def _hand_on(self, event: CapsGo, state: KeptOffers, ctx: Context) -> None:
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


class Caps(KeyedProcess[ToCaps, Offer]):
    """Makes offers within caps over all browsers of a person, and says what came of each.

    Args:
        rules: The rules.
        holdout: Share of the persons who are offered nothing by any rule.
    """

    name = "Caps"
    order = "event_time"
    kept = value_state(KeptCaps, ttl=days(400))
    outcomes = side_output(OfferOutcome)
    cap_changes = side_output(CapChange)

    def __init__(self, rules: tuple[OfferRule, ...] = DEFAULT_RULES, holdout: float = HOLDOUT) -> None:
        self._rules, self._holdout = rules, holdout
        self._book = OfferBook(rules, holdout)

    def __reduce__(self) -> tuple[type[Caps], tuple[tuple[OfferRule, ...], float]]:
        # What the rules are compiled to has functions and types that cannot travel: it is made anew.
        return Caps, (self._rules, self._holdout)

    def process(self, event: ToCaps, ctx: Context) -> None:
        """Make the first offer that caps allow; take down whose offers count for the person."""
        state = self.kept.value or KeptCaps()
        if isinstance(event, ErasePerson):
            self.kept.clear()
            ctx.timers.delete(_TIDY)
            return
        if isinstance(event, Matched):
            one = self._book.allowed_of(event.offers, state.times, state.last_ms(event.at_ms), event.at_ms)
            if one is not None:
                state.made.setdefault(one.rule, []).append(event.at_ms)
                state.waiting.append(
                    Waiting(one.offer_id, one.rule, one.arm, event.at_ms, one.device, one.channel)
                )
                ctx.emit(one)
        elif isinstance(event, Shopping | CapsBought):
            for outcome in self._book.bought(state, event):
                ctx.output(self.outcomes, outcome)
        elif isinstance(event, CapsGo):
            self._book.taken(state, event.at_ms)
        elif isinstance(event, Brought):
            self._merge(event, state, ctx)
        else:
            self._part(event, state, ctx)
        self._tidy(state, ctx.event_time, ctx)

    def on_late(self, event: ToCaps, ctx: Context) -> None:
        """Whose a browser is, what was bought and who is forgotten is never too late; an offer is."""
        if isinstance(event, Matched):
            self.emit_late(event, ctx)
        else:
            self.process(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Say of which offers nothing came; drop what is over."""
        state = self.kept.value
        if state is not None:
            for outcome in self._book.over(state, timer.at):
                ctx.output(self.outcomes, outcome)
            self._tidy(state, timer.at, ctx)

    def last_due(self, latest: int) -> int:
        """Return what is later than all that follows: caps and outcomes end by themselves."""
        return latest + _END_MS

    def _merge(self, event: Brought, state: KeptCaps, ctx: Context) -> None:
        own = state.brought.setdefault(event.visitor, {})
        for rule, times in event.made.items():
            own[rule] = sorted({*own.get(rule, ()), *times})
        self._told(event.visitor, "merged", event.made, ctx)
        if len(state.brought) > MOST_BROWSERS:  # the oldest can be told apart no more
            oldest = min(state.brought, key=lambda name: max(map(max, state.brought[name].values())))
            for rule, times in state.brought.pop(oldest).items():
                state.made[rule] = sorted([*state.made.get(rule, ()), *times])

    def _part(self, event: CapsBack, state: KeptCaps, ctx: Context) -> None:
        gone = state.brought.pop(event.visitor, None)
        if gone is not None and not event.forgotten:
            self._told(event.visitor, "unmerged", gone, ctx)

    def _told(self, visitor: str, change: str, made: dict[str, list[int]], ctx: Context) -> None:
        counts = {rule: len(times) for rule, times in sorted(made.items()) if rule != ANY}
        ctx.output(self.cap_changes, CapChange(str(ctx.key), visitor, ctx.event_time, change, counts))

    def _tidy(self, state: KeptCaps, now_ms: int, ctx: Context) -> None:
        """Drop what no cap, cool-down or outcome asks for any more."""
        for made in (state.made, *state.brought.values()):
            for rule in list(made):
                made[rule] = [t for t in made[rule] if t + self._book.kept_for(rule) > now_ms]
                if not made[rule]:
                    del made[rule]
        state.brought = {visitor: made for visitor, made in state.brought.items() if made}
        dues = [
            min(times) + self._book.kept_for(rule)
            for made in (state.made, *state.brought.values())
            for rule, times in made.items()
        ]
        dues += [w.at_ms + OUTCOME_MS for w in state.waiting]
        if dues:
            self.kept.value = state
            ctx.timers.at(max(min(dues), now_ms + 1), _TIDY)
        else:
            self.kept.clear()
            ctx.timers.delete(_TIDY)

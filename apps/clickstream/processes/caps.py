"""The process of caps: offers within the caps of a person over all browsers, and what came of them.

What was offered before a login counts for the account.
"""

from __future__ import annotations

from typing import Final

import msgspec

from millrace import Context, KeyedProcess, Timer, days, side_output, value_state
from millrace_apps.clickstream.contracts.messages import CapsBack, CapsBought, CapsGo, ErasePerson, Shopping
from millrace_apps.clickstream.processes.offer_matches import ANY, Brought, Matched, ToCaps
from millrace_apps.clickstream.processes.offer_rules import DEFAULT_RULES, OfferRule
from millrace_apps.clickstream.state.browser_state import HOLDOUT
from millrace_apps.clickstream.state.caps import KeptCaps
from millrace_apps.clickstream.state.offers import OUTCOME_MS, Offer, OfferBook, OfferOutcome, Waiting

_TIDY: Final = "tidy"
#: What was offered before logins is told apart for so many browsers of a person.
MOST_BROWSERS: Final = 16
#: Longer than an offer is waited for or capped, ms.
_END_MS: Final = 366 * 86_400_000


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

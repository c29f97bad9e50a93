"""Offers of one person: which rule has matched, what caps allow, in which arm, and what came of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from millrace.experiments import Experiment
from millrace.patterns import skip_past_last
from millrace.patterns.automaton import compile_pattern
from millrace.patterns.buffer import kept_type
from millrace.patterns.matcher import Matcher
from millrace_apps.clickstream.contracts.messages import CapsBought, Shopping
from millrace_apps.clickstream.processes.offer_rules import OfferRule, duration_ms
from millrace_apps.clickstream.state.browser_state import HOLDOUT, OFFERS
from millrace_apps.clickstream.state.registers import MOST_ANSWERS, Register

#: Partial matches that a rule may have of one person; of more, the oldest go.
_MOST: Final = 32
#: A purchase this soon after an offer counts for it, ms.
OUTCOME_MS: Final = 7 * 86_400_000
#: It is known for so long that something was bought, ms: the longest time after which a cart is left.
_BOUGHT_MS: Final = 86_400_000
#: So many orders of a person are known meanwhile.
_ORDERS: Final = 8


class Offer(msgspec.Struct, frozen=True, gc=False):
    """An offer to a person, or that none was made to somebody of the control arm or of the hold-out.

    Attributes:
        offer_id: Its identity: hangs on rule, person and event alone, so a replay gives the same.
        rule: The rule.
        offer: What is offered.
        arm: ``offer``, ``control`` of the rule, or ``holdout`` of all rules.
        person: ``u:`` and the account, or ``v:`` and the browser.
        visitor_id: The browser to show it in.
        cart_id: The cart that was left, if the rule is about one.
        at_ms: Time of the event that completed the rule, UTC ms.
        why: Step → the event that was taken for it, and what it was.
        device: Kind of device of that event; empty: not known.
        channel: The channel that its visit came by; empty: not known.
    """

    offer_id: str
    rule: str
    offer: str
    arm: str
    person: str
    visitor_id: str
    cart_id: str | None
    at_ms: int
    why: dict[str, str]
    device: str = ""
    channel: str = ""


class OfferOutcome(msgspec.Struct, frozen=True, gc=False):
    """What came of an offer, or of its absence; a row by ``offer_id``.

    Attributes:
        offer_id: The offer.
        rule: Its rule.
        arm: ``offer``, ``control`` of the rule, or ``holdout`` of all rules.
        converted: Whether something was bought within 7 days.
        order_id: What was bought first.
        cents: Its value, cents.
        decided_ms: When that was, or the 7 days were over.
        device: Kind of device at which the offer was made; empty: not known.
        channel: The channel that the visit came by; empty: not known.
    """

    offer_id: str
    rule: str
    arm: str
    converted: bool
    order_id: str | None
    cents: int
    decided_ms: int
    device: str = ""
    channel: str = ""


class Waiting(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An offer whose outcome is not known yet.

    Attributes:
        offer_id: The offer.
        rule: Its rule.
        arm: Its arm.
        at_ms: When it was made, UTC ms.
        device: Kind of device at which it was made.
        channel: The channel that the visit came by.
        taken_ms: When the account logged in, UTC ms, whose purchases decide it, too; 0: none has.
    """

    offer_id: str
    rule: str
    arm: str
    at_ms: int
    device: str = ""
    channel: str = ""
    taken_ms: int = 0


class Waits(Protocol):
    """Something that keeps offers whose outcome is not known yet."""

    waiting: list[Waiting]


class OfferState(msgspec.Struct, gc=False):
    """What is kept of a person for offers.

    Attributes:
        partials: Rule → its partial matches.
        made: Rule → times of its offers within the time of its cap, ms.
        last_ms: Time of the last offer of any rule.
        waiting: Offers whose outcome is not known.
        before: Rule → kind and subject of the event that it saw last.
        withdrawn: Browser → when consent was withdrawn there; of an earlier version.
        register: What the person has said about consent, in whichever browser.
        browsers: Browser → moment (UTC ms) → the newest revision of what was said of it, twice, plus 1 where
            from then on something may be offered.
        bought_ms: When something was last bought, kept for a day: a cart that lay idle by then is not left.
        orders: The last orders: one that is told again is no purchase.
        handed_ms: Of a browser: what was offered up to then is known to count for an account.
    """

    partials: dict[str, Any] = msgspec.field(default_factory=dict)
    made: dict[str, list[int]] = msgspec.field(default_factory=dict)
    last_ms: int = 0
    waiting: list[Waiting] = msgspec.field(default_factory=list)
    before: dict[str, str] = msgspec.field(default_factory=dict)
    withdrawn: dict[str, int] = msgspec.field(default_factory=dict)
    register: Register = msgspec.field(default_factory=Register)
    browsers: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    bought_ms: int = 0
    orders: list[str] = msgspec.field(default_factory=list)
    handed_ms: int = 0

    def buys(self, event: Shopping) -> bool:
        """Take down a purchase; return whether its order was not known yet."""
        if event.subject and event.subject in self.orders:
            return False
        self.orders = [*self.orders[1 - _ORDERS :], event.subject]
        self.bought_ms = max(self.bought_ms, event.at_ms)
        return True

    def forbids(self, visitor: str, at_ms: int) -> bool:
        """Tell whether nothing may be offered in a browser for what was done there at a moment, UTC ms."""
        return (
            self.withdrawn.get(visitor, at_ms + 1) <= at_ms
            or self.register.no_offer(at_ms)
            or self._not_there(visitor, at_ms)
        )

    def _not_there(self, visitor: str, at_ms: int) -> bool:
        said = self.browsers.get(visitor)
        if not said:
            return False
        then = max((moment for moment in said if moment <= at_ms), default=None)
        return not said[max(said)] & 1 or (then is not None and not said[then] & 1)

    def browser_says(self, visitor: str, at_ms: int, granted: bool, revision: int) -> None:
        """Take down that from a moment (UTC ms) on something may be offered in a browser, or may not."""
        said = self.browsers.setdefault(visitor, {})
        said[at_ms] = max(said.get(at_ms, 0), 2 * revision + granted)
        while len(said) > MOST_ANSWERS:
            del said[min(said)]

    @property
    def tells_of_consent(self) -> bool:
        """Whether something was said about consent."""
        return bool(self.withdrawn or self.register.said or self.browsers)


Kept: Any = kept_type(Shopping)


class KeptOffers(OfferState, gc=False):
    """The same, with the partial matches typed, as it is stored."""

    partials: dict[str, Kept] = msgspec.field(default_factory=dict)


@dataclass(frozen=True)
class _Compiled:
    rule: OfferRule
    matcher: Matcher
    counts: frozenset[str]
    cap_ms: int
    cool_ms: int
    experiment: Experiment


class OfferBook:
    """Applies rules to a person's events, in order of time.

    Args:
        rules: The rules; of several that match at one event, the first one is taken.
        holdout: Share of the persons who are offered nothing by any rule.
    """

    def __init__(self, rules: tuple[OfferRule, ...], holdout: float = HOLDOUT) -> None:
        self.rules = rules
        self._compiled = []
        for rule in rules:
            rule.check()
            automaton = compile_pattern(rule.pattern())
            matcher = Matcher(automaton, Shopping, skip_past_last(), duration_ms(rule.within), _MOST)
            cap, cool = duration_ms(rule.cap_within), duration_ms(rule.cool_down)
            self._compiled.append(
                _Compiled(rule, matcher, frozenset(rule.counts), cap, cool, experiment_of(rule, holdout))
            )
        self._named = {one.rule.name: one for one in self._compiled}
        self._longest_ms = max((one.cool_ms for one in self._compiled), default=0)

    def take(self, state: KeptOffers, event: Shopping) -> Offer | None:
        """Let an event go on with every rule; return the offer that it completes.

        Args:
            state: What is kept of the person; changed in place.
            event: The event.
        """
        made = self.first_allowed(state, self.matches(state, event), event.at_ms)
        if made is not None:
            waits = Waiting(made.offer_id, made.rule, made.arm, event.at_ms, made.device, made.channel)
            state.waiting.append(waits)
        return made

    def matches(self, state: KeptOffers, event: Shopping) -> list[Offer]:
        """Let an event go on with every rule; return the offers that it completes, caps or not.

        Args:
            state: What is kept of the person; its partial matches are changed in place.
            event: The event.
        """
        made: list[Offer] = []
        for one in self._compiled:
            rule = one.rule
            if event.kind not in one.counts:
                continue
            if rule.skip_repeats:
                this = f"{event.kind} {event.subject}"
                if state.before.get(rule.name) == this:
                    continue
                state.before[rule.name] = this
            kept, found = one.matcher.take(state.partials.get(rule.name), event, event.at_ms)
            if kept is not None and kept.live:
                if len(kept.live) > _MOST:
                    one.matcher.limit(kept)
                state.partials[rule.name] = kept
            else:
                state.partials.pop(rule.name, None)
            if found:
                made.append(self._make(one, event, found[0].matched))
        return made

    def first_allowed(self, state: KeptOffers, offers: Sequence[Offer], at_ms: int) -> Offer | None:
        """Return the first of some offers that the caps allow, and take down that it is made.

        Args:
            state: What is kept of the person; changed in place.
            offers: Offers of different rules.
            at_ms: When, UTC ms.
        """
        made = self.allowed_of(offers, lambda rule: state.made.get(rule, ()), state.last_ms, at_ms)
        if made is not None:
            cap_ms = self._named[made.rule].cap_ms
            state.made[made.rule] = [*(t for t in state.made.get(made.rule, ()) if at_ms - t < cap_ms), at_ms]
            state.last_ms = at_ms
        return made

    def allowed_of(
        self, offers: Sequence[Offer], times: Callable[[str], Sequence[int]], last_ms: int, at_ms: int
    ) -> Offer | None:
        """Return the first of some offers that the caps allow.

        Args:
            offers: Offers of different rules.
            times: Rule → when its offers were made, UTC ms.
            last_ms: When any offer was last made; 0: none was.
            at_ms: When these would be, UTC ms.
        """
        for offer in offers:
            one = self._named.get(offer.rule)
            if one is None or (last_ms and at_ms - last_ms < one.cool_ms):
                continue
            if sum(at_ms - t < one.cap_ms for t in times(offer.rule)) < one.rule.cap:
                return offer
        return None

    def kept_for(self, rule: str) -> int:
        """Return how long a cap or a cool-down asks for an offer of a rule, ms."""
        one = self._named.get(rule)
        return max(0 if one is None else one.cap_ms, self._longest_ms)

    def _make(self, one: _Compiled, event: Shopping, matched: dict[str, list[Shopping]]) -> Offer:
        rule, at = one.rule, event.at_ms
        arm = one.experiment.arm(event.person)
        names = "\0".join((rule.name, event.person, event.cause, event.kind))
        identity = hashlib.blake2b(names.encode(), digest_size=12).hexdigest()
        return Offer(
            offer_id=identity,
            rule=rule.name,
            offer=rule.offer,
            arm=arm,
            person=event.person,
            visitor_id=event.visitor,
            cart_id=event.subject if event.kind == "abandoned" else None,
            at_ms=at,
            why={step: ", ".join(_said(taken) for taken in events) for step, events in matched.items()},
            device=event.device,
            channel=event.channel,
        )

    @staticmethod
    def taken(state: Waits, at_ms: int) -> None:
        """Let purchases of who logs in at a moment (UTC ms) decide what was offered before, too."""
        state.waiting = [
            msgspec.structs.replace(w, taken_ms=at_ms) if w.at_ms < at_ms and not w.taken_ms else w
            for w in state.waiting
        ]

    @staticmethod
    def bought(state: Waits, event: Shopping | CapsBought) -> list[OfferOutcome]:
        """Return the outcomes that a purchase decides; one by a login those that the login has taken."""
        logins = event.since_ms if isinstance(event, CapsBought) else None
        decided = [
            w
            for w in state.waiting
            if w.at_ms < event.at_ms <= w.at_ms + OUTCOME_MS and (logins is None or w.taken_ms in logins)
        ]
        state.waiting = [w for w in state.waiting if w not in decided]
        return [
            OfferOutcome(
                w.offer_id, w.rule, w.arm, True, event.subject, event.cents, event.at_ms, w.device, w.channel
            )
            for w in decided
        ]

    @staticmethod
    def over(state: Waits, now_ms: int) -> list[OfferOutcome]:
        """Return the outcomes that time has decided: nothing was bought."""
        decided = [w for w in state.waiting if w.at_ms + OUTCOME_MS <= now_ms]
        state.waiting = [w for w in state.waiting if w not in decided]
        return [
            OfferOutcome(w.offer_id, w.rule, w.arm, False, None, 0, now_ms, w.device, w.channel)
            for w in decided
        ]

    def tidy(self, state: KeptOffers, now_ms: int) -> int | None:
        """Drop what is over; return when there is something to drop next, ms, ``None``: nothing is left."""
        dues: list[int] = []
        for one in self._compiled:
            name = one.rule.name
            kept = state.partials.get(name)
            if kept is not None:
                one.matcher.expire(kept, now_ms)
                deadline = one.matcher.deadline(kept)
                if deadline is None or not kept.live:
                    del state.partials[name]
                else:
                    dues.append(deadline)
            if name not in state.partials:
                state.before.pop(name, None)  # what begins anew has nothing before it
            times = [t for t in state.made.get(name, ()) if now_ms - t < one.cap_ms]
            if times:
                state.made[name] = times
                dues.append(times[-1] + one.cap_ms)
            else:
                state.made.pop(name, None)
        dues += [w.at_ms + OUTCOME_MS for w in state.waiting]
        if state.last_ms and state.last_ms + self._longest_ms > now_ms:
            dues.append(state.last_ms + self._longest_ms)
        if state.bought_ms and state.bought_ms + _BOUGHT_MS > now_ms:
            dues.append(state.bought_ms + _BOUGHT_MS)
        elif state.bought_ms:
            state.bought_ms, state.orders = 0, []
        return min(dues) if dues else None


def experiment_of(rule: OfferRule, holdout: float) -> Experiment:
    """Return the experiment that a rule is.

    Args:
        rule: The rule.
        holdout: Share of the persons who are offered nothing by any rule.
    """
    arms = {"control": rule.control, "offer": 1 - rule.control}
    return Experiment(rule.name, arms, holdout=holdout, holdout_name=OFFERS)


def _said(event: Shopping) -> str:
    what = " ".join(part for part in (event.kind, event.category, event.subject) if part)
    return f"{what} at {event.at_ms} ({event.cause})"

"""The state of a browser, and the configuration of its process."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import ClassVar, Final, Literal

import msgspec

from millrace.experiments import share
from millrace_apps.clickstream.contracts.messages import SHARDS
from millrace_apps.clickstream.processes.bots import Behaviour, BotRules
from millrace_apps.clickstream.processes.channels import Channels, built_in
from millrace_apps.clickstream.processes.funnels import PURCHASE, Funnel
from millrace_apps.clickstream.processes.money import Rates
from millrace_apps.clickstream.processes.rules import GA4, SessionRules
from millrace_apps.clickstream.state.activity_counts import ActivityCounts
from millrace_apps.clickstream.state.consent import Answers
from millrace_apps.clickstream.state.ownership import NOBODY, Mark, Ownership
from millrace_apps.clickstream.state.sessions import Session, SessionBook

MINUTE_MS: Final = 60_000
#: The one timer of a browser.
TICK: Final = "tick"
#: But for that at which it is settled who was there, and did what.
SETTLED: Final = "settled"
_HOUR_MS: Final = 3_600_000
#: A visitor is "now" in the shop for so many minutes after a click.
NOW_MINUTES: Final = 5
#: So many orders of a browser are known, the last ones.
MOST_ORDERS: Final = 16
#: So many landings of a browser are known: the first of each account, and the last ones.
MOST_TOUCHES: Final = 12
#: And so many landings before which an order in time may still come.
_MOST_UNSETTLED: Final = 64
#: What the hold-out of offers is dealt by, and its share of the persons.
OFFERS: Final = "offers"
HOLDOUT: Final = 0.2


@dataclass(frozen=True, kw_only=True)
class VisitorRules:
    """What the visitor's process is told.

    Attributes:
        sessions: When a session ends.
        session_lateness_ms: How long after its end late events may change a session, ms.
        provisional_ms: How often a session that is not over has a row, ms.
        repeats_ms: For how long a repeat of an event is known as one, ms.
        rate_events: So many events …
        rate_ms: … in less than this are a bot's, ms.
        bots: What else gives bots away.
        funnels: What sessions are measured by.
        ways: Funnels of persons, over all their sessions and browsers.
        holdout: Share of the persons who are offered nothing by any rule.
        most_events: So many events of a tracker's session are kept until it is over.
        in_order: Whether events wait for the watermark, and are handled in exact order of time.
        recommends: Whether somebody recommends by what is looked at.
        rates: What currencies are worth in the shop's own.
        channels: What tells where visits come from.
        shared: Whose a browser is that several accounts use: ``split``, each event of whoever was there then,
            and after a logout nobody's until the next login; ``last``, all of whoever was there last.
        shards: How many shards count for the boards.
        by_device: Whether there are boards of each kind of device besides, each with shards of its own.
        by_channel: Whether there are so of each channel.
    """

    sessions: SessionRules = GA4
    session_lateness_ms: int = _HOUR_MS
    provisional_ms: int = MINUTE_MS
    repeats_ms: int = _HOUR_MS
    rate_events: int = 15
    rate_ms: int = 10_000
    bots: BotRules = field(default_factory=BotRules)
    funnels: tuple[Funnel, ...] = (PURCHASE,)
    ways: tuple[Funnel, ...] = ()
    holdout: float = HOLDOUT
    most_events: int = 2_000
    in_order: bool = False
    recommends: bool = False
    shared: Literal["split", "last"] = "split"
    shards: int = SHARDS
    by_device: bool = False
    by_channel: bool = False
    rates: Rates = field(default_factory=Rates)
    channels: Channels = field(default_factory=built_in)


class Bought(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An order as the first event told of it that a browser knows.

    Attributes:
        at_ms: When, UTC ms.
        cause: The event.
        cents: Its value in the shop's currency.
        lines: Item, category, pieces and what they cost; none any more where no event of before can come.
        channel: The channel whose boards have it; empty: none has.
    """

    at_ms: int
    cause: str
    cents: int
    lines: list[tuple[str, str, int, int]] = []
    channel: str = ""


class Held(msgspec.Struct, array_like=True, frozen=True, order=True, gc=False):
    """Something done of which it is not settled who did it.

    Attributes:
        at_ms: When, UTC ms.
        cause: The click.
        order_id: The order; empty for what is none.
        user_id: Who is named; empty for nobody.
        cents: Price of a piece, or value of the order.
        kind: What was done; an earlier version held orders alone.
        item: The item; empty for none.
        query: What was searched for.
        category: Category of the item.
        device: Kind of device.
        step: Step of the checkout that is done.
        cart_id: The cart; empty for none.
        quantity: How many pieces.
    """

    at_ms: int
    cause: str
    order_id: str
    user_id: str
    cents: int
    kind: str = "purchase"
    item: str = ""
    query: str = ""
    category: str = ""
    device: str = ""
    step: str = ""
    cart_id: str = ""
    quantity: int = 1


class BrowserState(msgspec.Struct, array_like=True, gc=False):
    """What is kept of a browser.

    Attributes:
        consent: Purposes that are allowed, as bits.
        user_id: The account that it is known to be of.
        book: Its sessions.
        seen: Events of the last time → what :func:`seen_as` makes of them: repeats are told by it.
        times: Times of the last events, ms, for their rate.
        bot: Why it is a bot; empty where it is not.
        minutes: The last minutes in which it was there.
        first: Its first touch, of an earlier version; so for the next three.
        first_ms: When that was.
        last: Its last touch.
        last_ms: When that was.
        past: Its last sessions, while nobody is known by it.
        owners: Accounts that it was known to be of within the time of repeats: what is said of its consent
            concerns them, too.
        answers: What was said about consent; None: nothing, or by an earlier version, which kept the sum
            alone.
        ownership: Which accounts were there when; None where none was, and by an earlier version.
        part: What was done while nobody was known by it, until somebody is.
        carts: The last carts that were filled meanwhile.
        bought: Its last orders, by identity: whatever events tell of one, it counts once.
        touches: When it was brought by what, in order of time, and the account, once no other can turn out to
            have been there.
        touch_revision: How often somebody was told of touches.
        behaviour: What it did lately, by which bots are told.
        marks: Steps of persons' funnels that were done in it: when (UTC ms), which, and by whom; empty: who
            that was may still change.
        marks_from: Marks up to here are not kept any more, UTC ms.
        mark_revision: Grows whenever somebody is told of marks.
        held: What was done of which it is not settled by whom, in order of time.
        placed: The last mark up to which accounts have been told that they are there.
    """

    __stored_as__: ClassVar[str] = "Known"

    consent: int = 0
    user_id: str | None = None
    book: SessionBook = msgspec.field(default_factory=SessionBook)
    seen: dict[str, int] = msgspec.field(default_factory=dict)
    times: list[int] = msgspec.field(default_factory=list)
    bot: str = ""
    minutes: list[int] = msgspec.field(default_factory=list)
    first: str = ""
    first_ms: int = 0
    last: str = ""
    last_ms: int = 0
    past: list[Session] = msgspec.field(default_factory=list)
    answers: Answers | None = None
    owners: list[str] = msgspec.field(default_factory=list)
    ownership: Ownership | None = None
    part: ActivityCounts | None = None
    carts: list[str] = msgspec.field(default_factory=list)
    bought: dict[str, Bought] = msgspec.field(default_factory=dict)
    touches: list[tuple[int, str, str]] = msgspec.field(default_factory=list)
    touch_revision: int = 0
    behaviour: Behaviour | None = None
    marks: list[tuple[int, str, str]] = msgspec.field(default_factory=list)
    marks_from: int = 0
    mark_revision: int = 0
    held: list[Held] = msgspec.field(default_factory=list)
    placed: Mark = (0, NOBODY)

    def buys(self, order_id: str, told: Bought) -> tuple[bool, Bought | None]:
        """Take down what an event tells of an order.

        Args:
            order_id: The order.
            told: What is told of it.

        Returns:
            Whether the event is the first in time that tells of it; and which one was that until now, where
            this one is earlier.
        """
        before = self.bought.get(order_id)
        if before is not None and (before.at_ms, before.cause) <= (told.at_ms, told.cause):
            return False, None
        self.bought[order_id] = told
        if len(self.bought) > MOST_ORDERS:
            del self.bought[min(self.bought, key=lambda name: (self.bought[name].at_ms, name))]
        return True, before

    def allowed(self, at_ms: int) -> int:
        """Return the purposes that were allowed at a moment (UTC ms) and still are, as bits."""
        return self.consent if self.answers is None else self.answers.at(at_ms)

    def settle(self, horizon_ms: int, marked: Callable[[int], None] | None = None) -> None:
        """Keep nothing of who was there, and what was allowed, that only events up to a moment ask for.

        Args:
            horizon_ms: Events up to here are not taken any more, UTC ms.
            marked: Told up to when (UTC ms) owners cannot change any more, before that is forgotten.
        """
        if self.answers is not None:
            self.answers.settle(horizon_ms)
        for order_id, told in self.bought.items():
            if told.lines and told.at_ms <= horizon_ms:
                self.bought[order_id] = msgspec.structs.replace(told, lines=[])
        there = self.ownership
        self.past = [
            s
            for s in self.past
            if s.user_id is None or s.end_ms > horizon_ms or (there and there.waits(s.end_ms, horizon_ms))
        ]
        if there is None:
            if marked is not None:
                marked(horizon_ms)
            return
        # Whose a session is that may still change is asked for again.
        changing = [*self.book.sessions, *(s for s in self.past if s.user_id is not None)]
        settled = min([horizon_ms, *(session.start_ms - 1 for session in changing)])
        # What nobody did is of whoever is there next, who may still come before who is known.
        self.touches = [
            (at, by, name or (there.settled_owner(at, settled) if at <= settled else ""))
            for at, by, name in self.all_touches()
        ]
        if marked is not None:
            marked(settled)
        there.settle(settled)
        if not there.marks and there.base == (self.user_id or ""):
            self.ownership = None

    def unsettled(self, watermark_ms: int) -> bool:
        """Tell whether an event in time may still say that somebody else was there before the last one."""
        return self.ownership is not None and self.ownership.unsettled(watermark_ms)

    def touch(self, campaign: str, at_ms: int, settled_ms: int | None = None) -> None:
        """Take down a landing that a campaign brought, whosever it is.

        Args:
            campaign: The campaign.
            at_ms: When, UTC ms.
            settled_ms: No order up to here can come any more, UTC ms; None: none at all.
        """
        kept = self.all_touches()
        touched = (at_ms, campaign, "")
        if any(one[:2] == touched[:2] for one in kept):
            return
        insort(kept, touched)
        # Of what an order may still stand before none is too many.
        over = len(kept) if settled_ms is None else bisect_right(kept, settled_ms, key=itemgetter(0))
        if over > MOST_TOUCHES or len(kept) > _MOST_UNSETTLED:
            # The first of each account is its first touch for ever.
            first = {owner: place for place, (_, _, owner) in reversed(list(enumerate(kept)))}
            later = [place for place, (_, _, owner) in enumerate(kept) if first[owner] != place]
            del kept[later[0] if later else 0]

    def all_touches(self) -> list[tuple[int, str, str]]:
        """Return when (UTC ms) and by what it was brought, and the account where that is settled."""
        if not self.touches and self.last:  # an earlier version kept the first and the last one
            known = {(self.first_ms, self.first, ""), (self.last_ms, self.last, "")}
            self.touches, self.first, self.last = sorted(known), "", ""
        return self.touches


#: Times stand in so many bits.
_TIME_BITS: Final = 48
_TIME: Final = (1 << _TIME_BITS) - 1
#: Of what an event says so much is kept: enough to tell nearly all that differ.
_CONTENTS: Final = (1 << 15) - 1


def seen_as(at_ms: int, content: int) -> int:
    """Return an event's time, and a part of the digest of what it says, as one number.

    A number of an earlier version is the time alone.

    >>> mark = seen_as(1_767_225_600_000, 99)
    >>> seen_at(mark), said_the_same(mark, 99), said_the_same(mark, 98), said_the_same(1_767_225_600_000, 98)
    (1767225600000, True, False, True)
    """
    return at_ms | (content % _CONTENTS + 1) << _TIME_BITS


def seen_at(mark: int) -> int:
    """Return when an event was, ms."""
    return mark & _TIME


def said_the_same(mark: int, content: int) -> bool:
    """Return whether an event said the same as far as is known."""
    known = mark >> _TIME_BITS
    return not known or known == content % _CONTENTS + 1


def newly_covered(minutes: Sequence[int], minute: int) -> tuple[int, int]:
    """Return for which moments "in the last five minutes" holds that did not before.

    Args:
        minutes: The minutes in which a visitor was there.
        minute: Another one.

    Returns:
        The first and the last full minute at which the visitor is there by it; the first is after the
        last where there is none.

    Example:
        >>> newly_covered([], 10), newly_covered([8], 10), newly_covered([12], 10), newly_covered([9, 11], 10)
        ((11, 15), (14, 15), (11, 12), (15, 11))
    """
    low, high = minute + 1, minute + NOW_MINUTES
    for other in minutes:
        if other < minute:
            low = max(low, other + NOW_MINUTES + 1)
        elif other > minute:
            high = min(high, other)
    return low, high


def arm_of(person: str, rules: VisitorRules) -> str:
    """Return ``control`` for a person who is in the hold-out of offers, ``offer`` for all others.

    >>> arm_of("u:1", VisitorRules(holdout=1.0)), arm_of("u:1", VisitorRules(holdout=0.0))
    ('control', 'offer')
    """
    return arm_in(person, rules.holdout)


def arm_in(person: str, holdout: float) -> str:
    """Return the arm of a person where a share of all is in the hold-out of offers."""
    return "control" if share(person, OFFERS) < holdout else "offer"

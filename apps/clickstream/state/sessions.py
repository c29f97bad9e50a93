"""Sessions of one visitor: a small book that events are entered into, in whatever order they come.

Where nothing but a pause ends a session, entering commutes: every field is a sum, a least, a greatest or a
set, and an event between two sessions merges them. Rules that look at more (midnight, campaigns, a longest
length) need the events in order of time.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from millrace_apps.clickstream.processes.rules import SessionRules

#: So many times are kept per session and step of a funnel: the first ones, and the last ones.
FIRST_MARKS: Final = 4
LAST_MARKS: Final = 20
#: So many heartbeats of a session are counted, the earliest: a whole day of attention without a pause.
MOST_BEATS: Final = 8_640
#: So many sessions of a tracker are known to be over by one browser, the last ones.
MOST_GONE: Final = 64
_UNWRITTEN: Final = -1


class Kept(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What is kept of a click until the tracker's session that it is of is judged; names as of the click.

    Attributes:
        event_id: Its identity.
        event_type: What was done.
        event_time_ms: When, by the shop's clock, UTC ms.
        client_time_ms: When it was made, by the device's clock.
        client_sent_ms: When it was sent, by the same.
        page_view_id: The page view.
        page_url: Address of the page.
        page_type: Kind of page.
        device: Kind of device.
        campaign: Campaign that it brought.
        step: Step of the checkout.
        amount: Value of the order, in the shop's currency.
        quantity: How many pieces.
        user_id: The account.
        order_id: The order; empty for none, and by an earlier version.
    """

    event_id: str
    event_type: str
    event_time_ms: int
    client_time_ms: int
    client_sent_ms: int
    page_view_id: str
    page_url: str
    page_type: str
    device: str
    campaign: str | None = None
    step: str | None = None
    amount: float | None = None
    quantity: int | None = None
    user_id: str | None = None
    order_id: str = ""


class Judged(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a tracker's session is by its own rules.

    Attributes:
        start_ms: Its start as the tracker's model has it, UTC ms.
        end_ms: Its end.
        events: Events that count.
        views: Page views, with those among them that only pings tell of.
        attention_s: Time of attention, seconds.
        engaged: Whether somebody was really there.
    """

    start_ms: int
    end_ms: int
    events: int
    views: int
    attention_s: int
    engaged: bool


class Session(msgspec.Struct, array_like=True, gc=False):
    """A session that is open, or that late events may still change.

    Attributes:
        start_ms: Time of the first event, ms.
        end_ms: Time of the last one.
        events: How many.
        views: Page views among them.
        buckets: The heartbeats in which pings came, page by page (:func:`beat_of`); the first
            :data:`MOST_BEATS`, so that a page that is left open makes no state that grows for ever.
        ping_pages: The pages that sent them, as short hashes.
        converted: Whether a conversion happened.
        added: Items put into the cart, minus those taken out.
        orders: Purchases.
        cents: Their value.
        campaign: Source, medium and campaign of its earliest landing; ``None``: direct.
        campaign_ms: When that was.
        landing: Address of its first page.
        exit: Address of its last page.
        exit_ms: When that was seen.
        device: Kind of device.
        client: The tracker's name of it.
        closed: Why it has ended; empty while it is open.
        number: Which one of its visitor, once it has ended.
        ignored: Events that came too late for it.
        bot: Why it is a bot's; empty where it is not.
        user_id: Whose it is, where that may be known.
        marks: Steps of funnels: step → times, ms.
        written_ms: Its start as it stands in its row; -1: it has none.
        reported_ms: Time of the event that the row was last written at.
        kept: Events of a tracker's session by identity, until it is over.
        judged: What they make of it; None: it is no tracker's, or nothing was viewed.
        full: Whether it had more events or heartbeats than are kept: its figures are at least these.
    """

    start_ms: int
    end_ms: int
    events: int = 0
    views: int = 0
    buckets: list[int] = msgspec.field(default_factory=list)
    ping_pages: list[int] = msgspec.field(default_factory=list)
    converted: bool = False
    added: int = 0
    orders: int = 0
    cents: int = 0
    campaign: str | None = None
    campaign_ms: int = 0
    landing: str = ""
    exit: str = ""
    exit_ms: int = 0
    device: str = ""
    client: str | None = None
    closed: str = ""
    number: int = 0
    ignored: int = 0
    bot: str = ""
    user_id: str | None = None
    marks: dict[str, list[int]] = msgspec.field(default_factory=dict)
    written_ms: int = _UNWRITTEN
    reported_ms: int = 0
    kept: dict[str, Kept] = msgspec.field(default_factory=dict)
    judged: Judged | None = None
    full: bool = False

    @property
    def written(self) -> bool:
        """Whether a row has been written for it."""
        return self.written_ms != _UNWRITTEN

    def span(self, at_ms: int, page: str) -> None:
        """Make it reach an event.

        Args:
            at_ms: The event's time, ms.
            page: Address of the event's page.
        """
        if at_ms < self.start_ms or not self.events:
            self.start_ms = at_ms
            self.landing = page
        if at_ms >= self.end_ms:
            self.end_ms = at_ms
        if at_ms >= self.exit_ms:
            self.exit = page
            self.exit_ms = at_ms
        self.events += 1

    def ping(self, bucket: int, page: int) -> None:
        """Count a ping, by its heartbeat and page."""
        beat = beat_of(bucket, page)
        if beat not in self.buckets:
            insort(self.buckets, beat)
            self._bound()
        if page not in self.ping_pages:
            insort(self.ping_pages, page)

    def _bound(self) -> None:
        # The least ones of all stay, in whatever order they come.
        if len(self.buckets) > MOST_BEATS or len(self.ping_pages) > MOST_BEATS:
            self.full = True
            del self.buckets[MOST_BEATS:], self.ping_pages[MOST_BEATS:]

    def arrive(self, campaign: str, at_ms: int) -> None:
        """Take down a landing through a campaign; the earliest one is the session's."""
        if self.campaign is None or (at_ms, campaign) < (self.campaign_ms, self.campaign):
            self.campaign, self.campaign_ms = campaign, at_ms

    def mark(self, step: str, at_ms: int, *, every_ms: int) -> None:
        """Take down a step of a funnel.

        Args:
            step: The step.
            at_ms: When it was done, ms.
            every_ms: Of so much time the first one is enough, ms; 0: all count.
        """
        times = self.marks.get(step)
        if times is None:
            self.marks[step] = [at_ms]
            return
        place = bisect_right(times, at_ms)
        if every_ms:
            span = at_ms // every_ms
            if place and times[place - 1] // every_ms == span:
                return
            if place < len(times) and times[place] // every_ms == span:
                times[place] = at_ms
                return
        times.insert(place, at_ms)
        del times[FIRST_MARKS:-LAST_MARKS]

    def thin(self, every_ms: Mapping[str, int]) -> None:
        """Keep of the steps what :meth:`mark` would have kept; two sessions have become one.

        Args:
            every_ms: Step → of how much time the first one is enough, ms.
        """
        for step, times in self.marks.items():
            every = every_ms.get(step, 0)
            kept = sorted({at // every: at for at in reversed(times)}.values()) if every else times
            del kept[FIRST_MARKS:-LAST_MARKS]
            self.marks[step] = kept

    def unbuy(self, at_ms: int, cents: int, *, conversions: frozenset[str]) -> None:
        """Take an order back: an earlier event tells of it.

        Args:
            at_ms: When this one did, ms.
            cents: The order's value.
            conversions: Names of the events that are a conversion.
        """
        self.orders -= 1
        self.cents -= cents
        if conversions == {"purchase"}:
            self.converted = self.orders > 0
        times = self.marks.get("purchase", [])
        if at_ms in times:
            times.remove(at_ms)
        if not times:
            self.marks.pop("purchase", None)

    def absorb(self, later: Session) -> None:
        """Take in the session after this one: an event has come that belongs to both."""
        self.end_ms = max(self.end_ms, later.end_ms)
        self.events += later.events
        self.views += later.views
        self.buckets = sorted({*self.buckets, *later.buckets})
        self.ping_pages = sorted({*self.ping_pages, *later.ping_pages})
        self.full = self.full or later.full
        self._bound()
        self.converted = self.converted or later.converted
        self.added += later.added
        self.orders += later.orders
        self.cents += later.cents
        if later.campaign is not None:
            self.arrive(later.campaign, later.campaign_ms)
        if later.exit_ms >= self.exit_ms:
            self.exit, self.exit_ms = later.exit, later.exit_ms
        self.bot = self.bot or later.bot
        self.user_id = later.user_id or self.user_id
        for step, times in later.marks.items():
            self.marks[step] = sorted([*self.marks.get(step, ()), *times])
        self.closed = self.closed and later.closed

    def attention_s(self, rules: SessionRules) -> int:
        """Return the time of attention that pings tell of, whole seconds."""
        if self.judged is not None:
            return self.judged.attention_s
        return rules.attention_s(len(self.buckets), len(self.ping_pages))

    def engaged(self, rules: SessionRules) -> bool:
        """Tell whether somebody was really there."""
        if self.judged is not None:
            return self.judged.engaged
        return rules.engaged(
            views=self.views,
            length_ms=self.end_ms - self.start_ms,
            attention_s=self.attention_s(rules),
            converted=self.converted,
        )


class SessionBook(msgspec.Struct, array_like=True, gc=False):
    """The sessions of a visitor that can still change, in order of time; mostly one.

    Attributes:
        sessions: They.
        ended: How many the visitor has had that are over.
        revision: How many rows have been written for them.
        gone: The last sessions of a tracker that are over and forgotten, by :func:`name_of` them.
    """

    sessions: list[Session] = msgspec.field(default_factory=list)
    ended: int = 0
    revision: int = 0
    gone: list[int] = msgspec.field(default_factory=list)

    def enter(self, at_ms: int, rules: SessionRules) -> tuple[Session, list[Session]]:
        """Find the session of an event by rules that commute; the caller enters the event into it.

        Args:
            at_ms: Time of the event, ms.
            rules: When a session ends.

        Returns:
            Its session, and those that are part of it from now on.
        """
        sessions, gap = self.sessions, rules.gap_ms or 0
        if sessions:
            last = sessions[-1]
            if last.start_ms - gap <= at_ms <= last.end_ms + gap and (
                len(sessions) == 1 or at_ms > sessions[-2].end_ms + gap
            ):
                last.closed = ""
                return last, []
            near = [s for s in sessions if s.start_ms - gap <= at_ms <= s.end_ms + gap]
            if near:
                kept, *merged = near
                kept.closed = ""
                for later in merged:
                    if later.number and kept.number:
                        self.ended -= 1
                    kept.number = kept.number or later.number
                    kept.absorb(later)
                    sessions.remove(later)
                return kept, merged
        return self._open(at_ms, None), []

    def in_time(self, at_ms: int, rules: SessionRules, watermark: int, lateness_ms: int) -> bool:
        """Tell whether a late event's session may still change: the one that it would be in is judged.

        Args:
            at_ms: Time of the event, ms.
            rules: When a session ends.
            watermark: How far time has come, ms.
            lateness_ms: How long after its end a session may change, ms.
        """
        gap = rules.gap_ms or 0
        end = at_ms
        for session in self.sessions:
            if session.start_ms - gap <= at_ms <= session.end_ms + gap:
                end = max(end, session.end_ms)
        return end + gap + lateness_ms > watermark

    def follow(self, at_ms: int, rules: SessionRules, campaign: str | None) -> tuple[Session, Session | None]:
        """Find the session of an event that no other is later than, by rules that look at more than pauses.

        Args:
            at_ms: Time of the event, ms.
            rules: When a session ends.
            campaign: Campaign that the event brings.

        Returns:
            Its session; and the session that it ended, if any.
        """
        last = self.sessions[-1] if self.sessions else None
        if last is None or last.closed:
            return self._open(at_ms, None), None
        why = rules.breaks(last.end_ms, last.campaign, at_ms, campaign)
        if why is None:
            return last, None
        self._end(last, why)
        return self._open(at_ms, None), last

    def tracked(self, at_ms: int, client: str) -> Session | None:
        """Find the session of an event by the tracker's name of it.

        Args:
            at_ms: Time of the event, ms.
            client: The name.

        Returns:
            The session; ``None`` where it is over, and forgotten but for its name.
        """
        for session in self.sessions:
            if session.client == client:
                return session
        return None if name_of(client) in self.gone else self._open(at_ms, client)

    def _open(self, at_ms: int, client: str | None) -> Session:
        opened = Session(at_ms, at_ms, client=client)
        self.sessions.append(opened)
        if len(self.sessions) > 1:
            self.sessions.sort(key=_start)
        return opened

    def _end(self, session: Session, why: str) -> None:
        session.closed = why
        if not session.number:
            self.ended += 1
            session.number = self.ended

    def renumber(self) -> list[Session]:
        """Number the sessions that are over in order of time; return those whose number was another.

        What is forgotten is earlier than what may still change, so that the numbers before stay.
        """
        numbered = sorted((s for s in self.sessions if s.number), key=_start)
        changed = []
        for number, session in enumerate(numbered, self.ended - len(numbered) + 1):
            if session.number != number:
                session.number = number
                changed.append(session)
        return changed

    def number_of(self, session: Session) -> int:
        """Return which one of its visitor a session is; one that is not over ends after those before it."""
        if session.number or len(self.sessions) == 1:
            return session.number or self.ended + 1
        before = [s for s in self.sessions if not s.number and s.start_ms < session.start_ms]
        return self.ended + 1 + len(before)

    def expire(self, watermark: int, rules: SessionRules, lateness_ms: int) -> Iterator[Session]:
        """Close what time has ended, forget what nothing can change any more.

        Args:
            watermark: How far time has come, ms.
            rules: When a session ends.
            lateness_ms: How long after its end a session may still change, ms.

        Yields:
            Sessions that are over, but were not before.
        """
        kept = []
        for session in list(self.sessions):
            over = _over(session, rules)
            if not session.closed and over <= watermark:
                self._end(session, "inactivity" if rules.gap_ms is not None else "max_length")
                yield session
            if not session.closed or over + lateness_ms > watermark:
                kept.append(session)
            elif session.client is not None:
                self.gone = [*self.gone[1 - MOST_GONE :], name_of(session.client)]
        self.sessions = kept

    def due(self, rules: SessionRules, lateness_ms: int) -> int | None:
        """Return when :meth:`expire` has something to do next, ms; ``None``: never."""
        if not self.sessions:
            return None
        if len(self.sessions) == 1 and not self.sessions[0].closed:  # nearly always
            return _over(self.sessions[0], rules)
        return min(_over(s, rules) + (lateness_ms if s.closed else 0) for s in self.sessions)

    def over(self, rules: SessionRules, lateness_ms: int) -> int:
        """Return when :meth:`expire` forgets the last session, ms; 0 where there is none."""
        return max((_over(s, rules) + lateness_ms for s in self.sessions), default=0)


def beat_of(bucket: int, page: int) -> int:
    """Return a heartbeat of a page as one number; one of an earlier version is the heartbeat alone.

    >>> beat_of(2, 1) - beat_of(1, 1) == 1 << 32
    True
    """
    return bucket << 32 | page


def name_of(client: str) -> int:
    """Return a number for the tracker's name of a session, of 62 bits.

    >>> 0 <= name_of("a") < 1 << 62, name_of("a") == name_of("b")
    (True, False)
    """
    return int.from_bytes(blake2b(client.encode(), digest_size=8).digest()) >> 2


def _start(session: Session) -> int:
    return session.start_ms


def _over(session: Session, rules: SessionRules) -> int:
    if rules.gap_ms is not None:
        return session.end_ms + rules.gap_ms
    # The last instant belongs to it.
    return session.start_ms + rules.ends_after() + 1

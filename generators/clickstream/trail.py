"""One visit as it is planned: its events so far, its sessions, and what is true about them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from millrace_apps.clickstream.contracts.events import CheckoutStep, Click, EventType, OrderLine, PageType
from millrace_apps.generators.clickstream.campaigns import Channel
from millrace_apps.generators.clickstream.catalogue import Item
from millrace_apps.generators.clickstream.heartbeats import Heartbeats
from millrace_apps.generators.clickstream.profile import Names
from millrace_apps.generators.clickstream.visitors import Device, Touch
from millrace_apps.generators.engine.simulated import Simulated, Truth

#: After a pause of more than this a new session begins; a pause of exactly this much does not end one.
SESSION_GAP_MS: Final = 1_800_000
_DAY_MS: Final = 86_400_000
SHOP: Final = "https://shop.example"
#: Where visitors come from who were in the shop before.
BACK_FROM: Final = (f"{SHOP}/", "https://www.paypal.com/")


class Trail:
    """Takes down what one visitor does, in event time; it begins with a click.

    Args:
        names: Makes identifiers.
        number: Number of the visit, below 2^32.
        device: What it is made with.
        at_ms: When it begins, ms since the epoch, UTC.
        judged: Whether its sessions are truths: they are unless a bot makes them.
        heartbeats: Makes pings while pages are read.
    """

    __slots__ = (
        "_changes",
        "_clicks",
        "_code",
        "_drafts",
        "_first",
        "_heartbeats",
        "_judged",
        "_last_click_ms",
        "_marks",
        "_page",
        "_pages",
        "_pings",
        "_prefix",
        "_session_id",
        "_started_ms",
        "_told",
        "at_ms",
        "device",
        "number",
        "visitor_id",
    )

    def __init__(
        self,
        names: Names,
        number: int,
        device: Device,
        at_ms: int,
        *,
        judged: bool = True,
        heartbeats: Heartbeats | None = None,
    ) -> None:
        self.number = number
        self.device = device
        self.visitor_id = device.visitor_id
        self.at_ms = at_ms
        #: Stream, key, event and time.
        self._drafts: list[tuple[str, str, Any, int]] = []
        #: Where every session begins, and what is true about it.
        self._told: list[tuple[int, tuple[Truth, ...]]] = []
        self._judged = judged
        self._heartbeats = heartbeats
        #: The page being read.
        self._page: Click | None = None
        #: Pings, each with the number of its session.
        self._pings: list[tuple[int, Click]] = []
        self._code = names.code(number)
        self._prefix = f"e-{self._code}"
        self._marks: dict[int, tuple[Truth, ...]] = {}
        self._last_click_ms = at_ms
        self._begin_session()

    def _begin_session(self) -> None:
        self.device.sessions += 1
        self._first = len(self._drafts)
        self._pages = self._changes = self._clicks = 0
        self._started_ms = self.at_ms
        # A visit may have several sessions: where they begin makes them differ.
        self._session_id = f"session-{self._code}-{self._first:x}"

    @property
    def length(self) -> int:
        """How many events there are so far."""
        return len(self._drafts)

    def wait(self, ms: int) -> None:
        """Let time pass until the next event."""
        self.at_ms += ms

    def pause(self, ms: int) -> None:
        """Let exactly this much time pass between the last click and the next; a session may end in it."""
        if ms > SESSION_GAP_MS:
            self._end_session()
            self.at_ms = self._last_click_ms + ms
            self._begin_session()
        else:
            self.at_ms = self._last_click_ms + ms

    def _end_session(self) -> None:
        if not self._judged:
            return
        clicks, start, end = self._clicks, self._started_ms, self._last_click_ms
        pings = sum(session == len(self._told) for session, _ in self._pings) if self._pings else 0
        truth = Truth(
            truth_id=f"truth-{self._session_id}",
            kind="session",
            entity=self.visitor_id,
            expected="session",
            detail={
                "start_ms": start,
                "end_ms": end,
                "events": clicks + pings,
                "page_views": self._pages,
                "page_pings": pings,
                "campaign_changes": self._changes,
                "crosses_midnight": start // _DAY_MS != end // _DAY_MS,
            },
        )
        self._told.append((self._first, (truth,)))

    def click(
        self,
        event_type: EventType,
        page_type: PageType,
        page_url: str,
        *,
        channel: Channel | None = None,
        item: Item | None = None,
        category: str | None = None,
        quantity: int | None = None,
        query: str | None = None,
        cart_id: str | None = None,
        step: CheckoutStep | None = None,
        order_id: str | None = None,
        amount: float | None = None,
        lines: tuple[OrderLine, ...] = (),
        currency: str | None = None,
        tax: float | None = None,
        shipping: float | None = None,
    ) -> int:
        """Take down one event at this moment; returns its place for :meth:`mark`."""
        device, at, place = self.device, self.at_ms, len(self._drafts)
        source = medium = campaign = referrer = click_id = item_id = price = None
        if channel is not None:
            source, medium, campaign, referrer, prefix, _ = channel
            if prefix is not None:
                click_id = f"{prefix}-{self._code}{place:x}"
        elif event_type == "page_view" and not self._clicks:
            # Who goes on after a long pause comes from the shop, or back from paying: that is no landing.
            referrer = BACK_FROM[place % len(BACK_FROM)]
        if item is not None:
            item_id, category, price = item.item_id, item.category, item.price
        if event_type == "page_view":
            self._pages += 1
        # By position, but for the end: one is made for every click.
        event = Click(
            f"{self._prefix}{place:04x}",
            event_type,
            at,
            at + device.clock_offset_ms,
            self.visitor_id,
            self._session_id,
            device.sessions,
            device.kind,
            device.user_agent,
            page_type,
            page_url,
            device.user_id,
            referrer,
            source,
            medium,
            campaign,
            click_id,
            item_id,
            category,
            price,
            quantity,
            query,
            cart_id,
            step,
            order_id,
            amount,
            lines=[*lines],
            currency=currency,
            tax=tax,
            shipping=shipping,
        )
        if self._heartbeats is not None:
            self._beat(self._heartbeats, event)
        self._drafts.append(("clicks", self.visitor_id, event, at))
        self._last_click_ms = at
        self._clicks += 1
        return place

    def _beat(self, heartbeats: Heartbeats, event: Click) -> None:
        """Add the pings of the page that has been read until this click."""
        if self._page is not None:
            session = len(self._told)
            pings = heartbeats.between(self._page, event.event_time_ms)
            self._pings.extend((session, ping) for ping in pings)
        self._page = event if event.event_type == "page_view" else None

    def view(self, item: Item) -> None:
        """Look at an item."""
        self.click("page_view", "item", item.url, item=item)

    def land(self, channel: Channel, page_type: PageType, page_url: str, item: Item | None = None) -> None:
        """Arrive on a page through a channel, which stays with the device as a touch."""
        label = channel.label
        if label is not None:
            touch = Touch(self.at_ms, label)
            self.device.first_touch = self.device.first_touch or touch
            self.device.last_touch = touch
            if self._clicks:
                self._changes += 1
        self.click("page_view", page_type, page_url, channel=channel, item=item)

    def other(self, stream: str, key: str, event: Any) -> int:
        """Take down an event of another stream at this moment."""
        self._drafts.append((stream, key, event, self.at_ms))
        return len(self._drafts) - 1

    def mark(self, place: int, truth: Truth) -> None:
        """Say that an event is part of a truth."""
        self._marks[place] = (*self._marks.get(place, ()), truth)

    def mark_all(self, places: Sequence[int], truth: Truth) -> None:
        """Say that several events are part of a truth."""
        for place in places:
            self.mark(place, truth)

    def finish(self, *truths: Truth) -> list[Simulated]:
        """End the visit and return its events, with what is true about them.

        Args:
            truths: What is true about all of them.
        """
        self._end_session()
        marks = self._marks
        if not marks and not self._pings and len(self._told) < 2:
            common = self._told[0][1] if self._told else truths
            return [
                Simulated(stream, key, event, at_ms, common if stream == "clicks" else ())
                for stream, key, event, at_ms in self._drafts
            ]
        events: list[Simulated] = []
        told = [*(self._told or [(0, truths)]), (len(self._drafts), ())]
        for (first, common), (after, _) in pairwise(told):
            for place in range(first, after):
                stream, key, event, at_ms = self._drafts[place]
                mine = common if stream == "clicks" else ()
                if place in marks:
                    mine += marks[place]
                events.append(Simulated(stream, key, event, at_ms, mine))
        if self._pings:
            for session, ping in self._pings:
                common = told[session][1]
                events.append(Simulated("clicks", self.visitor_id, ping, ping.event_time_ms, common))
            events.sort(key=_event_time)
        return events


def _event_time(event: Simulated) -> int:
    return event.event_time_ms

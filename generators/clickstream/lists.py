"""Shoppers' reactions to an app's lists of next items: who is drawn on by one, to which item, and when.

Somebody who has stopped looking around by himself reads the lists that were made at his last item. The
chance that an item at a place is clicked hangs on the surface, the place, and whether the item goes with the
one that was looked at (:meth:`Catalogue.related`); so whatever chooses better lists truly has more clicks,
and by how much stands in the ledger: of each list its chance, and what came of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from millrace_apps.clickstream.contracts.events import Click
from millrace_apps.generators.clickstream.catalogue import Catalogue, Item
from millrace_apps.generators.clickstream.profile import DOMAIN_NAME, ClickstreamProfile, Names
from millrace_apps.generators.clickstream.trail import SESSION_GAP_MS
from millrace_apps.generators.engine.randomness import digest
from millrace_apps.generators.engine.simulated import Simulated, Truth

_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 86_400_000
#: Surface → how much more its lists are clicked than others.
SURFACES: Final = {"resume": 1.0, "discover": 0.6}
#: What does not go with the item that was looked at is clicked so much less.
STRANGE: Final = 0.2
#: Of places beyond this nobody takes notice.
PLACES: Final = 10
#: Who reads a list clicks so long after it, at least and at most, ms.
_SOONEST_MS, _LATEST_MS = 5_000, 60_000
#: So many shoppers are remembered, the last ones to stop.
_MOST: Final = 20_000


class ListMade(msgspec.Struct, frozen=True):
    """What an app says of a list; further fields are no concern of shoppers.

    Attributes:
        cause: The click that it was made at.
        surface: Where it is shown.
        visitor_id: The browser.
        event_time_ms: When it was due, UTC ms.
        item: The item that was looked at.
        arm: What chose it.
        items: The items, the first one on top.
    """

    cause: str
    surface: str
    visitor_id: str
    event_time_ms: int
    item: str
    arm: str
    items: list[str]


class Reader:
    """Somebody who has stopped looking around, and may read lists."""

    __slots__ = ("before", "click", "first", "made", "session", "told")

    def __init__(self, click: Click, session: Truth) -> None:
        #: The last click, and what is true of its session; that grows with it.
        self.click = click
        #: Identity of the last click that was made without a list.
        self.first = click.event_id
        self.session = session
        #: How many clicks lists have brought about.
        self.made = 0
        #: Lists of the last click and the one before it: click and surface → truth.
        self.told: dict[tuple[str, str], tuple[Sequence[str], Truth]] = {}
        #: The click before the last one; empty where it was not made because of a list.
        self.before = ""


class Lists:
    """Remembers who has stopped looking around, and what lists make of them.

    Args:
        profile: Gives ``seed``, ``list_clicks`` and ``list_patience_min``.
        names: Makes identifiers.
        catalogue: What goes with what.
    """

    def __init__(self, profile: ClickstreamProfile, names: Names, catalogue: Catalogue) -> None:
        self._profile, self._names, self._catalogue = profile, names, catalogue
        self._items: dict[str, Item] = {item.item_id: item for item in catalogue.items}
        self._readers: OrderedDict[str, Reader] = OrderedDict()

    def remember(self, events: Sequence[Simulated]) -> None:
        """Remember who has made a visit, if that ends with a look at an item and is one session.

        Args:
            events: The visit, of somebody who does not come again.
        """
        sessions = {t.truth_id: t for one in events for t in one.truths if t.kind == "session"}
        clicks = [one.event for one in events if one.stream == "clicks"]
        if len(sessions) != 1 or clicks[-1].event_type != "page_view" or clicks[-1].item_id is None:
            return
        (session,) = sessions.values()
        self._readers[clicks[-1].visitor_id] = Reader(clicks[-1], session)
        if len(self._readers) > _MOST:
            self._readers.popitem(last=False)

    def chances(self, made: ListMade) -> list[float]:
        """Return how likely each of the first places of a list is clicked."""
        looked_at = self._items.get(made.item)
        if looked_at is None:
            return []
        related = {item.item_id for item, _ in self._catalogue.related(looked_at)}
        base = self._profile.list_clicks * SURFACES.get(made.surface, 0.0)
        return [
            base / place * (1.0 if item in related else STRANGE)
            for place, item in enumerate(made.items[:PLACES], 1)
        ]

    def take(self, made: ListMade, now_ms: int) -> tuple[Truth, Simulated | None] | None:
        """Return what is true of a list, and the click that it brings about; ``None``: nobody reads it.

        Whether somebody clicks, and on which item, is fixed by the seed, the list's click and its surface.

        Args:
            made: The list.
            now_ms: Now, UTC ms.
        """
        reader, name = self._readers.get(made.visitor_id), (made.cause, made.surface)
        if reader is None or name in reader.told:
            return None
        chances = self.chances(made)
        due = made.event_time_ms
        truth = Truth(
            truth_id=f"list-{made.cause}-{made.surface}",
            kind="list",
            entity=made.visitor_id,
            expected="read",
            detail={
                "cause": made.cause, "surface": made.surface, "arm": made.arm, "due_ms": due,
                "chance": round(sum(chances), 9), "click": None, "item": None, "rank": None, "at_ms": None,
                "read": False, "drawn": False,
            },
        )  # fmt: skip
        if made.cause == reader.before:
            reader.told[name] = (made.items, truth)
            _count(truth, made.items, reader.click)  # it was too late to change anything
            return truth, None
        if made.cause != reader.click.event_id:
            return None
        uniform = _Uniform(self._profile.seed, made)
        at = max(now_ms, due) + _SOONEST_MS + int(uniform.second * (_LATEST_MS - _SOONEST_MS))
        patience = int(self._profile.list_patience_min * _MINUTE_MS)
        if at > due + patience or at > reader.click.event_time_ms + SESSION_GAP_MS:
            return None
        truth.detail["read"] = True
        reader.told[name] = (made.items, truth)
        drawn = uniform.first
        for item, chance in zip(made.items, chances, strict=False):
            if drawn < chance:
                truth.detail["drawn"] = True
                return truth, self._click(reader, self._items[item], at)
            drawn -= chance
        return truth, None

    def _click(self, reader: Reader, item: Item, at_ms: int) -> Simulated:
        before = reader.click
        reader.made += 1
        offset = before.client_time_ms - before.event_time_ms
        click = msgspec.structs.replace(
            before, event_id=f"{reader.first}-r{reader.made}", event_time_ms=at_ms,
            client_time_ms=at_ms + offset, page_type="item", page_url=item.url, item_id=item.item_id,
            category=item.category, price=item.price, referrer=None, utm_source=None, utm_medium=None,
            utm_campaign=None, click_id=None,
        )  # fmt: skip
        truths = []
        for (cause, _), (items, truth) in list(reader.told.items()):
            if cause == before.event_id and _count(truth, items, click):
                truths.append(truth)
        reader.told = {name: one for name, one in reader.told.items() if name[0] == before.event_id}
        reader.click, reader.before = click, before.event_id
        detail = reader.session.detail
        detail["events"] += 1
        detail["page_views"] += 1
        detail["end_ms"] = at_ms
        detail["crosses_midnight"] = detail["start_ms"] // _DAY_MS != at_ms // _DAY_MS
        return Simulated("clicks", click.visitor_id, click, at_ms, (reader.session, *truths))


def _count(truth: Truth, items: Sequence[str], click: Any) -> bool:
    """Take down a click on a list that has its item."""
    if click.item_id not in items:
        return False
    rank = items.index(click.item_id) + 1
    truth.detail.update(click=click.event_id, item=click.item_id, rank=rank, at_ms=click.event_time_ms)
    return True


class _Uniform:
    """Two uniform numbers that hang on the list alone, not on the order in which lists come."""

    def __init__(self, seed: int, made: ListMade) -> None:
        bits = int(digest(DOMAIN_NAME, seed, "list", made.cause, made.surface)[:16], 16)
        self.first = (bits >> 32) / (1 << 32)
        self.second = (bits & 0xFFFFFFFF) / (1 << 32)

"""Output records of recommending: lists that were shown, and their quality."""

from __future__ import annotations

import msgspec

from millrace_apps.clickstream.recommend.filters import Dropped


class Recommendation(msgspec.Struct, frozen=True, gc=False):
    """The next items for a visit, as of one of its clicks.

    Attributes:
        cause: The click.
        surface: Where it is shown: ``resume`` may name items of the visit, ``discover`` none.
        visitor_id: The browser.
        person: Whom it is known to be.
        event_time_ms: When it was clicked, UTC ms.
        item: The item that is looked at.
        arm: ``learned``; ``unlearned``: no model orders this person's candidates; or ``popular``: to this
            person only what is popular is shown.
        items: The items, the likeliest first.
        scores: Their scores; of what only fills the list 0.
        why: What spoke for each: ``visit``, ``sessions``, ``rule`` or ``popular``.
        visit: How many items were looked at in this visit so far.
        sessions: Sessions in the index.
        dropped: What rules have kept from the list, in the order in which it would have stood there; the
            first hundred.
        model: Version of the model that ordered the first candidates; empty: they are as sessions alike have
            them.
    """

    cause: str
    surface: str
    visitor_id: str
    person: str
    event_time_ms: int
    item: str
    arm: str
    items: list[str]
    scores: list[float]
    why: list[str]
    visit: int
    sessions: int
    dropped: list[Dropped] = []
    model: str = ""


class ListExample(msgspec.Struct, frozen=True, gc=False):
    """What was known of the candidates of a list, to learn their order from.

    Attributes:
        cause: The click.
        surface: Where the list is shown.
        visitor_id: The browser.
        event_time_ms: When it was clicked, UTC ms.
        item: The item that is looked at: of the list before it is what was clicked.
        visit: How many items were looked at in this visit so far.
        items: The candidates, the best first as sessions alike have them.
        features: What is known of each, one behind the other, in the order of :data:`.ranker.FEATURES`.
    """

    cause: str
    surface: str
    visitor_id: str
    event_time_ms: int
    item: str
    visit: int
    items: list[str]
    features: list[float]


class RecommendedClick(msgspec.Struct, frozen=True, gc=False):
    """An item of a list was looked at soon after it was shown, in the same visit.

    Attributes:
        cause: The click.
        surface: Where the list was shown.
        arm: What chose it.
        visitor_id: The browser.
        person: Whom it is known to be.
        event_time_ms: When it was clicked, UTC ms.
        item: The item.
        rank: Its place in the list, from 1.
        list_cause: The click that the list was made at.
        shown_ms: When that was.
    """

    cause: str
    surface: str
    arm: str
    visitor_id: str
    person: str
    event_time_ms: int
    item: str
    rank: int
    list_cause: str
    shown_ms: int


class ClickThrough(msgspec.Struct, frozen=True, gc=False):
    """How many of the lists that were shown in a time were clicked; told once it is too late for more.

    Attributes:
        surface: The surface.
        arm: What chose the lists.
        start_ms: Begin of the time in which they were shown, UTC ms.
        end_ms: Its end.
        lists: Lists that were shown.
        clicked: Those of them of which an item was looked at soon after.
        rate: Share of these.
        rank: Mean place, from 1, of what was clicked; ``None`` where nothing was.
    """

    surface: str
    arm: str
    start_ms: int
    end_ms: int
    lists: int
    clicked: int
    rate: float
    rank: float | None


class RecommendationQuality(msgspec.Struct, frozen=True, gc=False):
    """How good the lists of a time were, each judged by what was looked at next in the same visit.

    Attributes:
        surface: The surface.
        arm: What chose the lists.
        start_ms: Begin of the time, UTC ms.
        end_ms: Its end.
        queries: Lists that were judged.
        hit_rate: Share of them that had the next item.
        mrr: Mean of 1 / rank of it, 0 without.
        popular_hit_rate: Share of the same visits in which the popular items had it.
        coverage: Different items that were shown, in shares of those that the index knows.
        change: ``down`` or ``up`` where the hit rate is not what it was (CUSUM over the times); empty: it is.
    """

    surface: str
    arm: str
    start_ms: int
    end_ms: int
    queries: int
    hit_rate: float
    mrr: float
    popular_hit_rate: float
    coverage: float
    change: str

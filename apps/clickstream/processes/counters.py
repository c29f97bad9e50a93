"""Counting in shards: what is viewed and sold, who is there, and which visits end; per sliding window.

An item is always counted by the same shard, so the best of all items are among the best of the shards. What
is not an item (categories, devices, sources, visitors) is counted by many and added up later.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final, Protocol

import msgspec

from millrace.parts.panes import forget_panes, next_end, pane_at, panes_between, sums_of
from millrace.parts.top import best
from millrace_apps.clickstream.contracts.messages import (
    ItemCount,
    ShardWindow,
    VisitCount,
    of_segment,
    segment_of,
)

MINUTE_MS: Final = 60_000
_HOUR: Final = 60
#: Name of a window → its length and how often one ends, minutes.
SPANS: Final[dict[str, tuple[int, int]]] = {"5m": (5, 1), "1h": (60, 5), "24h": (1440, 60)}
#: So many items of each shard and board are told: as many as a board has places.
PLACES: Final = 10
#: Length of a pane (minutes) → how long after its begin it is one of those that are counted in, minutes.
_HOT: Final = {1: 2, 5: 10}
#: So many items of an older pane stand in one part.
_PART: Final = 64
#: What fewer browsers have searched for in an hour is not told.
LEAST_SEARCHING: Final = 3

#: Per item: views, pieces sold, revenue in cents.
Numbers = list[int]
Pane = dict[str, Numbers]


class Shard(msgspec.Struct, array_like=True, gc=False):
    """What a shard has counted, by the start of panes (minutes since the epoch).

    Attributes:
        minutes: Panes of a minute that are counted in now; what is older stands beside (:class:`Counted`).
        fives: So of five minutes.
        hours: Begins of the panes of an hour, for the last day; what is in them stands beside
            (:class:`Counted`). An earlier version had it here.
        categories: As an earlier version had them: category of each item that is counted.
        there: Minute → how many visitors were there in it, by device.
        now: Minute → how many were there in the five minutes before it, by device.
        visits: Hour → source → visits, engaged, converted, orders, views, revenue in cents.
        added: Hour → item → how often it was put into a cart, for the last day.
        searched: Five minutes → what was searched for → how often, and digests of three of the browsers that
            did, for the last hour.
        past_minutes: Begins of the panes of a minute that stand beside → in how many parts.
        past_fives: Those of five minutes.
    """

    minutes: dict[int, Pane] = msgspec.field(default_factory=dict)
    fives: dict[int, Pane] = msgspec.field(default_factory=dict)
    hours: dict[int, Pane] = msgspec.field(default_factory=dict)
    categories: dict[str, str] = msgspec.field(default_factory=dict)
    there: dict[int, dict[str, int]] = msgspec.field(default_factory=dict)
    now: dict[int, dict[str, int]] = msgspec.field(default_factory=dict)
    visits: dict[int, dict[str, Numbers]] = msgspec.field(default_factory=dict)
    added: dict[int, dict[str, int]] = msgspec.field(default_factory=dict)
    searched: dict[int, dict[str, Numbers]] = msgspec.field(default_factory=dict)
    past_minutes: dict[int, int] = msgspec.field(default_factory=dict)
    past_fives: dict[int, int] = msgspec.field(default_factory=dict)

    def visit(self, told: VisitCount) -> None:
        """Add a visit that is over."""
        visits: dict[str, Numbers] = pane_at(self.visits, told.at_ms // MINUTE_MS, _HOUR, dict)
        sums = visits.setdefault(told.source, [0] * 6)
        new = (1, int(told.engaged), int(told.converted), told.orders, told.views, told.cents)
        for place, number in enumerate(new):
            sums[place] += number

    def next_end(self, after: int) -> int | None:
        """Return the next minute at which a window with something in it ends, or something can be dropped."""
        ends = []
        kept = (
            ("5m", {*self.minutes, *self.past_minutes}, 1),
            ("1h", {*self.fives, *self.past_fives}, 5),
            ("24h", {*self.hours}, _HOUR),
        )
        for span, panes, size in kept:
            end = next_end(panes, size, *SPANS[span], after)
            if end is not None:
                ends.append(end)
        added = next_end(self.added, _HOUR, *SPANS["24h"], after)
        searched = next_end(self.searched, 5, *SPANS["1h"], after)
        ends += [end for end in (added, searched) if end is not None]
        ends += [start + 1 for start in self.there if start >= after]
        ends += [end for end in self.now if end > after]
        ends += [start + _HOUR for start in self.visits if start + _HOUR > after]
        return min(ends, default=None)

    @property
    def empty(self) -> bool:
        """Whether nothing is kept."""
        kept = (self.minutes, self.fives, self.hours, self.there, self.now, self.visits, self.added)
        return not any((*kept, self.searched, self.past_minutes, self.past_fives))


class Kept(Protocol):
    """A map in keyed state."""

    def get(self, key: str, default: None = None) -> Any:
        """Return a value."""

    def put(self, key: str, value: Any) -> None:
        """Keep a value."""

    def remove(self, key: str) -> None:
        """Forget a value."""

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield all."""


class Counted:
    """A shard, and what is counted of its items in a day: in maps, so that a batch writes what it counts.

    Args:
        shard: The rest of it; what an earlier version kept in it is moved.
        by_hour: Begin of an hour (minutes since the epoch) and item → its numbers in that hour.
        categories: Category of each item that is counted.
        past: Length and begin of a pane (minutes), and a number → a part of the pane: of those in which only
            what comes late is counted.
    """

    def __init__(self, shard: Shard, by_hour: Kept, categories: Kept, past: Kept) -> None:
        self.shard, self._by_hour, self.categories, self._past = shard, by_hour, categories, past
        if shard.categories or any(shard.hours.values()):
            for item, category in shard.categories.items():
                categories.put(item, category)
            for start, pane in shard.hours.items():
                for item, sums in pane.items():
                    by_hour.put(f"{start}:{item}", sums)
            shard.hours = {start: {} for start in shard.hours}
            shard.categories = {}

    def count(self, told: ItemCount) -> None:
        """Add an item's views or sales, and who is there."""
        shard, minute = self.shard, told.at_ms // MINUTE_MS
        if told.what == "add":
            added: dict[str, int] = pane_at(shard.added, minute, _HOUR, dict)
            added[told.item] = added.get(told.item, 0) + told.quantity
            self._is_of(told)
        elif told.what == "search":
            searched: dict[str, Numbers] = pane_at(shard.searched, minute, 5, dict)
            times, *by = searched.get(told.item, [0])
            # The least ones, so that it does not hang on the order which are known.
            searched[told.item] = [times + told.quantity, *sorted({*by, told.by})[:LEAST_SEARCHING]]
        elif told.quantity:
            item, number = told.item, _NUMBERS[told.what]
            self._is_of(told)
            for panes, size in ((shard.minutes, 1), (shard.fives, 5)):
                pane: Pane = pane_at(panes, minute, size, dict)
                _add(pane.setdefault(item, [0, 0, 0]), number, told)
            pane_at(shard.hours, minute, _HOUR, dict)
            name = f"{minute - minute % _HOUR}:{item}"
            sums = self._by_hour.get(name) or [0, 0, 0]
            _add(sums, number, told)
            self._by_hour.put(name, sums)
        if told.device:
            there: dict[str, int] = pane_at(shard.there, minute, 1, dict)
            there[told.device] = there.get(told.device, 0) + 1
            for end in range(told.there_from_ms // MINUTE_MS, told.there_to_ms // MINUTE_MS + 1):
                now: dict[str, int] = pane_at(shard.now, end, 1, dict)
                now[told.device] = now.get(told.device, 0) + 1

    def _is_of(self, told: ItemCount) -> None:
        if self.categories.get(told.item) != told.category:
            self.categories.put(told.item, told.category)

    def category(self, item: str) -> str:
        """Return the category of an item; empty where it is not known."""
        return self.categories.get(item) or ""

    def window(self, span: str, end: int) -> Pane:
        """Return the sums of the window that ends at a minute."""
        length, _ = SPANS[span]
        if span == "24h":
            found: Pane = {}
            for name, sums in self._by_hour.items():
                start, _, item = name.partition(":")
                if end - length <= int(start) < end:
                    own = found.setdefault(item, [0, 0, 0])
                    for place, number in enumerate(sums):
                        own[place] += number
            return found
        size = 1 if span == "5m" else 5
        panes, past = self._panes(size)
        older = [self._read(size, start, past[start]) for start in past if end - length <= start < end]
        return sums_of([*older, *panes_between(panes, end - length, end, size)])

    def _panes(self, size: int) -> tuple[dict[int, Pane], dict[int, int]]:
        shard = self.shard
        return (shard.minutes, shard.past_minutes) if size == 1 else (shard.fives, shard.past_fives)

    def _read(self, size: int, start: int, parts: int) -> Pane:
        found: Pane = {}
        for number in range(parts):
            found |= self._past.get(f"{size}:{start}:{number}") or {}
        return found

    def set_aside(self, end: int) -> None:
        """Let panes in which only late events are counted from a minute on stand beside the rest.

        Args:
            end: Minute since the epoch.
        """
        for size, kept in _HOT.items():
            panes, past = self._panes(size)
            for start in [start for start in panes if start < end - kept]:
                pane = panes.pop(start)
                if start in past:  # something came late for it
                    pane = sums_of([self._read(size, start, past[start]), pane])
                    self._remove(size, start, past.pop(start))
                items = sorted(pane)
                past[start] = parts = -(-len(items) // _PART)
                for number in range(parts):
                    part = {item: pane[item] for item in items[number * _PART : (number + 1) * _PART]}
                    self._past.put(f"{size}:{start}:{number}", part)

    def _remove(self, size: int, start: int, parts: int) -> None:
        for number in range(parts):
            self._past.remove(f"{size}:{start}:{number}")

    def forget(self, before: int) -> None:
        """Drop the panes that no window after a minute needs."""
        shard, hours = self.shard, set(self.shard.hours)
        kept: tuple[tuple[dict[int, Any], int], ...] = (
            (shard.minutes, 5), (shard.fives, 60), (shard.hours, 1440), (shard.added, 1440),
            (shard.searched, 60),
        )  # fmt: skip
        for panes, length in kept:
            forget_panes(panes, before - length)
        for size, length in ((1, 5), (5, 60)):
            past = self._panes(size)[1]
            for start in [start for start in past if start < before - length]:
                self._remove(size, start, past.pop(start))
        for told in (shard.there, shard.now, shard.visits):
            forget_panes(told, before - _HOUR)
        if hours - set(shard.hours):
            self._drop()
        if not (shard.hours or shard.added):
            for item in [item for item, _ in self.categories.items()]:
                self.categories.remove(item)

    def _drop(self) -> None:
        """Drop what is of hours that are gone, and categories of items that are in no pane any more."""
        there = {*chain.from_iterable(self.shard.added.values())}
        gone = []
        for name, _ in self._by_hour.items():
            start, _, item = name.partition(":")
            if int(start) in self.shard.hours:
                there.add(item)
            else:
                gone.append(name)
        for name in gone:
            self._by_hour.remove(name)
        for item in [item for item, _ in self.categories.items() if item not in there]:
            self.categories.remove(item)


def _add(sums: Numbers, number: int, told: ItemCount) -> None:
    sums[number] += told.quantity
    sums[2] += told.cents


class ItemFeatures(msgspec.Struct, frozen=True, gc=False):
    """Features of an item at a full hour; a row by ``item_id``, the latest holds.

    Attributes:
        item_id: The item.
        category: Its category.
        views_1h: Views in the hour before.
        sold_1h: Pieces sold in it.
        views_24h: Views in the day before.
        sold_24h: Pieces sold in it.
        revenue_24h_cents: What they cost.
        price_cents: What a piece of them cost on average; 0 where none was sold.
        as_of_ms: The full hour, UTC ms.
        adds_1h: How often it was put into a cart in the hour before.
        adds_24h: In the day before.
    """

    item_id: str
    category: str
    views_1h: int
    sold_1h: int
    views_24h: int
    sold_24h: int
    revenue_24h_cents: int
    price_cents: int
    as_of_ms: int
    adds_1h: int = 0
    adds_24h: int = 0


def item_features(counted: Counted, end: int) -> Iterator[ItemFeatures]:
    """Yield the features of a shard's items at a full hour; at other minutes nothing.

    Args:
        counted: The shard.
        end: Minute since the epoch.
    """
    if end % _HOUR:
        return
    hour = counted.window("1h", end)
    day = counted.window("24h", end)
    shard = counted.shard
    adds = Counter[str]()
    for pane in panes_between(shard.added, end - 24 * _HOUR, end, _HOUR):
        adds.update(pane)
    lately = shard.added.get(end - _HOUR, {})
    for item in sorted({*day, *adds}):
        views, sold, cents = day.get(item, (0, 0, 0))
        if not (views or sold or adds[item]):
            continue  # what was sold is told by an earlier event, of another day
        views_1h, sold_1h, _ = hour.get(item, (0, 0, 0))
        # By position: one is made for every item and hour.
        yield ItemFeatures(
            item, counted.category(item), views_1h, sold_1h, views, sold, cents,
            cents // sold if sold else 0, end * MINUTE_MS, lately.get(item, 0), adds[item],
        )  # fmt: skip


def searches(shard: Shard, end: int) -> dict[str, int]:
    """Return what was searched for most in the hour before a minute, and how often.

    What less than three browsers have searched for is left out: it may be what one person alone would write.
    """
    found, by = Counter[str](), defaultdict[str, set[int]](set)
    for pane in panes_between(shard.searched, end - _HOUR, end, 5):
        for term, (times, *browsers) in pane.items():
            found[term] += times
            by[term].update(browsers)
    return dict(best(((term, n) for term, n in found.items() if len(by[term]) >= LEAST_SEARCHING), PLACES))


_NUMBERS: Final = {"view": 0, "sold": 1}


def best_of(window: Pane, place: int) -> dict[str, int]:
    """Return the items with the largest numbers, of equals the lesser name first.

    Args:
        window: Sums by item.
        place: Which number counts.

    Example:
        >>> best_of({"b": [2, 0, 0], "a": [2, 1, 0], "c": [1, 0, 0]}, 0)
        {'a': 2, 'b': 2, 'c': 1}
    """
    return dict(best(((item, numbers[place]) for item, numbers in window.items() if numbers[place]), PLACES))


def window_rows(counted: Counted, name: str, end: int, *, also_empty: bool = False) -> Iterator[ShardWindow]:
    """Yield what the windows that end at a minute have to say to the boards.

    Args:
        counted: The shard.
        name: Its name.
        end: Minute since the epoch.
        also_empty: Tell the boards of items, too, on which nothing is: something was taken off.
    """
    shard = counted.shard
    for span, (length, every) in SPANS.items():
        if end % every:
            continue
        window = counted.window(span, end)
        if not window and not also_empty:
            continue
        yield from _told(name, f"views/{span}", best_of(window, 0), end, length, also_empty=also_empty)
        yield from _told(name, f"sold/{span}", best_of(window, 1), end, length, also_empty=also_empty)
        categories: dict[str, Numbers] = {}
        for item, numbers in window.items():
            sums = categories.setdefault(counted.category(item), [0, 0, 0])
            for place in range(3):
                sums[place] += numbers[place]
        views = {c: n[0] for c, n in categories.items() if n[0]}
        yield from _told(name, f"categories/{span}", views, end, length, also_empty=also_empty)
        revenue = {c: n[2] for c, n in categories.items() if n[2]}
        yield from _told(name, f"revenue/{span}", revenue, end, length, also_empty=also_empty)
    if end % SPANS["1h"][1] == 0:
        yield from _told(name, "searches/1h", searches(shard, end), end, _HOUR)
    yield from _told(name, "visitors/1m", shard.there.get(end - 1, {}), end, 1)
    yield from _told(name, "visitors/now", shard.now.get(end, {}), end, 5)
    if end % _HOUR == 0:
        visits = shard.visits.get(end - _HOUR, {})
        for place, number in enumerate(("visits", "engaged", "converted", "orders", "views", "revenue")):
            counts = {source: numbers[place] for source, numbers in visits.items() if numbers[place]}
            yield from _told(name, f"sources.{number}/1h", counts, end, _HOUR)


def _told(
    name: str, board: str, counts: dict[str, int], end: int, length: int, *, also_empty: bool = False
) -> Iterator[ShardWindow]:
    if counts or also_empty:
        end_ms, board = end * MINUTE_MS, of_segment(board, segment_of(name))
        yield ShardWindow(
            f"{board}:{end_ms}",
            board,
            end_ms - length * MINUTE_MS,
            end_ms,
            name,
            dict(sorted(counts.items())),
        )

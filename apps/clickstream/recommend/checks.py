"""The lists of next items compared with consent, with each other, and with what is told of their quality."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from millrace.console.report import Check, equal, same
from millrace.testing.world_ledger import WorldTruth
from millrace_apps.clickstream.evaluation.offer_checks import STITCHING, Consents

Row = dict[str, Any]
#: So many of a visit's clicks are remembered, the last ones; its counter goes no further.
_COUNTED: Final = 100
#: So many lists of a surface may be clicked in a visit, the last ones.
_OPEN: Final = 8
_HOUR_MS: Final = 3_600_000
#: Fewer lists that were judged say nothing of how good they are; in a short run no hour is over.
_ENOUGH: Final = 100


def check_recommendations(
    lists: Sequence[Row],
    quality: Iterable[Row],
    consents: Consents,
    *,
    most: int,
    until_ms: int,
) -> list[Check]:
    """Compare the lists that were shown.

    Args:
        lists: The table ``recommendations``.
        quality: The table ``recommendation_quality``.
        consents: What was allowed.
        most: Length of a list.
        until_ms: Up to when everything has been said, UTC ms.
    """
    names = {(row["cause"], row["surface"]) for row in lists}
    wrong = sum(not 0 < len(row["items"]) == len(set(row["items"])) <= most for row in lists)
    forbidden = sum(not consents.allow(row["visitor_id"], row["event_time_ms"], STITCHING) for row in lists)
    discover = [row for row in lists if row["surface"] == "discover"]
    known = sum(bool({*row["items"]} & seen) for row, seen in _with_visits(lists, discover))
    told = [row for row in quality if row["end_ms"] <= until_ms]
    ours = {(row["surface"], row["arm"], row["start_ms"], row["queries"], _hits(row)) for row in told}
    hits = sum(_hits(row) for row in told if row["arm"] == "learned" and row["surface"] == "resume")
    popular = sum(
        round(row["popular_hit_rate"] * row["queries"])
        for row in told
        if row["arm"] == "learned" and row["surface"] == "resume"
    )
    judged = sum(row["queries"] for row in told)
    return [
        equal("no list of next items twice", 0, len(lists) - len(names), of=len(lists)),
        equal("lists with an item twice, or too long", 0, wrong, of=len(lists)),
        equal("lists without consent", 0, forbidden, of=len(lists)),
        equal("lists to discover with what was looked at", 0, known, of=len(discover)),
        same("next items that were foreseen", _counted(lists, until_ms), ours, "by surface, arm and hour"),
        Check(
            "next items foreseen, more than by what is popular",
            f"> {popular:,}",
            f"{hits:,}",
            hits > popular or judged < _ENOUGH,
            compared=judged if judged >= _ENOUGH else 0,
        ),
    ]


def check_clicks(
    lists: Sequence[Row],
    clicks: Sequence[Row],
    rates: Iterable[Row],
    *,
    within_ms: int,
    until_ms: int,
) -> list[Check]:
    """Compare the clicks on lists, and the shares of lists that were clicked, with the lists themselves.

    Args:
        lists: The table ``recommendations``.
        clicks: The table ``recommendation_clicks``.
        rates: The table ``recommendation_click_through``.
        within_ms: So soon after a list was shown a look is a click, ms.
        until_ms: Up to when everything has been said, UTC ms.
    """
    wanted = _clicked(lists, within_ms)
    known = {(c["list_cause"], c["surface"], c["cause"], c["item"], c["rank"]) for c in clicks}
    told = [row for row in rates if row["end_ms"] + within_ms <= until_ms]
    ours = {(row["surface"], row["arm"], row["start_ms"], row["lists"], row["clicked"]) for row in told}
    counts: dict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0])
    clicked = {(cause, surface) for cause, surface, *_ in wanted}
    for row in lists:
        start = row["event_time_ms"] - row["event_time_ms"] % _HOUR_MS
        if start + _HOUR_MS + within_ms <= until_ms:
            count = counts[row["surface"], row["arm"], start]
            count[0] += 1
            count[1] += (row["cause"], row["surface"]) in clicked
    theirs = {(*name, *count) for name, count in counts.items()}
    return [
        same("clicks on next items", wanted, known, "by list and click"),
        same("lists that were clicked", theirs, ours, "by surface, arm and hour"),
    ]


def _clicked(lists: Sequence[Row], within_ms: int) -> set[tuple[str, str, str, str, int]]:
    """Return list, surface, click, item and rank of each first click on a list, from the lists alone.

    Of the lists of a surface that were shown in a visit before a click, the newest that has the item is the
    clicked one; eight are remembered.
    """
    shown: dict[tuple[str, str], Row] = {(row["cause"], row["surface"]): row for row in lists}
    surfaces = sorted({row["surface"] for row in lists})
    found: dict[tuple[str, str], tuple[str, str, int]] = {}
    for rows in _clicks(lists).values():
        begins = [n for n, row in enumerate(rows) if row["visit"] == 1]
        for n, click in enumerate(rows):
            first = begins[bisect_left(begins, n + 1) - 1] if begins and begins[0] <= n else 0
            for surface in surfaces:
                before = [shown[r["cause"], surface] for r in rows[first:n] if (r["cause"], surface) in shown]
                for row in before[-1 : -_OPEN - 1 : -1]:
                    if click["event_time_ms"] - row["event_time_ms"] > within_ms:
                        break
                    if click["item"] in row["items"]:
                        rank = row["items"].index(click["item"]) + 1
                        found.setdefault((row["cause"], surface), (click["cause"], click["item"], rank))
                        break
    return {(*name, *click) for name, click in found.items()}


def check_read(
    lists: Sequence[Row],
    clicks: Iterable[Row],
    read: Sequence[WorldTruth],
    consents: Consents,
    *,
    within_ms: int,
    until_ms: int,
) -> list[Check]:
    """Compare clicks on lists with what shoppers who have read them say.

    They say of each list what came of it until the next look. A later look may be at an item that no newer
    list has, and counts for the older one then, too; of it :func:`check_clicks` tells.

    Args:
        lists: The table ``recommendations``.
        clicks: The table ``recommendation_clicks``.
        read: Truths of the lists that shoppers have heard of when nothing else was looked at since.
        consents: What was allowed; where that changed after a list, its clicks are not compared.
        within_ms: So soon after a list was shown a look is a click, ms.
        until_ms: Up to when everything has been said, UTC ms.
    """
    told = [
        t
        for t in read
        if t.detail["due_ms"] + within_ms <= until_ms
        and not t.disturbed
        and not consents.changed(t.entity, t.detail["due_ms"], until_ms)
    ]
    names = {(t.detail["cause"], t.detail["surface"]) for t in told}
    arms = {(row["cause"], row["surface"]): row["arm"] for row in lists}
    theirs = {_read(t) for t in told if t.detail["click"] is not None}
    times: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in sorted(lists, key=lambda row: int(row["event_time_ms"])):
        times[row["visitor_id"], row["surface"]].append(row["event_time_ms"])
    ours = {
        (c["list_cause"], c["surface"], c["arm"], c["cause"], c["item"], c["rank"])
        for c in clicks
        if (c["list_cause"], c["surface"]) in names and _is_next(c, times[c["visitor_id"], c["surface"]])
    }
    shown, wanted, found = Counter[str](), Counter[str](), Counter[str]()
    expected: dict[str, list[float]] = defaultdict(list)
    for truth in told:
        name = f"{truth.detail['surface']}/{truth.detail['arm']}"
        cause, surface = truth.detail["cause"], truth.detail["surface"]
        shown[f"{surface}/{arms.get((cause, surface), '')}"] += 1
        wanted[name] += truth.detail["click"] is not None
        if truth.detail["read"]:
            expected[name].append(truth.detail["chance"])
    clicked = {one[:2] for one in ours}
    for cause, surface in names:
        found[f"{surface}/{arms.get((cause, surface), '')}"] += (cause, surface) in clicked
    by_arm = {(name, len(_of(told, name)), n) for name, n in wanted.items()}
    counted = {(name, n, found[name]) for name, n in shown.items()}
    return [
        same("clicks that shoppers made on lists", theirs, ours, "list, surface, arm, click, item and place"),
        same("click-through of lists that were read", by_arm, counted, "by surface and arm"),
        *_gain(told, ours, expected, {row["surface"] for row in lists}),
    ]


def _is_next(click: Row, shown: Sequence[int]) -> bool:
    """Return whether a click is the first look after its list: no other list was shown between them.

    Args:
        click: The click.
        shown: When lists were shown to its browser on its surface, in order.
    """
    place = bisect_right(shown, click["shown_ms"])
    return place == len(shown) or shown[place] >= click["event_time_ms"]


def _read(truth: WorldTruth) -> tuple[Any, ...]:
    names = ("cause", "surface", "arm", "click", "item", "rank")
    return tuple(truth.detail[name] for name in names)


def _of(told: Iterable[WorldTruth], name: str) -> list[WorldTruth]:
    return [t for t in told if f"{t.detail['surface']}/{t.detail['arm']}" == name]


def _gain(
    told: Sequence[WorldTruth],
    ours: Iterable[tuple[Any, ...]],
    expected: dict[str, list[float]],
    surfaces: set[str],
) -> list[Check]:
    """Compare how much more is clicked than by what is popular, with how much more likely that truly was."""
    # Of a click that counts for both surfaces one list has brought it about.
    drawn = {_read(t)[:2] for t in told if t.detail["drawn"]}
    counts = Counter(f"{one[1]}/{one[2]}" for one in ours if one[:2] in drawn)
    found = []
    for surface in sorted(surfaces | {t.detail["surface"] for t in told}):
        name = f"clicks that recommending adds: {surface}"
        ours_, popular = expected.get(f"{surface}/learned", []), expected.get(f"{surface}/popular", [])
        if min(len(ours_), len(popular)) < _ENOUGH:
            found.append(Check(name, "-", "-", ok=True, compared=0))  # of so few nothing can be said
            continue
        rates = [counts[f"{surface}/{arm}"] / len(x) for arm, x in (("learned", ours_), ("popular", popular))]
        true = sum(ours_) / len(ours_) - sum(popular) / len(popular)
        spread = sum(sum(p * (1 - p) for p in x) / len(x) ** 2 for x in (ours_, popular)) ** 0.5
        holds = abs(rates[0] - rates[1] - true) <= 4 * spread
        found.append(
            Check(name, f"{true:+.3f}", f"{rates[0] - rates[1]:+.3f}",
                  holds, f"a list, within {4 * spread:.3f}", compared=len(ours_) + len(popular))
        )  # fmt: skip
    return found


def check_stock(lists: Iterable[Row], changes: Iterable[WorldTruth]) -> list[Check]:
    """Compare what was shown and dropped with what there was of each item at that moment.

    Items of which a change came late, never, or at that very moment are left out.

    Args:
        lists: The table ``recommendations``.
        changes: Truths of the changes of items.
    """
    times: dict[str, list[int]] = defaultdict(list)
    pieces: dict[str, list[int]] = defaultdict(list)
    disturbed = set()
    for truth in sorted(changes, key=lambda t: t.detail["at_ms"]):
        times[truth.entity].append(truth.detail["at_ms"])
        pieces[truth.entity].append(truth.detail["stock"])
        if truth.disturbed:
            disturbed.add(truth.entity)

    def stock(item: str, at_ms: int) -> int | None:
        place = bisect_left(times[item], at_ms)
        if item in disturbed or not place or at_ms in times[item][place : place + 1]:
            return None
        return pieces[item][place - 1]

    shown, dropped = Counter[int | None](), Counter[int | None]()
    for row in lists:
        at_ms = row["event_time_ms"]
        shown.update(stock(item, at_ms) for item in row["items"])
        dropped.update(stock(d["item"], at_ms) for d in row["dropped"] or () if d["rule"] == "sold-out")
    wrong = dropped.total() - dropped[0] - dropped[None]
    return [
        equal("next items that were sold out", 0, shown[0], of=shown.total() - shown[None]),
        equal("items dropped that were not sold out", 0, wrong, of=dropped.total() - dropped[None]),
    ]


def _hits(row: Row) -> int:
    rate, queries = float(row["hit_rate"]), int(row["queries"])
    return round(rate * queries)


def _clicks(lists: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the answered clicks of each browser in their order: one row of each."""
    by: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in lists:
        by[row["visitor_id"]].setdefault(row["cause"], row)
    return {
        visitor: sorted(rows.values(), key=lambda row: (row["event_time_ms"], row["visit"]))
        for visitor, rows in by.items()
    }


def _with_visits(lists: Sequence[Row], wanted: Iterable[Row]) -> Iterable[tuple[Row, set[str]]]:
    """Yield each of some lists with what was looked at in its visit up to it, as far as that was answered."""
    seen: dict[str, set[str]] = {}
    for rows in _clicks(lists).values():
        items: deque[str] = deque(maxlen=_COUNTED)
        for row in rows:
            if row["visit"] == 1:
                items.clear()
            items.append(row["item"])
            seen[row["cause"]] = set(items)
    for row in wanted:
        yield row, seen[row["cause"]]


def _counted(lists: Sequence[Row], until_ms: int) -> set[tuple[str, str, int, int, int]]:
    """Return surface, arm, begin of the time, lists and hits, counted anew from the lists themselves.

    A list is judged by the browser's next click in the same visit. Times of which the end has not come are
    left out; they begin with whole ones.
    """
    shown: dict[str, list[Row]] = defaultdict(list)
    for row in lists:
        shown[row["cause"]].append(row)
    counts: dict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0])
    size = 3_600_000
    for rows in _clicks(lists).values():
        for before, after in itertools.pairwise(rows):
            if after["visit"] != min(before["visit"] + 1, _COUNTED):
                continue
            start = after["event_time_ms"] - after["event_time_ms"] % size
            for row in shown[before["cause"]]:
                count = counts[row["surface"], row["arm"], start]
                count[0] += 1
                count[1] += after["item"] in row["items"]
    return {
        (surface, arm, start, judged, hits)
        for (surface, arm, start), (judged, hits) in counts.items()
        if start + size <= until_ms
    }

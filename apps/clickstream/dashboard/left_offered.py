"""Carts that were left and what was offered on the clickstream page: of everybody, or of one segment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from millrace.dashboard.data import AppData
from millrace.dashboard.page import Panel
from millrace.dashboard.values import as_dict, bounded, ratio
from millrace.dashboard.views import Bar, Bars, Cell, Column, Table, Tone, View
from millrace_apps.clickstream.dashboard.chosen import halves_of, in_segment
from millrace_apps.clickstream.dashboard.data import KINDS, grouped, left_carts, uplift_so_far
from millrace_apps.clickstream.operations.uplift import Uplift

if TYPE_CHECKING:
    import pyarrow as pa

_PLACES: Final = 10
_SHOWN: Final = 20
#: Rows of carts that were left, and of offers, that are looked at.
_LOOKED_AT: Final = 2_000
_STAGES: Final = ("cart", "address", "delivery", "payment")


def abandonment(data: AppData) -> View | None:
    """Return the carts that were left, by how far they had come."""
    return _left(left_carts(data), None, "")


def abandonment_of(data: AppData, value: str) -> View | None:
    """Return those that were left in a segment in the last period, and in the one before."""
    found = halves_of(data, "abandonments", "since_ms", ("stage", "value_cents"), value)
    if found is None:
        return None
    now, before = (
        {stage: numbers for (stage,), numbers in grouped(rows, ["stage"], "value_cents")}
        for rows in found[1:]
    )
    return _left(now, before, found[0])


def _left(now: Mapping[str, list[int]], before: Mapping[str, list[int]] | None, named: str) -> View | None:
    earlier = before or {}
    stages = sorted(
        {*now, *earlier}, key=lambda stage: (_STAGES.index(stage) if stage in _STAGES else 9, stage)
    )
    bars = []
    for stage in stages:
        n, cents = now.get(stage, (0, 0))
        note = f"{cents / 100:,.2f} in them"
        if before is not None:
            note += f"; {named} before {before.get(stage, (0, 0))[0]:,}"
        bars.append(Bar(stage, n, note))
    return Bars(bars=tuple(bars)) if bars else None


def left_items(data: AppData) -> View | None:
    """Return which items are in carts that were left, of the last carts; each cart as it was left last."""
    table = data.table("abandonments")
    if table is None or not table.rows:
        return None
    counts, carts = _inside(table.latest(_LOOKED_AT, ["cart_id", "since_ms", "items"]))
    columns = (Column("item"), Column("carts", "count"), Column("of carts left", "share"))
    rows: list[list[Cell]] = [[item, n, n / carts] for item, n in _most(counts)]
    return bounded(columns, rows, most=_PLACES) if rows else None


def left_items_of(data: AppData, value: str) -> View | None:
    """Return those of a segment in the last period, beside the one before."""
    found = halves_of(data, "abandonments", "since_ms", ("cart_id", "items"), value)
    if found is None:
        return None
    (now, carts), (before, _) = (_inside(rows.sort_by("since_ms")) for rows in found[1:])
    columns = (Column("item"), Column("carts", "count"), Column("of carts left", "share"),
               Column(f"{found[0]} before", "count"))  # fmt: skip
    rows: list[list[Cell]] = [[item, n, ratio(n, carts), before[item]] for item, n in _most(now)]
    return bounded(columns, rows, most=_PLACES)


def _inside(rows: pa.Table) -> tuple[Counter[str], int]:
    """Return in how many carts each item is, and how many carts there are; each as it was left last."""
    carts = {row["cart_id"]: row.get("items") or () for row in rows.to_pylist()}
    return Counter(item for items in carts.values() for item in items), len(carts)


def _most(counts: Counter[str]) -> Iterable[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def uplift(data: AppData, value: str = "") -> View | None:
    """Return what each offer adds to buying, against its control arm.

    Args:
        data: The app's data.
        value: A segment; then it says, too, how many were offered in the last period and in the one before.
    """
    part = halves_of(data, "offers", "at_ms", ("rule", "arm"), value) if value else None
    columns = [
        Column("rule"), Column("offered", "count"), Column("bought", "share"), Column("control", "count"),
        Column("bought", "share"), Column("uplift", "share"), Column("from", "share"), Column("to", "share"),
        Column("says"),
    ]  # fmt: skip
    found = uplift_so_far(data, value)
    rows: list[list[Cell]] = [
        [
            u.rule, u.offered, ratio(u.offered_bought, u.offered),
            u.control, ratio(u.control_bought, u.control), u.uplift, u.low, u.high, verdict(u)[0],
        ]
        for u in found
    ]  # fmt: skip
    if part is not None:
        named, *halves = part
        columns += [Column(f"offered, last {named}", "count"), Column(f"{named} before", "count")]
        for half in halves:
            made = {key: n for key, (n,) in grouped(half, ["rule", "arm"])}
            for row in rows:
                row.append(made.get((row[0], "offer"), 0))
    return bounded(columns, rows, [verdict(u)[1] for u in found])


def verdict(found: Uplift) -> tuple[str, Tone]:
    """Return in words what the interval of an uplift says, and how it is meant."""
    if found.low is None or found.high is None:
        return "too few to tell", "plain"
    if found.low > 0:
        return "adds", "good"
    if found.high < 0:
        return "takes away", "bad"
    return "cannot be told from nothing", "plain"


def offers(data: AppData, value: str = "") -> View | None:
    """Return the newest offers and why they were made; of a segment, those among the last 2,000."""
    table = data.table("offers")
    if table is None or not table.rows:
        return None
    columns = (Column("time", "time"), Column("person", "key"), Column("rule"), Column("offer"),
               Column("arm"), Column("why"))  # fmt: skip
    names = ["at_ms", "person", "rule", "offer", "arm", "why"]
    if value:
        newest = in_segment(table.latest(_LOOKED_AT, [*names, *KINDS]), value)
        number, newest = newest.num_rows, newest.slice(max(0, newest.num_rows - _SHOWN))
    else:
        number, newest = table.rows, table.latest(_SHOWN, names)
    rows = [[*(row[name] for name in names[:-1]), _why(row)] for row in reversed(newest.to_pylist())]
    return Table(columns=columns, rows=rows, more=max(0, number - len(rows)))


def _why(row: Mapping[str, Any]) -> str:
    return "; ".join(f"{step}: {what}" for step, what in as_dict(row["why"]).items())


CARTS: Final = (
    Panel("abandonment", "Carts left", abandonment, width="third", empty="no cart was left yet",
          about="By how far they had come.", chosen=abandonment_of),
    Panel("left-items", "Items in carts left", left_items, empty="no cart was left yet",
          about="Of the last 2,000 times that a cart was left; a cart counts once, as it was last.",
          chosen=left_items_of),
)  # fmt: skip
OFFERS: Final = (
    Panel("uplift", "What offers add", uplift, width="full", empty="no offer yet",
          about="Bought so far, within 7 days of the offer, against the control arm; the difference "
          "with its 95 % interval (Newcombe 1998).", chosen=uplift),
    Panel("offers", "Latest offers", offers, width="full", empty="no offer yet", chosen=offers),
)  # fmt: skip

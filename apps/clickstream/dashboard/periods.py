"""The part of the clickstream page that compares: with the time before, segment by segment, day by day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.dashboard.data import AppData
from millrace.dashboard.page import Panel
from millrace.dashboard.values import bounded, ratio
from millrace.dashboard.views import Cell, Column, View
from millrace_apps.clickstream.dashboard.data import LATELY_MS, grouped, lately_sessions

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.dashboard.tables import DeltaReader

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
#: So many days are shown.
_DAYS: Final = 14
#: Rows of the books that are looked at: two weeks of some twenty currencies, or more.
_BOOKS: Final = 2_000
SUMS: Final = ("page_views", "is_engaged", "is_converted", "orders", "revenue_cents")
_ITEM: Final = ("item_id", "category", "views_24h", "adds_24h", "sold_24h", "revenue_24h_cents")
_BOOKED: Final = (
    "orders", "cancelled_orders", "reported_orders", "amount_reported_cents", "net_reported_cents",
    "margin_reported_cents", "margin_orders", "paid_back_reported_cents",
)  # fmt: skip


class Counts(NamedTuple):
    """Sessions of people.

    Attributes:
        number: How many.
        views: Their page views.
        engaged: Those in which somebody was really there.
        converted: Those in which something was bought.
        orders: Their orders.
        cents: What these were worth.
    """

    number: int = 0
    views: int = 0
    engaged: int = 0
    converted: int = 0
    orders: int = 0
    cents: int = 0


class Period(NamedTuple):
    """The newest sessions, and as much time before.

    Attributes:
        length_ms: How long each is, ms.
        now: The newest sessions; segment kind and name → counts; ``("", "")`` is all of them.
        before: Those before.
    """

    length_ms: int
    now: dict[tuple[str, str], Counts]
    before: dict[tuple[str, str], Counts]


def period(data: AppData) -> Period | None:
    """Return the sessions of the last day and of the one before; of hours while there is less than that.

    A session belongs to when it began.
    """
    table = data.table("sessions")
    return None if table is None or not table.rows else table.once("period", _period)


def _period(table: DeltaReader) -> Period | None:
    import pyarrow.compute as pc

    rows = lately_sessions(table)
    rows = rows.filter(pc.field("bot") == "")
    if not rows.num_rows:
        return None
    newest, length, _ = length_of(rows)
    start = pc.field("start_ms")
    now = rows.filter(start > newest - length)
    before = rows.filter((start > newest - 2 * length) & (start <= newest - length))
    return Period(length, _segments(now), _segments(before))


def length_of(rows: pa.Table) -> tuple[int, int, str]:
    """Return when the newest session began (UTC ms), how long a period is (ms), and what that is called."""
    import pyarrow.compute as pc

    newest, oldest = pc.max(rows["start_ms"]).as_py(), pc.min(rows["start_ms"]).as_py()
    is_day = newest - oldest > LATELY_MS * 3 // 4
    return newest, _DAY_MS if is_day else _HOUR_MS, "day" if is_day else "hour"


def _segments(rows: pa.Table) -> dict[tuple[str, str], Counts]:
    found = {("", ""): Counts()}
    for kind in ("", "channel", "device"):
        if kind and kind not in rows.column_names:
            continue  # written by an earlier version
        for names, numbers in grouped(rows, [kind] if kind else [], *SUMS):
            found[kind, str(names[0] or "none") if kind else ""] = Counts(*numbers)
    return found


def compared(data: AppData) -> View | None:
    """Return what sessions are like now, and were before."""
    found = period(data)
    if found is None:
        return None
    named = "day" if found.length_ms == _DAY_MS else "hour"
    return compared_rows(named, found.now["", ""], found.before["", ""])


def compared_rows(named: str, now: Counts, before: Counts) -> View | None:
    """Return figures now, before, and how they have changed.

    Args:
        named: What the length of a period is called.
        now: Those of the last one.
        before: Those of the one before.
    """
    rows: list[list[Cell]] = [
        [name, _said(a, share), _said(b, share) if before.number else None, _change(a, b, share)]
        for name, a, b, share in (
            ("sessions", now.number, before.number, False),
            ("views per session", ratio(now.views, now.number), ratio(before.views, before.number), False),
            ("engaged", ratio(now.engaged, now.number), ratio(before.engaged, before.number), True),
            ("converted", ratio(now.converted, now.number), ratio(before.converted, before.number), True),
            ("orders", now.orders, before.orders, False),
            ("revenue", now.cents / 100, before.cents / 100, False),
            ("revenue per session", _each(now), _each(before), False),
        )
    ]  # fmt: skip
    columns = (Column("figure"), Column(f"last {named}"), Column(f"{named} before"), Column("change"))
    return bounded(columns, rows)


def _each(counts: Counts) -> float | None:
    return ratio(counts.cents / 100, counts.number)


def _said(value: float | None, share: bool) -> str | None:
    """Return a figure as text: of one column some are shares, some numbers."""
    if value is None:
        return None
    if share:
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _change(now: float | None, before: float | None, share: bool) -> str | None:
    """Return how a figure has changed: of shares in points, of others in parts of what it was."""
    if now is None or not before:
        return None
    return f"{100 * (now - before):+.1f} points" if share else f"{now / before - 1:+.1%}"


def segments(data: AppData) -> View | None:
    """Return sessions by channel and by device, now and before."""
    found = period(data)
    if found is None:
        return None
    columns = (
        Column("kind"), Column("segment"), Column("sessions", "count"), Column("before", "count"),
        Column("engaged", "share"), Column("converted", "share"), Column("converted before", "share"),
        Column("orders", "count"), Column("revenue", "money"), Column("revenue before", "money"),
    )  # fmt: skip
    nothing = Counts()
    names = sorted(
        {*found.now, *found.before} - {("", "")},
        key=lambda name: (name[0], -found.now.get(name, nothing).number, name[1]),
    )
    rows: list[list[Cell]] = []
    for name in names:
        now, before = found.now.get(name, nothing), found.before.get(name, nothing)
        rows.append([
            *name, now.number, before.number, ratio(now.engaged, now.number),
            ratio(now.converted, now.number), ratio(before.converted, before.number), now.orders,
            now.cents / 100, before.cents / 100,
        ])  # fmt: skip
    return bounded(columns, rows, most=60, choose="kind")


def books(data: AppData) -> View | None:
    """Return what was ordered on the last days, what is left of it, and the margin; newest first."""
    table = data.table("revenue")
    if table is None or not table.rows:
        return None
    days: dict[str, list[int]] = defaultdict(lambda: [0] * len(_BOOKED))
    for row in table.once("books", lambda t: t.all(["day", *_BOOKED], most=_BOOKS).to_pylist()):
        days[row["day"]] = [a + (row[name] or 0) for a, name in zip(days[row["day"]], _BOOKED, strict=True)]
    columns = (
        Column("day"), Column("orders", "count"), Column("cancelled", "count"), Column("revenue", "money"),
        Column("net", "money"), Column("net, change"), Column("margin", "money"),
        Column("margin, of net", "share"), Column("orders with a margin", "share"),
        Column("paid back that day", "money"),
    )  # fmt: skip
    newest = sorted(days, reverse=True)
    return bounded(columns, _booked(newest, days), most=_DAYS)


def _booked(newest: Sequence[str], days: dict[str, list[int]]) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for place, day in enumerate(newest):
        orders, cancelled, _, amount, net, margin, known, back = days[day]
        before = days[newest[place + 1]][4] if place + 1 < len(newest) else None
        # Of which orders the costs are not known the net is no base: only a whole day's margin is a share.
        share = ratio(margin, net) if known == orders else None
        rows.append([
            day, orders, cancelled, amount / 100, net / 100, _change(net, before, False),
            margin / 100 if known else None, share, ratio(known, orders), back / 100,
        ])  # fmt: skip
    return rows


def products(data: AppData) -> View | None:
    """Return what becomes of items that are looked at, in the day before the last full hour."""
    table = data.table("items")
    if table is None or not table.rows:
        return None
    # Each item of which there is something in a day is told at each full hour; others are of before.
    newest = table.once("products", lambda t: t.lately("as_of_ms", 1, ["as_of_ms", *_ITEM]).to_pylist())
    columns = (
        Column("item"), Column("category"), Column("views", "count"), Column("into a cart", "count"),
        Column("of views", "share"), Column("pieces sold", "count"), Column("sold, of views", "share"),
        Column("revenue", "money"),
    )  # fmt: skip
    found = sorted(
        ((row["item_id"], row["category"], [row.get(name) or 0 for name in _ITEM[2:]]) for row in newest),
        key=lambda one: (-one[2][0], one[0]),
    )
    total = [sum(numbers) for numbers in zip(*(one[2] for one in found), strict=True)]
    rows: list[list[Cell]] = []
    for item, category, (views, adds, sold, cents) in [("all items", "", total), *found]:
        rows.append([item, category, views, adds, ratio(adds, views), sold, ratio(sold, views), cents / 100])
    return bounded(columns, rows)


PANELS: Final = (
    Panel("compared", "Now and before", compared, empty="no session yet",
          about="Sessions of people by when they began; the last day and the one before, or hours while "
          "there is less. Open sessions may still buy. Revenue as bought, before refunds."),
    Panel("segments", "Segments", segments, width="full", empty="no session yet",
          about="The same by channel and device: choose which."),
    Panel("product-funnel", "Products from view to purchase", products, width="full",
          empty="no full hour is over yet",
          about="Of the day before the last full hour, most viewed first; pieces, of which one order may "
          "have several, also of items that were viewed on the day before."),
    Panel("books", "Orders, revenue, margin", books, width="full", empty="no order yet",
          about="Days of orders, in the shop's currency; net of cancellations and refunds whenever they "
          "came. Change: against the day before in the list."),
)  # fmt: skip

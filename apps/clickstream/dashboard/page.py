"""The clickstream page of the dashboard: who is there, sessions, funnel, products, offers, channels.

Panels about next items are in :mod:`millrace_apps.clickstream.dashboard.next_items`, those that compare with
the time before in :mod:`millrace_apps.clickstream.dashboard.periods`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from millrace.dashboard.data import AppData
from millrace.dashboard.details import rows_of
from millrace.dashboard.page import DashboardPage, Detail, Panel
from millrace.dashboard.values import bounded, ratio
from millrace.dashboard.views import (
    Bar,
    Bars,
    Cell,
    Column,
    Note,
    Number,
    Numbers,
    Series,
    Table,
    TimeSeries,
    Titled,
    View,
)
from millrace_apps.clickstream.contracts.messages import of_segment
from millrace_apps.clickstream.dashboard import chosen as dashboard_chosen
from millrace_apps.clickstream.dashboard import left_offered as dashboard_left
from millrace_apps.clickstream.dashboard import next_items as dashboard_next
from millrace_apps.clickstream.dashboard import periods as dashboard_periods
from millrace_apps.clickstream.dashboard import persons as dashboard_persons
from millrace_apps.clickstream.dashboard.data import (
    Boards,
    FunnelStep,
    boards,
    funnel_steps,
    left_carts,
    newest_board,
    offers_made,
    orders,
    parts_of_segment,
    sessions,
)

_HOUR_MS: Final = 3_600_000
_PLACES: Final = 10
#: Column of the top products → board, and whether its windows end at full hours.
_TOPS: Final[Mapping[str, tuple[str, int]]] = {
    "viewed, 5 min": ("views/5m", 1),
    "viewed, 1 h": ("views/1h", 1),
    "viewed, 24 h": ("views/24h", 1),
    "sold, 1 h": ("sold/1h", 1),
    "sold, last full hour": ("sold/1h", _HOUR_MS),
    "sold, 24 h": ("sold/24h", 1),
}


def headline(data: AppData) -> View | None:
    """Return the figures that one wants to see first."""
    found, bought, made = sessions(data), orders(data), offers_made(data)
    now = newest_board(boards(data), "visitors/now")
    minute = newest_board(boards(data), "visitors/1m")
    if found is None and now is None:
        return None
    left = sum(n for n, _ in left_carts(data).values())
    offered = sum(n for (_, arm), n in made.items() if arm == "offer")
    number = 0 if found is None else found.final + found.open
    return Numbers(
        (
            Number(label="visitors now", value=_total(now), kind="count", note="in the last five minutes"),
            Number(label="visitors in a minute", value=_total(minute), kind="count"),
            Number(label="up to", value=None if now is None else now[0], kind="time", note="event time"),
            Number(label="sessions", value=number, kind="count"),
            Number(label="conversion", value=ratio(found.converted, number) if found else None, kind="share",
                   note="of sessions"),
            Number(label="revenue", value=(bought.amount - bought.refunded) / 100 if bought else None,
                   kind="money", note=f"net, {bought.number:,} orders" if bought else ""),
            Number(label="carts left", value=left, kind="count"),
            Number(label="offers", value=offered, kind="count"),
        )
    )  # fmt: skip


def _total(board: tuple[int, Sequence[tuple[str, int]]] | None) -> int | None:
    return None if board is None else sum(n for _, n in board[1])


def visitors(data: AppData) -> View | None:
    """Return the visitors over time."""
    found = boards(data)
    lines = []
    for name, board in (("now", "visitors/now"), ("in a minute", "visitors/1m")):
        ends = found.get(board, {})
        if ends:
            # A minute in which nobody was there has no row.
            minutes = range(min(ends), max(ends) + 1, 60_000)
            lines.append(Series(name, [(end, sum(n for _, n in ends.get(end, ()))) for end in minutes]))
    return TimeSeries(series=tuple(lines), kind="count", clock="event time") if lines else None


def session_figures(data: AppData) -> View | None:
    """Return what sessions are like, those that are over and those that are not."""
    found = sessions(data)
    if found is None:
        return None
    number = found.final + found.open
    bots = sum(found.bots.values())
    why = ", ".join(f"{n:,} by {reason.replace('_', ' ')}" for reason, n in sorted(found.bots.items()))
    return Numbers(
        (
            Number(label="over", value=found.final, kind="count", note="final"),
            Number(label="open", value=found.open, kind="count", note="provisional: they may still change"),
            Number(label="length", value=found.length_ms, kind="duration", note="median, of those over"),
            Number(label="views", value=_rounded(ratio(found.views, number)), note="per session"),
            Number(label="events", value=_rounded(ratio(found.events, number)), note="per session"),
            Number(label="engaged", value=ratio(found.engaged, number), kind="share"),
            Number(label="converted", value=ratio(found.converted, number), kind="share"),
            Number(label="bots", value=bots, kind="count", tone="warn" if bots else "plain", note=why),
        )
    )  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def funnel(data: AppData) -> View | None:
    """Return which share of the sessions comes how far, arms side by side."""
    steps = funnel_steps(data)
    bars = (
        Bar(
            f"{name}, {s.arm}", s.reached / s.entered if s.entered else 0.0, f"{s.reached:,} of {s.entered:,}"
        )
        for name, s in _named(steps)
    )
    return Bars(bars=tuple(bars), kind="share") if steps else None


def _named(steps: Sequence[FunnelStep]) -> list[tuple[str, FunnelStep]]:
    """Return steps with their names, led by the funnel's where there are several funnels."""
    several = len({s.funnel for s in steps}) > 1
    return [(f"{s.funnel}: {s.step}" if several else s.step, s) for s in steps]


def drop_offs(data: AppData) -> View | None:
    """Return where sessions leave the funnel, and how long the steps take."""
    columns = (
        Column("step"), Column("arm"), Column("did it", "count"), Column("dropped", "count"),
        Column("dropped, share", "share"), Column("time to it", "duration"),
    )  # fmt: skip
    rows: list[list[Cell]] = [
        [name, s.arm, s.reached, s.before - s.reached, ratio(s.before - s.reached, s.before), s.median_ms]
        for name, s in _named(funnel_steps(data))
    ]
    return bounded(columns, rows)


def products(data: AppData, value: str = "") -> View | None:
    """Return the ten products that are viewed and sold most, by window.

    Args:
        data: The app's data.
        value: A segment that there are boards of; empty: all.
    """
    found = boards(data)
    tops = {
        name: newest_board(found, of_segment(board, value), every_ms=every)
        for name, (board, every) in _TOPS.items()
    }
    shown = {name: top[1] for name, top in tops.items() if top is not None}
    if not shown:
        return None
    rows: list[list[Cell]] = [
        [place + 1, *(_placed(top, place) for top in shown.values())]
        for place in range(min(_PLACES, max(map(len, shown.values()))))
    ]
    return Table(columns=(Column("place", "count"), *(Column(name) for name in shown)), rows=rows)


def _placed(top: Sequence[tuple[str, int]], place: int) -> Cell:
    return f"{top[place][0]}  ×{top[place][1]:,}" if place < len(top) else None


def categories(data: AppData, value: str = "") -> View | None:
    """Return the categories of the last hour; of a segment beside the hour before."""
    found = boards(data)
    viewed, earned = (newest_board(found, of_segment(f"{of}/1h", value)) for of in ("categories", "revenue"))
    if viewed is None:
        return None
    cents = dict(earned[1]) if earned is not None and earned[0] == viewed[0] else {}
    columns = [Column("category"), Column("views", "count"), Column("revenue", "money")]
    rows: list[list[Cell]] = [[name or "none", views, cents.get(name, 0) / 100] for name, views in viewed[1]]
    if value:
        _beside(columns, rows, found, of_segment("categories/1h", value), viewed)
    return bounded(columns, rows, most=12)


def _of_segment(make: Callable[[AppData, str], View | None]) -> Callable[[AppData, str], View]:
    """Return what shows boards of a segment, or says by what there are some."""
    return lambda data, value: (
        make(data, value)
        or Note(f"no boards of this segment; boards.by_{parts_of_segment(value)[0]} has them made")
    )


def _beside(
    columns: list[Column],
    rows: list[list[Cell]],
    found: Boards,
    board: str,
    newest: tuple[int, Sequence[tuple[str, int]]],
) -> None:
    """Say in a column more what stood on a board an hour before."""
    columns.append(Column("hour before", "count"))
    before = dict(found[board].get(newest[0] - _HOUR_MS, ()))
    for row, (name, _) in zip(rows, newest[1], strict=True):
        row.append(before.get(name, 0))


def devices(data: AppData) -> View | None:
    """Return the devices of the visitors who are there now."""
    now = newest_board(boards(data), "visitors/now")
    return None if now is None else Bars(bars=tuple(Bar(name, n) for name, n in now[1]))


def searches(data: AppData, value: str = "") -> View | None:
    """Return what was searched for most in the last hour; of a segment beside the hour before."""
    found, board = boards(data), of_segment("searches/1h", value)
    newest = newest_board(found, board)
    if newest is None:
        return None
    columns = [Column("searched for"), Column("times", "count")]
    rows: list[list[Cell]] = [[term, n] for term, n in newest[1]]
    if value:
        _beside(columns, rows, found, board, newest)
    return bounded(columns, rows)


def channels(data: AppData) -> View | None:
    """Return where visits and orders come from."""
    found, bought = sessions(data), orders(data)
    visits = {} if found is None else found.channels
    first, last = ({}, {}) if bought is None else (bought.first, bought.last)
    nothing = [0, 0, 0]
    names = sorted(
        {*visits, *first, *last}, key=lambda n: (-last.get(n, nothing)[1], -visits.get(n, nothing)[0], n)
    )
    columns = (
        Column("source / medium / campaign"), Column("visits", "count"), Column("engaged", "share"),
        Column("converted", "share"), Column("orders", "count"), Column("revenue, last touch", "money"),
        Column("revenue, first touch", "money"),
    )  # fmt: skip
    rows: list[list[Cell]] = []
    for name in names:
        number, engaged, converted = visits.get(name, nothing)
        number_last, net_last = last.get(name, nothing)[:2]
        rows.append(
            [name, number, ratio(engaged, number), ratio(converted, number), number_last, net_last / 100,
             first.get(name, nothing)[1] / 100]
        )  # fmt: skip
    return bounded(columns, rows)


def revenue(data: AppData) -> View | None:
    """Return the revenue over time."""
    bought = orders(data)
    if bought is None:
        return None
    lines = bought.steps.lines(["gross", "net"], per_ms=_HOUR_MS)
    return TimeSeries(series=lines, kind="money", unit="per hour", clock="event time")


def privacy(data: AppData) -> View | None:
    """Return what was allowed, taken back and forgotten."""
    answers, erased, known = data.table("consents"), data.table("erasures"), data.table("identities")
    if answers is None:
        return None
    withdrawn = answers.fold(
        "withdrawn", ["withdrawn"], int, lambda n, rows: n + sum(map(bool, rows["withdrawn"].to_pylist()))
    )
    return Numbers(
        (
            Number(label="answers", value=answers.rows, kind="count", note="about purposes"),
            Number(label="withdrawn", value=withdrawn, kind="count"),
            Number(label="known browsers", value=known.rows if known else None, kind="count",
                   note="by consent"),
            Number(label="forgotten", value=erased.rows if erased else None, kind="count",
                   note="browsers, accounts, carts"),
        )
    )  # fmt: skip


def person(data: AppData, key: str) -> list[Titled]:
    """Return what is shown of a browser or an account; empty where there is none.

    Args:
        data: The app's data.
        key: The visitor or the account, as it is, or with ``v:`` or ``u:`` before it: then it is that alone,
            and whoever is called so with these letters.
    """
    persons = [("person", f"u:{key}"), ("person", f"v:{key}")]
    browsers, of_browser = [("visitor_id", key), ("user_id", key)], [("visitor_id", key)]
    led, name = key[:2], key[2:]
    if led in ("u:", "v:"):
        persons.append(("person", key))
        browsers.append(("user_id" if led == "u:" else "visitor_id", name))
        of_browser += [("visitor_id", name)] if led == "v:" else []
    return [
        *rows_of(data, "profiles", persons, "Profile", (
            "seen_ms", "person", "views_1d", "adds_1d", "orders", "spent_cents", "top_category", "last_items",
        ), order=("seen_ms",)),
        *rows_of(data, "sessions", browsers, "Sessions", (
            "start_ms", "end_ms", "visitor_id", "user_id", "page_views", "orders", "campaign", "device",
            "is_final", "close_reason", "bot",
        ), order=("start_ms",)),
        *rows_of(data, "offers", [*persons, *of_browser], "Offers",
                 ("at_ms", "rule", "offer", "arm", "why"), order=("at_ms",)),
        *rows_of(data, "recommendations", [*persons, *of_browser], "Next items",
                 ("event_time_ms", "surface", "arm", "item", "items"), order=("event_time_ms",)),
        *rows_of(data, "abandonments", browsers, "Carts left",
                 ("since_ms", "cart_id", "stage", "value_cents", "time"), order=("since_ms",)),
    ]  # fmt: skip


#: What is looked at now and then: it comes last, and shut.
_FOLDED: Final = (
    "segments", "product-funnel", "books", "drop-offs", "cohorts", "categories",
    "devices", "abandonment", "left-items", "searches",
    "next-items", "next-quality", "next-click-through", "next-clicks", "next-lists", "privacy",
)  # fmt: skip

_PANELS: Final = (
    Panel("headline", "Now", headline, width="full", empty="no session yet"),
    Panel("visitors", "Visitors", visitors, empty="no minute is over yet",
          about="In each minute, and in the five minutes before it; two hours of events."),
    Panel("sessions", "Sessions", session_figures, empty="no session yet",
          about="Of people, of the last two days of events; bots are counted apart."),
    Panel("revenue", "Revenue", revenue, empty="no order yet",
          about="By the time of the order; two days of events."),
    *dashboard_periods.PANELS,
    Panel("funnel", "Funnel", funnel, empty="nobody has entered a funnel yet",
          about="Share of those who did the first step, by arm; open sessions too."),
    Panel("drop-offs", "Where they leave", drop_offs, empty="nobody has entered a funnel yet",
          about="Dropped: of those who did the step before. Time: median from that step."),
    *dashboard_persons.PANELS,
    Panel("products", "Top ten products", products, width="full",
          empty="no window with views is over yet",
          about="Sliding windows as last told, and the last full hour; of equals the lesser name first.",
          chosen=_of_segment(products)),
    Panel("categories", "Categories in the last hour", categories, width="third",
          empty="no window with views is over yet", chosen=_of_segment(categories)),
    Panel("devices", "Devices now", devices, width="third", empty="no minute is over yet"),
    *dashboard_left.CARTS,
    Panel("searches", "Searched for", searches, empty="nothing was searched for by three browsers",
          about="In the last hour; what less than three browsers have searched for is not told.",
          chosen=_of_segment(searches)),
    *dashboard_left.OFFERS,
    *dashboard_next.PANELS,
    Panel("channels", "Channels", channels, width="full", empty="no session and no order yet",
          about="Of the last two days of events. Visits of people; revenue is net of refunds, attributed "
          "over all devices of a person."),
    Panel("privacy", "Consent", privacy, empty="no answer yet"),
)  # fmt: skip

page = DashboardPage(
    folded=_FOLDED,
    panels=tuple(
        replace(panel, chosen=dashboard_chosen.CHOSEN.get(panel.id, panel.chosen)) for panel in _PANELS
    ),
    detail=Detail("Visitor", person),
    choice=dashboard_chosen.CHOICE,
)

"""The panels of the clickstream page for one segment of the sessions: a channel, or a kind of device.

What sessions are, how far they come, where they come from and what they buy is told of the last day (or hour,
while there is less than that), beside the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.dashboard.data import AppData
from millrace.dashboard.page import Choice
from millrace.dashboard.steps import Steps
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
    TimeSeries,
    View,
)
from millrace_apps.clickstream.dashboard.data import (
    FUNNEL,
    KINDS,
    LATELY_MS,
    SESSION,
    FunnelStep,
    boards,
    grouped,
    newest_board,
    parts_of_segment,
    sessions_of,
    steps_of,
)
from millrace_apps.clickstream.dashboard.periods import SUMS, Counts, compared_rows, length_of

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.dashboard.tables import DeltaReader

_STEP_MS: Final = 300_000
_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000


class Halves(NamedTuple):
    """Sessions of people.

    Attributes:
        named: What the length of a period is called.
        length_ms: How long a period is, ms.
        now: Those of the last period, by when they began.
        before: Those of the one before.
        newest_ms: When the newest of all sessions began, UTC ms.
    """

    named: str
    length_ms: int
    now: pa.Table
    before: pa.Table
    newest_ms: int

    def of(self, value: str) -> Halves:
        """Return those of a segment, as ``device: mobile``."""
        return self._replace(now=in_segment(self.now, value), before=in_segment(self.before, value))


def in_segment(rows: pa.Table, value: str) -> pa.Table:
    """Return the rows of a segment, as ``device: mobile``; what earlier versions wrote has none."""
    import pyarrow.compute as pc

    kind, name = parts_of_segment(value)
    if kind not in KINDS or kind not in rows.column_names:
        return rows.slice(0, 0)
    return rows.filter(pc.equal(pc.fill_null(rows[kind], ""), name))


def halves(data: AppData) -> Halves | None:
    """Return the sessions of people of the last period and of the one before; ``None``: there is none."""
    table = data.table("sessions")
    return None if table is None or not table.rows else table.once("halves", _halves)


def _halves(table: DeltaReader) -> Halves | None:
    import pyarrow.compute as pc

    rows = table.lately("start_ms", LATELY_MS, (*SESSION, "session_id"))
    rows = rows.filter(pc.field("bot") == "")
    if not rows.num_rows:
        return None
    newest, length, named = length_of(rows)
    start = pc.field("start_ms")
    before = rows.filter((start > newest - 2 * length) & (start <= newest - length))
    return Halves(named, length, rows.filter(start > newest - length), before, newest)


def halves_of(
    data: AppData, table: str, column: str, columns: Sequence[str], value: str
) -> tuple[str, pa.Table, pa.Table] | None:
    """Return the rows of a segment of another table in the periods of the sessions; ``None``: there is none.

    Args:
        data: The app's data.
        table: The table.
        column: Its time, UTC ms.
        columns: Which columns are wanted besides.
        value: The segment.

    Returns:
        What the length of a period is called, the rows of the last one, and those of the one before.
    """
    import pyarrow.compute as pc

    found, reader = halves(data), data.table(table)
    if found is None or reader is None or not reader.rows:
        return None
    rows = in_segment(reader.lately(column, LATELY_MS, (column, *columns, *KINDS)), value)
    at, start = pc.field(column), found.newest_ms - found.length_ms
    return found.named, rows.filter(at > start), rows.filter((at > start - found.length_ms) & (at <= start))


def segments(data: AppData) -> Sequence[str]:
    """Return the segments that there are sessions of in the last period, the largest of a kind first."""
    found = halves(data)
    if found is None:
        return []
    names: list[str] = []
    for kind in KINDS:
        if kind in found.now.column_names:
            own = sorted(grouped(found.now, [kind]), key=lambda one: (-one[1][0], str(one[0][0])))
            names += [f"{kind}: {name or 'none'}" for (name,), _ in own]
    return names


CHOICE: Final = Choice("Segment", segments)


def figures(data: AppData, value: str) -> View | None:
    """Return what the sessions of a segment are like, and were before."""
    found = halves(data)
    if found is None:
        return None
    part = found.of(value)
    now, before = (sessions_of(rows) for rows in (part.now, part.before))
    number, earlier = now.final + now.open, before.final + before.open

    def said(number: float | None, shown: str) -> str:
        return f"{found.named} before: {'-' if number is None else format(number, shown)}"

    engaged, converted = ratio(before.engaged, earlier), ratio(before.converted, earlier)
    views = ratio(before.views, earlier)
    return Numbers(
        (
            Number(label="sessions", value=number, kind="count", note=said(earlier, ",")),
            Number(label="open", value=now.open, kind="count", note="provisional: they may still change"),
            Number(label="length", value=now.length_ms, kind="duration", note="median, of those over"),
            Number(label="views", value=_rounded(ratio(now.views, number)), note=said(views, ".1f")),
            Number(label="engaged", value=ratio(now.engaged, number), kind="share",
                   note=said(engaged, ".1%")),
            Number(label="converted", value=ratio(now.converted, number), kind="share",
                   note=said(converted, ".1%")),
        )
    )  # fmt: skip


def headline(data: AppData, value: str) -> View | None:
    """Return the figures that one wants to see first: of a segment, those of the last period."""
    found = halves(data)
    if found is None:
        return None
    rows, lately = found.of(value).now, f"last {found.named}"
    now, counts = sessions_of(rows), _counts(rows)
    number = now.final + now.open
    left = halves_of(data, "abandonments", "since_ms", ("value_cents",), value)
    made = halves_of(data, "offers", "at_ms", ("arm",), value)
    there, kinds = newest_board(boards(data), "visitors/now"), list[Number]()
    if parts_of_segment(value)[0] == "device" and there is not None:
        kinds = [
            Number(label="visitors now", value=_of_device(there[1], value), kind="count",
                   note="in the last five minutes"),
            Number(label="up to", value=there[0], kind="time", note="event time"),
        ]  # fmt: skip
    return Numbers(
        (
            *kinds,
            Number(label="sessions", value=number, kind="count", note=lately),
            Number(label="conversion", value=ratio(now.converted, number), kind="share", note="of sessions"),
            Number(label="revenue", value=counts.cents / 100, kind="money",
                   note=f"as bought, {counts.orders:,} orders"),
            Number(label="carts left", value=0 if left is None else left[1].num_rows, kind="count",
                   note=lately),
            Number(label="offers", kind="count", note=lately,
                   value=0 if made is None else made[1]["arm"].to_pylist().count("offer")),
        )
    )  # fmt: skip


def _of_device(places: Sequence[tuple[str, int]], value: str) -> int:
    return dict(places).get(parts_of_segment(value)[1], 0)


#: What is said of a channel where only kinds of devices are told apart.
_BY_DEVICE: Final = Note("who is there is counted by kind of device, not by channel")


def visitors(data: AppData, value: str) -> View | None:
    """Return the visitors over time with a kind of device."""
    if parts_of_segment(value)[0] != "device":
        return _BY_DEVICE
    found, lines = boards(data), []
    for name, board in (("now", "visitors/now"), ("in a minute", "visitors/1m")):
        ends = found.get(board, {})
        if ends:
            # A minute in which nobody was there has no row.
            minutes = range(min(ends), max(ends) + 1, _MINUTE_MS)
            lines.append(Series(name, [(end, _of_device(ends.get(end, ()), value)) for end in minutes]))
    return TimeSeries(series=tuple(lines), kind="count", clock="event time") if lines else None


def devices(data: AppData, value: str) -> View | None:
    """Return how many are there now with a kind of device, of how many."""
    if parts_of_segment(value)[0] != "device":
        return _BY_DEVICE
    now = newest_board(boards(data), "visitors/now")
    if now is None:
        return None
    number, every = _of_device(now[1], value), sum(n for _, n in now[1])
    return Bars(bars=(Bar(parts_of_segment(value)[1], number, f"of {every:,}"),))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def compared(data: AppData, value: str) -> View | None:
    """Return figures of a segment now, before, and how they have changed."""
    found = halves(data)
    if found is None:
        return None
    part = found.of(value)
    return compared_rows(part.named, *(_counts(rows) for rows in (part.now, part.before)))


def _counts(rows: pa.Table) -> Counts:
    found = grouped(rows, [], *SUMS)
    return Counts(*found[0][1]) if found else Counts()


def _steps(data: AppData, value: str) -> tuple[str, list[FunnelStep], dict[tuple[str, str, str], FunnelStep]]:
    import pyarrow.compute as pc

    found, table = halves(data), data.table("funnels")
    if found is None or table is None or not table.rows:
        return "", [], {}
    part = found.of(value)
    rows = table.once("ways", lambda t: t.all((*FUNNEL, "session_id")))
    now, before = (
        steps_of(rows.filter(pc.is_in(rows["session_id"], value_set=of["session_id"].combine_chunks())))
        for of in (part.now, part.before)
    )
    return part.named, now, {(s.funnel, s.arm, s.step): s for s in before}


def _name(steps: Sequence[FunnelStep], step: FunnelStep) -> str:
    return f"{step.funnel}: {step.step}" if len({s.funnel for s in steps}) > 1 else step.step


def funnel(data: AppData, value: str) -> View | None:
    """Return which share of the sessions of a segment comes how far, and came before."""
    named, steps, before = _steps(data, value)
    bars = []
    for one in steps:
        was = before.get((one.funnel, one.arm, one.step))
        share = ratio(was.reached, was.entered) if was else None
        note = f"{one.reached:,} of {one.entered:,}"
        note += f"; {named} before {share:.1%}" if share is not None else f"; {named} before: none"
        share_now = one.reached / one.entered if one.entered else 0.0
        bars.append(Bar(f"{_name(steps, one)}, {one.arm}", share_now, note))
    return Bars(bars=tuple(bars), kind="share") if bars else None


def drop_offs(data: AppData, value: str) -> View | None:
    """Return where the sessions of a segment leave the funnel, and left it before."""
    named, steps, before = _steps(data, value)
    columns = (
        Column("step"), Column("arm"), Column("did it", "count"), Column("dropped", "count"),
        Column("dropped, share", "share"), Column(f"{named} before", "share"),
        Column("time to it", "duration"),
    )  # fmt: skip
    rows: list[list[Cell]] = []
    for one in steps:
        was = before.get((one.funnel, one.arm, one.step))
        earlier = ratio(was.before - was.reached, was.before) if was else None
        gone = one.before - one.reached
        rows.append([
            _name(steps, one), one.arm, one.reached, gone, ratio(gone, one.before), earlier, one.median_ms,
        ])  # fmt: skip
    return bounded(columns, rows)


def channels(data: AppData, value: str) -> View | None:
    """Return where the sessions of a segment come from, and what they have bought."""
    found = halves(data)
    if found is None:
        return None
    part = found.of(value)
    wanted = ("is_engaged", "is_converted", "orders", "revenue_cents")
    now, before = (
        {campaign or "direct": numbers for (campaign,), numbers in grouped(rows, ["campaign"], *wanted)}
        for rows in (part.now, part.before)
    )
    nothing = [0] * 5
    columns = (
        Column("source / medium / campaign"), Column("visits", "count"), Column("before", "count"),
        Column("engaged", "share"), Column("converted", "share"), Column("orders", "count"),
        Column("revenue", "money"), Column("revenue before", "money"),
    )  # fmt: skip
    rows: list[list[Cell]] = []
    for name in sorted({*now, *before}, key=lambda n: (-now.get(n, nothing)[0], n)):
        number, engaged, converted, orders, cents = now.get(name, nothing)
        was = before.get(name, nothing)
        rows.append([
            name, number, was[0], ratio(engaged, number), ratio(converted, number), orders, cents / 100,
            was[4] / 100,
        ])  # fmt: skip
    return bounded(columns, rows)


def revenue(data: AppData, value: str) -> View | None:
    """Return what the sessions of a segment have bought over time, beside the period before."""
    found = halves(data)
    if found is None:
        return None
    part = found.of(value)
    steps = Steps(_STEP_MS)
    for name, rows, later in (("now", part.now, 0), (f"{part.named} before", part.before, part.length_ms)):
        for at, cents in _revenue(rows):
            steps.add(at + later, name, cents / 100)
    lines = steps.lines(["now", f"{part.named} before"], per_ms=_HOUR_MS)
    return TimeSeries(series=lines, kind="money", unit="per hour", clock="event time") if lines else None


def _revenue(rows: pa.Table) -> list[tuple[int, int]]:
    import pyarrow.compute as pc

    timed: Any = rows.append_column("step", pc.divide(rows["start_ms"], _STEP_MS))
    return [(step * _STEP_MS, cents) for (step,), (_, cents) in grouped(timed, ["step"], "revenue_cents")]


#: Panel → what it shows of a segment.
CHOSEN: Final = {
    "headline": headline,
    "visitors": visitors,
    "devices": devices,
    "sessions": figures,
    "compared": compared,
    "funnel": funnel,
    "drop-offs": drop_offs,
    "channels": channels,
    "revenue": revenue,
}

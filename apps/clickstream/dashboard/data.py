"""Figures of the clickstream page, read from the app's tables: boards, sessions, funnels, offers, orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.dashboard.data import AppData
from millrace.dashboard.steps import Steps
from millrace_apps.clickstream.operations.uplift import Uplift, uplift_of

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.dashboard.tables import DeltaReader

Row = Mapping[str, Any]
#: How much event time of the boards is looked at, ms, and which of them, of all and of segments.
_BOARDS_MS: Final = 2 * 3_600_000
_BOARDS: Final = (
    "views/5m", "views/1h", "views/24h", "sold/1h", "sold/24h", "categories/1h", "revenue/1h", "searches/1h",
    "visitors/1m", "visitors/now",
)  # fmt: skip
#: Width of a step of the revenue's chart, ms.
_STEP_MS: Final = 300_000
SESSION: Final = (
    "is_final", "start_ms", "end_ms", "events", "page_views", "is_engaged", "is_converted", "campaign", "bot",
    "orders", "revenue_cents", "channel", "device",
)  # fmt: skip
#: Sessions that began so long before the newest, and orders, are looked at, ms: not the whole tables.
LATELY_MS: Final = 48 * 3_600_000
#: By what sessions, carts and offers are told apart.
KINDS: Final = ("channel", "device")
FUNNEL: Final = ("funnel", "arm", "reached", "reached_step", "dropped_at", "step_ms")


def grouped(rows: pa.Table, keys: Sequence[str], *sums: str) -> list[tuple[tuple[Any, ...], list[int]]]:
    """Return how many rows there are of each combination of keys, and sums of columns over them.

    Args:
        rows: The rows.
        keys: The columns that make a group.
        sums: The columns that are added up; of a boolean, how many hold.

    Returns:
        Values of the keys → the number, then the sums.
    """
    import pyarrow.compute as pc

    for name in sums:
        rows = rows.set_column(rows.schema.get_field_index(name), name, pc.cast(rows[name], "int64"))
    wanted: list[Any] = [([], "count_all"), *((name, "sum") for name in sums)]
    found = rows.group_by(list(keys)).aggregate(wanted)
    numbers = ["count_all", *(f"{name}_sum" for name in sums)]
    return [
        (tuple(row[key] for key in keys), [row[name] or 0 for name in numbers]) for row in found.to_pylist()
    ]


# -- boards ------------------------------------------------------------------------------------------


#: Board → end of its window (ms) → its places: name and number.
Boards = Mapping[str, Mapping[int, Sequence[tuple[str, int]]]]


def boards(data: AppData) -> Boards:
    """Return the boards of the last two hours of events."""
    table = data.table("boards")
    return {} if table is None else table.once("boards", _boards)


def _boards(table: DeltaReader) -> Boards:
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = ("window_end_ms", "board", "rank", "item", "value")
    rows = table.lately("window_end_ms", _BOARDS_MS, columns)
    if not rows.num_rows:
        return {}
    # Most are not shown: those of segments are many times those of all.
    named = pc.replace_substring_regex(rows["board"], "@.*", "")
    rows = rows.filter(pc.is_in(named, value_set=pa.array(_BOARDS, named.type)))
    places: dict[str, dict[int, dict[int, tuple[str, int]]]] = {}
    for row in rows.to_pylist():
        ends = places.setdefault(row["board"], {})
        ends.setdefault(row["window_end_ms"], {})[row["rank"]] = (row["item"], row["value"])
    return {
        board: {end: [ranks[r] for r in sorted(ranks)] for end, ranks in sorted(ends.items())}
        for board, ends in places.items()
    }


def newest_board(
    found: Boards, board: str, *, every_ms: int = 1
) -> tuple[int, Sequence[tuple[str, int]]] | None:
    """Return the newest window of a board: its end (ms) and its places, or ``None`` of none.

    Args:
        found: The boards.
        board: Which of them.
        every_ms: Take windows alone that end at a multiple of so many ms: a sliding hour that ends at a full
            hour is the tumbling one.
    """
    ends = [end for end in found.get(board, {}) if end % every_ms == 0]
    return (max(ends), found[board][max(ends)]) if ends else None


# -- sessions ----------------------------------------------------------------------------------------


class Sessions(NamedTuple):
    """Sessions of people, and how many are not.

    Attributes:
        final: Sessions that are over, people's.
        open: Those that are not.
        events: Events of all of them.
        views: Page views.
        engaged: Those in which somebody was really there.
        converted: Those in which something was bought.
        length_ms: Median time from first to last event, of those that are over.
        bots: Why it is a bot's → sessions.
        channels: Source, medium and campaign → sessions, engaged, converted.
    """

    final: int
    open: int
    events: int
    views: int
    engaged: int
    converted: int
    length_ms: float | None
    bots: Counter[str]
    channels: dict[str, list[int]]


def sessions(data: AppData) -> Sessions | None:
    """Return the sessions of the last two days of events, ``None`` before there is one."""
    table = data.table("sessions")
    return (
        None
        if table is None or not table.rows
        else table.once("sessions", lambda t: sessions_of(lately_sessions(t)))
    )


def lately_sessions(table: DeltaReader) -> pa.Table:
    """Return the sessions of the last two days of events, people's and bots'."""
    return table.lately("start_ms", LATELY_MS, SESSION)


def sessions_of(rows: pa.Table) -> Sessions:
    """Return what sessions are like."""
    import pyarrow.compute as pc

    bots = Counter({bot: n for (bot,), (n,) in grouped(rows, ["bot"]) if bot})
    people = rows.filter(pc.field("bot") == "")
    states = {final: n for (final,), (n,) in grouped(people, ["is_final"])}
    (_, totals), *_ = grouped(people, [], "events", "page_views", "is_engaged", "is_converted") or [
        ((), [0] * 5)
    ]
    over = people.filter(pc.field("is_final"))
    length = pc.quantile(pc.subtract(over["end_ms"], over["start_ms"]), 0.5)[0].as_py()
    channels = {
        campaign or "direct": numbers
        for (campaign,), numbers in grouped(people, ["campaign"], "is_engaged", "is_converted")
    }
    _, events, views, engaged, converted = totals
    return Sessions(
        states.get(True, 0), states.get(False, 0), events, views, engaged, converted, length, bots, channels
    )


# -- funnels -----------------------------------------------------------------------------------------


class FunnelStep(NamedTuple):
    """One step of a funnel in one arm.

    Attributes:
        funnel: The funnel.
        arm: Arm of the experiment.
        step: Name of the step.
        entered: Sessions that did the first step.
        before: Sessions that did the step before.
        reached: Sessions that did this one.
        median_ms: Median time from the step before to this one; ``None`` of the first.
    """

    funnel: str
    arm: str
    step: str
    entered: int
    before: int
    reached: int
    median_ms: float | None


def funnel_steps(data: AppData) -> list[FunnelStep]:
    """Return the steps of all funnels, arms side by side."""
    table = data.table("funnels")
    return [] if table is None or not table.rows else table.once("steps", lambda t: steps_of(t.all(FUNNEL)))


def steps_of(rows: pa.Table) -> list[FunnelStep]:
    """Return the steps of rows of funnels."""
    # What a step is called stands in the rows of those who came so far, or dropped there.
    names: dict[tuple[str, int], str] = {}
    ended: dict[tuple[str, str], Counter[int]] = {}
    keys = ["funnel", "arm", "reached", "reached_step", "dropped_at"]
    for (funnel, arm, reached, step, dropped), (n,) in grouped(rows, keys):
        names[funnel, reached] = step
        if dropped is not None:
            names[funnel, reached + 1] = dropped
        ended.setdefault((funnel, arm), Counter())[reached] += n
    found = []
    for (funnel, place), name in sorted(names.items()):
        for arm in sorted(arm for f, arm in ended if f == funnel):
            counts = ended[funnel, arm]
            most = max(place, *counts)
            # Who ended further on has been here, too.
            at_least = dict(
                zip(range(most, 0, -1), accumulate(counts[p] for p in range(most, 0, -1)), strict=True)
            )
            before = at_least[max(1, place - 1)]
            took = _median_step(rows, funnel, arm, place)
            found.append(FunnelStep(funnel, arm, name, at_least[1], before, at_least[place], took))
    return found


def _median_step(rows: pa.Table, funnel: str, arm: str, place: int) -> float | None:
    import pyarrow.compute as pc

    if place < 2:
        return None
    there = (pc.field("funnel") == funnel) & (pc.field("arm") == arm) & (pc.field("reached") >= place)
    took = rows.filter(there)["step_ms"].combine_chunks()
    value: float | None = pc.quantile(pc.list_element(took, place - 2), 0.5)[0].as_py() if len(took) else None
    return value


# -- offers ------------------------------------------------------------------------------------------


#: Rule and arm, and the segment of each kind: an earlier version's has none.
_ARM: Final = ("rule", "arm", *KINDS)


def parts_of_segment(value: str) -> tuple[str, str]:
    """Return the kind of a segment and its name in the tables: empty where it is not known.

    >>> parts_of_segment("device: mobile"), parts_of_segment("channel: none")
    (('device', 'mobile'), ('channel', ''))
    """
    kind, _, name = value.partition(": ")
    return kind, "" if name == "none" else name


def offers_made(data: AppData, value: str = "") -> Counter[tuple[str, str]]:
    """Return how many offers were made, or held back, by rule and arm.

    Args:
        data: The app's data.
        value: A segment, as ``device: mobile``; empty: all.
    """
    table = data.table("offers")
    if table is None:
        return Counter()
    made: Counter[tuple[str, ...]] = table.fold("arms", _ARM, Counter, _add_offers)
    return _arms(made, value)


def _add_offers(counts: Counter[tuple[str, ...]], rows: pa.Table) -> Counter[tuple[str, ...]]:
    keys = [name for name in _ARM if name in rows.column_names]
    for names, (n,) in grouped(rows, keys):
        given = dict(zip(keys, names, strict=True))
        counts[tuple(given.get(name) or "" for name in _ARM)] += n
    return counts


def _arms(counts: Mapping[tuple[str, ...], int], value: str) -> Counter[tuple[str, str]]:
    """Return how many there are by rule and arm, of all or of one segment."""
    kind, name = parts_of_segment(value)
    found: Counter[tuple[str, str]] = Counter()
    for key, n in counts.items():
        if not kind or (key[_ARM.index(kind)] if kind in KINDS else None) == name:
            found[key[0], key[1]] += n
    return found


def uplift_so_far(data: AppData, value: str = "") -> list[Uplift]:
    """Return what each rule has added to buying so far, against its control arm.

    Who has not bought yet counts as not having bought, in both arms: an outcome is known at once where
    something was bought, and after a week where nothing was, so shares of the known outcomes alone would say
    that everybody buys. Both arms are watched for equally long, as the arm is drawn.

    Args:
        data: The app's data.
        value: A segment, by the visit in which offers were due, as ``device: mobile``; empty: all.
    """
    made = offers_made(data, value)
    table = data.table("outcomes")
    bought = _arms({} if table is None else table.once("bought", _bought), value)
    return [
        uplift_of(
            rule,
            (bought[rule, "offer"], made[rule, "offer"]),
            (bought[rule, "control"], made[rule, "control"]),
        )
        for rule in sorted({rule for rule, _ in made})
    ]


def _bought(table: DeltaReader) -> Counter[tuple[str, ...]]:
    import pyarrow.compute as pc

    return _add_offers(Counter(), table.all([*_ARM, "converted"]).filter(pc.field("converted")))


# -- carts and orders --------------------------------------------------------------------------------


def left_carts(data: AppData) -> dict[str, list[int]]:
    """Return how often carts were left, and what was in them (cents), by how far they had come."""
    table = data.table("abandonments")
    return {} if table is None else table.fold("stages", ["stage", "value_cents"], dict, _add_carts)


def _add_carts(kept: dict[str, list[int]], rows: pa.Table) -> dict[str, list[int]]:
    for (stage,), (n, cents) in grouped(rows, ["stage"], "value_cents"):
        sums = kept.setdefault(stage, [0, 0])
        sums[0] += n
        sums[1] += cents
    return kept


class Orders(NamedTuple):
    """What was bought.

    Attributes:
        number: Orders.
        amount: Their value, cents.
        refunded: What was paid back of it.
        first: First touch → orders, net cents.
        last: Last touch → orders, net cents.
        steps: ``gross`` and ``net``, by the time of the order.
    """

    number: int
    amount: int
    refunded: int
    first: dict[str, list[int]]
    last: dict[str, list[int]]
    steps: Steps


def orders(data: AppData) -> Orders | None:
    """Return the attributed orders of the last two days of events, ``None`` before there is one."""
    table = data.table("attributions")
    return (
        None
        if table is None or not table.rows
        else table.once("orders", lambda t: _orders(t.lately("at_ms", LATELY_MS)))
    )


def _orders(rows: pa.Table) -> Orders:
    import pyarrow.compute as pc

    ((_, totals),) = grouped(rows, [], "amount_cents", "refunded_cents")
    steps = Steps(_STEP_MS)
    timed = rows.append_column("step", pc.divide(rows["at_ms"], _STEP_MS))
    for (step,), (_, gross, net) in grouped(timed, ["step"], "amount_cents", "net_cents"):
        steps.add(step * _STEP_MS, "gross", gross / 100)
        steps.add(step * _STEP_MS, "net", net / 100)
    first, last = (
        {touch: numbers for (touch,), numbers in grouped(rows, [by], "net_cents")}
        for by in ("first_touch", "last_touch")
    )
    return Orders(totals[0], totals[1], totals[2], first, last, steps)

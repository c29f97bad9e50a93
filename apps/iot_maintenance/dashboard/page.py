"""The iot page of the dashboard: alarms, the fleet by health, what is to come, silence, KPIs, one machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from millrace.dashboard.common_panels import rate_now
from millrace.dashboard.data import AppData
from millrace.dashboard.page import DashboardPage, Detail, Panel
from millrace.dashboard.values import bounded, median, ratio
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
    Tone,
    View,
)
from millrace.parts.top import best
from millrace_apps.iot_maintenance.alarms.rule import SEVERITIES
from millrace_apps.iot_maintenance.dashboard import fleet as dashboard_fleet
from millrace_apps.iot_maintenance.dashboard import foresight as dashboard_foresight
from millrace_apps.iot_maintenance.dashboard import work as dashboard_work
from millrace_apps.iot_maintenance.dashboard.data import (
    STATES,
    Row,
    alarm_windows,
    alarms,
    shifts,
    silent,
    stale,
    state_of,
)
from millrace_apps.iot_maintenance.dashboard.machine import asset
from millrace_apps.iot_maintenance.processes.windows import FLOOD

#: Severity, or health of an asset → how its row is meant.
TONES: Final[dict[str, Tone]] = {
    "critical": "bad",
    "high": "bad",
    "medium": "warn",
    "low": "warn",
    "good": "plain",
}
#: Alarms in ten minutes that one operator can manage, and at most: ANSI/ISA-18.2-2016, table 5.
_ACCEPTABLE: Final = 1.0
_MANAGEABLE: Final = 2.0
_MOST_ALARMS: Final = 50
_MOST_ASSETS: Final = 60
_MOST_LINES: Final = 5
_JUDGED: Final = 20_000
_NO_WINDOW: Final = "no ten minutes with alarms are over yet"


def headline(data: AppData) -> View | None:
    """Return the figures that one wants to see first."""
    table = data.table("readings")
    if table is None or not table.rows:
        return None
    matter = alarms(data)
    active = [a for a in matter if a["active"] and a["announced"]]
    unseen = sum(state_of(a).endswith("unacknowledged") for a in matter)
    worst = Counter(a["severity"] for a in active)
    quiet = silent(data)
    own = sum(device.cause == "own" for _, device in quiet)
    return Numbers(
        (
            rate_now(data, "readings", "readings per second"),
            Number(label="readings", value=table.rows, kind="count"),
            Number(label="active alarms", value=len(active), kind="count", tone="warn" if active else "good",
                   note=", ".join(f"{worst[s]} {s}" for s in reversed(SEVERITIES) if worst[s])),
            Number(label="unacknowledged", value=unseen, kind="count", tone="bad" if unseen else "good"),
            Number(label="silent devices", value=len(quiet), kind="count", tone="warn" if quiet else "good",
                   note=f"{own} by themselves, {len(quiet) - own} behind another" if quiet else ""),
        )
    )  # fmt: skip


def _any_row(data: AppData, name: str) -> bool:
    table = data.table(name)
    return table is not None and table.rows > 0


def alarm_states(data: AppData) -> View | None:
    """Return how many alarms are in which state, by severity."""
    if not _any_row(data, "alarms"):
        return None
    counts = Counter((state_of(a), a["severity"]) for a in alarms(data))
    severities = tuple(reversed(SEVERITIES))
    rows: list[list[Cell]] = [
        [state, *(counts[state, s] for s in severities), sum(counts[state, s] for s in severities)]
        for state in STATES
    ]
    tones: list[Tone] = ["bad" if row[0] == STATES[0] and row[-1] else "plain" for row in rows]
    columns = (Column("state"), *(Column(s, "count") for s in severities), Column("all", "count"))
    return Table(columns=columns, rows=rows, tones=tones)


def alarm_list(data: AppData) -> View | None:
    """Return the alarms that matter, what is active and unacknowledged first."""
    if not _any_row(data, "alarms"):
        return None
    return alarm_table(alarms(data)) or Note("no alarm that matters", tone="good")


def alarm_table(rows: Sequence[Row]) -> Table | None:
    """Return alarms as a table; ``None`` of none."""
    columns = (
        Column("state"), Column("severity"), Column("asset", "key"), Column("alarm"), Column("what"),
        Column("since", "time"), Column("value", "number"), Column("limit", "number"), Column("line"),
    )  # fmt: skip
    cells: list[list[Cell]] = [
        [
            state_of(r), r["severity"], r["entity_id"], r["alarm_id"].partition(":")[2],
            r["title"] + (f" ({r['reason']})" if r["reason"] else ""),
            r["active_since_ms"] or r["event_time_ms"], r["value"], r["limit"], r["line_id"],
        ]
        for r in rows
    ]  # fmt: skip
    tones: list[Tone] = [TONES[r["severity"]] if r["active"] and r["announced"] else "plain" for r in rows]
    acts = [dashboard_work.alarm_offers(r) for r in rows[:_MOST_ALARMS]]
    return bounded(columns, cells, tones, most=_MOST_ALARMS, actions=acts)


def health(data: AppData) -> View | None:
    """Return the asset tree: plants and lines, and below them what is not well."""
    table = data.table("health")
    rows = [] if table is None else table.once("rows", lambda t: t.all().to_pylist())
    names = {row["asset_id"] for row in rows}
    below: dict[str, list[Row]] = {}
    for row in rows:
        if row["asset_kind"] in ("plant", "line") or row["health"] != "good":
            # What has no levels in its name is its own plant.
            has_parent = row["parent_id"] in names and row["parent_id"] != row["asset_id"]
            below.setdefault(row["parent_id"] if has_parent else "", []).append(row)
    cells: list[list[Cell]] = []
    tones: list[Tone] = []

    def show(parent: str, depth: int) -> None:
        for row in sorted(below.get(parent, ()), key=_worst_first):
            level = "›\u00a0" * depth + row["asset_kind"]
            cells.append([level, row["asset_id"], row["health"], row["active"], row["event_time_ms"]])
            tones.append(TONES[row["health"]])
            show(row["asset_id"], depth + 1)

    show("", 0)
    columns = (Column("level"), Column("asset", "key"), Column("health"), Column("alarms", "count"),
               Column("since", "time"))  # fmt: skip
    return bounded(columns, cells, tones, most=_MOST_ASSETS)


def _worst_first(row: Row) -> tuple[int, int, str]:
    worst = SEVERITIES.index(row["health"]) if row["health"] in SEVERITIES else -1
    return -worst, -row["active"], row["asset_id"]


def liveness(data: AppData) -> View | None:
    """Return the devices that are silent."""
    if not _any_row(data, "liveness"):
        return None
    columns = (Column("device", "key"), Column("kind"), Column("silent because of"), Column("gateway"),
               Column("last heard", "time"))  # fmt: skip
    causes = {"own": "itself", "machine": "its machine", "gateway": "its gateway"}
    quiet = silent(data)
    rows: list[list[Cell]] = [
        [name, d.kind, causes[d.cause], d.gateway_id, d.last_heard_ms] for name, d in quiet
    ]
    tones: list[Tone] = ["warn" if d.cause == "own" else "plain" for _, d in quiet]
    return bounded(columns, rows, tones) or Note("every device that was silent is heard again", tone="good")


def alarm_rate(data: AppData) -> View | None:
    """Return the alarms of each plant in ten minutes."""
    windows = alarm_windows(data)
    if windows is None:
        return None
    most = sorted(windows.counts.items(), key=lambda pair: (-sum(pair[1]), pair[0]))[:_MOST_LINES]
    lines = tuple(Series(plant, list(zip(windows.starts, counts, strict=True))) for plant, counts in most)
    return TimeSeries(series=lines, kind="count", unit="in 10 min", clock="event time")


def alarm_kpis(data: AppData) -> View | None:
    """Return how the alarm system does, by the measures of ISA-18.2."""
    windows = alarm_windows(data)
    if windows is None:
        return None
    number = len(windows.starts) * len(windows.counts)
    rate = sum(sum(counts) for counts in windows.counts.values()) / number
    plant, peak = max(((p, max(c)) for p, c in windows.counts.items()), key=lambda pair: pair[1])
    total = sum(sum(counts) for counts in windows.counts.values())
    most = sum(n for _, n in best(windows.top.items(), 10))
    newest = dashboard_fleet.newest_of_machines(data, "readings", ("status", "kind"))
    now = max((row["event_time_ms"] for row in newest.values()), default=windows.starts[-1])
    old = stale(data, windows.stale, now)
    of_each = [(severity, windows.severities[severity]) for severity in SEVERITIES]
    shares = [f"{severity} {n / total:.0%}".replace("%", " %") for severity, n in of_each if n]
    return Numbers(
        (
            Number(label="alarms in 10 min", value=round(rate, 2), note="mean per plant; one is acceptable",
                   tone="good" if rate <= _ACCEPTABLE else "warn" if rate <= _MANAGEABLE else "bad"),
            Number(label="most in 10 min", value=peak, kind="count", note=plant,
                   tone="bad" if peak > FLOOD else "plain"),
            Number(label="time in flood", value=windows.floods / number, kind="share",
                   note=f"more than {FLOOD} in 10 min", tone="bad" if windows.floods else "good"),
            Number(label="chattering", value=len(windows.chattering), kind="count", note="alarms",
                   tone="warn" if windows.chattering else "good"),
            Number(label="stale", value=len(old), kind="count", note="active for over 24 h",
                   tone="warn" if old else "good"),
            Number(label="standing", value=windows.standing, kind="count", note="at the end of the window"),
            Number(label="ten most frequent", value=ratio(most, total), kind="share", note="of all alarms"),
            Number(label="priorities", value=", ".join(shares), kind="text",
                   note="about 80, 15 and 5 % are wanted, from low to high"),
        )
    )  # fmt: skip


def top_alarms(data: AppData) -> View | None:
    """Return the alarms that came most."""
    windows = alarm_windows(data)
    if windows is None or not windows.top:
        return None
    total = sum(sum(counts) for counts in windows.counts.values())
    most = best(windows.top.items(), 10)
    bars = (
        Bar(name, n, f"{n / total:.0%} of all" + (", chatters" if name in windows.chattering else ""))
        for name, n in most
    )
    return Bars(bars=tuple(bars))


def shift(data: AppData) -> View | None:
    """Return the newest shift of all machines together."""
    found = shifts(data)
    if not found:
        return None
    last = found[-1]
    between = median([m["mtbf_h"] for m in last.machines if m["mtbf_h"] is not None])
    repair = median([m["mttr_h"] for m in last.machines if m["mttr_h"] is not None])
    return Numbers(
        (
            Number(label="OEE", value=last.oee, kind="share", note=f"shift {last.name}"),
            Number(label="availability", value=last.availability, kind="share"),
            Number(label="performance", value=last.performance, kind="share"),
            Number(label="quality", value=last.quality, kind="share"),
            Number(label="failures", value=sum(m["failures"] for m in last.machines), kind="count",
                   note=f"of {len(last.machines)} machines"),
            Number(label="MTBF", value=_rounded(between), unit="h", note="median of the machines"),
            Number(label="MTTR", value=_rounded(repair), unit="h", note="median of the machines"),
        )
    )  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def shift_trend(data: AppData) -> View | None:
    """Return the shifts one after the other."""
    found = shifts(data)[-60:]
    if len(found) < 2:
        return None
    lines = tuple(
        Series(name, [(s.end_ms, getattr(s, name.lower())) for s in found])
        for name in ("OEE", "availability", "performance", "quality")
    )
    return TimeSeries(series=lines, kind="share", clock="event time")


def shift_machines(data: AppData) -> View | None:
    """Return the machines of the newest shift, the worst first."""
    found = shifts(data)
    rows = sorted(
        found[-1].machines if found else (),
        key=lambda m: (m["oee"] is None, m["oee"] or 0.0, m["machine_id"]),
    )
    columns = (
        Column("machine", "key"), Column("OEE", "share"), Column("availability", "share"),
        Column("performance", "share"), Column("quality", "share"), Column("failures", "count"),
        Column("down", "duration"), Column("MTBF, h", "number"), Column("MTTR, h", "number"),
    )  # fmt: skip
    cells: list[list[Cell]] = [
        [m["machine_id"], m["oee"], m["availability"], m["performance"], m["quality"], m["failures"],
         m["down_ms"], _rounded(m["mtbf_h"]), _rounded(m["mttr_h"])]
        for m in rows
    ]  # fmt: skip
    tones: list[Tone] = ["warn" if m["failures"] else "plain" for m in rows]
    return bounded(columns, cells, tones)


def sensors(data: AppData) -> View | None:
    """Return why readings were not to be believed."""
    table = data.table("readings")
    if table is None or not table.rows:
        return None
    rows = table.once("faults", lambda t: t.latest(_JUDGED, ["quality", "fault"]).to_pylist())
    faults = Counter((r["fault"] or "other", r["quality"]) for r in rows if r["quality"] != "good")
    if not faults:
        return Note(f"all of the newest {len(rows):,} readings are good", tone="good")
    bars = (
        Bar(f"{fault}, {quality}", n, f"{n / len(rows):.2%}", tone="bad" if quality == "bad" else "warn")
        for (fault, quality), n in faults.most_common(10)
    )
    return Bars(bars=tuple(bars))


#: What is looked at now and then: it comes last, and shut.
_FOLDED: Final = (
    "unusual", "models", "intervals", "health", "alarm-states", "alarm-rate", "alarm-kpis", "top-alarms",
    "shift-trend", "shift-machines", "sensors",
)  # fmt: skip

page = DashboardPage(
    folded=_FOLDED,
    panels=(
        Panel("headline", "Now", headline, width="full", empty="no reading yet"),
        Panel("alarms", "Alarms", alarm_list, width="full", empty="no alarm yet",
              about="Those that matter: active, or to be acknowledged, confirmed or reset; what is active "
              "and unacknowledged first. The command millrace iot alarms does the same."),
        Panel("fleet", "The fleet", dashboard_fleet.fleet_table, width="full",
              empty="no machine was heard yet",
              about="Each machine with its alarms, how unusual its sensors are together (0.5 at the limit of "
              "T² or Q), what may fail, how long it runs yet, and the limit that it will cross first; the "
              "worst first."),
        Panel("standings", "How the fleet does", dashboard_fleet.standings, empty="no machine was heard yet",
              about="Each machine counts once, in the first line that holds for it."),
        Panel("crossings", "Limits that will be crossed", dashboard_foresight.crossing_table,
              empty="no limit will be crossed soon",
              about="By the trend of each point, with the interval in which that is."),
        Panel("plan", "Maintain by", dashboard_foresight.plan_table, width="full",
              empty="no model says when: train one with millrace models iot train",
              about="The date at which too early and too late cost the least together. Yellow: no work order "
              "begins before it."),
        Panel("orders", "Work orders", dashboard_foresight.order_table, width="full", actions=("plan",),
              empty="no work is planned",
              about="Open ones, the soonest first, and the newest of those that are over; done when the "
              "replacement of the component is reported."),
        Panel("unusual", "Unusual values", dashboard_foresight.unusual, width="full",
              empty="no value was unusual yet",
              about="The newest values whose score is above the threshold, what was expected, and why."),
        Panel("models", "How right the models were", dashboard_foresight.models, width="full",
              empty="no forecast has come true yet",
              about="Judged by failures that came after: remaining life by its interval and its error, risks "
              "by how many failed within the horizon."),
        Panel("intervals", "Intervals of remaining life", dashboard_foresight.life_errors,
              empty="no life has ended yet",
              about="Share of forecasts whose interval held the truth, by when the lives ended, beside what "
              "is promised."),
        Panel("alarm-states", "Alarms by state and severity", alarm_states, empty="no alarm yet"),
        Panel("health", "Health of the assets", health, empty="no asset has had an alarm yet",
              about="The worst alarm on an asset or below it, and how many there are; plants and lines, and "
              "below them what is not well. What is not in it never had an alarm."),
        Panel("liveness", "Silent devices", liveness, empty="no device has been silent yet",
              about="A silent gateway is one cause, not one for every machine behind it."),
        Panel("alarm-rate", "Alarms in ten minutes", alarm_rate, empty=_NO_WINDOW,
              about=f"By plant, over the last day of events; more than {FLOOD} are a flood."),
        Panel("alarm-kpis", "The alarm system", alarm_kpis, empty=_NO_WINDOW,
              about="Measures of ISA-18.2 over the last day of events."),
        Panel("top-alarms", "Top ten alarms", top_alarms, empty=_NO_WINDOW,
              about="Over the last day of events, of the ten that came most in each ten minutes."),
        Panel("shift", "Last shift", shift, empty="no shift is over yet",
              about="All machines together; performance weighted by operating time."),
        Panel("shift-trend", "Shifts", shift_trend, empty="two shifts must be over",
              about="Overall equipment effectiveness (ISO 22400-2) and its factors."),
        Panel("shift-machines", "Machines in the last shift", shift_machines, width="full",
              empty="no shift is over yet",
              about="The lowest effectiveness first; MTBF and MTTR since the machine is known."),
        Panel("sensors", "Readings not to be believed", sensors, empty="no reading yet",
              about=f"Of the newest {_JUDGED:,}: what is wrong with the sensor, not with the machine."),
    ),
    detail=Detail("Machine", asset),
    actions=dashboard_work.ACTIONS,
)  # fmt: skip

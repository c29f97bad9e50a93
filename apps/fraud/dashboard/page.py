"""The fraud page of the dashboard: the queue, what alerts were worth, models, drift, rules, one card."""

from __future__ import annotations

from collections import Counter
from typing import Final

from millrace.dashboard.common_panels import rate_now, standing_of
from millrace.dashboard.data import AppData
from millrace.dashboard.page import DashboardPage, Detail, Panel
from millrace.dashboard.progress import read_progress
from millrace.dashboard.steps import joined_steps
from millrace.dashboard.values import median, quantile
from millrace.dashboard.views import (
    Bar,
    Bars,
    Cell,
    Column,
    Number,
    Numbers,
    Series,
    Table,
    TimeSeries,
    View,
)
from millrace_apps.fraud.cases.app import FOLDER
from millrace_apps.fraud.cases.store import TABLES, case_view
from millrace_apps.fraud.dashboard import card as dashboard_card
from millrace_apps.fraud.dashboard import changes as dashboard_changes
from millrace_apps.fraud.dashboard import control_group as dashboard_control
from millrace_apps.fraud.dashboard import entity as dashboard_entity
from millrace_apps.fraud.dashboard import model as dashboard_model
from millrace_apps.fraud.dashboard import work as dashboard_work
from millrace_apps.fraud.dashboard.data import (
    ACTIONS,
    STEP_MS,
    alerts,
    decided,
    judged,
    labels,
    precision,
    running_precision,
    summed,
)
from millrace_apps.fraud.dashboard.work import case_settings as case_settings

_POINTS: Final = 60
_SHOWN: Final = 25


def headline(data: AppData) -> View | None:
    """Return the figures that one wants to see first."""
    table = data.table("transactions")
    if table is None:
        return None
    alert_table = data.table("alerts")
    raised = 0 if alert_table is None else alert_table.rows
    known = judged(data, case_settings())
    share = precision(known)
    view = case_view(data, case_settings())
    queued = [] if view is None else view.queue()
    return Numbers(
        (
            rate_now(data, "transactions", "decisions per second"),
            Number(label="decisions", value=table.rows, kind="count"),
            Number(label="alerts", value=raised, kind="count",
                   note=f"{raised / table.rows:.2%} of decisions" if table.rows else ""),
            Number(label="in the queue", value=len(queued), kind="count",
                   note=f"of {case_settings().cases.capacity} a day"),
            Number(label="to be saved by looking", value=sum(r.case.priority for r in queued), kind="money",
                   note=f"{data.settings.currency.billing} expected, whole queue"),
            Number(label="precision so far", value=share, kind="share", note=f"{len(known):,} labelled"),
        )
    )  # fmt: skip


def flagged(data: AppData) -> View | None:
    """Return what was not approved, over event time."""
    found = decided(data)
    if found is None or not found.actions:
        return None
    groups = joined_steps(list(found.actions), _POINTS, STEP_MS)
    width_min = (groups[1][0] - groups[0][0] if len(groups) > 1 else STEP_MS) / 60_000
    lines = []
    for n, action in enumerate(ACTIONS[1:], 1):
        points = []
        for begin, steps in groups:
            counts = summed(found.actions, steps)
            points.append((begin, 0.0 if counts is None else float(counts[n]) / width_min))
        lines.append(Series(action, points))
    return TimeSeries(series=tuple(lines), unit="per minute", clock="event time")


def precision_so_far(data: AppData) -> View | None:
    """Return the precision of the labelled alerts up to a time."""
    line = running_precision(judged(data, case_settings()))
    if not line:
        return None
    return TimeSeries(series=(Series("precision", line),), kind="share", clock="event time")


def label_delay(data: AppData) -> View | None:
    """Return how long it took until something was known of a transaction."""
    delays = sorted(found.delay_ms for found in labels(data, case_settings()).values())
    if not delays:
        return None

    bars = tuple(
        Bar(f"{share:.0%} within", float(quantile(delays, share) or 0))
        for share in (0.1, 0.25, 0.5, 0.75, 0.9)
    )
    return Bars(bars=bars, kind="duration")


def reasons(data: AppData) -> View | None:
    """Return what alerts were raised for, and what became of them."""
    counts: Counter[str] = Counter()
    for alert in alerts(data).values():
        counts.update(alert.codes)
    if not counts:
        return None
    hits: Counter[str] = Counter()
    known: Counter[str] = Counter()
    for j in judged(data, case_settings()):
        known.update(j.alert.codes)
        hits.update(j.alert.codes if j.is_fraud else ())
    bars = []
    for code, n in counts.most_common(12):
        note = f"{hits[code]} of {known[code]} labelled are fraud" if known[code] else ""
        bars.append(Bar(code, n, note))
    return Bars(bars=tuple(bars))


def worth(data: AppData) -> View | None:
    """Return what the decisions were worth, as far as labels tell."""
    known = labels(data, case_settings())
    if not known:
        return None
    raised = alerts(data)
    caught = [raised[i].amount for i, label in known.items() if label.is_fraud and i in raised]
    missed = sum(1 for i, label in known.items() if label.is_fraud and i not in raised)
    blocked = [i for i, a in raised.items() if a.action == "block"]
    wrong = sum(1 for i in blocked if i in known and not known[i].is_fraud)
    found = decided(data)
    total = sum(int(c.sum()) for c in found.actions.values()) if found else 0
    days = (
        (max(found.actions) - min(found.actions) + 1) * STEP_MS / 86_400_000 if found and found.actions else 0
    )
    return Numbers(
        (
            Number(label="fraud alerted", value=round(sum(caught), 2), kind="money",
                   note=f"{data.settings.currency.billing} in {len(caught)} payments", tone="good"),
            Number(label="fraud not alerted", value=missed, kind="count", note="payments",
                   tone="warn" if missed else "plain"),
            Number(label="blocked wrongly", value=wrong, kind="count", note=f"of {len(blocked)} blocked",
                   tone="bad" if wrong else "plain"),
            Number(label="false-block rate", value=wrong / total if total else None, kind="share",
                   note="of all decisions, known so far"),
            Number(label="alerts per day", value=round(len(raised) / days, 1) if days else None),
            Number(label="label delay", value=median([label.delay_ms for label in known.values()]),
                   kind="duration", note="median"),
        )
    )  # fmt: skip


def rule_effects(data: AppData) -> View | None:
    """Return how often each rule held, in force or in shadow."""
    found = decided(data)
    if found is None or not (found.rules or found.shadow):
        return None
    hits: Counter[str] = Counter()
    known: Counter[str] = Counter()
    for j in judged(data, case_settings()):
        known.update(j.alert.rules)
        hits.update(j.alert.rules if j.is_fraud else ())
    rows: list[list[Cell]] = []
    for state, counts in (("in force", found.rules), ("shadow", found.shadow)):
        for name, n in counts.most_common(_SHOWN):
            judged_by = known[name] if state == "in force" else 0
            share = hits[name] / judged_by if judged_by else None
            rows.append([name, state, n, judged_by or None, share])
    columns = (Column("rule"), Column("state"), Column("held", "count"), Column("labelled alerts", "count"),
               Column("precision", "share"))  # fmt: skip
    return Table(columns=columns, rows=rows)


def case_work(data: AppData) -> View | None:
    """Return where the case work stands, where it runs as a stream."""
    progress = read_progress(data.root / FOLDER)
    return None if progress is None else standing_of(data, progress)


#: What is looked at now and then: it comes last, and shut.
_FOLDED: Final = (
    "label-delay", "control-group", "rules", "drift", "rule-audit", "decided", "case-work", "people",
)  # fmt: skip

page = DashboardPage(
    folded=_FOLDED,
    panels=(
        Panel("headline", "Now", headline, width="full", empty="nothing was decided yet"),
        Panel("queue", "Review queue", dashboard_work.queue, width="full", empty="no open case",
               about="A case is a card's alerts; ranked by what is expected to be saved by looking: score × "
               "(amount + exposure). Red: a payment was blocked."),
        Panel("flagged", "Review and block", flagged, about="Payments that were not approved."),
        Panel("reasons", "Reasons of alerts", reasons, empty="no alert yet",
               about="How often each reason stood on an alert, and what labels say."),
        Panel("precision", "Precision so far", precision_so_far, empty="no alert has a label yet",
               about="Share of frauds among all labelled alerts up to a time."),
        Panel("worth", "Economics", worth, empty="no label yet",
               about="By the labels that are known so far; later ones will change it."),
        Panel("label-delay", "Label delay", label_delay, empty="no label yet",
               about="From a transaction to the first that was known of it."),
        Panel("thresholds", "What thresholds would block",
               lambda data: dashboard_changes.curve(data, case_settings()), actions=("propose",),
               about="Purchases, and known frauds among them, at or above each score, of the newest 100,000 "
               "decisions. Other thresholds: a look ahead over all decisions, and a proposal."),
        Panel("control-group", "Control group",
               lambda data: dashboard_control.control_group(data, case_settings()),
               empty="nothing was blocked yet",
               about="Let through by chance though it would be blocked, to learn what is blocked; "
               "by labels that are old enough. Blocks by list have no part in it."),
        Panel("rules", "Rule effects", rule_effects, empty="no rule has held yet",
               about="How often rules held; precision of the alerts that they stand on."),
        Panel("models", "Champion and challenger", dashboard_model.models, empty="no model was at work yet",
               about="Prequential: each model judged on transactions that it had not seen."),
        Panel("changes", "Proposals", dashboard_changes.proposals, width="full",
               empty="no proposal yet; sending one takes a broker",
               about="Changes of thresholds and lists, those that wait for a second person first."),
        Panel("drift", "Drift", dashboard_model.drift, empty="too few decisions to compare",
               about="Population stability index against the first quarter of the time: below 0.1 stable, "
               "above 0.25 changed."),
        Panel("rule-audit", "Rule changes", dashboard_model.rule_audit, width="full",
               empty="no rule was changed yet", about="Who changed what, the newest first."),
        Panel("decided", "Cases decided", dashboard_work.decided_per_day, empty="no case was decided yet",
               about="By day, and how many were looked at for the first time."),
        Panel("case-work", "Case work", case_work,
               empty="no stream of it here: cases are made in memory, of alerts and dispositions",
               about="The query that keeps cases, queue and labels."),
        Panel("people", "Case work by people", dashboard_work.people, width="full",
               empty="nobody has looked at a case yet",
               about="How long cases had been open when somebody first looked at them, and decided."),
    ),
    detail=Detail(
        "Card", lambda data, key: dashboard_card.detail(data, key, case_settings()), dashboard_entity.PREFIXES
    ),
    actions=(*dashboard_work.ACTIONS, *dashboard_changes.ACTIONS),
    folders=(TABLES,),
)  # fmt: skip

"""The work on cases: the queue with what can be done, and who did how much of it how fast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from millrace.dashboard.data import AppData
from millrace.dashboard.page import Action, ActionRefused, Field
from millrace.dashboard.values import bounded
from millrace.dashboard.views import Cell, Column, Offer, Series, Table, TimeSeries, View
from millrace.errors import UserError
from millrace.runtime.settings import load_settings
from millrace_apps.fraud.cases.app import NAME, FraudCasesSettings
from millrace_apps.fraud.cases.events import Case
from millrace_apps.fraud.cases.live import Ranked
from millrace_apps.fraud.cases.store import act, case_view, dispose, present

if TYPE_CHECKING:
    from millrace.dashboard.tables import DeltaReader

_DAY_MS: Final = 86_400_000
#: Cases of the queue that the page gets, and rows of it that are shown at a time.
_MOST: Final = 500
_PAGE: Final = 25
#: Days of the chart, and lines of the table.
_DAYS: Final = 30
_LINES: Final = 60
_VERDICTS: Final = {"fraud": "fraud", "genuine": "genuine", "unclear": "unclear: close without a label"}
_ACTS: Final = {
    "contacted": "contacted: the holder was spoken with",
    "verified": "verified: the holder stands by the payments, let the card pass for a while",
    "unblock": "unblock: take the card off the list of blocked ones",
}
_settings: dict[str, FraudCasesSettings] = {}


def case_settings() -> FraudCasesSettings:
    """Return the settings of the case work, as file and environment give them."""
    if NAME not in _settings:
        _settings[NAME] = load_settings(FraudCasesSettings, app=NAME)
    return _settings[NAME]


# -- the queue -------------------------------------------------------------------------------------


def queue(data: AppData) -> View | None:
    """Return the day's queue, with what can be done about its cases."""
    view = case_view(data, case_settings())
    if view is None or not view.ranked:
        return None
    shown, now = view.queue(), present(data, view)
    columns = (
        Column("rank", "count"), Column("queue"), Column("card", "key"), Column("why"),
        Column("alerts", "count"), Column("amount", "money"), Column("score"),
        Column("priority", "money"), Column("opened", "time"), Column("claimed by"),
    )  # fmt: skip
    return Table(
        columns=columns,
        rows=[_queue_row(r, now) for r in shown[:_MOST]],
        tones=[
            "bad" if any(t.action == "block" for t in r.case.transactions) else "plain" for r in shown[:_MOST]
        ],
        actions=[_offers(r.case, now) for r in shown[:_MOST]],
        more=max(0, len(shown) - _MOST),
        page=_PAGE,
        choose="queue",
    )


def _queue_row(r: Ranked, now_ms: int) -> list[Cell]:
    why = ", ".join(f"{reason.code} ×{reason.alerts}" if reason.alerts > 1 else reason.code
                    for reason in r.case.reasons[:3] if not reason.beside)  # fmt: skip
    case = r.case
    if case.ring:
        why = f"{case.about}: {why}"
    return [
        r.rank,
        case.queue,
        case.card_id,
        why,
        case.alerts,
        case.amount,
        f"{case.score:.2f}",
        case.priority,
        case.opened_ms,
        case.claimed_by if _is_claimed(case, now_ms) else "",
    ]


def _offers(case: Case, now_ms: int) -> tuple[Offer, ...]:
    about = {"case_id": case.case_id}
    claim = "release" if _is_claimed(case, now_ms) else "claim"
    return Offer("dispose", about), Offer(claim, about), Offer("act", about)


def _is_claimed(case: Case, now_ms: int) -> bool:
    return case.claimed_by is not None and now_ms < (case.claimed_until_ms or 0)


# -- people and time -------------------------------------------------------------------------------


@dataclass
class Served:
    """What one person did for a queue on a day.

    Attributes:
        looked: Cases that this person was the first to look at.
        look_ms: How long they had been open by then, all together, ms.
        look_most_ms: The longest of them.
        decided: Cases that this person decided.
        confirmed: Of them, frauds.
        decide_ms: How long they had been open by then, all together, ms.
        decide_most_ms: The longest of them.
    """

    looked: int = 0
    look_ms: int = 0
    look_most_ms: int = 0
    decided: int = 0
    confirmed: int = 0
    decide_ms: int = 0
    decide_most_ms: int = 0

    def add_view(self, took_ms: int) -> None:
        """Count the first look at a case."""
        self.looked += 1
        self.look_ms += took_ms
        self.look_most_ms = max(self.look_most_ms, took_ms)

    def decide(self, took_ms: int, verdict: str) -> None:
        """Count a decision."""
        self.decided += 1
        self.confirmed += verdict == "fraud"
        self.decide_ms += took_ms
        self.decide_most_ms = max(self.decide_most_ms, took_ms)


Work = dict[tuple[int, str, str], Served]


def work(data: AppData) -> Work:
    """Return who did what: day (UTC ms of its begin), queue and person → what was done.

    Of days of a queue that are over, as the stream of the case work has told them (table ``service_days``);
    of others, and where it does not run, by what the cases say of themselves.
    """
    view = case_view(data, case_settings())
    table = data.table("service_days") if view is None or view.streamed else None
    told = {} if table is None else table.once("work", _told)
    over = {(day, queue) for day, queue, _ in told}
    own = {} if view is None else work_of(r.case for r in view.ranked)
    return {**{key: served for key, served in own.items() if key[:2] not in over}, **told}


def _told(table: DeltaReader) -> Work:
    figures = tuple(Served.__dataclass_fields__)
    rows = table.all(("queue", "day_ms", "person", *figures)).to_pylist()
    return {
        (row["day_ms"], row["queue"], row["person"]): Served(*(row[name] for name in figures)) for row in rows
    }


def work_of(cases: Iterable[Case]) -> Work:
    """Return who did what by what cases say: who looked first, and who decided first."""
    found: Work = {}

    def served(at_ms: int, case: Case, person: str) -> Served:
        return found.setdefault((at_ms - at_ms % _DAY_MS, case.queue, person), Served())

    for case in cases:
        if case.looked_by is not None and case.looked_ms is not None:
            took = max(0, case.looked_ms - case.opened_ms)
            served(case.looked_ms, case, case.looked_by).add_view(took)
        first = _first_verdict(case)
        if first is not None:
            verdict, by, at_ms = first
            served(at_ms, case, by).decide(max(0, at_ms - case.opened_ms), verdict)
    return found


def _first_verdict(case: Case) -> tuple[str, str, int] | None:
    for line in case.history:
        if line.what in _VERDICTS:
            return line.what, line.by, line.at_ms
    if case.status not in _VERDICTS or case.verdict_by is None or case.verdict_ms is None:
        return None
    return case.status, case.verdict_by, case.verdict_ms


def people(data: AppData) -> View | None:
    """Return a line per day, queue and person, the newest day first."""
    found = work(data)
    order = sorted(found, key=lambda key: (-key[0], key[1], key[2]))
    rows: list[list[Cell]] = []
    for key in order:
        day, queue_, person = key
        s = found[key]
        rows.append(
            [
                day, queue_, person,
                s.looked, _mean(s.look_ms, s.looked), s.look_most_ms if s.looked else None,
                s.decided, s.confirmed, _mean(s.decide_ms, s.decided),
                s.decide_most_ms if s.decided else None,
            ]
        )  # fmt: skip
    columns = (
        Column("day", "time"), Column("queue"), Column("person"), Column("looked at", "count"),
        Column("mean until looked at", "duration"), Column("longest until looked at", "duration"),
        Column("decided", "count"), Column("frauds", "count"), Column("mean until decided", "duration"),
        Column("longest until decided", "duration"),
    )  # fmt: skip
    return bounded(columns, rows, most=_LINES, page=_PAGE, choose="person")


def decided_per_day(data: AppData) -> View | None:
    """Return how many cases were decided on each day, and how many looked at for the first time."""
    days: dict[int, list[int]] = {}
    for (day, _, _), served in work(data).items():
        sums = days.setdefault(day, [0, 0])
        sums[0] += served.decided
        sums[1] += served.looked
    if not days:
        return None
    last = max(days)
    shown = range(max(min(days), last - (_DAYS - 1) * _DAY_MS), last + 1, _DAY_MS)
    lines = (
        Series(name, [(day, float(days.get(day, [0, 0])[n])) for day in shown])
        for n, name in enumerate(("decided", "looked at"))
    )
    return TimeSeries(series=tuple(lines), kind="count", unit="a day", clock="event time")


def _mean(total: int, of: int) -> float | None:
    return total / of if of else None


# -- actions ---------------------------------------------------------------------------------------


def do_dispose(data: AppData, values: Mapping[str, str]) -> str:
    """Decide on a case, as the page's form says."""
    try:
        said = dispose(
            data, case_settings(), values["case_id"], values["verdict"],  # type: ignore[arg-type]
            by=values["by"], note=values["note"], block_ring=values.get("ring") == "block",
        )  # fmt: skip
    except UserError as error:
        raise ActionRefused(str(error)) from error
    return f"{said.case_id} is {said.verdict}, by {said.by}"


def do_act(data: AppData, values: Mapping[str, Any], what: str = "") -> str:
    """Do something about a case beside deciding on it, as the page's form says."""
    what = what or values["what"]
    try:
        done = act(data, case_settings(), values["case_id"], what,  # type: ignore[arg-type]
                   by=values["by"], note=values["note"], about=values.get("card", ""))  # fmt: skip
    except UserError as error:
        raise ActionRefused(str(error)) from error
    said = f"{done.case_id}: {done.what}, by {done.by}"
    if what in ("verified", "unblock") and data.broker is None:
        return f"{said}; no broker is named, so no list is changed"
    return said


_CASE: Final = Field("case_id", "Case", hidden=True)
_BY: Final = Field("by", "Your name")
_NOTE: Final = Field("note", "Note", required=False)
_RING: Final = Field(
    "ring", "Of a ring", choices={"cards": "block its cards", "block": "what they have in common, too"},
    required=False,
)  # fmt: skip
_CARD: Final = Field("card", "Of a ring, its card", required=False, hint="all of them")

ACTIONS: Final = (
    Action("dispose", "Decide", (_CASE, Field("verdict", "Verdict", choices=_VERDICTS), _RING, _BY, _NOTE),
           do_dispose),
    Action("claim", "Claim", (_CASE, _BY, _NOTE), lambda data, values: do_act(data, values, "claim"),
           about="So that nobody else need look at it; the claim ends by itself."),
    Action("release", "Release", (_CASE, _BY, _NOTE), lambda data, values: do_act(data, values, "release"),
           about="Gives a claimed case back."),
    Action("act", "Note or act", (_CASE, Field("what", "What", choices=_ACTS), _CARD, _BY, _NOTE), do_act),
)  # fmt: skip

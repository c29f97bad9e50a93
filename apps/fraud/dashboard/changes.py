"""Thresholds on the page: what each would block, a look ahead at others, proposals of changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from millrace.dashboard.data import AppData
from millrace.dashboard.page import Action, ActionRefused, Field
from millrace.dashboard.views import Cell, Column, Offer, Series, Table, TimeSeries, View
from millrace.operations.roster import Role
from millrace_apps.fraud.cases.app import FraudCasesSettings
from millrace_apps.fraud.dashboard.data import labels
from millrace_apps.fraud.dashboard.recent import is_one_of, recent

if TYPE_CHECKING:
    import numpy.typing as npt

    from millrace_apps.fraud.contracts.control_events import Change
    from millrace_apps.fraud.operations.governance import Proposal
    from millrace_apps.fraud.operations.governed_book import GovernedControlState
    from millrace_apps.fraud.settings import FraudSettings

_SHOWN: Final = 25
#: Thresholds that a curve has a point for: fiftieths of 1. Below these almost every payment is.
_STEPS: Final = range(10, 51)
#: Thresholds with a field of their own.
_OWN: Final = {
    "review_score": "Look from score",
    "block_score": "Block from score",
    "model_review": "Look from the model's probability",
    "model_block": "Block from the model's probability",
}
_PERIODS: Final = {
    "1d": "the last day",
    "7d": "the last 7 days",
    "30d": "the last 30 days",
    "all": "all decisions",
}
_NO_BROKER: Final = "no broker is named: start the dashboard with --bootstrap, then changes can be sent"


# -- what a threshold would block ------------------------------------------------------------------


def curve(data: AppData, settings: FraudCasesSettings) -> View | None:
    """Return how many purchases, and known frauds among them, are at or above each score."""
    rows = recent(data)
    if rows is None or not len(rows):
        return None
    rows = rows.filter(is_one_of(rows["kind"], ["purchase"]))
    frauds = [name for name, label in labels(data, settings).items() if label.is_fraud]
    is_fraud = is_one_of(rows["transaction_id"], frauds)
    lines = []
    for name, column in (("reasons", "score"), ("model", "model_score")):
        scores = rows[column].to_numpy()
        known = ~np.isnan(scores)
        if known.any():
            for what, chosen in (("payments", known), ("known frauds", known & is_fraud)):
                lines.append(Series(f"{name}: {what}", above(scores[chosen])))
    return TimeSeries(series=tuple(lines), kind="count", x_kind="number", x_label="score from")


def above(scores: npt.NDArray[np.float64]) -> list[tuple[float, float | None]]:
    """Return how many scores are at or above each threshold from 0.2 to 1.

    >>> [n for at, n in above(np.array([0.2, 0.5, 0.5, 1.0])) if at in (0.2, 0.5, 0.52, 1.0)]
    [4.0, 3.0, 1.0, 1.0]
    """
    at = np.array(_STEPS) / 50
    counts = len(scores) - np.searchsorted(np.sort(scores), at, side="left")
    return [(float(a), float(n)) for a, n in zip(at, counts, strict=True)]


# -- proposals -------------------------------------------------------------------------------------


def book_of(data: AppData) -> GovernedControlState:
    """Return what was said of thresholds, lists and rules.

    By the control topic where a broker is named, else by the audit table: what commands and pages over this
    folder have sent.

    Raises:
        UserError: The broker does not answer.
    """
    from millrace_apps.fraud.operations import changes
    from millrace_apps.fraud.operations.governed_book import book_of as empty

    settings = _settings(data)
    if data.broker is not None:
        name = settings.topics.control
        end = data.broker.ends([name]).get(name, {}).get(0, 0)
        return data.once("control", (name, end), lambda: changes.read(changes.open_topic(settings)))
    table = data.table("rule_audit")
    if table is None or "event" not in table.columns:
        return empty(settings)

    def read(_: Any) -> GovernedControlState:
        book = empty(settings)
        for event in table.all(["event"])["event"].to_pylist():
            book.take(str(event).encode())
        return book

    return table.once("book", read)


def proposals(data: AppData) -> View | None:
    """Return proposals, those that wait first, with what can be said of them."""
    from millrace_apps.fraud.operations.changes import change_text, standing_of

    book = book_of(data)
    waits = ("waiting", "undoing")
    order = sorted(
        book.proposals.items(), key=lambda one: (one[1].status not in waits, -one[1].at_ms, one[0])
    )
    if not order:
        return None
    rows: list[list[Cell]] = []
    offers = []
    for name, found in order[:_SHOWN]:
        what = "; ".join(
            _was_text(change, found) if found.after else change_text(change, book) for change in found.each()
        )
        said = ", ".join(
            f"{verb} {who}"
            for verb, who in (("agreed by", found.agreed_by), ("settled by", found.settled_by))
            if who
        )
        rows.append([name, standing_of(found), what, found.by, found.at_ms, said, found.reason])
        names = (
            ("approve", "reject") if found.status in waits else ("undo",) if found.status == "applied" else ()
        )
        offers.append([Offer(action, {"proposal": name}) for action in names])
    columns = (
        Column("proposal"), Column("it"), Column("what"), Column("by"), Column("at", "time"), Column(""),
        Column("why"),
    )  # fmt: skip
    return Table(
        columns=columns,
        rows=rows,
        tones=["warn" if found.status in waits else "plain" for _, found in order[:_SHOWN]],
        actions=offers,
        more=max(0, len(order) - _SHOWN),
    )


def _was_text(change: Change, of: Proposal) -> str:
    """Return what a change that was applied has changed, and into what."""
    from millrace_apps.fraud.contracts.control_events import ResetThreshold, SetThreshold
    from millrace_apps.fraud.processes.scoring import DEFAULTS

    if isinstance(change, SetThreshold | ResetThreshold):
        default = getattr(DEFAULTS, change.name, 0.0)
        before, after = (default if v is None else v for v in (of.before[change.name], of.after[change.name]))
        return f"{change.name}: {before:g} before, {after:g} then"
    on = of.after[f"{change.list}/{change.entry}"] is not None
    return f"{change.entry} {'on' if on else 'off'} {change.list}"


# -- actions ---------------------------------------------------------------------------------------


def look(data: AppData, values: Mapping[str, str]) -> View:
    """Return what the changes of a form would have done."""
    book = book_of(data)
    return compared(data, _changes(values, "-", 0), values.get("period") or "7d", book)


def look_at(data: AppData, values: Mapping[str, str]) -> View:
    """Return what a proposal that waits would have done."""
    book = book_of(data)
    found = book.proposals.get(values["proposal"])
    if found is None or found.status != "waiting":
        raise ActionRefused(f"{values['proposal']} does not wait to be applied")
    return compared(data, found.each(), values.get("period") or "7d", book)


def compared(data: AppData, changes: list[Change], period: str, book: GovernedControlState) -> Table:
    """Return what is done now, and what would be done: a row per figure, then one per threshold."""
    from millrace_apps.fraud.contracts.control_events import ResetThreshold, SetThreshold
    from millrace_apps.fraud.operations import changes as shared
    from millrace_apps.fraud.processes.scoring import DEFAULTS

    last = None if period == "all" else period
    found = shared.difference(changes, _settings(data), last, book)
    rows: list[list[Cell]] = [["decisions", found.decisions, found.decisions, None]]
    rows += [[what, now, then, round(then - now, 2)] for what, now, then in shared.compared(found)]
    for change in changes:
        if isinstance(change, SetThreshold | ResetThreshold):
            default = getattr(DEFAULTS, change.name)
            now = book.overrides.get(change.name, default)
            then = change.value if isinstance(change, SetThreshold) else default
            rows.append([change.name, now, then, round(then - now, 6)])
    if found.left_out:
        rows.append(["left out: features of another version", found.left_out, found.left_out, None])
    numbers = [Column(name, "number") for name in ("now", "then", "difference")]
    return Table(columns=(Column(f"{found.days:.1f} days"), *numbers), rows=rows)


def do_propose(data: AppData, values: Mapping[str, str]) -> str:
    """Propose the changes of a form, as the command does."""
    from millrace.operations.sending import now_ms
    from millrace_apps.fraud.operations import changes
    from millrace_apps.fraud.operations.tokens import without_numbers

    settings, now = _sendable(data), now_ms()
    reason = without_numbers(settings, values["reason"])
    asked = _changes({**values, "reason": reason}, values["by"], now)
    name, book = changes.propose(changes.open_topic(settings), asked, values["by"], now, reason)
    return f"{name} {changes.standing_of(book.proposals[name])}"


def do_settle(kind: str, data: AppData, values: Mapping[str, str]) -> str:
    """Approve, reject or undo a proposal, as the commands do.

    Args:
        kind: ``approve``, ``reject`` or ``undo``.
        data: The app's data.
        values: What the form says.
    """
    from millrace_apps.fraud.operations import changes

    settings = _sendable(data)
    name, book = changes.settle(settings, kind, values["proposal"], values["by"], values["reason"])
    return f"{name} {changes.standing_of(book.proposals[name])}"


def _changes(values: Mapping[str, str], by: str, now_ms: int) -> list[Change]:
    from millrace_apps.fraud.operations.changes import thresholds_of

    texts = [f"{name}={_value(values[name])}" for name in _OWN if values.get(name)]
    texts += values.get("others", "").split()
    if not texts:
        raise ActionRefused("nothing is changed: fill in a threshold")
    return thresholds_of(texts, by, now_ms, values.get("reason", ""))


def _value(text: str) -> str:
    return "" if text == "default" else text


def _settings(data: AppData) -> FraudSettings:
    """Return the app's settings, with this page's folder as where its tables are."""
    settings: FraudSettings = data.settings
    storage = settings.storage.model_copy(update={"root": str(data.root)})
    return settings.model_copy(update={"storage": storage})


def _sendable(data: AppData) -> FraudSettings:
    if data.broker is None:
        raise ActionRefused(_NO_BROKER)
    return _settings(data)


_PERIOD: Final = Field("period", "Over", choices=_PERIODS, required=False, hint="the last 7 days")
_BY: Final = Field("by", "Your name")
_PROPOSAL: Final = Field("proposal", "Proposal", hidden=True)


def _settling(name: str, label: str, about: str, *, looks: bool = False) -> Action:
    def run(data: AppData, values: Mapping[str, str]) -> str:
        return do_settle(name, data, values)

    fields = (_PROPOSAL, *((_PERIOD,) if looks else ()), _BY, Field("reason", "Why", required=False))
    role = Role.approve if name == "approve" else Role.decide
    return Action(name, label, fields, run, look_at if looks else None, about, role)


ACTIONS: Final = (
    Action(
        "propose",
        "Other thresholds",
        (
            *(Field(name, label, required=False, hint="as it is") for name, label in _OWN.items()),
            Field("others", "Others", required=False, hint="e.g. spree_count=5 travel_kmh=900"),
            _PERIOD,
            _BY,
            Field("reason", "Why", required=False),
        ),
        do_propose,
        look,
        "Look ahead shows what they would have done over the decisions of a time, and sends nothing. Send "
        "proposes them: they hold at once where nobody has to agree, else when a second person approves. "
        "What is empty stays as it is; 'default' brings a default back.",
    ),
    _settling("approve", "Approve", "As a second person: not who asked for it.", looks=True),
    _settling("reject", "Reject", "Who asked for it may take it back."),
    _settling(
        "undo", "Undo", "Brings back what was before; where that lets more pass, a second person must agree."
    ),
)

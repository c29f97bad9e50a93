"""Where cases are read from, and where a disposition goes.

Cases are the tables of the streaming case work where it runs; else they are made in memory of the alerts
and the dispositions so far. A disposition goes to the topic, where a broker is named, and always into
the table ``dispositions``: the record of who decided what, and what cases are made of without a stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from apps.fraud.cases_app import FraudCasesSettings
from apps.fraud.cases_events import Case, CaseLabel, Disposition, Verdict
from apps.fraud.cases_live import ALERT_COLUMNS, LiveCases, Ranked, alerts_of, ranked
from apps.fraud.events import Label
from millrace.dashboard.data import AppData
from millrace.errors import UserError
from millrace.operations.sending import NotSent, send

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.dashboard.tables import DeltaReader

#: The folder of the case work in the fraud app's root.
FOLDER = "cases"
#: Folder of its tables, relative to that root.
TABLES = f"{FOLDER}/tables"
JOURNAL = "dispositions"
_DAY_MS = 86_400_000
#: How long the broker may take to confirm a disposition, ms.
_PATIENCE_MS = 8_000
_SHORTEST_PREFIX = 6


class NoCase(UserError):
    """There is no such case, or no case at all."""


@dataclass(frozen=True)
class CaseView:
    """The cases as they are now.

    Attributes:
        ranked: The cases: the queue by rank, then the waiting, then the others.
        labels: What dispositions said of transactions.
        newest_ms: The newest event time, UTC milliseconds.
        streamed: Whether they come from the streaming case work.
    """

    ranked: list[Ranked]
    labels: list[CaseLabel]
    newest_ms: int
    streamed: bool

    def queue(self) -> list[Ranked]:
        """Return the queued cases by rank."""
        return [r for r in self.ranked if r.place == "queued"]

    def find(self, case_id: str) -> Ranked:
        """Return a case by its id or the first characters of it.

        Raises:
            NoCase: There is none, or several begin so.
        """
        wanted = case_id if case_id.startswith("case-") else f"case-{case_id}"
        found = [r for r in self.ranked if r.case.case_id.startswith(wanted)]
        if len(wanted) < len("case-") + _SHORTEST_PREFIX or not found:
            raise NoCase(f"there is no case {case_id}: `millrace fraud cases list` has them")
        if len(found) > 1:
            raise NoCase(f"{len(found)} cases begin with {case_id}: give more of its characters")
        return found[0]

    def of_card(self, card_id: str) -> list[Ranked]:
        """Return the cases of a card."""
        return [r for r in self.ranked if r.case.card_id == card_id]


def case_view(data: AppData, settings: FraudCasesSettings) -> CaseView | None:
    """Return the cases, or ``None`` where there are no alerts yet.

    Args:
        data: The fraud app's data; its folders must have :data:`TABLES` among them.
        settings: The settings of the case work.
    """
    streamed = data.table("cases")
    if streamed is not None:
        return _from_tables(data, streamed.all().to_pylist())
    alerts = data.table("alerts")
    if alerts is None:
        return None
    live = _live(alerts, settings)
    live.add_dispositions(journal(data))
    live.settle()
    return CaseView(live.ranked(), list(live.labels), live.newest_ms, streamed=False)


def _live(alerts: DeltaReader, settings: FraudCasesSettings) -> LiveCases:
    """Return the cases in memory, with the alerts that have come since they were asked for last."""
    rules, capacity = settings.cases.rules(), settings.cases.capacity
    return alerts.fold("cases", ALERT_COLUMNS, lambda: LiveCases(rules, capacity), _add)


def _add(live: LiveCases, rows: pa.Table) -> LiveCases:
    live.add_alerts(alerts_of(rows.to_pylist()))
    return live


def _from_tables(data: AppData, rows: list[dict[str, Any]]) -> CaseView:
    cases = {row["case_id"]: msgspec.convert(row, Case) for row in rows}
    queue, labels = data.table("queue"), data.table("case_labels")
    entries = [] if queue is None else queue.all(["case_id", "place"]).to_pylist()
    said = [] if labels is None else [msgspec.convert(r, CaseLabel) for r in labels.all().to_pylist()]
    newest = max((c.updated_ms for c in cases.values()), default=0)
    places = {e["case_id"]: e["place"] for e in entries}
    return CaseView(ranked(cases, places), said, newest, streamed=True)


def journal(data: AppData) -> list[Disposition]:
    """Return the dispositions that were made here, in the order of writing."""
    table = data.table(JOURNAL)
    if table is None:
        return []
    rows: list[Mapping[str, Any]] = table.all(Disposition.__struct_fields__).to_pylist()
    return [msgspec.convert(row, Disposition) for row in rows]


def dispose(
    data: AppData,
    settings: FraudCasesSettings,
    case_id: str,
    verdict: Verdict,
    *,
    by: str,
    note: str = "",
    at_ms: int | None = None,
) -> Disposition:
    """Decide on a case.

    Args:
        data: The fraud app's data.
        settings: The settings of the case work.
        case_id: The case, or the first characters of its id.
        verdict: The decision.
        by: Who decides.
        note: What else is to be known.
        at_ms: When, UTC milliseconds; default now, or the newest event time for a stream of the past.

    Returns:
        The disposition.

    Raises:
        UserError: There is no such case, it is decided so already, or the broker did not take it.
    """
    view = case_view(data, settings)
    if view is None:
        raise NoCase(f"there are no alerts in {data.root}, so there is no case")
    case = view.find(case_id).case
    if case.status == verdict:
        raise UserError(f"{case.case_id} is decided as {verdict} already, by {case.verdict_by}")
    if verdict == "unclear" and case.status != "open":
        raise UserError(f"{case.case_id} is {case.status}: only fraud or genuine can replace that")
    if case.status == "expired":
        raise UserError(f"{case.case_id} has expired: nobody decided on it in time")
    now = data.now_ms() if at_ms is None else at_ms
    if at_ms is None and now - view.newest_ms > _DAY_MS:
        now = view.newest_ms + 1  # the stream is one of the past: a decision of today would end its time
    text = "\x00".join((case.case_id, verdict, by, str(now)))
    identity = hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
    said = _checked(Disposition(identity, case.case_id, case.card_id, verdict, by, now, note))
    if data.broker is not None:
        _send(data, settings.topics.dispositions, [said], "the disposition")
    elif view.streamed:
        raise UserError("the case work runs as a stream, and no broker is named: give one with --bootstrap")
    _record(data, said)
    alerts = None if view.streamed else data.table("alerts")
    if data.broker is not None and alerts is not None:
        # Where the case work runs as a stream it sends them; the same labels again would count once.
        live = _live(alerts, settings)
        known = len(live.labels)
        live.add_dispositions([said])
        live.settle()
        _send(data, settings.topics.labels, live.labels[known:], "the labels of the disposition")
    return said


def _checked(said: Disposition) -> Disposition:
    """Return it as its contract takes it."""
    if not 1 <= len(said.by) <= 64:
        raise UserError("this disposition is not complete: say who decides, in 1 to 64 characters")
    if len(said.note) > 500:
        raise UserError("this disposition is not complete: a note has at most 500 characters")
    try:
        return msgspec.json.decode(msgspec.json.encode(said), type=Disposition)
    except msgspec.ValidationError as error:
        raise UserError(f"this disposition is not complete: {error}") from error


def _send(data: AppData, topic: str, events: Sequence[Disposition | CaseLabel], what: str) -> None:
    """Send events with their card as their key.

    Raises:
        UserError: The broker did not take all of them.
    """
    try:
        keyed = [(event.card_id, event) for event in events]
        contract = Label if any(isinstance(event, CaseLabel) for event in events) else Disposition
        send(data.settings.kafka, topic, contract, keyed, timeout_s=_PATIENCE_MS / 1000)
    except NotSent as error:
        raise NotSent(f"{topic} did not take {what}: {error}") from None


def _record(data: AppData, said: Disposition) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    folder = data.root / TABLES / JOURNAL
    folder.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: [getattr(said, name)] for name in said.__struct_fields__}
    schema = pa.schema([(n, pa.int64() if n == "at_ms" else pa.string()) for n in said.__struct_fields__])
    write_deltalake(str(folder), pa.table(columns, schema=schema), mode="append")


def verdicts(labels: Iterable[CaseLabel]) -> dict[str, bool]:
    """Return what holds of transactions: of several labels of one the last.

    >>> verdicts([CaseLabel("a", 1, "t", 0, "c", "x", True, "feedback"),
    ...           CaseLabel("b", 2, "t", 0, "c", "x", False, "correction", "a")])
    {'t': False}
    """
    return {label.transaction_id: label.is_fraud for label in sorted(labels, key=lambda x: x.event_time_ms)}

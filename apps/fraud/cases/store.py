"""The store of cases, dispositions and acts, as commands and page use it.

Cases are the tables of the streaming case work where it runs; else they are made in memory of the alerts
and what was said of them so far. That goes to its topic, where a broker is named, and always into the table
``dispositions`` or ``case_acts``: the record of who did what, and what cases are made of without a stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millrace.dashboard.data import AppData
from millrace.dashboard.progress import read_progress
from millrace.errors import UserError
from millrace.operations.control_topic import AUDIT, KEY, append_audit
from millrace.operations.sending import NotSent, send
from millrace.runtime.settings import load_settings
from millrace_apps.fraud.cases.app import FOLDER, FraudCasesSettings
from millrace_apps.fraud.cases.events import (
    ActKind,
    CardBlock,
    Case,
    CaseAct,
    CaseLabel,
    Disposition,
    Verdict,
)
from millrace_apps.fraud.cases.live import ALERT_COLUMNS, LiveCases, Ranked, alerts_of, ranked
from millrace_apps.fraud.cases.rows import read_row
from millrace_apps.fraud.contracts.events import Control, Label

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.dashboard.tables import DeltaReader

#: Folder of its tables, relative to that root.
TABLES = f"{FOLDER}/tables"
JOURNAL = "dispositions"
ACTS = "case_acts"
_DAY_MS = 86_400_000
#: How long the broker may take to confirm a disposition, ms.
_PATIENCE_MS = 8_000
_SHORTEST_PREFIX = 6


Said = TypeVar("Said", Disposition, CaseAct)


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

    def queue(self, name: str | None = None) -> list[Ranked]:
        """Return the queued cases by rank.

        Args:
            name: Of this queue only.
        """
        return [r for r in self.ranked if r.place == "queued" and name in (None, r.case.queue)]

    def next(self, by: str, now_ms: int, queue: str | None = None) -> Ranked:
        """Return the queued case to look at next: the first that nobody else looks at.

        Args:
            by: Who asks.
            now_ms: Now, UTC milliseconds.
            queue: Of this queue only.

        Raises:
            NoCase: There is none.
        """
        for one in self.queue(queue):
            if not one.case.claimed_by_other(by, now_ms):
                return one
        raise NoCase("no case waits that nobody else looks at")

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
        """Return the cases that a card is in: its own, and those of rings."""
        return [r for r in self.ranked if card_id in r.case.blocks]

    def related(self, case: Case) -> list[Case]:
        """Return the cases of other subjects that have a card in common with a case."""
        return [
            r.case
            for r in self.ranked
            if r.case.subject != case.subject and not case.blocks.keys().isdisjoint(r.case.blocks)
        ]


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
    live.add_acts(acts(data))
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
    cases = {row["case_id"]: read_row(row, Case) for row in rows}
    queue, labels = data.table("queue"), data.table("case_labels")
    entries = [] if queue is None else queue.all(["case_id", "place"]).to_pylist()
    said = [] if labels is None else [read_row(r, CaseLabel) for r in labels.all().to_pylist()]
    # What is said next is later than what was said here and the stream has not taken yet, and than the
    # watermark: before that it would be late.
    times = [*(said.at_ms for said in journal(data)), *(done.at_ms for done in acts(data))]
    standing = read_progress(data.root / FOLDER)
    if standing is not None and 0 < (standing.watermark_ms or 0) <= data.now_ms():
        times.append(standing.watermark_ms or 0)
    newest = max((*times, *(c.updated_ms for c in cases.values())), default=0)
    places = {e["case_id"]: e["place"] for e in entries}
    return CaseView(ranked(cases, places), said, newest, streamed=True)


def journal(data: AppData) -> list[Disposition]:
    """Return the dispositions that were made here, in the order of writing."""
    table = data.table(JOURNAL)
    if table is None:
        return []
    rows: list[Mapping[str, Any]] = table.all(Disposition.__struct_fields__).to_pylist()
    return [read_row(row, Disposition) for row in rows]


def acts(data: AppData) -> list[CaseAct]:
    """Return the acts that were made here, in the order of writing."""
    table = data.table(ACTS)
    if table is None:
        return []
    rows: list[Mapping[str, Any]] = table.all(CaseAct.__struct_fields__).to_pylist()
    return [read_row(row, CaseAct) for row in rows]


def dispose(
    data: AppData,
    settings: FraudCasesSettings,
    case_id: str,
    verdict: Verdict,
    *,
    by: str,
    note: str = "",
    at_ms: int | None = None,
    block_ring: bool = False,
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
        block_ring: Whether ``fraud`` blocks what the cards of a ring have in common, too.

    Returns:
        The disposition.

    Raises:
        UserError: There is no such case, it is decided so already, or the broker did not take it.
    """
    view, case = _found(data, settings, case_id)
    if case.status == verdict:
        raise UserError(f"{case.case_id} is decided as {verdict} already, by {case.verdict_by}")
    if verdict == "unclear" and case.status != "open":
        raise UserError(f"{case.case_id} is {case.status}: only fraud or genuine can replace that")
    now = present(data, view) if at_ms is None else at_ms
    _refuse_claimed(case, by, now)
    if block_ring and not (case.ring and verdict == "fraud"):
        raise UserError(f"{case.case_id}: only fraud blocks, and only rings have a device or terminal")
    note = _without_numbers(data, note)
    said = Disposition(
        disposition_id=_identity(case, verdict, by, now),
        case_id=case.case_id,
        card_id=case.card_id,
        verdict=verdict,
        by=by,
        at_ms=now,
        note=note,
        ring=case.ring,
        block_ring=block_ring,
        elsewhere=_elsewhere(view, case, now) if verdict == "genuine" else [],
    )
    _take(data, settings, view, _checked(said, Disposition, "disposition"))
    return said


def act(
    data: AppData,
    settings: FraudCasesSettings,
    case_id: str,
    what: ActKind,
    *,
    by: str,
    note: str = "",
    at_ms: int | None = None,
    about: str = "",
) -> CaseAct:
    """Do something about a case beside deciding on it.

    Args:
        data: The fraud app's data.
        settings: The settings of the case work.
        case_id: The case, or the first characters of its id.
        what: What is done.
        by: Who does it.
        note: What else is to be known.
        at_ms: When, UTC milliseconds; default now, or the newest event time for a stream of the past.
        about: The card of a ring that is meant; empty: all of the case.

    Raises:
        UserError: There is no such case or card, somebody else looks at it, or the broker did not take it.
    """
    view, case = _found(data, settings, case_id)
    now = present(data, view) if at_ms is None else at_ms
    if what != "contacted":
        _refuse_claimed(case, by, now)
    if what == "claim" and case.status != "open":
        raise UserError(f"{case.case_id} is {case.status}: only open cases are claimed")
    if what == "release" and case.claimed_by != by:
        raise UserError(f"{case.case_id} is not claimed by {by}")
    if about and about not in case.blocks:
        raise UserError(f"{case.case_id} has no card {about}: `millrace fraud cases show` lists its cards")
    if what == "verified" and case.ring and not about:
        raise UserError(f"{case.case_id} is a ring's: say with --card which one its holder stands by")
    if what == "verified" and case.status == "fraud" and not case.ring:
        raise UserError(f"{case.case_id} is fraud: decide that it is genuine first")
    note = _without_numbers(data, note)
    done = CaseAct(
        act_id=_identity(case, f"{what}\x00{about}" if about else what, by, now),
        case_id=case.case_id,
        card_id=case.card_id,
        what=what,
        by=by,
        at_ms=now,
        note=note,
        ring=case.ring,
        about=about,
        elsewhere=_elsewhere(view, case, now) if what == "verified" else [],
    )
    _take(data, settings, view, _checked(done, CaseAct, "act"))
    return done


def _found(data: AppData, settings: FraudCasesSettings, case_id: str) -> tuple[CaseView, Case]:
    view = case_view(data, settings)
    if view is None:
        raise NoCase(f"there are no alerts in {data.root}, so there is no case")
    case = view.find(case_id).case
    if case.status == "expired":
        raise UserError(f"{case.case_id} has expired: nobody decided on it in time")
    return view, case


def _without_numbers(data: AppData, note: str) -> str:
    """Return a note with tokens in place of card numbers: it stands in tables and topics for good."""
    from millrace_apps.fraud.operations.tokens import without_numbers
    from millrace_apps.fraud.settings import FraudSettings

    if not note:
        return note
    root = f"storage.root={data.root}"
    return without_numbers(load_settings(FraudSettings, app="fraud", overrides=[root]), note)


def _elsewhere(view: CaseView, case: Case, now_ms: int) -> list[CardBlock]:
    """Return until when cases of other subjects block the cards of a case."""
    until: dict[str, int] = {}
    for other in view.related(case):
        for card, at in other.blocks.items():
            if card in case.blocks and at > now_ms:
                until[card] = max(at, until.get(card, 0))
    return [CardBlock(card, at) for card, at in sorted(until.items())]


def present(data: AppData, view: CaseView) -> int:
    """Return now, UTC milliseconds; of a stream of the past right after its newest event.

    What were said today would end the time of such a stream.
    """
    now = data.now_ms()
    return view.newest_ms + 1 if now - view.newest_ms > _DAY_MS else now


def _refuse_claimed(case: Case, by: str, now_ms: int) -> None:
    if case.claimed_by_other(by, now_ms):
        raise UserError(f"{case.case_id} is claimed by {case.claimed_by}: wait, or have it released")


def _identity(case: Case, what: str, by: str, at_ms: int) -> str:
    text = "\x00".join((case.case_id, what, by, str(at_ms)))
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def _take(data: AppData, settings: FraudCasesSettings, view: CaseView, said: Disposition | CaseAct) -> None:
    """Send what was said, write it down, and send what follows where the case work does not run.

    Raises:
        UserError: The broker did not take it, or it runs and none is named.
    """
    names, is_act = settings.topics, isinstance(said, CaseAct)
    what = "act" if is_act else "disposition"
    if data.broker is not None:
        _send(data, names.acts if is_act else names.dispositions, [said], f"the {what}")
    elif view.streamed:
        raise UserError("the case work runs as a stream, and no broker is named: give one with --bootstrap")
    _record(data, said)
    alerts = None if view.streamed else data.table("alerts")
    if data.broker is None or alerts is None:
        return
    # Where the case work runs as a stream it sends them; the same labels again would count once.
    live = _live(alerts, settings)
    labels, control = len(live.labels), len(live.control)
    if isinstance(said, CaseAct):
        live.add_acts([said])
    else:
        live.add_dispositions([said])
    live.settle()
    _send(data, names.labels, live.labels[labels:], f"the labels of the {what}")
    if follows := live.control[control:]:
        _send_control(data, names.decisions, follows)


def _send_control(data: AppData, topic: str, events: Sequence[Any]) -> None:
    try:
        send(data.settings.kafka, topic, Control, [(KEY, event) for event in events], partition=0,
             timeout_s=_PATIENCE_MS / 1000)  # fmt: skip
    except NotSent as error:
        raise NotSent(f"{topic} did not take what follows for the card: {error}") from None
    append_audit(data.root / "tables" / AUDIT, events)


def _checked(said: Said, contract: type[Said], what: str) -> Said:
    """Return it as its contract takes it."""
    if not 1 <= len(said.by) <= 64:
        raise UserError(f"this {what} is not complete: say who decides, in 1 to 64 characters")
    if len(said.note) > 500:
        raise UserError(f"this {what} is not complete: a note has at most 500 characters")
    try:
        return msgspec.json.decode(msgspec.json.encode(said), type=contract)
    except msgspec.ValidationError as error:
        raise UserError(f"this {what} is not complete: {error}") from error


def _send(data: AppData, topic: str, events: Sequence[Disposition | CaseAct | CaseLabel], what: str) -> None:
    """Send events with their ring or card as their key.

    Raises:
        UserError: The broker did not take all of them.
    """
    try:
        keyed = [(getattr(event, "ring", "") or event.card_id, event) for event in events]
        kind = type(next(iter(events), None))
        send(
            data.settings.kafka,
            topic,
            Label if kind is CaseLabel else kind,
            keyed,
            timeout_s=_PATIENCE_MS / 1000,
        )
    except NotSent as error:
        raise NotSent(f"{topic} did not take {what}: {error}") from None


def _record(data: AppData, said: Disposition | CaseAct) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    folder = data.root / TABLES / (ACTS if isinstance(said, CaseAct) else JOURNAL)
    folder.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: [value] for name, value in msgspec.to_builtins(said).items()}
    block = pa.struct([("card_id", pa.string()), ("until_ms", pa.int64())])
    kinds = {"at_ms": pa.int64(), "block_ring": pa.bool_(), "elsewhere": pa.list_(block)}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in columns])
    write_deltalake(str(folder), pa.table(columns, schema=schema), mode="append", schema_mode="merge")


def verdicts(labels: Iterable[CaseLabel]) -> dict[str, bool]:
    """Return what holds of transactions: of several labels of one the last.

    >>> verdicts([CaseLabel("a", 1, "t", 0, "c", "x", True, "feedback"),
    ...           CaseLabel("b", 2, "t", 0, "c", "x", False, "correction", "a")])
    {'t': False}
    """
    return {label.transaction_id: label.is_fraud for label in sorted(labels, key=lambda x: x.event_time_ms)}

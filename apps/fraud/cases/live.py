"""Cases in memory: the case work's own processes over the rows of two tables, without an engine.

So a queue is there as soon as there are alerts, also where nobody runs the case work as a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from millrace.host.memory_chain import MemoryChain
from millrace.host.runner import Emission
from millrace_apps.fraud.cases.app import FraudCasesSettings, processes
from millrace_apps.fraud.cases.book import CaseBook
from millrace_apps.fraud.cases.events import (
    AlertReason,
    AlertSeen,
    Case,
    CaseAct,
    CaseLabel,
    Disposition,
    QueueEntry,
)
from millrace_apps.fraud.cases.queue import ReviewQueue
from millrace_apps.fraud.cases.rules import CaseRules
from millrace_apps.fraud.contracts.events import Control

_case = msgspec.json.Decoder(Case).decode
_entry = msgspec.json.Decoder(QueueEntry).decode
_label = msgspec.json.Decoder(CaseLabel).decode
_control = msgspec.json.Decoder(Control).decode

#: Columns of the alerts table that a case is made of.
ALERT_COLUMNS = ("card_id", "transaction_id", "event_time_ms", "amount", "score", "action", "reasons",
                 "terminal_id", "customer_id", "model_score", "country",
                 "billing_amount", "billing_currency", "ring")  # fmt: skip


class Ranked(NamedTuple):
    """A case with its place.

    Attributes:
        rank: Its rank among the queued ones of its queue, from 1; ``None`` for others.
        place: ``queued``, ``waiting``, ``done`` or ``gone``.
        case: The case.
    """

    rank: int | None
    place: str
    case: Case


class LiveCases:
    """The cases of alerts and dispositions that are handed over bit by bit.

    Args:
        rules: How alerts become cases.
        capacity: Cases that can be looked at on a day.

    Example:
        >>> live = LiveCases()
        >>> live.add_alerts([AlertSeen("card-1", "tx-1", 60_000, 90.0, 0.9, "review")])
        >>> live.settle()
        >>> [(r.rank, r.case.card_id, r.case.priority) for r in live.ranked()]
        [(1, 'card-1', 306.0)]
    """

    def __init__(self, rules: CaseRules | None = None, capacity: int = 100) -> None:
        topics = FraudCasesSettings().topics
        self._rules = rules or CaseRules()
        queue = ReviewQueue(capacity, capacities=self._rules.capacities(), kept_ms=self._rules.kept_ms)
        self._chain = MemoryChain(processes(CaseBook(self._rules), queue, topics))
        self._waiting: list[tuple[str, int, Any, str]] = []
        self._dispositions: set[str] = set()
        self._acts: set[str] = set()
        self._newest = 0
        self.cases: dict[str, Case] = {}
        self.entries: dict[str, QueueEntry] = {}
        self.labels: list[CaseLabel] = []
        self.control: list[Any] = []
        self.refused: list[str] = []

    @property
    def newest_ms(self) -> int:
        """The newest event time, UTC milliseconds; 0 before the first event."""
        return self._newest

    def add_alerts(self, alerts: Iterable[AlertSeen]) -> None:
        """Add alerts; :meth:`settle` handles them."""
        self._waiting += [(self._rules.key_of(a), a.event_time_ms, a, "alerts") for a in alerts]

    def add_dispositions(self, dispositions: Iterable[Disposition]) -> None:
        """Add dispositions, leaving out those that were added before; :meth:`settle` handles them."""
        for said in dispositions:
            if said.disposition_id not in self._dispositions:
                self._dispositions.add(said.disposition_id)
                self._waiting.append((self._rules.key_of(said), said.at_ms, said, "dispositions"))

    def add_acts(self, acts: Iterable[CaseAct]) -> None:
        """Add acts, leaving out those that were added before; :meth:`settle` handles them."""
        for act in acts:
            if act.act_id not in self._acts:
                self._acts.add(act.act_id)
                self._waiting.append((self._rules.key_of(act), act.at_ms, act, "acts"))

    def settle(self) -> None:
        """Handle what was added, in order of event time."""
        if not self._waiting:
            return
        self._newest = max(self._newest, *(at for _, at, _, _ in self._waiting))
        emissions = self._chain.run_batch(self._waiting)
        self._waiting = []
        # Nothing newer is known: what stands at the newest time must not wait for it.
        self._take(emissions + self._chain.advance_watermark(self._newest))

    def _take(self, emissions: Iterable[Emission]) -> None:
        for e in emissions:
            if e.output == "CaseBook.labels":
                self.labels.append(_label(e.payload))
            elif e.output == "CaseBook.control":
                self.control.append(_control(e.payload))
            elif e.output == "main":
                entry = _entry(e.payload)
                self.entries[entry.case_id] = entry
            elif e.output == "CaseBook.dead_letters":
                self.refused.append(msgspec.json.decode(e.payload)["error"])
            elif e.output == "CaseBook.book":
                case = _case(e.payload)
                self.cases[case.case_id] = case

    def ranked(self) -> list[Ranked]:
        """Return the cases: the queued ones by rank, then the waiting, then the others, the newest first."""
        return ranked(self.cases, {case_id: e.place for case_id, e in self.entries.items()})


def ranked(cases: Mapping[str, Case], places: Mapping[str, str]) -> list[Ranked]:
    """Return cases in the order in which they are shown.

    Args:
        cases: Id → case.
        places: Id → its place; a case without one waits if it is open.
    """
    order = {"queued": 0, "waiting": 1, "done": 2, "gone": 3}

    def place_of(case: Case) -> str:
        default = "waiting" if case.status == "open" else "gone" if case.status == "expired" else "done"
        return places.get(case.case_id, default)

    def rank_of(case: Case) -> tuple[int, float, int, str]:
        place = place_of(case)
        first = -case.priority if place in ("queued", "waiting") else -float(case.updated_ms)
        return order[place], first, case.opened_ms, case.case_id

    found: list[Ranked] = []
    ranks: dict[str, int] = {}
    for case in sorted(cases.values(), key=rank_of):
        place = place_of(case)
        if place == "queued":
            ranks[case.queue] = ranks.get(case.queue, 0) + 1
        found.append(Ranked(ranks[case.queue] if place == "queued" else None, place, case))
    return found


def alerts_of(rows: Iterable[Mapping[str, Any]]) -> list[AlertSeen]:
    """Return alerts of the rows of the alerts table."""
    found = []
    for row in rows:
        reasons = [
            AlertReason(str(r["code"]), *(r.get(name) for name in ("value", "baseline", "limit", "weight")))
            for r in row.get("reasons") or ()
        ]
        found.append(
            AlertSeen(
                card_id=row["card_id"],
                transaction_id=row["transaction_id"],
                event_time_ms=row["event_time_ms"],
                amount=row["amount"],
                score=min(1.0, max(0.0, row["score"])),
                action=row.get("action") or "review",
                reasons=reasons,
                terminal_id=row.get("terminal_id"),
                customer_id=row.get("customer_id"),
                model_score=row.get("model_score"),
                country=row.get("country") or None,
                billing_amount=row.get("billing_amount"),
                billing_currency=row.get("billing_currency"),
                ring=row.get("ring") or "",
            )
        )
    return found

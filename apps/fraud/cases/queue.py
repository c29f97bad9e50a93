"""The review queue: as many cases a day as can be looked at, those with most to be saved first.

An analyst has time for so many cases a day. At every moment the queue holds the open cases with the
highest priority, as many as the day has reviews left; the others wait below. A case that is decided takes
one of the day's reviews. At midnight (UTC) the day is over, its figures and those of each person are emitted,
and all that is still open is there for the next day.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import msgspec

from millrace import Context, KeyedProcess, Timer, side_output, value_state
from millrace_apps.fraud.cases.events import Case, Place, QueueDay, QueueEntry, ServiceDay

_DAY_MS = 86_400_000
_MIDNIGHT = "midnight"
_FORGET = "forget"
#: So many cases whose end was seen are remembered, so that an older revision cannot open one again and a
#: verdict that replaces another is not counted as a second decision.
_CLOSED_KEPT = 1_000
#: More people than so many on a day are counted together.
_MOST_PEOPLE = 500
_OTHERS = "(others)"


#: Priority (negative: the highest first), time of the first alert, id.
Rank = tuple[float, int, str]


class WaitingCase(msgspec.Struct):
    """An open case in the queue.

    Attributes:
        card_id: Its card.
        priority: What is expected to be saved by looking.
        opened_ms: Time of its first alert, UTC milliseconds.
        place: Where it stands.
        case_revision: The revision of the case that this is of.
        revision: Counts the changes of the entry.
        looked: Whether somebody has looked at it.
    """

    card_id: str
    priority: float
    opened_ms: int
    place: Place
    case_revision: int
    revision: int
    looked: bool = False


class Served(msgspec.Struct):
    """What a person did on a day, as :class:`~millrace_apps.fraud.cases.events.ServiceDay` has it."""

    looked: int = 0
    look_ms: int = 0
    look_most_ms: int = 0
    decided: int = 0
    confirmed: int = 0
    decide_ms: int = 0
    decide_most_ms: int = 0


class QueueState(msgspec.Struct):
    """A queue on one day.

    Attributes:
        day_ms: The day, UTC milliseconds of its begin.
        cases: The open cases.
        order: Their ranks: priority (negative), time of the first alert, id; always sorted.
        closed: Cases that are closed → revision of their entry; the latest ones.
        opened: Cases opened on this day; so for the others.
        people: Who did what on this day.
    """

    day_ms: int
    cases: dict[str, WaitingCase] = msgspec.field(default_factory=dict)
    order: list[Rank] = msgspec.field(default_factory=list)
    closed: dict[str, int] = msgspec.field(default_factory=dict)
    opened: int = 0
    decided: int = 0
    confirmed: int = 0
    expired: int = 0
    put_out: int = 0
    people: dict[str, Served] = msgspec.field(default_factory=dict)

    def served(self, person: str) -> Served:
        """Return what a person did on this day."""
        if person not in self.people and len(self.people) >= _MOST_PEOPLE:
            person = _OTHERS
        return self.people.setdefault(person, Served())


class ReviewQueue(KeyedProcess[Case, QueueEntry]):
    """Ranks the open cases of a queue; key: the queue.

    Emits an entry whenever a case's place or priority changes, and ``days`` and ``service`` at midnight. It
    handles all cases of a queue in one place; that is right for what people can look at, thousands a day,
    and no more.

    Args:
        capacity: Cases that can be looked at on a day.
        capacities: Queue → the same, of queues that have one of their own.
        most_waiting: Most open cases; beyond, the one with the least to be saved is put out and counted.
        kept_ms: How long an empty queue remembers the cases that were closed, from the end of its last day
            on, ms: as long as verdicts can be replaced (:class:`~millrace_apps.fraud.cases.rules.CaseRules`).
    """

    order = "event_time"

    state = value_state(QueueState)
    days = side_output(QueueDay)
    service = side_output(ServiceDay)

    def __init__(
        self,
        capacity: int = 100,
        *,
        capacities: Mapping[str, int] | None = None,
        most_waiting: int = 5_000,
        kept_ms: int = 30 * _DAY_MS,
    ) -> None:
        self.capacity = capacity
        self.capacities = dict(capacities or {})
        self.most_waiting = most_waiting
        self.kept_ms = kept_ms

    def _line(self, state: QueueState, ctx: Context) -> int:
        """Return how many cases can still be looked at today."""
        return max(0, self.capacities.get(ctx.key, self.capacity) - state.decided)

    def process(self, event: Case, ctx: Context) -> None:
        """Take a change of a case."""
        state = self.state.value or QueueState(0)
        if ctx.timers.pending(_MIDNIGHT) is None:
            # The first change of its day. Days on which nothing happens are not ended one by one.
            # A late change counts on the day that is on.
            state.day_ms = max(state.day_ms, ctx.event_time - ctx.event_time % _DAY_MS)
            ctx.timers.at(state.day_ms + _DAY_MS, _MIDNIGHT)
            ctx.timers.at(state.day_ms + _DAY_MS + self.kept_ms, _FORGET)
        known = state.cases.get(event.case_id)
        if event.case_id in state.closed:
            self._follow(event, state, ctx)
        elif event.status != "open":
            self._close(event, known, state, ctx)
        elif known is None:
            state.opened += 1
            # Revision 0: whatever its place will be, it is a change that is told.
            made = WaitingCase(event.card_id, event.priority, event.opened_ms, "waiting", event.revision, 0)
            state.cases[event.case_id] = made
            _look(event, made, state)
            self._insert(event.case_id, made, state, ctx)
        elif event.revision > known.case_revision:
            known.case_revision = event.revision
            _look(event, known, state)
            if known.priority != event.priority:
                _remove(event.case_id, known, state)
                known.priority = event.priority
                self._insert(event.case_id, known, state, ctx)
        self._settle(state, ctx)
        self.state.value = state

    def on_late(self, event: Case, ctx: Context) -> None:
        """Take what comes late as well: the queue is about now."""
        self.process(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """End the day, and begin the next with what is left; forget a queue that has been empty for long."""
        state = self.state.value
        if state is None:
            return
        if timer.name == _FORGET:
            if not state.cases:
                self.state.clear()
            return
        ctx.output(
            self.days,
            QueueDay(
                ctx.key,
                state.day_ms,
                self.capacities.get(ctx.key, self.capacity),
                state.opened,
                state.decided,
                state.confirmed,
                state.expired,
                state.put_out,
                len(state.cases),
            ),
        )
        for person, served in sorted(state.people.items()):
            told = msgspec.structs.astuple(served)
            ctx.output(self.service, ServiceDay(ctx.key, state.day_ms, person, *told))
        if not state.cases and not state.closed:
            self.state.clear()
            return
        after = QueueState(timer.at, state.cases, state.order, state.closed)
        self._settle(after, ctx)
        self.state.value = after

    def _close(self, event: Case, known: WaitingCase | None, state: QueueState, ctx: Context) -> None:
        if event.status == "expired":
            state.expired += 1
        else:
            state.decided += 1
            state.confirmed += event.status == "fraud"
        entry = known or WaitingCase(event.card_id, event.priority, event.opened_ms, "waiting", 0, 0)
        _look(event, entry, state)
        _decided(event, state)
        if state.cases.pop(event.case_id, None) is not None:
            _remove(event.case_id, entry, state)
        self._emit_place(event.case_id, entry, "gone" if event.status == "expired" else "done", state, ctx)
        self._remember(event.case_id, entry.revision, state)

    def _follow(self, event: Case, state: QueueState, ctx: Context) -> None:
        """Take a change of a case that is closed: put out, but decided after all; or decided otherwise."""
        if event.status in ("open", "expired"):
            return
        revision = state.closed[event.case_id] + 1
        state.closed[event.case_id] = revision
        ctx.emit(
            QueueEntry(event.case_id, event.card_id, ctx.key, state.day_ms, "done", event.priority, revision)
        )

    def _insert(self, case_id: str, case: WaitingCase, state: QueueState, ctx: Context) -> None:
        """Put a case into its rank, and tell its place."""
        rank = _rank(case_id, case)
        at = bisect_left(state.order, rank)
        state.order.insert(at, rank)
        place: Place = "queued" if at < self._line(state, ctx) else "waiting"
        self._emit_place(case_id, case, place, state, ctx)

    def _settle(self, state: QueueState, ctx: Context) -> None:
        """Tell the cases that have crossed the line between queued and waiting; put out what is too many.

        All the others stand as they were told: a change moves cases across this one line only, those next
        to it, so that a day of many cases does not cost their square.
        """
        line = min(self._line(state, ctx), len(state.order))
        for at in range(line - 1, -1, -1):
            case_id = state.order[at][2]
            if state.cases[case_id].place == "queued":
                break
            self._emit_place(case_id, state.cases[case_id], "queued", state, ctx)
        for at in range(line, len(state.order)):
            case_id = state.order[at][2]
            if state.cases[case_id].place == "waiting":
                break
            self._emit_place(case_id, state.cases[case_id], "waiting", state, ctx)
        while len(state.order) > self.most_waiting:
            case_id = state.order.pop()[2]
            case = state.cases.pop(case_id)
            state.put_out += 1
            self._emit_place(case_id, case, "gone", state, ctx)
            self._remember(case_id, case.revision, state)

    def _emit_place(
        self, case_id: str, case: WaitingCase, place: Place, state: QueueState, ctx: Context
    ) -> None:
        case.place = place
        case.revision += 1
        ctx.emit(
            QueueEntry(case_id, case.card_id, ctx.key, state.day_ms, place, case.priority, case.revision)
        )

    def _remember(self, case_id: str, revision: int, state: QueueState) -> None:
        state.closed[case_id] = revision
        while len(state.closed) > _CLOSED_KEPT:
            del state.closed[next(iter(state.closed))]


def _look(event: Case, entry: WaitingCase, state: QueueState) -> None:
    """Count the first look at a case."""
    if entry.looked or event.looked_by is None or event.looked_ms is None:
        return
    entry.looked = True
    took = max(0, event.looked_ms - event.opened_ms)
    served = state.served(event.looked_by)
    served.looked += 1
    served.look_ms += took
    served.look_most_ms = max(served.look_most_ms, took)


def _decided(event: Case, state: QueueState) -> None:
    """Count a decision for who made it."""
    if event.status == "expired" or event.verdict_by is None or event.verdict_ms is None:
        return
    took = max(0, event.verdict_ms - event.opened_ms)
    served = state.served(event.verdict_by)
    served.decided += 1
    served.confirmed += event.status == "fraud"
    served.decide_ms += took
    served.decide_most_ms = max(served.decide_most_ms, took)


def _rank(case_id: str, case: WaitingCase) -> Rank:
    return -case.priority, case.opened_ms, case_id


def _remove(case_id: str, case: WaitingCase, state: QueueState) -> None:
    del state.order[bisect_left(state.order, _rank(case_id, case))]

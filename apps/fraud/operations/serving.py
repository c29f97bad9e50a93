"""A payment decided on while the customer waits: from the newest committed state, and what was seen since.

The processes of the stream decide, on the state that the stream has committed. The payment goes on to the
stream, which decides on it again and stays the record; what was answered stands in a journal, so that the two
can be compared.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from millrace.dead_letters import NOT_JSON
from millrace.host.rows import Emission
from millrace.serving.ahead import AheadOfQuery, Seen
from millrace.serving.handing import NotHandedOn, Place, Sent, Way
from millrace.serving.journal import Journal
from millrace.serving.outbox import Kept
from millrace.serving.server import Answer
from millrace.topology import Topology
from millrace.topology.sinks import each_table, table_name
from millrace_apps.fraud.contracts.events import Transaction

_log = logging.getLogger("millrace.serving")

#: Input of the payments.
INPUT: Final = "transactions"
#: Answers that are remembered: a payment that is asked about again gets the same one.
_REMEMBERED: Final = 100_000
#: Of a decision, what an answer tells and a comparison looks at.
TOLD: Final = (
    "action", "score", "reasons", "rules", "rules_version", "model_score", "model_version",
)  # fmt: skip

WhenDown = Literal["refuse", "answer"]


def outputs_of(topology: Topology) -> dict[str, str]:
    """Return output → the table that it goes to."""
    return {
        output: table_name(table)
        for output, tables in topology.tables.items()
        for table in each_table(tables)
    }


def found_in(emitted: Iterable[Emission], outputs: Mapping[str, str]) -> dict[str, Any]:
    """Return what came of a payment.

    Args:
        emitted: All that came out.
        outputs: Output → table.
    """
    of_table: dict[str, Any] = {}
    for one in emitted:
        of_table.setdefault(outputs.get(one.output, ""), msgspec.json.decode(one.payload))
    if (decision := of_table.get("transactions")) is not None:
        return {"status": "decided", **{name: decision.get(name) for name in TOLD}}
    if (late := of_table.get("corrections")) is not None:
        kept = {"score": late["score"], "reasons": late["reasons"]}
        return {"status": "late", "action": late["would_be"], **kept}
    dead: Mapping[str, Any] = next((v for t, v in of_table.items() if t.startswith("dead_letters")), {})
    return {"status": dead.get("reason", "unknown"), "error": dead.get("error", "nothing was decided")}


@dataclass(slots=True)
class _Asked:
    """A payment that was asked about.

    Attributes:
        body: What it was.
        lock: Held while it is answered for the first time.
        seen: How it was run; ``None``: not yet, or it has arrived.
        told: What the answer says, as long as it is not known whether it goes on.
        sent: What it waits for to be safe; ``None``: it was not sent, or it is safe.
        is_safe: Whether it will arrive in the stream.
    """

    body: bytes
    lock: threading.Lock
    seen: Seen | None = None
    told: dict[str, Any] | None = None
    sent: Sent | None = None
    is_safe: bool = False


class Decider:
    """Decides on payments.

    Args:
        ahead: The topology, ahead of its query.
        way: How payments go on to the stream.
        journal: Where answers are written down.
        ack_s: How long an answer waits for its payment to be safe on that way, seconds.
        when_down: Where it is not by then: ``refuse`` to answer (503), or ``answer`` and go on trying.
        future_ms: Payments further ahead of the clock are refused, ms; so does the stream.
        tokens: Replaces what must not be kept, such as card numbers.
        now_ms: Now, UTC milliseconds.
    """

    def __init__(
        self,
        ahead: AheadOfQuery,
        way: Way,
        journal: Journal,
        *,
        ack_s: float = 1.0,
        when_down: WhenDown = "refuse",
        future_ms: int = 60_000,
        tokens: Callable[[bytes], bytes] = bytes,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._ahead = ahead
        self._way, self._journal = way, journal
        self._ack_s, self._when_down = ack_s, when_down
        self._future_ms, self._tokens, self._now_ms = future_ms, tokens, now_ms
        self._read = msgspec.json.Decoder(Transaction).decode
        self._asked: OrderedDict[tuple[str, str], _Asked] = OrderedDict()
        self._lock = threading.Lock()

    def decide(self, body: bytes) -> Answer:
        """Answer a payment, as JSON of the contract ``transaction``."""
        body = self._tokens(body)
        try:
            tx = self._read(body)
        except NOT_JSON as error:
            return _refused(400, f"this is no transaction: {error}")
        if tx.event_time_ms > self._now_ms() + self._future_ms:
            return _refused(400, "event_time_ms is further in the future than the stream takes it")
        asked, is_new = self._ask(tx, body)
        with asked.lock:
            if not is_new and asked.body != body and self._read(asked.body) != tx:
                return _refused(
                    409, f"transaction {tx.transaction_id} has come before, and said something else"
                )
            if asked.told is None:
                self._answer(asked, tx, body)
            return self._handed_on(asked, tx, body, again=not is_new)

    def _ask(self, tx: Transaction, body: bytes) -> tuple[_Asked, bool]:
        # The same identity on another card is another payment, as in the stream.
        key = tx.card_id, tx.transaction_id
        with self._lock:
            found = self._asked.get(key)
            if found is not None:
                return found, False
            made = self._asked[key] = _Asked(body, threading.Lock())
            while len(self._asked) > _REMEMBERED:
                self._asked.popitem(last=False)
            return made, True

    def _answer(self, asked: _Asked, tx: Transaction, body: bytes) -> None:
        """Decide, and send the payment on its way."""
        seen = self._ahead.seen_of(tx, body, tx.event_time_ms, tx.transaction_id)
        emitted, batch, waiting = self._ahead.take(seen)
        asked.seen = seen
        asked.told = {
            "transaction_id": tx.transaction_id,
            "card_id": tx.card_id,
            **found_in(emitted, outputs_of(self._ahead.topology)),
            "batch": batch,
            "seen_since": waiting,
        }

    def _handed_on(self, asked: _Asked, tx: Transaction, body: bytes, *, again: bool) -> Answer:
        told = dict(asked.told or {})
        if told["status"] in ("duplicate", "conflict") or "action" not in told:
            # The stream has it, or would put it aside as well: it is not sent once more.
            return Answer(409 if told["status"] in ("duplicate", "conflict") else 422, told)
        why = "" if asked.is_safe else self._sent(asked, tx, body)
        told |= {"handed_on": asked.is_safe, **({"repeated": True} if again else {})}
        refused = not asked.is_safe and self._when_down == "refuse"
        if not again or asked.is_safe:
            now = self._now_ms()
            line = {**told, "event_time_ms": tx.event_time_ms, "served_at_ms": now, "refused": refused}
            self._journal.write(line, now)
        if refused:
            retry = (("retry-after", "1"),)
            return Answer(503, {"error": f"the payment is not in the stream: {why}; ask again"}, retry)
        return Answer(200, told)

    def _sent(self, asked: _Asked, tx: Transaction, body: bytes) -> str:
        """Send a payment unless it is on its way; return why it is not safe, if it is not."""
        if asked.sent is None or (asked.sent.safe.done() and asked.sent.safe.exception() is not None):
            asked.sent = self._way.send(tx.card_id.encode(), body, msgspec.json.encode(asked.told))
            if asked.seen is not None:
                _when_arrived(asked.sent.place, asked.seen)
        try:
            asked.sent.safe.result(self._ack_s)
        except NotInTime:
            return f"it is not safe within {self._ack_s:g} s"
        except NotHandedOn as error:
            return str(error)
        if asked.seen is not None:
            asked.seen.is_kept = True
        # A hundred thousand are remembered: of what is safe, no more than is asked for.
        asked.is_safe, asked.seen, asked.sent = True, None, None
        return ""

    def go_on_from(self, found: Iterable[Kept]) -> None:
        """Know again what a server before this one has answered, before the first batch is read.

        Args:
            found: What its outbox holds, the oldest first.
        """
        seen = []
        for kept in found:
            try:
                tx = self._read(kept.value)
            except NOT_JSON as error:  # by a contract of before; the stream says what it makes of it
                _log.warning("a payment of the outbox is not known again: %s", error)
                continue
            one = self._ahead.seen_of(tx, kept.value, tx.event_time_ms, tx.transaction_id)
            one.place, one.is_kept = kept.place, True
            _when_arrived(kept.sent.place, one)
            seen.append(one)
            asked, _ = self._ask(tx, kept.value)
            asked.told, asked.is_safe = msgspec.json.decode(kept.note), True
        self._ahead.seen_before(seen)

    def health(self) -> dict[str, Any]:
        """Return how many payments the committed batch does not have yet, and how many the broker has not."""
        return {"seen_since": self._ahead.waiting, "waiting_for_broker": self._way.waiting}


def _when_arrived(sent: Future[Place], seen: Seen) -> None:
    def done(found: Future[Place]) -> None:
        if found.exception() is None:
            seen.place = found.result()

    sent.add_done_callback(done)


def _refused(status: int, why: str) -> Answer:
    return Answer(status, {"error": why})

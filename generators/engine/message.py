"""One message on its way from a simulation to a sink, with what is true about it beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from millrace_apps.generators.engine.simulated import Truth

#: Kafka headers, in their order.
Headers: TypeAlias = list[tuple[str, bytes]]

FaultKind = Literal[
    "late", "duplicate", "malformed", "lost", "drifted", "unknown_version", "wrong_clock", "silence"
]
Expected = Literal["late", "duplicate", "dead_letter", "absent", "accepted", "wrong_time", "either"]

#: Faults that are done to an event's own message.
_DONE_TO_EVENTS: Final = frozenset(("late", "lost", "wrong_clock"))


@dataclass(slots=True)
class Fault:
    """Something wrong that was done to a message on purpose.

    Attributes:
        kind: What was done.
        expected: What an app must make of it: send it to the side output ``late``, drop it as a
            duplicate, put it into the dead letters, never see it (``absent``), take it as valid
            (``accepted``), find it at a time that is not its own (``wrong_time``); ``either`` where a
            message came late, but no later than others that are on time.
        detail: Which variant, e.g. ``truncated_json``.
        reason: The dead letter's reason, where one is expected.
        lateness_ms: How far the event time was behind the newest one sent, ms.
    """

    kind: FaultKind
    expected: Expected
    detail: str = ""
    reason: str = ""
    lateness_ms: int = 0


class Generated:
    """A message: bytes for the sink, times for pacing, truth for the ledger.

    Attributes:
        transaction_id: Unique per event; a duplicate repeats it. Also the header ``ce_id``.
        key: Kafka key.
        value: Payload.
        headers: Kafka headers.
        event_time_ms: Event time, ms since the epoch, UTC.
        due_ms: When the message is sent, on the clock of event time, ms.
        arrival_ms: When it arrives, on that clock, ms: when it is sent, unless it is sent at another pace.
        kind: What the ledger adds ``amount`` up by; empty: it does not.
        amount: A whole number, e.g. cents.
        fault: What was done to it on purpose.
        held_until_ms: A late message waits until an event of this time has been sent, ms.
        happened_ms: When it really happened, ms: the event time, unless the device's clock is wrong.
        dropped: Noted in the ledger, but not sent.
        stream: The stream of the domain it belongs to; empty where there is one only.
        topic: Its topic; empty: the sink's own.
        truths: What the event is a part of, for domains that have several kinds.
    """

    __slots__ = (
        "_arrival_ms",
        "amount",
        "dropped",
        "due_ms",
        "event_time_ms",
        "fault",
        "happened_ms",
        "headers",
        "held_until_ms",
        "key",
        "kind",
        "stream",
        "topic",
        "transaction_id",
        "truths",
        "value",
    )

    def __init__(
        self,
        transaction_id: str,
        key: bytes,
        value: bytes,
        headers: Headers,
        event_time_ms: int,
        kind: str,
        amount: int,
        fault: Fault | None = None,
    ) -> None:
        self.transaction_id = transaction_id
        self.key = key
        self.value = value
        self.headers = headers
        self.event_time_ms = event_time_ms
        self.due_ms = self.happened_ms = event_time_ms
        self.kind = kind
        self.amount = amount
        self.fault = fault
        self.held_until_ms = 0
        self._arrival_ms: int | None = None
        self.dropped = False
        self.stream = self.topic = ""
        self.truths: tuple[Truth, ...] = ()

    @property
    def arrival_ms(self) -> int:
        """When the message arrives, on the clock of event time, ms."""
        return self.due_ms if self._arrival_ms is None else self._arrival_ms

    @arrival_ms.setter
    def arrival_ms(self, at_ms: int) -> None:
        self._arrival_ms = at_ms

    @property
    def is_event(self) -> bool:
        """Whether this is the one message of an event, and not what a stage has added beside it.

        Stages draw for events only, so that what one of them adds does not move what another does.
        """
        fault = self.fault
        return fault is None or fault.kind in _DONE_TO_EVENTS or fault.expected == "accepted"

    def again(self) -> Generated:
        """Return the same message once more, with no fault."""
        copy = Generated(
            self.transaction_id,
            self.key,
            self.value,
            self.headers,
            self.event_time_ms,
            self.kind,
            self.amount,
        )
        return copy.beside(self)

    def beside(self, other: Generated) -> Generated:
        """Take stream, topic and times of sending from another message, and return this one."""
        self.stream, self.topic = other.stream, other.topic
        self.due_ms, self.happened_ms = other.due_ms, other.happened_ms
        return self

    def __repr__(self) -> str:
        fault = f" {self.fault.kind}" if self.fault else ""
        return f"<Generated {self.transaction_id} at {self.event_time_ms}{fault}>"

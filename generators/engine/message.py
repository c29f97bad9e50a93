"""One message on its way from a simulation to a sink, with what is true about it beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

#: Kafka headers, in their order.
Headers: TypeAlias = list[tuple[str, bytes]]

FaultKind = Literal["late", "duplicate", "malformed"]
Expected = Literal["late", "duplicate", "dead_letter"]


@dataclass(slots=True)
class Fault:
    """Something wrong that was done to a message on purpose.

    Attributes:
        kind: What was done.
        expected: What an app must make of it: send it to the side output ``late``, drop it as a
            duplicate, or put it into the dead letters.
        detail: Which variant, e.g. ``truncated_json``.
        reason: The dead letter's reason, where one is expected.
        lateness_ms: How far the event time was behind the newest one sent, ms.
    """

    kind: FaultKind
    expected: Expected
    detail: str = ""
    reason: str = ""
    lateness_ms: int = 0


@dataclass(slots=True, frozen=True)
class Episode:
    """One fraud (or other business truth) that spans several events.

    Attributes:
        episode_id: Unique in its run.
        scenario: Its kind, e.g. ``card_testing``.
        card_id: The entity it happens to.
        size: How many events it has when none is cut off.
    """

    episode_id: str
    scenario: str
    card_id: str
    size: int


@dataclass(slots=True, frozen=True)
class Labels:
    """What is true about a message; never part of its bytes."""

    scenario: str | None
    episode_id: str | None
    fault: FaultKind | None


class Generated:
    """A message: bytes for the sink, times for pacing, truth for the ledger.

    Attributes:
        transaction_id: Unique per event; a duplicate repeats it. Also the header ``ce_id``.
        key: Kafka key.
        value: Payload.
        headers: Kafka headers.
        event_time_ms: Event time, ms since the epoch, UTC.
        due_ms: When the message arrives, on the clock of event time, ms.
        kind: What the ledger adds ``amount`` up by.
        amount: In the smallest unit (cents).
        episode: The truth this event belongs to.
        fault: What was done to it on purpose.
        held_until_ms: A late message waits until an event of this time has been sent, ms.
    """

    __slots__ = (
        "amount",
        "due_ms",
        "episode",
        "event_time_ms",
        "fault",
        "headers",
        "held_until_ms",
        "key",
        "kind",
        "transaction_id",
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
        episode: Episode | None = None,
        fault: Fault | None = None,
    ) -> None:
        self.transaction_id = transaction_id
        self.key = key
        self.value = value
        self.headers = headers
        self.event_time_ms = event_time_ms
        self.due_ms = event_time_ms
        self.kind = kind
        self.amount = amount
        self.episode = episode
        self.fault = fault
        self.held_until_ms = 0

    @property
    def labels(self) -> Labels:
        """What is true about this message."""
        episode = self.episode
        return Labels(
            scenario=episode.scenario if episode else None,
            episode_id=episode.episode_id if episode else None,
            fault=self.fault.kind if self.fault else None,
        )

    def __repr__(self) -> str:
        fault = f" {self.fault.kind}" if self.fault else ""
        return f"<Generated {self.transaction_id} at {self.event_time_ms}{fault}>"

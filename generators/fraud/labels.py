"""The law of labels: what becomes known about a transaction, how long after it, and how often wrongly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Final, NamedTuple

from millrace_apps.fraud.contracts.events import Label, LabelSource, Transaction
from millrace_apps.generators.engine.randomness import normal
from millrace_apps.generators.engine.simulated import Simulated, Truth

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 86_400_000

#: Frauds that an investigator looks at, and those of the others that their holders report.
FEEDBACK_OF_FRAUDS: Final = 0.35
CHARGEBACK_OF_FRAUDS: Final = 0.9
#: Genuine purchases that an investigator looks at, and those that their holders dispute all the same.
FEEDBACK_OF_GENUINE: Final = 0.002
DISPUTE_OF_GENUINE: Final = 0.0004
#: Feedback that is wrong; all of it is corrected later. Wrong disputes: only some are.
WRONG_FEEDBACK: Final = 0.04
CORRECTED_DISPUTES: Final = 0.7


class Delay(NamedTuple):
    """A lognormal delay, cut off at both ends.

    Attributes:
        median_ms: Half of the delays are below, ms.
        sigma: Standard deviation of the delay's logarithm.
        least_ms: Shortest, ms.
        most_ms: Longest, ms.
    """

    median_ms: int
    sigma: float
    least_ms: int
    most_ms: int

    def at(self, uniform: float, scale: float) -> int:
        """Return the delay at a uniform number in [0, 1), scaled, at least 1 ms."""
        delay = self.median_ms * math.exp(self.sigma * normal(uniform))
        return max(1, round(min(max(delay, self.least_ms), self.most_ms) * scale))


#: Investigators answer within hours or days.
FEEDBACK: Final = Delay(6 * _HOUR_MS, 1.0, 5 * _MINUTE_MS, 5 * _DAY_MS)
#: Holders read their statements; 120 days is the usual limit of the card schemes for a dispute.
CHARGEBACK: Final = Delay(21 * _DAY_MS, 0.6, 2 * _DAY_MS, 120 * _DAY_MS)
#: A label that was wrong stands for this long.
CORRECTION: Final = Delay(6 * _DAY_MS, 0.6, 1 * _HOUR_MS, 60 * _DAY_MS)


class Coming:
    """What will become known of transactions: the events of other streams that wait for their time.

    Holds at most half a year's worth, by the longest delays of labels.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, str, Simulated]] = []
        #: When the next becomes known, event time, ms; infinity if none waits.
        self.next_ms: float = math.inf

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, event_id: str, event: Simulated) -> None:
        """Let an event wait; of two at one time the one with the lower identity comes first."""
        heappush(self._waiting, (event.event_time_ms, event_id, event))
        self.next_ms = self._waiting[0][0]

    def until(self, at_ms: float) -> Iterator[Simulated]:
        """Yield what becomes known up to an event time, in its order."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= at_ms:
            event = heappop(waiting)[2]
            self.next_ms = waiting[0][0] if waiting else math.inf
            yield event


class Labels:
    """The labels that will become known.

    Args:
        scale: Factor on all delays; 0: none is told.
        coming: Where they wait.
    """

    def __init__(self, scale: float, coming: Coming) -> None:
        self._scale, self._coming = scale, coming

    def fraud(self, event: Transaction, draw: Callable[[], float]) -> None:
        """Plan what becomes known about a fraud; takes four random numbers."""
        outcome, delay, wrong, correction = draw(), draw(), draw(), draw()
        if outcome < FEEDBACK_OF_FRAUDS:
            self._feedback(event, True, delay, wrong, correction)
        elif outcome < FEEDBACK_OF_FRAUDS + (1 - FEEDBACK_OF_FRAUDS) * CHARGEBACK_OF_FRAUDS:
            at_ms = event.event_time_ms + CHARGEBACK.at(delay, self._scale)
            self._add(event, at_ms, True, "chargeback", None)

    def genuine(self, event: Transaction, chance: float, draw: Callable[[], float], *, known: bool) -> None:
        """Plan what becomes known about a genuine purchase; takes three random numbers.

        Args:
            event: The purchase.
            chance: A uniform number below :data:`LABELLED_GENUINE`.
            draw: Source of the others.
            known: Whether the purchase is sent at all; the numbers are taken anyway.
        """
        delay, wrong, correction = draw(), draw(), draw()
        if not known:
            return
        if chance < FEEDBACK_OF_GENUINE:
            self._feedback(event, False, delay, wrong, correction)
            return
        at_ms = event.event_time_ms + CHARGEBACK.at(delay, self._scale)
        truth = self._add(event, at_ms, True, "chargeback", _wrong(event, wrong < CORRECTED_DISPUTES))
        if wrong < CORRECTED_DISPUTES:
            self._correct(event, at_ms, False, correction, truth)

    def _feedback(
        self, event: Transaction, is_fraud: bool, delay: float, wrong: float, correction: float
    ) -> None:
        at_ms = event.event_time_ms + FEEDBACK.at(delay, self._scale)
        if wrong >= WRONG_FEEDBACK:
            self._add(event, at_ms, is_fraud, "feedback", None)
            return
        truth = self._add(event, at_ms, not is_fraud, "feedback", _wrong(event, True))
        self._correct(event, at_ms, is_fraud, correction, truth)

    def _correct(
        self, event: Transaction, wrong_ms: int, is_fraud: bool, uniform: float, truth: Truth | None
    ) -> None:
        self._add(event, wrong_ms + CORRECTION.at(uniform, self._scale), is_fraud, "correction", truth)

    def _add(
        self, event: Transaction, at_ms: int, is_fraud: bool, source: LabelSource, truth: Truth | None
    ) -> Truth | None:
        first = f"{event.transaction_id}-l1"
        is_second = source == "correction"
        label = Label(
            f"{event.transaction_id}-l2" if is_second else first,
            at_ms,
            event.transaction_id,
            event.event_time_ms,
            event.card_id,
            event.terminal_id,
            is_fraud,
            source,
            first if is_second else None,
        )
        if self._scale:
            truths = () if truth is None else (truth,)
            self._coming.add(label.label_id, Simulated("labels", event.card_id, label, at_ms, truths))
        return truth


#: Chance that anything becomes known about a genuine purchase.
LABELLED_GENUINE: Final = FEEDBACK_OF_GENUINE + DISPUTE_OF_GENUINE


def _wrong(event: Transaction, corrected: bool) -> Truth:
    return Truth(
        truth_id=f"{event.transaction_id}-wrong",
        kind="wrong_label",
        entity=event.transaction_id,
        expected="correction" if corrected else "",
        detail={"card_id": event.card_id, "corrected": corrected},
    )

"""Findings of an audit from the topics: a row for each violation, with its reason."""

from __future__ import annotations

from typing import Final

import msgspec

#: Reason → invariant that does not hold, and what the reason says.
REASONS: Final[dict[str, tuple[int, str]]] = {
    "two_commitments": (1, "a driver was offered a ride while another one was open"),
    "silent": (2, "no sign of life of the driver within the time to live"),
    "off_line": (2, "the driver had gone off line"),
    "not_free": (2, "the phone did not say that the driver is free"),
    "too_far": (2, "farther from the pick-up than the radius"),
    "distance": (2, "the distance told is that of no place where the driver may have been"),
    "class": (2, "the car is of a class that does not serve the request"),
    "blocked": (2, "an operator had blocked the driver"),
    "apart": (2, "the rider and the driver were never to meet"),
    "blacked_out": (2, "an operator had closed the zone of the pick-up"),
    "cooling": (2, "the driver had lost this request less than the cool-down ago"),
    "pick_up": (2, "the place is not where the rider asked to be picked up"),
    "out_of_turn": (2, "at a venue somebody else had waited longer in line, and could have been asked"),
    "taken_from_line": (2, "a driver who waits in the line of a venue was asked for a ride from elsewhere"),
    "forbidden_step": (3, "a step that is not in the table of states, or not after the one before"),
    "no_cause": (3, "a step for which nothing on the topics is a reason"),
    "two_ends": (3, "a request has ended twice"),
    "no_effect": (4, "an event should have changed a trip, and did not"),
    "overtime": (4, "an offer, approach, trip or search is open for longer than it may be"),
    "expiry": (4, "an offer does not end when it should"),
    "not_told": (4, "a driver or rider was not told that it is over"),
    "told_wrongly": (4, "a driver was told of an end that there was not"),
    "unheard": (6, "a request of which no trip says anything"),
    "no_request": (6, "an offer, assignment or trip of a request that nobody made"),
    "not_as_asked": (6, "a trip says other than the request: rider, class, zone or time"),
    "waited": (7, "a driver was searched for longer than the patience"),
    "offer_alone": (8, "an offer that is no step of a trip, or a second one for the same step"),
    "offer_missing": (8, "a step says that there was an offer, and there was none"),
    "assignment_alone": (8, "an assignment that is no step of a trip, or a second one for the same step"),
    "assignment_missing": (8, "a step says that a driver has accepted, and no assignment was told"),
    "attempts": (8, "attempts of a request do not count up by one"),
    "wait": (10, "the wait that is told is not that from the wanted time to the pick-up"),
    "two_requests": (11, "a rider had two open requests"),
}


class Violated(msgspec.Struct, frozen=True, gc=False):
    """An invariant that does not hold, by what stands on the topics.

    Attributes:
        reason: Of :data:`REASONS`.
        invariant: Its number, as in the README.
        request_id: The request; empty: of none.
        driver_id: The driver; empty: of none.
        attempt: The attempt; 0: of none.
        at_ms: When, UTC ms.
        detail: What was found, in words and figures.
    """

    reason: str
    invariant: int
    request_id: str
    driver_id: str
    attempt: int
    at_ms: int
    detail: str


class Findings:
    """Collects violations.

    >>> found = Findings()
    >>> found.add("silent", 5, "nothing for 300 s", request_id="r1", driver_id="d1", attempt=1)
    >>> found.rows[0].invariant, found.by_reason()
    (2, {'silent': 1})
    """

    def __init__(self) -> None:
        self.rows: list[Violated] = []

    def add(
        self, reason: str, at_ms: int, detail: str, *, request_id: str = "", driver_id: str = "",
        attempt: int = 0,
    ) -> None:  # fmt: skip
        """Take note of a violation; see :class:`Violated`."""
        invariant, _ = REASONS[reason]
        self.rows.append(Violated(reason, invariant, request_id, driver_id, attempt, at_ms, detail))

    def by_reason(self) -> dict[str, int]:
        """Return how many violations have each reason; reasons without any are left out."""
        found: dict[str, int] = {}
        for row in self.rows:
            found[row.reason] = found.get(row.reason, 0) + 1
        return dict(sorted(found.items()))

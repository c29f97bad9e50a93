"""The states of a ride and which may follow which: the whole table, and nothing beside it."""

from __future__ import annotations

from typing import Final

from millrace_apps.ridesharing.contracts.records import RideState

#: State → what may follow; what is not here does not happen.
TRANSITIONS: Final[dict[str, frozenset[RideState]]] = {
    "": frozenset({"booked", "processing", "refused"}),
    "booked": frozenset({"processing", "accepted", "rider_cancelled", "operator_cancelled", "refused"}),
    "processing": frozenset(
        {"offered", "accepted", "rider_cancelled", "operator_cancelled", "no_drivers_available"}
    ),
    "offered": frozenset(
        {
            "processing",
            "accepted",
            "rider_cancelled",
            "operator_cancelled",
            "no_drivers_available",
        }
    ),
    "accepted": frozenset(
        {
            "arrived",
            "in_progress",
            "completed",
            "processing",
            "no_show",
            "rider_cancelled",
            "operator_cancelled",
            "no_drivers_available",
        }
    ),
    "arrived": frozenset(
        {
            "in_progress",
            "completed",
            "processing",
            "no_show",
            "rider_cancelled",
            "operator_cancelled",
            "no_drivers_available",
        }
    ),
    "in_progress": frozenset({"completed", "lost"}),
    "completed": frozenset(),
    "rider_cancelled": frozenset(),
    "no_show": frozenset(),
    "operator_cancelled": frozenset(),
    "no_drivers_available": frozenset(),
    "lost": frozenset(),
    "refused": frozenset(),
}

#: States after which nothing more happens to a request.
TERMINAL: Final = frozenset(state for state, after in TRANSITIONS.items() if not after)
#: States in which a driver is bound to the request.
COMMITTED: Final = frozenset({"offered", "accepted", "arrived", "in_progress"})


def may_follow(before: str, after: str) -> bool:
    """Return whether a state may follow another.

    >>> may_follow("offered", "accepted"), may_follow("in_progress", "rider_cancelled")
    (True, False)
    """
    return after in TRANSITIONS.get(before, frozenset())

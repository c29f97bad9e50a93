"""Lists that were shown against clicks: which list a click counts for, and what the arms are worth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from millrace.experiments import Experiment, Exposure, Outcome, Report, compare
from millrace_apps.clickstream.recommend.filters import POPULAR

#: What the arms are dealt by.
EXPERIMENT: Final = "recommendations"
#: The arms beside ``popular``: as recommended, and without a model that orders the candidates.
LEARNED: Final = "learned"
UNLEARNED: Final = "unlearned"
#: So many lists of a surface may be clicked in a visit, the last ones.
MOST_OPEN: Final = 8


class Shown(msgspec.Struct, array_like=True):
    """A list that may be clicked.

    Attributes:
        cause: The click that it was made at.
        at: When, UTC ms.
        items: Its items.
        clicked: Whether one of them was looked at.
    """

    cause: str
    at: int
    items: list[str]
    clicked: bool = False


class Shows(msgspec.Struct, array_like=True):
    """What is counted of the lists of one surface and arm that were shown in a time.

    Attributes:
        lists: How many they are.
        clicked: How many were clicked.
        ranks: Sum of the places, from 1, of what was clicked.
    """

    lists: int = 0
    clicked: int = 0
    ranks: int = 0


def shown_then(lists: Sequence[Shown], one: Shown) -> list[Shown]:
    """Return the lists that may be clicked once another one is shown."""
    return [*lists[1 - MOST_OPEN :], one]


def clicked_in(lists: Sequence[Shown], item: str) -> Shown | None:
    """Return the list that a look at an item is the click of, and take that down; ``None`` for none.

    That is the newest list that has the item, because the page shows no other one any more; of a list one
    click counts.

    Args:
        lists: Lists of one surface that may be clicked, oldest first.
        item: What is looked at.

    Example:
        >>> lists = [Shown("c1", 0, ["shoe", "sock"]), Shown("c2", 5, ["shoe"])]
        >>> [one and one.cause for one in (clicked_in(lists, item) for item in ("shoe", "shoe", "sock"))]
        ['c2', None, 'c1']
    """
    for one in reversed(lists):
        if item in one.items:
            if one.clicked:
                return None
            one.clicked = True
            return one
    return None


def arms_of(control: float, unlearned: float) -> Experiment:
    """Return the experiment that lists are.

    Args:
        control: Share of the persons to whom only what is popular is shown.
        unlearned: Share of the persons whose candidates no model orders.

    Example:
        >>> arms_of(0.0, 1.0).arm("u:ann"), arms_of(1.0, 0.0).arm("u:ann"), arms_of(0.0, 0.0).arm("u:ann")
        ('unlearned', 'popular', 'learned')
    """
    rest = max(0.0, 1.0 - control - unlearned)
    return Experiment(EXPERIMENT, {POPULAR: control, UNLEARNED: unlearned, LEARNED: rest})


def compared(
    lists: Iterable[Mapping[str, Any]],
    clicks: Iterable[Mapping[str, Any]],
    arms: Experiment,
    control: str,
    *,
    until_ms: int,
    matures_ms: int,
) -> dict[str, Report]:
    """Return what the arms are worth by surface: clicks on lists per person.

    Args:
        lists: Rows with ``surface``, ``arm``, ``person`` and ``event_time_ms``.
        clicks: Rows with ``surface``, ``person`` and ``event_time_ms``.
        arms: The experiment.
        control: The arm that others are compared with.
        until_ms: Up to when all is known, UTC ms.
        matures_ms: So long after the first list of a person clicks count, ms.

    Returns:
        Surface → the report of the core's experiments.
    """
    shown: dict[str, list[Exposure]] = {}
    done: dict[str, list[Outcome]] = {}
    for row in lists:
        one = Exposure(arms.name, row["person"], row["arm"], row["event_time_ms"])
        shown.setdefault(row["surface"], []).append(one)
    for row in clicks:
        done.setdefault(row["surface"], []).append(Outcome(row["person"], row["event_time_ms"]))
    return {
        surface: compare(
            arms, exposures, done.get(surface, ()), until_ms=until_ms, matures_ms=matures_ms, control=control
        )
        for surface, exposures in sorted(shown.items())
    }

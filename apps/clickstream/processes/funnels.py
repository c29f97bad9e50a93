"""Funnels: how far sessions come on a way of steps, where they leave it, and how long each step takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec

from millrace.errors import UserError

#: What an event is to a funnel. An event has at most one of these names.
STEPS: Final = ("landing", "category", "search", "item", "cart", "checkout", "delivery", "payment",
                "purchase")  # fmt: skip
_CHECKOUT: Final = {"address": "checkout", "delivery": "delivery", "payment": "payment"}
_VIEWS: Final = {"home": "landing", "category": "category", "item": "item"}
_ACTIONS: Final = {"add_to_cart": "cart", "purchase": "purchase", "search": "search"}


class FunnelError(UserError):
    """A funnel that says nothing."""


@dataclass(frozen=True)
class Funnel:
    """A way through the shop.

    Attributes:
        name: Its name.
        steps: Names of the steps, from :data:`STEPS`, each once.
        within_ms: In what time after a first step all others must be done, ms.
        strict: Nothing else that is a step of this funnel may come between two steps; otherwise steps may
            be repeated and come again.
    """

    name: str
    steps: tuple[str, ...]
    within_ms: int = 30 * 60_000
    strict: bool = False

    def __post_init__(self) -> None:
        unknown = [step for step in self.steps if step not in STEPS]
        if unknown:
            raise FunnelError(f"funnel {self.name}: no step '{unknown[0]}'; there are {', '.join(STEPS)}")
        if len(self.steps) < 2 or len(set(self.steps)) < len(self.steps):
            raise FunnelError(f"funnel {self.name} needs two steps or more, each once")
        if self.within_ms <= 0:
            raise FunnelError(f"funnel {self.name} needs time: within is {self.within_ms} ms")


PURCHASE: Final = Funnel("purchase", ("item", "cart", "checkout", "payment", "purchase"), 60 * 60_000)


class FunnelResult(msgspec.Struct, frozen=True, gc=False):
    """How far a session came; a row by ``funnel`` and ``session_id``, the highest ``revision`` holds.

    Attributes:
        funnel: The funnel.
        session_id: The session.
        visitor_id: The visitor.
        arm: Arm of the experiment that the visitor is in.
        reached: How many steps were done; 1 is the first.
        steps: How many there are.
        reached_step: The last one done.
        dropped_at: The first one not done; ``None``: all were.
        step_ms: How long after the step before each was done, ms; without the first.
        entered_ms: When the first was done, UTC ms.
        revision: Grows with every row of the session.
        deleted: The row is none any more: its session is part of another.
    """

    funnel: str
    session_id: str
    visitor_id: str
    arm: str
    reached: int
    steps: int
    reached_step: str
    dropped_at: str | None
    step_ms: list[int]
    entered_ms: int
    revision: int
    deleted: bool = False


def step_of(event_type: str, page_type: str, checkout_step: str | None) -> str | None:
    """Return which step an event is.

    >>> step_of("page_view", "item", None), step_of("checkout", "checkout", "address")
    ('item', 'checkout')
    """
    if event_type == "page_view":
        return _VIEWS.get(page_type)
    if event_type == "checkout":
        return _CHECKOUT.get(checkout_step or "")
    return _ACTIONS.get(event_type)


def walk(funnel: Funnel, marks: dict[str, list[int]]) -> list[int]:
    """Return when the steps of a funnel were done, ms: as many as were reached.

    The time of the funnel may begin whenever the first step is done; the earliest beginning that leads
    furthest counts.

    Args:
        funnel: The funnel.
        marks: Step → its times in one session, ascending.

    Example:
        >>> funnel = Funnel("f", ("item", "cart", "purchase"), 1_000)
        >>> walk(funnel, {"item": [5], "cart": [1, 9], "purchase": []})
        [5, 9]
        >>> walk(funnel, {"item": [5, 1_500], "cart": [1_600], "purchase": [2_000]})
        [1500, 1600, 2000]
    """
    best: list[int] = []
    for first in marks.get(funnel.steps[0], ()):
        done = walk_from(funnel, marks, first)
        if len(done) > len(best):
            best = done
        if len(done) == len(funnel.steps):
            break
    return best


def walk_from(funnel: Funnel, marks: Mapping[str, Sequence[int]], first: int) -> list[int]:
    """Return when the steps of a funnel were done, ms, that is begun at one time of its first step.

    Args:
        funnel: The funnel.
        marks: Step → its times, ascending.
        first: The time.
    """
    done = [first]
    last = first + funnel.within_ms
    for place, step in enumerate(funnel.steps[1:], 1):
        at = next((t for t in marks.get(step, ()) if done[-1] <= t <= last), None)
        if at is None or (funnel.strict and _between(funnel.steps, place, marks, done[-1], at)):
            break
        done.append(at)
    return done


def _between(
    steps: Sequence[str], place: int, marks: Mapping[str, Sequence[int]], after: int, until: int
) -> bool:
    """Tell whether a step other than the next and the one before comes strictly between two times."""
    others = [*steps[: place - 1], *steps[place + 1 :]]
    return any(after < t < until for step in others for t in marks.get(step, ()))


def result(
    funnel: Funnel, marks: dict[str, list[int]], session_id: str, visitor_id: str, arm: str, revision: int,
    *, deleted: bool = False,
) -> FunnelResult | None:  # fmt: skip
    """Return a session's row; ``None`` if it did not enter the funnel."""
    done = walk(funnel, marks)
    if not done:
        return None
    reached = len(done)
    return FunnelResult(
        funnel=funnel.name,
        session_id=session_id,
        visitor_id=visitor_id,
        arm=arm,
        reached=reached,
        steps=len(funnel.steps),
        reached_step=funnel.steps[reached - 1],
        dropped_at=funnel.steps[reached] if reached < len(funnel.steps) else None,
        step_ms=[b - a for a, b in pairwise(done)],
        entered_ms=done[0],
        revision=revision,
        deleted=deleted,
    )

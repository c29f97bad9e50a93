"""After-match skip strategies: which partial matches go when a match has been found.

The first event of a match is its *start*. With any strategy but :func:`no_skip`, matches are reported in
order of their starts: one whose start comes later waits until no partial match with an earlier start is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Skip:
    """An after-match skip strategy, as plain data.

    Attributes:
        kind: What goes.
        name: Part that ``to_first`` and ``to_last`` skip to.
    """

    kind: Literal["no_skip", "to_next", "past_last", "to_first", "to_last"]
    name: str = ""


def no_skip() -> Skip:
    """Keep all: every possible match is reported."""
    return Skip("no_skip")


def skip_to_next() -> Skip:
    """Drop the partial matches with the same start: at most one match begins with an event."""
    return Skip("to_next")


def skip_past_last() -> Skip:
    """Drop the partial matches that began before the match ended: no event is in two matches."""
    return Skip("past_last")


def skip_to_first(name: str) -> Skip:
    """Drop the partial matches that began before the match's first event for the part ``name``.

    A match that has no event for it drops nothing.
    """
    return Skip("to_first", name)


def skip_to_last(name: str) -> Skip:
    """Drop the partial matches that began before the match's last event for the part ``name``."""
    return Skip("to_last", name)

"""Counts of dead letters: by reason and hour, and by the error behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from millrace.dead_letters.letters import Letter

_HOUR_MS = 3_600_000


@dataclass
class ErrorGroup:
    """Dead letters of one cause.

    Attributes:
        reason: Why, in one word.
        process: Name of the process.
        digest: Digest of the error; empty where there was no exception.
        count: How many.
        example: The error of the first one.
        letter_id: Identity of the first one.
    """

    reason: str
    process: str
    digest: str
    count: int
    example: str
    letter_id: str


@dataclass
class Stats:
    """Counts of dead letters.

    Attributes:
        total: How many.
        reasons: By reason.
        stages: By stage.
        hours: By hour of writing (UTC milliseconds of its begin) and reason.
        groups: By cause: reason, process and digest of the error.
    """

    total: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    hours: Counter[tuple[int, str]] = field(default_factory=Counter)
    groups: dict[tuple[str, str, str], ErrorGroup] = field(default_factory=dict)

    def most(self, top: int) -> list[ErrorGroup]:
        """Return the causes of most dead letters, largest first."""
        return sorted(self.groups.values(), key=lambda g: (-g.count, g.reason, g.digest))[:top]


def stats_of(letters: Iterable[Letter]) -> Stats:
    """Return counts of dead letters.

    Args:
        letters: The dead letters; needed of each are id, time, reason, stage, process, error and digest.
    """
    found = Stats()
    for letter in letters:
        found.total += 1
        found.reasons[letter.reason] += 1
        found.stages[letter.stage] += 1
        found.hours[letter.written_ms // _HOUR_MS * _HOUR_MS, letter.reason] += 1
        cause = letter.reason, letter.process, letter.error_digest
        if (group := found.groups.get(cause)) is not None:
            group.count += 1
        else:
            found.groups[cause] = ErrorGroup(*cause, 1, letter.error, letter.letter_id)
    return found


def at(time_ms: int) -> str:
    """Return a time as text, UTC.

    >>> at(1_767_225_600_000)
    '2026-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

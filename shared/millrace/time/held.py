"""Bounded device times: what a device says of its time, held to when somebody else received it."""

from __future__ import annotations

from typing import Any, Self


class HeldTime(str):
    """The name of a field with an event's time, which is held to when the event was received.

    Where the two are further apart than a limit the event counts as of when it was received. A time that is
    ahead of its receipt is surely wrong; one that is behind may as well be late, so it is only held where
    that is asked for. An event that does not say when it was received keeps its time.

    Args:
        name: The field.
        received: The field that says when it was received, UTC milliseconds, on a clock that is right.
        limit_ms: How far the two may be apart, ms.
        behind: Whether times that are behind are held as well.

    Example:
        >>> at = HeldTime("at", "received", 5_000)
        >>> at, at.held(9_000, 1_000), at.held(6_000, 1_000), at.held(1_000, 99_000), at.held(7, None)
        ('at', 1000, 6000, 1000, 7)
        >>> HeldTime("at", "received", 5_000, behind=True).held(1_000, 99_000)
        99000
    """

    received: str
    limit_ms: int
    behind: bool

    def __new__(cls, name: str, received: str, limit_ms: int, *, behind: bool = False) -> Self:
        """Make it."""
        made = super().__new__(cls, name)
        made.received, made.limit_ms, made.behind = received, limit_ms, behind
        return made

    def __reduce__(self) -> Any:
        """Return how it is made again."""
        return _made, (str(self), self.received, self.limit_ms, self.behind)

    def held(self, at: int | None, received: int | None) -> int | None:
        """Return the time that counts, ms."""
        if at is None or received is None:
            return at
        if at - received > self.limit_ms or (self.behind and received - at > self.limit_ms):
            return received
        return at


def _made(name: str, received: str, limit_ms: int, behind: bool) -> HeldTime:
    return HeldTime(name, received, limit_ms, behind=behind)

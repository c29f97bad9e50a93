"""Clock skew of devices against the gateway that hears them.

An event's time is by its device's clock, its time of receipt by the gateway's. What lies between them is the
device's error less the way: the largest of some minutes is the error less the shortest way. One that is ahead
is surely wrong; one that is behind may be late instead, and is judged by whole minutes in which nothing came
sooner.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: Differences are kept by panes of this length, ms: the one that is filling, and the one before it.
PANE_MS: Final = 60_000
_NONE: Final = -(2**62)


class ClockOffset(msgspec.Struct, frozen=True, gc=False):
    """How far a device's clock is from its gateway's; the newest row of a device counts.

    Attributes:
        device_id: The machine or gateway.
        offset_ms: By how much it is ahead, ms; behind: negative, with the shortest way of its events.
        wrong: Whether that is more than a plant allows.
        event_time_ms: When it was found.
        plant_id: The site.
        line_id: Its line.
    """

    device_id: str
    offset_ms: int
    wrong: bool
    event_time_ms: int
    plant_id: str
    line_id: str


class Clock(msgspec.Struct, array_like=True, gc=False):
    """The clock of one device.

    Attributes:
        pane: Number of the pane that is filling.
        newest: Its largest difference, ms.
        before: That of the pane before it.
        told: What was told last, ms.
        wrong: Whether it was told to be wrong.

    Example:
        >>> clock = Clock()
        >>> [clock.hear(at, at + ahead, 5_000) for at, ahead in ((0, -40), (10, 29_900), (60_000, 29_950))]
        [False, True, False]
        >>> clock.offset, clock.wrong
        (29950, True)
    """

    pane: int = -1
    newest: int = _NONE
    before: int = _NONE
    told: int = _NONE
    wrong: bool = False

    @property
    def offset(self) -> int:
        """The largest difference of late, ms."""
        return max(self.newest, self.before)

    def hear(self, now: int, event_time: int, limit: int, received: int | None = None) -> bool:
        """Take an event; return whether there is something to tell.

        Args:
            now: When it is handled on the clock of the events, ms.
            event_time: Its time, ms.
            limit: How far a clock may be off, ms.
            received: When the gateway received it, ms; ``None``: now.
        """
        difference = event_time - (now if received is None else received)
        pane = max(now // PANE_MS, self.pane)
        if pane != self.pane:
            self.before = self.newest if pane == self.pane + 1 else _NONE
            self.pane, self.newest = pane, difference
        elif difference > self.newest:
            self.newest = difference
        offset, whole = self.offset, self.before != _NONE
        wrong = offset > limit or (offset < -limit and (whole or self.wrong))
        first = whole and self.told == _NONE
        if wrong == self.wrong and not first and (self.told == _NONE or abs(offset - self.told) <= limit):
            return False
        self.told, self.wrong = offset, wrong
        return True


class ClockStore(msgspec.Struct, array_like=True):
    """The clocks of the devices of an entity.

    Attributes:
        kept: Device → clock.
    """

    kept: dict[str, Clock] = {}

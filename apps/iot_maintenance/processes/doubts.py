"""Devices and points that nobody has registered, each told once.

Master data move no clock: they are often read after the readings of their time. So what seems to be in no
registry is doubted first, and told once event time has gone on for a while (``monitor.notice_after``) without
the registry having said otherwise. What is told, and of when, then hangs on times of events alone; only of
master data that are read later than that is a notice there that is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from millrace_apps.iot_maintenance.state.assets import What

#: So many things of a kind are told of one asset, and so many wait for what the registry says: of whom no
#: registry has been read yet all are doubted that are heard.
MOST: Final = 64
MOST_DOUBTED: Final = 2_048
#: Kind → how it is kept.
_MARKS: Final[Mapping[What, str]] = {
    "unknown_asset": "a",
    "unknown_point": "p",
    "unknown_device": "d",
    "unknown_status": "s",
}
_KINDS: Final[Mapping[str, What]] = {mark: what for what, mark in _MARKS.items()}


class Doubts(msgspec.Struct, array_like=True):
    """What is doubted of an asset, and what was told of it.

    Attributes:
        since: Mark of the kind and name → when it was met first, ms.
        told: The same → of when the notice is that was told, ms.
        lacked: The same → since when the registry says what there is of the kind without it, ms: that it says
            so again changes nothing.

    Example:
        >>> doubts = Doubts()
        >>> doubts.add("unknown_point", "flow", 7), doubts.add("unknown_point", "flow", 9)
        (True, False)
        >>> list(doubts.open())
        [('unknown_point', 'flow', 7)]
        >>> doubts.tell("unknown_point", "flow", 20)
        >>> list(doubts.open()), doubts.drop("unknown_point", "flow")
        ([], 20)
    """

    since: dict[str, int] = {}
    told: dict[str, int] = {}
    lacked: dict[str, int] = {}

    def add(self, what: What, name: str, at: int) -> bool:
        """Doubt something that was met at a time, ms; return whether that is new."""
        mark = _MARKS[what]
        if mark + name in self.since or sum(key[0] == mark for key in self.since) >= MOST_DOUBTED:
            return False
        self.since[mark + name] = at
        return True

    def all(self) -> Iterator[tuple[What, str, int]]:
        """Yield kind, name and when it was met first, ms, of all that is doubted or was told."""
        for key in sorted(self.since):
            yield _KINDS[key[0]], key[1:], self.since[key]

    def open(self) -> Iterator[tuple[What, str, int]]:
        """Yield the same of what was not told yet."""
        return ((what, name, at) for what, name, at in self.all() if _MARKS[what] + name not in self.told)

    def lacks(self, what: What, name: str, at: int) -> int:
        """Take that the registry does not have something at a time, ms; return since when it has not."""
        return self.lacked.setdefault(_MARKS[what] + name, at)

    def may_tell(self, what: What) -> bool:
        """Return whether so few things of a kind were told that one more may be."""
        return sum(key[0] == _MARKS[what] for key in self.told) < MOST

    def tell(self, what: What, name: str, of: int) -> None:
        """Take that something is told with a time, ms."""
        self.told[_MARKS[what] + name] = of

    def stand_for(self, what: What, name: str, to: str) -> None:
        """Doubt under another name, too, what is doubted, since when it was met."""
        mark = _MARKS[what]
        for kept in (self.since, self.lacked):
            kept.pop(mark + to, None)
            if mark + name in kept:
                kept[mark + to] = kept[mark + name]

    def untell(self, what: What, name: str) -> int | None:
        """Doubt something on of which the registry says nothing any more; return as :meth:`drop` does."""
        self.lacked.pop(_MARKS[what] + name, None)
        return self.told.pop(_MARKS[what] + name, None)

    def drop(self, what: What, name: str) -> int | None:
        """Doubt something no more; return with which time it was told, ms, ``None`` if it was not."""
        self.since.pop(_MARKS[what] + name, None)
        self.lacked.pop(_MARKS[what] + name, None)
        return self.told.pop(_MARKS[what] + name, None)

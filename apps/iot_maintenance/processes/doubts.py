"""What is found that nobody has registered, and has not been told yet.

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

#: So many things of a kind are doubted of one asset.
MOST: Final = 64
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

    def add(self, what: What, name: str, at: int) -> bool:
        """Doubt something that was met at a time, ms; return whether that is new."""
        mark = _MARKS[what]
        if mark + name in self.since or sum(key[0] == mark for key in self.since) >= MOST:
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

    def tell(self, what: What, name: str, of: int) -> None:
        """Take that something is told with a time, ms."""
        self.told[_MARKS[what] + name] = of

    def drop(self, what: What, name: str) -> int | None:
        """Doubt something no more; return with which time it was told, ms, ``None`` if it was not."""
        self.since.pop(_MARKS[what] + name, None)
        return self.told.pop(_MARKS[what] + name, None)

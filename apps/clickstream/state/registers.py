"""The consent register of a person over all browsers: per purpose the last word holds.

A register of that kind needs no order: of two answers about a purpose the one of the later moment wins, of
one moment the withdrawal, and a repeat changes nothing. Withdrawals are kept as long as anything of a person
is, so that an older grant that comes later never brings back what was withdrawn.

Source: Shapiro, Preguiça, Baquero, Zawirski, *A comprehensive study of Convergent and Commutative Replicated
Data Types*, INRIA RR-7506, 2011, section 3.2.1 (LWW-Register).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Final

import msgspec

from millrace_apps.clickstream.state.consent import BITS, OFFER, STITCH

#: So many answers about a purpose are kept, the last ones: what was in force before them is not asked.
MOST_ANSWERS: Final = 16

#: When it was said (UTC ms), and whether it takes back: in this order the last one holds.
Entry = tuple[int, bool]


class Register(msgspec.Struct, array_like=True, gc=False):
    """The answers of a person.

    Attributes:
        said: Of each purpose, in the order of :data:`~millrace_apps.clickstream.state.consent.BITS`, the last
            answers.
    """

    said: list[list[Entry]] = []

    def take(self, bits: int, at_ms: int, granted: bool) -> int:
        """Take an answer; return of which purposes, as bits, it is what holds now.

        Args:
            bits: The purposes that it names.
            at_ms: When it was said, UTC ms.
            granted: Given, or withdrawn.

        Example:
            >>> register = Register()
            >>> register.take(7, 20, False), register.take(4, 10, True), register.take(4, 20, True)
            (7, 0, 0)
            >>> register.refuses(4), register.refuses(4, 15), register.refuses(4, 19)
            (True, True, True)
        """
        if not self.said:
            self.said = [[] for _ in BITS]
        entry, news = (at_ms, not granted), 0
        for kept, bit in zip(self.said, BITS.values(), strict=True):
            if not bits & bit or entry in kept:
                continue
            insort(kept, entry)
            if kept[-1] == entry:
                news |= bit
            del kept[:-MOST_ANSWERS]
        return news

    def refuses(self, bits: int, at_ms: int | None = None) -> bool:
        """Tell whether one of some purposes is withdrawn now, or was at a moment; of no answer it is not.

        Args:
            bits: The purposes.
            at_ms: The moment, UTC ms; what was withdrawn since is refused, too.
        """
        for kept, bit in zip(self.said, BITS.values(), strict=False):
            if not bits & bit or not kept:
                continue
            if kept[-1][1]:
                return True
            if at_ms is not None:
                place = bisect_right(kept, (at_ms, True))
                if place and kept[place - 1][1]:
                    return True
        return False

    @property
    def refused(self) -> int:
        """What is withdrawn now, as bits."""
        return sum(bit for bit in BITS.values() if self.refuses(bit))

    def entries(self) -> list[tuple[int, int, bool]]:
        """Return what holds: purpose as a bit, when it was said, whether it was given."""
        held = zip(self.said, BITS.values(), strict=False)
        return [(bit, kept[-1][0], not kept[-1][1]) for kept, bit in held if kept]

    def no_profile(self, at_ms: int) -> bool:
        """Tell whether nothing may be known of what was done at a moment, UTC ms."""
        return self.refuses(STITCH, at_ms)

    def no_offer(self, at_ms: int) -> bool:
        """Tell whether nothing may be offered for what was done at a moment, UTC ms."""
        return self.refuses(OFFER, at_ms)

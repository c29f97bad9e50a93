"""The last 30 days of an entity: a card, an account, a terminal, a device, an IP address."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import msgspec

from millrace.parts.lookback import Look, LookBack
from millrace.parts.tail import Tail
from millrace_apps.fraud.state.kinds import UNKNOWN_KIND

DAY_MS: Final = 86_400_000
#: The longest window.
HORIZON_MS: Final = 30 * DAY_MS
#: Most purchases kept one by one of an entity, and of a card; older ones are counted in panes.
MAX_KEPT: Final = 500
MAX_KEPT_OF_CARD: Final = 1_000
#: Most kinds of purchases that a card's history tells apart.
MAX_KINDS: Final = 256


class History(LookBack, array_like=True, dict=True):
    """Purchases of the last 30 days: amounts are cents, links whom they had to do with.

    Attributes:
        balance: What has come in, less what has gone out, cents.
        tail: What is older than the purchases that are kept one by one; ``None``: nothing is.
        kinds: Of a card: which of ``known`` each purchase is, a byte each; empty: all are the first.
        known: The kinds of its purchases (see :mod:`millrace_apps.fraud.state.kinds`).
    """

    balance: int = 0
    tail: Tail | None = None
    kinds: bytes = b""
    known: list[int] = msgspec.field(default_factory=list)

    def add(self, at: int, amount: int = 0, links: tuple[int, ...] = ()) -> None:
        """Insert a purchase after those of its time (see :meth:`millrace.parts.lookback.LookBack.add`)."""
        super().add(at, amount, links)
        if self.tail is not None:
            self.tail.seen_again(at, links)

    def add_of_kind(self, at: int, cents: int, links: tuple[int, ...], kind: int) -> None:
        """Insert a purchase of a card.

        Args:
            at: Its time, ms.
            cents: Its amount.
            links: Whom it had to do with.
            kind: Its kind.
        """
        times = self.columns.times
        place = len(times) if not times or times[-1] <= at else bisect_right(times, at)
        if times and not self.known:  # of before kinds were kept
            self.known = [UNKNOWN_KIND]
        number = self._number(kind)
        if len(self.known) > 1:
            numbers = self.numbers
            self.kinds = numbers[:place] + bytes((number,)) + numbers[place:]
        self.add(at, cents, links)

    def prune(self, until: int, most: int | None = None, tail: Tail | None = None) -> None:
        """Remove the purchases up to a time (see :meth:`millrace.parts.lookback.LookBack.prune`)."""
        before = len(self)
        super().prune(until, most, tail)
        if self.kinds and before > len(self):
            self.kinds = self.kinds[before - len(self) :]

    def forget(self, watermark: int, most: int) -> None:
        """Remove what nobody can ask for, and count in panes what is more than ``most``."""
        until = watermark - HORIZON_MS
        if len(self) <= most and self.tail is None:
            self.prune(until)
            return
        self.tail = tail = self.tail or Tail()
        self.prune(until, most, tail)
        if tail.is_over(self.columns.times[-1] if len(self) else watermark):
            self.tail = None

    @property
    def numbers(self) -> bytes:
        """Which of ``known`` each purchase of a card is."""
        return self.kinds or bytes(len(self))

    def _number(self, kind: int) -> int:
        """Return the place of a kind in the table."""
        known = self.known
        if kind in known:
            return known.index(kind)
        used = sorted(set(self.numbers))
        if len(known) >= MAX_KINDS or len(known) > 2 * len(used) + 4:
            self.kinds = self.kinds.translate(bytes(used.index(n) if n in used else 0 for n in range(256)))
            known = self.known = [known[number] for number in used]
            if len(known) >= MAX_KINDS:
                self.dropped += 1
                known[0] = UNKNOWN_KIND
                return 0
        known.append(kind)
        return len(known) - 1


def look_of(history: History | None, at: int) -> Look:
    """Return what is seen of a history at a time (ms)."""
    return Look(history, at, None if history is None else history.tail)

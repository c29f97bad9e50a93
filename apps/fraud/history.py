"""The last 30 days of an entity: a card, an account, a terminal, a device, an IP address."""

from __future__ import annotations

from typing import Final

from millrace.parts.lookback import Look, LookBack
from millrace.parts.tail import Tail

DAY_MS: Final = 86_400_000
#: The longest window.
HORIZON_MS: Final = 30 * DAY_MS
#: Most purchases kept one by one of an entity, and of a card; older ones are counted in panes.
MAX_KEPT: Final = 500
MAX_KEPT_OF_CARD: Final = 1_000


class History(LookBack, array_like=True, dict=True):
    """Purchases of the last 30 days: amounts are cents, links whom they had to do with.

    Attributes:
        balance: What has come in, less what has gone out, cents.
        tail: What is older than the purchases that are kept one by one; ``None``: nothing is.
    """

    balance: int = 0
    tail: Tail | None = None

    def add(self, at: int, amount: int = 0, links: tuple[int, ...] = ()) -> None:
        """Insert a purchase after those of its time (see :meth:`millrace.parts.lookback.LookBack.add`)."""
        super().add(at, amount, links)
        if self.tail is not None:
            self.tail.seen_again(links)

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


def look_of(history: History | None, at: int) -> Look:
    """Return what is seen of a history at a time (ms)."""
    return Look(history, at, None if history is None else history.tail)

"""Warm-up: when a JVM compiles so little that a benchmark tells of the job."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

#: After so many batches of a stream the time that one takes has come to rest.
WARM_BATCHES: Final = 250
_TELL_S: Final = 15.0


@dataclass(frozen=True)
class WarmUp:
    """How long a stream runs before what it does counts.

    Attributes:
        batches: Batches that must have been committed.
        seconds: How long it must have lasted at the least.
    """

    batches: int = WARM_BATCHES
    seconds: float = 60.0

    def is_over(self, batches: int, seconds: float) -> bool:
        """Say whether so many batches in so many seconds are enough.

        Example:
            >>> WarmUp(250, 60).is_over(250, 59), WarmUp(250, 60).is_over(250, 60)
            (False, True)
        """
        return batches >= self.batches and seconds >= self.seconds


def told(what: Callable[[], str], every_s: float = _TELL_S) -> Callable[[], None]:
    """Return what is called again and again, and tells on standard error now and then how far it is.

    Args:
        what: Says how far it is.
        every_s: Seconds between two lines.
    """
    last = time.monotonic()

    def tell() -> None:
        nonlocal last
        if time.monotonic() - last >= every_s:
            last = time.monotonic()
            print(what(), file=sys.stderr, flush=True)

    return tell

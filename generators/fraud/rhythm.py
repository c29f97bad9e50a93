"""Day and night: when the slots of a steady rate fall if people sleep."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

_DAY_MS: Final = 86_400_000
_STEPS: Final = 96
#: The quietest hour, UTC, as a share of the day.
_QUIETEST: Final = 3 / 24


def day_and_night(depth: float) -> Callable[[int], int]:
    """Return a function from steady times to times with a daily rhythm, both in ms.

    The rate is 1 − depth × cosine with its lowest point at 03:00 and its highest at 15:00 UTC. A day keeps
    its number of events, and order is kept.

    Args:
        depth: 0 for none, below 1.

    >>> shaped = day_and_night(0.8)
    >>> shaped(0), shaped(43_200_000) > 43_200_000, shaped(86_400_000)
    (0, True, 86400000)
    """
    if not depth:
        return lambda at_ms: at_ms
    edges = [step / _STEPS for step in range(_STEPS + 1)]
    # The integral of the rate from midnight: the share of the day's events up to a share of the day.
    up_to = [edge - depth / math.tau * (_sine(edge) - _sine(0.0)) for edge in edges]
    # Exactly, so that no event of a day falls into the next.
    up_to[-1] = 1.0

    def shaped(at_ms: int) -> int:
        day, within = divmod(at_ms, _DAY_MS)
        share = within / _DAY_MS
        step = bisect_right(up_to, share, 1, _STEPS) - 1
        inside = (share - up_to[step]) / (up_to[step + 1] - up_to[step])
        return day * _DAY_MS + int((step + inside) / _STEPS * _DAY_MS)

    return shaped


def _sine(share: float) -> float:
    return math.sin(math.tau * (share - _QUIETEST))

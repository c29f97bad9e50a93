"""Random numbers that belong to a thing and not to a sequence, and the shapes they are given."""

from __future__ import annotations

import math
from typing import Final

from millrace_apps.generators.engine.randomness import digest, normal

_DIGITS: Final = 13
_SCALE: Final = float(16**_DIGITS)


def chance(seed: int, purpose: str, *parts: str | int) -> float:
    """Return a number in [0, 1) that depends on the arguments alone.

    Agents answer a dispatcher that is not known beforehand. With numbers from a sequence, one offer more
    would change every later decision of everybody; so a decision's number comes from what it is about.

    Args:
        seed: The run's seed.
        purpose: What the number decides, e.g. ``answer``.
        parts: What it is about, e.g. a driver and a request.

    >>> chance(7, "answer", 12, "r-1") == chance(7, "answer", 12, "r-1") != chance(7, "answer", 13, "r-1")
    True
    """
    return int(digest(seed, "ridesharing", purpose, *parts)[:_DIGITS], 16) / _SCALE


def exponential(uniform: float) -> float:
    """Return the exponential value of mean 1 at a uniform number in [0, 1)."""
    return -math.log(1.0 - uniform)


def lognormal(median: float, sigma: float, uniform: float) -> float:
    """Return the lognormal value with this median at a uniform number in [0, 1).

    >>> round(lognormal(300, 0.4, 0.5))
    300
    """
    return median * math.exp(sigma * normal(uniform))

"""One independent stream of random numbers per purpose, all derived from one seed."""

from __future__ import annotations

import hashlib
import random
from statistics import NormalDist
from typing import Final

_NORMAL_STEPS: Final = 4096
#: Quantiles of the standard normal, so that one uniform draw gives one normal value (|z| < 3.7).
NORMAL: Final = tuple(NormalDist().inv_cdf((i + 0.5) / _NORMAL_STEPS) for i in range(_NORMAL_STEPS))


def digest(*parts: str | int) -> str:
    """Return 32 hexadecimal digits that depend on the parts alone, in any process and on any machine.

    >>> digest("fraud", 7) == digest("fraud", 7) != digest("fraud", 8)
    True
    """
    # Length-prefixed, so that ("ab", "c") and ("a", "bc") differ.
    text = "".join(f"{len(str(part))}:{part}" for part in parts)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def substream(seed: int, *names: str) -> random.Random:
    """Return the random numbers for one purpose.

    Every field and every stage takes a stream of its own, so that a new field, or a stage that is
    switched on, leaves all others as they were.

    Args:
        seed: The run's seed.
        names: What the numbers are for, e.g. ``("fraud", "amount")``.

    >>> substream(7, "fraud", "amount").random() == substream(7, "fraud", "amount").random()
    True
    >>> substream(7, "fraud", "amount").random() == substream(7, "fraud", "card").random()
    False
    """
    return random.Random(int(digest(seed, *names), 16))


def normal(uniform: float) -> float:
    """Return the standard normal value at a uniform number in [0, 1).

    Only ``Random.random()`` is promised to stay the same between Python versions; ``gauss`` is not.
    """
    return NORMAL[int(uniform * _NORMAL_STEPS)]

"""Confidence intervals of shares."""

from __future__ import annotations

import math
from statistics import NormalDist


def share_interval(did: int, of: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the interval of a share by Wilson's score (1927), made for one look; ``None`` of nobody.

    It stays within 0 and 1 and holds for few, and for shares near 0 or 1, where the share plus and minus its
    standard error does not.

    Args:
        did: Of these something holds.
        of: Of so many that were drawn at random.
        confidence: How sure the interval is.

    Example:
        >>> [round(x, 3) for x in share_interval(0, 10)], [round(x, 3) for x in share_interval(5, 10)]
        ([0.0, 0.278], [0.237, 0.763])
    """
    if not of:
        return None
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, scale = did / of, 1 + z * z / of
    middle = (share + z * z / (2 * of)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return max(0.0, middle - half), min(1.0, middle + half)

"""The asset tree, plant → line → machine → sensor, as it stands in the names of machines and gateways."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

#: Between the levels of a name: ``p01-l02-m003`` is a machine of line ``p01-l02`` in plant ``p01``.
SEPARATOR: Final = "-"


@lru_cache(maxsize=200_000)
def place_of(entity: str) -> tuple[str, str]:
    """Return the plant and the line of a machine or gateway; what has no levels in its name is its own.

    >>> place_of("p01-l02-m003"), place_of("pump7")
    (('p01', 'p01-l02'), ('pump7', 'pump7'))
    """
    parts = entity.split(SEPARATOR)
    if len(parts) < 3:
        return parts[0], entity if len(parts) < 2 else SEPARATOR.join(parts[:2])
    return parts[0], SEPARATOR.join(parts[:2])

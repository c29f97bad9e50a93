"""When and how far drivers of free cars are sent, as plain values that travel to Spark's workers."""

from __future__ import annotations

import msgspec


class HintConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When and how far free cars are sent.

    Attributes:
        zone: Time zone of the city.
        resolution: H3 resolution of the cells.
        rings: How far a car is sent, in cells.
        horizon_ms: Requests of so long are held against the cars that stand free, ms.
        stood_ms: A car is sent when it has been free for so long, ms.
        rest_ms: A driver is told nothing again for so long at least, ms.
        ahead_ms: Who wants to leave later than so long after asking is no demand of now, ms.
    """

    zone: str = "UTC"
    resolution: int = 8
    rings: int = 3
    horizon_ms: int = 600_000
    stood_ms: int = 60_000
    rest_ms: int = 600_000
    ahead_ms: int = 600_000

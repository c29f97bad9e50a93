"""The last 30 days of an entity: a card, an account, a terminal, a device, an IP address."""

from __future__ import annotations

from typing import Final

from millrace.parts.lookback import LookBack

DAY_MS: Final = 86_400_000
#: The longest window.
HORIZON_MS: Final = 30 * DAY_MS
#: Most purchases kept of one entity, and of one card; older ones are left out and counted in ``dropped``.
MAX_KEPT: Final = 4_000
MAX_KEPT_OF_CARD: Final = 1_000


class History(LookBack, array_like=True, dict=True):
    """Purchases of the last 30 days: amounts are cents, links whom they had to do with.

    Attributes:
        balance: What has come in, less what has gone out, cents.
    """

    balance: int = 0

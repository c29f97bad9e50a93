"""Hour and weekday where a transaction happened."""

from __future__ import annotations

from typing import Final

from millrace_apps.fraud.contracts.events import Transaction

HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000


def hour_of(tx: Transaction) -> int:
    """Return the local hour of a transaction, 0 to 23; that of UTC where its offset is not known.

    >>> from types import SimpleNamespace as Tx
    >>> hour_of(Tx(event_time_ms=0, utc_offset_min=-90)), hour_of(Tx(event_time_ms=0, utc_offset_min=None))
    (22, 0)
    """
    return _local_ms(tx) // HOUR_MS % 24


def weekday_of(tx: Transaction) -> int:
    """Return the local weekday of a transaction, 1 (Monday) to 7.

    >>> from types import SimpleNamespace as Tx
    >>> [weekday_of(Tx(event_time_ms=0, utc_offset_min=offset)) for offset in (None, -90)]    # a Thursday
    [4, 3]
    """
    return (_local_ms(tx) // (24 * HOUR_MS) + 3) % 7 + 1


def _local_ms(tx: Transaction) -> int:
    return tx.event_time_ms + (tx.utc_offset_min or 0) * MINUTE_MS

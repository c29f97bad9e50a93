"""The other entities of a payment (account, terminal, device, IP address): each keyed by itself, in a chain.

A stage adds what it knows to the record and hands it on; the last one decides.
"""

from __future__ import annotations

from typing import Final

from apps.fraud.feature_types import EntityFeatures
from apps.fraud.history import DAY_MS, HORIZON_MS, History
from millrace.parts.lookback import Look

HOUR_MS: Final = 3_600_000


def look_at(history: History, time: int, card: int) -> EntityFeatures:
    """Return what is known of an entity, the purchase at ``time`` (ms) by this card already in its history.

    Args:
        history: The entity's.
        time: Event time of the purchase, ms.
        card: The card's link.
    """
    look = Look(history, time)
    start_30d, start_24h, start_1h = (look.start(w) for w in (HORIZON_MS, DAY_MS, HOUR_MS))
    end = look.end
    cards = look.links(start_30d)
    count = end - start_30d
    day = look.amounts_from(start_24h)
    return EntityFeatures(
        end - start_1h,
        look.total_from(start_1h) / 100,
        end - start_24h,
        look.total_from(start_24h) / 100,
        max(day, default=0) / 100,
        count,
        look.total_from(start_30d) / count / 100 if count else None,
        len(set(cards[start_1h - start_30d :])),
        len(set(cards[start_24h - start_30d :])),
        len(set(cards)),
        cards.count(card),
        max(0, time - history.since) / 1000,
        history.balance / 100,
        history.dropped > 0,
    )

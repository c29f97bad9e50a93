"""The other entities of a payment (account, terminal, device, address, …): each keyed by itself, in a chain.

A stage adds what it knows to the record and hands it on; the last one decides.
"""

from __future__ import annotations

from typing import Final

from millrace.parts.lookback import Look
from millrace_apps.fraud.contracts.feature_types import EntityFeatures
from millrace_apps.fraud.state.history import DAY_MS, HORIZON_MS, History, look_of

HOUR_MS: Final = 3_600_000
_WINDOWS: Final = (HOUR_MS, DAY_MS, HORIZON_MS)


def look_at(history: History, time: int, card: int, of_card: int = 0) -> EntityFeatures:
    """Return what is known of an entity, the purchase at ``time`` (ms) by this card already in its history.

    Args:
        history: The entity's.
        time: Event time of the purchase, ms.
        card: The card's link.
        of_card: How many purchases with the entity the card's own 30 days have; 0: not known. It counts where
            the entity is so busy that its history has them in panes.
    """
    look = look_of(history, time)
    if look.tail is not None:
        return _busy(history, look, card, of_card)
    start_30d, start_24h, start_1h = (look.start(w) for w in (HORIZON_MS, DAY_MS, HOUR_MS))
    end = look.end
    cards = look.links(start_30d)
    count = end - start_30d
    day = look.amounts_from(start_24h)
    # By position: one is made for every payment and entity.
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
        False,
    )


def _busy(history: History, look: Look, card: int, of_card: int) -> EntityFeatures:
    """Return what is known of an entity that has more purchases than are kept one by one."""
    (count_1h, sum_1h), (count_24h, sum_24h), (count, total) = map(look.numbers, _WINDOWS)
    # By position: one is made for every payment at a busy entity.
    return EntityFeatures(
        count_1h,
        sum_1h / 100,
        count_24h,
        sum_24h / 100,
        look.largest(DAY_MS) / 100,
        count,
        total / count / 100 if count else None,
        look.different(HOUR_MS, 0),
        look.different(DAY_MS, 0),
        look.different(HORIZON_MS, 0),
        of_card or look.links(look.start(HORIZON_MS)).count(card),
        max(0, look.at - history.since) / 1000,
        history.balance / 100,
        not of_card or (look.tail is not None and look.tail.sampled),
    )

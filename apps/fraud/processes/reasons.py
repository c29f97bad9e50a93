"""Reasons from where a card was and whom it dealt with, and comparisons that stand beside any alert."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from millrace_apps.fraud.contracts.events import Reason, Transaction
from millrace_apps.fraud.contracts.feature_types import CardFeatures, EntityFeatures
from millrace_apps.fraud.processes.billing import billed
from millrace_apps.fraud.processes.features import Features
from millrace_apps.fraud.processes.scoring import WEIGHTS, Thresholds

#: An alert has at least so many reasons.
LEAST: Final = 3
#: Reasons that say that several cards are used together, the surest first → what they have in common.
RINGS: Final = {"SHARED_DEVICE": "device", "SHARED_TERMINAL": "terminal"}


def entity_reasons(
    tx: Transaction,
    own: Features,
    card: CardFeatures,
    terminal: EntityFeatures | None,
    device: EntityFeatures | None,
    t: Thresholds,
) -> list[Reason]:
    """Return what is suspicious about a purchase's place, device, address and terminal.

    Args:
        tx: The purchase.
        own: The card's totals and last 24 hours.
        card: The card's last 30 days.
        terminal: The terminal's, if known.
        device: The device's, if known.
        t: The thresholds in force.
    """
    found: list[Reason] = []
    amount = billed(tx) or 0.0
    if card.kmh is not None and card.kmh >= t.travel_kmh and (card.km or 0.0) >= t.travel_km:
        found.append(_reason("IMPOSSIBLE_TRAVEL", card.kmh, card.fastest_kmh or 0.0, t.travel_kmh))
    if amount >= t.large_amount and card.min_1m is not None and card.min_1m <= t.small_amount:
        found.append(_reason("SMALL_THEN_LARGE", amount, card.min_1m, t.large_amount))
    if device is not None and device.cards_24h >= t.device_cards:
        found.append(_reason("SHARED_DEVICE", device.cards_24h, card.devices_30d, t.device_cards))
    if terminal is not None and terminal.count_1h >= t.terminal_testing:
        usual = (terminal.count_30d - terminal.count_1h) / _hours(terminal.age_s)
        limit = max(t.terminal_testing, t.terminal_ratio * usual)
        if terminal.count_1h >= limit:
            found.append(_reason("SHARED_TERMINAL", terminal.count_1h, usual, limit))
    mean = own.mean_before
    if mean is not None and own.purchases_before >= t.min_history and amount >= t.new_ratio * mean:
        limit = t.new_ratio * mean
        if card.device_before == 0 and card.devices_30d > 1:
            found.append(_reason("NEW_DEVICE", amount, mean, limit))
        if card.ip_before == 0:
            found.append(_reason("NEW_ADDRESS", amount, mean, limit))
    return found


def comparisons(tx: Transaction, own: Features, card: CardFeatures, have: list[Reason]) -> list[Reason]:
    """Return reasons of weight 0 that fill up to :data:`LEAST`: the transaction beside what is usual.

    Args:
        tx: The transaction.
        own: The card's totals and last 24 hours.
        card: The card's last 30 days.
        have: The reasons that there are.
    """
    per_hour = own.per_hour_before or 0.0
    beside = (
        Reason("AMOUNT", billed(tx) or 0.0, own.mean_before or 0.0, 0.0, 0.0),
        Reason("COUNT_24H", float(own.count_24h), per_hour * 24, 0.0, 0.0),
        Reason("SUM_24H", own.sum_24h, per_hour * 24 * (own.mean_before or 0.0), 0.0, 0.0),
        Reason("GAP_S", card.gap_s or 0.0, card.gap_median_s or 0.0, 0.0, 0.0),
    )
    # What a reason already compares is not compared again.
    said = {"AMOUNT" if r.code in _ABOUT_AMOUNT else r.code.replace("VELOCITY", "COUNT") for r in have}
    said |= {r.code.replace("SPEND", "SUM") for r in have}
    more = [r for r in beside if r.code not in said]
    return more[: max(0, LEAST - len(have))]


def ring_of(reasons: Sequence[Reason], *, device_id: str | None, terminal_id: str | None) -> str:
    """Return what the cards of a ring have in common, as ``kind:ID``, where a reason says that there is one.

    >>> ring_of([Reason("SHARED_DEVICE", 9.0, 1.0, 4.0, 0.7)], device_id="d-7", terminal_id="t-1")
    'device:d-7'
    >>> ring_of([Reason("SPREE", 9.0, 1.0, 4.0, 0.8)], device_id="d-7", terminal_id="t-1")
    ''
    """
    codes = {reason.code for reason in reasons}
    ids = {"device": device_id, "terminal": terminal_id}
    return next((f"{kind}:{ids[kind]}" for code, kind in RINGS.items() if code in codes and ids[kind]), "")


_ABOUT_AMOUNT: Final = frozenset({"AMOUNT_DEVIATION", "SMALL_THEN_LARGE", "NEW_DEVICE", "NEW_ADDRESS"})


def score_of(reasons: list[Reason]) -> float:
    """Return 1 - Π(1 - weight), 0 without reasons."""
    return round(1 - math.prod(1 - reason.weight for reason in reasons), 6)


def _hours(age_s: float) -> float:
    return min(max(age_s / 3600, 1.0), 30 * 24)


def _reason(code: str, value: float, baseline: float, limit: float) -> Reason:
    return Reason(code, float(value), float(baseline), float(limit), WEIGHTS[code])

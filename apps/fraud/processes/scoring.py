"""The built-in score: features and thresholds to a score with its reasons."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import msgspec

from millrace_apps.fraud.contracts.events import Action, Reason
from millrace_apps.fraud.processes.features import LARGE_TIMES, Features

#: How much each reason adds: the score is 1 - Π(1 - weight).
WEIGHTS: Final[dict[str, float]] = {
    "CARD_TESTING": 0.9,
    "SPREE": 0.8,
    "AMOUNT_DEVIATION": 0.75,
    "VELOCITY_1M": 0.6,
    "SPEND_1H": 0.6,
    "VELOCITY_1H": 0.5,
    "SPEND_24H": 0.5,
    "OVERDRAWN": 0.1,
    "IMPOSSIBLE_TRAVEL": 0.9,
    "SMALL_THEN_LARGE": 0.85,
    "SHARED_DEVICE": 0.7,
    "SHARED_TERMINAL": 0.2,
    "NEW_DEVICE": 0.3,
    "NEW_ADDRESS": 0.15,
    "MODEL": 0.0,
    "BLOCK_LIST": 0.0,
}


class Thresholds(msgspec.Struct, frozen=True):
    """What can be set while the app runs; the defaults here.

    Attributes:
        review_score: From this score on somebody must look.
        block_score: From this score on the transaction is blocked.
        min_history: Purchases from which on a card has a baseline of its own.
        deviation_sigmas: An amount is suspicious so many deviations above the card's mean …
        deviation_ratio: … if it is also so many times the mean.
        testing_count: Small purchases in a minute that look like card testing.
        large_ratio: A purchase is large from so many times the card's median on.
        spree_count: Large purchases in five minutes that look like a spree …
        spree_busy: … and one more for every so many that the card makes usually in that time.
        velocity_sigmas: A count is suspicious so many deviations (of a Poisson count) above usual …
        velocity_1m_extra: … and so many purchases on top, in a minute …
        velocity_1h_extra: … or an hour.
        spend_sigmas: A sum is suspicious so many deviations above usual …
        spend_1h_extra: … and so many mean purchases on top, in an hour …
        spend_24h_extra: … or a day …
        spend_ratio: … if this purchase itself is so many times the mean.
        travel_kmh: Nobody travels faster, km/h …
        travel_km: … over at least so many km.
        small_amount: A purchase of at most this …
        large_amount: … and within a minute one of at least this is a card that was tried first.
        device_cards: A device that so many cards used in 24 hours is shared by strangers.
        terminal_testing: Purchases of a terminal in an hour that look like a burst, with …
        terminal_ratio: … so many times the purchases of an hour that its 30 days tell.
        new_ratio: A device or address that is new to the card counts from so many times the card's mean on.
        model_review: From this probability of the model on somebody must look …
        model_block: … and from this one on the transaction is blocked.
    """

    review_score: float = 0.5
    block_score: float = 0.85
    min_history: float = 10
    deviation_sigmas: float = 5
    deviation_ratio: float = 4
    testing_count: float = 5
    large_ratio: float = LARGE_TIMES
    spree_count: float = 4
    spree_busy: float = 150
    velocity_sigmas: float = 5
    velocity_1m_extra: float = 5
    velocity_1h_extra: float = 8
    spend_sigmas: float = 6
    spend_1h_extra: float = 10
    spend_24h_extra: float = 20
    spend_ratio: float = 1.5
    travel_kmh: float = 1_000
    travel_km: float = 150
    small_amount: float = 1
    large_amount: float = 500
    device_cards: float = 4
    terminal_testing: float = 30
    terminal_ratio: float = 10
    new_ratio: float = 2
    model_review: float = 0.5
    model_block: float = 0.95

    def as_dict(self) -> dict[str, float]:
        """Return name → value of all of them."""
        return msgspec.structs.asdict(self)


_SQRT_2: Final = math.sqrt(2)
#: Purchases in a window, the standard deviation of their number, their mean amount.
_Usual = tuple[float, float, float]

DEFAULTS: Final = Thresholds()
THRESHOLD_NAMES: Final = frozenset(Thresholds.__struct_fields__)


def thresholds_with(overrides: Iterable[tuple[str, float]]) -> Thresholds:
    """Return the defaults with these changes.

    Args:
        overrides: Name and value of each change; a name that is no longer a threshold is ignored.

    >>> thresholds_with([("review_score", 0.7)]).review_score
    0.7
    """
    known = {name: value for name, value in overrides if name in THRESHOLD_NAMES}
    return msgspec.structs.replace(DEFAULTS, **known) if known else DEFAULTS


def assess(
    features: Features, amount: float, thresholds: Thresholds, *, purchase: bool = True
) -> tuple[float, list[Reason]]:
    """Return the score (0 to 1) of a transaction and its reasons, heaviest first.

    Args:
        features: Its features.
        amount: Its amount, currency units.
        thresholds: Those in force.
        purchase: Refunds and top-ups are never suspicious.
    """
    if not purchase:
        return 0.0, []
    reasons = own_reasons(features, amount, thresholds)
    if not reasons:
        return 0.0, reasons
    innocent = math.prod(1 - reason.weight for reason in reasons)
    reasons.sort(key=lambda reason: -reason.weight)
    return round(1 - innocent, 6), reasons


def action_for(score: float, thresholds: Thresholds) -> Action:
    """Return what to do at a score; without any reason a transaction is approved."""
    if not score:
        return "approve"
    if score >= thresholds.block_score:
        return "block"
    return "review" if score >= thresholds.review_score else "approve"


def own_reasons(f: Features, amount: float, t: Thresholds) -> list[Reason]:
    """Return what is suspicious about a purchase beside its card's own totals and last 24 hours.

    Args:
        f: Its features.
        amount: Its amount, currency units.
        t: Thresholds in force.
    """
    found: list[Reason] = []
    per_minute = (f.per_hour_before or 0.0) / 60
    if f.small_count_1m >= t.testing_count:
        found.append(_reason("CARD_TESTING", f.small_count_1m, per_minute, t.testing_count))
    if f.balance < 0:
        found.append(_reason("OVERDRAWN", f.balance, 0.0, 0.0))
    mean, std = f.mean_before, f.std_before
    if f.purchases_before < t.min_history or mean is None or std is None:
        return found
    limit = t.deviation_ratio * mean
    if amount >= limit:
        limit = max(mean + t.deviation_sigmas * std, limit)
        if amount >= limit:
            found.append(_reason("AMOUNT_DEVIATION", amount, mean, limit))
    if f.large_count_5m >= t.spree_count:
        usual_5m = per_minute * 5
        # A young card's rate says little: it cannot have made more than it has.
        busy = min(usual_5m, f.purchases_before)
        limit = t.spree_count + (busy // t.spree_busy if t.spree_busy else 0)
        if f.large_count_5m >= limit:
            found.append(_reason("SPREE", f.large_count_5m, usual_5m, limit))
    # Most transactions end here: no limit below can be under these.
    if f.count_1m > t.velocity_1m_extra:
        usual = _usual(f, f.count_1m - f.excluded_1m, f.sum_1m, amount, 1 / 60, t)
        _velocity(found, "VELOCITY_1M", f.count_1m, usual, t.velocity_1m_extra, t)
    spends = amount >= t.spend_ratio * mean
    if spends or f.count_1h > t.velocity_1h_extra:
        usual = _usual(f, f.count_1h - f.excluded_1h, f.sum_1h, amount, 1, t)
        _velocity(found, "VELOCITY_1H", f.count_1h, usual, t.velocity_1h_extra, t)
        if spends:
            _spend(found, "SPEND_1H", f.sum_1h, usual, t.spend_1h_extra, t)
            usual = _usual(f, f.count_24h - f.excluded_24h, f.sum_24h, amount, 24, t)
            _spend(found, "SPEND_24H", f.sum_24h, usual, t.spend_24h_extra, t)
    return found


def _usual(
    f: Features, count: int, total: float, amount: float, hours: float, t: Thresholds
) -> _Usual | None:
    """Return what a window of so many hours usually holds; ``None`` where too little is known.

    The window of this transaction is left out: what is unusual in it must not make itself usual. Its mean
    amount is at least the usual one, since of what is left out not all has counted in full.
    """
    n = f.purchases_before
    earlier = n - (count - 1)
    if earlier < t.min_history or not f.per_hour_before or f.mean_before is None:
        return None
    alive = n / f.per_hour_before - hours
    if alive <= 0:
        return None
    usual = earlier / alive * hours
    # A Poisson count, and the error of its mean, which rests on `earlier` purchases.
    deviation = math.sqrt(usual + usual * usual / earlier)
    typical = min(f.mean_before, f.median_before or f.mean_before)
    return usual, deviation, max(typical, (n * f.mean_before - (total - amount)) / earlier)


def _velocity(
    found: list[Reason], code: str, count: int, usual: _Usual | None, extra: float, t: Thresholds
) -> None:
    if usual is not None:
        expected, deviation, _ = usual
        limit = expected + t.velocity_sigmas * deviation + extra
        if count >= limit:
            found.append(_reason(code, count, expected, limit))


def _spend(
    found: list[Reason], code: str, spent: float, usual: _Usual | None, extra: float, t: Thresholds
) -> None:
    if usual is not None:
        expected, deviation, mean = usual
        # √2: a sum of so many amounts that deviate as much as their mean.
        limit = (expected + t.spend_sigmas * _SQRT_2 * deviation + extra) * mean
        if spent >= limit:
            found.append(_reason(code, spent, expected * mean, limit))


def _reason(code: str, value: float, baseline: float, limit: float) -> Reason:
    return Reason(code, float(value), baseline, float(limit), WEIGHTS[code])

"""Responses of visitors to an offer: a pure function of the profile, the visitor and the offer."""

from __future__ import annotations

from typing import Final

from millrace_apps.generators.clickstream.profile import DOMAIN_NAME, ClickstreamProfile
from millrace_apps.generators.engine.randomness import digest

_SCALE: Final = float(1 << 64)


def responds(profile: ClickstreamProfile, visitor: str, offer: str | None) -> bool:
    """Tell whether a visitor with an abandoned cart buys it after all.

    Every visitor has one answer without an offer and one per offer (its potential outcomes; Rubin 1974),
    drawn once from the seed: no order, time or other visitor changes it. Of all visitors, ``recovery`` buy
    without an offer and ``recovery + offer_uplift`` with one. A positive uplift only persuades people, a
    negative one only puts them off.

    Args:
        profile: Gives ``seed``, ``recovery`` and ``offer_uplift``.
        visitor: The visitor, by any identifier that stays the same.
        offer: The offer; None for none, as in a control arm.

    Returns:
        True if the cart is bought.

    >>> sure = ClickstreamProfile(recovery=0.25, offer_uplift=0.75)
    >>> responds(sure, "v1", "ten-percent"), responds(sure, "v1", None) == responds(sure, "v1", None)
    (True, True)
    """
    base, uplift = profile.recovery, profile.offer_uplift
    unaided = _uniform(profile.seed, "unaided", visitor) < base
    if offer is None or uplift == 0:
        return unaided
    chance = _uniform(profile.seed, "offer", visitor, offer)
    if uplift > 0:
        return unaided or chance < uplift / (1 - base)
    return unaided and chance >= -uplift / base


def _uniform(seed: int, *names: str) -> float:
    return int(digest(DOMAIN_NAME, seed, *names)[:16], 16) / _SCALE

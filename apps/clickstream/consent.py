"""Consent per purpose: what it allows, and the record of every change.

``analytics`` is asked for nothing here: what is counted without it names nobody. ``personalisation`` allows
stitching (knowing the browsers of a person for the same person's) and a profile; ``marketing`` on top of it
allows offers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

BITS: Final[dict[str, int]] = {"analytics": 1, "personalisation": 2, "marketing": 4}
#: Beside the purposes: leave for offers has been withdrawn before.
WITHDRAWN: Final = 8
_STITCH: Final = BITS["personalisation"]
_OFFER: Final = BITS["personalisation"] | BITS["marketing"]


class ConsentChange(msgspec.Struct, frozen=True, gc=False):
    """An answer to the question for consent: the audit of what was allowed when.

    Attributes:
        consent_id: The event.
        visitor_id: The browser.
        user_id: The account, if somebody was logged in.
        granted: Given, or withdrawn.
        purposes: What for.
        in_force: The purposes that are allowed from this moment on.
        withdrawn: Whether something was taken back that had been allowed.
        at_ms: When it was said, UTC ms; every later event is judged by it.
    """

    consent_id: str
    visitor_id: str
    user_id: str | None
    granted: bool
    purposes: list[str]
    in_force: list[str]
    withdrawn: bool
    at_ms: int


def changed(consent: int, purposes: Iterable[str], *, granted: bool) -> int:
    """Return what is allowed after an answer; the purposes that it does not name stay as they were.

    Args:
        consent: What is allowed before, as bits.
        purposes: Purposes that are named.
        granted: Given, or withdrawn.

    Example:
        >>> names(changed(changed(0, ["analytics", "marketing"], granted=True), ["marketing"], granted=False))
        ['analytics']
    """
    bits = 0
    for purpose in purposes:
        bits |= BITS[purpose]
    return consent | bits if granted else consent & ~bits


def names(consent: int) -> list[str]:
    """Return the purposes that are allowed."""
    return [name for name, bit in BITS.items() if consent & bit]


def may_stitch(consent: int) -> bool:
    """Tell whether this browser may be known as somebody's, and a profile be kept."""
    return bool(consent & _STITCH)


def may_offer(consent: int) -> bool:
    """Tell whether something may be offered on this browser."""
    return consent & _OFFER == _OFFER

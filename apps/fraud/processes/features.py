"""The features of a transaction: exact look-back windows, running moments, balance.

All of them follow one rule: they see what was handled before the transaction and is not later than
it in event time. An event that comes out of order therefore has its true windows, and does not find
its own future in them.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import msgspec

from millrace_apps.fraud.state.amounts import SMALL_CENTS
from millrace_apps.fraud.state.card import DAY_MS, Recent
from millrace_apps.fraud.state.profile import Profile

MINUTE_MS: Final = 60_000
FIVE_MINUTES_MS: Final = 300_000
HOUR_MS: Final = 3_600_000

_WINDOWS: Final = (MINUTE_MS, HOUR_MS, DAY_MS)

#: A purchase is large from this many times the card's median on, unless a threshold says otherwise.
LARGE_TIMES: Final = 2.5


class Features(msgspec.Struct, frozen=True, gc=False):
    """Features of a transaction; :class:`millrace_apps.fraud.contracts.events.Decision` has their meaning."""

    purchases_before: int
    mean_before: float | None
    std_before: float | None
    median_before: float | None
    per_hour_before: float | None
    zscore: float | None
    count_1m: int
    sum_1m: float
    count_1h: int
    sum_1h: float
    count_24h: int
    sum_24h: float
    small_count_1m: int
    large_count_5m: int
    balance: float
    excluded_1m: int
    excluded_1h: int
    excluded_24h: int


def observe(
    profile: Profile,
    recent: Recent,
    time: int,
    cents: int,
    *,
    purchase: bool,
    known: Profile | None = None,
    large_times: float = LARGE_TIMES,
) -> Features:
    """Return the features of a transaction, and count it.

    Args:
        profile: The card's profile; changed.
        recent: The card's last 24 hours; changed.
        time: Event time, ms.
        cents: Amount, cents; 0: it is not known, so the purchase counts and its amount does not.
        purchase: True for a purchase, False for a refund or top-up.
        known: The profile as it was known at that time, where that is another; not changed.
        large_times: A purchase is large from so many times the card's median on.

    Example:
        >>> from millrace_apps.fraud.state.profile import begun
        >>> profile, recent = begun(30, 1_000), Recent()
        >>> observe(profile, recent, 1_000, 500, purchase=True).count_1h
        1
        >>> features = observe(profile, recent, 61_000, 700, purchase=True)
        >>> features.count_1m, features.sum_1h, features.mean_before
        (1, 12.0, 5.0)
    """
    # This runs for every transaction: where a comparison tells the answer nothing is called, and what
    # few transactions need (small, large) is not computed for the others.
    times, totals, base, credits = recent.times, recent.totals, recent.base, recent.credits
    end = len(times)
    if time // DAY_MS // profile.half_life > profile.span:
        profile.arrive(time)
    past = profile if known is None else known
    if (end and times[-1] > time) or (credits and credits[-1][0] > time):
        end = bisect_right(times, time)
        past = _past(past, recent, time, end)
    upto = totals[end - 1] if end else base
    # A window without anything begins and is summed from where it ends.
    start_1m = start_1h = start_24h = end
    before_1m = before_1h = before_24h = upto
    if end and times[end - 1] > time - DAY_MS:
        start_24h = 0 if times[0] > time - DAY_MS else bisect_right(times, time - DAY_MS, 0, end)
        before_24h = totals[start_24h - 1] if start_24h else base
        if times[end - 1] > time - HOUR_MS:
            start_1h = bisect_right(times, time - HOUR_MS, start_24h, end)
            before_1h = totals[start_1h - 1] if start_1h else base
            if times[end - 1] > time - MINUTE_MS:
                start_1m = bisect_right(times, time - MINUTE_MS, start_1h, end)
                before_1m = totals[start_1m - 1] if start_1m else base
    mean = std = median = per_hour = None
    count = past.count
    if count:
        mean, std, median = past.usual()
        per_hour = past.per_hour(time)
    this, added, zscore, small, large = 0, -cents, None, 0, 0
    if purchase:
        this, added = 1, cents
        upto += cents
        if std and mean is not None and cents:
            zscore = (cents - mean) / std
        if 0 < cents <= SMALL_CENTS and past.is_small(cents):
            small = 1
            if start_1m < end:
                small += sum(map(past.is_small, filter(None, recent.amounts(start_1m, end))))
        elif median is not None and cents >= large_times * median:
            large = 1
            if start_1h < end:
                start = bisect_right(times, time - FIVE_MINUTES_MS, start_1h, end)
                large += sum(other >= large_times * median for other in recent.amounts(start, end))
    excluded_1m = excluded_1h = excluded_24h = 0
    if past.excluded:
        excluded_1m, excluded_1h, excluded_24h = map(past.left_out, (time,) * 3, _WINDOWS)
    # By position: one is made for every payment.
    features = Features(
        count,
        None if mean is None else mean / 100,
        None if std is None else std / 100,
        None if median is None else median / 100,
        per_hour,
        zscore,
        end - start_1m + this,
        (upto - before_1m) / 100,
        end - start_1h + this,
        (upto - before_1h) / 100,
        end - start_24h + this,
        (upto - before_24h) / 100,
        small,
        large,
        (past.balance - added) / 100,
        excluded_1m,
        excluded_1h,
        excluded_24h,
    )
    if purchase:
        if end == len(times):  # as Recent.add_purchase, without its call
            times.append(time)
            totals.append(upto)
        else:
            recent.add_purchase(end, time, cents)
        if cents:
            profile.buy(time, cents)
    else:
        recent.add_credit(time, cents)
        profile.balance += cents
    return features


def _past(profile: Profile, recent: Recent, time: int, end: int) -> Profile:
    """Return the profile without what is later than ``time``: itself but for disorder."""
    later = recent.amounts(end, len(recent.times)) if end < len(recent.times) else []
    known = [(at, cents) for at, cents in zip(recent.times[end:], later, strict=True) if cents]
    credited = sum(cents for at, cents in recent.credits if at > time)
    if not known and not credited:
        return profile
    return profile.without(known, credited, time)

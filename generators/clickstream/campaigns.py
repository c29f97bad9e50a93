"""Traffic sources of visits: direct, search, advertisements, mail, social media, other sites."""

from __future__ import annotations

from typing import Final, NamedTuple

from millrace_apps.generators.clickstream.visitors import pick


class Channel(NamedTuple):
    """How a visit arrives; all None for a direct one.

    Attributes:
        source: Where from, e.g. ``google``.
        medium: How, e.g. ``cpc``.
        campaign: For which campaign, if for one.
        referrer: Page that it comes from, if the browser says so.
        click_prefix: Begins the identity of a click on an advertisement.
        label: Source, medium and campaign in one text.
    """

    source: str | None
    medium: str | None
    campaign: str | None
    referrer: str | None
    click_prefix: str | None
    label: str | None


DIRECT: Final = Channel(None, None, None, None, None, None)


def labelled(
    source: str,
    medium: str,
    campaign: str | None = None,
    *,
    referrer: str | None = None,
    click_prefix: str | None = None,
    tagged: bool = True,
) -> Channel:
    """Return a channel with its label.

    Args:
        source: Where from.
        medium: How.
        campaign: For which campaign.
        referrer: Page that it comes from.
        click_prefix: Begins the identity of a click on an advertisement.
        tagged: Whether the shop has put source, medium and campaign into its link; otherwise referrer and
            click tell of them.

    >>> labelled("newsletter", "email").label
    'newsletter / email / (none)'
    """
    label = f"{source} / {medium} / {campaign or '(none)'}"
    if not tagged:
        return Channel(None, None, None, referrer, click_prefix, label)
    return Channel(source, medium, campaign, referrer, click_prefix, label)


_GOOGLE: Final = "https://www.google.com/"
_BING: Final = "https://www.bing.com/"
_PRICES: Final = "https://prices.example/compare"
_NEW_SHOES: Final = labelled(
    "facebook", "paid-social", "new-shoes", referrer="https://www.facebook.com/", click_prefix="fbclid"
)

#: Channel and upper bound of its cumulated share.
CHANNELS: Final[tuple[tuple[Channel, float], ...]] = (
    (DIRECT, 0.34),
    (labelled("google", "organic", referrer=_GOOGLE, tagged=False), 0.58),
    (labelled("bing", "organic", referrer=_BING, tagged=False), 0.62),
    (labelled("google", "cpc", "brand", referrer=_GOOGLE, click_prefix="gclid"), 0.69),
    (labelled("google", "cpc", "spring-sale", referrer=_GOOGLE, click_prefix="gclid"), 0.77),
    (labelled("bing", "cpc", referrer=_BING, click_prefix="msclkid", tagged=False), 0.79),
    (_NEW_SHOES, 0.85),
    (labelled("instagram", "social", referrer="https://www.instagram.com/", tagged=False), 0.88),
    (labelled("newsletter", "email", "weekly"), 0.95),
    (labelled("prices.example", "referral", referrer=_PRICES, tagged=False), 1.0),
)


def channel(uniform: float) -> Channel:
    """Return the channel of a visit.

    >>> channel(0.1).label, channel(0.5).label
    (None, 'google / organic / (none)')
    """
    return pick(CHANNELS, uniform)


def other_campaign(now: Channel, uniform: float) -> Channel:
    """Return a channel that is not direct and not the one of now."""
    others = [found for found, _ in CHANNELS if found is not DIRECT and found is not now]
    return others[int(uniform * len(others))]

"""Bots: crawlers that say so in their user agent, and scrapers that only their speed gives away."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, Literal

BotReason = Literal["user_agent", "rate"]

#: So many different user agents are remembered; a shop sees a few thousand in a day.
_REMEMBERED: Final = 65_536
_detector: Any = None


@lru_cache(maxsize=_REMEMBERED)
def is_crawler(user_agent: str) -> bool:
    """Tell whether a user agent is on the list of known crawlers (package ``crawlerdetect``).

    An empty user agent is none: some privacy tools send nothing.

    Example:
        >>> is_crawler("Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)")
        True
        >>> is_crawler("Mozilla/5.0 (X11; Linux x86_64; rv:144.0) Gecko/20100101 Firefox/144.0")
        False
    """
    global _detector
    if not user_agent:
        return False
    if _detector is None:
        from crawlerdetect import CrawlerDetect

        _detector = CrawlerDetect(user_agent=user_agent)
    return bool(_detector.isCrawler(user_agent))

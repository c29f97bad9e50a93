"""Page pings: what a tracker sends at a fixed pace while a page is being read."""

from __future__ import annotations

from typing import Final

import msgspec

from millrace_apps.clickstream.contracts.events import Click
from millrace_apps.generators.clickstream.profile import DOMAIN_NAME, ClickstreamProfile
from millrace_apps.generators.engine.randomness import substream

#: Of the time until the next click a page is read for this share at least, and for no longer than this, ms.
_LEAST_SHARE, _LONGEST_MS = 0.3, 300_000
#: A longer pause is one in which nobody reads, ms: it must stay as long as it is.
_AWAY_MS: Final = 1_600_000


class Heartbeats:
    """Makes page pings between clicks, from random numbers that nothing else uses.

    Args:
        profile: Its seed and pace.
    """

    def __init__(self, profile: ClickstreamProfile) -> None:
        self._pace_ms = profile.heartbeat_s * 1000
        self._draw = substream(profile.seed, DOMAIN_NAME, "heartbeat").random

    def between(self, page: Click, next_ms: int) -> list[Click]:
        """Return the pings of a page that is read until some time before the next click.

        Args:
            page: The view of the page.
            next_ms: When the next click comes, ms since the epoch, UTC.
        """
        gap = next_ms - page.event_time_ms
        read = int(gap * (_LEAST_SHARE + (1 - _LEAST_SHARE) * self._draw()))
        if gap > _AWAY_MS:
            return []
        number = min(read, _LONGEST_MS) // self._pace_ms
        return [_ping(page, place, place * self._pace_ms) for place in range(1, number + 1)]


def _ping(page: Click, place: int, after_ms: int) -> Click:
    return msgspec.structs.replace(
        page,
        event_id=f"{page.event_id}-{place:x}",
        event_type="page_ping",
        event_time_ms=page.event_time_ms + after_ms,
        client_time_ms=page.client_time_ms + after_ms,
        # Only the landing itself tells where it came from.
        referrer=None,
        utm_source=None,
        utm_medium=None,
        utm_campaign=None,
        click_id=None,
    )

"""Session rules: when a session begins and ends, as rule sets that one operator understands.

================== =============================== ======================= =====================
rule set           a new session begins            a session ends for good is engaged
================== =============================== ======================= =====================
``ga4``            after more than 30 min          —                       > 10 s, a conversion,
                                                                           or two views
``universal``      so, and at midnight of the      —                       two views
                   shop's zone, and with another
                   campaign
``snowplow``       with another session of the     3 days after it began,  two views, 20 s of
                   tracker                         later events are put    attention, or a
                                                   aside                   conversion
================== =============================== ======================= =====================

Sources: Google Analytics help, *About Analytics sessions* and *How a web session is defined in Universal
Analytics*; Snowplow's documentation of its trackers and of its web data model.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from millrace.errors import UserError

MINUTE_MS: Final = 60_000
DAY_MS: Final = 86_400_000
#: Google Analytics 4 lets the timeout be chosen up to this.
_LONGEST_GAP_MS: Final = (7 * 60 + 55) * MINUTE_MS

#: Why a session ended. ``end_of_input`` is not among them: a drained stream is time gone by.
CloseReason = Literal["inactivity", "midnight", "campaign", "client", "max_length", "quarantined", "merged"]


class UnknownRules(UserError):
    """A rule set or a time zone that does not exist, or a timeout that makes no sense."""


@dataclass(frozen=True, kw_only=True)
class SessionRules:
    """What makes a session.

    Attributes:
        name: Name of the rule set.
        gap_ms: A pause of more than this begins a new session, ms; ``None``: no pause does. A pause of
            exactly this much does not.
        zone: Sessions end at midnight of this time zone; ``None``: they do not.
        campaign: Another campaign than the session's begins a new one.
        client: The tracker in the browser says what a session is.
        max_length_ms: Longest session, from its first event, ms.
        quarantine: What comes after the longest session is put aside; otherwise it begins a new one.
        days_late_ms: An event sent more than this after it was made is dropped, ms; ``None``: none is.
        heartbeat_ms: How often a page that is being read sends a ping, ms.
        min_visit_ms: What a first ping says about the time before it, ms.
        engaged_views: So many views make a session engaged.
        engaged_ms: A session longer than this is engaged, ms; ``None``: length does not count.
        engaged_heartbeats: So many heartbeats of attention make it engaged; ``None``: they do not count.
        conversions: Names of the events that make it engaged.
        engaged_sessions: Sessions that somebody has declared engaged by hand.
    """

    name: str
    gap_ms: int | None = 30 * MINUTE_MS
    zone: str | None = None
    campaign: bool = False
    client: bool = False
    max_length_ms: int | None = None
    quarantine: bool = False
    days_late_ms: int | None = None
    heartbeat_ms: int = 10_000
    min_visit_ms: int = 5_000
    engaged_views: int = 2
    engaged_ms: int | None = None
    engaged_heartbeats: int | None = None
    conversions: frozenset[str] = frozenset({"purchase"})
    engaged_sessions: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.gap_ms is not None and not MINUTE_MS <= self.gap_ms <= _LONGEST_GAP_MS:
            raise UnknownRules("the pause that ends a session is between 1 minute and 7 h 55 min")
        if self.gap_ms is None and not self.client:
            raise UnknownRules("sessions need a pause that ends them, or a tracker that says when they end")
        if self.zone is not None:
            _zone(self.zone)

    @property
    def commutes(self) -> bool:
        """Whether nothing but a pause ends a session: then the order in which events come makes no odds."""
        return (
            self.gap_ms is not None
            and self.zone is None
            and self.max_length_ms is None
            and not (self.campaign or self.client)
        )

    def ends_after(self) -> int:
        """Return how long after its last event a session may go on, ms."""
        # A tracker's session has no timeout here; its own is 30 minutes, after which it says a new one.
        return self.max_length_ms or DAY_MS if self.gap_ms is None else self.gap_ms

    def breaks(
        self, end_ms: int, campaign: str | None, at_ms: int, new_campaign: str | None
    ) -> CloseReason | None:
        """Tell whether an event ends the session that is open, and why; a tracker's sessions end otherwise.

        Args:
            end_ms: Time of the session's last event so far, ms.
            campaign: Its campaign.
            at_ms: Time of the event, ms; not before ``end_ms``.
            new_campaign: Campaign that the event brings, if any.

        Returns:
            The reason, or ``None`` where the event belongs to the session.

        Example:
            >>> GA4.breaks(0, None, 30 * 60_000, "spring") is None
            True
            >>> GA4.breaks(0, None, 30 * 60_000 + 1, None)
            'inactivity'
            >>> universal("Europe/Berlin").breaks(0, "winter", 1_000, "spring")
            'campaign'
        """
        if self.gap_ms is not None and at_ms - end_ms > self.gap_ms:
            return "inactivity"
        if self.zone is not None and at_ms >= next_midnight(self.zone, end_ms):
            return "midnight"
        if self.campaign and new_campaign is not None and new_campaign != campaign:
            return "campaign"
        return None

    def engaged(self, *, views: int, length_ms: int, attention_s: int, converted: bool) -> bool:
        """Tell whether somebody was really there.

        Args:
            views: Page views.
            length_ms: From the first event to the last, ms.
            attention_s: Time of attention by pings, seconds.
            converted: Whether one of ``conversions`` happened.
        """
        if views >= self.engaged_views or converted:
            return True
        if self.engaged_ms is not None and length_ms > self.engaged_ms:
            return True
        beats = self.engaged_heartbeats
        return beats is not None and attention_s * 1_000 >= beats * self.heartbeat_ms

    def attention_s(self, buckets: int, pages: int) -> int:
        """Return the time of attention, whole seconds.

        Args:
            buckets: Different heartbeats in which pings came, counted page view by page view.
            pages: Page views that had any.

        Example:
            >>> SNOWPLOW.attention_s(buckets=5, pages=1)
            45
        """
        return (self.heartbeat_ms * (buckets - pages) + self.min_visit_ms * pages) // 1_000


GA4: Final = SessionRules(name="ga4", engaged_ms=10_000)
SNOWPLOW: Final = SessionRules(
    name="snowplow",
    gap_ms=None,
    client=True,
    max_length_ms=3 * DAY_MS,
    quarantine=True,
    days_late_ms=3 * DAY_MS,
    engaged_heartbeats=2,
)


def universal(zone: str, gap_ms: int = 30 * MINUTE_MS) -> SessionRules:
    """Return the rules of Universal Analytics for a shop in a time zone."""
    return SessionRules(name="universal", gap_ms=gap_ms, zone=zone, campaign=True)


def rules_named(name: str, *, gap_ms: int = 30 * MINUTE_MS, zone: str = "UTC") -> SessionRules:
    """Return a rule set by its name.

    Args:
        name: ``ga4``, ``universal`` or ``snowplow``.
        gap_ms: Pause that ends a session, ms.
        zone: Time zone whose midnight does, where the rules know one.

    Raises:
        UnknownRules: There is no such rule set.
    """
    if name == "ga4":
        return SessionRules(name="ga4", gap_ms=gap_ms, engaged_ms=10_000)
    if name == "universal":
        return universal(zone, gap_ms)
    if name == "snowplow":
        return SNOWPLOW
    raise UnknownRules(f"there are no session rules '{name}'; there are ga4, universal, snowplow")


def zone_named(name: str) -> str:
    """Return the name of a time zone.

    Raises:
        UnknownRules: There is none of that name.
    """
    return _zone(name).key


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UnknownRules(f"there is no time zone '{name}'") from error


def next_midnight(zone: str, at_ms: int) -> int:
    """Return when the day of a moment ends in a time zone, ms; days have 23 to 25 hours there.

    >>> next_midnight("UTC", 5), next_midnight("Europe/Berlin", 5) // 3_600_000
    (86400000, 23)
    """
    # The same quarter of an hour has the same midnight: no zone's day begins inside of one.
    return _midnight_after(zone, at_ms // (15 * MINUTE_MS))


@lru_cache(maxsize=4_096)
def _midnight_after(zone: str, quarter: int) -> int:
    from datetime import timedelta

    local = datetime.fromtimestamp(quarter * 15 * 60, _zone(zone))
    midnight = datetime(local.year, local.month, local.day, tzinfo=_zone(zone)) + timedelta(days=1)
    return round(midnight.timestamp() * 1_000)

"""Bots: crawlers that say so in their user agent, and scrapers that only what they do gives away.

What a browser does is counted in panes, ten per horizon, so that it costs as much however much it does.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import msgspec

from millrace.parts.panes import forget_panes, pane_at
from millrace.time.durations import format_duration

#: A horizon has so many panes.
PANES: Final = 10
_MINUTE_MS: Final = 60_000

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


@dataclass(frozen=True)
class Pace:
    """So many clicks in so much time are a bot's.

    Attributes:
        events: How many; pings of pages do not count, which come by themselves.
        within_ms: In which time, ms; between nine tenths of it and all of it are looked at.
    """

    events: int
    within_ms: int

    @property
    def name(self) -> str:
        """What is said of who is found by it.

        >>> Pace(300, 600_000).name
        'rate/10m'
        """
        return f"rate/{format_duration(self.within_ms)}"


@dataclass(frozen=True)
class BotRules:
    """What gives bots away, beside their names and fifteen events in ten seconds.

    Attributes:
        paces: Longer horizons.
        regular: So many pauses between clicks in a row, all nearly alike, are a bot's; 0: they are not.
        spread: They are alike whose standard deviation is at most so much of their mean.
        alone: So many views within ``alone_ms`` without anything else, also without a ping that somebody
            reads the page, are a bot's; 0: they are not.
        alone_ms: Within which time, ms.
    """

    paces: tuple[Pace, ...] = (Pace(300, 10 * _MINUTE_MS), Pace(1_000, 60 * _MINUTE_MS))
    regular: int = 30
    spread: float = 0.05
    alone: int = 150
    alone_ms: int = 60 * _MINUTE_MS

    @property
    def longest_ms(self) -> int:
        """How long something is counted, ms."""
        return max([self.alone_ms if self.alone else 0, *(pace.within_ms for pace in self.paces)])

    @property
    def horizons(self) -> tuple[int, ...]:
        """The horizons that are counted, ms."""
        alone = [self.alone_ms] if self.alone else []
        return tuple(sorted({*alone, *(pace.within_ms for pace in self.paces)}))


#: Nothing but its name gives a bot away.
BY_NAME_ALONE: Final = BotRules((), 0, 0.05, 0)


class Behaviour(msgspec.Struct, array_like=True, gc=False):
    """What a browser did lately.

    Attributes:
        counts: Horizon (ms) → number of the pane → clicks, and what is no view.
        times: Times of the last clicks, ms.
    """

    counts: dict[int, dict[int, list[int]]] = msgspec.field(default_factory=dict)
    times: list[int] = msgspec.field(default_factory=list)

    def take(self, kind: str, at_ms: int, rules: BotRules) -> str:
        """Take down an event; return why it is a bot's by now, empty where it is not.

        Args:
            kind: What was done.
            at_ms: When, UTC ms.
            rules: What gives bots away.

        Example:
            >>> rules, one = BotRules((Pace(3, 600_000),), regular=0, alone=0), Behaviour()
            >>> [one.take("page_view", at, rules) for at in (0, 1_000, 2_000)]
            ['', '', 'rate/10m']
        """
        ping = kind == "page_ping"
        sums = {within: self._count(within, kind, at_ms) for within in rules.horizons}
        if ping:
            return ""
        for pace in rules.paces:
            if sums[pace.within_ms][0] >= pace.events:
                return pace.name
        if rules.alone:
            clicks, others = sums[rules.alone_ms]
            if clicks >= rules.alone and not others:
                return "views_alone"
        return "regular" if rules.regular and self._regular(at_ms, rules) else ""

    def _count(self, within_ms: int, kind: str, at_ms: int) -> tuple[int, int]:
        panes = self.counts.setdefault(within_ms, {})
        pane: list[int] = pane_at(panes, at_ms * PANES // within_ms, 1, _nothing)
        pane[0] += kind != "page_ping"
        pane[1] += kind != "page_view"
        forget_panes(panes, max(panes) - PANES + 1)
        return sum(clicks for clicks, _ in panes.values()), sum(others for _, others in panes.values())

    def _regular(self, at_ms: int, rules: BotRules) -> bool:
        insort(self.times, at_ms)
        del self.times[: -rules.regular - 1]
        if len(self.times) <= rules.regular:
            return False
        pauses = [after - before for before, after in pairwise(self.times)]
        total = sum(pauses)
        # n * (sum of squares) - total² is n² times the variance.
        varied = rules.regular * sum(pause * pause for pause in pauses) - total * total
        return total > 0 and varied <= (rules.spread * total) ** 2

    def last_ms(self) -> int:
        """Return when something was last counted, at the latest, ms; 0: nothing is."""
        return max(
            ((max(panes) + 1) * within // PANES for within, panes in self.counts.items() if panes), default=0
        )


def _nothing() -> list[int]:
    return [0, 0]

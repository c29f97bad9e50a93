"""Visitors that are no people: crawlers that say so, and scrapers that only what they do gives away."""

from __future__ import annotations

from typing import Final

from millrace_apps.generators.clickstream import truths
from millrace_apps.generators.clickstream.campaigns import DIRECT
from millrace_apps.generators.clickstream.catalogue import Catalogue
from millrace_apps.generators.clickstream.profile import DOMAIN_NAME, ClickstreamProfile, Names
from millrace_apps.generators.clickstream.trail import SHOP, Trail
from millrace_apps.generators.clickstream.visitors import Device, make_device
from millrace_apps.generators.engine.randomness import substream
from millrace_apps.generators.engine.simulated import Simulated, Truth

#: User agents in the form that these crawlers document.
CRAWLERS: Final = (
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
    "Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)",
    "Mozilla/5.0 (compatible; AhrefsBot/7.0; +http://ahrefs.com/robot/)",
    "Mozilla/5.0 (compatible; SemrushBot/7~bl; +http://www.semrush.com/bot.html)",
    "facebookexternalhit/1.1 (+http://www.facebook.com/externalhit_uatext.php)",
)
#: Pages per visit and pause between them in ms, from and to.
_CRAWL: Final = (20, 80, 1_000, 9_000)
_SCRAPE: Final = (150, 400, 120, 500)
#: A page a second for minutes, with a search now and then.
_PLOD: Final = (400, 600, 700, 1_300)
#: As slow as people, but for so long, and nothing else.
_READ: Final = (180, 260, 3_000, 8_000)
#: As slow as people, and like a clock.
_TICK: Final = (80, 120, 9_000, 9_200)
#: By what they are found, upper bound of their cumulated share, pages and pauses.
KINDS: Final = (
    ("user_agent", 0.4, _CRAWL),
    ("rate", 0.6, _SCRAPE),
    ("pace", 0.75, _PLOD),
    ("alone", 0.9, _READ),
    ("regular", 1.0, _TICK),
)
#: Mean number of events per visit.
BOT_VISIT_EVENTS: Final = sum(
    (bound - before) * (pages[0] + pages[1]) / 2
    for (_, bound, pages), before in zip(KINDS, (0.0, 0.4, 0.6, 0.75, 0.9), strict=True)
)
#: Who plods searches once in so many pages.
_SEARCH_EVERY: Final = 40


class Bots:
    """Plans the visits of bots, from random numbers that nothing else uses.

    Args:
        profile: Its seed.
        names: Makes identifiers.
        catalogue: What they look at.
    """

    def __init__(self, profile: ClickstreamProfile, names: Names, catalogue: Catalogue) -> None:
        self._names = names
        self._items = catalogue.items
        self._draw = substream(profile.seed, DOMAIN_NAME, "bot").random

    def plan(self, number: int, at_ms: int) -> list[Simulated]:
        """Return the events of a bot's visit.

        Args:
            number: Number of the visit.
            at_ms: When it begins, ms since the epoch, UTC.
        """
        draw = self._draw
        drawn = draw()
        by, _, (low, high, fast, slow) = next(kind for kind in KINDS if drawn < kind[1])
        by_name = by == "user_agent"
        visitor_id = self._names.of("visitor", 2 * number)
        if by_name:
            device = Device(visitor_id, "desktop", CRAWLERS[int(draw() * len(CRAWLERS))], 0)
        else:
            device = make_device(visitor_id, draw())
        length = low + int(draw() * (high - low + 1))
        first = int(draw() * len(self._items))
        trail = Trail(self._names, number, device, at_ms, judged=False)
        for place in range(length):
            item = self._items[(first + place) % len(self._items)]
            if place == 0:
                trail.land(DIRECT, "item", item.url, item)
            else:
                trail.wait(fast + int(draw() * (slow - fast)))
                if by == "pace" and place % _SEARCH_EVERY == 0:
                    place = trail.click("search", "search", f"{SHOP}/search", query=item.category)
                    trail.mark(place, truths.search(trail, item.category, place, bot=True))
                else:
                    trail.view(item)
        truth = Truth(
            truth_id=f"bot-{trail.visitor_id}",
            kind="bot",
            entity=trail.visitor_id,
            expected="excluded",
            detail={
                "by": by,
                "start_ms": at_ms,
                "end_ms": trail.at_ms,
                "events": length,
            },
        )
        return trail.finish(truth)

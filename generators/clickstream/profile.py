"""The parameters of the web shop, and its identifiers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millrace_apps.generators.engine.profile import Profile, check
from millrace_apps.generators.engine.randomness import digest

DOMAIN_NAME: Final = "clickstream"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClickstreamProfile(Profile):
    """What the streams of a web shop are made from.

    ``event_rate`` is the mean over a week of all that people do; bots and page pings come on top.

    Attributes:
        event_rate: Events of people per second of event time, as a mean over the week.
        people: Number of people with an account; all other visits are of visitors never seen before.
        known: Share of visits by people with an account, 0 to 1; fewer when most are in the shop already.
        visitor_skew: How unequal people's activity is: 0 is even, 1 gives the busiest tenth a third of it.
        items: Number of items in the catalogue.
        item_skew: Zipf exponent of the items' popularity.
        season: How strong the rhythm of day and week is: 0 is none, 1 as measured.
        conversion: Purchases completed in the same visit per cart with something in it, 0 to 1.
        recovery: Share of abandoned carts that are bought later when nothing is offered, 0 to 1.
        offer_uplift: What an offer adds to that share, -1 to 1; see ``responds``.
        offer_answer_min: Who buys because of an offer comes so many minutes after it, as a median.
        list_clicks: How likely the first item of a list of next items is clicked, 0 to 0.3, by who has
            stopped looking around; see ``Lists``.
        list_patience_min: Who has stopped reads lists that were made at most so many minutes ago.
        refunds: Share of orders that come back at least in part, 0 to 1.
        refund_after_h: After how many hours they do, as a median.
        cancellations: Share of orders that are cancelled at least in part, 0 to 1; none of them comes back.
        foreign: Share of orders that are paid in another currency than EUR, 0 to 1.
        boundaries: Share of visits with one pause of about 30 minutes, 0 to 1.
        campaign_changes: Share of visits that arrive a second time through another campaign, 0 to 1.
        shared: Share of a known household's visits on the tablet that its people share, 0 to 1.
        heartbeat_s: Seconds between the pings of a page that is being read, on top of the rate; 0: none.
        bots: Events of bots per event of people, 0 to 10.
        erasures: Requests for erasure per 1,000 visits of people with an account.
        sold_out: Share of the items that are sold out at a time, 0 to 0.5; 0: nothing is said of items.
    """

    event_rate: float = 100.0
    people: int = 20_000
    known: float = 0.35
    visitor_skew: float = 1.0
    items: int = 10_000
    item_skew: float = 1.0
    season: float = 0.0
    conversion: float = 0.3
    recovery: float = 0.075
    offer_uplift: float = 0.05
    offer_answer_min: float = 60.0
    list_clicks: float = 0.0
    list_patience_min: float = 10.0
    refunds: float = 0.06
    refund_after_h: float = 72.0
    cancellations: float = 0.02
    foreign: float = 0.0
    boundaries: float = 0.01
    campaign_changes: float = 0.01
    shared: float = 0.03
    heartbeat_s: int = 0
    bots: float = 0.03
    erasures: float = 0.5
    sold_out: float = 0.0

    def __post_init__(self) -> None:
        # The two-argument form: a slotted dataclass is a second class, which super() alone does not find.
        super(ClickstreamProfile, self).__post_init__()
        check(2 <= self.people <= 10_000_000, "people is a count between 2 and 10,000,000", self.people)
        check(24 <= self.items <= 1_000_000, "items is a count between 24 and 1,000,000", self.items)
        shares = (
            "known",
            "season",
            "conversion",
            "recovery",
            "refunds",
            "cancellations",
            "foreign",
            "boundaries",
            "campaign_changes",
            "shared",
        )
        for name in shares:
            check(0 <= getattr(self, name) <= 1, f"{name} is a share between 0 and 1", getattr(self, name))
        check(0 <= self.visitor_skew <= 5, "visitor skew is between 0 and 5", self.visitor_skew)
        check(0 <= self.item_skew <= 5, "item skew is an exponent between 0 and 5", self.item_skew)
        low, high = -self.recovery, 1 - self.recovery
        check(
            low <= self.offer_uplift <= high,
            f"with a recovery of {self.recovery} the uplift of an offer is between {low} and {high}",
            self.offer_uplift,
        )
        check(
            0 < self.offer_answer_min <= 10_000,
            "answers to an offer come after up to 10,000 minutes",
            self.offer_answer_min,
        )
        check(0 <= self.list_clicks <= 0.3, "list clicks is a share between 0 and 0.3", self.list_clicks)
        check(
            0 < self.list_patience_min <= 30,
            "lists are read for up to 30 minutes: then a session is over",
            self.list_patience_min,
        )
        check(0 < self.refund_after_h <= 1_000, "refunds come after up to 1,000 hours", self.refund_after_h)
        check(0 <= self.heartbeat_s <= 300, "heartbeat is 0 to 300 seconds", self.heartbeat_s)
        check(0 <= self.bots <= 10, "bots is 0 to 10 events per event of people", self.bots)
        check(0 <= self.sold_out <= 0.5, "sold_out is a share between 0 and 0.5", self.sold_out)
        check(0 <= self.erasures <= 1000, "erasures is 0 to 1,000 per 1,000 visits", self.erasures)


class Names:
    """Makes identifiers that differ between runs and tell nothing of how they came about.

    Args:
        profile: Its seed and start are part of every identifier.

    >>> names = Names(ClickstreamProfile(seed=7))
    >>> names.of("v", 1) == names.of("v", 1) != names.of("v", 2)
    True
    """

    def __init__(self, profile: ClickstreamProfile) -> None:
        #: Digest of domain, seed and start.
        self.run = digest(DOMAIN_NAME, profile.seed, profile.start_ms)[:10]

    def of(self, kind: str, number: int) -> str:
        """Return the identifier of the thing with this number, below 2^40, of its kind."""
        return f"{kind}-{self.run}-{scatter(number):010x}"

    def code(self, number: int) -> str:
        """Return what the identifiers of all kinds of things with this number end in."""
        return f"{self.run}-{scatter(number):010x}"


def scatter(number: int) -> int:
    """Return another number below 2^40, different for different numbers.

    Multiplication by an odd number and exclusive or with the upper half can both be undone, so no two
    numbers meet. Bots and people share one sequence, and this hides which is which.

    >>> len({scatter(number) for number in range(10_000)})
    10000
    """
    number = (number * 0x9E3779B97F) & 0xFFFFFFFFFF
    number ^= number >> 20
    number = (number * 0xC2B2AE3D27) & 0xFFFFFFFFFF
    return number ^ (number >> 20)

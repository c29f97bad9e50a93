"""A folder as the clickstream app leaves it, small and seeded: sessions, funnels, boards, offers, orders."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import NamedTuple

from millrace_apps.clickstream.contracts.rows import Erased, Identity, SessionRow
from millrace_apps.clickstream.processes.attributions import Attribution
from millrace_apps.clickstream.processes.boards import BoardRow
from millrace_apps.clickstream.processes.carts import Abandonment
from millrace_apps.clickstream.processes.channels import built_in
from millrace_apps.clickstream.processes.counters import ItemFeatures
from millrace_apps.clickstream.processes.funnels import PURCHASE, FunnelResult
from millrace_apps.clickstream.processes.person_funnels import PersonFunnel
from millrace_apps.clickstream.processes.revenue import RevenueRow
from millrace_apps.clickstream.recommend.records import ClickThrough, Recommendation, RecommendationQuality
from millrace_apps.clickstream.state.consent import ConsentChange
from millrace_apps.clickstream.state.offers import Offer, OfferOutcome
from millrace_apps.clickstream.state.profiles import Profile
from tests.unit.millrace.dashboard.cases import put_checkpoint, put_records

START_MS = 1_767_225_600_000
MINUTE, HOUR = 60_000, 3_600_000
#: Board, how often one ends, and how long it is, minutes.
BOARDS = (("views/5m", 1, 5), ("views/1h", 5, 60), ("sold/1h", 5, 60), ("categories/1h", 5, 60),
          ("revenue/1h", 5, 60), ("sold/24h", 60, 1_440), ("searches/1h", 5, 60))  # fmt: skip
CAMPAIGNS = (None, "google / cpc / spring", "newsletter / email / (none)")
CHANNELS = tuple(map(built_in().channel, CAMPAIGNS))
DEVICES = ("mobile", "desktop")
#: An item whose name is what an attacker would wish it to be.
EVIL = "<img src=x onerror=window.harmed=1>"


class ShopRecords(NamedTuple):
    """What was written."""

    sessions: list[SessionRow]
    funnels: list[FunnelResult]
    boards: list[BoardRow]
    offers: list[Offer]
    outcomes: list[OfferOutcome]
    orders: list[Attribution]
    carts: list[Abandonment]

    @property
    def until_ms(self) -> int:
        """End of the last window."""
        return max(b.window_end_ms for b in self.boards)


def sessions(random: Random) -> list[SessionRow]:
    found = []
    for n in range(400):
        start = START_MS + n * MINUTE // 2
        final, bought = n < 300, random.random() < 0.1
        views = random.randrange(1, 12)
        campaign, device = random.choice(CAMPAIGNS), random.choice(DEVICES)
        found.append(SessionRow(
            f"v{n % 150}-{start}", f"v{n % 150}", f"u{n % 150}" if n % 3 == 0 else None, 1, start,
            start + views * 40_000, views * 2, views, 0, views > 1, bought, 0, int(bought), 1_999 * bought,
            campaign, "https://shop.example/a", "https://shop.example/b", device, "ga4",
            "inactivity" if final else "", final, 0, random.choice(("", "", "", "", "rate", "user_agent")), n,
            channel=built_in().channel(campaign),
        ))  # fmt: skip
    return found


def funnels(random: Random) -> list[FunnelResult]:
    found = []
    steps = PURCHASE.steps
    for n in range(300):
        arm = "control" if n % 5 == 0 else "offer"
        reached = 1
        while reached < len(steps) and random.random() < (0.6 if arm == "offer" else 0.5):
            reached += 1
        found.append(FunnelResult(
            "purchase", f"v{n % 150}-{START_MS + n * MINUTE // 2}", f"v{n}", arm, reached, len(steps),
            steps[reached - 1],
            steps[reached] if reached < len(steps) else None,
            [random.randrange(5_000, 90_000) for _ in range(reached - 1)], START_MS, 1,
        ))  # fmt: skip
    return found


def boards(random: Random) -> list[BoardRow]:
    """Three hours of boards; in some minutes nobody was there."""
    found = []

    def put(board: str, end: int, length: int, places: list[tuple[str, int]]) -> None:
        for rank, (item, value) in enumerate(places, 1):
            found.append(BoardRow(board, end - length * MINUTE, end, rank, item, value, 0))

    items = [*(f"item-{n:03}" for n in range(30)), EVIL]
    for minute in range(1, 181):
        end = START_MS + minute * MINUTE
        if minute % 17:
            there = [(device, random.randrange(1, 30)) for device in ("desktop", "mobile", "tablet")]
            put("visitors/1m", end, 1, there)
            put("visitors/now", end, 5, [(device, n * 3) for device, n in there])
        for board, every, length in BOARDS:
            if minute % every == 0:
                names = ["clothes", "shoes", ""] if board[0] in "cr" else random.sample(items, 10)
                values = sorted((random.randrange(1, 900) for _ in names), reverse=True)
                put(board, end, length, list(zip(names, values, strict=True)))
                if board.endswith("/1h"):
                    for segment in ("device: mobile", "channel: paid_search"):
                        values = [*values[1:], values[0]]
                        put(f"{board}@{segment}", end, length, list(zip(names, values, strict=True)))
    return found


def offers(random: Random) -> tuple[list[Offer], list[OfferOutcome]]:
    """A rule that adds, one that has no control arm yet, and one of which nothing can be told."""
    made, outcomes = [], []
    for rule, number, control, lift in (
        ("left-cart", 1_200, 0.3, 0.2), ("all-new", 20, 0.0, 0.0), ("unclear", 60, 0.5, 0.0),
    ):  # fmt: skip
        for n in range(number):
            arm = "control" if random.random() < control else "offer"
            name = f"{rule}-{n}"
            why = {"cart": f"add_to_cart {EVIL}", "left": "abandoned"}
            at, part = START_MS + n * 10_000, (DEVICES[n // 7 % 2], CHANNELS[n // 5 % 3])
            made.append(
                Offer(name, rule, "free-delivery", arm, f"u:u{n % 150}", f"v{n % 150}", None, at, why, *part)
            )
            if random.random() < 0.1 + (lift if arm == "offer" else 0.0):
                outcomes.append(OfferOutcome(name, rule, arm, True, f"o{n}", 900, at + HOUR, *part))
            elif n % 10 == 0:  # a few whose seven days are over
                outcomes.append(OfferOutcome(name, rule, arm, False, None, 0, at + 168 * HOUR, *part))
    return made, outcomes


def orders(random: Random) -> list[Attribution]:
    found = []
    for n in range(80):
        cents = random.randrange(1_000, 20_000)
        back = cents // 2 if n % 9 == 0 else 0
        first, last = (random.choice(CAMPAIGNS) or "direct" for _ in range(2))
        found.append(
            Attribution(f"o{n}", START_MS + n * 3 * MINUTE, first, last, cents, back, cents - back, 0)
        )
    return found


def books() -> list[RevenueRow]:
    """Days of two currencies; of the third one nothing is left, of some costs are not known."""
    return [
        RevenueRow(
            f"2026-01-{day:02}", currency, 10 * day, day, 30 * day, 90_000 * day, 1_500, 400, 500, 300, 10,
            80_000 * day, 7_000 * day, 10 * day - (day == 2), 10 * day, 100_000 * day,
            0 if day == 3 else 85_000 * day, 20_000 * day, 700, 700 + day, day,
        )
        for day in range(1, 18)
        for currency in ("EUR", "GBP")
    ]  # fmt: skip


def items() -> list[ItemFeatures]:
    """Items at two full hours; one of them has been looked at before alone."""
    return [
        ItemFeatures(
            f"item-{n:03}", "shoes", n, 0, 10 * n + hour, n // 3, 1_999 * (n // 3), 1_999,
            START_MS + hour * HOUR, 1, 2 * n,
        )
        for hour in (1, 2)
        for n in range(30 + (hour == 1))
    ]  # fmt: skip


def newest_of(rows: list[ItemFeatures]) -> list[ItemFeatures]:
    return list({row.item_id: row for row in rows}.values())


def next_items() -> list[Recommendation]:
    """Lists of one browser, on two surfaces."""
    return [
        Recommendation(
            f"e{n}", surface, "v0", "u:u0", START_MS + n * MINUTE, f"item-{n:03}", "learned",
            [f"item-{n + 1:03}", EVIL], [0.5, 0.1], ["sessions", "popular"], n + 1, 40,
        )
        for n in range(15)
        for surface in ("resume", "discover")
    ]  # fmt: skip


def next_quality() -> list[RecommendationQuality]:
    """How good lists were in three hours: those to discover were worse in the last one."""
    return [
        RecommendationQuality(
            surface, arm, START_MS + n * HOUR, START_MS + (n + 1) * HOUR, 100 + n, 0.25 + n / 100, 0.125,
            0.0625, 0.5, "down" if (n, surface) == (2, "discover") else "",
        )
        for n in range(3)
        for surface in ("resume", "discover")
        for arm in ("learned", "popular")
    ]  # fmt: skip


def next_clicks() -> list[ClickThrough]:
    """Lists and clicks of three hours: of the arm ``learned`` twice as many are clicked."""
    return [
        ClickThrough(
            "discover", arm, START_MS + n * HOUR, START_MS + (n + 1) * HOUR, 100, clicked, clicked / 100,
            2.0 + n if clicked else None,
        )
        for n in range(3)
        for arm, clicked in (("learned", 20), ("unlearned", 10), ("popular", 0))
    ]  # fmt: skip


def person_ways() -> list[PersonFunnel]:
    """Ways of persons of two weeks; every fourth has bought, every twelfth again."""
    week, steps = 7 * 24 * HOUR, PURCHASE.steps
    found = []
    for n in range(48):
        cohort = START_MS - (n % 2) * week + n * MINUTE
        arm = "control" if n % 5 == 0 else "offer"
        ways = [5, 5] if n % 12 == 0 else [5] if n % 4 == 0 else [1 + n % 3]
        for number, reached in enumerate(ways, 1):
            begin = cohort + (number - 1) * HOUR
            found.append(PersonFunnel(
                "persons", f"u:u{n}", number, arm, cohort, begin, begin + MINUTE * reached, reached, 5,
                steps[reached - 1], steps[reached] if reached < 5 else None, [MINUTE] * (reached - 1), 1, n,
            ))  # fmt: skip
    return found


def shop_folder(root: Path) -> ShopRecords:
    """Write everything that the page can show; return it."""
    random = Random(7)
    made, outcomes = offers(random)
    carts = [
        Abandonment(f"c{n}", START_MS + n * 3 * MINUTE, START_MS + (3 * n + 30) * MINUTE,
                    random.choice(("cart", "address", "payment")), random.randrange(500, 9_000), f"v{n}",
                    None, 1, ["item-001", *([f"item-{n % 3 + 1:03}"] if n % 3 else [])],
                    DEVICES[n // 3 % 2], CHANNELS[n // 2 % 3])
        for n in range(60)
    ]  # fmt: skip
    found = ShopRecords(
        sessions(random), funnels(random), boards(random), made, outcomes, orders(random), carts
    )
    half = len(made) // 2
    for table, records, key in (
        ("sessions", found.sessions, ["session_id"]), ("funnels", found.funnels, ["funnel", "session_id"]),
        ("boards", found.boards, ["board", "window_end_ms", "rank"]), ("outcomes", outcomes, ["offer_id"]),
        ("attributions", found.orders, ["order_id"]),
        ("revenue", books(), ["day", "currency"]),
        ("items", newest_of(items()), ["item_id"]),
        ("identities", [Identity("v0", "u0", START_MS, 1)], ["visitor_id"]),
        ("profiles", [
            Profile("u:u0", ["v0"], 5, 1, 1, 1, 2, 4_500, ["item-001"], "shoes", 900, START_MS, 3)
        ], ["person"]),
    ):  # fmt: skip
        put_records(root, table, records, key=key)
    put_records(root, "person_funnels", person_ways(), key=["funnel", "person", "way"])
    put_records(root, "recommendations", next_items())
    put_records(root, "recommendation_quality", next_quality())
    put_records(root, "recommendation_click_through", next_clicks())
    for table, records in (
        ("offers", made[:half]), ("offers", made[half:]),
        ("abandonments", carts[:20]), ("abandonments", carts[20:]),
        ("erasures", [Erased("r1", "0" * 32, True, START_MS)]),
        ("consents", [
            ConsentChange(f"c{n}", f"v{n}", None, n % 4 > 0, ["marketing"], [], n % 4 == 0, START_MS)
            for n in range(12)
        ]),
    ):  # fmt: skip
        put_records(root, table, records)
    put_checkpoint(root, {"clickstream.clicks": {"0": 5_000}}, batch=3, watermark=found.until_ms)
    return found

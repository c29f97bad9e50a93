"""Shoppers who answer offers: what they do, and what the ledger says of it."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import islice, pairwise
from math import inf
from typing import Any

import msgspec
import pytest

from millrace.errors import UserError
from millrace_apps.generators.clickstream import ClickstreamProfile, responds, simulate
from millrace_apps.generators.clickstream.answers import OfferMade
from millrace_apps.generators.clickstream.lists import SURFACES, ListMade
from millrace_apps.generators.clickstream.loop import APP_TOPICS, ShopWorld, time_of
from millrace_apps.generators.engine.loop import AppPace, Mailbag, closed_loop
from millrace_apps.generators.engine.simulated import Simulated
from tests.cases import case_count

CASES = case_count(10)
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
PROFILE = ClickstreamProfile(
    seed=5, event_rate=1.0, people=60, items=100, known=0.8, shared=0.2, conversion=0.1, recovery=0.3,
    offer_uplift=0.5, offer_answer_min=30.0, bots=0.02, erasures=100.0,
)  # fmt: skip


def offer_for(left: dict[str, Any], at: int, arm: str = "offer", *, number: int = 0) -> OfferMade:
    return OfferMade(
        f"o-{left['cart_id']}-{number}", "r", "ten", arm, left["visitor_id"], at, left["cart_id"]
    )


class Played:
    """A shop of some hours in which carts that were left get offers."""

    def __init__(self, profile: ClickstreamProfile, draw: random.Random, hours: int = 8) -> None:
        self.world = ShopWorld(profile)
        self.events: list[Simulated] = []
        self.made: dict[str, OfferMade] = {}
        self.heard: dict[str, int] = {}
        changed: dict[str, tuple[int, str]] = {}
        end = self.world.now_ms + hours * HOUR
        while self.world.now_ms < end:
            step = draw.choice((20_000, MINUTE, 7 * MINUTE, 40 * MINUTE))
            for one in self.world.advance(self.world.now_ms + step):
                self.events.append(one)
                if one.stream == "clicks" and one.event.cart_id is not None:
                    changed[one.event.cart_id] = one.event_time_ms, one.event.visitor_id
                    if one.event.event_type == "purchase":
                        del changed[one.event.cart_id]
            if self.world.now_ms > end - HOUR:
                continue  # all that was offered has time to be told of
            for cart, (at, visitor) in list(changed.items()):
                if self.world.now_ms - at > 15 * MINUTE:
                    del changed[cart]
                    self._offer({"cart_id": cart, "visitor_id": visitor}, draw)

    def _offer(self, left: dict[str, Any], draw: random.Random) -> None:
        now = self.world.now_ms
        arm, number = draw.choice(("offer", "offer", "control")), len(self.made)
        made = offer_for(left, now - draw.randrange(5 * MINUTE), arm, number=number)
        for _ in range(draw.choice((1, 1, 2))):
            self.world.receive(made)
        self.made[made.offer_id], self.heard[made.offer_id] = made, now

    def truths(self, kind: str) -> dict[str, dict[str, Any]]:
        return {t.entity: t.detail for one in self.events for t in one.truths if t.kind == kind}

    def purchases(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = defaultdict(list)
        for one in self.events:
            if one.stream == "clicks" and one.event.event_type == "purchase":
                found[one.event.cart_id].append(one.event)
        return found


def test_where_nothing_is_offered_the_shop_is_as_ever() -> None:
    world = ShopWorld(PROFILE)
    looped = [one for _ in range(90) for one in world.advance(world.now_ms + 77_777)]
    assert looped == list(islice(simulate(PROFILE), len(looped)))
    assert len(looped) > 5_000


@pytest.mark.parametrize("seed", range(CASES))
def test_offers_bring_about_the_purchases_that_the_ledger_says_and_no_other(seed: int) -> None:
    draw = random.Random(seed)
    profile = replace(PROFILE, seed=draw.randrange(10_000), offer_uplift=draw.choice((0.1, 0.5, 0.7)))
    played = Played(profile, draw)
    told, purchases = played.truths("offer"), played.purchases()
    assert told.keys() == played.made.keys()
    assert played.world.offers == len(told)  # some came twice
    assert {len(bought) for bought in purchases.values()} <= {1}  # no cart is bought twice
    for offer_id, true in told.items():
        made = played.made[offer_id]
        unaided = responds(profile, made.visitor_id, None)
        aided = responds(profile, made.visitor_id, made.offer)
        assert not true["adds"] or (aided and not unaided)
        if true["order_id"] is None:
            assert not true["adds"] or made.arm == "control"
            continue
        assert (made.arm, true["adds"], true["shown"]) == ("offer", True, True)
        assert true["bought_ms"] > played.heard[offer_id]
        if true["bought_ms"] < played.world.now_ms - 2_000:
            (bought,) = purchases[str(made.cart_id)]
            assert (bought.order_id, bought.event_time_ms) == (true["order_id"], true["bought_ms"])
    answered = {true["order_id"] for true in told.values() if true["order_id"] is not None}
    ordered = {bought[0].order_id for bought in purchases.values()}
    assert answered & ordered
    assert ordered - answered


@pytest.mark.parametrize("seed", range(CASES // 2))
def test_nobody_is_in_the_shop_twice_at_a_time(seed: int) -> None:
    """Who comes back for an offer does so in a session of its own, and the ledger's sessions are exact."""
    draw = random.Random(seed)
    played = Played(replace(PROFILE, seed=draw.randrange(10_000)), draw, hours=6)
    sessions = defaultdict(list)
    for one in played.events:
        for truth in one.truths:
            if truth.kind == "session":
                sessions[truth.entity].append((truth.detail["start_ms"], truth.detail["end_ms"]))
    clicks = Counter(one.event.visitor_id for one in played.events if one.stream == "clicks")
    assert clicks.keys() >= sessions.keys()
    for spans in sessions.values():
        own = sorted(set(spans))
        assert all(end + 30 * MINUTE < start for (_, end), (start, _) in pairwise(own))


def test_what_nobody_can_answer_brings_about_nothing() -> None:
    """No cart, a cart that nobody has left, one that comes a week late."""
    world = ShopWorld(replace(PROFILE, event_rate=0.2))
    for one in (
        OfferMade("a", "r", "ten", "offer", "v", world.now_ms),
        OfferMade("b", "r", "ten", "offer", "v", world.now_ms, "no-cart"),
    ):
        world.receive(one)
    left = {}
    for one in world.advance(world.now_ms + 12 * HOUR):
        if one.stream == "clicks" and one.event.event_type == "add_to_cart":
            left[one.event.cart_id] = one.event.visitor_id
    quiet = list(world.advance(world.now_ms + 8 * DAY))
    for cart, visitor in left.items():
        world.receive(OfferMade(f"late-{cart}", "r", "ten", "offer", visitor, world.now_ms, cart))
    after = list(world.advance(world.now_ms + HOUR))
    told = [t for one in after for t in one.truths if t.kind == "offer"]
    assert len(told) == len(left) > 5
    assert all(t.detail["order_id"] is None for t in told)
    assert len([t for one in quiet for t in one.truths if t.kind == "offer"]) == 0
    assert world.offers == len(left) + 2


def test_an_offer_is_read_as_the_app_writes_it() -> None:
    from millrace_apps.clickstream.state.offers import Offer

    offer = Offer("o", "cart-left", "ten", "control", "u:ann", "v1", "c1", 7, {"left": "abandoned"})
    assert Mailbag(APP_TOPICS).open("clickstream.offers", msgspec.json.encode(offer)) == OfferMade(
        "o", "cart-left", "ten", "control", "v1", 7, "c1"
    )


def test_answers_take_some_time() -> None:
    with pytest.raises(UserError, match="answers to an offer"):
        ClickstreamProfile(offer_answer_min=0.0)


# -- lists of next items -------------------------------------------------------------------------------------


class Shown:
    """A shop of some hours in which each look at an item is answered by a list of each surface."""

    def __init__(self, seed: int, arms: dict[str, str]) -> None:
        profile = replace(PROFILE, seed=seed, list_clicks=0.3, known=0.2, event_rate=2.0, erasures=0.0)
        self.world, draw = ShopWorld(profile), random.Random(seed)
        self.events: list[Simulated] = []
        shop = self.world._shop
        items = [item.item_id for item in shop._lists._catalogue.items]  # type: ignore[union-attr]
        end = self.world.now_ms + 4 * HOUR
        while self.world.now_ms < end:
            new = list(self.world.advance(self.world.now_ms + draw.choice((20_000, MINUTE, 3 * MINUTE))))
            self.events += new
            for one in new:
                if one.stream != "clicks" or one.event.item_id is None or self.world.now_ms > end - HOUR:
                    continue
                for surface in SURFACES:
                    arm = draw.choice(tuple(arms))
                    chosen = draw.sample(items, 5)
                    if arms[arm] == "related":
                        lists: Any = shop._lists
                        looked_at = lists._items[one.event.item_id]
                        chosen = [item.item_id for item, _ in lists._catalogue.related(looked_at)]
                    made = ListMade(
                        one.event.event_id, surface, one.event.visitor_id, one.event_time_ms,
                        one.event.item_id, arm, list(dict.fromkeys(chosen)),
                    )  # fmt: skip
                    self.world.receive(made)
                    self.world.receive(made)  # what comes twice is read once
        self.told = {t.truth_id: t for one in self.events for t in one.truths if t.kind == "list"}


@pytest.mark.parametrize("seed", range(2))
def test_lists_are_clicked_as_often_as_the_ledger_says_they_are_likely_to_be(seed: int) -> None:
    shown = Shown(seed, {"learned": "related", "popular": "others"})
    clicks = {one.event.event_id: one for one in shown.events if one.stream == "clicks"}
    rates: dict[tuple[str, str], list[tuple[float, bool]]] = defaultdict(list)
    for truth in shown.told.values():
        told = truth.detail
        if told["read"]:
            rates[told["surface"], told["arm"]].append((told["chance"], told["drawn"]))
        if told["click"] is None:
            continue
        click = clicks[told["click"]]
        assert (click.event.item_id, click.event_time_ms) == (told["item"], told["at_ms"])
        assert told["due_ms"] < told["at_ms"] <= told["due_ms"] + 10 * MINUTE
        assert truth.truth_id in {t.truth_id for t in click.truths} or not told["drawn"]
    assert shown.world.lists == len(shown.told) > 1_000
    for own in rates.values():
        wanted = sum(chance for chance, _ in own)
        spread = sum(chance * (1 - chance) for chance, _ in own) ** 0.5
        assert len(own) > 100
        assert abs(sum(drawn for _, drawn in own) - wanted) < 4 * spread + 1
    means = {name: sum(chance for chance, _ in own) / len(own) for name, own in rates.items()}
    assert means["resume", "learned"] > means["discover", "learned"] > means["discover", "popular"]


def test_sessions_of_who_reads_lists_are_what_the_clicks_are() -> None:
    """The ledger's sessions grow with the clicks that lists bring about, and no two of them meet."""
    shown = Shown(3, {"learned": "related"})
    by: dict[str, list[Any]] = defaultdict(list)
    told = {}
    for one in shown.events:
        if one.stream == "clicks":
            by[one.event.visitor_id].append(one.event)
        told |= {t.truth_id: t for t in one.truths if t.kind == "session"}
    made = sum("-r" in event.event_id for own in by.values() for event in own)
    assert made > 200
    until = shown.world.now_ms - HOUR
    for truth in told.values():
        start, end = truth.detail["start_ms"], truth.detail["end_ms"]
        if end < until:
            own = [e for e in by[truth.entity] if start <= e.event_time_ms <= end]
            assert len(own) == truth.detail["events"]
            assert sum(e.event_type == "page_view" for e in own) == truth.detail["page_views"]
            assert own[-1].event_time_ms == end
            around = [e.event_time_ms for e in by[truth.entity] if not start <= e.event_time_ms <= end]
            assert not any(start - 30 * MINUTE <= at <= end + 30 * MINUTE for at in around)


def test_who_has_other_things_to_do_reads_no_list() -> None:
    world = ShopWorld(replace(PROFILE, list_clicks=0.3))
    world.receive(ListMade("c", "resume", "nobody", world.now_ms, "item-1", "learned", ["item-2"]))
    assert world.lists == 0
    silent = ShopWorld(PROFILE)
    silent.receive(ListMade("c", "resume", "nobody", world.now_ms, "item-1", "learned", ["item-2"]))
    assert (silent.lists, silent.offers) == (0, 0)
    with pytest.raises(UserError, match="list clicks"):
        ClickstreamProfile(list_clicks=0.5)
    with pytest.raises(UserError, match="lists are read"):
        ClickstreamProfile(list_patience_min=31.0)


def test_a_list_is_read_as_the_app_writes_it() -> None:
    from millrace_apps.clickstream.recommend.records import Recommendation

    row = Recommendation("c", "resume", "v1", "u:1", 7, "i", "learned", ["a"], [0.5], ["rule"], 1, 2)
    assert Mailbag(APP_TOPICS).open("clickstream.recommendations", msgspec.json.encode(row)) == ListMade(
        "c", "resume", "v1", 7, "i", "learned", ["a"]
    )


# -- an app that is slow -------------------------------------------------------------------------------


class SlowApp:
    """Takes what was sent batch by batch, each of which takes so long, and then says its lists."""

    def __init__(self, batch_s: float, *, silent_from: float = inf) -> None:
        self.seconds, self._batch_s, self._silent_from = 0.0, batch_s, silent_from
        self._ends, self._sent, self._taken = batch_s, list[Any](), list[Any]()

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def send(self, one: Simulated) -> None:
        if one.stream == "clicks" and one.event.event_type == "page_view" and one.event.item_id:
            self._sent.append(one.event)

    def poll(self, timeout_s: float) -> list[tuple[str, bytes]]:
        self.seconds += timeout_s
        if self.seconds < self._ends or self.seconds >= self._silent_from:
            return []
        self._ends = self.seconds + self._batch_s
        said, self._taken, self._sent = self._taken, self._sent, []
        items = [click.item_id for click in said[:10]]
        return [
            (
                "clickstream.recommendations",
                msgspec.json.encode(
                    ListMade(c.event_id, "resume", c.visitor_id, c.event_time_ms, c.item_id, "a", items)
                ),
            )
            for c in said
        ]


def hours_with(app: SlowApp, ahead_min: float | None) -> tuple[int, list[int]]:
    """How many lists were read in two hours of event time that go by in a minute; and all events."""
    profile = replace(PROFILE, offer_uplift=0.0, list_clicks=0.3, list_patience_min=20.0, known=0.0)
    world = ShopWorld(profile)
    pace = None if ahead_min is None else AppPace(time_of, int(ahead_min * MINUTE))
    found, read = list[int](), 0
    for one in closed_loop(
        world, app, mailbag=Mailbag(APP_TOPICS), clock=app, speed=120, until_ms=world.now_ms + 2 * HOUR,
        pace=pace,
    ):  # fmt: skip
        app.send(one)
        found.append(one.event_time_ms if one.stream == "clicks" else 0)
        read += sum(t.kind == "list" and t.detail["read"] for t in one.truths)
    return read, found


def test_shoppers_wait_for_an_app_whose_batches_take_longer_than_they_would() -> None:
    """A batch of 12 s is 24 minutes of event time: nobody reads what comes then, unless time waits for it."""
    late, waited = SlowApp(12.0), SlowApp(12.0)
    assert hours_with(late, None)[0] == 0
    assert hours_with(waited, 8)[0] > 100
    assert late.seconds == pytest.approx(60, abs=1)
    assert 100 < waited.seconds < 60 * 12


def test_an_app_in_time_is_not_waited_for_and_a_silent_one_once() -> None:
    in_time, mute, silent = SlowApp(1.0), SlowApp(1.0, silent_from=0), SlowApp(1.0, silent_from=30)
    assert hours_with(in_time, 8)[0] > 100
    assert in_time.seconds == pytest.approx(60, abs=1)
    assert hours_with(mute, 8) == hours_with(SlowApp(1.0, silent_from=0), None)
    assert mute.seconds == pytest.approx(60 + 2, abs=1)  # it may have nothing to say for long
    hours_with(silent, 8)
    assert silent.seconds == pytest.approx(60 + 20, abs=2)

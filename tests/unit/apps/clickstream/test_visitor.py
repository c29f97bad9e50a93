"""The visitor: repeats, bots, consent, whose browser it is, funnels, erasure."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from millrace.parts.contents import digest_of as content_of
from millrace.testing import TestDriver
from millrace_apps.clickstream.contracts.events import INPUTS, MAX_TIME_MS, Customer, Erasure, Forget, Refund
from millrace_apps.clickstream.contracts.messages import (
    Activity,
    Details,
    EraseCart,
    ErasePerson,
    ItemCount,
    Link,
    MarketingConsent,
    OrderRefunded,
    Unlink,
)
from millrace_apps.clickstream.contracts.rows import digest_of
from millrace_apps.clickstream.processes.bots import is_crawler
from millrace_apps.clickstream.processes.funnels import Funnel, FunnelError, walk
from millrace_apps.clickstream.processes.visitor import Visitors
from millrace_apps.clickstream.state.browser_state import (
    BrowserState,
    VisitorRules,
    arm_of,
    newly_covered,
    said_the_same,
    seen_as,
    seen_at,
)
from millrace_apps.clickstream.state.sessions import Session
from tests.unit.apps.clickstream.app_cases import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    START,
    click,
    consent,
    send,
)

ALL = ("analytics", "personalisation", "marketing")


def driver(bound: int = 0, **rules: Any) -> TestDriver:
    return TestDriver(Visitors(VisitorRules(**rules)), out_of_orderness_ms=bound)


def told(target: TestDriver, person: str) -> list[Any]:
    return [t for t in target.values() if t.person == person]


def sessions(target: TestDriver) -> list[Any]:
    newest = {row.session_id: row for row in target.values("sessions")}
    return sorted((r for r in newest.values() if not r.deleted), key=lambda r: r.start_ms)


def test_an_open_session_has_the_number_that_it_will_have_whether_the_one_before_is_closed_or_not() -> None:
    for together in (True, False):
        target = driver()
        events = [click(0), click(40 * MINUTE), click(42 * MINUTE)]
        for batch in [events] if together else [[e] for e in events]:
            send(target, *batch)
        assert [(r.number, r.is_final) for r in sessions(target)] == [(1, True), (2, False)]


# -- repeats -----------------------------------------------------------------------------------------


def test_a_repeat_goes_to_the_dead_letters_and_changes_nothing_in_whatever_batch_it_comes() -> None:
    target, once = driver(), driver()
    first, second = click(0, item_id="i1"), click(MINUTE, item_id="i2")
    send(target, first, first)
    target.restart()
    send(target, second)
    send(target, first)
    for event in (first, second):
        send(once, event)
    for each in (target, once):
        each.drain()
    assert target.values() == once.values()
    assert target.values("sessions") == once.values("sessions")
    assert [d["reason"] for d in target.values("dead_letters")] == ["duplicate", "duplicate"]


def test_something_else_under_a_known_id_is_told_from_a_repeat_and_changes_nothing_either() -> None:
    target = driver()
    events = [click(0, item_id="i1"), consent(1), Customer("c1", "u1", "f", 1990, "DE", START + 2)]
    others = [
        msgspec.structs.replace(events[0], item_id="i2"),
        msgspec.structs.replace(events[1], granted=False),
        msgspec.structs.replace(events[2], birth_year=1991),
    ]
    send(target, *events)
    target.restart()
    before = target.state("v1"), target.state("u1")
    send(target, *others)
    send(target, *events)
    assert [d["reason"] for d in target.values("dead_letters")] == ["conflict"] * 3 + ["duplicate"] * 3
    assert (target.state("v1"), target.state("u1")) == before


def test_what_an_earlier_version_has_seen_is_a_repeat_whatever_it_said() -> None:
    seen = BrowserState(seen={"a": START})
    assert said_the_same(seen.seen["a"], content_of(click(0, id="a")))
    assert seen_at(seen.seen["a"]) == START
    for at in (0, 1, MAX_TIME_MS):
        assert seen_at(seen_as(at, 7)) == at
        assert not said_the_same(seen_as(at, 7), 8)


def test_an_identity_is_known_for_the_horizon_and_not_longer() -> None:
    target = driver(bound=2 * HOUR, repeats_ms=HOUR)
    send(target, click(0, id="a"))
    target.advance_watermark(START + HOUR - 1)
    send(target, click(2 * HOUR, id="a"))
    assert len(target.values("dead_letters")) == 1
    target.advance_watermark(START + 2 * HOUR)
    send(target, click(3 * HOUR, id="a"))
    assert len(target.values("dead_letters")) == 1


def test_the_same_identity_from_another_browser_is_no_repeat() -> None:
    target = driver()
    send(target, click(0, id="a"), click(0, id="a", visitor="v2"))
    assert target.values("dead_letters") == []


# -- bots --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "bot"),
    [
        ("Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)", True),
        ("facebookexternalhit/1.1 (+http://www.facebook.com/externalhit_uatext.php)", True),
        ("curl/8.5.0", True),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) Version/18.1 Safari/604.1", False),
        ("Mozilla/5.0 (Linux; Android 8.1.0; CUBOT_X18_Plus) Chrome/80.0 Mobile Safari/537.36", False),
        ("", False),
    ],
)  # fmt: skip
def test_crawlers_say_so(agent: str, bot: bool) -> None:
    assert is_crawler(agent) is bot


def test_a_crawlers_session_keeps_the_reason_and_nobody_else_is_told() -> None:
    target = driver()
    send(target, click(0, item_id="i1", user_agent="Mozilla/5.0 (compatible; bingbot/2.0)"))
    target.drain()
    assert [(r.bot, r.events) for r in sessions(target)] == [("user_agent", 1)]
    assert target.values() == []
    assert target.values("funnels") == []


def test_fifteen_events_in_less_than_ten_seconds_are_a_bots_from_then_on() -> None:
    target = driver()
    for n in range(20):
        send(target, click(n * 700, item_id=f"i{n}"))
    target.drain()
    assert [r.bot for r in sessions(target)] == ["rate"]
    assert len([c for c in target.values("counts") if isinstance(c, ItemCount)]) == 14


def test_fifteen_events_in_ten_seconds_or_more_are_a_persons() -> None:
    target = driver()
    for n in range(15):
        send(target, click(n * 10 * SECOND // 14 + (n == 14), item_id=f"i{n}"))
    target.drain()
    assert [r.bot for r in sessions(target)] == [""]


# -- consent and identity ----------------------------------------------------------------------------


def test_without_consent_nothing_is_known_of_a_person() -> None:
    target = driver()
    send(target, click(0, "login", user_id="u1"), click(MINUTE, item_id="i1", user_id="u1"))
    target.drain()
    assert target.values("identities") == []
    assert [a.key[:2] for a in target.values()] == ["s:"] * len(target.values())
    assert [r.user_id for r in sessions(target)] == [None]


def test_a_login_with_consent_names_the_browser_its_session_and_the_ones_before() -> None:
    target = driver()
    send(target, consent(0))
    send(target, click(0))
    send(target, click(2 * HOUR))
    send(target, click(5 * HOUR, "login", user_id="u1"))
    target.drain()
    assert [(r.user_id, r.is_final, r.number) for r in sessions(target)] == [
        ("u1", True, 1),
        ("u1", True, 2),
        ("u1", True, 3),
    ]
    (identity,) = target.values("identities")
    assert (identity.visitor_id, identity.user_id, identity.linked_ms) == ("v1", "u1", START + 5 * HOUR)


def test_touches_from_before_the_login_go_to_the_person() -> None:
    target = driver()
    send(target, click(0, utm_source="google", utm_medium="cpc"), consent(1))
    send(target, click(HOUR, utm_source="bing", utm_medium="cpc"))
    send(target, click(HOUR + 1, "login", user_id="u1"))
    (link,) = told(target, "u:u1")
    assert isinstance(link, Link)
    assert [by for _, by in link.touches] == ["google / cpc / (none)", "bing / cpc / (none)"]


def test_withdrawal_takes_effect_from_the_next_event_and_is_audited() -> None:
    target = driver()
    send(target, consent(0), click(1, "login", user_id="u1"))
    send(target, click(2, item_id="i1", user_id="u1"))
    send(target, consent(3, ("personalisation",), granted=False))
    send(target, click(4, item_id="i2", user_id="u1"))
    log = target.values("consents")
    assert [(c.granted, c.in_force, c.withdrawn) for c in log] == [
        (True, ["analytics", "personalisation", "marketing"], False),
        (False, ["analytics", "marketing"], True),
    ]
    views = [(a.person, a.kind, a.subject) for a in target.values() if isinstance(a, Activity)]
    assert views == [("u:u1", "view", "i1")]
    assert [(i.user_id, i.deleted) for i in target.values("identities")] == [("u1", False), ("u1", True)]
    assert told(target, "v:v1") == [
        MarketingConsent("v:v1", START + 3, "v1", granted=False, revision=3),
        ErasePerson("v:v1", START + 3, "consent-v1-3", withdrawn=True),
    ]
    ends = [t for t in told(target, "u:u1") if isinstance(t, MarketingConsent | Unlink)]
    assert ends == [MarketingConsent("u:u1", START + 3, "v1", False, 3), Unlink("u:u1", START + 3, "v1")]


def test_withdrawal_of_marketing_leaves_the_profile() -> None:
    target = driver()
    send(target, consent(0))
    send(target, consent(1, ("marketing",), granted=False))
    send(target, click(2, item_id="i1"))
    target.drain()
    (view,) = [a for a in target.values() if isinstance(a, Activity)]
    assert not view.marketing


# -- erasure -----------------------------------------------------------------------------------------


def forget(subject: str, at: int) -> Forget:
    return Forget("r1", subject, START + at)


def test_forgetting_a_browser_leaves_no_state_and_no_name() -> None:
    target = driver()
    send(target, consent(0), click(1, item_id="i1"))
    assert target.state("v1") is not None
    send(target, forget("v1", 2))
    assert target.state("v1")["known"] is None
    assert target.timers("v1") == {}
    (audit,) = target.values("erasures")
    assert (audit.request_id, audit.subject_digest, audit.had_state) == ("r1", digest_of("v1"), True)
    assert "v1" not in msgspec.json.encode(audit).decode()
    assert told(target, "v:v1")[-1] == ErasePerson("v:v1", START + 2, "r1")


def test_forgetting_a_cart_goes_to_the_cart_alone() -> None:
    target = driver()
    send(target, forget("c:cart-1", 2), forget("p:u:u1", 3))
    assert target.values("carts") == [EraseCart("cart-1", START + 2, "r1")]
    assert target.values() == [ErasePerson("u:u1", START + 3, "r1")]


def test_an_accounts_erasure_goes_to_the_person() -> None:
    target = driver()
    send(target, Erasure("r2", "u1", START))
    assert told(target, "u:u1") == [ErasePerson("u:u1", START, "r2")]


# -- late events -------------------------------------------------------------------------------------


def test_a_late_event_joins_two_final_sessions_and_takes_back_the_second() -> None:
    """Gap 30 min; the third event comes when both are over.

    ::

        0            40 min                          wm 75 min: 20 min comes
        [0]          [40]            ->  [0 ------ 40]
    """
    target = driver()
    send(target, click(0), click(40 * MINUTE))
    target.advance_watermark(START + 75 * MINUTE)
    assert [(r.start_ms - START, r.events) for r in sessions(target)] == [(0, 1), (40 * MINUTE, 1)]
    send(target, click(20 * MINUTE))
    assert [(r.start_ms - START, r.events, r.is_final) for r in sessions(target)] == [(0, 3, True)]
    assert [r.session_id for r in target.values("sessions") if r.deleted] == [f"v1:{START + 40 * MINUTE}"]
    target.advance_watermark(START + 800 * DAY)
    assert target.is_empty()


def test_a_late_event_before_a_final_session_moves_its_row() -> None:
    target = driver()
    send(target, click(20 * MINUTE))
    target.advance_watermark(START + 55 * MINUTE)
    send(target, click(0))
    assert [(r.session_id, r.events) for r in sessions(target)] == [(f"v1:{START}", 2)]
    revisions = [r.revision for r in target.values("sessions")]
    assert revisions == sorted(set(revisions))


def test_a_session_that_has_become_part_of_another_does_not_come_back_with_a_login() -> None:
    target = driver()
    send(target, consent(0), click(0, item_id="i1"), click(40 * MINUTE, item_id="i1"))
    target.advance_watermark(START + 75 * MINUTE)
    send(target, click(20 * MINUTE))
    send(target, click(76 * MINUTE, "login", user_id="u1"))
    target.drain()
    rows = [(r.start_ms - START, r.events, r.user_id) for r in sessions(target)]
    assert rows == [(0, 3, "u1"), (76 * MINUTE, 1, "u1")]
    newest = {row.session_id: row for row in target.values("funnels")}
    assert [row.session_id for row in newest.values() if not row.deleted] == [f"v1:{START}"]


def test_an_event_too_late_for_its_session_is_put_aside() -> None:
    target = driver(repeats_ms=5 * HOUR)
    send(target, click(3 * HOUR, visitor="v2"))
    send(target, click(0))
    assert [msgspec.json.decode(row["event"])["event_id"] for row in target.values("late")] == [
        "v1-page_view-0"
    ]
    assert sessions(target) == []


# -- presence ----------------------------------------------------------------------------------------


def test_moments_are_covered_once_whatever_the_order() -> None:
    import random

    draw = random.Random(1)
    for _ in range(200):
        minutes = [draw.randrange(30) for _ in range(6)]
        covered: list[int] = []
        seen: list[int] = []
        for minute in dict.fromkeys(minutes):
            low, high = newly_covered(sorted(seen), minute)
            covered += range(low, high + 1)
            seen.append(minute)
        assert sorted(covered) == sorted({m + n for m in minutes for n in range(1, 6)})


# -- funnels -----------------------------------------------------------------------------------------

STEPS = ("item", "cart", "checkout", "purchase")
LOOSE, STRICT = Funnel("f", STEPS, HOUR), Funnel("f", STEPS, HOUR, strict=True)


@pytest.mark.parametrize(
    ("marks", "loose", "strict"),
    [
        ({"item": [0], "cart": [1], "checkout": [2], "purchase": [3]}, 4, 4),
        ({"cart": [1], "purchase": [3]}, 0, 0),
        ({"item": [0], "checkout": [1], "cart": [2]}, 2, 1),
        ({"item": [0], "cart": [1, 3], "checkout": [2, 4], "purchase": [5]}, 4, 2),
        ({"item": [0], "cart": [HOUR + 1]}, 1, 1),
        ({"item": [0], "cart": [HOUR]}, 2, 2),
        ({"item": [5], "cart": [1]}, 1, 1),
    ],
)
def test_how_far_a_session_comes(marks: dict[str, list[int]], loose: int, strict: int) -> None:
    assert len(walk(LOOSE, marks)) == loose
    assert len(walk(STRICT, marks)) <= loose
    if strict != 2 or loose == 2:
        assert len(walk(STRICT, marks)) == strict


def furthest(funnel: Funnel, marks: dict[str, list[int]]) -> int:
    """How many steps somebody did in order and in time, by trying all times of all steps."""

    def from_here(place: int, at: int, last: int) -> int:
        if place == len(funnel.steps):
            return place
        nexts = [t for t in marks.get(funnel.steps[place], ()) if at <= t <= last]
        return max([place, *(from_here(place + 1, t, last) for t in nexts)])

    first = marks.get(funnel.steps[0], ())
    return max((from_here(1, t, t + funnel.within_ms) for t in first), default=0)


def test_a_session_comes_as_far_as_any_beginning_leads() -> None:
    longer = 0
    for seed in range(3_000):
        draws = random.Random(seed)
        marks = {s: sorted(draws.sample(range(40), draws.randrange(6))) for s in STEPS}
        funnel = Funnel("f", STEPS, draws.choice((5, 12, 40)))
        done = walk(funnel, marks)
        assert len(done) == furthest(funnel, marks), seed
        assert all(t in marks[step] for step, t in zip(STEPS, done, strict=False))
        assert done == sorted(done)
        assert not done or done[-1] - done[0] <= funnel.within_ms
        longer += bool(done) and done[0] != marks["item"][0]
    assert longer > 100


def test_c8_a_purchase_at_minute_65_after_items_in_between_is_not_dropped_at_the_cart() -> None:
    target = driver()
    views = [click(n * MINUTE, item_id=f"i{n}") for n in range(0, 66, 5)]
    rest = [
        click(60 * MINUTE + 1, "add_to_cart", item_id="i", cart_id="c", price=5.0, quantity=1),
        click(61 * MINUTE, "checkout", page_type="checkout", cart_id="c", step="address"),
        click(62 * MINUTE, "checkout", page_type="checkout", cart_id="c", step="payment"),
        click(65 * MINUTE, "purchase", cart_id="c", order_id="o", amount=5.0),
    ]
    events = [*views, *rest]
    random.Random(1).shuffle(events)
    send(target, *events)
    target.drain()
    row = target.values("funnels")[-1]
    assert (row.dropped_at, row.reached, row.entered_ms) == (None, 5, START + 5 * MINUTE)


def test_what_a_session_keeps_of_its_steps_is_the_same_in_any_order_and_bounded() -> None:
    for seed in range(500):
        draws = random.Random(seed)
        times = [draws.randrange(4 * HOUR) for _ in range(draws.randrange(1, 80))]
        kept = set()
        for _ in range(3):
            draws.shuffle(times)
            session = Session(0, 0)
            for at in times:
                session.mark("item", at, every_ms=5 * MINUTE)
                session.mark("cart", at, every_ms=0)
            kept.add(tuple(map(tuple, session.marks.values())))
            halves = [Session(0, 0), Session(1, 1)]
            for place, at in enumerate(times):
                halves[place % 2].mark("item", at, every_ms=5 * MINUTE)
                halves[place % 2].mark("cart", at, every_ms=0)
            halves[0].absorb(halves[1])
            halves[0].thin({"item": 5 * MINUTE})
            kept.add((tuple(halves[0].marks["item"]), tuple(halves[0].marks["cart"])))
        assert len(kept) == 1, seed
        ((item, cart),) = kept
        spans = sorted({at // (5 * MINUTE): at for at in sorted(times, reverse=True)}.values())
        assert list(item) == (spans if len(spans) <= 24 else [*spans[:4], *spans[-20:]]), seed
        assert len(cart) <= 24


def test_shards_are_told_of_what_is_put_into_a_cart_and_not_by_bots() -> None:
    target = driver()
    crawler = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"
    put = {"item_id": "i1", "category": "shoes", "cart_id": "c1", "price": 5.0, "quantity": 3}
    send(target, click(0, "add_to_cart", **put), click(1, "add_to_cart", user_agent=crawler, **put))
    send(target, click(2, "remove_from_cart", **put))
    told = [one for one in target.values("counts") if isinstance(one, ItemCount) and one.what == "add"]
    assert [(one.item, one.category, one.quantity) for one in told] == [("i1", "shoes", 1)]


def test_c8_sessions_are_numbered_in_order_of_time_also_after_a_merge() -> None:
    """Events of a browser in any order within the lateness: the numbers are those of all at once."""
    for seed in range(150):
        draws = random.Random(seed)
        times = sorted({draws.randrange(6 * HOUR) for _ in range(draws.randrange(2, 12))})
        came = sorted(times, key=lambda at: at + draws.uniform(0, 4 * HOUR))
        target = TestDriver(Visitors(VisitorRules(repeats_ms=6 * HOUR, session_lateness_ms=6 * HOUR)))
        for at in came:
            send(target, click(at, item_id="i"))
            if draws.random() < 0.2:
                target.restart()
        target.drain()
        newest = {row.session_id: row for row in target.values("sessions")}
        rows = sorted((r for r in newest.values() if not r.deleted), key=lambda r: r.start_ms)
        starts = [at for n, at in enumerate(times) if n == 0 or at - times[n - 1] > 30 * MINUTE]
        assert [r.start_ms - START for r in rows] == starts, seed
        assert [r.number for r in rows] == list(range(1, len(starts) + 1)), seed


def test_a_sessions_way_is_told_with_its_times_and_its_arm() -> None:
    target = driver(holdout=1.0)
    send(
        target,
        click(0, item_id="i1"),
        click(MINUTE, "add_to_cart", item_id="i1", cart_id="c1", price=5.0, quantity=1),
        click(3 * MINUTE, "checkout", page_type="checkout", cart_id="c1", step="address"),
    )
    target.drain()
    row = target.values("funnels")[-1]
    assert (row.reached, row.reached_step, row.dropped_at) == (3, "checkout", "payment")
    assert (row.step_ms, row.entered_ms, row.arm) == ([MINUTE, 2 * MINUTE], START, "control")


def test_c2_who_is_known_later_is_in_the_funnels_by_the_arm_of_the_account() -> None:
    rules = VisitorRules(holdout=0.5)
    user = next(f"u{n}" for n in range(99) if arm_of(f"u:u{n}", rules) != arm_of("v:v1", rules))
    for later in (MINUTE, 5 * HOUR):
        target = driver(holdout=0.5)
        send(target, consent(0), click(0, item_id="i1"))
        target.advance_watermark(START + later - 1)
        send(target, click(later, "login", user_id=user))
        target.drain()
        row = {row.session_id: row for row in target.values("funnels")}[f"v1:{START}"]
        assert (row.arm, row.reached, row.entered_ms) == (arm_of(f"u:{user}", rules), 1, START)


@pytest.mark.parametrize(
    ("steps", "within", "said"),
    [
        (("item",), HOUR, "two steps"),
        (("item", "till"), HOUR, "no step 'till'"),
        (("item", "cart"), 0, "needs time"),
    ],
)
def test_funnels_that_say_nothing_are_refused(steps: tuple[str, ...], within: int, said: str) -> None:
    with pytest.raises(FunnelError, match=said):
        Funnel("f", steps, within)


# -- input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "event", "said"),
    [
        ("clicks", {"event_id": "e"}, "required field"),
        ("refunds", {"refund_id": "r"}, "required field `order_id`"),
        ("erasures", {"request_id": "r"}, "required field `user_id`"),
        ("consents", {"consent_id": "c", "visitor_id": "v1", "purposes": [], "granted": True}, "`user_id`"),
        ("forget", {"request_id": "r", "subject": ""}, "length >= 1"),
    ],
)
def test_what_breaks_its_contract_is_refused(stream: str, event: dict[str, Any], said: str) -> None:
    raw = msgspec.json.encode({"event_time_ms": START, **event})
    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.json.decode(raw, type=INPUTS[stream])


def test_a_browser_cannot_say_that_its_click_is_anothers() -> None:
    """The shop names the browser in the key; what the browser says of itself must agree, late or not."""
    target = driver()
    own, forged = click(HOUR), click(HOUR, visitor="v2")
    late = click(HOUR - 1, visitor="v2")
    target.send("v1", own, at=own.event_time_ms)
    target.send("v1", forged, at=forged.event_time_ms)
    target.send("v1", late, at=late.event_time_ms)
    target.drain()
    assert [(d["reason"], d["error"]) for d in target.values("dead_letters")] == [
        ("schema", "the key is 'v1', the visitor 'v2'")
    ] * 2
    assert [row.events for row in sessions(target)] == [1]


def test_repeats_of_the_other_streams_are_told_too() -> None:
    target = driver()
    refund = Refund("r1", "o1", "v1", None, (), 5.0, START)
    for event in (consent(0), consent(0), refund, refund):
        send(target, event)
    assert len(target.values("consents")) == 1
    assert target.values("refunds") == [OrderRefunded("o1", "r1", 500, START)]
    assert [d["reason"] for d in target.values("dead_letters")] == ["duplicate"] * 2


def test_of_what_only_passed_through_nothing_is_kept() -> None:
    target = driver()
    send(target, Erasure("r2", "u1", START))
    target.advance_watermark(START + DAY)
    assert target.state("u1")["known"] is None
    target.advance_watermark(START + 35 * DAY)  # so long an erasure is remembered, and swept
    assert target.is_empty()


# -- the list of what was forgotten ------------------------------------------------------------------


def test_late_events_of_a_browser_that_was_forgotten_bring_nothing_back_and_are_told_without_a_name() -> None:
    target = driver(bound=HOUR)
    send(target, consent(0), click(1, item_id="i1"))
    send(target, forget("v1", 10))
    before = {name: target.values(name) for name in ("sessions", "consents", "carts", "counts", "late")}
    send(target, click(5, item_id="i2"), consent(6), click(10, "purchase", amount=5.0, order_id="o"))
    target.restart()
    target.advance_watermark(START + 30 * MINUTE)
    send(target, click(7, item_id="i3"))
    assert {name: target.values(name) for name in before} == before
    assert target.state("v1")["known"] is None
    assert [(e.request_id, e.suppressed) for e in target.values("erasures")] == [
        ("r1", False), *[("r1", True)] * 4
    ]  # fmt: skip
    assert b"v1" not in msgspec.json.encode(target.values("erasures"))
    send(target, click(31 * MINUTE, item_id="i4"))  # who comes back is somebody new
    assert target.state("v1")["known"] is not None


def test_an_account_that_is_erased_is_none_of_a_browser_of_that_name() -> None:
    target = driver(bound=HOUR)
    send(target, consent(0, visitor="42"), Erasure("r2", "42", START + 5))
    send(target, click(3, visitor="42", item_id="i1", user_id="bob"))
    assert [e.suppressed for e in target.values("erasures")] == []
    assert [row.user_id for row in target.values("identities")] == ["bob"]
    send(target, Customer("c1", "42", "f", 1990, "DE", START + 4), forget("42", 9))
    send(target, click(3, visitor="42", id="again"), Customer("c2", "42", "f", 1990, "DE", START + 8))
    assert [e.suppressed for e in target.values("erasures")] == [True, False, True]
    assert len([t for t in target.values() if isinstance(t, Details)]) == 1


@pytest.mark.parametrize("name", ["c:1", "p:u:ann"])
def test_a_browser_is_forgotten_whatever_its_name_is(name: str) -> None:
    """One that is a cart's or a person's in requests of an earlier version: both are forgotten."""
    target = driver()
    send(target, consent(0, visitor=name), click(1, visitor=name, item_id="i1"), forget(name, 5))
    erased = [t.person for t in target.values() if isinstance(t, ErasePerson)]
    assert erased == [*(["u:ann"] if name[0] == "p" else []), f"v:{name}"]


def test_a_late_sign_up_of_an_account_that_was_erased_is_dropped() -> None:
    target = driver()
    send(target, Erasure("r2", "u1", START + 5))
    send(target, Customer("c1", "u1", "f", 1990, "DE", START + 4))
    assert [t for t in told(target, "u:u1") if not isinstance(t, ErasePerson)] == []
    send(target, Customer("c2", "u1", "f", 1990, "DE", START + 6))
    assert len(told(target, "u:u1")) == 2

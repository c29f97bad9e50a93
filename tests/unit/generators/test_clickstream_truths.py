"""What the ledger says of the web shop can be found again in its events alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from itertools import islice, pairwise

import pytest

from millrace_apps.clickstream.contracts.events import Click
from millrace_apps.generators.clickstream import RATES, responds, simulate
from millrace_apps.generators.clickstream.bots import BOT_VISIT_EVENTS, CRAWLERS, KINDS, Bots
from millrace_apps.generators.clickstream.browsing import BOUNDARY_PAUSES_MS
from millrace_apps.generators.clickstream.carts import MIN_IDLE_MS, CartStep, idle_spells
from millrace_apps.generators.clickstream.catalogue import Catalogue
from millrace_apps.generators.clickstream.profile import Names
from millrace_apps.generators.engine.simulated import Simulated
from tests.unit.apps.clickstream.cases import (
    GAP_MS,
    HOUR_MS,
    PROFILE,
    clicks_of_people,
    run,
    sessionize,
    truths_of,
    visits,
)


@pytest.fixture(scope="module")
def events() -> list[Simulated]:
    return run()


@pytest.fixture(scope="module")
def clicks(events: list[Simulated]) -> list[Click]:
    return [event.event for event in events if event.stream == "clicks"]


@pytest.fixture(scope="module")
def people(events: list[Simulated]) -> list[Click]:
    return clicks_of_people(events)


@pytest.fixture(scope="module", name="visits")
def _visits() -> list[Simulated]:
    return visits()


# Sessions


def test_session_truths_are_what_a_gap_of_30_minutes_makes_of_the_clicks(
    events: list[Simulated], people: list[Click]
) -> None:
    """A gap of exactly 30 minutes does not end a session, one millisecond more does."""
    horizon = events[-1].event_time_ms - GAP_MS
    told = {
        (truth.entity, truth.detail["start_ms"]): tuple(
            truth.detail[k] for k in ("end_ms", "events", "page_views")
        )
        for truth in truths_of(events, "session")
    }
    found = sessionize(people)
    assert found.keys() == told.keys()
    complete = {key for key, (end, _, _) in told.items() if end <= horizon}
    assert len(complete) > 0.95 * len(told) > 5_000
    assert {key: found[key] for key in complete} == {key: told[key] for key in complete}


def test_a_session_truth_stands_at_all_its_clicks_and_at_nothing_else(events: list[Simulated]) -> None:
    members: defaultdict[str, list[Click]] = defaultdict(list)
    for event in events:
        own = [truth for truth in event.truths if truth.kind == "session"]
        bot = any(truth.kind == "bot" for truth in event.truths)
        assert len(own) == (event.stream == "clicks" and not bot)
        for truth in own:
            members[truth.truth_id].append(event.event)
    for truth in truths_of(events, "session"):
        times = [click.event_time_ms for click in members[truth.truth_id]]
        assert times[0] == truth.detail["start_ms"]
        assert {click.visitor_id for click in members[truth.truth_id]} == {truth.entity}
        if times[-1] == truth.detail["end_ms"]:
            assert len(times) == truth.detail["events"]
        else:
            assert truth.detail["end_ms"] >= events[-1].event_time_ms


def test_pauses_around_30_minutes_and_sessions_over_midnight_occur(
    events: list[Simulated], people: list[Click]
) -> None:
    last: dict[str, int] = {}
    gaps: Counter[int] = Counter()
    for click in people:
        gaps[click.event_time_ms - last.get(click.visitor_id, click.event_time_ms)] += 1
        last[click.visitor_id] = click.event_time_ms
    assert all(gaps[pause] >= 20 for pause in BOUNDARY_PAUSES_MS)
    details = [truth.detail for truth in truths_of(events, "session")]
    assert sum(detail["crosses_midnight"] for detail in details) >= 10
    assert sum(detail["campaign_changes"] > 0 for detail in details) >= 100


def test_the_tracker_counts_the_sessions_of_a_browser(people: list[Click]) -> None:
    numbers: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for click in people:
        entry = (click.client_session_number, click.client_session_id)
        if not numbers[click.visitor_id] or numbers[click.visitor_id][-1] != entry:
            numbers[click.visitor_id].append(entry)
    for seen in numbers.values():
        assert [number for number, _ in seen] == list(range(1, len(seen) + 1))
    ids = [session_id for seen in numbers.values() for _, session_id in seen]
    assert len(set(ids)) == len(ids)


def test_a_device_keeps_its_clock_and_most_clocks_are_right(people: list[Click]) -> None:
    offsets: dict[str, int] = {}
    for click in people:
        offset = click.client_time_ms - click.event_time_ms
        assert offsets.setdefault(click.visitor_id, offset) == offset
    sizes = [abs(offset) for offset in offsets.values()]
    assert 0.70 < sum(size < 5_000 for size in sizes) / len(sizes) < 0.82
    assert 0.01 < sum(size > 600_000 for size in sizes) / len(sizes) < 0.06


def test_page_pings_beat_while_a_page_is_read_and_change_nothing_else() -> None:
    """Ten seconds apart, between two clicks of one session, and never in a pause that ends a session."""
    profile = replace(PROFILE, event_rate=5, boundaries=0.2, events=9_000, heartbeat_s=10)
    mixed = list(simulate(profile))
    end = mixed[-1].event_time_ms
    quiet = [
        (event.event, event.key)
        for event in islice(simulate(replace(profile, heartbeat_s=0, events=None)), 9_000)
        if event.event_time_ms < end
    ]
    is_ping = [event.stream == "clicks" and event.event.event_type == "page_ping" for event in mixed]
    rest = [
        (event.event, event.key)
        for event, ping in zip(mixed, is_ping, strict=True)
        if not ping and event.event_time_ms < end
    ]
    assert rest == quiet[: len(rest)]
    assert sum(is_ping) > 2_000
    page: dict[str, Click] = {}
    pings: Counter[str] = Counter()
    for event in mixed:
        if event.stream == "clicks":
            click = event.event
            if click.event_type != "page_ping":
                page[click.visitor_id] = click
                continue
            read = page[click.visitor_id]
            pings[read.event_id] += 1
            assert read.event_type == "page_view"
            assert click.page_url == read.page_url
            assert click.client_session_id == read.client_session_id
            assert click.event_time_ms - read.event_time_ms == 10_000 * pings[read.event_id]
    found = sessionize(event.event for event in mixed if event.stream == "clicks")
    told = [truth for truth in truths_of(mixed, "session") if truth.detail["end_ms"] < end]
    for truth in told:
        detail = truth.detail
        expected = (detail["end_ms"], detail["events"], detail["page_views"])
        assert found[truth.entity, detail["start_ms"]] == expected
    assert sum(truth.detail["page_pings"] for truth in told) > 1_000


# Carts


def test_abandonments_are_every_idle_spell_of_a_cart(events: list[Simulated], people: list[Click]) -> None:
    """From the cart's own events: what it is worth after each, and how long nothing follows."""
    horizon = events[-1].event_time_ms
    carts: defaultdict[str, list[tuple[int, str, int]]] = defaultdict(list)
    worth: Counter[str] = Counter()
    for click in people:
        if click.cart_id is None:
            continue
        if click.price is not None and click.quantity is not None:
            sign = 1 if click.event_type == "add_to_cart" else -1
            worth[click.cart_id] += sign * round(click.price * 100) * click.quantity
        stage = {"checkout": str(click.step), "purchase": "bought"}.get(click.event_type, "cart")
        carts[click.cart_id].append((click.event_time_ms, stage, worth[click.cart_id]))
    told = {truth.entity: truth.detail for truth in truths_of(events, "abandonment")}
    checked: Counter[str] = Counter()
    for cart_id, steps in carts.items():
        idle = []
        for now, then in zip(steps, [*steps[1:], None], strict=True):
            if now[2] and now[1] != "bought" and (then is None or then[0] - now[0] >= MIN_IDLE_MS):
                idle.append((now[0], then and then[0], now[1], now[2]))
        spells = told.get(cart_id, {"idle": []})["idle"]
        # What ends after the last event of the run looks endless from here.
        seen = [
            (
                s["since_ms"],
                s["until_ms"] if (s["until_ms"] or 0) <= horizon else None,
                s["stage"],
                s["value_cents"],
            )
            for s in spells
        ]
        if steps[-1][0] < horizon - GAP_MS:
            assert idle == seen
            checked.update(spell["ended_by"] for spell in spells)
            if spells and told[cart_id]["bought_ms"] and told[cart_id]["bought_ms"] <= horizon:
                assert steps[-1][:2] == (told[cart_id]["bought_ms"], "bought")
    assert checked["nothing"] > 150
    assert checked["purchase"] + checked["activity"] > 60


def test_an_idle_spell_lasts_15_minutes_or_longer() -> None:
    steps = [
        CartStep(0, "cart", 500),
        CartStep(MIN_IDLE_MS - 1, "cart", 900),
        CartStep(2 * MIN_IDLE_MS - 1, "address", 900),
        CartStep(2 * MIN_IDLE_MS, "cart", 0),
    ]
    assert [(s["since_ms"], s["ended_by"]) for s in idle_spells(steps)] == [(MIN_IDLE_MS - 1, "activity")]
    assert idle_spells(steps[:1])[0]["until_ms"] is None


def test_a_cart_follows_a_person_to_another_device() -> None:
    """Only with the account that is logged in on both; there it is bought."""
    profile = replace(PROFILE, known=1.0, recovery=0.9, conversion=0.2, people=800, events=25_000)
    carts: defaultdict[str, list[Click]] = defaultdict(list)
    for event in simulate(profile):
        if event.stream == "clicks" and event.event.cart_id is not None:
            carts[event.event.cart_id].append(event.event)
    elsewhere = [own for own in carts.values() if len({click.visitor_id for click in own}) > 1]
    assert len(elsewhere) >= 5
    for own in elsewhere:
        moved = next(click for click in own if click.visitor_id != own[0].visitor_id)
        assert moved.user_id is not None
        assert {click.user_id for click in own} <= {None, moved.user_id}


def test_an_order_costs_what_its_lines_cost_and_holds_what_is_in_the_cart(people: list[Click]) -> None:
    carts: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
    for click in people:
        if click.event_type in ("add_to_cart", "remove_from_cart"):
            assert click.item_id is not None
            assert click.quantity is not None
            carts[click.cart_id][click.item_id] += click.quantity * (1 if click.event_type[0] == "a" else -1)
        elif click.event_type == "purchase":
            assert click.amount is not None
            assert {line.item_id: line.quantity for line in click.lines} == +carts[click.cart_id]
            assert round(click.amount * 100) == sum(round(li.price * 100) * li.quantity for li in click.lines)
            assert round(click.amount * 100) / 100 == click.amount


def test_refunds_give_back_lines_of_an_earlier_order(visits: list[Simulated]) -> None:
    orders = {e.event.order_id: e.event for e in visits if e.stream == "clicks" and e.event.order_id}
    refunds = [e.event for e in visits if e.stream == "refunds"]
    told = [t.detail["amount_cents"] for e in visits if e.stream == "refunds" for t in e.truths]
    assert told == [round(refund.amount * 100) for refund in refunds]
    for refund in refunds:
        order = orders[refund.order_id]
        assert set(refund.lines) <= set(order.lines)
        assert refund.event_time_ms > order.event_time_ms
        assert refund.amount <= order.amount
        assert (refund.visitor_id, refund.user_id) == (order.visitor_id, order.user_id)
    assert len({refund.order_id for refund in refunds}) == len(refunds)
    # 6 % of about 250 orders: between 5 and 27 in 999 of 1,000 seeds.
    assert 5 <= len(refunds) <= 27


def test_carts_are_bought_later_by_those_who_respond_without_an_offer(events: list[Simulated]) -> None:
    never, later = [], []
    for truth in truths_of(events, "abandonment"):
        last = truth.detail["idle"][-1]
        if last["ended_by"] == "nothing":
            never.append(truth.detail["visitor_id"])
        elif last["until_ms"] - last["since_ms"] > 3 * HOUR_MS:
            # No single visit lasts so long.
            later.append(truth.detail["visitor_id"])
    assert all(responds(PROFILE, visitor, None) for visitor in later)
    assert not any(responds(PROFILE, visitor, None) for visitor in never)
    # A fifth are bought later, 57 % of those after more than three hours: 12.5 % of what is counted here,
    # and with 250 carts the standard error is 2.1 points.
    assert 0.06 < len(later) / (len(later) + len(never)) < 0.19


# People


def test_identities_are_what_the_logins_say(events: list[Simulated], clicks: list[Click]) -> None:
    told = {
        (truth.entity, truth.detail["user_id"]): truth.detail["shared"]
        for truth in truths_of(events, "identity")
    }
    logins = {(click.visitor_id, click.user_id) for click in clicks if click.event_type == "login"}
    assert told.keys() == logins
    users: defaultdict[str, set[str]] = defaultdict(set)
    visitors: defaultdict[str, set[str]] = defaultdict(set)
    for (visitor, user), shared in told.items():
        visitors[user].add(visitor)
        users[visitor].add(user)
        assert shared or len(users[visitor]) == 1
    assert sum(len(own) > 1 for own in users.values()) >= 5
    assert sum(len(own) > 1 for own in visitors.values()) >= 50


def test_an_account_is_named_from_login_to_logout_and_signed_up_once(
    events: list[Simulated], clicks: list[Click]
) -> None:
    logged_in: dict[str, str | None] = {}
    erased: set[str] = set()
    for event in events:
        if event.stream == "erasures":
            erased.add(event.event.user_id)
        if event.stream != "clicks":
            continue
        click = event.event
        before = logged_in.get(click.visitor_id)
        if before in erased:
            before = None
        if click.event_type == "login":
            assert before is None
            logged_in[click.visitor_id] = click.user_id
        else:
            assert click.user_id == before
            if click.event_type == "logout":
                logged_in[click.visitor_id] = None
    signed_up = Counter(event.event.user_id for event in events if event.stream == "customers")
    assert set(signed_up) == {click.user_id for click in clicks if click.user_id is not None}
    assert max(signed_up.values()) == 1


def test_who_is_erased_never_comes_back(events: list[Simulated]) -> None:
    erased: set[str] = set()
    for event in events:
        mentioned = {getattr(event.event, "user_id", None), getattr(event.event, "visitor_id", None)}
        assert not mentioned & erased
        for truth in event.truths:
            if truth.kind == "erasure":
                erased |= {truth.entity, *truth.detail["visitors"]}
    assert len([name for name in erased if name.startswith("user-")]) >= 10


#: What a referrer or the click on an advertisement says where a link has no tags.
UNTAGGED = {
    "https://www.google.com/": "google / organic / (none)",
    "https://www.bing.com/": "bing / organic / (none)",
    "https://www.instagram.com/": "instagram / social / (none)",
    "https://prices.example/compare": "prices.example / referral / (none)",
}


def brought_by(click: Click) -> str | None:
    if click.utm_source is not None:
        return f"{click.utm_source} / {click.utm_medium} / {click.utm_campaign or '(none)'}"
    if click.click_id is not None:
        assert click.click_id.startswith("msclkid-")
        return "bing / cpc / (none)"
    return UNTAGGED.get(click.referrer or "")


def test_attribution_is_the_first_and_last_touch_over_linked_devices(
    events: list[Simulated], people: list[Click]
) -> None:
    """Touches by visitor; visitors of a person by logins so far; both from the clicks alone."""
    told = {truth.entity: truth.detail for truth in truths_of(events, "attribution")}
    touches: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    owner: dict[str, str] = {}
    shared = {t.entity for t in truths_of(events, "identity") if t.detail["shared"]}
    several = 0
    for click in people:
        visitor = click.visitor_id
        label = brought_by(click)
        if label is not None:
            touches[visitor].append((click.event_time_ms, label))
        if click.event_type == "login" and click.user_id is not None and visitor not in shared:
            owner[visitor] = click.user_id
        if click.event_type != "purchase":
            continue
        user = owner.get(visitor) or click.user_id
        linked = {v for v, person in owner.items() if person == user} if user else {visitor}
        seen = sorted(touch for v in linked for touch in touches[v])
        several += len({label for _, label in seen}) > 1
        detail = told.pop(click.order_id or "")
        assert detail["first_touch"] == (seen[0][1] if seen else None)
        assert detail["last_touch"] == (seen[-1][1] if seen else None)
        assert detail["amount_cents"] == round((click.amount or 0) * 100)
    assert not told
    assert several >= 20


# Orders


@pytest.fixture(scope="module", name="sold")
def _sold() -> list[Simulated]:
    """Events of a shop of which many orders are paid in other currencies, come back or are cancelled."""
    profile = replace(
        PROFILE,
        seed=3,
        foreign=0.4,
        refunds=0.3,
        cancellations=0.3,
        refund_after_h=1.0,
        erasures=0,
        conversion=0.9,
    )
    return list(simulate(replace(profile, events=25_000)))


def cents(amount: float) -> int:
    return int((Decimal(str(amount)) * 100).to_integral_exact())


def test_an_order_is_told_with_its_value_tax_shipping_and_costs(sold: list[Simulated]) -> None:
    """All from the clicks alone; tax of 19 % is in the price, 7 % in that of books."""
    told = {truth.entity: truth.detail for truth in truths_of(sold, "order")}
    came = {truth.entity: truth.detail for truth in truths_of(sold, "attribution")}
    currencies: Counter[str] = Counter()
    for click in (e.event for e in sold if e.stream == "clicks" and e.event.event_type == "purchase"):
        detail, currency = told.pop(click.order_id), click.currency or "EUR"
        currencies[currency] += 1
        rate = Decimal(RATES.get(currency, "1"))
        assert (detail["currency"], Decimal(detail["rate"])) == (currency, rate)
        lines = [[x.item_id, cents(x.price), x.quantity, x.cost and cents(x.cost)] for x in click.lines]
        assert detail["lines"] == lines
        value = sum(price * quantity for _, price, quantity, _ in lines)
        assert detail["amount_cents"] == cents(click.amount) == value
        part = [Decimal(7) / 107 if x.category == "books" else Decimal(19) / 119 for x in click.lines]
        taxes = [x[1] * x[2] * share for x, share in zip(lines, part, strict=True)]
        tax = sum(int(one.quantize(Decimal(1), ROUND_HALF_UP)) for one in taxes)
        assert detail["tax_cents"] == cents(click.tax) == tax
        shipping = 0 if value * rate >= 5_000 else round(490 / rate)
        # At the border a cent of rounding decides.
        assert detail["shipping_cents"] == cents(click.shipping)
        assert detail["shipping_cents"] == shipping or abs(value * rate - 5_000) < 5
        for _, price, _, cost in lines:
            assert cost is None or 0.3 * price < cost < 0.75 * price
        exact = (value * rate).quantize(Decimal(1), ROUND_HALF_UP)
        assert came[click.order_id]["amount_cents"] == exact
    assert not told
    assert currencies.keys() == {"EUR", *RATES}
    assert 0.3 < 1 - currencies["EUR"] / currencies.total() < 0.5


def test_an_order_comes_back_or_is_cancelled_once_after_it_was_made(sold: list[Simulated]) -> None:
    made: dict[str, Simulated] = {}
    back: dict[str, str] = {}
    ways: Counter[tuple[str, bool]] = Counter()
    for event in sold:
        if event.stream == "clicks" and event.event.event_type == "purchase":
            made[event.event.order_id] = event
        if event.stream != "refunds":
            continue
        refund, (truth,) = event.event, event.truths
        order = made[refund.order_id].event
        assert refund.order_id not in back
        back[refund.order_id] = refund.kind
        assert event.event_time_ms > made[refund.order_id].event_time_ms
        assert (truth.kind, truth.entity) == (refund.kind, refund.order_id)
        whole = truth.detail["whole"]
        ways[refund.kind, whole] += 1
        assert (len(refund.lines) == 0) == (whole and refund.kind == "cancellation")
        lines = order.lines if whole else refund.lines
        pieces = {line.item_id: line.quantity for line in order.lines}
        assert lines
        assert all(line.quantity <= pieces[line.item_id] for line in lines)
        assert whole == ({line.item_id: line.quantity for line in lines} == pieces)
        assert truth.detail["lines"] == [[line.item_id, line.quantity] for line in lines]
        value = sum(cents(line.price) * line.quantity for line in lines)
        assert truth.detail["amount_cents"] == cents(refund.amount) == value
        shipping = cents(order.shipping) if whole else 0
        assert truth.detail["shipping_cents"] == cents(refund.shipping) == shipping
        assert (refund.tax is None) == (refund.kind == "cancellation")
        if refund.tax is not None:
            assert truth.detail["tax_cents"] == cents(refund.tax)
            assert (cents(refund.tax) == cents(order.tax)) if whole else refund.tax < order.tax
        assert refund.currency == order.currency
    assert all(ways[kind, whole] >= 3 for kind in ("refund", "cancellation") for whole in (True, False)), ways
    shares = Counter(back.values())
    assert 0.15 < shares["cancellation"] / len(made) < 0.4


def test_who_pays_in_which_currency_and_what_comes_back_changes_nothing_else() -> None:
    """Draws of their own: the same visits, carts and orders, paid in another way."""

    def bare(foreign: float, cancellations: float) -> list[tuple[str, int, str]]:
        profile = replace(PROFILE, events=6_000, foreign=foreign, cancellations=cancellations)
        clicks = [e.event for e in simulate(profile) if e.stream == "clicks"]
        return [(c.visitor_id, c.event_time_ms, c.event_type) for c in clicks][:4_000]

    assert bare(0.0, 0.0) == bare(0.9, 0.9)


def test_consent_is_withdrawn_only_after_it_was_given(events: list[Simulated]) -> None:
    given: defaultdict[str, set[str]] = defaultdict(set)
    withdrawals = 0
    for event in events:
        if event.stream != "consents":
            continue
        consent = event.event
        assert consent.purposes
        purposes = given[consent.visitor_id]
        if any(truth.kind == "consent_withdrawn" for truth in event.truths):
            withdrawals += 1
            assert not consent.granted
            assert purposes >= set(consent.purposes)
        if consent.granted:
            assert not purposes & set(consent.purposes)
            purposes |= set(consent.purposes)
        else:
            purposes -= set(consent.purposes)
    assert withdrawals >= 10
    # Of the first answers 45 % accept all, 10 % analytics alone, 15 % nothing.
    everything = sum(len(purposes) == 3 for purposes in given.values()) / len(given)
    assert everything == pytest.approx(45 / 70, abs=0.03)


def test_people_differ_in_activity_and_never_crowd_a_minute(people: list[Click]) -> None:
    visits: Counter[str] = Counter(c.user_id for c in people if c.user_id and c.event_type == "page_view")
    busiest = sum(n for _, n in visits.most_common(len(visits) // 10))
    assert 0.2 < busiest / visits.total() < 0.5
    minutes = Counter((c.visitor_id, c.event_time_ms // 60_000) for c in people)
    assert max(minutes.values()) < 30


# Bots


def test_bots_of_every_kind_keep_to_their_pages_and_pauses() -> None:
    profile = replace(PROFILE, seed=2)
    bots = Bots(profile, Names(profile), Catalogue(2, 100, 1.0))
    visits, seen = [bots.plan(2 * n + 1, 1_000_000 * n) for n in range(200)], Counter[str]()
    for visit in visits:
        detail = visit[0].truths[0].detail
        low, high, fast, slow = next(pages for kind, _, pages in KINDS if kind == detail["by"])
        times = [event.event_time_ms for event in visit]
        assert low <= len(times) == detail["events"] <= high
        assert all(fast <= after - before <= slow for before, after in pairwise(times))
        others = {event.event.event_type for event in visit} - {"page_view"}
        assert others == ({"search"} if detail["by"] == "pace" else set())
        seen[detail["by"]] += 1
    assert {kind: abs(seen[kind] / 200 - share) < 0.1 for kind, share in SHARES.items()} == dict.fromkeys(
        SHARES, True
    )
    assert pytest.approx(sum(map(len, visits)) / 200, rel=0.2) == BOT_VISIT_EVENTS


SHARES = {"user_agent": 0.4, "rate": 0.2, "pace": 0.15, "alone": 0.15, "regular": 0.1}


def test_bots_are_known_by_name_or_by_what_they_do(events: list[Simulated]) -> None:
    by_visitor: defaultdict[str, list[Simulated]] = defaultdict(list)
    for event in events:
        if any(truth.kind == "bot" for truth in event.truths):
            by_visitor[event.event.visitor_id].append(event)
    details = {truth.entity: truth.detail for truth in truths_of(events, "bot")}
    assert details.keys() == by_visitor.keys()
    for visitor, own in by_visitor.items():
        detail, agent = details[visitor], own[0].event.user_agent
        times = [event.event_time_ms for event in own]
        if detail["end_ms"] <= events[-1].event_time_ms:
            assert (times[0], times[-1], len(own)) == tuple(
                detail[name] for name in ("start_ms", "end_ms", "events")
            )
        assert (agent in CRAWLERS) == (detail["by"] == "user_agent")
        if detail["by"] == "rate":
            assert max(after - before for before, after in pairwise(times)) <= 500
    assert {detail["by"] for detail in details.values()} <= {kind for kind, _, _ in KINDS}
    shares = sum(map(len, by_visitor.values())) / len(events)
    # About eight visits of very different length.
    assert 0.005 < shares < 0.07

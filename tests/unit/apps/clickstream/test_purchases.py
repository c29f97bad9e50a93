"""An order that several events tell of is one purchase to sessions, boards, profiles and attributions."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from datetime import date
from typing import Any

from millrace_apps.clickstream.contracts.events import Click, OrderLine, Refund
from millrace_apps.clickstream.processes.money import RateEntry, rates_of
from millrace_apps.clickstream.processes.orders import Orders
from millrace_apps.clickstream.state.browser_state import VisitorRules
from tests.unit.apps.clickstream.app_cases import (
    DAY,
    HOUR,
    MINUTE,
    START,
    Run,
    click,
    consent,
    keyed,
    shop_chain,
)

RATES = rates_of("EUR", [RateEntry("GBP", date(2020, 1, 1), 1.5)])
#: Everything happens within so long; later events are not too late.
SPAN = 5 * HOUR
PURPOSES = ("analytics", "personalisation", "marketing")


def purchase(at: int, order: str | None, visitor: str, price: float, **fields: Any) -> Click:
    lines = [OrderLine(f"i{round(price)}", "toys", price, 2)]
    return click(
        at,
        "purchase",
        visitor,
        order_id=order,
        amount=2 * price,
        lines=lines,
        cart_id=f"c-{visitor}",
        **fields,
    )


def run(events: list[Any], rng: random.Random | None = None) -> Run:
    chain = shop_chain(VisitorRules(rates=RATES), orders=Orders(RATES), bound_ms=SPAN)
    rest = keyed(*events)
    # What is allowed is said first.
    found = chain.run_batch([one for one in rest if not isinstance(one[2], Click)])
    rest = [one for one in rest if isinstance(one[2], Click)]
    if rng is not None:
        rng.shuffle(rest)
    while rest:
        cut = rng.randint(1, 8) if rng is not None else len(rest)
        found += chain.run_batch(rest[:cut])
        rest = rest[cut:]
    # A profile is written again with what is looked at an hour later.
    found += chain.run_batch(keyed(*(click(SPAN - 1, visitor=v, item_id="i1") for v in ("v1", "v2"))))
    found += chain.drain()
    return Run(found, chain.is_empty())


def board(found: Run, name: str) -> Counter[str]:
    """What stands on the boards of a name, of every window."""
    sums = Counter[str]()
    for row in found.table("boards", "board", "window_end_ms", "rank"):
        if row["board"] == name:
            sums[f"{row['window_end_ms'] - START} {row['item']}"] += row["value"]
    return sums


def some(rng: random.Random) -> list[Click]:
    """Some browsers that look and buy, some orders told two or three times, also in another browser."""
    events: list[Click] = []
    times = rng.sample(range(MINUTE, SPAN // 2, 1_000), 40)
    for number in range(rng.randint(1, 4)):
        visitor, price = rng.choice(("v1", "v2")), rng.choice((10.0, 25.5, 7.25))
        currency = rng.choice((None, "GBP"))
        for _ in range(rng.choice((1, 1, 2, 3))):
            other = rng.random() < 0.2
            events.append(
                purchase(times.pop(), f"o{number}", "v1" if other else visitor, price, currency=currency)
            )
    events += [click(times.pop(), visitor=rng.choice(("v1", "v2")), item_id="i1") for _ in range(8)]
    return events


def euros(one: Click) -> int:
    return round((one.amount or 0) * (150 if one.currency else 100))


def first_of(events: list[Click]) -> dict[str, Click]:
    """Order → the first event that tells of it."""
    found: dict[str, Click] = {}
    for one in sorted(events, key=lambda e: (e.event_time_ms, e.event_id)):
        if one.event_type == "purchase":
            found.setdefault(one.order_id or one.event_id, one)
    return found


def check(seed: int) -> None:
    rng = random.Random(seed)
    events = some(rng)
    found = run([consent(0, PURPOSES, v) for v in ("v1", "v2")] + events, rng)
    sessions = found.table("Visitors.sessions", "session_id")
    firsts = {v: first_of([e for e in events if e.visitor_id == v]) for v in ("v1", "v2")}
    for row in sessions:
        mine = [
            one for one in firsts[row["visitor_id"]].values()
            if row["start_ms"] <= one.event_time_ms <= row["end_ms"]
        ]  # fmt: skip
        told = (row["orders"], row["revenue_cents"], row["is_converted"])
        assert told == (len(mine), sum(map(euros, mine)), bool(mine)), (seed, row)
    assert sum(row["orders"] for row in sessions) == sum(map(len, firsts.values()))
    # Of each browser an order counts once; to the shop it is one.
    boards = defaultdict[str, Counter[str]](Counter)
    for one in (one for own in firsts.values() for one in own.values()):
        minute = (one.event_time_ms - START) // (5 * MINUTE) + 1
        for end in range(minute * 5 * MINUTE, minute * 5 * MINUTE + HOUR, 5 * MINUTE):
            boards["sold/1h"][f"{end} {one.lines[0].item_id}"] += 2
            boards["revenue/1h"][f"{end} toys"] += euros(one)
    for name, expected in boards.items():
        assert board(found, name) == expected, (seed, name)
    for row in found.table("Entities.profiles", "person"):
        mine = list(firsts[row["person"].removeprefix("v:")].values())
        assert (row["orders"], row["spent_cents"]) == (len(mine), sum(map(euros, mine))), seed
    orders = first_of(events)
    told_of = {r["order_id"]: r for r in found.table("Entities.order_rows", "order_id")}
    assert {n: (r["at_ms"], r["amount_reported_cents"]) for n, r in told_of.items()} == {
        n: (one.event_time_ms, euros(one)) for n, one in orders.items()
    }, seed
    came = {r["order_id"]: r for r in found.table("orders", "order_id")}
    assert {n: (r["at_ms"], r["amount_cents"]) for n, r in came.items()} == {
        n: (one.event_time_ms, euros(one)) for n, one in orders.items()
    }, seed


def test_an_order_told_several_times_is_one_purchase_in_any_order_and_cut() -> None:
    for seed in range(30):
        check(seed)


def test_without_an_identity_each_purchase_is_an_order_of_its_own() -> None:
    found = run([consent(0), purchase(MINUTE, None, "v1", 10.0), purchase(2 * MINUTE, None, "v1", 10.0)])
    session = next(row for row in found.table("Visitors.sessions", "session_id") if row["is_converted"])
    assert (session["orders"], session["revenue_cents"]) == (2, 4_000)
    assert len(found.table("Entities.order_rows", "order_id")) == 2


def test_a_cancellation_reaches_attribution_and_book() -> None:
    cancelled = Refund("r1", "o1", "v1", None, (), 0.0, START + HOUR, "cancellation")
    found = run([consent(0), purchase(MINUTE, "o1", "v1", 10.0, currency="GBP", shipping=5.0), cancelled])
    (order,) = found.table("Entities.order_rows", "order_id")
    assert (order["status"], order["net_cents"], order["shipping_back_cents"]) == ("cancelled", 0, 500)
    (came,) = found.table("orders", "order_id")
    assert (came["amount_cents"], came["refunded_cents"], came["net_cents"]) == (3_000, 3_000, 0)
    (book,) = found.table("revenue", "day", "currency")
    assert (book["orders"], book["cancelled_orders"], book["amount_reported_cents"]) == (1, 1, 3_000)


def test_a_purchase_that_is_too_late_for_its_session_is_an_order_all_the_same() -> None:
    chain = shop_chain()
    found = chain.run_batch(keyed(consent(0), click(1)))
    found += chain.advance_watermark(START + 40 * DAY)
    found += chain.run_batch(keyed(purchase(MINUTE, "o1", "v1", 10.0)))
    found += chain.drain()
    rows = Run(found, True).table("Entities.order_rows", "order_id")
    assert [(row["order_id"], row["amount_cents"]) for row in rows] == [("o1", 2_000)]


def test_of_who_is_a_bot_no_order_is_told() -> None:
    found = run([purchase(MINUTE, "o1", "v1", 10.0, user_agent="Googlebot/2.1")])
    assert found.table("Entities.order_rows", "order_id") == []

"""Orders are known by their id, whatever events tell of them."""

from __future__ import annotations

import random

from millrace.testing import TestDriver
from millrace_apps.clickstream.contracts.messages import OrderPlaced, OrderRefunded, OrderValued
from millrace_apps.clickstream.processes.attributions import Attributions
from tests.unit.apps.clickstream.app_cases import START

Told = OrderPlaced | OrderRefunded


def expected(told: list[Told]) -> dict[str, tuple[int, int, str, str, int, int]]:
    """Order → its final row, by a look at all that is told at once."""
    rows = {}
    for order in {t.order_id for t in told if isinstance(t, OrderPlaced)}:
        placed = sorted(
            (t.at_ms, t.cents, t.first or "direct", t.last or "direct")
            for t in told
            if isinstance(t, OrderPlaced) and t.order_id == order
        )
        at, cents, first, last = placed[0]
        refunds = {t.refund_id: t.cents for t in told if isinstance(t, OrderRefunded) and t.order_id == order}
        back = sum(refunds.values())
        rows[order] = (at, cents, first, last, back, cents - back)
    return rows


def some(rng: random.Random) -> list[tuple[Told, int]]:
    told: list[tuple[Told, int]] = []
    for number in range(4):
        order = f"o{number}"
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            at = START + rng.randrange(50)
            placed = OrderPlaced(order, at, rng.choice((900, 1000)), rng.choice(("", "ad")), "mail")
            told += [(placed, at)] * rng.choice((1, 1, 2))
        for refund in range(rng.randrange(3)):
            told += [(OrderRefunded(order, f"r{refund}", 100), START + rng.randrange(50))] * rng.choice(
                (1, 2)
            )
    rng.shuffle(told)
    return told


def test_c8_an_order_told_again_by_another_event_counts_once_in_any_order_and_cut() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        told = some(rng)
        # A bound of 0 makes much of it late.
        target = TestDriver(Attributions(), out_of_orderness_ms=rng.choice((0, 100)))
        rest = [(e.order_id, at, e, "placed" if isinstance(e, OrderPlaced) else "refunded") for e, at in told]
        while rest:
            cut = rng.randint(1, 5)
            target.send_batch(rest[:cut])
            rest = rest[cut:]
            if rng.random() < 0.3:
                target.restart()
        target.advance_watermark(START + 1_000)
        rows = target.values()
        final = {
            r.order_id: (r.at_ms, r.amount_cents, r.first_touch, r.last_touch, r.refunded_cents, r.net_cents)
            for r in sorted(rows, key=lambda r: r.revision)
        }
        assert final == expected([t for t, _ in told]), seed
        assert len({(r.order_id, r.revision) for r in rows}) == len(rows), seed


def test_of_what_is_told_of_an_orders_value_the_newest_holds_in_any_order_and_cut() -> None:
    """Until then it is worth what its browser told, less the refunds that came by."""
    for seed in range(60):
        rng = random.Random(seed)
        told: list[tuple[str, int, object, str]] = [
            ("o1", START, OrderPlaced("o1", START, 1_000, "", "mail"), "placed"),
            ("o1", START + 5, OrderRefunded("o1", "r1", 250), "refunded"),
        ]
        for revision in range(1, rng.randint(1, 4) + 1):
            valued = OrderValued("o1", START, 1_150, 100 * revision, revision)
            told.append(("o1", START + revision, valued, "valued"))
        rng.shuffle(told)
        target = TestDriver(Attributions(), out_of_orderness_ms=rng.choice((0, 100)))
        while told:
            cut = rng.randint(1, 3)
            target.send_batch(told[:cut])
            told = told[cut:]
            if rng.random() < 0.3:
                target.restart()
        target.advance_watermark(START + 1_000)
        last = max(target.values(), key=lambda row: row.revision)
        assert (last.amount_cents, last.refunded_cents) == (1_150, 100 * revision), seed
    target = TestDriver(Attributions())
    target.send("o1", OrderPlaced("o1", START, 1_000, "", "mail"), at=START, input="placed")
    target.send("o1", OrderRefunded("o1", "r1", 250), at=START, input="refunded")
    target.advance_watermark(START + 1_000)
    assert [row.net_cents for row in target.values()][-1] == 750

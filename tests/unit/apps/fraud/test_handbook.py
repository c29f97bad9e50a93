"""The Handbook's 14 features from the stream equal pandas', bit for bit, however the payments come."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pandas as pd
import pytest

from millrace.errors import UserError
from millrace.host.memory import MemoryHost
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks, same_as_batch
from millrace_apps.fraud.evaluation.oracle import handbook_features, mismatches
from millrace_apps.fraud.handbook.events import HANDBOOK, CustomerView, Payment
from millrace_apps.fraud.handbook.process import CustomerHistory, TerminalHistory
from millrace_apps.fraud.handbook.windows import during_night, during_weekend
from tests.unit.apps.fraud.handbook_cases import DAY, HOUR, START_MS, cuts, of_table, payment, streamed, table


def differing(rows: list[dict[str, Any]], frame: pd.DataFrame, delay: int) -> int:
    return mismatches(pd.DataFrame(rows), handbook_features(frame, delay))


@pytest.mark.parametrize(("seed", "delay_days"), [(0, 7), (1, 7), (2, 1), (3, 14)])
def test_features_equal_pandas_in_any_cut(seed: int, delay_days: int) -> None:
    rng = Random(seed)
    frame = table(rng, 120)
    delay = delay_days * DAY
    rows = streamed(cuts(rng, of_table(frame), rng.randint(1, 30)), delay=delay, restarts=seed % 2 == 1)
    assert len(rows) == len(frame)
    assert differing(rows, frame, delay) == 0


@pytest.mark.parametrize("seed", range(2))
def test_features_equal_pandas_in_any_order_within_the_bound(seed: int) -> None:
    rng = Random(seed)
    frame = table(rng, 120)
    bound = 2 * DAY
    arriving = sorted(of_table(frame), key=lambda p: p.event_time_ms + rng.randint(0, bound))
    rows = streamed(cuts(rng, arriving, 15), bound=bound)
    assert differing(rows, frame, 7 * DAY) == 0


def test_the_comparison_finds_a_single_bit() -> None:
    frame = table(Random(1), 50)
    rows = streamed([of_table(frame)])
    rows[17]["customer_mean_7d"] *= 1 + 2**-52
    assert differing(rows, frame, 7 * DAY) == 1


def test_the_sum_is_rounded_as_pandas_rounds_it_and_not_as_exact_cents() -> None:
    """A window that slides for long keeps the traces of what it let go."""
    rng = Random(3)
    frame = table(rng, 300, customers=1)
    rows = streamed([of_table(frame)])
    exact = pd.DataFrame(rows)
    cents = (frame.set_index("TX_DATETIME")["TX_AMOUNT"] * 100).round().rolling("7D").sum().to_numpy() / 100
    naive = cents / exact["customer_count_7d"].to_numpy()
    assert differing(rows, frame, 7 * DAY) == 0
    assert (naive != exact["customer_mean_7d"].to_numpy()).sum() > 20


def test_days_and_nights() -> None:
    assert [during_weekend(START_MS + day * DAY) for day in range(-2, 6)] == [0, 1, 1, 0, 0, 0, 0, 0]
    assert [during_night(START_MS + hour * HOUR) for hour in (0, 6, 7, 23)] == [1, 1, 0, 0]


def events_of(frame: pd.DataFrame) -> list[tuple[str, int, Payment]]:
    return [(p.customer_id, p.event_time_ms, p) for p in of_table(frame)]


def views_of(frame: pd.DataFrame) -> list[tuple[str, int, CustomerView]]:
    driver = TestDriver(CustomerHistory())
    driver.send_batch(events_of(frame))
    driver.drain()
    return [(v.terminal_id, v.event_time_ms, v) for v in driver.values()]


def test_each_process_gives_the_same_however_events_are_brought() -> None:
    frame = table(Random(5), 40)
    invariant(CustomerHistory(), events_of(frame), bound_ms=DAY, runs=6)
    same_as_batch(CustomerHistory(), events_of(frame), bound_ms=DAY)
    invariant(TerminalHistory(), views_of(frame), bound_ms=DAY, runs=6)
    same_as_batch(TerminalHistory(), views_of(frame), bound_ms=DAY)


def test_nothing_is_kept_of_a_customer_or_terminal_that_has_gone() -> None:
    frame = table(Random(6), 40)
    assert leaks(CustomerHistory(), events_of(frame)) == []
    assert leaks(TerminalHistory(), views_of(frame)) == []


def state_sizes(host: MemoryHost) -> list[int]:
    host.store.pack()
    return [len(cell.body) for cell in host.store.cells.values()]


def test_state_stays_small_and_flat() -> None:
    """The busiest customer (4 payments a day) and a terminal with as many, half a year long."""
    rng = Random(2)
    customers, terminals = MemoryHost(CustomerHistory()), MemoryHost(TerminalHistory())
    sizes = []
    number = 0
    for day in range(120):
        batch = []
        for _ in range(4):
            at = day * DAY + rng.randrange(DAY)
            batch.append(payment(at, rng.randint(1, 20_000) / 100, number=number, fraud=rng.random() < 0.01))
            number += 1
        emitted = customers.run_batch([("c", p.event_time_ms, p) for p in batch])
        views = [msgspec.json.decode(e.payload, type=CustomerView) for e in emitted]
        terminals.run_batch([("t", v.event_time_ms, v) for v in views])
        sizes.append((max(state_sizes(customers)), max(state_sizes(terminals), default=0)))
    assert max(customer for customer, _ in sizes) <= 2_048
    assert max(terminal for _, terminal in sizes) <= 2_048  # four times the Handbook's busiest tenth
    settled = sizes[60:]
    assert max(c for c, _ in settled) <= 1.2 * min(c for c, _ in settled)
    assert max(t for _, t in settled) <= 1.25 * min(t for _, t in settled)


def test_a_terminal_of_the_handbook_takes_less_than_a_kilobyte() -> None:
    host, number = TestDriver(TerminalHistory()), 0
    customer = TestDriver(CustomerHistory())
    rng = Random(8)
    for day in range(60):
        for _ in range(rng.choice([1, 2, 2])):  # the mean terminal has one a day, few have two
            customer.send("c", payment(day * DAY + rng.randrange(DAY), number=number, fraud=False), at=day)
            number += 1
    customer.drain()
    for view in sorted(customer.values(), key=lambda v: v.event_time_ms):
        host.send("t", view, at=view.event_time_ms)
    assert max(state_sizes(host.host)) <= 1_024


@pytest.mark.parametrize(
    "wrong",
    [
        {"amount": -0.01},
        {"amount": None},
        {"amount": "10"},
        {"amount": 2e9},
        {"customer_id": ""},
        {"event_time_ms": 0.5},
    ],
)
def test_a_payment_that_does_not_fit_its_type_never_reaches_the_process(wrong: dict[str, Any]) -> None:
    fields = msgspec.to_builtins(payment(0)) | wrong
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(fields), type=Payment)


@pytest.mark.parametrize("delay", [0, -1, 46 * DAY])
def test_a_delay_that_state_does_not_cover_is_refused(delay: int) -> None:
    with pytest.raises(UserError, match="label delay"):
        TerminalHistory(delay)


def test_the_feature_set_has_fourteen_features() -> None:
    assert len(HANDBOOK) == 14
    assert HANDBOOK[0] == "weekend"
    assert HANDBOOK[-1] == "terminal_risk_30d"

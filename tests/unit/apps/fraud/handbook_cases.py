"""Payments for the tests of customers' and terminals' histories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import pandas as pd

from millrace.host.memory_chain import MemoryChain
from millrace_apps.fraud.evaluation.recorded import identity, payments
from millrace_apps.fraud.handbook.events import Payment
from millrace_apps.fraud.handbook.process import CustomerHistory, TerminalHistory

START_MS = 1_522_540_800_000  # Sunday, 2018-04-01
SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000


def payment(at: int, amount: float = 10.0, *, number: int = 0, customer: str = "c", terminal: str = "t",
            fraud: bool | None = None) -> Payment:  # fmt: skip
    return Payment(identity(number), START_MS + at, customer, terminal, amount, fraud)


def label(at: int, of: Payment, *, fraud: bool) -> Payment:
    """A label on a payment that becomes known ``at`` ms after the start."""
    return Payment(
        of.transaction_id, START_MS + at, of.customer_id, of.terminal_id, of.amount, fraud, of.event_time_ms
    )


def table(rng: Random, rows: int, *, customers: int = 3, terminals: int = 4) -> pd.DataFrame:
    """Random transactions in the Handbook's columns, some at one time, some long after the one before."""
    at, found = START_MS, []
    for number in range(rows):
        at += rng.choice([0, 0, SECOND, HOUR, 6 * HOUR, 6 * HOUR, DAY, DAY, 7 * DAY])
        if rng.random() < 0.01:
            at += rng.choice([31 * DAY, 100 * DAY])
        # Some are no hundredths, as the Handbook's third scenario makes them; some are equal in a row.
        amount = rng.choice([10.0, 10.0, rng.randint(1, 30_000) / 100, rng.randint(1, 9_999) / 100 * 5])
        found.append((number, at, rng.randrange(customers), rng.randrange(terminals), amount))
    frame = pd.DataFrame(found, columns=["TRANSACTION_ID", "at", "CUSTOMER_ID", "TERMINAL_ID", "TX_AMOUNT"])
    frame["TX_DATETIME"] = pd.to_datetime(frame["at"], unit="ms")
    frame["TX_FRAUD"] = [int(rng.random() < 0.3) for _ in range(rows)]
    return frame


def cuts(rng: Random, events: Sequence[Any], parts: int) -> list[list[Any]]:
    """The events in so many batches, some of them empty."""
    places = sorted(rng.randint(0, len(events)) for _ in range(parts - 1))
    return [list(events[a:b]) for a, b in pairwise([0, *places, len(events)])]


def streamed(
    batches: Iterable[Sequence[Payment]], *, delay: int = 7 * DAY, bound: int = 0, restarts: bool = False
) -> list[dict[str, Any]]:
    """Features of payments through both processes, by identity."""
    chain = _chain(delay, bound)
    emitted = []
    for batch in batches:
        emitted += chain.run_batch([(p.customer_id, p.event_time_ms, p) for p in batch])
        if restarts:
            kept = [host.snapshot() for host in chain.hosts]
            chain = _chain(delay, bound)
            for host, snapshot in zip(chain.hosts, kept, strict=True):
                host.restore(snapshot)
    emitted += chain.drain()
    assert chain.is_empty(), "nothing may be kept when all is over"
    assert {e.output for e in emitted} <= {"main"}
    return sorted((msgspec.json.decode(e.payload) for e in emitted), key=lambda row: row["transaction_id"])


def _chain(delay: int, bound: int) -> MemoryChain:
    return MemoryChain(CustomerHistory(), ("terminal_id", TerminalHistory(delay)), out_of_orderness_ms=bound)


def of_table(frame: pd.DataFrame) -> list[Payment]:
    return list(payments(frame))

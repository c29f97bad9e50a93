"""The transaction simulator of the Fraud Detection Handbook, rebuilt from its description.

Customers and terminals lie on a square. A customer pays at terminals nearby, some times a day, with amounts
around a mean of its own. Three frauds are laid over that: every amount above 220 (scenario 1), terminals
whose payments are all fraudulent for 28 days (2), and customers of whose payments a third, for 14 days, are
fraudulent and five times as high (3).

Source of the laws and parameters: Le Borgne, Siblini, Lebichot, Bontempi, "Reproducible Machine Learning
for Credit Card Fraud Detection: Practical Handbook", Université Libre de Bruxelles 2022, chapter 3,
"Transaction data simulator". The random numbers are our own, so single transactions differ from the
published table; its totals and distributions are met.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.errors import UserError
from millrace_apps.generators.engine.profile import Profile, check
from millrace_apps.generators.engine.randomness import digest

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

#: Rows of the published table at full size, and how many of them are frauds.
PUBLISHED_TRANSACTIONS: Final = 1_754_155
PUBLISHED_FRAUDS: Final = 14_681

#: Scenario 1: a payment above this is a fraud.
HIGH_AMOUNT: Final = 220.0
#: Scenario 2: terminals taken over per day, and for how many days.
TERMINALS_A_DAY: Final = 2
TERMINAL_DAYS: Final = 28
#: Scenario 3: customers hit per day, for how many days, one in how many payments, and how much higher.
CUSTOMERS_A_DAY: Final = 3
CUSTOMER_DAYS: Final = 14
CUSTOMER_SHARE: Final = 3
CUSTOMER_FACTOR: Final = 5

_DAY_S: Final = 86_400
_NOON_S: Final = 43_200
_SPREAD_S: Final = 20_000
_SIDE: Final = 100.0

#: The published columns; times are UTC without a zone, as there.
SCHEMA: Final = pa.schema(
    [
        ("TRANSACTION_ID", pa.int32()),
        ("TX_DATETIME", pa.timestamp("us")),
        ("CUSTOMER_ID", pa.int32()),
        ("TERMINAL_ID", pa.int32()),
        ("TX_AMOUNT", pa.float64()),
        ("TX_TIME_SECONDS", pa.int32()),
        ("TX_TIME_DAYS", pa.int32()),
        ("TX_FRAUD", pa.int8()),
        ("TX_FRAUD_SCENARIO", pa.int8()),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class HandbookProfile(Profile):
    """What a table is made from; equal profiles give equal tables. The defaults are the published size.

    Attributes:
        event_rate: Payments per second of event time as a pace for sending; what happens when is the table's.
        start_ms: First day, midnight UTC.
        customers: Number of customers.
        terminals: Number of terminals.
        days: Length, days.
        radius: A customer pays at terminals nearer than this; the square's side is 100.
    """

    event_rate: float = 0.111
    start_ms: int = 1_522_540_800_000
    disorder_ms: int = 0
    customers: int = 5_000
    terminals: int = 10_000
    days: int = 183
    radius: float = 5.0

    def __post_init__(self) -> None:
        # The two-argument form: a slotted dataclass is a second class, which super() alone does not find.
        super(HandbookProfile, self).__post_init__()
        check(1 <= self.customers <= 1_000_000, "customers is a count up to 1,000,000", self.customers)
        check(1 <= self.terminals <= 1_000_000, "terminals is a count up to 1,000,000", self.terminals)
        check(1 <= self.days <= 3_660, "days is a count between 1 and 3,660", self.days)
        check(0 < self.radius <= 142, "radius is above 0 and at most the square's diagonal", self.radius)

    @property
    def start(self) -> datetime:
        """First day, midnight UTC."""
        return datetime.fromtimestamp(self.start_ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class Compromise:
    """A terminal (scenario 2) or a customer (scenario 3) in fraudulent hands.

    Attributes:
        scenario: 2 or 3.
        entity: The terminal's or customer's id.
        first_day: First day, counted from the start.
        end_day: First day after it.
    """

    scenario: int
    entity: int
    first_day: int
    end_day: int


@dataclass(frozen=True, slots=True)
class Handbook:
    """A simulated table with the truth behind it.

    Attributes:
        transactions: The published columns in order of time (see :data:`SCHEMA`).
        compromises: What was compromised when.
    """

    transactions: pa.Table
    compromises: tuple[Compromise, ...]

    @property
    def frauds(self) -> int:
        """How many transactions are frauds."""
        return int(self.transactions["TX_FRAUD"].to_numpy().sum())


def simulate_handbook(profile: HandbookProfile) -> Handbook:
    """Simulate a table.

    Args:
        profile: Its size and seed.

    Returns:
        The transactions in order of time, and what was compromised when.

    >>> small = simulate_handbook(HandbookProfile(customers=50, terminals=100, days=30, radius=20))
    >>> small.transactions.num_rows > 2_000, small.frauds > 100, len(small.compromises)
    (True, True, 145)
    """
    payments = _sorted(_payments(profile))
    fraud = (payments.amount > HIGH_AMOUNT).astype(np.int64)
    terminals = list(_compromised(profile, 2, profile.terminals, TERMINALS_A_DAY, TERMINAL_DAYS))
    customers = list(_compromised(profile, 3, profile.customers, CUSTOMERS_A_DAY, CUSTOMER_DAYS))
    _terminal_frauds(payments, terminals, fraud)
    _customer_frauds(payments, customers, fraud, _numbers(profile, "scenario 3", "payments"))
    return Handbook(_table(profile, payments, fraud), (*terminals, *customers))


def write_table(profile: HandbookProfile, path: Path) -> str:
    """Simulate a table and write it to a Parquet file, with its labels.

    Args:
        profile: Its size and seed.
        path: File to write.

    Returns:
        What was written, for people.

    Raises:
        UserError: If the file cannot be written.
    """
    made = simulate_handbook(profile)
    try:
        with path.open("wb") as file:
            pq.write_table(made.transactions, file, compression="zstd")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    rows = made.transactions.num_rows
    return (
        f"{rows:,} transactions\n"
        f"  {made.frauds:,} frauds ({made.frauds / max(rows, 1):.2%}), column TX_FRAUD; "
        f"{len(made.compromises):,} terminals and customers compromised"
    )


@dataclass(slots=True)
class _Payments:
    """Payments as columns; seconds count from the start."""

    second: Ints
    customer: Ints
    terminal: Ints
    amount: Floats

    @property
    def day(self) -> Ints:
        return self.second // _DAY_S


def _numbers(profile: HandbookProfile, *purpose: str) -> np.random.RandomState:
    """Return the random numbers for one purpose, from NumPy's generator whose numbers are frozen (NEP 19)."""
    text = digest("handbook", profile.seed, *purpose)
    return np.random.RandomState([int(text[start : start + 8], 16) for start in range(0, 32, 8)])


def _payments(profile: HandbookProfile) -> _Payments:
    """Return all payments before any fraud: customer by customer, day by day."""
    means = _numbers(profile, "customer", "mean").uniform(5, 100, profile.customers)
    rates = _numbers(profile, "customer", "rate").uniform(0, 4, profile.customers)
    first, reachable = _reachable(profile)
    # A customer far from every terminal does not pay; a table of few terminals has some.
    rates[np.diff(first) == 0] = 0
    counts = _numbers(profile, "count").poisson(rates[:, None], (profile.customers, profile.days)).ravel()
    cell = np.repeat(np.arange(counts.size), counts)
    second = _numbers(profile, "second").normal(_NOON_S, _SPREAD_S, cell.size).astype(np.int64)
    # Times outside of the day are dropped, not drawn again: 3 % of the payments.
    inside = (second > 0) & (second < _DAY_S)
    customer, day = np.divmod(cell[inside], profile.days)
    choice = _numbers(profile, "terminal").random_sample(customer.size)
    nearby = first[customer] + (choice * np.diff(first)[customer]).astype(np.int64)
    amount = _amounts(profile, means[customer])
    return _Payments(second[inside] + day * _DAY_S, customer, reachable[nearby], amount)


def _amounts(profile: HandbookProfile, means: Floats) -> Floats:
    amount: Floats = means * (1 + 0.5 * _numbers(profile, "amount").standard_normal(means.size))
    again = _numbers(profile, "amount", "again").random_sample(means.size) * 2 * means
    amount[amount < 0] = again[amount < 0]
    return amount.round(2)


def _reachable(profile: HandbookProfile) -> tuple[Ints, Ints]:
    """Return the terminals within reach of every customer, one after the other, and where each begins."""
    x, y = _numbers(profile, "customer", "place").uniform(0, _SIDE, (2, profile.customers))
    their_x, their_y = _numbers(profile, "terminal", "place").uniform(0, _SIDE, (2, profile.terminals))
    by_x = np.argsort(their_x, kind="stable")
    sorted_x, sorted_y = their_x[by_x], their_y[by_x]
    left = np.searchsorted(sorted_x, x - profile.radius, side="left")
    right = np.searchsorted(sorted_x, x + profile.radius, side="right")
    found = []
    for number in range(profile.customers):
        # Only the strip of terminals that are near enough from left to right is looked at.
        strip = slice(left[number], right[number])
        square = (sorted_x[strip] - x[number]) ** 2 + (sorted_y[strip] - y[number]) ** 2
        found.append(np.sort(by_x[strip][square < profile.radius**2]))
    first = np.zeros(profile.customers + 1, dtype=np.int64)
    np.cumsum([near.size for near in found], out=first[1:])
    return first, np.concatenate(found)


def _sorted(payments: _Payments) -> _Payments:
    """Return the payments in order of time; those of one second by customer."""
    order = np.argsort(payments.second, kind="stable")
    return _Payments(
        payments.second[order], payments.customer[order], payments.terminal[order], payments.amount[order]
    )


def _compromised(
    profile: HandbookProfile, scenario: int, entities: int, a_day: int, days: int
) -> Iterator[Compromise]:
    """Yield, for every day but the last, so many different entities, each compromised for so many days."""
    numbers = _numbers(profile, f"scenario {scenario}", "entity")
    for day in range(profile.days - 1):
        for entity in numbers.permutation(entities)[:a_day]:
            yield Compromise(scenario, int(entity), day, day + days)


def _terminal_frauds(payments: _Payments, compromises: list[Compromise], fraud: Ints) -> None:
    rows_of = _Rows(payments.terminal, payments.second)
    for hit in compromises:
        fraud[rows_of(hit)] = 2


def _customer_frauds(
    payments: _Payments, compromises: list[Compromise], fraud: Ints, numbers: np.random.RandomState
) -> None:
    rows_of = _Rows(payments.customer, payments.second)
    for hit in compromises:
        rows = rows_of(hit)
        taken = numbers.permutation(rows)[: rows.size // CUSTOMER_SHARE]
        # Somebody hit twice can have one payment raised twice, as in the published table.
        payments.amount[taken] = np.round(payments.amount[taken] * CUSTOMER_FACTOR, 2)
        fraud[taken] = 3


class _Rows:
    """Finds the rows of one terminal or customer within a span of days."""

    def __init__(self, entity: Ints, second: Ints) -> None:
        # Stable: an entity's rows stay in order of time.
        self._order = np.argsort(entity, kind="stable")
        self._entity = entity[self._order]
        self._second = second

    def __call__(self, hit: Compromise) -> Ints:
        begin, end = np.searchsorted(self._entity, [hit.entity, hit.entity + 1])
        rows = self._order[begin:end]
        span = np.searchsorted(self._second[rows], [hit.first_day * _DAY_S, hit.end_day * _DAY_S])
        return rows[span[0] : span[1]]


def _table(profile: HandbookProfile, payments: _Payments, fraud: Ints) -> pa.Table:
    start_us = round(profile.start.timestamp()) * 1_000_000
    columns: list[npt.NDArray[Any]] = [
        np.arange(payments.second.size),
        (payments.second * 1_000_000 + start_us).astype("datetime64[us]"),
        payments.customer,
        payments.terminal,
        payments.amount,
        payments.second,
        payments.day,
        fraud > 0,
        fraud,
    ]
    typed = [
        pa.array(column.astype(field.type.to_pandas_dtype()), field.type)
        for column, field in zip(columns, SCHEMA, strict=True)
    ]
    return pa.table(typed, schema=SCHEMA)

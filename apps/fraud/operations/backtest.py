"""Back-test of rules: the same conditions and windows over transactions that were decided on.

Windows are computed anew from the table's transactions, so a rule may ask for one that nobody asked for
before; what else it reads is what stood there when it was decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.errors import UserError
from millrace.parts.lookback import Look, link_of
from millrace.rules import Match, Rule, RuleSet
from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.fraud.processes.billing import billed, cents_of
from millrace_apps.fraud.processes.label_fields import NOTHING_SAID
from millrace_apps.fraud.processes.local_time import hour_of, weekday_of
from millrace_apps.fraud.processes.rulebook import FIELDS, LANGUAGE, Windows, text_of
from millrace_apps.fraud.processes.window_functions import (
    ENTITIES,
    Asked,
    asked,
    compute,
    entity_of,
    without_amounts,
)
from millrace_apps.fraud.state.card_history import CardLook, Steps, counted, links_of
from millrace_apps.fraud.state.history import DAY_MS, MAX_KEPT, MAX_KEPT_OF_CARD, History, look_of

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns of the table that make a transaction; those after the ninth may be missing in an old table.
_TRANSACTION: Final = Transaction.__struct_fields__
_NEEDED: Final = _TRANSACTION[:9]
#: Columns that are records; rules read their fields.
_RECORDS: Final = ("card", "card_labels", "terminal_labels")


#: Card → time, ms, and identity of each declined payment.
Declines = Mapping[str, Sequence[tuple[int, str]]]


class BacktestError(UserError):
    """There is nothing to test on."""


class Outcome(msgspec.Struct):
    """What a rule would have done.

    Attributes:
        rule: Its id.
        action: What it asks for.
        alerts: Transactions of which it holds.
        alerts_per_day: The same per day.
        cards: Different cards among them.
        amount: Their sum.
        frauds: Those with a label that says fraud; None without labels.
        fraud_amount: Their sum.
        genuine: Those with a label that says genuine.
        precision: Frauds of all alerts; None without labels or alerts.
        recall: Frauds of all frauds; None without labels or frauds.
        new: Those that were approved when it was decided.
        examples: Up to five of them.
    """

    rule: str
    action: str
    alerts: int = 0
    alerts_per_day: float = 0.0
    cards: int = 0
    amount: float = 0.0
    frauds: int | None = None
    fraud_amount: float | None = None
    genuine: int | None = None
    precision: float | None = None
    recall: float | None = None
    new: int = 0
    examples: list[str] = []


class Report(msgspec.Struct):
    """What a set of rules would have done.

    Attributes:
        transactions: How many were looked at.
        from_ms: Time of the first, ms.
        until_ms: Time of the last, ms.
        days: From the first to the last.
        frauds: Labelled frauds among them; None without labels.
        rules: What each rule would have done.
        together: The same for all rules as one.
        seconds: How long it took.
    """

    transactions: int
    from_ms: int
    until_ms: int
    days: float
    frauds: int | None
    rules: list[Outcome]
    together: Outcome
    seconds: float = 0.0


def _dataset(path: Path | str) -> Any:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return DeltaTable(str(path)).to_pyarrow_dataset()
    except TableNotFoundError:
        raise BacktestError(f"there is no table of transactions in {path}") from None


def count_rows(path: Path | str) -> int:
    """Return how many transactions the table has.

    Args:
        path: The Delta table.

    Raises:
        BacktestError: There is no such table.
    """
    return int(_dataset(path).count_rows())


def read_table(
    path: Path | str, columns: Sequence[str], *, from_ms: int | None, until_ms: int | None
) -> pa.Table:
    """Return columns of the table of transactions in order of time, those of the same time by their id.

    Args:
        path: The Delta table.
        columns: What is read beside the transaction; what the table does not have is left out.
        from_ms: First time, ms; None: from the beginning.
        until_ms: First time after the last, ms; None: to the end.

    Raises:
        BacktestError: There is no such table, or nothing in it.
    """
    import pyarrow.compute as pc

    data = _dataset(path)
    there = set(data.schema.names)
    if missing := [name for name in _NEEDED if name not in there]:
        raise BacktestError(f"{path} is no table of transactions: it has no column '{missing[0]}'")
    condition = pc.field("event_time_ms") >= (0 if from_ms is None else from_ms)
    if until_ms is not None:
        condition &= pc.field("event_time_ms") < until_ms
    names = [n for n in dict.fromkeys((*_TRANSACTION, "action", *columns)) if n in there]
    found = data.to_table(columns=names, filter=condition)
    if not len(found):
        raise BacktestError(f"{path} has no transaction in that time")
    return found.sort_by([("event_time_ms", "ascending"), ("transaction_id", "ascending")])


def read_labels(path: Path) -> dict[str, bool]:
    """Return transaction → whether it is held to be a fraud, the newest label of each.

    Args:
        path: A Delta table, a Parquet file, or JSON lines, with ``transaction_id`` and ``is_fraud``, and
            ``event_time_ms`` (when it became known) where a transaction may have several.

    Raises:
        BacktestError: It cannot be read, or has not these columns.
    """
    rows = _label_rows(path)
    try:
        rows.sort(key=lambda row: row.get("event_time_ms") or 0)
        return {str(row["transaction_id"]): bool(row["is_fraud"]) for row in rows}
    except KeyError as error:
        raise BacktestError(f"{path}: labels need the field {error}") from None


def _label_rows(path: Path) -> list[dict[str, Any]]:
    try:
        if path.is_dir() and (path / "_delta_log").is_dir():
            from deltalake import DeltaTable

            return list(DeltaTable(str(path)).to_pyarrow_table().to_pylist())
        if path.suffix == ".parquet" or path.is_dir():
            import pyarrow.parquet as pq

            return list(pq.read_table(path).to_pylist())
        decode = msgspec.json.Decoder(dict[str, Any]).decode
        return [decode(line) for line in path.read_bytes().splitlines() if line.strip()]
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BacktestError(f"labels in {path} cannot be read: {error}") from None


def read_declined(path: Path | str, rules: Iterable[Rule]) -> Declines:
    """Return card → time and identity of each declined payment, where a rule asks for them.

    Args:
        path: The Delta table of authorisations; where there is none, nothing was declined.
        rules: The rules.
    """
    import pyarrow.compute as pc

    if not any(use.name == "declined" for rule in rules for use in LANGUAGE.condition(rule.when).uses):
        return {}
    try:
        data = _dataset(path)
    except BacktestError:
        return {}
    found: dict[str, list[tuple[int, str]]] = {}
    columns = ["card_id", "event_time_ms", "transaction_id"]
    for row in data.to_table(columns=columns, filter=pc.field("status") == "declined").to_pylist():
        found.setdefault(row["card_id"], []).append((row["event_time_ms"], row["transaction_id"]))
    return found


def columns_of(rules: Iterable[Rule]) -> set[str]:
    """Return the columns of the table that rules read beside the transaction's own."""
    found = set()
    for rule in rules:
        for name in LANGUAGE.condition(rule.when).fields:
            group, _, column = (FIELDS[name].attribute or name).partition(".")
            group = "card" if name == "home_country" else group
            if group in _RECORDS:
                found.add(group)
            else:
                found.add(column if group in ("own", "tx") else name)
    return found


class _Declined:
    """The declined payments of a card, as its state has them.

    Args:
        found: Time and identity of each.
    """

    def __init__(self, found: Sequence[tuple[int, str]]) -> None:
        self._found = found

    @property
    def value(self) -> Steps:
        """Itself."""
        return self

    def declined(self, after: int, until: int) -> int:
        """Return how many payments were declined in (after, until], ms."""
        return len({payment for at, payment in self._found if after < at <= until})


@dataclass
class _Stages:
    """The histories of all entities that the rules' windows need."""

    asked: dict[str, Asked]
    declined: Declines
    kept: dict[tuple[str, str], History] = field(default_factory=dict)

    def windows(self, tx: Transaction) -> dict[str, float]:
        """Return the windows at a transaction, and count it."""
        found: dict[str, float] = {}
        cents = cents_of(tx) if tx.kind == "purchase" else 0
        time, unknown = tx.event_time_ms, tx.kind == "purchase" and not cents
        for stage, asks in self.asked.items():
            name = tx.card_id if stage == "card" else getattr(tx, ENTITIES[stage])
            if name is None:
                continue
            key = (stage, name)
            history = self.kept.get(key)
            if stage == "card":
                look: Look = CardLook(history, time, _Declined(self.declined.get(name, ())))
            else:
                look = look_of(history, time)
            if unknown:
                compute(without_amounts(asks), found, look, tx, 1)
            else:
                compute(asks, found, look, tx, cents)
            if tx.kind == "purchase":
                if stage == "card":
                    history = self.kept[key] = counted(history, tx, cents, links_of(tx))
                else:
                    if history is None:
                        history = self.kept[key] = History(since=time)
                    history.add(time, cents, (link_of(tx.card_id),))
                history.forget(time, MAX_KEPT_OF_CARD if stage == "card" else MAX_KEPT)
        return found


def backtest(
    rules: Sequence[Rule],
    table: pa.Table,
    labels: Mapping[str, bool] | None = None,
    *,
    lists: Mapping[str, Mapping[str, int]] | None = None,
    declined: Declines | None = None,
    from_ms: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Return what rules would have done.

    Args:
        rules: The rules; each is asked as if it were active all the time.
        table: Transactions in order of time, as :func:`read_table` gives them.
        labels: Transaction → whether it is held to be a fraud.
        lists: What ``listed`` looks into.
        declined: Card → its declined payments, as :func:`read_declined` gives them.
        from_ms: Count from this time on, ms; what is before fills the windows.
        progress: Called with the number of transactions done, now and then.

    Raises:
        RuleError: A rule is none.
    """
    ready = [Match(rule, 1, False, LANGUAGE.condition(rule.when)) for rule in rules]
    asked_for: dict[str, Asked] = {}
    uses = {text_of(use): use for match in ready for use in match.condition.uses}
    for text, use in sorted(uses.items()):
        if stage := entity_of(use):
            asked_for.setdefault(stage, {})[text] = asked(use)
    stages, book = _Stages(asked_for, declined or {}), RuleSet(ready)
    tally = _Tally(rules, labels)
    facts = SimpleNamespace(lists=lists or {}, score=0.0, model_score=None, own=SimpleNamespace())
    for name in _RECORDS:
        setattr(facts, name, NOTHING_SAID)
    rest = _Rest(table)
    for done, tx in enumerate(_transactions(table)):
        windows = stages.windows(tx)
        if from_ms is None or tx.event_time_ms >= from_ms:
            facts.tx, facts.windows, facts.event_time_ms = tx, Windows(windows), tx.event_time_ms
            facts.billed = billed(tx)
            rest.fill(facts, done)
            facts.hour, facts.weekday = hour_of(tx), weekday_of(tx)
            facts.home_country = tx.home_country or facts.card.home_country
            tally.add(tx, rest.action(done), [match.rule.id for match in book.matches(facts)])
        if progress is not None and done % 10_000 == 0:
            progress(done)
    return tally.report()


class _Record:
    """A record of the table; what an older table did not have is missing."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> None:
        return None


class _Rest:
    """What stood beside the transactions, as far as the rules read it."""

    def __init__(self, table: pa.Table) -> None:
        names = [n for n in table.column_names if n not in _TRANSACTION and n != "action"]
        self._columns = {n: table.column(n).to_pylist() for n in names if n not in _RECORDS}
        self._records = {
            n: [_Record(found) if found else NOTHING_SAID for found in table.column(n).to_pylist()]
            for n in names
            if n in _RECORDS
        }
        self._actions = table.column("action").to_pylist() if "action" in table.column_names else None

    def fill(self, facts: Any, row: int) -> None:
        """Put a row's values where rules look for them."""
        own = facts.own
        for name, values in self._columns.items():
            setattr(facts if name in ("score", "model_score") else own, name, values[row])
        for name, records in self._records.items():
            setattr(facts, name, records[row])

    def action(self, row: int) -> str:
        """Return what was decided."""
        return "approve" if self._actions is None else str(self._actions[row])


def _transactions(table: pa.Table) -> Iterable[Transaction]:
    columns = []
    for name in _TRANSACTION:
        there = name in table.column_names
        columns.append(table.column(name).to_pylist() if there else [None] * len(table))
    for values in zip(*columns, strict=True):
        yield Transaction(*values)


class _Tally:
    """Counts what the rules find."""

    def __init__(self, rules: Sequence[Rule], labels: Mapping[str, bool] | None) -> None:
        self._labels = labels
        self._of = {rule.id: Outcome(rule.id, rule.action) for rule in rules}
        self._together = Outcome("together", "")
        self._cards: dict[str, set[str]] = {name: set() for name in (*self._of, "together")}
        self._frauds = 0
        self._n = 0
        self._first: int | None = None
        self._last = 0

    def add(self, tx: Transaction, action: str, found: list[str]) -> None:
        """Count a transaction and the rules that hold of it."""
        self._n += 1
        self._first = tx.event_time_ms if self._first is None else self._first
        self._last = tx.event_time_ms
        label = None if self._labels is None else self._labels.get(tx.transaction_id)
        self._frauds += label is True
        for name in found:
            self._count(self._of[name], tx, action, label)
        if found:
            self._count(self._together, tx, action, label)

    def _count(self, outcome: Outcome, tx: Transaction, action: str, label: bool | None) -> None:
        outcome.alerts += 1
        outcome.amount = round(outcome.amount + cents_of(tx) / 100, 2)
        outcome.new += action == "approve"
        self._cards[outcome.rule].add(tx.card_id)
        if len(outcome.examples) < 5:
            outcome.examples.append(tx.transaction_id)
        if label is not None:
            if label:
                outcome.frauds = (outcome.frauds or 0) + 1
                outcome.fraud_amount = round((outcome.fraud_amount or 0.0) + cents_of(tx) / 100, 2)
            else:
                outcome.genuine = (outcome.genuine or 0) + 1

    def report(self) -> Report:
        """Return what was counted."""
        if self._first is None:
            raise BacktestError("there is no transaction in that time")
        days = (self._last - self._first) / DAY_MS
        for outcome in (*self._of.values(), self._together):
            outcome.cards = len(self._cards[outcome.rule])
            outcome.alerts_per_day = round(outcome.alerts / max(days, 1.0), 3)
            if self._labels is None:
                continue
            frauds = outcome.frauds = outcome.frauds or 0
            outcome.fraud_amount, outcome.genuine = outcome.fraud_amount or 0.0, outcome.genuine or 0
            outcome.precision = frauds / outcome.alerts if outcome.alerts else None
            outcome.recall = frauds / self._frauds if self._frauds else None
        frauds_all = None if self._labels is None else self._frauds
        return Report(
            self._n, self._first, self._last, days, frauds_all, list(self._of.values()), self._together
        )

"""Figures of the fraud page, folded forward from the tables: what is read once is not read again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.dashboard.data import AppData
from millrace_apps.fraud.cases.app import FraudCasesSettings
from millrace_apps.fraud.cases.live import alerts_of
from millrace_apps.fraud.cases.store import case_view, verdicts
from millrace_apps.fraud.processes.billing import BILLED, billed_amounts

if TYPE_CHECKING:
    import pyarrow as pa

Counts = npt.NDArray[np.int64]

#: Width of a step of event time, ms; charts join steps together.
STEP_MS: Final = 300_000
#: Steps that are kept: two weeks.
_MOST_STEPS: Final = 4_032
_MOST_ALERTS: Final = 50_000
_MOST_LABELS: Final = 500_000
#: Bins of the score, 0 to 1, and of the logarithm of the amount.
_BINS: Final = 10
_LARGEST_LOG: Final = 10.0
#: Smallest share that stands in a stability index: an empty bin would make it infinite.
_LEAST_SHARE: Final = 1e-4
ACTIONS: Final = ("approve", "review", "block")


class Decided:
    """What was decided, by steps of event time.

    Attributes:
        actions: Step → number of decisions per action.
        scores: Step → histogram of the score.
        amounts: Step → histogram of the logarithm of the amount.
        rules: Rule → how often it held while it was in force, and the amounts.
        shadow: The same of rules in shadow.
        models: Model version → number of decisions.
    """

    def __init__(self) -> None:
        self.actions: dict[int, Counts] = {}
        self.scores: dict[int, Counts] = {}
        self.amounts: dict[int, Counts] = {}
        self.rules: Counter[str] = Counter()
        self.shadow: Counter[str] = Counter()
        self.models: Counter[str] = Counter()

    def add(self, rows: pa.Table) -> Decided:
        """Add the rows of a file of the table ``transactions``."""
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = rows.filter(pc.is_in(rows["action"], value_set=pa.array(ACTIONS)))
        if not rows.num_rows:
            return self
        steps = rows["event_time_ms"].to_numpy() // STEP_MS
        score = np.clip(rows["score"].to_numpy(), 0, 1)
        amount = billed_amounts(lambda name: rows[name].to_numpy(), rows.column_names)
        log_amount = np.log1p(np.abs(np.nan_to_num(amount)))
        places = pc.index_in(rows["action"], value_set=pa.array(ACTIONS))
        action = places.to_numpy(zero_copy_only=False).astype(np.int64)
        bins = np.minimum((score * _BINS).astype(np.int64), _BINS - 1)
        logs = np.minimum((log_amount / _LARGEST_LOG * _BINS).astype(np.int64), _BINS - 1)
        for step in np.unique(steps).tolist():
            here = steps == step
            for kept, values, size in (
                (self.actions, action, 3),
                (self.scores, bins, _BINS),
                (self.amounts, logs, _BINS),
            ):
                counted = here & ~np.isnan(amount) if kept is self.amounts else here
                counts = np.bincount(values[counted], minlength=size)
                kept[step] = kept[step] + counts if step in kept else counts
        for kept in (self.actions, self.scores, self.amounts):
            for step in sorted(kept)[: max(0, len(kept) - _MOST_STEPS)]:
                del kept[step]
        self._add_names(rows)
        return self

    def _add_names(self, rows: pa.Table) -> None:
        import pyarrow.compute as pc

        for column, counts in (("rules", self.rules), ("shadow_rules", self.shadow)):
            if column in rows.column_names:
                _count(counts, pc.list_flatten(rows[column]))
        if "model_version" in rows.column_names:
            _count(self.models, rows["model_version"].drop_null())


def _count(counts: Counter[str], values: pa.ChunkedArray) -> None:
    for found in values.value_counts().to_pylist():
        counts[found["values"]] += found["counts"]


class AlertFigures(NamedTuple):
    """What the page needs of an alert."""

    card_id: str
    event_time_ms: int
    amount: float
    action: str
    codes: tuple[str, ...]
    rules: tuple[str, ...]


class LabelFigures(NamedTuple):
    """What the page needs of a label: the last of a transaction, and when the first became known."""

    is_fraud: bool
    known_ms: int
    delay_ms: int


def billed(row: Mapping[str, Any]) -> float | None:
    """Return a row's amount in the app's currency; ``None``: it is not known.

    >>> billed({"amount": 9.0}), billed({"amount": 9.0, "billing_amount": None, "billing_currency": "EUR"})
    (9.0, None)
    """
    amount: float | None = row.get("billing_amount") if row.get("billing_currency") else row["amount"]
    return amount


def worth(row: Mapping[str, Any]) -> float:
    """Return a row's amount in the app's currency; 0: it is not known."""
    return float(billed(row) or 0.0)


def decided(data: AppData) -> Decided | None:
    """Return what was decided, ``None`` before there is a table."""
    table = data.table("transactions")
    if table is None:
        return None
    columns = [
        "event_time_ms",
        "score",
        "amount",
        "action",
        "rules",
        "shadow_rules",
        "model_version",
        *BILLED,
    ]
    return table.fold("decided", columns, Decided, Decided.add)


def alerts(data: AppData) -> dict[str, AlertFigures]:
    """Return the latest alerts by transaction."""
    table = data.table("alerts")
    columns = ["transaction_id", "card_id", "event_time_ms", "amount", "score", "action", "reasons", "rules",
               *BILLED]  # fmt: skip
    return {} if table is None else table.fold("alerts", columns, dict, _add_alerts)


def _add_alerts(kept: dict[str, AlertFigures], rows: pa.Table) -> dict[str, AlertFigures]:
    for row in rows.to_pylist():
        (alert,) = alerts_of([row])
        codes = tuple(r.code for r in alert.reasons if not r.beside)
        kept[row["transaction_id"]] = AlertFigures(
            row["card_id"],
            row["event_time_ms"],
            alert.worth,
            row["action"],
            codes,
            tuple(row.get("rules") or ()),
        )
    shorten(kept, _MOST_ALERTS)
    return kept


def labels(data: AppData, settings: FraudCasesSettings) -> dict[str, LabelFigures]:
    """Return what is known of transactions: the table ``labels``, and what analysts decided on cases."""
    table = data.table("labels")
    columns = ["transaction_id", "transaction_time_ms", "event_time_ms", "is_fraud"]
    found: dict[str, LabelFigures] = {} if table is None else table.fold("labels", columns, dict, _add_labels)
    view = case_view(data, settings)
    if view is None or not view.labels:
        return found
    said = verdicts(view.labels)
    own = {
        label.transaction_id: LabelFigures(
            said[label.transaction_id], label.event_time_ms, label.event_time_ms - label.transaction_time_ms
        )
        for label in reversed(view.labels)
    }
    # Where a label has come back by the topic, it is in the table as well.
    return {**own, **found}


def _add_labels(kept: dict[str, LabelFigures], rows: pa.Table) -> dict[str, LabelFigures]:
    for row in rows.to_pylist():
        before = kept.get(row["transaction_id"])
        known = row["event_time_ms"]
        if before is None:
            delay = known - row["transaction_time_ms"]
            kept[row["transaction_id"]] = LabelFigures(row["is_fraud"], known, delay)
        elif known >= before.known_ms:
            kept[row["transaction_id"]] = LabelFigures(row["is_fraud"], known, before.delay_ms)
    shorten(kept, _MOST_LABELS)
    return kept


def shorten(kept: dict[str, Any], most: int) -> None:
    """Forget what was added first, beyond so many."""
    for key in list(islice(kept, max(0, len(kept) - most))):
        del kept[key]


class Judged(NamedTuple):
    """Alerts of which it is known what they were.

    Attributes:
        alert: The alert.
        is_fraud: What it was.
    """

    alert: AlertFigures
    is_fraud: bool


def judged(data: AppData, settings: FraudCasesSettings) -> list[Judged]:
    """Return the alerts that have a label, in order of event time."""
    known = labels(data, settings)
    found = [Judged(a, known[i].is_fraud) for i, a in alerts(data).items() if i in known]
    return sorted(found, key=lambda j: j.alert.event_time_ms)


def precision(found: Sequence[Judged]) -> float | None:
    """Return the share of frauds among labelled alerts, ``None`` of none."""
    return sum(j.is_fraud for j in found) / len(found) if found else None


def running_precision(found: Sequence[Judged], points: int = 200) -> list[tuple[int, float]]:
    """Return the precision of all labelled alerts up to a time, at so many times at most."""
    line, frauds = [], 0
    every = max(1, math.ceil(len(found) / points))
    for n, j in enumerate(found, 1):
        frauds += j.is_fraud
        if n % every == 0 or n == len(found):
            line.append((j.alert.event_time_ms, frauds / n))
    return line


def stability_index(expected: Counts, found: Counts) -> float:
    """Return the population stability index of two histograms of the same bins.

    Below 0.1 nothing has changed, above 0.25 much has, by the usual reading (Siddiqi, *Credit Risk
    Scorecards*, 2006).

    Args:
        expected: The histogram to compare with.
        found: The histogram that is compared.

    >>> round(stability_index(np.array([50, 50]), np.array([50, 50])), 3)
    0.0
    >>> round(stability_index(np.array([50, 50]), np.array([80, 20])), 3)
    0.416
    """
    a = np.maximum(expected / max(1, expected.sum()), _LEAST_SHARE)
    b = np.maximum(found / max(1, found.sum()), _LEAST_SHARE)
    return float(((b - a) * np.log(b / a)).sum())


def summed(kept: dict[int, Counts], steps: Sequence[int]) -> Counts | None:
    """Return the sum of the histograms of some steps, ``None`` of none."""
    parts = [kept[step] for step in steps if step in kept]
    return sum(parts[1:], parts[0]) if parts else None

"""Train for each test week, score it, measure: what ``millrace evaluate fraud`` reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from millrace.errors import UserError
from millrace.models.calibration import Calibration
from millrace.models.tables import matrix
from millrace_apps.fraud.evaluation.recorded import SCENARIO
from millrace_apps.fraud.model.estimator import (
    BLOCK_FROM,
    HANDBOOK_MODEL,
    MODEL,
    REVIEW_FROM,
    HeldOut,
    ModelSpec,
    calibration_of,
    decide,
    held_out,
)
from millrace_apps.fraud.model.metrics import CARDS_A_DAY, Quality, quality
from millrace_apps.fraud.model.weeks import Week, day_of, week
from millrace_apps.fraud.operations.economics import Costs, Scored, choose
from millrace_apps.fraud.state.labels import DAY_MS

#: Seeds of the models whose mean is reported.
SEEDS: Final = (0, 1, 2, 3, 4)
#: The scenario of compromised terminals, and the amount from which on a payment is a fraud by itself.
_TERMINALS, _OBVIOUS = 2, 220.0
#: How long a terminal is compromised.
_COMPROMISED_MS: Final = 28 * DAY_MS


class NoSuchWeek(UserError):
    """A test week cannot be judged with these transactions."""


@dataclass(frozen=True)
class Hidden:
    """Average precision on frauds that nothing known can tell; above chance it shows a leak.

    Attributes:
        ap_hidden_terminal: Average precision, frauds of terminals without a known one against genuine.
        hidden_n: How many such frauds.
        hidden_prevalence: Their share of these payments: what chance gives.
    """

    ap_hidden_terminal: float
    hidden_n: int
    hidden_prevalence: float


@dataclass(frozen=True)
class WeekResult:
    """A test week.

    Attributes:
        start: Its first day.
        own: Measures of our model.
        handbook: Of the Handbook's.
        hidden: The leak detector on our model.
        handbook_hidden: On the Handbook's.
        scored: Payments of the week with both scores and the decision.
        train_rows: Payments trained on.
        train_frauds: Frauds among them.
        review_from: Probability from which a card is looked at, chosen on the newest days of the training.
        block_from: Probability from which a payment is blocked, chosen so too.
    """

    start: date
    own: Quality
    handbook: Quality
    hidden: Hidden
    handbook_hidden: Hidden
    scored: pd.DataFrame
    train_rows: int
    train_frauds: int
    review_from: float = REVIEW_FROM
    block_from: float = BLOCK_FROM

    def report(self) -> dict[str, Any]:
        """Return the week as it stands in the report."""
        return {"start": self.start.isoformat(), **asdict(self.own), **asdict(self.hidden),
                "rows": len(self.scored), "frauds": int(self.scored["TX_FRAUD"].sum()),
                "train_rows": self.train_rows, "train_frauds": self.train_frauds,
                "thresholds": {"review_from": self.review_from, "block_from": self.block_from},
                "handbook": {**asdict(self.handbook), **asdict(self.handbook_hidden)}}  # fmt: skip


def study(
    transactions: pd.DataFrame,
    features: pd.DataFrame,
    start: date,
    delay_ms: int,
    *,
    seeds: Sequence[int] = SEEDS,
    jobs: int = 1,
    on_model: Callable[[], None] = lambda: None,
    capacity: int = CARDS_A_DAY,
    costs: Costs | None = None,
) -> WeekResult:
    """Train on the week that begins 14 days before ``start``, and judge the week that begins there.

    Args:
        transactions: As they were read, by TRANSACTION_ID.
        features: Their features, in the same order.
        start: First day of the test week.
        delay_ms: Label delay, ms.
        seeds: A model is trained for each, and the measures are their mean.
        jobs: Threads to train with.
        on_model: Called after each model.
        capacity: Cards that can be looked at on a day: thresholds are chosen for it.
        costs: What looking and blocking cost.

    Raises:
        NoSuchWeek: There is nothing to train on or to test on.
    """
    fraud = transactions["TX_FRAUD"].to_numpy(dtype=bool)
    cards = transactions["CUSTOMER_ID"].to_numpy()
    days = day_of(transactions["at"].to_numpy())
    rows = week(start, days, cards, fraud)
    _check(rows, fraud)
    hidden = hidden_frauds(transactions, delay_ms)
    results: dict[str, tuple[Quality, Hidden, npt.NDArray[np.float64]]] = {}
    for spec in (MODEL, HANDBOOK_MODEL):
        x = matrix(features, spec.inputs)
        judged = []
        scores = np.zeros(len(rows.test))
        for seed in seeds:
            score = _score(spec, x, fraud, rows, seed, jobs)
            judged.append(_judge(score, rows.test, fraud, cards, days, hidden))
            scores += score / len(seeds)
            on_model()
        results[spec.name] = (*mean_of(judged), scores)
    own, handbook = results[MODEL.name], results[HANDBOOK_MODEL.name]
    held = held_out(matrix(features, MODEL.inputs), fraud, rows.train, jobs=jobs)
    curve = calibration_of(held, fraud)
    review_from, block_from = thresholds(transactions, held, curve, capacity, costs or Costs())
    probability = curve(own[2])
    scored = transactions.iloc[rows.test][["TRANSACTION_ID", "TX_DATETIME", "TX_FRAUD"]].assign(
        score=probability, handbook_score=handbook[2], decision=decide(probability, review_from, block_from)
    )
    return WeekResult(
        start=start,
        own=own[0],
        handbook=handbook[0],
        hidden=own[1],
        handbook_hidden=handbook[1],
        scored=scored,
        train_rows=len(rows.train),
        train_frauds=int(fraud[rows.train].sum()),
        review_from=review_from,
        block_from=block_from,
    )


def thresholds(
    transactions: pd.DataFrame, held: HeldOut | None, curve: Calibration, capacity: int, costs: Costs
) -> tuple[float, float]:
    """Return from where to review and to block: the cheapest whose reviews fit the day.

    They are chosen on rows of the training that the model did not see, before the days that are judged.

    Args:
        transactions: All payments.
        held: The rows, with their scores; ``None``: the usual thresholds are returned.
        curve: From scores to probabilities.
        capacity: Cards that can be looked at on a day.
        costs: What looking and blocking cost.
    """
    if held is None:
        return REVIEW_FROM, BLOCK_FROM
    rows = transactions.iloc[held.rows]
    fraud = rows["TX_FRAUD"].to_numpy(dtype=bool)
    if not fraud.any():
        return REVIEW_FROM, BLOCK_FROM
    known = Scored(
        rows["at"].to_numpy(dtype=np.int64),
        np.unique(rows["CUSTOMER_ID"].to_numpy(), return_inverse=True)[1].astype(np.int64),
        rows["TX_AMOUNT"].to_numpy(dtype=np.float64),
        curve(held.scores),
        fraud,
    )
    best, _ = choose(known, costs, capacity)
    return best.review_from, best.block_from


def hidden_frauds(transactions: pd.DataFrame, delay_ms: int) -> npt.NDArray[np.bool_] | None:
    """Return which payments are frauds that no known label announces; ``None`` without scenarios.

    They are of scenario 2 (compromised terminal), of an amount that says nothing, and no fraud of the last
    28 days at their terminal was known when they happened.

    Args:
        transactions: With TX_FRAUD_SCENARIO, TERMINAL_ID, TX_AMOUNT, TX_FRAUD and ``at``.
        delay_ms: Label delay, ms.
    """
    if SCENARIO not in transactions:
        return None
    at = transactions["at"].to_numpy()
    terminals = transactions["TERMINAL_ID"].to_numpy()
    fraud = transactions["TX_FRAUD"].to_numpy(dtype=bool)
    chosen = (transactions[SCENARIO].to_numpy() == _TERMINALS) & (
        transactions["TX_AMOUNT"].to_numpy() <= _OBVIOUS
    )
    known: dict[Any, npt.NDArray[np.int64]] = {}
    by_terminal = pd.Series(at[fraud]).groupby(terminals[fraud])
    for terminal, group in by_terminal:
        known[terminal] = np.sort(group.to_numpy())
    for row in np.flatnonzero(chosen).tolist():
        times = known[terminals[row]]
        until = np.searchsorted(times, at[row] - delay_ms, side="right")
        since = np.searchsorted(times, at[row] - _COMPROMISED_MS, side="left")
        chosen[row] = until <= since
    return np.asarray(chosen, dtype=bool)


def mean_of(judged: Sequence[tuple[Quality, Hidden]]) -> tuple[Quality, Hidden]:
    """Return the mean of each measure, over seeds or weeks."""
    qualities = [asdict(q) for q, _ in judged]
    hidden = [asdict(h) for _, h in judged]
    q = {name: float(np.mean([x[name] for x in qualities])) for name in qualities[0]}
    h = {name: float(np.mean([x[name] for x in hidden])) for name in hidden[0]}
    return Quality(**q), Hidden(h["ap_hidden_terminal"], round(h["hidden_n"]), h["hidden_prevalence"])


def _check(rows: Week, fraud: npt.NDArray[np.bool_]) -> None:
    for what, chosen in (("train", rows.train), ("test", rows.test)):
        frauds = int(fraud[chosen].sum())
        if not len(chosen) or not 0 < frauds < len(chosen):
            raise NoSuchWeek(
                f"test week {rows.start}: {len(chosen):,} payments with {frauds} frauds to {what} on; "
                "the files must hold the week and the 14 days before it"
            )


def _score(
    spec: ModelSpec, x: Any, fraud: npt.NDArray[np.bool_], rows: Week, seed: int, jobs: int
) -> npt.NDArray[np.float64]:
    model = spec.build(seed, jobs=jobs)
    model.fit(x[rows.train], fraud[rows.train])
    return np.asarray(model.predict_proba(x[rows.test])[:, 1], dtype=float)


def _judge(
    score: npt.NDArray[np.float64],
    test: npt.NDArray[np.int64],
    fraud: npt.NDArray[np.bool_],
    cards: Any,
    days: Any,
    hidden: npt.NDArray[np.bool_] | None,
) -> tuple[Quality, Hidden]:
    return quality(fraud[test], score, cards[test], days[test]), _leak(score, test, fraud, hidden)


def _leak(
    score: npt.NDArray[np.float64],
    test: npt.NDArray[np.int64],
    fraud: npt.NDArray[np.bool_],
    hidden: npt.NDArray[np.bool_] | None,
) -> Hidden:
    from sklearn.metrics import average_precision_score

    if hidden is None:
        return Hidden(float("nan"), 0, float("nan"))
    looked_at = hidden[test] | ~fraud[test]
    truth = hidden[test][looked_at]
    n = int(truth.sum())
    ap = float(average_precision_score(truth, score[looked_at])) if n else float("nan")
    return Hidden(ap, n, n / max(1, len(truth)))

"""Reading recorded payments, and what the evaluation makes of them."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from millrace_apps.fraud.evaluation.recorded import UnfitTransactions, read_transactions, write_records
from millrace_apps.fraud.evaluation.study import NoSuchWeek, hidden_frauds, study, thresholds
from millrace_apps.fraud.handbook.events import PaymentFeatures
from millrace_apps.fraud.model.estimator import INPUTS, Calibration, HeldOut
from millrace_apps.fraud.operations.economics import Costs, Scored, outcome
from millrace_apps.fraud.state.labels import DAY_MS
from tests.unit.apps.fraud.handbook_cases import DAY, START_MS, of_table, streamed, table


def recorded(rows: int, days: int, seed: int = 0) -> pd.DataFrame:
    """Random transactions with scenarios, in order of time."""
    rng = Random(seed)
    times = sorted(rng.randrange(days * DAY) for _ in range(rows))
    frame = pd.DataFrame(
        {
            "TRANSACTION_ID": range(rows),
            "at": [START_MS + at for at in times],
            "CUSTOMER_ID": [rng.randrange(30) for _ in times],
            "TERMINAL_ID": [rng.randrange(6) for _ in times],
            "TX_AMOUNT": [rng.choice([10.0, 50.0, 300.0]) for _ in times],
            "TX_FRAUD_SCENARIO": [rng.choice([0, 0, 0, 1, 2, 2]) for _ in times],
        }
    )
    frame["TX_FRAUD"] = (frame["TX_FRAUD_SCENARIO"] > 0).astype(int)
    frame["TX_DATETIME"] = pd.to_datetime(frame["at"], unit="ms")
    return frame


@pytest.mark.parametrize("delay", [DAY, 7 * DAY])
def test_hidden_frauds_are_those_that_nothing_known_announces(delay: int) -> None:
    frame = recorded(300, 60)
    expected = []
    rows = frame.to_dict("records")
    for row in rows:
        announced = any(
            other["TX_FRAUD"]
            and other["TERMINAL_ID"] == row["TERMINAL_ID"]
            and row["at"] - 28 * DAY <= other["at"] <= row["at"] - delay
            for other in rows
        )
        expected.append(row["TX_FRAUD_SCENARIO"] == 2 and row["TX_AMOUNT"] <= 220 and not announced)
    found = hidden_frauds(frame, delay)
    assert found is not None
    assert found.tolist() == expected
    assert 0 < sum(expected) < len(expected)
    assert hidden_frauds(frame.drop(columns="TX_FRAUD_SCENARIO"), delay) is None


def features_of(frame: pd.DataFrame, *, telling: str) -> pd.DataFrame:
    """Features of which one tells the frauds of the first scenario, and none the others."""
    rng = np.random.default_rng(1)
    found = pd.DataFrame({name: rng.normal(size=len(frame)) for name in INPUTS})
    found[telling] = (frame["TX_FRAUD_SCENARIO"] == 1) * 5.0 + rng.normal(0, 0.1, len(frame))
    return found


def test_a_week_is_trained_and_judged() -> None:
    frame = recorded(1_200, 21)
    # Few cards would be left without: the frauds of the training week go to cards that do not come again.
    early = frame["at"] < START_MS + 14 * DAY
    frame.loc[early, "CUSTOMER_ID"] += 1_000
    frame.loc[~early, "CUSTOMER_ID"] = range((~early).sum())
    frame["TERMINAL_ID"] = range(len(frame))  # nothing can be known of any
    found = study(frame, features_of(frame, telling="customer_ratio"), date(2018, 4, 15), 7 * DAY, seeds=(0,))
    first = frame["TX_FRAUD_SCENARIO"].iloc[found.scored.index] == 1
    assert found.scored["score"][first].min() > found.scored["score"][~first].quantile(0.99)
    assert found.own.auc > 0.6  # the first scenario is found, the second cannot be
    assert found.hidden.ap_hidden_terminal < 3 * found.hidden.hidden_prevalence
    report = found.report()
    assert report["start"] == "2018-04-15"
    assert report["rows"] == len(found.scored)
    assert set(found.scored.columns) >= {"TRANSACTION_ID", "score", "handbook_score", "decision"}


@pytest.mark.parametrize("capacity", [0, 2, 100])
def test_thresholds_are_the_cheapest_whose_reviews_fit_the_day(capacity: int) -> None:
    frame = recorded(150, 5)
    rng = np.random.default_rng(3)
    fraud = frame["TX_FRAUD"].to_numpy(dtype=bool)
    scores = np.clip(0.2 + 0.5 * fraud + rng.normal(0, 0.2, len(frame)), 0.01, 0.99).round(2)
    held, curve = HeldOut(np.arange(len(frame)), scores), Calibration(1.0, 0.0)
    review_from, block_from = thresholds(frame, held, curve, capacity, Costs())
    known = Scored.of(
        [
            (at, str(card), amount, score, bool(is_fraud))
            for at, card, amount, score, is_fraud in zip(
                frame["at"], frame["CUSTOMER_ID"], frame["TX_AMOUNT"], curve(scores), fraud, strict=True
            )
        ]
    )
    chosen = outcome(known, review_from, block_from, Costs())
    assert chosen.reviews_per_day <= capacity
    tried = sorted({*curve(scores).tolist(), 2.0})
    others = [outcome(known, low, high, Costs()) for high in tried for low in tried if low <= high]
    assert chosen.cost == pytest.approx(min(o.cost for o in others if o.reviews_per_day <= capacity))


def test_decisions_fit_the_capacity_that_is_given() -> None:
    frame = recorded(1_200, 21)
    frame["CUSTOMER_ID"] = frame["TERMINAL_ID"] = range(len(frame))
    features = features_of(frame, telling="customer_ratio")
    found = study(frame, features, date(2018, 4, 15), 7 * DAY, seeds=(0,), capacity=0)
    assert set(found.scored["decision"]) <= {"approve", "block"}
    assert found.report()["thresholds"] == {"review_from": found.review_from, "block_from": found.block_from}


def test_a_leak_is_seen() -> None:
    """A feature that knows the second scenario makes the detector ring."""
    frame = recorded(1_200, 21)
    frame["CUSTOMER_ID"] = frame["TERMINAL_ID"] = range(len(frame))
    features = features_of(frame, telling="customer_ratio")
    features["terminal_fraud_run"] = (frame["TX_FRAUD_SCENARIO"] == 2) * 3.0
    found = study(frame, features, date(2018, 4, 15), 7 * DAY, seeds=(0,))
    assert found.hidden.ap_hidden_terminal > 0.9
    assert found.hidden.ap_hidden_terminal > 3 * found.hidden.hidden_prevalence


def test_a_week_that_the_files_do_not_hold_is_refused() -> None:
    frame = recorded(300, 21)
    with pytest.raises(NoSuchWeek, match="test week 2018-06-01: 0 payments"):
        study(frame, features_of(frame, telling="night"), date(2018, 6, 1), 7 * DAY, seeds=(0,))


def write(frame: pd.DataFrame, path: Path) -> Path:
    frame.drop(columns="at", errors="ignore").to_parquet(path)
    return path


def test_files_that_follow_each_other_are_one_table_in_order_of_time(tmp_path: Path) -> None:
    frame = recorded(50, 5)
    files = [write(frame[30:], tmp_path / "b.parquet"), write(frame[:30], tmp_path / "a.parquet")]
    found = read_transactions(files)
    assert found["TRANSACTION_ID"].tolist() == frame["TRANSACTION_ID"].tolist()
    assert found["at"].tolist() == frame["at"].tolist()


def test_files_that_cannot_be_used_are_refused_in_one_line(tmp_path: Path) -> None:
    frame = recorded(20, 5)
    whole = write(frame, tmp_path / "a.parquet")
    less = write(frame.drop(columns="TX_AMOUNT"), tmp_path / "b.parquet")
    hole = frame.copy()
    hole.loc[3, "TX_AMOUNT"] = None
    (tmp_path / "c.parquet").write_text("no parquet")
    for files, text in (
        ([whole, whole], "comes twice"),
        ([less], "no column TX_AMOUNT"),
        ([tmp_path / "none.parquet"], "there is no file"),
        ([tmp_path / "c.parquet"], "not a Parquet file"),
        ([write(hole, tmp_path / "d.parquet")], "empty fields"),
        ([], "no file"),
    ):
        with pytest.raises(UnfitTransactions, match=text):
            read_transactions(files)


def test_records_of_a_replay_hold_the_payments(tmp_path: Path) -> None:
    frame = table(Random(0), 25)
    assert write_records(frame, tmp_path / "records", "topic", 10) == 3
    files = sorted((tmp_path / "records").glob("*.parquet"))
    values = [v for path in files for v in pq.read_table(path)["value"].to_pylist()]
    assert values == [msgspec.json.encode(p) for p in of_table(frame)]


def test_features_of_the_stream_are_what_models_take() -> None:
    rows = streamed([of_table(table(Random(0), 30))])
    assert set(INPUTS) < set(rows[0]) == set(PaymentFeatures.__struct_fields__)
    assert DAY == DAY_MS

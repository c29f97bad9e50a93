"""What the fraud app makes of models: measures, days, training; without MLflow or Spark."""

from __future__ import annotations

import itertools
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.errors import UserError
from millrace.models.calibration import Calibration
from millrace.models.drift import profile_of
from millrace.models.forest import Forest
from millrace.models.loading import LoadedModel
from millrace.models.tables import CannotTrain
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from millrace_apps.fraud.model.estimator import MODEL, decide
from millrace_apps.fraud.model.examples import Examples
from millrace_apps.fraud.model.metrics import alert_precision_of_days, card_precision, quality, recall_at
from millrace_apps.fraud.model.monitor import days_of, write
from millrace_apps.fraud.model.outcomes import Day, Outcome, Outcomes, add, count, counted
from millrace_apps.fraud.model.prequential import PrequentialMetrics, measure
from millrace_apps.fraud.model.training import examples, train
from millrace_apps.fraud.model.weeks import week
from millrace_apps.fraud.state.labels import DAY_MS

# -- measures -------------------------------------------------------------------------------------


def test_card_precision_equals_a_plain_ranking() -> None:
    rng = Random(1)
    rows = [(rng.randrange(4), rng.randrange(12), rng.random(), rng.random() < 0.2) for _ in range(300)]
    frame = pd.DataFrame(rows, columns=["day", "card", "score", "fraud"])
    found: set[int] = set()
    expected = []
    for _, of_day in frame.groupby("day"):
        left = of_day[~of_day.card.isin(found)].groupby("card")[["score", "fraud"]].max()
        top = left.sort_values("score", ascending=False).head(3)
        expected.append(top.fraud.sum() / 3)
        found |= set(top.index[top.fraud])
    columns = [frame[name].to_numpy() for name in ("fraud", "score", "card", "day")]
    got = card_precision(columns[0], columns[1], columns[2], columns[3], top=3)
    assert got == pytest.approx(np.mean(expected))


def test_recall_at_few_false_positives() -> None:
    scores = np.concatenate([np.arange(1000), [998.5, 999.5, 3]])
    fraud = np.array([False] * 1000 + [True] * 3)
    assert recall_at(fraud, scores, 0.001) == pytest.approx(2 / 3)


def test_measures_of_payments_that_stand_for_several_are_those_of_their_copies() -> None:
    rng = np.random.default_rng(4)
    fraud = rng.random(600) < 0.2
    scores = fraud * 0.3 + rng.random(600)
    cards, days = rng.integers(0, 90, 600), rng.integers(0, 3, 600)
    weight = rng.integers(0, 5, 600)
    weighed = quality(fraud, scores, cards, days, weight.astype(float))
    copied = quality(*(np.repeat(column, weight) for column in (fraud, scores, cards, days)))
    assert (weighed.auc, weighed.ap) == pytest.approx((copied.auc, copied.ap))
    assert weighed.recall_at_01pct_fpr == pytest.approx(copied.recall_at_01pct_fpr)
    alike, plain = quality(fraud, scores, cards, days, np.ones(600)), quality(fraud, scores, cards, days)
    assert alike.recall_at_01pct_fpr == plain.recall_at_01pct_fpr
    assert alike.cp100 == plain.cp100 == weighed.cp100


def test_alert_precision_is_of_the_highest_of_each_day() -> None:
    found = alert_precision_of_days(np.array([0.9, 0.1, 0.8]), np.array([1, 0, 1]), np.array([0, 0, 1]), 2)
    assert found == [0.5, 1.0]


def test_the_handbooks_weeks_leave_out_cards_that_were_known() -> None:
    start = date(2018, 8, 8)
    first = (start - date(1970, 1, 1)).days
    days = np.repeat(np.arange(first - 14, first + 7), 3)
    cards = np.tile([1, 2, 3], 21)
    fraud = ((days == first - 5) & (cards == 1)) | ((days == first - 10) & (cards == 2))
    found = week(start, days, cards, fraud)
    assert set(days[found.train]) == set(range(first - 14, first - 7))
    assert 2 not in cards[found.test]  # in the training week
    of_first = days[found.test][cards[found.test] == 1]
    assert of_first.tolist() == [first, first + 1, first + 2]  # known eight days after the fraud
    assert (cards[found.test] == 3).sum() == 7


def test_probabilities_are_decided_on_by_two_thresholds() -> None:
    assert decide(np.array([0.0, 1.0])).tolist() == ["approve", "block"]


# -- prequential ----------------------------------------------------------------------------------


def outcomes(rows: int, seed: int = 0) -> list[Outcome]:
    rng = Random(seed)
    found = []
    for _ in range(rows):
        fraud = rng.random() < 0.1
        score = min(1.0, max(0.0, round(rng.gauss(0.6 if fraud else 0.3, 0.2), 3)))
        at = rng.randrange(3 * DAY_MS)
        found.append(Outcome("champion", at, f"card-{rng.randrange(150)}", score, fraud, score > 0.5))
    return found


def part(outcome: Outcome) -> Outcomes:
    """One outcome as it is sent."""
    (found,) = counted([outcome])
    return found


def events_of(found: list[Outcome]) -> list[tuple[str, int, Outcomes]]:
    return [(o.model, o.event_time_ms + 2 * DAY_MS, part(o)) for o in found]


def test_measures_of_a_day_equal_scikit_learns() -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score

    found = outcomes(3_000)
    driver = TestDriver(PrequentialMetrics(7 * DAY_MS), out_of_orderness_ms=5 * DAY_MS)
    driver.send_batch(events_of(found))
    driver.drain()
    days = sorted(driver.values(), key=lambda d: d.day_ms)
    assert [d.day_ms for d in days] == [0, DAY_MS, 2 * DAY_MS]
    for day in days:
        of_day = [o for o in found if o.event_time_ms // DAY_MS == day.day_ms // DAY_MS]
        fraud, score = [o.is_fraud for o in of_day], [o.score for o in of_day]
        assert day.rows == len(of_day)
        assert day.auc == pytest.approx(roc_auc_score(fraud, score))
        assert day.ap == pytest.approx(average_precision_score(fraud, score))
        alerts = [o.is_fraud for o in of_day if o.alerted]
        assert day.alert_precision == pytest.approx(sum(alerts) / len(alerts))
        best: dict[str, tuple[float, bool]] = {}
        for o in of_day:
            s, f = best.get(o.card, (0.0, False))
            best[o.card] = (max(s, o.score), f or o.is_fraud)
        top = sorted(best, key=lambda card: (-best[card][0], card))[:100]
        assert day.cp100 == pytest.approx(sum(best[card][1] for card in top) / 100)


def test_a_day_is_judged_once_in_any_order_and_then_forgotten() -> None:
    events = events_of(outcomes(200, seed=2))
    invariant(PrequentialMetrics(7 * DAY_MS), events, bound_ms=3 * DAY_MS, runs=6)
    assert leaks(PrequentialMetrics(7 * DAY_MS), events, bound_ms=3 * DAY_MS) == []


def test_an_outcome_of_a_day_that_is_forgotten_is_late() -> None:
    driver = TestDriver(PrequentialMetrics(DAY_MS, kept_ms=3 * DAY_MS))
    driver.send("m", part(Outcome("m", 5, "c", 0.5, True)), at=10)
    driver.advance_watermark(6 * DAY_MS)
    driver.send("m", part(Outcome("m", 6, "c", 0.5, True)), at=6 * DAY_MS + 5)
    assert len(driver.values()) == len(driver.values("late")) == 1


def test_a_label_after_the_judgement_judges_the_day_anew_once_a_day() -> None:
    """Day 0 is judged at day 2; two labels of day 3 take effect at its end, in one revision."""
    driver = TestDriver(PrequentialMetrics(DAY_MS))
    for n in range(4):
        driver.send("m", part(Outcome("m", n, f"c-{n}", n / 10, is_fraud=False, alerted=n > 1)), at=n)
    driver.advance_watermark(3 * DAY_MS + 7)
    for n in (3, 0):
        word = Outcome("m", n, f"c-{n}", n / 10, is_fraud=True, alerted=n > 1, was=False)
        driver.send("m", part(word), at=n)
    assert len(driver.values()) == 1
    driver.advance_watermark(4 * DAY_MS)
    first, second = driver.values()
    assert (first.revision, first.frauds, first.ap, first.alert_precision) == (1, 0, None, 0.0)
    assert (second.revision, second.rows, second.frauds) == (2, 4, 2)
    assert (second.ap, second.alert_precision, second.cp100) == (0.75, 0.5, 0.02)
    assert [e.on_time for e in driver.emissions] == [True, False]


def test_a_correction_undoes_what_a_label_did() -> None:
    """Whether the labels come before or behind what they speak of, within one batch."""
    said = [
        Outcome("m", 5, "c-1", 0.9, is_fraud=False, alerted=True),
        Outcome("m", 5, "c-1", 0.9, is_fraud=True, alerted=True, was=False),
        Outcome("m", 5, "c-1", 0.9, is_fraud=False, alerted=True, was=True),
    ]
    for order in itertools.permutations(said):
        day = Day()
        for outcome in order:
            count(day, outcome)
        assert (day.genuine, day.fraud, day.card_frauds, day.cards) == ({900: 1}, {}, {}, {"c-1": 900})
        assert (day.alerts, day.right) == (1, 0)


@pytest.mark.parametrize("seed", range(3))
def test_a_day_in_parts_is_the_day_counted_payment_by_payment(seed: int) -> None:
    """More cards than are kept, scores that tie, labels before and behind what they speak of."""
    rng = Random(seed)
    said = []
    for n in range(3_000):
        score = rng.randrange(300) / 1000
        first = Outcome(
            "m", n, f"c-{rng.randrange(1_500)}", score, False, score > 0.25, None, "7", n, [n % 4]
        )
        said.append(first)
        if rng.random() < 0.1:
            said.append(Outcome("m", n, first.card, score, True, first.alerted, was=False))
    best: dict[str, int] = {}
    for one in said:
        if one.was is None:
            best[one.card] = max(best.get(one.card, 0), round(one.score * 1000))
    frauds = {one.card for one in said if one.is_fraud}
    top = sorted(best, key=lambda card: (-best[card], card))[:100]
    rng.shuffle(said)
    day = Day()
    while said:
        size = rng.choice([1, 5, 40, 700])
        (found,) = counted(said[:size])
        assert len(found.cards) <= 100
        add(day, found)
        del said[:size]
    assert len(day.cards) <= 400 < len(best)
    measured = measure("m", 0, day)
    assert (measured.rows, measured.frauds) == (3_000, sum(day.fraud.values()))
    assert measured.cp100 == sum(card in frauds for card in top) / 100
    assert (sum(day.bins[0].values()), day.versions, day.trained_until_ms) == (3_000, {"7": 3_000}, 2_999)
    assert min([*day.genuine.values(), *day.fraud.values()]) > 0


def test_drift_is_measured_against_the_first_days_of_a_version() -> None:
    driver = TestDriver(PrequentialMetrics(0, features=["amount", "count_24h"]))

    def day(number: int, amount: int, score: float, frauds: int, version: str = "7") -> None:
        for n in range(100):
            at = number * DAY_MS + n
            seen = Outcome("m", at, "c", score, n < frauds, version=version, bins=[amount, n % 3],
                           trained_until_ms=DAY_MS // 2)  # fmt: skip
            driver.send("m", part(seen), at=at)

    for number in range(7):
        day(number, amount=number % 2, score=0.1, frauds=10)
    day(7, amount=1, score=0.1, frauds=10)
    day(8, amount=5, score=0.9, frauds=60)
    day(9, amount=5, score=0.9, frauds=60, version="8")
    driver.advance_watermark(20 * DAY_MS)
    days = driver.values()
    assert [d.score_psi for d in days[:7]] == [None] * 7
    assert (days[7].score_psi, days[7].label_psi, days[7].drifted, days[7].shifted) == (0, 0, "amount", 1)
    assert min(days[8].score_psi, days[8].label_psi, days[8].psi) > 1
    assert (days[8].drifted, days[8].shifted) == ("amount", 1)
    assert (days[9].score_psi, days[9].version) == (None, "8")  # a new version has no past
    assert [d.age_days for d in days[:2]] == [0.5, 1.5]


def test_the_figures_of_the_stream_are_not_written_over(tmp_path: Path) -> None:
    day = measure("m", 0, Day(genuine={500: 3}, fraud={700: 1}))
    for _ in range(2):
        write([day], tmp_path)
    (row,) = read_deltalake(tmp_path / "tables" / "model_metrics")
    assert (row["ap"], row["score_psi"], row["revision"]) == (1.0, None, 1)
    streamed = tmp_path / "streamed"
    write_deltalake(str(streamed / "tables" / "model_metrics"), pa.table({"_event_id": ["e"]}))
    with pytest.raises(UserError, match=r"model\.measure is on"):
        write([day], streamed)


def read_deltalake(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    return rows


def test_measures_that_mean_nothing_are_null() -> None:
    empty = measure("m", 0, Day())
    assert (empty.rows, empty.auc, empty.ap, empty.cp100, empty.alert_precision) == (
        0,
        None,
        None,
        None,
        None,
    )
    assert measure("m", 0, Day(genuine={500: 3})).auc is None


# -- training ---------------------------------------------------------


def known(days: int, seed: int = 0, per_day: int = 60) -> Examples:
    rng = np.random.default_rng(seed)
    rows = days * per_day
    at = np.sort(rng.integers(0, days * DAY_MS, rows))
    x = rng.normal(size=(rows, len(MODEL.inputs))).astype(np.float32)
    return Examples(x, x[:, 0] > 1.3, rng.integers(0, 50, rows), at, x[:, 1] > 1)


def test_training_judges_a_model_on_days_it_has_not_seen() -> None:
    trained = train(known(30), 3 * DAY_MS)
    assert trained.validation.auc > 0.9
    assert (trained.rows, trained.until_ms) == (1_800, int(known(30).at[-1]))
    assert set(trained.profile) == set(MODEL.inputs)


def test_too_few_frauds_teach_nothing() -> None:
    few = known(3, per_day=10)
    with pytest.raises(CannotTrain, match="not enough"):
        train(few, DAY_MS)


def frame_of(rows: list[tuple[str, int, bool | None]]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=["transaction_id", "event_time_ms", "is_fraud"])
    table["customer_id"] = "c"
    for name in MODEL.inputs:
        table[name] = 0.0
    return table


def test_examples_know_only_what_was_known_then() -> None:
    features = frame_of([("a", 0, None), ("b", DAY_MS, None), ("c", 9 * DAY_MS, None)])
    labels = pd.DataFrame(
        [("a", DAY_MS, True), ("a", 4 * DAY_MS, False), ("b", 9 * DAY_MS, True), ("b", 20 * DAY_MS, False)],
        columns=["transaction_id", "event_time_ms", "is_fraud"],
    ).assign(source="chargeback")
    at_3 = examples(features, 3 * DAY_MS, DAY_MS, labels=labels)
    assert at_3.fraud.tolist() == [True, False]
    at_9 = examples(features, 9 * DAY_MS, DAY_MS, labels=labels)
    assert at_9.fraud.tolist() == [False, True]
    assert (
        len(examples(features, 9 * DAY_MS, DAY_MS, labels=labels, days=7)) == 0 or at_9.at.max() <= 8 * DAY_MS
    )


def test_examples_of_recorded_history_carry_their_labels() -> None:
    features = frame_of([("b", DAY_MS, True), ("a", 0, False), ("c", 3 * DAY_MS, True)])
    found = examples(features, 3 * DAY_MS, 2 * DAY_MS)
    assert found.fraud.tolist() == [False, True]


def test_the_days_of_a_model_are_those_that_it_has_not_seen_and_that_are_over() -> None:
    from sklearn.metrics import average_precision_score

    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, len(MODEL.inputs))).astype(np.float32)
    fraud = x[:, 0] + rng.normal(scale=0.5, size=400) > 1
    from sklearn.ensemble import ExtraTreesClassifier

    forest = Forest.of(ExtraTreesClassifier(5, random_state=0).fit(x, fraud), len(MODEL.inputs))
    seen = known(10)
    about = {"profile": profile_of(seen.x, MODEL.inputs)}
    model = LoadedModel("3", MODEL.inputs, forest, Calibration(1.0, 0.0), 4 * DAY_MS + 5, about)
    found = [day.metrics for day in days_of("champion", model, seen, seen.alerted.tolist(), 9 * DAY_MS)]
    assert [day.day_ms // DAY_MS for day in found] == [5, 6, 7, 8]
    assert [round(day.age_days or 0, 3) for day in found] == [2.0, 3.0, 4.0, 5.0]
    for day in found:
        rows = seen.at // DAY_MS == day.day_ms // DAY_MS
        scores = np.round(model.score_many(seen.x[rows]), 3)
        assert day.ap == pytest.approx(average_precision_score(seen.fraud[rows], scores))
        right = seen.fraud[rows][seen.alerted[rows]]
        assert day.alert_precision == pytest.approx(right.mean())
        assert (day.version, day.shifted, day.drifted in MODEL.inputs) == ("3", day.shifted, True)

"""Scores judged by later labels: counted where it is decided, added up by the metrics, on Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from millrace.runtime.replay import run_records
from millrace.runtime.settings import load_settings
from millrace_apps.fraud.app import app
from millrace_apps.fraud.contracts.events import Label, Transaction
from millrace_apps.fraud.settings import FraudSettings
from tests.e2e.fraud_records import in_batches
from tests.unit.apps.fraud.cases import DAY
from tests.unit.apps.fraud.chain import a_life_with_labels

pytestmark = pytest.mark.matrix  # a Spark session of its own, three stages


def test_every_day_has_all_its_payments_and_the_frauds_of_the_last_words(tmp_path: Path) -> None:
    life = a_life_with_labels(Random(8))
    settings = load_settings(
        FraudSettings,
        app="fraud",
        overrides=("model.measure=true", "features.entities=terminal", "spark.key_groups=16"),
    )
    done = run_records(app, settings, tmp_path, in_batches(settings, life))

    purchases = [event for event in life if isinstance(event, Transaction)]
    words = sorted((e for e in life if isinstance(e, Label)), key=lambda w: (w.event_time_ms, w.label_id))
    last = {word.transaction_id: word.is_fraud for word in words}
    rows = Counter(p.event_time_ms // DAY * DAY for p in purchases)
    frauds = Counter(p.event_time_ms // DAY * DAY for p in purchases if last.get(p.transaction_id))
    found = done.table("model_metrics").to_pylist()
    assert {row["model"] for row in found} == {"rules"}
    assert {row["day_ms"]: (row["rows"], row["frauds"]) for row in found} == {
        day: (n, frauds[day]) for day, n in rows.items()
    }
    assert len(found) == len(rows)
    assert done.table("late_outcomes").num_rows == 0

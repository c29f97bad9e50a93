"""A model that learns from feedback as well, by the commands and a real MLflow registry."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner, Result

from millrace.models.exports import Exports
from millrace.models.learner import Workshop
from millrace.models.serving import ServedModel
from millrace_apps.fraud.model.learner import LEARNER
from millrace_apps.fraud.model.live import ENTITIES, LIVE_COLUMNS, LIVE_NAME, LIVE_READER, UNKNOWN
from millrace_apps.fraud.operations.cli import app
from millrace_apps.fraud.processes.features import Features
from millrace_apps.fraud.state.labels import DAY_MS

pytestmark = pytest.mark.matrix  # MLflow takes ten seconds to be imported, and twenty to make its tables

DAYS, PER_DAY, CHANGE = 60, 60, 32


def tables(root: Path) -> None:
    """Decisions and labels: high amounts are frauds, and from a day on high deviations, too."""
    rng = np.random.default_rng(3)
    rows = DAYS * PER_DAY
    columns: dict[str, Any] = {name: np.zeros(rows) for name in Features.__struct_fields__}
    columns |= {
        "transaction_id": [f"{n:06}" for n in range(rows)],
        "event_time_ms": np.sort(rng.integers(0, DAYS * DAY_MS, rows)),
        "card_id": rng.integers(0, 40, rows).astype(str),
        "kind": ["purchase"] * rows,
        "amount": rng.normal(size=rows),
        "zscore": rng.normal(size=rows),
    }
    at, amount, zscore = columns["event_time_ms"], columns["amount"], columns["zscore"]
    fraud = (amount > 1.5) | ((zscore > 1.5) & (at >= CHANGE * DAY_MS))
    looked_at = rng.random(rows) < np.where((amount > 1.3) | (zscore > 1.3), 1.0, 0.05)
    columns["action"] = np.where(looked_at, "review", "approve")
    nobody = pa.array([None] * rows, pa.struct([("count_1h", pa.int64())]))
    known = {name: pa.array(values) for name, values in columns.items()}
    known |= dict.fromkeys(("card", *ENTITIES, "card_labels", "terminal_labels"), nobody)
    known |= {"mcc": pa.array(["5411"] * rows), "country": pa.array(["DE"] * rows)}
    known |= dict.fromkeys(("channel", "home_country"), pa.array([None] * rows, pa.string()))
    known["utc_offset_min"] = pa.array([None] * rows, pa.int64())
    write_deltalake(
        str(root / "tables" / "transactions"), pa.table({name: known[name] for name in LIVE_COLUMNS})
    )
    spoken = looked_at | fraud
    labels = pd.DataFrame(
        {
            "transaction_id": np.array(columns["transaction_id"])[spoken],
            "event_time_ms": (at + np.where(looked_at, 3_600_000, 6 * DAY_MS))[spoken],
            "is_fraud": fraud[spoken],
            "source": np.where(looked_at, "feedback", "chargeback")[spoken],
        }
    )
    write_deltalake(str(root / "tables" / "labels"), labels)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    tables(made)
    return made


def run(root: Path, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, [command, *arguments, "--root", str(root)])


def test_a_pair_is_one_version_that_challenges_is_promoted_scores_and_is_rolled_back(root: Path) -> None:
    now = ("--as-of", "1970-02-08T00:00")  # six days after the change, a day before a delayed label shows it
    alone = run(root, "train", *now)
    assert alone.exit_code == 0, alone.output
    assert "feedback" not in alone.output
    run(root, "promote", "1")
    pair = run(root, "train", *now, "--learn", "two", "--feedback-days", "7")
    assert pair.exit_code == 0, pair.output
    assert "beside it a model of feedback" in pair.output
    assert "alert_precision" in pair.output
    assert "without feedback: auc" in pair.output
    assert "scores beside the champion" in pair.output

    measured = run(root, "measure", "--capacity", "10")
    assert measured.exit_code == 0, measured.output
    assert "champion, version 1" in measured.output
    assert "challenger, version 2" in measured.output
    assert "among the 10 highest of a day" in measured.output
    days = DeltaTable(str(root / "tables" / "model_metrics")).to_pandas()
    assert set(days["model"]) == {"champion", "challenger"}

    scorer = ServedModel(Exports(str(root / "models" / "exported"), LIVE_NAME), reader=LIVE_READER)

    def unusual(inputs: tuple[str, ...]) -> list[list[float]]:
        return [[2.5 if name == "zscore" else UNKNOWN for name in inputs]]

    before = scorer.score(unusual)
    promoted = run(root, "promote", "2")
    assert "version 2 decides now, 1 did before" in promoted.output
    began = time.monotonic()
    while scorer.status().version != "2":
        assert time.monotonic() - began < 10, "it never came"
        time.sleep(0.02)
    after = scorer.score(unusual)
    assert before is not None
    assert after is not None
    assert (before.version, after.version) == ("1", "2")
    assert after.values[0] > before.values[0]
    about = Workshop(LEARNER, None, root).load(2).about
    assert about["learning"] == "two"
    assert about["feedback"]["frauds"] > 5
    assert (about["labels"], about["feedback_days"]) == ("0", "7")

    listed = run(root, "models").output
    assert [word in listed for word in ("two", "delayed", "champion", "previous")] == [True] * 4
    assert "version 1 decides again" in run(root, "rollback").output


def test_with_too_little_feedback_it_is_the_delayed_labels_model_and_the_command_says_so(root: Path) -> None:
    """A day has four frauds on average, and both a day and what is calibrated on need five."""
    said = run(root, "train", "--as-of", "1970-01-25T00:00", "--learn", "two", "--feedback-days", "1")
    assert said.exit_code == 0, said.output
    assert "there is too little feedback for a model of its own" in said.output
    assert "delayed" in run(root, "models").output

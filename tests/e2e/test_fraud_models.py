"""The life of a model in a real MLflow registry: trained, promoted, exchanged while scoring, rolled back."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner, Result

from apps.fraud.handbook.events import PaymentFeatures
from apps.fraud.labels import DAY_MS
from apps.fraud.model.estimator import INPUTS
from apps.fraud.model.registry import Registry, default_uri
from apps.fraud.model.scorer import RegistryScorer
from apps.fraud.model.source import RegistrySource
from apps.fraud.model_cli import app
from millrace.errors import MillraceError

pytestmark = pytest.mark.matrix  # MLflow takes ten seconds to be imported, and twenty to make its tables

NAME = "fraud-history"


def features(days: int, per_day: int = 60) -> pd.DataFrame:
    """Payments whose amount tells frauds, more clearly the more the other features are known."""
    rng = np.random.default_rng(4)
    rows = days * per_day
    table = pd.DataFrame({name: rng.normal(size=rows) for name in PaymentFeatures.__struct_fields__})
    table["transaction_id"] = [f"{n:08}" for n in range(rows)]
    table["event_time_ms"] = np.sort(rng.integers(0, days * DAY_MS, rows))
    table["customer_id"] = rng.integers(0, 40, rows).astype(str)
    table["is_fraud"] = table["customer_ratio"] + 0.5 * table["amount"] + rng.normal(0, 0.3, rows) > 1.8
    return table


class Score:
    """A payment's features, all the same."""

    def __getattr__(self, name: str) -> float:
        return 1.0


def until(holds: Callable[[], bool], seconds: float = 10.0) -> float:
    """Wait until something holds; return how long it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, "it never came"
        time.sleep(0.02)
    return time.monotonic() - began


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    write_deltalake(str(made / "tables" / "features"), features(60))
    return made


def run(root: Path, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, [command, *arguments, "--root", str(root), "--table", "features"])


def test_the_life_of_a_model(root: Path) -> None:
    day = "1970-01-{:02}T00:00"
    assert "no models yet" in run(root, "models").output
    first = run(root, "train", "--as-of", day.format(15), "--label-delay", "1d")
    assert first.exit_code == 0, first.output
    assert "there is no champion yet" in first.output
    assert "version 1 decides now" in run(root, "promote", "1").output

    # The stream takes it, and the next one within two seconds of the alias moving.
    scorer = RegistryScorer(RegistrySource(default_uri(root / "models"), NAME))
    scored = scorer.score(Score())
    assert scored is not None
    assert scored.version == "1"
    assert 0 <= scored.probability <= 1
    second = run(root, "train", "--as-of", day.format(31), "--label-delay", "1d", "--seed", "1")
    assert "scores beside the champion" in second.output
    registry = Registry(default_uri(root / "models"), NAME)
    assert registry.alias("challenger") == 2
    registry.promote(2)
    assert until(lambda: scorer.status().version == "2") < 2.0

    # Both have days of their own by now.
    measured = run(root, "measure", "--label-delay", "1d")
    assert measured.exit_code == 0, measured.output
    days = DeltaTable(str(root / "tables" / "model_metrics")).to_pandas()
    assert set(days["model"]) == {"champion"}
    assert days["ap"].mean() > 0.5

    # One command goes back.
    assert "version 1 decides again" in run(root, "rollback").output
    until(lambda: scorer.status().version == "1")
    listed = run(root, "models").output
    assert "champion" in listed
    assert "features@0" in listed


def test_a_challenger_that_is_not_better_beyond_doubt_is_refused(root: Path) -> None:
    refused = run(root, "promote", "2")
    if refused.exit_code == 0:  # the second has seen twice as much: it may be better, then the first is not
        refused = run(root, "promote", "1")
    assert isinstance(refused.exception, MillraceError)
    assert "beyond doubt" in str(refused.exception)


def test_a_version_says_what_it_was_made_of(root: Path) -> None:
    model = RegistrySource(default_uri(root / "models"), NAME).load("1")
    assert model.inputs == INPUTS
    assert model.about["features"] == "0"  # the version of the Delta table
    assert model.about["features_version"] == 1
    folder = next((root / "models" / "artifacts").rglob("model.skops")).parent
    wanted = (folder / "requirements.txt").read_text()
    assert "scikit-learn==" in wanted
    assert "skops==" in wanted
    assert "signature" in (folder / "MLmodel").read_text()
    assert "sklearn.tree._tree.Tree" in (folder / "MLmodel").read_text()


def test_broken_files_and_a_registry_that_is_gone_leave_the_last_good_model(
    root: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "models"
    shutil.copytree(root / "models", copy)
    source = RegistrySource(default_uri(copy), NAME)
    scorer = RegistryScorer(source, poll_s=0.1)
    assert scorer.score(Score()) is not None
    good = scorer.status().version
    (copy / "mlflow.db").rename(copy / "gone")
    until(lambda: scorer.status().failures > 0)
    assert scorer.status().version == good
    assert scorer.score(Score()) is not None
    (copy / "gone").rename(copy / "mlflow.db")
    until(lambda: scorer.status().error == "")

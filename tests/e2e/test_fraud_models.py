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

from millrace.errors import MillraceError
from millrace.models.beginning import export_first
from millrace.models.exports import Exports
from millrace.models.learner import Workshop
from millrace.models.listing import listed
from millrace.models.manifest import BrokenModel
from millrace.models.places import default_uri
from millrace.models.registry import Registry
from millrace.models.serving import ServedModel
from millrace_apps.fraud.handbook.events import PaymentFeatures
from millrace_apps.fraud.model.estimator import INPUTS
from millrace_apps.fraud.model.learner import LEARNER
from millrace_apps.fraud.operations.cli import app
from millrace_apps.fraud.state.labels import DAY_MS

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


def payment(inputs: tuple[str, ...]) -> list[list[float]]:
    """A payment's features, all the same."""
    return [[1.0] * len(inputs)]


def served(models: Path, poll_s: float = 0.5) -> ServedModel:
    """The champion as a stream has it."""
    return ServedModel(
        Exports(str(models / "exported"), NAME), reader=LEARNER.model(NAME).reader, poll_s=poll_s
    )


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
    scorer = served(root / "models")
    scored = scorer.score(payment)
    assert scored is not None
    assert scored.version == "1"
    assert 0 <= scored.values[0] <= 1
    second = run(root, "train", "--as-of", day.format(31), "--label-delay", "1d", "--seed", "1")
    assert "scores beside the champion" in second.output
    shop = Workshop(LEARNER, NAME, root)
    assert shop.registry.alias("challenger") == 2
    shop.promote(2)
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
    shop = Workshop(LEARNER, NAME, root)
    model, (manifest, _) = shop.load(1), shop.registry.files(1)
    assert model.inputs == manifest.inputs == INPUTS
    assert manifest.tables == {"features": 0}
    assert manifest.metrics["validation_ap"] > 0.5
    assert manifest.requirements["skops"]
    assert shop.registry.entry(1).about["sha256"] == manifest.sha256
    assert model.about["features"] == "0"  # the version of the Delta table
    assert model.about["features_version"] == 1
    folder = next((root / "models" / "artifacts").rglob("model.skops")).parent
    wanted = (folder / "requirements.txt").read_text()
    assert "scikit-learn==" in wanted
    assert "skops==" in wanted
    assert "signature" in (folder / "MLmodel").read_text()
    assert "sklearn.tree._tree.Tree" in (folder / "MLmodel").read_text()


def test_broken_files_and_exports_that_are_gone_leave_the_last_good_model(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "models"
    shutil.copytree(root / "models", copy)
    scorer = served(copy, poll_s=0.1)
    assert scorer.score(payment) is not None
    good = scorer.status().version
    (copy / "exported").rename(copy / "gone")
    until(lambda: scorer.status().failures > 0)
    assert scorer.status().version == good
    assert scorer.score(payment) is not None
    (copy / "gone").rename(copy / "exported")
    until(lambda: scorer.status().error == "")


def test_a_file_that_was_changed_in_the_registry_is_not_exported(root: Path, tmp_path: Path) -> None:
    registry = Registry(default_uri(root / "models"), NAME)
    manifest, content = registry.files(2)
    (place,) = (f for f in (root / "models" / "artifacts").rglob("model.skops") if f.read_bytes() == content)
    place.write_bytes(content[:-1] + b"x")
    try:
        with pytest.raises(BrokenModel, match="was registered: it was changed"):
            registry.files(2)
    finally:
        place.write_bytes(content)
    assert registry.files(2)[0] == manifest


def test_the_registry_is_listed_without_its_library_as_it_lists_itself(root: Path) -> None:
    entries = Registry(default_uri(root / "models"), NAME).entries()
    assert [
        (one.version, one.aliases, one.created_ms, str(one.trained_until_ms), str(one.rows))
        for one in listed(root)
        if one.model == NAME
    ] == [(e.version, e.aliases, e.created_ms, e.about["trained_until_ms"], e.about["rows"]) for e in entries]
    assert len(entries) >= 2


def test_a_job_exports_a_registry_from_which_nothing_was_exported(root: Path, tmp_path: Path) -> None:
    """As one made before there were exports; the command runs in a process of its own."""
    uri = default_uri(root / "models")
    assert export_first("fraud", "features", NAME, uri, tmp_path / "exported")
    exports = Exports(str(tmp_path / "exported"), NAME)
    found = exports.find("champion")
    assert found is not None
    assert int(found.manifest.version) == Registry(uri, NAME).alias("champion")
    assert exports.holds(found.manifest)


def test_a_card_tells_of_data_measures_gates_and_limits(root: Path) -> None:
    card = CliRunner().invoke(app, ["model", "card", "1", "--root", str(root), "--model", "features"]).output
    for told in ("# fraud: fraud-history, version 1", "| tables | features@0 |", "validation ap", "## Gates"):
        assert told in card

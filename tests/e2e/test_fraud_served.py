"""Exported models score on Spark: each score is that of the model over the features in the same row."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from millrace.models.exports import Exports
from millrace.models.tables import matrix
from millrace.runtime.replay import run_records
from millrace.runtime.settings import load_settings
from millrace_apps.fraud.app import app
from millrace_apps.fraud.model.live import LIVE_COLUMNS, LIVE_INPUTS, LIVE_NAME, LIVE_READER, flat
from millrace_apps.fraud.settings import FraudSettings
from tests.e2e.fraud_records import in_batches
from tests.unit.apps.fraud.chain import a_life_with_labels
from tests.unit.millrace.models.cases import manifest

pytestmark = pytest.mark.matrix  # a Spark session of its own, three stages


def exported(folder: Path, alias: str, version: int) -> None:
    """Put a forest under an alias that knows nothing, but says something else for most payments."""
    import skops.io
    from sklearn.ensemble import ExtraTreesClassifier

    x = np.random.default_rng(version).normal(size=(300, len(LIVE_INPUTS))).astype(np.float32) * 3
    trees = ExtraTreesClassifier(100, random_state=version).fit(x, x[:, :9].sum(axis=1) > 0)
    content = skops.io.dumps(trees)
    made = manifest(version, content, name=LIVE_NAME, inputs=LIVE_INPUTS, trained_until_ms=0)
    Exports(str(folder), LIVE_NAME).publish(alias, made, content)


def test_champion_and_challenger_score_what_the_table_says_they_saw(tmp_path: Path) -> None:
    models = tmp_path / "models"
    exported(models, "champion", 3)
    exported(models, "challenger", 4)
    settings = load_settings(
        FraudSettings,
        app="fraud",
        overrides=(f"model.exports={models}", "features.entities=terminal", "spark.key_groups=16"),
    )
    done = run_records(app, settings, tmp_path, in_batches(settings, a_life_with_labels(Random(8))))
    decided = done.table("transactions").to_pandas()
    bought = decided[decided["kind"] == "purchase"].reset_index(drop=True)
    assert len(bought) > 30
    assert set(bought["model_version"]) == {"3"}
    assert set(bought["challenger_version"]) == {"4"}
    seen = matrix(flat(bought[list(LIVE_COLUMNS)]), LIVE_INPUTS)
    exports = Exports(str(models), LIVE_NAME)
    for alias, column in (("champion", "model_score"), ("challenger", "challenger_score")):
        found = exports.find(alias)
        assert found is not None
        model = LIVE_READER.read(found.manifest, exports.data(found.manifest))
        np.testing.assert_allclose(bought[column].to_numpy(), model.score_many(seen), atol=1e-9)
        assert bought[column].nunique() > 3

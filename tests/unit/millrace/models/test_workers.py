"""What a worker imports: what is exported, and never the registry."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.models.exports import Exports
from millrace.models.serving import ServedModel
from millrace_apps.fraud.model.live import LIVE_INPUTS, LIVE_MODEL, StreamScorer
from tests.unit.apps.fraud.test_live_model import observed
from tests.unit.millrace.models.cases import made, manifest

SCRIPT = """
import json, pickle, sys
scorer, given = pickle.loads(bytes.fromhex(sys.argv[1]))
{score}
status = scorer.status()
print(json.dumps({{"version": version, "error": status.error, "modules": sorted(sys.modules)}}))
"""
#: Of the registry, and of training.
NEVER = {"mlflow", "alembic", "sqlalchemy", "deltalake", "millrace.models.registry"}


def ran(scorer: object, given: object, score: str) -> tuple[str, set[str]]:
    """Score in a fresh process; return the version that did, and what was imported."""
    script, sent = SCRIPT.format(score=score), pickle.dumps((scorer, given)).hex()
    done = subprocess.run([sys.executable, "-c", script, sent], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["error"] == ""
    return told["version"], set(told["modules"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Exports(str(tmp_path), "wear").publish("champion", *made(3))
    return tmp_path


def test_a_worker_loads_and_scores_without_mlflow(folder: Path) -> None:
    served = ServedModel(Exports(str(folder), "wear"))
    version, modules = ran(served, [[0.5] * 3] * 2, "version = scorer.score(lambda inputs: given).version")
    assert version == "3"
    assert not modules & NEVER
    assert "skops" in modules


@pytest.mark.long
def test_the_pipelines_scorer_of_fraud_loads_and_scores_without_mlflow(tmp_path: Path) -> None:
    import numpy as np
    import skops.io
    from sklearn.ensemble import ExtraTreesClassifier

    x = np.random.default_rng(0).normal(size=(60, len(LIVE_INPUTS))).astype(np.float32)
    content = skops.io.dumps(ExtraTreesClassifier(3, random_state=0).fit(x, x[:, 0] > 0))
    features = LIVE_MODEL.features_version
    version = manifest(5, content, name="fraud", inputs=LIVE_INPUTS, features_version=features)
    Exports(str(tmp_path), "fraud").publish("champion", version, content)
    found, modules = ran(StreamScorer(str(tmp_path)), observed(1), "((_, version),) = scorer.score([given])")
    assert found == "5"
    assert not modules & NEVER

"""Boosted models read from files without scikit-learn: the same scores, and nothing that is not checked."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import skops.io
from sklearn.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    VotingRegressor,
)
from sklearn.multioutput import MultiOutputClassifier

from millrace.models.boosted import BOOSTED, Boosted
from millrace.models.boosted_files import trees_of
from millrace.models.files import estimator_of, sha256_of
from millrace.models.loading import Reader
from millrace.models.manifest import BrokenModel, Manifest
from tests.cases import case_count

CASES = case_count(60)
FEATURES = 4


def trained(which: str, seed: int = 0) -> Any:
    """A small model of a sort."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(120, FEATURES)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    y = np.nan_to_num(x[:, 0]) + rng.normal(size=120)
    settings = {"max_iter": 1 + 3 * seed, "max_leaf_nodes": 2 + 3 * seed, "min_samples_leaf": 5}
    if which == "regressor":
        return HistGradientBoostingRegressor(random_state=seed, **settings).fit(x, y)
    if which == "classifier":
        return HistGradientBoostingClassifier(random_state=seed, **settings).fit(x, y > 0)
    if which == "mean":
        parts = [(f"m{n}", HistGradientBoostingRegressor(random_state=n, **settings)) for n in range(3)]
        return VotingRegressor(parts).fit(x, y)
    both = np.column_stack([y > 0, y > 1]).astype(int)
    return MultiOutputClassifier(HistGradientBoostingClassifier(random_state=seed, **settings)).fit(x, both)


@pytest.mark.parametrize("which", ["regressor", "classifier", "mean", "several"])
@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_the_model_that_skops_reads(which: str, seed: int) -> None:
    data = skops.io.dumps(trained(which, seed), compression=zipfile.ZIP_DEFLATED)
    model, light = estimator_of(data, BOOSTED), trees_of(data)
    assert light is not None
    rows = np.random.default_rng(seed + 9).normal(size=(50, FEATURES))
    rows[::7, 1] = np.nan
    several = which == "several"
    pairs = zip(model.estimators_, light.estimators_, strict=True) if several else [(model, light)]
    for one, other in pairs:
        wanted, found = Boosted.of(one, FEATURES), Boosted.of(other, FEATURES)
        assert found.score_many(rows).tolist() == wanted.score_many(rows).tolist()
        assert found.score(rows[0]) == wanted.score(rows[0])


def test_a_model_is_read_without_the_libraries_that_learned_it() -> None:
    code = """
import sys
from millrace_apps.iot_maintenance import demo
from millrace_apps.iot_maintenance.foresight.models import Forecaster
assert Forecaster(str(demo.MODELS)).risks({"age_h": 1.0}) is not None
print(sorted({"sklearn", "scipy", "skops"} & set(sys.modules)))
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def changed(data: bytes, change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> bytes:
    """A file with another text, or other members."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    told = json.loads(members["schema.json"])
    change(told, members)
    if "schema.json" in members:
        members["schema.json"] = json.dumps(told).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return made.getvalue()


def _stage(told: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = told["content"]["content"]["_predictors"]["content"][0]
    return found


def _nodes(told: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = _stage(told)["content"][0]["content"]["content"]["nodes"]
    return found


def _foreign(told: dict[str, Any], members: dict[str, bytes]) -> None:
    told["content"]["content"]["verbose"] |= {
        "__loader__": "TypeNode",
        "__module__": "os",
        "__class__": "system",
    }


def _cached(told: dict[str, Any], members: dict[str, bytes]) -> None:
    _nodes(told)["__loader__"] = "CachedNode"


def _pickled(told: dict[str, Any], members: dict[str, bytes]) -> None:
    made = io.BytesIO()
    np.save(made, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    members[_nodes(told)["file"]] = made.getvalue()


def _elsewhere(told: dict[str, Any], members: dict[str, bytes]) -> None:
    _nodes(told)["file"] = "../../etc/passwd"


def _sparse(told: dict[str, Any], members: dict[str, bytes]) -> None:
    _nodes(told)["type"] = "scipy"


def _other_tree(told: dict[str, Any], members: dict[str, bytes]) -> None:
    _stage(told)["content"][0] |= {"__module__": "builtins", "__class__": "dict"}


def _no_list(told: dict[str, Any], members: dict[str, bytes]) -> None:
    _stage(told)["__loader__"] = "TupleNode"


def _no_object(told: dict[str, Any], members: dict[str, bytes]) -> None:
    told["__loader__"] = "FunctionNode"


def _no_text(told: dict[str, Any], members: dict[str, bytes]) -> None:
    del members["schema.json"]


SPOILT = [_foreign, _cached, _pickled, _elsewhere, _sparse, _other_tree, _no_list, _no_object, _no_text]


@pytest.mark.parametrize("change", SPOILT)
def test_what_is_not_as_expected_is_left_to_skops(change: Any) -> None:
    data = skops.io.dumps(trained("regressor"))
    assert trees_of(changed(data, lambda told, members: None)) is not None
    assert trees_of(changed(data, change)) is None


def test_other_models_are_left_to_skops() -> None:
    forest = ExtraTreesRegressor(3, random_state=0).fit([[0.0], [1.0]], [0.0, 1.0])
    assert trees_of(skops.io.dumps(forest)) is None
    assert trees_of(skops.io.dumps({"a": [1, 2.5, None]})) is None
    assert trees_of(b"") is None
    deep = b"[" * 200_000
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("schema.json", deep)
    assert trees_of(made.getvalue()) is None


READER = Reader("regressor", 1, Boosted.of, BOOSTED, light=trees_of)


def read(data: bytes) -> Any:
    manifest = Manifest(
        name="m", version="1", size=len(data), sha256=sha256_of(data), kind="regressor",
        inputs=tuple(f"f{n}" for n in range(FEATURES)), features_version=1,
    )  # fmt: skip
    return READER.read(manifest, data)


def test_a_file_with_a_type_that_is_not_trusted_is_refused_as_ever() -> None:
    data = skops.io.dumps(trained("regressor"))
    assert read(data).score(np.zeros(FEATURES)) == pytest.approx(
        estimator_of(data, BOOSTED).predict([[0] * 4])[0]
    )
    with pytest.raises(BrokenModel, match="not trusted"):
        read(changed(data, _foreign))


@pytest.mark.parametrize("seed", range(CASES))
def test_a_file_with_any_bytes_changed_is_read_or_refused(seed: int) -> None:
    """Never something else: what is read has trees that lead nowhere but to their leaves."""
    rnd = random.Random(seed)
    data = bytearray(skops.io.dumps(trained("regressor")))
    for _ in range(rnd.choice((1, 3, 40))):
        data[rnd.randrange(len(data))] = rnd.randrange(256)
    if rnd.random() < 0.2:
        del data[rnd.randrange(len(data)) :]
    try:
        model = read(bytes(data))
    except BrokenModel:
        return
    assert isinstance(float(model.score(np.zeros(FEATURES))), float)

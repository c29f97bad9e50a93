"""A model's file: forged, cut off, of unknown types or another model's, it is refused in a line."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from millrace.models import files
from millrace.models.files import estimator_of
from millrace.models.loading import FORESTS, LoadedModel, Reader
from millrace.models.manifest import BrokenModel
from tests.unit.millrace.models.cases import INPUTS, data, forest, made, manifest, stored


def test_a_stored_model_scores_as_the_estimator_that_was_stored() -> None:
    loaded = FORESTS.read(*made(1))
    x, _ = data(seed=5)
    # The curve of slope 1 keeps probabilities as they are, but for the surest.
    expected = np.clip(forest(1).predict_proba(x)[:, 1], 1e-4, 1 - 1e-4)
    np.testing.assert_allclose(loaded.score_many(x), expected, atol=1e-9)
    np.testing.assert_allclose([loaded.score(row) for row in x[:20]], expected[:20], atol=1e-9)
    assert (loaded.version, loaded.inputs, loaded.trained_until_ms) == ("1", INPUTS, 1)


def test_ten_thousand_damaged_files_are_refused_before_anything_in_them_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version, content = made(1)

    def never(*_: Any) -> Any:
        raise AssertionError("it was read")

    monkeypatch.setattr("millrace.models.loading.estimator_of", never)
    random = Random(3)
    for _ in range(10_000):
        at = random.randrange(len(content))
        damaged = bytearray(content)
        if random.random() < 0.5:
            damaged[at] ^= 1 << random.randrange(8)
        elif random.random() < 0.5:
            del damaged[at:]
        else:
            damaged[at:at] = random.randbytes(random.randrange(1, 9))
        with pytest.raises(BrokenModel, match="version 1 of wear: its file has"):
            FORESTS.read(version, bytes(damaged))


@pytest.mark.filterwarnings("ignore:invalid escape sequence")  # of a damaged header of an array
def test_a_damaged_file_with_a_manifest_of_its_own_is_a_model_or_refused() -> None:
    """Whoever can write both may give us another forest, and nothing else."""
    random = Random(4)
    content = stored(1)
    with zipfile.ZipFile(io.BytesIO(content)) as members:
        parts = {name: members.read(name) for name in members.namelist()}
    refused = 0
    for _ in range(300):
        names = sorted(parts)
        name = random.choice(names)
        damaged = bytearray(parts[name])
        for _ in range(random.randrange(1, 4)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as out:
            for each in names:
                out.writestr(each, bytes(damaged) if each == name else parts[each])
        forged = packed.getvalue()
        try:
            loaded = FORESTS.read(manifest(1, forged), forged)
        except BrokenModel:
            refused += 1
        else:
            assert np.isfinite(loaded.score_many(data()[0])).all() or name != "schema.json"
    assert refused > 100


class Foreign:
    """A type that nobody has looked at."""

    def __init__(self) -> None:
        self.estimators_ = [1]


def function_file(module: str, function: str) -> bytes:
    """A file that asks for a function of a module."""
    import skops.io

    schema = json.loads(zipfile.ZipFile(io.BytesIO(skops.io.dumps(np.sum))).read("schema.json"))
    node = schema | {"__class__": function, "__module__": module, "__loader__": "FunctionNode"}
    node["content"] = {"module_path": module, "function": function}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as out:
        out.writestr("schema.json", json.dumps(node))
    return packed.getvalue()


def test_a_file_of_an_unknown_type_is_refused_by_name() -> None:
    import skops.io

    content = skops.io.dumps(Foreign())
    with pytest.raises(BrokenModel, match=r"version 1 of wear: the file holds .*Foreign, which is"):
        FORESTS.read(manifest(1, content), content)
    called = function_file("posix", "system")
    with pytest.raises(BrokenModel, match=r"posix\.system, which is not trusted"):
        estimator_of(called)


def test_trees_are_trusted_only_where_a_reader_says_so() -> None:
    version, content = made(1)
    with pytest.raises(BrokenModel, match=r"_tree\.Tree, which is not trusted"):
        Reader(trusted=()).read(version, content)


def test_a_file_that_holds_another_kind_of_estimator_is_refused() -> None:
    import skops.io
    from sklearn.linear_model import LogisticRegression

    content = skops.io.dumps(LogisticRegression().fit(*data()))
    with pytest.raises(BrokenModel, match="LogisticRegression is no forest"):
        FORESTS.read(manifest(1, content), content)


def test_a_file_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("schema.json", b"0" * 2_000_000)
    assert len(packed.getvalue()) < 10_000
    monkeypatch.setattr(files, "UNPACKED_LIMIT", 1_000_000)
    with pytest.raises(BrokenModel, match="unpacks to 2,000,000 bytes"):
        estimator_of(packed.getvalue())


@pytest.mark.parametrize("content", [b"", b"PK", b"\x80\x04\x95pickle", b"{}"])
def test_what_is_no_archive_is_refused(content: bytes) -> None:
    with pytest.raises(BrokenModel, match="no skops file"):
        estimator_of(content)


@pytest.mark.parametrize(
    ("more", "reader", "told"),
    [
        ({"features_version": 2}, FORESTS, "features of version 2, these are of version 1: train anew"),
        ({"kind": "regressor"}, FORESTS, "is a regressor, and a classifier is asked for"),
        ({}, Reader(known={"load", "heat"}), "takes age, which the stream has not"),
        ({"inputs": ("load",)}, FORESTS, "outside"),
    ],
)
def test_a_model_that_the_stream_cannot_ask_is_refused(
    more: dict[str, Any], reader: Reader, told: str
) -> None:
    content = stored(1)
    with pytest.raises(BrokenModel, match=told):
        reader.read(manifest(1, content, **more), content)


class Line:
    """A regressor as an app may have one."""

    def __init__(self, estimator: Any, inputs: int) -> None:
        self._slopes, self._least = estimator.coef_, estimator.intercept_

    def score(self, row: Any) -> float:
        return float(np.dot(self._slopes, row) + self._least)

    def score_many(self, rows: Any) -> Any:
        return np.asarray(rows) @ self._slopes + self._least


def test_a_regressor_has_a_predictor_of_its_own_and_no_calibration() -> None:
    import skops.io
    from sklearn.linear_model import LinearRegression

    x, _ = data()
    content = skops.io.dumps(LinearRegression().fit(x, x @ [2.0, 0.0, -1.0] + 40.0))
    version = manifest(1, content, kind="regressor", calibration=None, threshold=48.0)
    loaded: LoadedModel = Reader("regressor", predictor=Line, trusted=()).read(version, content)
    assert loaded.score([1.0, 0.0, 1.0]) == pytest.approx(41.0)
    np.testing.assert_allclose(loaded.score_many(np.array([[0.0, 9.0, 0.0]])), [40.0], atol=1e-5)
    assert loaded.threshold == 48.0


def test_nothing_but_the_registry_knows_mlflow() -> None:
    root = Path(files.__file__).parents[3]
    imports = re.compile(r"^\s*(import|from) mlflow\b", re.M)
    found = [
        path.relative_to(root).as_posix()
        for top in ("shared/millrace", "apps")
        for path in sorted((root / top).rglob("*.py"))
        if imports.search(path.read_text("utf-8"))
    ]
    assert found == ["shared/millrace/models/registry.py"]

"""The trees of a skops file of boosted models, read without scikit-learn.

skops builds the estimator that a file holds, and for that loads scikit-learn, SciPy and pandas: seconds of
CPU time in every worker, before the first score. What is scored with are arrays of nodes, which a file has as
NumPy's own files beside a JSON text that says which is which. A file of which anything is not as expected is
left to skops, which says what it thinks of it.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from millrace.models.files import UNPACKED_LIMIT

_BOOSTING: Final = "sklearn.ensemble._hist_gradient_boosting"
_BOOSTED: Final = frozenset(
    f"{_BOOSTING}.gradient_boosting.HistGradientBoosting{kind}" for kind in ("Classifier", "Regressor")
)
_SEVERAL: Final = frozenset(
    {"sklearn.ensemble._voting.VotingRegressor", "sklearn.multioutput.MultiOutputClassifier"}
)
_TREE: Final = f"{_BOOSTING}.predictor.TreePredictor"
#: All that such files hold; skops trusts these, or who reads boosted models does.
_KNOWN: Final = frozenset(
    {
        *_BOOSTED,
        *_SEVERAL,
        _TREE,
        f"{_BOOSTING}.binning._BinMapper",
        "builtins.NoneType",
        "builtins.bool",
        "builtins.bytes",
        "builtins.dict",
        "builtins.float",
        "builtins.int",
        "builtins.list",
        "builtins.slice",
        "builtins.str",
        "builtins.tuple",
        "numpy.bool",
        "numpy.dtype",
        "numpy.float32",
        "numpy.float64",
        "numpy.int64",
        "numpy.ndarray",
        "numpy.random._generator.Generator",
        "numpy.uint8",
        "numpy.uint32",
        "numpy.uint64",
        "sklearn._loss._loss.CyHalfBinomialLoss",
        "sklearn._loss._loss.CyHalfSquaredError",
        "sklearn._loss.link.IdentityLink",
        "sklearn._loss.link.Interval",
        "sklearn._loss.link.LogitLink",
        "sklearn._loss.loss.HalfBinomialLoss",
        "sklearn._loss.loss.HalfSquaredError",
        "sklearn.preprocessing._label.LabelEncoder",
        "sklearn.utils._bunch.Bunch",
    }
)


class _Other(Exception):
    """Something is not as it is expected to be."""


def trees_of(data: bytes) -> Any | None:
    """Return what :class:`~millrace.models.boosted.Boosted` looks at of the model that a file holds.

    Args:
        data: The file's bytes.

    Returns:
        A boosted model with its trees' nodes and the value that they begin with, or several
        (``estimators_``); ``None`` where the file is none of such models, or is not as expected.

    Example:
        >>> import skops.io
        >>> from sklearn.ensemble import HistGradientBoostingRegressor
        >>> from millrace.models.boosted import Boosted
        >>> x = [[n / 100, n % 7] for n in range(100)]
        >>> model = HistGradientBoostingRegressor(max_iter=5).fit(x, [a + b for a, b in x])
        >>> found = Boosted.of(trees_of(skops.io.dumps(model)), 2)
        >>> bool(abs(found.score(x[0]) - model.predict(x[:1])[0]) < 1e-9)
        True
        >>> trees_of(b"something else") is None
        True
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            if sum(member.file_size for member in file.infolist()) > UNPACKED_LIMIT:
                return None
            told = json.loads(file.read("schema.json"))
            if not _types(told) <= _KNOWN:
                return None
            return _model(told, file)
    except (_Other, zipfile.BadZipFile, KeyError, ValueError, TypeError, OSError, RecursionError, EOFError):
        return None


def _types(told: Any) -> set[str]:
    """Return the types that a file's text names."""
    return {f"{node['__module__']}.{node['__class__']}" for node in _nodes(told)}


def _nodes(told: Any) -> Iterator[dict[str, Any]]:
    waiting = [told]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if "__loader__" in one:
                yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _model(node: dict[str, Any], file: zipfile.ZipFile) -> SimpleNamespace:
    name, told = f"{node['__module__']}.{node['__class__']}", _fields(node)
    if name in _SEVERAL:
        parts = [_model(part, file) for part in _items(told["estimators_"])]
        return SimpleNamespace(estimators_=parts)
    if name not in _BOOSTED:
        raise _Other
    stages = [
        [SimpleNamespace(nodes=_array(_fields(_is(tree, _TREE))["nodes"], file)) for tree in _items(stage)]
        for stage in _items(told["_predictors"])
    ]
    return SimpleNamespace(
        _predictors=stages, _baseline_prediction=_array(told["_baseline_prediction"], file)
    )


def _is(node: dict[str, Any], name: str) -> dict[str, Any]:
    if f"{node['__module__']}.{node['__class__']}" != name:
        raise _Other
    return node


def _fields(node: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of an object."""
    content = node["content"]
    if node["__loader__"] != "ObjectNode" or content["__loader__"] != "DictNode":
        raise _Other
    found: dict[str, Any] = content["content"]
    return found


def _items(node: dict[str, Any]) -> list[dict[str, Any]]:
    if node["__loader__"] != "ListNode":
        raise _Other
    found: list[dict[str, Any]] = node["content"]
    return found


def _array(node: dict[str, Any], file: zipfile.ZipFile) -> Any:
    if node["__loader__"] != "NdArrayNode" or node["type"] != "numpy":
        raise _Other
    return np.load(io.BytesIO(file.read(node["file"])), allow_pickle=False)

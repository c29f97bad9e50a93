"""A small forest, as commands export it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.models.files import sha256_of
from millrace.models.manifest import Curve, Manifest

INPUTS = ("load", "heat", "age")


def data(rows: int = 400, features: int = 3, seed: int = 0) -> tuple[npt.NDArray[np.float32], Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)).astype(np.float32)
    return x, x[:, 0] + rng.normal(scale=0.5, size=rows) > 1


@cache
def forest(seed: int = 0, trees: int = 4) -> Any:
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.pipeline import make_pipeline

    x, found = data()
    return make_pipeline(ExtraTreesClassifier(trees, min_samples_leaf=5, random_state=seed)).fit(x, found)


@cache
def stored(seed: int = 0) -> bytes:
    import skops.io

    file: bytes = skops.io.dumps(forest(seed))
    return file


def manifest(version: int, content: bytes, /, **more: Any) -> Manifest:
    about = {"name": "wear", "version": str(version), "inputs": INPUTS, "calibration": Curve(1.0, 0.0)}
    file = {"size": len(content), "sha256": sha256_of(content), "trained_until_ms": version}
    return Manifest(**{**about, **file, **more})


def made(version: int) -> tuple[Manifest, bytes]:
    """A version with a forest of its own."""
    content = stored(version)
    return manifest(version, content), content

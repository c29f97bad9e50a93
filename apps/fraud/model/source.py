"""Where scorers find models: the registry, read without the registry's software.

Importing MLflow takes seconds and hundreds of megabytes in every worker, and asking it for an alias takes
longer than scoring a hundred payments. A registry in SQLite is therefore read by SQL, and a model's files by
themselves; for any other registry MLflow's client is asked.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlparse

import numpy as np
import numpy.typing as npt

from apps.fraud.model.estimator import FEATURES_VERSION, Calibration
from apps.fraud.model.forest import BrokenModel, Forest
from millrace.errors import MillraceError

#: Types that a model's file may hold beside those that skops trusts: reviewed, and checked by ``Forest``.
TRUSTED_TYPES: Final = ("sklearn.tree._tree.Tree",)
_MODEL_FILE, _ABOUT_FILE = "model.skops", "MLmodel"


class RegistryUnreachable(MillraceError):
    """The registry does not answer."""


@dataclass(frozen=True)
class LoadedModel:
    """A model that can score.

    Attributes:
        version: Its version in the registry.
        inputs: The features it takes, in order.
        forest: Its trees.
        calibration: From their score to a probability.
        trained_until_ms: Event time of the newest payment that it was trained on.
        about: What else is known of it.
    """

    version: str
    inputs: tuple[str, ...]
    forest: Forest
    calibration: Calibration = field(default_factory=lambda: Calibration(1.0, 0.0))
    trained_until_ms: int = 0
    about: dict[str, Any] = field(default_factory=dict)

    def score(self, row: Any) -> float:
        """Return the probability that one payment is a fraud."""
        return self.calibration.one(self.forest.score(row))

    def score_many(self, rows: Any) -> npt.NDArray[np.float64]:
        """Return the probabilities of many payments, shape (n,)."""
        return self.calibration(self.forest.score_many(rows))


class ModelSource(Protocol):
    """Where models are."""

    def version(self, alias: str) -> str | None:
        """Return the version that an alias stands for, ``None`` for none; raises where nobody answers."""

    def load(self, version: str) -> LoadedModel:
        """Load a version; raises what is wrong with it."""


@dataclass(frozen=True)
class RegistrySource:
    """Models of one name in an MLflow registry.

    Attributes:
        uri: The registry: ``sqlite:///path``, or what else MLflow takes.
        name: Name of the registered model.
    """

    uri: str
    name: str = "fraud"

    def version(self, alias: str) -> str | None:
        """Return the version that an alias stands for.

        Raises:
            RegistryUnreachable: The registry does not answer.
        """
        path = sqlite_path(self.uri)
        if path is None:
            return _version_by_client(self.uri, self.name, alias)
        found = _ask(
            path,
            "select version from registered_model_aliases where name = ? and alias = ?",
            self.name,
            alias,
        )
        return None if found is None else str(found)

    def load(self, version: str) -> LoadedModel:
        """Load a version.

        Raises:
            RegistryUnreachable: The registry does not answer.
            BrokenModel: The version is missing, or its files are not a model that can score.
        """
        path = sqlite_path(self.uri)
        if path is None:
            return load_model(_download(self.uri, self.name, version), version)
        place = _ask(
            path,
            "select storage_location from model_versions where name = ? and version = ?",
            self.name,
            int(version),
        )
        if place is None:
            raise BrokenModel(f"the registry has no version {version} of {self.name}")
        return load_model(Path(unquote(urlparse(str(place)).path)), version)


def sqlite_path(uri: str) -> Path | None:
    """Return the file of a registry in SQLite; ``None`` for any other.

    >>> sqlite_path("sqlite:////data/mlflow.db"), sqlite_path("http://registry:5000")
    (PosixPath('/data/mlflow.db'), None)
    """
    prefix = "sqlite:///"
    return Path(uri.removeprefix(prefix)) if uri.startswith(prefix) else None


def load_model(folder: Path, version: str) -> LoadedModel:
    """Load a model from its files and check it.

    Args:
        folder: Where the files are.
        version: Its version.

    Raises:
        BrokenModel: A file is missing, is not what it should be, or holds what is not trusted.
    """
    import skops.io
    import yaml

    try:
        about = yaml.safe_load((folder / _ABOUT_FILE).read_text())["metadata"]
        inputs = tuple(str(name) for name in about["inputs"])
        if about["features_version"] != FEATURES_VERSION:
            raise BrokenModel(
                f"version {version} was made for features of version {about['features_version']}, "
                f"these are of version {FEATURES_VERSION}: train anew"
            )
        model = skops.io.load(folder / _MODEL_FILE, trusted=list(TRUSTED_TYPES))
        return LoadedModel(
            version,
            inputs,
            Forest.of(model, len(inputs)),
            Calibration(float(about["slope"]), float(about["intercept"])),
            int(about["trained_until_ms"]),
            dict(about),
        )
    except BrokenModel:
        raise
    except Exception as error:  # whatever a broken file makes its readers raise
        raise BrokenModel(f"version {version} cannot be loaded: {type(error).__name__}: {error}") from error


def _ask(path: Path, query: str, *values: Any) -> Any:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1)) as database:
            row = database.execute(query, values).fetchone()
    except sqlite3.Error as error:
        raise RegistryUnreachable(f"the registry {path} does not answer: {error}") from error
    return None if row is None else row[0]


def _client(uri: str) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _version_by_client(uri: str, name: str, alias: str) -> str | None:
    from mlflow.exceptions import MlflowException

    try:
        return str(_client(uri).get_model_version_by_alias(name, alias).version)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise RegistryUnreachable(f"the registry {uri} does not answer: {error}") from error


def _download(uri: str, name: str, version: str) -> Path:
    client = _client(uri)
    import mlflow

    try:
        place = client.get_model_version_download_uri(name, version)
        return Path(mlflow.artifacts.download_artifacts(artifact_uri=place, tracking_uri=uri))
    except Exception as error:  # of MLflow's many stores
        raise RegistryUnreachable(f"version {version} cannot be fetched from {uri}: {error}") from error

"""The registry of models: MLflow, in SQLite and a folder unless told otherwise.

Versions are never changed. The alias ``champion`` decides, ``challenger`` scores in its shadow, ``previous``
is where a rollback goes.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from apps.fraud.model.estimator import FEATURES_VERSION
from apps.fraud.model.scorer import CHALLENGER, CHAMPION
from apps.fraud.model.source import TRUSTED_TYPES, sqlite_path
from apps.fraud.model.training import Trained
from millrace.errors import UserError

PREVIOUS: Final = "previous"
MODEL_NAME: Final = "fraud"
#: What a model needs to be loaded.
REQUIREMENTS: Final = ("scikit-learn", "skops", "numpy")


class NoSuchModel(UserError):
    """The registry has no such version, or no version under an alias."""


@dataclass(frozen=True)
class Entry:
    """A registered version.

    Attributes:
        version: Its number.
        aliases: Its aliases.
        created_ms: When it was registered, UTC ms.
        about: Its tags: training data, period, measures.
    """

    version: int
    aliases: tuple[str, ...]
    created_ms: int
    about: dict[str, str]


class Registry:
    """Registers models and moves aliases.

    Args:
        uri: The registry: ``sqlite:///path``, or what else MLflow takes.
        name: Name of the registered model.
    """

    def __init__(self, uri: str, name: str = MODEL_NAME) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        path = sqlite_path(uri)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        from mlflow import MlflowClient

        for noisy in ("mlflow", "alembic"):  # set once it is imported, which sets them itself
            logging.getLogger(noisy).setLevel(logging.ERROR)
        self.uri, self.name = uri, name
        self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        self._artifacts = None if path is None else path.absolute().parent / "artifacts"

    def register(self, trained: Trained, data: dict[str, str]) -> int:
        """Log and register a trained model; return its version.

        Args:
            trained: The model.
            data: What it was trained on: names of tables and their versions.
        """
        import mlflow
        import mlflow.sklearn

        about: dict[str, Any] = {
            "inputs": list(trained.spec.inputs),
            "features_version": FEATURES_VERSION,
            "slope": trained.calibration.slope,
            "intercept": trained.calibration.intercept,
            "trained_since_ms": trained.since_ms,
            "trained_until_ms": trained.until_ms,
            "profile": dict(trained.profile),
            "learning": trained.learning.value,
            **data,
        }
        if trained.feedback_rows:
            about["feedback"] = {"rows": trained.feedback_rows, "frauds": trained.feedback_frauds}
        with self._tracking(), mlflow.start_run(experiment_id=self._experiment()):
            mlflow.log_params(
                {
                    "kind": trained.spec.name,
                    "learning": trained.learning.value,
                    "rows": trained.rows,
                    "frauds": trained.frauds,
                    "feedback_rows": trained.feedback_rows,
                    "feedback_frauds": trained.feedback_frauds,
                    **data,
                }
            )
            mlflow.log_metrics(trained.metrics())
            info = mlflow.sklearn.log_model(
                trained.model,
                name="model",
                serialization_format="skops",
                skops_trusted_types=list(TRUSTED_TYPES),
                pyfunc_predict_fn="predict_proba",
                signature=_signature(trained.spec.inputs),
                pip_requirements=[f"{p}=={importlib.metadata.version(p)}" for p in REQUIREMENTS],
                metadata=about,
                registered_model_name=self.name,
            )
        version = int(info.registered_model_version)
        tags = {**data, **trained.metrics(), "rows": trained.rows, "frauds": trained.frauds,
                "trained_until_ms": trained.until_ms, "learning": trained.learning.value}  # fmt: skip
        for key, value in tags.items():
            self._client.set_model_version_tag(self.name, str(version), key, str(value))
        return version

    def alias(self, alias: str) -> int | None:
        """Return the version under an alias, ``None`` for none."""
        return next((e.version for e in self.entries() if alias in e.aliases), None)

    def entries(self) -> list[Entry]:
        """Return all versions, the newest first."""
        from mlflow.exceptions import MlflowException

        found = self._client.search_model_versions(f"name = '{self.name}'")
        try:
            aliases: dict[str, str] = dict(self._client.get_registered_model(self.name).aliases)
        except MlflowException:  # nothing has been registered yet
            aliases = {}
        entries = [
            Entry(
                int(v.version),
                tuple(sorted(a for a, of in aliases.items() if int(of) == int(v.version))),
                int(v.creation_timestamp),
                dict(v.tags),
            )
            for v in found
        ]
        return sorted(entries, key=lambda e: -e.version)

    def challenge(self, version: int) -> None:
        """Let a version score in the champion's shadow."""
        self._known(version)
        self._client.set_registered_model_alias(self.name, CHALLENGER, str(version))

    def promote(self, version: int) -> int | None:
        """Make a version the champion; return the one before, ``None`` for the first."""
        self._known(version)
        before = self.alias(CHAMPION)
        if before == version:
            raise NoSuchModel(f"version {version} is the champion already")
        if before is not None:
            self._client.set_registered_model_alias(self.name, PREVIOUS, str(before))
        self._client.set_registered_model_alias(self.name, CHAMPION, str(version))
        if self.alias(CHALLENGER) == version:
            self._client.delete_registered_model_alias(self.name, CHALLENGER)
        return before

    def rollback(self) -> tuple[int, int]:
        """Make the champion before the champion again; return the two, the new one first.

        Raises:
            NoSuchModel: There has been none.
        """
        now, before = self.alias(CHAMPION), self.alias(PREVIOUS)
        if now is None or before is None:
            raise NoSuchModel("there is no champion before this one to go back to")
        self._client.set_registered_model_alias(self.name, CHAMPION, str(before))
        self._client.set_registered_model_alias(self.name, PREVIOUS, str(now))
        return before, now

    def _known(self, version: int) -> None:
        versions = [e.version for e in self.entries()]
        if version not in versions:
            shown = ", ".join(map(str, versions)) or "none"
            raise NoSuchModel(f"there is no version {version} of {self.name}; there are: {shown}")

    def _experiment(self) -> str:
        found = self._client.get_experiment_by_name(self.name)
        if found is not None:
            return str(found.experiment_id)
        place = None if self._artifacts is None else self._artifacts.as_uri()
        return str(self._client.create_experiment(self.name, artifact_location=place))

    @contextlib.contextmanager
    def _tracking(self) -> Iterator[None]:
        import mlflow

        before = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
        mlflow.set_tracking_uri(self.uri)
        mlflow.set_registry_uri(self.uri)
        try:
            yield
        finally:
            mlflow.set_tracking_uri(before[0])
            mlflow.set_registry_uri(before[1])


def _signature(inputs: tuple[str, ...]) -> Any:
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    taken = TensorSpec(np.dtype(np.float32), (-1, len(inputs)), name=None)
    given = TensorSpec(np.dtype(np.float64), (-1, 2), name=None)
    return ModelSignature(inputs=Schema([taken]), outputs=Schema([given]))


def default_uri(models: Path) -> str:
    """Return the registry in a folder."""
    return f"sqlite:///{models.absolute() / 'mlflow.db'}"

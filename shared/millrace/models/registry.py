"""The registry of models: MLflow, in SQLite and a folder unless told otherwise.

Versions are never changed; aliases say which one does what. This is the one module that knows MLflow, and
only commands import it: what a stream needs of a version is exported (see :mod:`millrace.models.exports`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millrace.errors import MillraceError, UserError
from millrace.models.candidate import Candidate
from millrace.models.files import FILE_LIMIT, sha256_of
from millrace.models.manifest import SHA256_TAG, BrokenModel, Curve, Manifest
from millrace.models.places import sqlite_path

if TYPE_CHECKING:
    from mlflow import MlflowClient

#: What a model needs to be loaded.
REQUIREMENTS: Final = ("scikit-learn", "skops", "numpy")
_MODEL_FILE, _ABOUT_FILE, _REQUIREMENTS_FILE = "model.skops", "MLmodel", "requirements.txt"
_TABLES_TAG: Final = "tables"


class NoSuchModel(UserError):
    """The registry has no such version, or no version under an alias."""


class RegistryUnreachable(MillraceError):
    """The registry does not answer."""


@dataclass(frozen=True)
class Entry:
    """A registered version.

    Attributes:
        version: Its number.
        aliases: Its aliases.
        created_ms: When it was registered, UTC ms.
        about: Its tags: facts, measures, tables.
    """

    version: int
    aliases: tuple[str, ...]
    created_ms: int
    about: dict[str, str]

    def tables(self, names: tuple[str, ...] = ()) -> dict[str, int]:
        """Return table → version of what it was trained on.

        Args:
            names: Tables whose versions stand among the tags of a version that does not list them.
        """
        return _tables(self.about, names)


class Registry:
    """Registers models and moves aliases.

    Args:
        uri: The registry: ``sqlite:///path``, or what else MLflow takes.
        name: Name of the registered model.
        tables: Tables that its models may have been trained on.
    """

    def __init__(self, uri: str, name: str, tables: tuple[str, ...] = ()) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        self.uri, self.name, self._table_names = uri, name, tables
        self._database = sqlite_path(uri)
        self._artifacts = None if self._database is None else self._database.absolute().parent / "artifacts"

    @functools.cached_property
    def _client(self) -> MlflowClient:
        if self._database is not None:
            self._database.parent.mkdir(parents=True, exist_ok=True)
        from mlflow import MlflowClient

        for noisy in ("mlflow", "alembic"):  # set once it is imported, which sets them itself
            logging.getLogger(noisy).setLevel(logging.ERROR)
        return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    def _is_empty(self) -> bool:
        """Return whether nothing was ever registered: asking MLflow would make its database, slowly."""
        return self._database is not None and not self._database.is_file()

    def register(self, candidate: Candidate) -> int:
        """Log and register a trained model; return its version."""
        import mlflow
        import mlflow.sklearn

        tables = {name: str(version) for name, version in candidate.tables.items()}
        facts = {name: str(value) for name, value in candidate.facts.items()}
        curve = candidate.calibration
        about: dict[str, Any] = {
            **candidate.about,
            **facts,
            **tables,
            "inputs": list(candidate.inputs),
            "features_version": candidate.features_version,
            "kind": candidate.kind,
            "threshold": candidate.threshold,
            "trained_since_ms": candidate.since_ms,
            "trained_until_ms": candidate.until_ms,
            "rows": candidate.rows,
            "metrics": dict(candidate.metrics),
            _TABLES_TAG: json.dumps(dict(candidate.tables)),
        }
        if curve is not None:
            about |= {"slope": curve.slope, "intercept": curve.intercept}
        with self._tracking(), mlflow.start_run(experiment_id=self._experiment()):
            mlflow.log_params({**facts, **tables, "rows": candidate.rows})
            mlflow.log_metrics(dict(candidate.metrics))
            info = mlflow.sklearn.log_model(
                candidate.estimator,
                name="model",
                serialization_format="skops",
                skops_trusted_types=list(candidate.trusted),
                pyfunc_predict_fn="predict_proba" if candidate.kind == "classifier" else "predict",
                signature=_signature(candidate),
                pip_requirements=[f"{p}=={importlib.metadata.version(p)}" for p in REQUIREMENTS],
                metadata=about,
                registered_model_name=self.name,
            )
        version = int(info.registered_model_version)
        tags = {
            **facts,
            **tables,
            **candidate.metrics,
            "rows": candidate.rows,
            "trained_until_ms": candidate.until_ms,
            _TABLES_TAG: about[_TABLES_TAG],
            SHA256_TAG: sha256_of(_bytes(self._folder(version) / _MODEL_FILE)),
        }
        for key, value in tags.items():
            self.tag(version, key, str(value))
        return version

    def tag(self, version: int, key: str, value: str) -> None:
        """Keep something with a version."""
        self._client.set_model_version_tag(self.name, str(version), key, value)

    def alias(self, alias: str) -> int | None:
        """Return the version under an alias, ``None`` for none.

        Raises:
            RegistryUnreachable: The registry does not answer.
        """
        version = self._aliases().get(alias)
        return None if version is None else int(version)

    def set_alias(self, alias: str, version: int | None) -> None:
        """Put a version under an alias, or take the alias away."""
        if version is not None:
            self._client.set_registered_model_alias(self.name, alias, str(version))
        elif self.alias(alias) is not None:
            self._client.delete_registered_model_alias(self.name, alias)

    def entries(self) -> list[Entry]:
        """Return all versions, the newest first.

        Raises:
            RegistryUnreachable: The registry does not answer.
        """
        if self._is_empty():
            return []
        aliases = self._aliases()
        with self._answering():
            found = self._client.search_model_versions(f"name = '{self.name}'")
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

    def entry(self, version: int) -> Entry:
        """Return a version.

        Raises:
            NoSuchModel: There is none of this number.
        """
        entries = self.entries()
        for entry in entries:
            if entry.version == version:
                return entry
        shown = ", ".join(str(e.version) for e in entries) or "none"
        raise NoSuchModel(f"there is no version {version} of {self.name}; there are: {shown}")

    def files(self, version: int) -> tuple[Manifest, bytes]:
        """Return the manifest of a version and the bytes of its file.

        Raises:
            NoSuchModel: There is no such version.
            RegistryUnreachable: The registry does not answer.
            BrokenModel: Its files are missing, were changed, or are not a model's.
        """
        import yaml

        entry, folder = self.entry(version), self._folder(version)
        try:
            data = _bytes(folder / _MODEL_FILE)
            about = yaml.safe_load((folder / _ABOUT_FILE).read_text())["metadata"]
            made_with = _requirements(folder / _REQUIREMENTS_FILE)
            return manifest_of(self.name, entry, about, data, made_with, self._table_names), data
        except BrokenModel:
            raise
        except Exception as error:  # whatever a broken file makes its readers raise
            raise BrokenModel(
                f"version {version} of {self.name} cannot be read: {type(error).__name__}: {error}"
            ) from error

    def _folder(self, version: int) -> Path:
        import mlflow

        try:
            place = self._client.get_model_version_download_uri(self.name, str(version))
            return Path(mlflow.artifacts.download_artifacts(artifact_uri=place, tracking_uri=self.uri))
        except Exception as error:  # of MLflow's many stores
            raise RegistryUnreachable(
                f"version {version} of {self.name} cannot be fetched from {self.uri}: {error}"
            ) from error

    def _aliases(self) -> dict[str, str]:
        if self._is_empty():
            return {}
        from mlflow.exceptions import MlflowException

        with self._answering():
            try:
                return dict(self._client.get_registered_model(self.name).aliases)
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":  # nothing has been registered yet
                    return {}
                raise

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        from mlflow.exceptions import MlflowException

        try:
            yield
        except MlflowException as error:
            raise RegistryUnreachable(f"the registry {self.uri} does not answer: {error}") from error

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


def manifest_of(
    name: str,
    entry: Entry,
    about: Mapping[str, Any],
    data: bytes,
    made_with: Mapping[str, str],
    tables: tuple[str, ...] = (),
) -> Manifest:
    """Return the manifest of a registered version.

    Args:
        name: Name of the registered model.
        entry: The version.
        about: What was kept with its file; versions of before the exports have no kind, metrics and digest.
        data: The bytes of the file.
        made_with: Package → the version that it was trained with.
        tables: Tables whose versions may stand among the rest.

    Raises:
        BrokenModel: The file is not the one that was registered.
    """
    found, known = sha256_of(data), entry.about.get(SHA256_TAG)
    if known is not None and known != found:
        raise BrokenModel(
            f"version {entry.version} of {name}: its file has the SHA-256 {found[:12]}…, "
            f"{known[:12]}… was registered: it was changed"
        )
    curve = Curve(float(about["slope"]), float(about["intercept"])) if "slope" in about else None
    threshold = about.get("threshold")
    metrics = about.get("metrics") or {
        k: float(v) for k, v in entry.about.items() if k.startswith("validation_")
    }
    apart = {"inputs", "slope", "intercept", "threshold", "metrics", "kind", _TABLES_TAG}
    return Manifest(
        name=name,
        version=str(entry.version),
        size=len(data),
        sha256=found,
        inputs=tuple(map(str, about["inputs"])),
        features_version=int(about["features_version"]),
        kind=about.get("kind", "classifier"),
        calibration=curve,
        threshold=None if threshold is None else float(threshold),
        trained_since_ms=int(about.get("trained_since_ms", 0)),
        trained_until_ms=int(about["trained_until_ms"]),
        tables=_tables(about, tables),
        metrics=metrics,
        requirements=made_with,
        about={k: v for k, v in about.items() if k not in apart},
    )


def _tables(about: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, int]:
    if listed := about.get(_TABLES_TAG):
        return {str(name): int(version) for name, version in json.loads(listed).items()}
    return {name: int(about[name]) for name in names if name in about}


def _requirements(path: Path) -> dict[str, str]:
    pinned = (line.strip().partition("==") for line in path.read_text().splitlines() if "==" in line)
    return {name: version for name, _, version in pinned}


def _bytes(path: Path) -> bytes:
    if (size := path.stat().st_size) > FILE_LIMIT:
        raise BrokenModel(f"{path} has {size:,} bytes: more than {FILE_LIMIT:,} are not read")
    return path.read_bytes()


def _signature(candidate: Candidate) -> Any:
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    taken = TensorSpec(np.dtype(np.float32), (-1, len(candidate.inputs)), name=None)
    columns = (-1, 2) if candidate.kind == "classifier" else (-1,)
    given = TensorSpec(np.dtype(np.float64), columns, name=None)
    return ModelSignature(inputs=Schema([taken]), outputs=Schema([given]))

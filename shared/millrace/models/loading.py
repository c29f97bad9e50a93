"""Readers of models: from a registered file to a predictor, held to what the app says of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from millrace.models.calibration import Calibration
from millrace.models.files import TREES, check_bytes, estimator_of
from millrace.models.forest import Forest
from millrace.models.manifest import BrokenModel, Kind, Manifest


class Predictor(Protocol):
    """What scores rows of features: a :class:`~millrace.models.forest.Forest`, or what an app has instead."""

    def score(self, row: Any) -> float:
        """Return the score of one row, shape (features,)."""

    def score_many(self, rows: Any) -> npt.NDArray[np.float64]:
        """Return the scores of many rows, shape (n, features) → (n,)."""


@dataclass(frozen=True)
class LoadedModel:
    """A model that can score.

    Attributes:
        version: Its version in the registry.
        inputs: The features it takes, in order.
        predictor: What scores.
        calibration: From scores to probabilities; ``None``: scores are told as they are.
        trained_until_ms: Event time of the newest row that it was trained on, UTC ms.
        about: What else is known of it.
        threshold: From this score on something is done, if that is the model's affair.
    """

    version: str
    inputs: tuple[str, ...]
    predictor: Predictor
    calibration: Calibration | None = None
    trained_until_ms: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)
    threshold: float | None = None

    def score(self, row: Any) -> float:
        """Return the score of one row, shape (features,); calibrated, where that is known."""
        raw = self.predictor.score(row)
        return raw if self.calibration is None else self.calibration.one(raw)

    def score_many(self, rows: Any) -> npt.NDArray[np.float64]:
        """Return the scores of many rows, shape (n, features) → (n,)."""
        raw = self.predictor.score_many(rows)
        return raw if self.calibration is None else self.calibration(raw)


@dataclass(frozen=True)
class Reader:
    """How an app's models are read, and what they are held to; travels to workers.

    Attributes:
        kind: What their scores say; a model of another kind is refused.
        features_version: Version of the definitions of their features; a model of another is refused.
        predictor: ``predictor(estimator, number of features)`` → what scores; raises
            :class:`~millrace.models.manifest.BrokenModel` for what it does not know. A function of a module.
        trusted: Types that files may hold beside those that skops trusts.
        known: The features that there are; a model that takes others is refused. ``None``: any.
        light: ``light(data)`` → what the predictor looks at of the estimator in a file, read without the
            libraries that it is of; ``None`` where it does not know the file: it is read as others are. A
            function of a module.
    """

    kind: Kind = "classifier"
    features_version: int = 1
    predictor: Callable[[Any, int], Predictor] = Forest.of
    trusted: tuple[str, ...] = TREES
    known: Collection[str] | None = None
    light: Callable[[bytes], Any | None] | None = None

    def read(self, manifest: Manifest, data: bytes) -> LoadedModel:
        """Return the model that a file holds.

        Args:
            manifest: Its manifest.
            data: The file's bytes.

        Raises:
            BrokenModel: They do not belong together, or the model is not one that this reader takes.
        """
        which = f"version {manifest.version} of {manifest.name}"
        if manifest.kind != self.kind:
            raise BrokenModel(f"{which} is a {manifest.kind}, and a {self.kind} is asked for")
        if manifest.features_version != self.features_version:
            raise BrokenModel(
                f"{which} was made for features of version {manifest.features_version}, "
                f"these are of version {self.features_version}: train anew"
            )
        foreign = [] if self.known is None else [name for name in manifest.inputs if name not in self.known]
        if foreign:
            raise BrokenModel(f"{which} takes {foreign[0]}, which the stream has not")
        check_bytes(manifest, data)
        try:
            model = None if self.light is None else self.light(data)
            if model is None:
                model = estimator_of(data, self.trusted)
            predictor = self.predictor(model, len(manifest.inputs))
        except BrokenModel as error:
            raise BrokenModel(f"{which}: {error}") from error
        except Exception as error:  # of whatever stands in a file that is what it says it is
            raise BrokenModel(f"{which} cannot be loaded: {type(error).__name__}: {error}") from error
        curve = manifest.calibration
        return LoadedModel(
            manifest.version,
            manifest.inputs,
            predictor,
            None if curve is None else Calibration(curve.slope, curve.intercept),
            manifest.trained_until_ms,
            manifest.about,
            manifest.threshold,
        )


#: Of forests that tell two classes apart.
FORESTS: Final = Reader()

"""Models of normal operation: trained, promoted and exchanged like every other.

Its estimator is a scaler and the principal components of each kind of machine and status; the limits of T²
and Q stand beside it. Workers make control charts of both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

import msgspec
import numpy as np

from millrace.models.exports import CHAMPION, POLL_S, Exports
from millrace.models.loading import LoadedModel, Reader
from millrace.models.manifest import BrokenModel
from millrace.models.serving import ServedModel
from millrace.operators.control import Chart, Regime

log = logging.getLogger(__name__)

#: Name under which it is registered.
NORMAL_NAME: Final = "iot-normal"
#: Version of what a row of it is: means of an interval of all sensors, by kind and status.
FEATURES_VERSION: Final = 1


class Part(msgspec.Struct, frozen=True):
    """What stands beside a scaler and its components.

    Attributes:
        kind: The kind of machine.
        regime: Its status.
        sensors: Its measuring points, in the order of values.
        t2_limit: Limit of T².
        q_limit: Limit of Q.
        rows: How many rows it was learned from.
    """

    kind: str
    regime: str
    sensors: tuple[str, ...]
    t2_limit: float
    q_limit: float
    rows: int


class Normal:
    """Scalers and components as plain tuples; what they are of stands beside the model.

    Args:
        parts: Mean, scale, components and variances of each part.
    """

    def __init__(self, parts: Sequence[tuple[Any, Any, Any, Any]]) -> None:
        self.parts = parts

    @classmethod
    def of(cls, estimator: Any, inputs: int) -> Normal:
        """Return the parts of an estimator.

        Args:
            estimator: As :func:`estimator_of` makes it.
            inputs: How many measuring points there are in all.

        Raises:
            BrokenModel: It is something else, or its numbers contradict each other.
        """
        found = []
        for name, pipeline in getattr(estimator, "transformer_list", None) or ():
            steps = dict(getattr(pipeline, "steps", ()))
            scaler, pca = steps.get("scaler"), steps.get("pca")
            if scaler is None or pca is None:
                raise BrokenModel(f"part {name} is no scaler with components")
            mean, scale = _tuple(scaler.mean_), _tuple(scaler.scale_)
            components = tuple(_tuple(row) for row in np.atleast_2d(pca.components_))
            variances = _tuple(pca.explained_variance_)
            if {len(mean), *map(len, components)} != {len(scale)} or len(variances) != len(components):
                raise BrokenModel(f"part {name} contradicts itself")
            if len(mean) > inputs or not all(x > 0 for x in (*scale, *variances)):
                raise BrokenModel(f"part {name} has a scale or a variance that is none")
            found.append((mean, scale, components, variances))
        if not found:
            raise BrokenModel("it has no scaler with components")
        return cls(found)

    def score(self, row: Any) -> float:
        """Raise: what is normal is asked by kind and status, not by a row alone."""
        raise BrokenModel("control charts are asked by kind and status")

    def score_many(self, rows: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Raise, as :meth:`score` does."""
        raise BrokenModel("control charts are asked by kind and status")


def _tuple(values: Any) -> tuple[float, ...]:
    """Return numbers, shape (n,).

    Raises:
        BrokenModel: One of them is none.
    """
    found = tuple(float(x) for x in np.asarray(values, dtype=np.float64).reshape(-1).tolist())
    if not all(map(isfinite, found)):
        raise BrokenModel("it has a number that is none")
    return found


NORMAL_READER: Final = Reader("anomaly", FEATURES_VERSION, Normal.of, ())


def estimator_of(charts: Mapping[str, Chart]) -> tuple[Any, list[Part]]:
    """Return charts as a scikit-learn estimator, and what stands beside it.

    Args:
        charts: Kind of machine → its chart.
    """
    from sklearn.decomposition import PCA
    from sklearn.pipeline import FeatureUnion, Pipeline
    from sklearn.preprocessing import StandardScaler

    made: list[tuple[str, Any]] = []
    parts: list[Part] = []
    for kind, chart in sorted(charts.items()):
        for regime, known in sorted(chart.regimes.items()):
            scaler, pca = StandardScaler(), PCA(n_components=len(known.components))
            scaler.mean_, scaler.scale_ = np.array(known.mean), np.array(known.scale)
            scaler.var_ = scaler.scale_**2
            scaler.n_features_in_ = pca.n_features_in_ = len(known.mean)
            scaler.n_samples_seen_ = pca.n_samples_ = known.rows
            pca.mean_ = np.zeros(len(known.mean))
            pca.components_ = np.array(known.components)
            pca.explained_variance_ = np.array(known.variances)
            pca.n_components_ = len(known.components)
            made.append((f"part{len(made)}", Pipeline([("scaler", scaler), ("pca", pca)])))
            parts.append(Part(kind, regime, chart.sensors, known.t2_limit, known.q_limit, known.rows))
    return FeatureUnion(made), parts


def charts_of(model: LoadedModel) -> dict[str, Chart]:
    """Return the charts of a registered model.

    Raises:
        BrokenModel: What stands beside it does not belong to it.
    """
    try:
        parts = msgspec.convert(model.about["parts"], list[Part])
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise BrokenModel(f"version {model.version}: what is normal without its limits: {error}") from None
    of = getattr(model.predictor, "parts", ())
    if len(parts) != len(of):
        raise BrokenModel(f"version {model.version}: {len(of)} parts, and limits of {len(parts)}")
    sensors: dict[str, tuple[str, ...]] = {}
    regimes: dict[str, dict[str, Regime]] = {}
    for part, (mean, scale, components, variances) in zip(parts, of, strict=True):
        if len(part.sensors) != len(mean) or sensors.setdefault(part.kind, part.sensors) != part.sensors:
            raise BrokenModel(f"version {model.version}: the measuring points of {part.kind} differ")
        if not (part.t2_limit > 0 and part.q_limit > 0):
            raise BrokenModel(f"version {model.version}: {part.kind} has a limit that is none")
        regimes.setdefault(part.kind, {})[part.regime] = Regime(
            mean, scale, components, variances, part.t2_limit, part.q_limit, part.rows
        )
    return {kind: Chart(sensors[kind], of_kind) for kind, of_kind in regimes.items()}


@dataclass(frozen=True)
class Registered:
    """The champion's charts, exchanged while the stream runs; travels to workers.

    Attributes:
        folder: Folder of the exports.
        name: Name of the registered model.
        interval_ms: The means of so long are judged; a model of others is not taken.
        poll_s: How often the folder is looked into, seconds.
    """

    folder: str
    name: str
    interval_ms: int
    poll_s: float = POLL_S

    def of(self, kind: str) -> tuple[Chart | None, str]:
        """Return the chart of a kind of machine, and the version that has it."""
        exports = Exports(self.folder, self.name)
        model = ServedModel(exports, CHAMPION, NORMAL_READER, self.poll_s).holder().model
        if model is None:
            return None, ""
        found = _known.get(self)
        if found is None or found[0] is not model:
            found = _known[self] = (model, _charts_for(model, self.interval_ms))
        return found[1].get(kind), model.version


#: Who asks → the newest version and its charts, made once.
_known: dict[Registered, tuple[LoadedModel, Mapping[str, Chart]]] = {}


def _charts_for(model: LoadedModel, interval_ms: int) -> Mapping[str, Chart]:
    """Return the charts of a model; none where it is broken or of other means: that is told."""
    if (of := model.about.get("interval_ms")) != interval_ms:
        log.warning(
            "version %s of what is normal is not taken: it is of means of %s ms, not of %s ms",
            model.version, of, interval_ms,
        )  # fmt: skip
        return {}
    try:
        return charts_of(model)
    except BrokenModel as error:
        log.warning("what is normal is not taken: %s", error)
        return {}


def within(charts: Mapping[str, Chart], rows: Iterable[tuple[str, str, Sequence[float]]]) -> float:
    """Return which share of rows is within the limits.

    Args:
        charts: Kind → chart.
        rows: Kind, regime and the values of its measuring points.
    """
    shares = [
        found.share
        for kind, regime, values in rows
        if kind in charts and (found := charts[kind].read(regime, values)) is not None
    ]
    return sum(share <= 1.0 for share in shares) / len(shares) if shares else float("nan")

"""The models that look ahead, as the stream asks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from millrace.models.boosted import BOOSTED, Boosted
from millrace.models.boosted_files import trees_of
from millrace.models.exports import CHAMPION, POLL_S, Exports
from millrace.models.loading import LoadedModel, Reader
from millrace.models.manifest import BrokenModel
from millrace.models.serving import ServedModel
from millrace_apps.iot_maintenance.foresight.distribution import Calibration
from millrace_apps.iot_maintenance.foresight.trees import Risks

#: Version of the definitions of the features, raised when the meaning of one changes.
FEATURES_VERSION: Final = 1
#: A feature that says which component is asked about begins with this.
ASKED: Final = "component="
#: Names under which the models are registered.
RISK_NAME: Final = "iot-risk"
LIFE_NAME: Final = "iot-life"
_MISSING: Final = float("nan")
RISK_READER: Final = Reader("classifier", FEATURES_VERSION, Risks.of, BOOSTED, light=trees_of)
LIFE_READER: Final = Reader("regressor", FEATURES_VERSION, Boosted.of, BOOSTED, light=trees_of)


class ComponentRisks(NamedTuple):
    """What a model says of the components of a machine.

    Attributes:
        of: Component → probability that it fails within the horizon.
        horizon_h: The horizon, h.
        version: The model's version.
    """

    of: dict[str, float]
    horizon_h: float
    version: str


class Told(NamedTuple):
    """What a model says of a machine's remaining life.

    Attributes:
        hours: The forecast, h.
        spread: Its distribution (see :class:`Calibration`).
        ceiling: Longest life that is forecast, h.
        version: The model's version.
    """

    hours: float
    spread: list[float]
    ceiling: float
    version: str


def components_of(inputs: tuple[str, ...]) -> list[str]:
    """Return the components that a model of risks knows.

    >>> components_of(("age_h", "component=pump", "component=seal"))
    ['pump', 'seal']
    """
    return [name.removeprefix(ASKED) for name in inputs if name.startswith(ASKED)]


def risk_rows(features: dict[str, float], inputs: tuple[str, ...]) -> list[list[float]]:
    """Return a row for each component that a model knows, in its order.

    Args:
        features: The machine's features.
        inputs: What the model takes; the last of them say which component is asked about.
    """
    names = components_of(inputs)
    shared = [features.get(name, _MISSING) for name in inputs[: len(inputs) - len(names)]]
    return [[*shared, *(float(other == name) for other in names)] for name in names]


def calibration_of(about: Any) -> Calibration:
    """Return the calibration that a model of lives has beside it.

    Raises:
        BrokenModel: It has none.
    """
    try:
        return msgspec.convert(about["calibration"], Calibration)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise BrokenModel(f"a model of remaining life without a calibration: {error}") from None


@dataclass(frozen=True)
class Forecaster:
    """Asks the champions; travels to workers.

    Attributes:
        folder: Folder of the exports.
        risk: Name of the registered model of risks.
        remaining: Name of the registered model of remaining life.
        poll_s: How often the folder is looked into, seconds.
    """

    folder: str
    risk: str = RISK_NAME
    remaining: str = LIFE_NAME
    poll_s: float = POLL_S

    def risks(self, features: dict[str, float]) -> ComponentRisks | None:
        """Return the risk of each component; ``None`` without a model."""
        served = ServedModel(Exports(self.folder, self.risk), CHAMPION, RISK_READER, self.poll_s)
        asked: list[str] = []

        def rows(inputs: tuple[str, ...]) -> list[list[float]]:
            asked[:] = components_of(inputs)
            return risk_rows(features, inputs)

        found = served.scored(rows)
        if found is None or not asked:
            return None
        scores, model = found
        horizon = float(model.about.get("horizon_h", 24.0))
        return ComponentRisks(dict(zip(asked, scores.values, strict=True)), horizon, scores.version)

    def life(self, features: dict[str, float]) -> Told | None:
        """Return what is said of the remaining life; ``None`` without a model."""
        found = self._lives().scored(lambda inputs: [[features.get(name, _MISSING) for name in inputs]])
        if found is None or (calibration := _calibration(found[1])) is None:
            return None
        scores = found[0]
        hours = min(max(scores.values[0], 0.0), calibration.ceiling)
        return Told(hours, calibration.spread(hours), calibration.ceiling, scores.version)

    def calibration(self) -> Calibration | None:
        """Return how far the model of lives was from the truth; ``None`` without a model."""
        model = self._lives().holder().model
        return None if model is None else _calibration(model)

    def _lives(self) -> ServedModel:
        return ServedModel(Exports(self.folder, self.remaining), CHAMPION, LIFE_READER, self.poll_s)


def _calibration(model: LoadedModel) -> Calibration | None:
    found = _known.get(model.version)
    if found is None or found[0] is not model:
        _known.clear()
        try:
            found = (model, calibration_of(model.about))
        except BrokenModel:
            found = (model, None)
        _known[model.version] = found
    return found[1]


#: The newest model's calibration, which is read once.
_known: dict[str, tuple[LoadedModel, Calibration | None]] = {}

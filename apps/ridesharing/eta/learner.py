"""The arrival-time models as the core's registry sees them: training data, metrics, gates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.models.commands import time_of
from millrace.models.gates import Gate, Judged
from millrace.models.learner import AppModel, Learner, Question
from millrace.models.tables import CannotTrain, TrainingTables
from millrace_apps.ridesharing.eta.times import MODEL_NAME, PICKUP, PICKUP_NAME, READER, TRIP, Kind
from millrace_apps.ridesharing.eta.training import columns_of

if TYPE_CHECKING:
    from millrace.models.loading import LoadedModel

#: The table of ways that have ended.
TABLE: Final = "drives"
COLUMNS: Final = (
    "way", "driver_id", "began_ms", "ended_ms", "took_s", "straight_s", "learned", "features",
)  # fmt: skip


class Ways(NamedTuple):
    """Ways that have ended, in order of their ends.

    Attributes:
        features: By :data:`millrace_apps.ridesharing.eta.features.NAMES`, shape (n, names).
        nothing_s: What such ways take where nothing is known, with the kind's shift, seconds, shape (n,).
        took_s: What they took, with the shift, seconds, shape (n,).
        ended_ms: When they ended, UTC ms, shape (n,).
        drivers: Who drove, shape (n,).
    """

    features: npt.NDArray[np.float64]
    nothing_s: npt.NDArray[np.float64]
    took_s: npt.NDArray[np.float64]
    ended_ms: npt.NDArray[np.int64]
    drivers: npt.NDArray[Any]

    def of(self, wanted: npt.NDArray[np.bool_]) -> Ways:
        """Return some of them."""
        return Ways(*(column[wanted] for column in self))  # type: ignore[arg-type]  # one column each


def kind_of(name: str) -> Kind:
    """Return the kind of ways that a model is of, by what it is registered as first.

    >>> kind_of("ridesharing-pickup").name
    'pickup'
    """
    return PICKUP if name == PICKUP_NAME else TRIP


def read_ways(tables: TrainingTables, kind: Kind) -> Ways:
    """Return the ways of a kind that can be learned from.

    Raises:
        CannotTrain: The table is not there, or has none.
    """
    found = tables.read(TABLE, COLUMNS)
    found = found[(found["way"] == kind.name) & found["learned"]]
    if found.empty:
        raise CannotTrain(f"the table {TABLE} has no {kind.name}: run the app with arrivals.on=true first")
    found = found.sort_values(["ended_ms", "began_ms", "driver_id"], kind="stable")
    return Ways(
        columns_of([list(row) for row in found["features"]]),
        found["straight_s"].to_numpy(np.float64) + kind.shift_s,
        found["took_s"].to_numpy(np.float64) + kind.shift_s,
        found["ended_ms"].to_numpy(np.int64),
        found["driver_id"].to_numpy(),
    )


def judged(question: Question) -> Judged:
    """Return the ways that ended after the training of both models, with what each says of them, seconds."""
    two = question.champion, question.challenger
    ways = read_ways(question.workshop.tables(), _kind(question))
    now = time_of(question.as_of, int(ways.ended_ms.max()))
    since = max(model.trained_until_ms for model in two)
    ways = ways.of((ways.ended_ms > since) & (ways.ended_ms <= now))
    scores = [_seconds(model, ways) for model in two]
    drivers = np.unique(ways.drivers, return_inverse=True)[1]
    return Judged(ways.took_s, scores[0], scores[1], drivers, "ways", "drivers")


def _kind(question: Question) -> Kind:
    """Return the kind by the challenger's own word: a model may be registered under any name."""
    return PICKUP if question.challenger.about.get("way") == PICKUP.name else TRIP


def _seconds(model: LoadedModel, ways: Ways) -> npt.NDArray[np.float64]:
    if not len(ways.took_s):
        return np.zeros(0)
    from millrace_apps.ridesharing.eta.features import NAMES

    places = [NAMES.index(name) for name in model.inputs]
    scores = np.asarray(model.score_many(ways.features[:, places].astype(np.float32)), np.float64)
    return ways.nothing_s * np.exp(np.clip(scores, -5.0, 5.0))


LEARNER: Final = Learner(
    app="ridesharing",
    models={
        "eta": AppModel(MODEL_NAME, READER, (TABLE,), "How long a trip takes, told when it begins."),
        "pickup": AppModel(
            PICKUP_NAME,
            READER,
            (TABLE,),
            "How long a car takes to its rider, told when it is offered the ride.",
        ),
    },
    judged=judged,
    gates=(Gate(metric="mean_absolute_error", better="lower", margin=0.0, min_rows=300, min_groups=10),),
    columns={"MAE s": "mae_s"},
    limits=(
        "It learns from ways that drivers have ended themselves, not from those that the book ended.",
        "The matcher goes by the table of cell pairs, not by the model.",
    ),
)

"""The learned order while the shop is open: the champion of the registry orders the best candidates."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from millrace.models.boosted import BOOSTED, Boosted
from millrace.models.loading import Reader
from millrace.models.serving import Champion
from millrace_apps.clickstream.recommend.index import SessionIndex
from millrace_apps.clickstream.recommend.ranker import CANDIDATES, FEATURES, features_of
from millrace_apps.clickstream.recommend.scoring import (
    CHOSEN,
    Policy,
    Suggestion,
    alike,
    ranked,
    reason_of,
    score,
)

MODEL_NAME: Final = "clickstream-next"
FEATURES_VERSION: Final = 1
#: What a model may take: what is known of a candidate, and whether the list names no item of the visit.
INPUTS: Final = (*FEATURES, "discover")
#: So many candidates of a list are ordered while the shop is open; what is behind them stays as it is.
ORDERED: Final = CANDIDATES
READER: Final = Reader(
    "recommender", features_version=FEATURES_VERSION, predictor=Boosted.of, trusted=BOOSTED, known=INPUTS
)
_PLACES: Final = {name: place for place, name in enumerate(INPUTS)}


def with_surface(rows: NDArray[np.float64], policy: Policy) -> NDArray[np.float64]:
    """Return what a model takes: rows of :data:`FEATURES`, shape (n, 14), and the surface, (n, 15)."""
    return np.column_stack((rows, np.full(len(rows), float(policy == "discover"))))


@dataclass(frozen=True)
class NextModel(Champion):
    """Asks the champion."""

    name: str = MODEL_NAME
    reader: ClassVar[Reader] = READER

    def score(self, rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], str] | None:
        """Return the scores of rows by :data:`INPUTS`, and the version; ``None`` without a model."""
        found = self.served.score(lambda inputs: rows[:, [_PLACES[name] for name in inputs]].tolist())
        return None if found is None else (np.asarray(found.values).round(12), found.version)


@dataclass(frozen=True, slots=True)
class Ordered:
    """Suggestions for a list, and how they came about.

    Attributes:
        suggestions: The best first: those that were ordered, by the model's log-odds, then all others.
        model: Version of the model; empty: there was none, and they stand as sessions alike have them.
        candidates: Names of those that were, or would have been, ordered, as sessions alike have them; none
            where nobody wants to know.
        features: What is known of these, shape (candidates, 14).
    """

    suggestions: list[Suggestion]
    model: str
    candidates: list[str]
    features: NDArray[np.float64]


def ordered(
    index: SessionIndex,
    visit: Sequence[Hashable],
    policy: Policy,
    most: int,
    model: NextModel | None,
    *,
    features: bool = True,
) -> Ordered:
    """Return suggestions for a visit; the first of more are those of fewer.

    Args:
        index: Sessions that have ended.
        visit: Items of the visit up to now, oldest first.
        policy: Which items the surface may show.
        most: How many.
        model: Asks a model; ``None``, or where there is none: as :func:`.scoring.recommend`.
        features: Whether somebody wants to know what is known of the candidates; if not, it is told only
            where a model asks for it.
    """
    with_ = CHOSEN[policy]
    told = alike(index, visit, with_)
    wanted = max(most, ORDERED)
    scored = score(index, visit, with_, told, wanted)
    best = ranked(index, visit, scored, policy, wanted)
    first = best[:ORDERED]
    known = first if features or model is not None else []
    rows = features_of(index, visit, told, known)
    found = model.score(with_surface(rows, policy)) if model is not None and first else None
    version = ""
    if found is not None:
        odds, version = found
        order = np.argsort(-odds, kind="stable").tolist()
        best = [*((first[n][0], float(odds[n])) for n in order), *best[ORDERED:]]
    why = reason_of(index, visit, scored)
    suggestions = [Suggestion(index.names[item], value, why(item)) for item, value in best[:most]]
    return Ordered(suggestions, version, [str(index.names[item]) for item, _ in known], rows)

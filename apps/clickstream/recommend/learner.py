"""The learned order as the core's registry sees it: training data, metrics, gates."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from millrace.models.commands import time_of
from millrace.models.gates import Gate, Judged
from millrace.models.learner import AppModel, Learner, Question
from millrace.models.tables import CannotTrain, TrainingTables
from millrace_apps.clickstream.recommend.learned import INPUTS, MODEL_NAME, ORDERED, READER, with_surface
from millrace_apps.clickstream.recommend.measures import MOST, paired_bootstrap, rank_of
from millrace_apps.clickstream.recommend.ranker import FEATURES, wins

if TYPE_CHECKING:
    from millrace.models.loading import LoadedModel

TABLE: Final = "recommendation_examples"
COLUMNS: Final = (
    "cause", "surface", "visitor_id", "event_time_ms", "item", "visit", "items", "features",
)  # fmt: skip
#: A visit remembers so many clicks; its counter goes no further.
_COUNTED: Final = 100
#: A click after a longer pause is of another visit, ms.
_WITHIN_MS: Final = 30 * 60_000
#: The first share is learned from, and judged on the rest, before all are learned from.
LEARNED_FROM: Final = 0.75
#: With fewer lists that had the next item nothing is learned.
LEAST: Final = 500
#: Trees that are quick to ask: see DISCUSSION.
TREES: Final = {"learning_rate": 0.1, "max_iter": 100, "max_leaf_nodes": 15, "max_depth": 6}


@dataclass(frozen=True, slots=True)
class Shown:
    """A list of candidates, and what was clicked next.

    Attributes:
        at_ms: When it was made, UTC ms.
        visitor: The browser.
        surface: Where it was shown.
        rows: What was known of the candidates, shape (candidates, 15), by :data:`.learned.INPUTS`.
        clicked: Place of the next item among the candidates, from 0; -1: it was none of them.
    """

    at_ms: int
    visitor: str
    surface: str
    rows: NDArray[np.float64]
    clicked: int


def read_shown(tables: TrainingTables) -> list[Shown]:
    """Return the lists of which the next click of the same visit is known, in order of time.

    Raises:
        CannotTrain: The table is not there, or has no rows.
    """
    found = tables.read(TABLE, COLUMNS)
    if found.empty:
        raise CannotTrain(f"the table {TABLE} has no rows: run the app with recommend.examples above 0 first")
    found = found.drop_duplicates(["cause", "surface"]).sort_values(
        ["visitor_id", "surface", "event_time_ms", "visit"], kind="stable"
    )
    columns = [found[name].tolist() for name in COLUMNS]
    rows: list[tuple[Any, ...]] = list(zip(*columns, strict=True))
    shown = []
    for one, then in itertools.pairwise(rows):
        _, surface, visitor, at_ms, _, visit, items, features = one
        _, surface_, visitor_, then_ms, item, visit_, _, _ = then
        if (visitor, surface) != (visitor_, surface_) or visit_ != min(visit + 1, _COUNTED):
            continue
        if then_ms - at_ms > _WITHIN_MS:
            continue
        names = list(items)
        known = np.asarray(features, np.float64).reshape(len(names), len(FEATURES))
        clicked = names.index(item) if item in names else -1
        shown.append(Shown(int(at_ms), visitor, surface, with_surface(known, surface), clicked))
    return sorted(shown, key=lambda one: (one.at_ms, one.visitor, one.surface))


def fit(shown: Sequence[Shown], seed: int) -> Any:
    """Return trees that tell the clicked candidate from the others.

    Raises:
        CannotTrain: Too few lists had the next item.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    told = [one for one in shown if one.clicked >= 0 and len(one.rows) > 1]
    if len(told) < LEAST:
        raise CannotTrain(f"{len(told):,} lists had the next item; {LEAST:,} are wanted to learn from")
    x = np.concatenate([one.rows for one in told])
    y = np.concatenate([np.arange(len(one.rows)) == one.clicked for one in told])
    model = HistGradientBoostingClassifier(
        min_samples_leaf=200, l2_regularization=1.0, early_stopping=False, random_state=seed, **TREES
    )
    return model.fit(x, y)


def ranks(score_many: Any, shown: Sequence[Shown]) -> list[int]:
    """Return the ranks (from 1; 0: not among the first 20) of what was clicked, by a model's order.

    Args:
        score_many: Rows → scores; ``None``: the order in which candidates came.
        shown: The lists.
    """
    found = []
    for one in shown:
        if score_many is None or one.clicked < 0:
            order: Sequence[int] = range(len(one.rows))
        else:
            order = np.argsort(-np.asarray(score_many(one.rows)).round(12), kind="stable").tolist()
        found.append(rank_of(one.clicked, order) if one.clicked >= 0 else 0)
    return found


@dataclass(frozen=True, slots=True)
class Proof:
    """What an order has shown on the later lists before it was learned from all.

    Attributes:
        learned_from: Lists that were learned from.
        judged_by: Later lists.
        less_unlearned: Its measures less those of the order of sessions alike, with 95 % intervals.
    """

    learned_from: int
    judged_by: int
    less_unlearned: dict[str, list[float]]


def learn(shown: Sequence[Shown], seed: int = 0) -> tuple[Any, Proof]:
    """Learn the order of candidates; only one that wins on later lists is returned, learned from all.

    Args:
        shown: The lists, in order of time.
        seed: Of the trees.

    Raises:
        CannotTrain: There is too little to learn from, or the order does not win.
    """
    from millrace.models.boosted import Boosted

    cut = int(len(shown) * LEARNED_FROM)
    first, rest = Boosted.of(fit(shown[:cut], seed), len(INPUTS)), shown[cut:]
    less = paired_bootstrap(ranks(first.score_many, rest), ranks(None, rest))
    told = ", ".join(f"{name} {low:+.4f} to {high:+.4f}" for name, (_, low, high) in less.items())
    if not wins(less):
        raise CannotTrain(f"the learned order does not win on the {len(rest):,} newest lists: {told}")
    return fit(shown, seed), Proof(cut, len(rest), less)


def judged(question: Question) -> Judged:
    """Return the lists after the training of both models, with the reciprocal rank that each gives them."""
    two = question.champion, question.challenger
    shown = read_shown(question.workshop.tables())
    now = time_of(question.as_of, max(one.at_ms for one in shown))
    since = max(model.trained_until_ms for model in two)
    part = [one for one in shown if since < one.at_ms <= now]
    scores = [_reciprocal(model, part) for model in two]
    visitors = np.unique([one.visitor for one in part], return_inverse=True)[1]
    truth = np.array([one.clicked >= 0 for one in part], dtype=bool)
    return Judged(truth, scores[0], scores[1], visitors, "lists", "browsers")


def _reciprocal(model: LoadedModel, shown: Sequence[Shown]) -> NDArray[np.float64]:
    places = [INPUTS.index(name) for name in model.inputs]
    found = ranks(lambda rows: model.score_many(rows[:, places]), shown)
    return np.array([1.0 / rank if rank else 0.0 for rank in found])


def _mean_reciprocal_rank(truth: Any, reciprocal: Any, weights: Any) -> float:
    return float(np.average(reciprocal, weights=weights)) if len(truth) else float("nan")


LEARNER: Final = Learner(
    app="clickstream",
    models={
        "next": AppModel(
            MODEL_NAME,
            READER,
            (TABLE,),
            f"Orders the {ORDERED} best next items of a visit by how likely each is looked at next.",
        )
    },
    judged=judged,
    gates=(Gate(metric="mrr", min_groups=100),),
    measures={"mrr": _mean_reciprocal_rank},
    columns={"MRR": f"mrr{MOST}_gain"},
    limits=(
        "What is no candidate of sessions alike is never named.",
        "It learns from lists that were shown in its own order before: what stood low was seen less.",
    ),
)

"""Mutants of the clickstream app's next items: the index, its scores, what may be named, who is let in."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_PACKAGE: Final = "apps/clickstream/recommend"
_SCORES: Final = ("tests/unit/apps/clickstream/test_recommend.py",)
_EVALUATION: Final = ("tests/unit/apps/clickstream/test_recommend_evaluate.py",)

_LEARNED: Final = ("tests/unit/apps/clickstream/test_recommend_learned.py",)

MUTANTS: Final = (
    Mutant(
        "next item: the model in the stream is told the other surface",
        f"{_PACKAGE}/learned.py",
        'float(policy == "discover")',
        'float(policy != "discover")',
        "scores in the stream are those of the model offline",
        (f"{_LEARNED[0]}::test_scores_in_the_stream_are_those_of_the_model_offline",),
    ),
    Mutant(
        "next item: what is behind the ordered candidates is left out",
        f"{_PACKAGE}/learned.py",
        "*best[ORDERED:]]",
        "*best[most:]]",
        "what is behind the ordered candidates stays as it is",
        (f"{_LEARNED[0]}::test_the_first_of_more_are_those_of_fewer",),
    ),
    Mutant(
        "next item: a list is learned from with the next click of another browser",
        f"{_PACKAGE}/learner.py",
        "(visitor, surface) != (visitor_, surface_) or visit_",
        "surface != surface_ or visit_",
        "a list is learned from with the next click of its visit",
        (f"{_LEARNED[0]}::test_browsers_that_are_drawn_are_learned_from_and_lists_go_with_the_next_click",),
    ),
    Mutant(
        "next item: an item keeps its oldest sessions",
        f"{_PACKAGE}/index.py",
        "np.array(self._newest[item][-self.m :], np.int64)",
        "np.array(self._newest[item][: self.m], np.int64)",
        "an item is found by its newest sessions",
        _SCORES,
    ),
    Mutant(
        "next item: an item forgets one session too many",
        f"{_PACKAGE}/index.py",
        "                del newest[: -self.m]\n",
        "                del newest[: 1 - self.m]\n",
        "an item keeps its newest m sessions, whenever it is asked",
        _SCORES,
    ),
    Mutant(
        "next item: of sessions equally alike the older count",
        f"{_PACKAGE}/scoring.py",
        'np.argsort(-alike[::-1], kind="stable")[: with_.k]',
        '(len(found) - 1 - np.argsort(-alike, kind="stable")[: with_.k])',
        "of sessions equally alike the newer are the neighbours",
        _SCORES,
    ),
    Mutant(
        "next item: discover names items of the visit",
        f"{_PACKAGE}/scoring.py",
        '"discover": visit}[policy]\n    barred = {index',
        '"discover": visit[-1:]}[policy]\n    barred = {index',
        "who is to discover sees nothing of this visit",
        _SCORES,
    ),
    Mutant(
        "next item: a session is let in before anybody can know that it has ended",
        f"{_PACKAGE}/evaluate.py",
        "waiting.times[-1] + ends_after_ms < at",
        "waiting.times[-1] <= at",
        "what is predicted knows nothing of what comes later",
        _EVALUATION,
    ),
    Mutant(
        "next item: sessions of test are let in though nobody asked for it",
        f"{_PACKAGE}/evaluate.py",
        "    if not update:\n",
        "    if not tests:\n",
        "without --update the index is of training alone",
        _EVALUATION,
    ),
)

"""Mutants of the clickstream app's next items: the index, its scores, what may be named, who is let in."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_PACKAGE: Final = "apps/clickstream/recommend"
_SCORES: Final = ("tests/unit/apps/clickstream/test_recommend.py",)
_EVALUATION: Final = ("tests/unit/apps/clickstream/test_recommend_evaluate.py",)

_CLICKS: Final = "tests/unit/apps/clickstream/test_recommender.py"
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
    Mutant(
        "next item: what is served goes on with the sessions of another log",
        f"{_PACKAGE}/serve.py",
        "            if reduce(token_after, new, self._token) != log.token:\n                new = None\n",
        "",
        "an app that was restored says other sessions",
        ("tests/unit/apps/clickstream/test_recommend_serve.py",),
    ),
    Mutant(
        "next item: a click is of the oldest list that has the item",
        f"{_PACKAGE}/clicked.py",
        "for one in reversed(lists):",
        "for one in lists:",
        "a click counts for the list that is on the page",
        (f"{_CLICKS}::test_a_click_is_of_the_newest_list_that_has_the_item",),
    ),
    Mutant(
        "next item: a list is clicked as often as anybody looks",
        f"{_PACKAGE}/clicked.py",
        "            if one.clicked:\n                return None\n",
        "",
        "a list is clicked once",
        (f"{_CLICKS}::test_a_click_is_of_the_newest_list_that_has_the_item",),
    ),
    Mutant(
        "next item: a click at the last moment is none",
        f"{_PACKAGE}/process.py",
        "if ctx.event_time - one.at <= self._r.horizon_ms]",
        "if ctx.event_time - one.at < self._r.horizon_ms]",
        "the end of the time to click",
        (f"{_CLICKS}::test_a_click_at_the_end_of_the_time_counts_and_one_after_it_does_not",),
    ),
    Mutant(
        "next item: a click counts when it is clicked, not when its list was shown",
        f"{_PACKAGE}/process.py",
        "self._windows().shows.get(one.at - one.at % size, {})",
        "self._windows().shows.get(ctx.event_time - ctx.event_time % size, {})",
        "lists and their clicks stand in one time",
        (f"{_CLICKS}::test_a_click_at_the_end_of_the_time_counts_and_one_after_it_does_not",),
    ),
    Mutant(
        "next item: the control arm of the learned order has it",
        f"{_PACKAGE}/process.py",
        "model = None if visit.arm == UNLEARNED else self._r.model",
        "model = self._r.model",
        "an arm without the learned order",
        (
            "tests/unit/apps/clickstream/test_recommend_serve.py"
            "::test_the_learned_order_is_that_of_the_stream_in_the_arms_that_have_it",
        ),
    ),
    Mutant(
        "next item: serving orders by the model whatever the arm",
        f"{_PACKAGE}/serve.py",
        "asks = None if visit is None or visit.arm == UNLEARNED else model",
        "asks = model",
        "serving says what the app does",
        (
            "tests/unit/apps/clickstream/test_recommend_serve.py"
            "::test_the_learned_order_is_that_of_the_stream_in_the_arms_that_have_it",
        ),
    ),
    Mutant(
        "next item: what follows a popular item, and is alike, is left out",
        f"{_PACKAGE}/followers.py",
        "        kept[places[places >= 0]] = True\n",
        "",
        "candidates have all that speaks for them",
        ("tests/unit/apps/clickstream/test_recommend.py",),
    ),
    Mutant(
        "next item: of what follows a popular item too little is asked",
        f"{_PACKAGE}/scoring.py",
        "most + len(set(visit))",
        "most // 2",
        "lists are those of all that ever followed",
        ("tests/unit/apps/clickstream/test_recommend.py",),
    ),
)

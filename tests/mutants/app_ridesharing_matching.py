"""Mutants of the ridesharing app's matching: who may serve whom, who says yes, whose turn it is."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_APP: Final = "apps/ridesharing"
_TESTS: Final = "tests/unit/apps/ridesharing"
_CLASSES: Final = (f"{_TESTS}/test_classes.py",)
_ACCEPTANCE: Final = (f"{_TESTS}/test_acceptance.py",)
_AUDIT: Final = (f"{_TESTS}/test_topic_audit.py::test_every_reason_is_found_where_it_is_one",)

MUTANTS: Final = (
    Mutant(
        "ridesharing matching: an attempt has the score of the one before it",
        f"{_APP}/processes/dispatch_region.py",
        "        ride.policy, ride.score = policy, score\n",
        "        ride.policy, ride.score = policy, ride.score or score\n",
        "scores are kept with the attempt",
        (f"{_TESTS}/test_scores.py",),
    ),
    Mutant(
        "ridesharing matching: a score leaves out where the ride ends",
        f"{_APP}/processes/matching.py",
        "            int(self.drops[rider]),\n",
        "            int(self.drops[rider]) * 0,\n",
        "scores are kept with the attempt",
        (f"{_TESTS}/test_scores.py",),
    ),
    Mutant(
        "ridesharing replay: penalties of those whom nobody could serve drown what a policy costs",
        f"{_APP}/evaluation/replay.py",
        "left_out = int(pairs.penalty[rows[columns >= pairs.cars]].sum())",
        "left_out = 0",
        "another policy does not pass for the optimum",
        (f"{_TESTS}/test_optimum.py",),
    ),
    Mutant(
        "ridesharing matching: who is never to meet is matched",
        f"{_APP}/processes/window.py",
        "    excluded = named.blocked.union(",
        "    excluded = frozenset(",
        "a blocked pair is never matched",
        _CLASSES,
    ),
    Mutant(
        "ridesharing matching: an operator gives a rider a driver whom they are never to meet",
        f"{_APP}/operations/by_hand.py",
        "    if event.driver_id in region.named(ride.rider_id).blocked:\n",
        "    if not region:\n",
        "a blocked pair is never matched",
        _CLASSES,
    ),
    Mutant(
        "ridesharing matching: another class costs nothing",
        f"{_APP}/processes/matching.py",
        "{s.vehicle_class: s.cost_ms for s in self.serves if s.wanted == wanted}",
        "{s.vehicle_class: 0 for s in self.serves if s.wanted == wanted}",
        "another class serves at a cost",
        _CLASSES,
    ),
    Mutant(
        "ridesharing matching: a favourite costs more",
        f"{_APP}/processes/matching.py",
        "extra = extra - rules.favourite_ms * ",
        "extra = extra + rules.favourite_ms * ",
        "a favourite is worth a longer drive",
        _CLASSES,
    ),
    Mutant(
        "ridesharing matching: others serve who needs an accessible car",
        f"{_APP}/settings.py",
        '        if wanted == "accessible":\n',
        '        if wanted == "":\n',
        "who needs an accessible car gets no other",
        _CLASSES,
    ),
    Mutant(
        "ridesharing matching: what is to hold later outlives the last word",
        f"{_APP}/state/pairs.py",
        "    stands = (*left, (from_ms, said.stands))\n",
        "    stands = tuple(sorted((*before, (from_ms, said.stands))))\n",
        "the last word holds",
        _CLASSES,
    ),
    Mutant(
        "ridesharing matching: what was taken back takes room for good",
        f"{_APP}/state/pairs.py",
        "        kept.remove(name)\n    return len",
        "        kept.get(name)\n    return len",
        "pairs who are nothing to each other take no room",
        _CLASSES,
    ),
    Mutant(
        "ridesharing matching: what is late goes by what was said before",
        f"{_APP}/state/pairs.py",
        "max(said.from_ms, watermark, 0)",
        "max(said.from_ms, watermark + 1, 0)",
        "what is said of a pair holds from when it is read",
        _CLASSES,
    ),
    Mutant(
        "ridesharing matching: the audit does not ask who was never to meet",
        f"{_APP}/topic_audit/offers.py",
        '        if sure and sure[-1].event.stands == "block" and not undone:\n',
        '        if sure and sure[-1].event.stands == "kept" and not undone:\n',
        "the audit from the topics knows blocked pairs",
        _AUDIT,
    ),
    Mutant(
        "ridesharing matching: the audit lets any class serve",
        f"{_APP}/topic_audit/offers.py",
        "not any((car, request.vehicle_class) in serving for car in classes)",
        "not classes",
        "the audit from the topics knows the matrix",
        _AUDIT,
    ),
    Mutant(
        "ridesharing matching: an offer that ran out teaches nothing",
        f"{_APP}/processes/dispatch_region.py",
        '            self._learn(ride, "ignore")\n',
        "            pass\n",
        "who says nothing has not said yes",
        _ACCEPTANCE,
    ),
    Mutant(
        "ridesharing matching: who is busy has said no",
        f"{_APP}/processes/dispatch_region.py",
        'elif attempt == "rejected" and cause != BUSY:',
        'elif attempt == "rejected":',
        "a busy driver says nothing of what they like",
        _ACCEPTANCE,
    ),
    Mutant(
        "ridesharing matching: a driver is judged by yeses alone, wherever they were asked to",
        f"{_APP}/processes/acceptance.py",
        '(f"d:{driver_id}", usual))',
        '(f"d:{driver_id}", 1.0))',
        "a driver is held against what the fleet says to such distances",
        _ACCEPTANCE,
    ),
    Mutant(
        "ridesharing matching: answers never grow old",
        f"{_APP}/processes/acceptance.py",
        "        share = 0.5 ** (passed / half_life_ms)\n",
        "        share = 1.0\n",
        "older answers count less",
        _ACCEPTANCE,
    ),
    Mutant(
        "ridesharing matching: who has been idle for long has to wait",
        f"{_APP}/processes/income.py",
        "np.clip(1.0 - idle / mean, -1.0, 1.0)",
        "np.clip(idle / mean - 1.0, -1.0, 1.0)",
        "who has been idle for long gets a ride sooner",
        _ACCEPTANCE,
    ),
    Mutant(
        "ridesharing matching: a window that ends with a block is of the next",
        f"{_APP}/processes/window.py",
        "plan.arm(region.name, region.now - 1)",
        "plan.arm(region.name, region.now)",
        "an arm holds for its block",
        _ACCEPTANCE,
    ),
    Mutant(
        "ridesharing matching: blocks of another policy are compared",
        f"{_APP}/operations/switchbacks.py",
        '        if row["policy"] != plan.arm(',
        '        if row["policy"] == "" != plan.arm(',
        "blocks in which another policy held say nothing",
        _ACCEPTANCE,
    ),
)

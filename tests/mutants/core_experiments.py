"""Mutants of experiments: the deal, cohorts, intervals, the test of the deal."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_CORE: Final = "shared/millrace/experiments"
_TESTS: Final = ("tests/unit/millrace/experiments/test_experiments.py",)

_TURNS: Final = ("tests/unit/millrace/experiments/test_switchback.py",)

MUTANTS: Final = (
    Mutant(
        "experiments: the begin of a block is judged",
        f"{_CORE}/switchback.py",
        "        if not plan.is_judged(one.at_ms):\n",
        "        if one.at_ms < 0:\n",
        "what the block before has left is not judged",
        _TURNS,
    ),
    Mutant(
        "experiments: a block is compared with any other",
        f"{_CORE}/switchback.py",
        "means.get((unit, block ^ 1))",
        "means.get((unit, block - 1))",
        "blocks are compared within their pair",
        _TURNS,
    ),
    Mutant(
        "experiments: all of them deal alike",
        f"{_CORE}/assignment.py",
        "names = (subject, experiment, salt) if salt else (subject, experiment)",
        "names = (subject,)",
        "arms of two experiments are independent",
        _TESTS,
    ),
    Mutant(
        "experiments: each has a hold-out of its own",
        f"{_CORE}/assignment.py",
        "share(subject, self.holdout_name) < self.holdout",
        "share(subject, self.holdout_name, self.name) < self.holdout",
        "one hold-out for all",
        _TESTS,
    ),
    Mutant(
        "experiments: what has been decided so far is compared",
        f"{_CORE}/comparison.py",
        "        if at.at_ms + matures_ms <= until_ms:\n",
        "        if at.at_ms <= until_ms:\n",
        "only matured cohorts are compared",
        _TESTS,
    ),
    Mutant(
        "experiments: outcomes from before the exposure count",
        f"{_CORE}/comparison.py",
        "0 < done.at_ms - first[done.subject].at_ms <= matures_ms",
        "done.at_ms - first[done.subject].at_ms <= matures_ms",
        "an outcome is of what came before it",
        _TESTS,
    ),
    Mutant(
        "experiments: who was in two arms counts in the first",
        f"{_CORE}/comparison.py",
        "            crossed.add(one.subject)\n",
        "            pass\n",
        "who was in two arms is left out",
        _TESTS,
    ),
    Mutant(
        "experiments: intervals are for one look",
        f"{_CORE}/comparison.py",
        "spread * 2 * grown / (total * total * rho2) * math.log(math.sqrt(grown) / alpha)",
        "spread / total * 1.96**2",
        "intervals hold on all days together",
        _TESTS,
    ),
    Mutant(
        "experiments: every deal is believed",
        f"{_CORE}/comparison.py",
        "counts, p, p >= MISMATCH)",
        "counts, p, p >= 0)",
        "an odd deal is seen",
        _TESTS,
    ),
)

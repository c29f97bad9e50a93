"""Mutants of patterns: how long they may take, what lies between, what a match drops."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_MATCHER: Final = "shared/millrace/patterns/matcher.py"
_VECTORS: Final = "tests/unit/millrace/patterns/test_vectors.py"
_PROCESS: Final = "tests/unit/millrace/patterns/test_process.py"

MUTANTS: Final = (
    Mutant(
        "patterns: a match may take all of its time",
        _MATCHER,
        "        return start + self._within - 1\n",
        "        return start + self._within\n",
        "a match comes in less than within",
        (f"{_VECTORS}::test_a_match_comes_in_less_than_within",),
    ),
    Mutant(
        "patterns: past the last event begins at the last event",
        _MATCHER,
        "            return int(node.event) + 1\n",
        "            return int(node.event)\n",
        "no event is in two matches",
        (f"{_VECTORS}::test_pattern", "tests/unit/millrace/patterns/test_oracle.py"),
    ),
    Mutant(
        "patterns: a start may begin a second match",
        _MATCHER,
        "            return int(node.start) + 1\n",
        "            return int(node.start)\n",
        "at most one match begins with an event",
        (f"{_VECTORS}::test_pattern", "tests/unit/millrace/patterns/test_oracle.py"),
    ),
    Mutant(
        "patterns: what must not come may come",
        _MATCHER,
        "            if edge.killers and self._any(",
        "            if edge.killers and not self._positions and self._any(",
        "not_followed_by",
        (f"{_VECTORS}::test_pattern",),
    ),
    Mutant(
        "patterns: the next event may be any later one",
        _MATCHER,
        "            elif edge.gap >= RELAXED:\n",
        "            elif edge.gap is not None:\n",
        "strict contiguity",
        (f"{_VECTORS}::test_pattern",),
    ),
    Mutant(
        "patterns: what was a match is told as timed out as well",
        _MATCHER,
        "            elif not node.flags & MATCHED:\n",
        "            else:\n",
        "only partial matches time out",
        (f"{_VECTORS}::test_what_has_been_a_match_is_not_told_as_timed_out",),
    ),
    Mutant(
        "patterns: of too many partial matches the newest go",
        _MATCHER,
        "        gone, kept.live = kept.live[:over], kept.live[over:]\n        starts",
        "        gone, kept.live = kept.live[-over:], kept.live[:-over]\n        starts",
        "the oldest partial matches are dropped",
        (f"{_PROCESS}::test_too_many_partial_matches_drop_the_oldest_and_say_so",),
    ),
    Mutant(
        "patterns: events of partial matches that are over stay",
        _MATCHER,
        "            release(kept, number)\n        return self._settle(kept, matches), timed_out\n",
        "            pass\n        return self._settle(kept, matches), timed_out\n",
        "what a dead partial match had goes with it",
        (f"{_PROCESS}::test_what_a_partial_match_had_goes_when_its_time_is_over_though_another_goes_on",),
    ),
)

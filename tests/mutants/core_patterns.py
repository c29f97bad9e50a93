"""Mutants of patterns: how long they may take, what lies between, what a match drops."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_MATCHER: Final = "shared/millrace/patterns/matcher.py"
_VECTORS: Final = "tests/unit/millrace/patterns/test_vectors.py"
_PROCESS: Final = "tests/unit/millrace/patterns/test_process.py"
_ORACLE: Final = "tests/unit/millrace/patterns/test_oracle.py"

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
        "            if edge.killers and not free & edge.bit and self._any(",
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
        "        elif not node.flags & MATCHED:\n",
        "        else:\n",
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
        "            release(kept, number)\n        return self._settle(kept, matches)\n",
        "            pass\n        return self._settle(kept, matches)\n",
        "what a dead partial match had goes with it",
        (f"{_PROCESS}::test_what_a_partial_match_had_goes_when_its_time_is_over_though_another_goes_on",),
    ),
    Mutant(
        "patterns: an event may come when the time since the last one is over",
        _MATCHER,
        "                if since >= edge.within:\n",
        "                if since > edge.within:\n",
        "the next event comes in less than its time",
        (f"{_VECTORS}::test_a_way_that_is_over_leaves_the_others",),
    ),
    Mutant(
        "patterns: what must not come must not ever",
        _MATCHER,
        "                elif since >= edge.forbids:\n",
        "                elif since >= edge.within:\n",
        "for how long something must not come at the end",
        (f"{_VECTORS}::test_what_must_not_come_for_a_time_may_come_after_it",),
    ),
    Mutant(
        "patterns: time between neighbours is over when the oldest way is",
        _MATCHER,
        "for number in kept.live if (over := over_of(kept, number)) != NEVER]",
        "for number in kept.live[:1] if (over := over_of(kept, number)) != NEVER]",
        "what times out is told at its time",
        (_ORACLE,),
    ),
    Mutant(
        "patterns: the part's own time does not count",
        "shared/millrace/patterns/automaton.py",
        "        limit = part.gap_ms or self.gap_ms\n",
        "        limit = self.gap_ms or part.gap_ms\n",
        "a part's own time goes before that of all",
        (f"{_VECTORS}::test_a_parts_own_time_goes_before_that_of_all",),
    ),
    Mutant(
        "patterns: a part may come again within the time of the group's first",
        "shared/millrace/patterns/automaton.py",
        "                said = (unless, killers, met, yields, entry.within)\n",
        "                said = (unless, killers, met, yields)\n",
        "the events of a repeated group come in time",
        (f"{_VECTORS}::test_the_first_event_of_a_group_that_repeats_comes_in_time_after_the_last",),
    ),
)

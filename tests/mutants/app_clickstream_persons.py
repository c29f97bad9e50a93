"""Mutants of the clickstream app's funnels of persons, and of lists that shoppers read."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_TESTS: Final = ("tests/unit/apps/clickstream/test_person_funnels.py",)
_LISTS: Final = ("tests/unit/generators/test_clickstream_loop.py",)
_CAPS: Final = ("tests/unit/apps/clickstream/test_caps.py",)
_INDEX: Final = ("tests/unit/apps/clickstream/test_recommend.py",)
_FILE: Final = "apps/clickstream/processes/person_funnels.py"
_BROWSER: Final = "apps/clickstream/state/marks.py"

MUTANTS: Final = (
    Mutant(
        "persons: a way begins before the one before is over",
        _FILE,
        "after_ms = best[-1] if whole else max(begin + funnel.within_ms, best[-1])",
        "after_ms = best[-1]",
        "the next first step after a way begins the next one",
        _TESTS,
    ),
    Mutant(
        "persons: the first beginning counts, whether another leads further or not",
        _FILE,
        "            if len(done) > len(best):\n",
        "            if not best:\n",
        "the beginning that leads furthest counts",
        _TESTS,
    ),
    Mutant(
        "persons: an older telling of a browser takes the place of a newer one",
        _FILE,
        "        if revision <= before:\n            return\n",
        "",
        "of several tellings the newest holds",
        _TESTS,
    ),
    Mutant(
        "persons: a login takes along what nobody did, however long ago",
        _BROWSER,
        "claim is not None and claim[0] <= at_ms + self.within_ms",
        "claim is not None",
        "a claim ends with the time of the funnel",
        _TESTS,
    ),
    Mutant(
        "persons: what was done in a browser stays when consent goes there",
        "apps/clickstream/processes/visitor_identity.py",
        "        if self._marks:\n            self._unmark(marked, known, ctx)\n",
        "",
        "where a browser parts its steps go",
        _TESTS,
    ),
    Mutant(
        "persons: ways are settled while a browser may still tell of them",
        "apps/clickstream/processes/person_ways.py",
        "ctx.watermark - self._unsettled_ms",
        "ctx.watermark + 3_600_000",
        "what is over for good is so after all that may change it",
        _TESTS,
    ),
    Mutant(
        "persons: who asks to be forgotten keeps ways",
        "apps/clickstream/processes/persons.py",
        "        self._no_ways(event.at_ms, person.register, ctx)\n",
        "",
        "an erased account has no row",
        _TESTS,
    ),
    Mutant(
        "persons: an order that an earlier event tells of is bought twice",
        "apps/clickstream/processes/visitor.py",
        'self._marks.drop(known, was.at_ms, "purchase")',
        "pass",
        "of an order the earliest event tells",
        _TESTS,
    ),
    Mutant(
        "lists: a click because of a list is no part of its session",
        "generators/clickstream/lists.py",
        '        detail["events"] += 1\n',
        "",
        "the ledger's sessions grow with these clicks",
        _LISTS,
    ),
    Mutant(
        "lists: every place is clicked alike",
        "generators/clickstream/lists.py",
        "        drawn = uniform.first\n",
        "        drawn = uniform.first / 2\n",
        "lists are clicked as likely as the ledger says",
        _LISTS,
    ),
    Mutant(
        "caps: an account keeps the name of a browser that is forgotten",
        "apps/clickstream/processes/visitor_identity.py",
        '            ctx.emit(Unlink(f"u:{user}", ctx.event_time, subject, forgotten=True))\n',
        "            pass\n",
        "no state of others names a forgotten browser",
        (f"{_CAPS[0]}::test_of_a_browser_that_is_forgotten_no_state_of_others_has_the_name",),
    ),
    Mutant(
        "next item: items of sessions that are kept are dropped",
        "apps/clickstream/recommend/index.py",
        "kept = np.array(self._keepers, np.int64) > 0",
        "kept = np.array(self._keepers, np.int64) > 1",
        "only sessions that no item keeps are dropped",
        _INDEX,
    ),
)

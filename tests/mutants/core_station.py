"""Mutants of stations: what stays at hand, who has something to do, what goes on."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_STATION: Final = "shared/millrace/host/station.py"
_TESTS: Final = "tests/unit/millrace/host/test_station.py"
_RANDOM: Final = f"{_TESTS}::test_random_processes_give_what_memory_gives"
_TOPOLOGIES: Final = f"{_TESTS}::test_random_topologies_give_what_chains_in_memory_give"
_OTHER: Final = f"{_TESTS}::test_a_worker_that_finds_another_token_believes_nothing_that_it_has"

MUTANTS: Final = (
    Mutant(
        "station: a worker believes what it has, whoever wrote last",
        _STATION,
        "        known = bool(token) and head.token == token\n",
        "        known = bool(token)\n",
        "pages at hand are those of the store",
        (_OTHER,),
    ),
    Mutant(
        "station: a failed batch leaves its pages at hand",
        _STATION,
        "        head.token = os.urandom(12)\n",
        '        head.token = b"always"\n',
        "pages at hand are those of the store",
        (_RANDOM,),
    ),
    Mutant(
        "station: a key group without rows never runs",
        _STATION,
        "            due = [label for label, wake in self._wake.items() if wake.is_due(ahead, self.tick)]\n",
        "            due: list[int] = []\n",
        "groups run when something is due",
        (_RANDOM,),
    ),
    Mutant(
        "station: expired values stay where nobody comes by",
        _STATION,
        "            or (expiry is not None and expiry <= watermark)\n",
        "",
        "groups run when something is due",
        (f"{_TESTS}::test_what_has_expired_goes_also_where_nobody_comes_by_again",),
    ),
    Mutant(
        "station: the last tick is forgotten at a restart",
        _STATION,
        "                link.begin(tick)\n",
        "                link.begin(None)\n",
        "what links share is kept",
        (_RANDOM,),
    ),
    Mutant(
        "station: what control events left is not kept",
        _STATION,
        "            self._kept.put((self._place, SHARED, BROADCAST), kept)\n",
        "",
        "what links share is kept",
        (_RANDOM,),
    ),
    Mutant(
        "station: an output goes on to the first link alone",
        _STATION,
        "            for link, mark, reader in takers:\n",
        "            for link, mark, reader in takers[:1]:\n",
        "every record goes on",
        (_TOPOLOGIES,),
    ),
    Mutant(
        "station: a page that is missing is an empty one",
        _STATION,
        "            if data is None:\n                raise StateCorrupted(",
        "            if data is None and not page:\n                raise StateCorrupted(",
        "lost state stops the query",
        (f"{_TESTS}::test_a_page_that_is_missing_stops_the_batch",),
    ),
)

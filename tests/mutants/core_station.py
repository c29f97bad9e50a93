"""Mutants of stations: what stays at hand, who has something to do, what goes on."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_STATION: Final = "shared/millrace/host/station.py"
_REUSE: Final = "tests/unit/millrace/test_object_reuse.py"
_TESTS: Final = "tests/unit/millrace/host/test_station.py"
_RANDOM: Final = f"{_TESTS}::test_random_processes_give_what_memory_gives"
_TOPOLOGIES: Final = f"{_TESTS}::test_random_topologies_give_what_chains_in_memory_give"
_SEVERAL: Final = (
    f"{_TESTS}::test_random_processes_give_the_same_in_several_stations_however_many_they_become"
)
_OTHER: Final = f"{_TESTS}::test_a_worker_that_finds_another_token_believes_nothing_that_it_has"
_CLIENT: Final = "shared/millrace/host/spark_state.py"
_ASKED: Final = "tests/unit/millrace/host/test_spark_state.py"

MUTANTS: Final = (
    Mutant(
        "state store: whoever has much to send reads no answers",
        _CLIENT,
        "        if can & ~select.POLLOUT:\n",
        "        if not self._unsent:\n",
        "a refusal is told at once",
        (f"{_ASKED}::test_a_refusal_is_told_though_the_store_neither_reads_nor_answers_any_more",),
    ),
    Mutant(
        "state store: whoever writes waits until the store has taken it",
        _CLIENT,
        "            while len(unsent) > _MOST_UNSENT:\n",
        "            while unsent:\n",
        "who writes goes on",
        (f"{_ASKED}::test_who_writes_goes_on_though_the_store_reads_nothing_yet",),
    ),
    Mutant(
        "state store: any number of bytes waits for it",
        _CLIENT,
        "            while len(unsent) > _MOST_UNSENT:\n",
        "            while False:\n",
        "memory is bounded",
        (f"{_ASKED}::test_no_more_than_some_megabytes_wait_for_a_store_that_reads_nothing",),
    ),
    Mutant(
        "state store: after a refusal the next requests are sent",
        _CLIENT,
        "        if self._refused:\n            raise PySparkRuntimeError(self._refused)\n",
        "        pass\n",
        "a batch whose state is not whole fails",
        (f"{_ASKED}::test_what_was_refused_of_those_who_did_not_wait_is_told_to_the_next_who_does",),
        limit_s=90,
    ),
    Mutant(
        "state store: a connection that ended has said that all is done",
        _CLIENT,
        '            self._refuse("the state store has ended the connection")\n',
        "            part = bytes(_LENGTH.size * self._awaited)\n",
        "no state is taken for none",
        (f"{_ASKED}::test_a_connection_that_ends_is_not_taken_for_a_store_that_has_nothing",),
    ),
    Mutant(
        "state store: answers to earlier requests are taken for those to the next",
        _CLIENT,
        "        connection.wait()\n        connection.send(messages)\n",
        "        connection.send(messages)\n",
        "each request gets its own answer",
        (f"{_ASKED}::test_of_any_requests_each_gets_its_own_answer",),
    ),
    Mutant(
        "station: what a batch that was cut off has emitted comes out twice",
        _STATION,
        "        self._runner.emissions, self._runner.controls.late = [], 0\n",
        "",
        "a batch that is tried again is the same",
        (_RANDOM, _TOPOLOGIES),
    ),
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
        "            for taker in takers:\n",
        "            for taker in takers[:1]:\n",
        "every record goes on",
        (_TOPOLOGIES,),
    ),
    Mutant(
        "station: records that can be changed go on as they are, too",
        _STATION,
        "    return frozenset(of for of in emits & reads if not changeable_in(of))\n",
        "    return frozenset(emits & reads)\n",
        "what a link does to its record the next one does not see",
        (_REUSE,),
    ),
    Mutant(
        "station: what goes on as it is comes by no input",
        _STATION,
        "yield keys, Handed(keys, times, causes, events, on_time, self._mark), own",
        'yield keys, Handed(keys, times, causes, events, on_time, b""), own',
        "a process is told by which input a record comes",
        (_REUSE,),
    ),
    Mutant(
        "station: a record without its key is lost",
        _STATION,
        "                written.append(record._replace(payload=msgspec.json.encode(payload)))\n",
        "                pass\n",
        "it becomes a dead letter",
        (_REUSE,),
    ),
    Mutant(
        "station: of what is written, too, the table is given the record",
        _STATION,
        "            if output not in link.names\n",
        "",
        "a table is given JSON",
        (_REUSE,),
    ),
    Mutant(
        "station: a record that came as it is has no bytes in dead letters",
        "shared/millrace/host/rows.py",
        "    return row.raw + as_json(row.event) if is_bare(row.raw) else row.raw\n",
        "    return row.raw\n",
        "a dead letter has the event",
        (_REUSE,),
    ),
    Mutant(
        "stations: each tells of what all have found alike",
        _STATION,
        "        self._stays, self._speaks = stays, speaks\n",
        "        self._stays, self._speaks = stays, True\n",
        "one station speaks for all",
        (_SEVERAL,),
    ),
    Mutant(
        "stations: only the first one hands control events on",
        "shared/millrace/host/intake.py",
        "        self.hands_on = speaks if hands_on is None else hands_on\n",
        "        self.hands_on = speaks\n",
        "every station is told all that moves its clocks",
        (f"{_TESTS}::test_control_events_come_to_every_link_of_every_station",),
    ),
    Mutant(
        "stations: a key of several parts goes by all of them",
        "shared/millrace/host/groups.py",
        "    return key_group(locality_of(key_text), stations)\n",
        "    return key_group(key_text, stations)\n",
        "all of one locality is in one station",
        (f"{_TESTS}::test_all_of_one_locality_is_in_one_station",),
    ),
    Mutant(
        "stations: a packer sends events by their keys, not by their locality",
        "shared/millrace/host/packing.py",
        "                of_bytes if key is None else station_of(key, count)\n",
        "                of_bytes\n",
        "all of one locality is in one station",
        (f"{_TESTS}::test_all_of_one_locality_is_in_one_station",),
    ),
    Mutant(
        "stations: a record may go on under another locality",
        _STATION,
        "            if not here or not new.startswith(here):\n",
        "            if not here:\n",
        "a record stays in its locality",
        (f"{_TESTS}::test_a_record_of_another_locality_stops_several_stations_whichever_it_would_go_to",),
    ),
    Mutant(
        "stations: what stands in one opens in another",
        _STATION,
        "    if station:  # the first one has what the only one has\n",
        "    if False:\n",
        "state is bound to its place",
        (f"{_TESTS}::test_what_stands_in_one_station_does_not_open_in_another",),
    ),
    Mutant(
        "stations: a rescaled entry goes to the first one",
        "shared/millrace/checkpoints/reshape.py",
        "        return station_of(key, self.stations) if self.stations > 1 else 0, label\n",
        "        return 0, label\n",
        "entries go where their keys go",
        (_SEVERAL,),
    ),
    Mutant(
        "stations: the clock is kept by the first of those that come to be",
        "shared/millrace/checkpoints/reshape.py",
        "wrapped_rows(shape, SHARED, values, n) for n in range(shape.stations)",
        "wrapped_rows(shape, SHARED, values, n) for n in range(1)",
        "every station has the clock",
        (_SEVERAL,),
    ),
    Mutant(
        "stations: a key that does not begin with the locality is taken",
        "shared/millrace/topology/definition.py",
        "    if key and isinstance(key[0], str) and key[0] == locality:\n",
        "    if locality in key:\n",
        "all keys begin with the locality",
        (
            "tests/unit/millrace/topology/test_topology.py::test_keys_that_do_not_begin_with_the_locality_are_refused",
        ),
    ),
    Mutant(
        "stations: one for each core without a locality",
        "shared/millrace/runtime/plans.py",
        "    return 1 if locality is None else min(local_cores(master) or 1, MOST_STATIONS)\n",
        "    return min(local_cores(master) or 1, MOST_STATIONS)\n",
        "several stations only with a locality",
        (
            "tests/unit/millrace/runtime/test_plans.py::test_there_are_as_many_stations_as_cores_where_there_is_a_locality",
        ),
    ),
    Mutant(
        "stations: a checkpoint gets as many as there are cores now",
        "shared/millrace/runtime/plans.py",
        '    if asked == "auto" and kept:\n',
        '    if asked == "auto" and kept and kept > 64:\n',
        "a checkpoint keeps what it has",
        ("tests/unit/millrace/runtime/test_plans.py::test_a_checkpoint_keeps_its_stations",),
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

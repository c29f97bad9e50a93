"""Mutants of topologies: what links take, what comes out, what is refused; several processes in one."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_CORE: Final = "shared/millrace"
_TESTS: Final = "tests/unit/millrace"
_TOPOLOGY: Final = f"{_TESTS}/topology/test_topology.py"
_RANDOM: Final = (
    f"{_TESTS}/topology/test_random.py::test_random_topologies_give_what_a_plain_evaluation_gives"
)
_MANY: Final = f"{_TESTS}/test_multiplexed.py::test_members_say_and_keep_what_they_do_alone"

_PLAY: Final = f"{_TESTS}/playback/test_play.py"

MUTANTS: Final = (
    Mutant(
        "playback: what is no clock moves the watermark",
        f"{_CORE}/playback/steps.py",
        "if inputs[self.topology.input_of(e)].clock]",
        "if inputs]",
        "the watermark of a batch is that of the clocks before it",
        (f"{_PLAY}::test_the_watermark_of_a_batch_is_what_the_clocks_before_it_make",),
    ),
    Mutant(
        "playback: the watermark goes back",
        f"{_CORE}/playback/steps.py",
        "max(times if before is None else [before, *times], default=None)",
        "max(times, default=before)",
        "the watermark of a batch is that of the clocks before it",
        (f"{_PLAY}::test_the_watermark_of_a_batch_is_what_the_clocks_before_it_make",),
    ),
    Mutant(
        "playback: a clock that is ahead is believed",
        f"{_CORE}/playback/steps.py",
        "self.time(event) if arrived is None else min(self.time(event), arrived)",
        "self.time(event)",
        "no event moves the watermark beyond when it was received",
        (
            f"{_PLAY}::test_a_clock_that_is_ahead_moves_the_watermark_no_further_than_when_its_event_was_received",
        ),
    ),
    Mutant(
        "memory: behind a bounded input links wait for more",
        f"{_CORE}/host/memory_chain.py",
        "return self._follow(self.hosts[0].run_bounded(events), bounded=True)",
        "return self._follow(self.hosts[0].run_bounded(events))",
        "a bounded chain ends in all its links",
        (f"{_PLAY}::test_a_bounded_chain_ends_in_all_its_links",),
    ),
    Mutant(
        "playback: the caller's events are handed over themselves",
        f"{_CORE}/playback/memory.py",
        "event_of(plan.topology, deepcopy(event))",
        "event_of(plan.topology, event)",
        "what is played stays as it is",
        (f"{_PLAY}::test_what_a_process_changes_in_its_event_does_not_change_what_is_played",),
    ),
    Mutant(
        "topology: a table named twice is taken",
        f"{_CORE}/topology/definition.py",
        "            if (name := table_name(table)) in names:\n",
        "            if (name := table_name(table)) in names and not names:\n",
        "a table has one output",
        (_TOPOLOGY,),
    ),
    Mutant(
        "topology: an output goes to the first of its tables only",
        f"{_CORE}/topology/sinks.py",
        "(tables,) if isinstance(tables, str | Upsert) else tuple(tables)",
        "(tables,) if isinstance(tables, str | Upsert) else tuple(tables)[:1]",
        "an output goes to all of its tables",
        (f"{_TESTS}/connectors/test_upsert.py",),
    ),
    Mutant(
        "testing: of an output's tables the standing looks at the first one with a row per key",
        f"{_CORE}/testing/standing.py",
        "            for table in tables\n            if isinstance(table, Upsert)\n        ]",
        "            for table in tables[:1]\n            if isinstance(table, Upsert)\n        ]",
        "each table of an output is held to its rows",
        (f"{_TESTS}/test_standing.py",),
    ),
    Mutant(
        "topology: what is taken is lost to the table that wants it",
        f"{_CORE}/topology/definition.py",
        "                if full in wanted or not self._is_taken(link.name, name):\n",
        "                if not self._is_taken(link.name, name):\n",
        "outputs that are taken and written",
        (f"{_TOPOLOGY}::test_what_a_link_takes_is_an_output_only_where_it_is_written",),
    ),
    Mutant(
        "topology: a link takes what lacks its fields",
        f"{_CORE}/topology/definition.py",
        '    if missing:\n        raise KeyingError(\n            f"{process.name} takes',
        '    if missing and not missing:\n        raise KeyingError(\n            f"{process.name} takes',
        "links are typed",
        (f"{_TOPOLOGY}::test_what_does_not_fit_is_refused_before_anything_runs",),
    ),
    Mutant(
        "topology: memory brings an output to the first who takes it",
        f"{_CORE}/host/memory_chain.py",
        "                by_output.setdefault(source, []).append(e)\n",
        "                by_output.setdefault(source, [e])\n",
        "every record goes on",
        (_RANDOM,),
    ),
    Mutant(
        "topology: memory forgets by which input a record comes",
        f"{_CORE}/host/memory_chain.py",
        "        mark, tp = mark_of(list(process.inputs).index(taken.input)), process.inputs[taken.input]\n",
        "        mark, tp = mark_of(0), process.inputs[taken.input]\n",
        "several outputs come by several inputs",
        (_RANDOM,),
    ),
    Mutant(
        "topology: on Spark an output goes to the last who takes it",
        f"{_CORE}/host/packing.py",
        "            takes.setdefault(going.output, []).append((going.mark, reader))\n",
        "            takes[going.output] = [(going.mark, reader)]\n",
        "an output may be taken by two inputs",
        (
            f"{_TESTS}/host/test_packing.py::test_an_output_goes_to_all_who_take_it_and_passes_if_it_is_wanted",
        ),
    ),
    Mutant(
        "topology: an empty field is a key",
        f"{_CORE}/topology/keys.py",
        '        if found is not None and (found != "" or isinstance(part, str)):\n',
        "        if found is not None:\n",
        "the first of several that is not empty",
        (f"{_TOPOLOGY}::test_key_and_time_of_events_are_where_the_topology_says",),
    ),
    Mutant(
        "multiplex: members share their timers",
        f"{_CORE}/multiplexed.py",
        "        return self._timers.pending(self._lead + name, **more)\n",
        "        return self._timers.pending(name, **more)\n",
        "a member does what it does alone",
        (_MANY,),
    ),
    Mutant(
        "multiplex: a late event is not its member's",
        f"{_CORE}/multiplexed.py",
        "        running.on_late(event, self._within(member, own, ctx))\n",
        "        self.emit_late(event, ctx)\n",
        "a member does what it does alone",
        (_MANY,),
    ),
)

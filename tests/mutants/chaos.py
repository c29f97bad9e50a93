"""Mutants of what no event can do: poison in state, what is put aside for it, and the books of chaos."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_CHAOS: Final = "shared/millrace/chaos"
_HOST: Final = "shared/millrace/host"
_INPUTS: Final = "tests/unit/millrace/chaos/test_inputs.py"
_VALUES: Final = "tests/unit/millrace/chaos/test_values.py"
_POISON: Final = (
    "tests/unit/millrace/host/test_poison_oracle.py::"
    "test_events_that_fail_leave_no_trace_but_their_dead_letters"
)
_IOT: Final = "tests/unit/apps/iot_maintenance/test_join.py"
_SCHEMA: Final = "tests/unit/millrace/contracts/test_schema.py"

MUTANTS: Final = (
    Mutant(
        "poison: nothing is packed after each callback",
        f"{_HOST}/rollback.py",
        "    def append(self, _handled: tuple[Any, ...]) -> None:\n        self._renew()\n",
        "    def append(self, _handled: tuple[Any, ...]) -> None:\n        pass\n",
        "the event that brought it is found",
        (_POISON,),
    ),
    Mutant(
        "poison: what was emitted before a batch was packed stays",
        f"{_HOST}/key_runner.py",
        "            del self.emissions[mark:]\n            packing =",
        "            packing =",
        "what is run again says nothing twice",
        (_POISON,),
    ),
    Mutant(
        "poison: an event that a process has changed is handled again as it left it",
        f"{_HOST}/key_runner.py",
        "            self._run_key(store, key, [self._anew(row) for row in rows], of_all, tick, packing)\n",
        "            self._run_key(store, key, rows, of_all, tick, packing)\n",
        "events are handled as they came",
        (_POISON,),
    ),
    Mutant(
        "poison: a dead letter of a control event lacks its first byte",
        f"{_HOST}/collector.py",
        ' or stage == "broadcast" else unmarked(raw)',
        " else unmarked(raw)",
        "dead letters have the original bytes",
        (
            "tests/unit/millrace/dead_letters/test_dead_letters.py::"
            "test_the_dead_letter_of_a_control_event_keeps_all_its_bytes",
        ),
    ),
    Mutant(
        "poison: the last link puts control events aside that another has taken",
        f"{_HOST}/station.py",
        "        taken = any(link.events.control_type is not None for link in links)\n",
        "        taken = False\n",
        "a control event is nobody's where nobody takes any",
        (f"{_INPUTS}::test_a_control_event_that_one_process_takes_is_nobodys_dead_letter_behind_it",),
    ),
    Mutant(
        "chunks: all that is emitted goes in one",
        f"{_HOST}/chunks.py",
        "    if sum(sizes) <= CHUNK_BYTES:\n",
        "    if CHUNK_BYTES:\n",
        "no chunk is larger than memory has room for",
        (
            "tests/unit/millrace/host/test_packing.py::"
            "test_what_is_large_goes_in_several_chunks_and_the_group_is_told_once",
        ),
    ),
    Mutant(
        "chunks: a group of several is told of its sources with each",
        f"{_HOST}/packing.py",
        "if tells[label] == place else chunk",
        "if label in tells else chunk",
        "what was read is counted once",
        (
            "tests/unit/millrace/host/test_packing.py::"
            "test_what_is_large_goes_in_several_chunks_and_the_group_is_told_once",
        ),
    ),
    Mutant(
        "contexts: an event has no cause",
        f"{_HOST}/collector.py",
        "        self._ctx.cause_of = lambda: self._cause\n",
        "        self._ctx.cause_of = lambda: None\n",
        "a process can say where an event stands",
        (f"{_INPUTS}::test_a_witness_changes_nothing_and_says_what_was_handled",),
    ),
    Mutant(
        "chaos: a record of which nobody speaks is processed",
        f"{_CHAOS}/account.py",
        "        elif flags & HANDLED:\n",
        "        elif flags & HANDLED or not flags:\n",
        "lost records are seen",
        (f"{_INPUTS}::test_an_event_that_is_lost_is_told",),
    ),
    Mutant(
        "chaos: a record may be accounted for twice",
        f"{_CHAOS}/account.py",
        "    if flags & _TWICE:\n        return True\n",
        "",
        "repeated handling is seen",
        (f"{_INPUTS}::test_an_event_that_is_handled_twice_is_told",),
    ),
    Mutant(
        "chaos: what raises is a dead letter like any other",
        f"{_CHAOS}/account.py",
        "        if raised:\n            self.fault(",
        "        if raised and not error:\n            self.fault(",
        "what fails in a process is told",
        (f"{_INPUTS}::test_what_its_contract_allows_and_a_process_does_not_keep_is_told",),
    ),
    Mutant(
        "chaos: what fails behind the first process goes untold",
        f"{_CHAOS}/account.py",
        "        if not first or at[0] is None:\n",
        "        if not first:\n            return\n        if at[0] is None:\n",
        "all links are watched",
        (f"{_INPUTS}::test_what_fails_behind_the_first_process_is_told",),
    ),
    Mutant(
        "chaos: refused or taken against the contract goes untold",
        f"{_CHAOS}/account.py",
        "        if not valid and flags & (HANDLED | LATE | PUT_ASIDE | RAISED):\n",
        "        if not valid and not flags:\n",
        "contract and app agree",
        (f"{_INPUTS}::test_an_event_that_is_taken_or_refused_against_its_contract_is_told",),
    ),
    Mutant(
        "chaos: a witness speaks of late events twice",
        f"{_CHAOS}/witness.py",
        '        self.__dict__["process"] = lambda event, ctx: base.process(self, event, ctx)\n',
        '        self.__dict__["process"] = lambda event, ctx: handle(self, event, ctx)\n',
        "each record is handled once",
        (f"{_INPUTS}::test_an_app_that_is_right_has_every_record_accounted_for",),
    ),
    Mutant(
        "chaos: single changes come at random",
        f"{_CHAOS}/hostile.py",
        "kind.left.pop() if kind.left else self._at_random(",
        "kind.left.pop() if len(kind.left) > 99 else self._at_random(",
        "every bound is tried",
        (f"{_INPUTS}::test_every_single_change_is_sent_once_there_are_events_enough",),
    ),
    Mutant(
        "chaos: an exclusive bound is allowed",
        f"{_CHAOS}/values.py",
        "int(info.gt) + 1",
        "int(info.gt)",
        "values at bounds are allowed",
        (f"{_VALUES}::test_the_outermost_values_are_there_and_the_next_ones_are_refused",),
    ),
    Mutant(
        "chaos: nothing beyond an upper bound is tried",
        f"{_CHAOS}/values.py",
        '            yield Value("too long", _text("x" * (info.max_length + 1)))\n',
        "            pass\n",
        "values beyond bounds are tried",
        (f"{_VALUES}::test_the_outermost_values_are_there_and_the_next_ones_are_refused",),
    ),
    Mutant(
        "contracts: what has narrower bounds may be anything",
        "shared/millrace/contracts/check.py",
        "            old, new = without_bounds(resolved(old)), without_bounds(resolved(new))\n",
        "            old = new\n",
        "a narrower version is compared but for its bounds",
        (f"{_SCHEMA}::test_narrower_bounds_are_said_and_nothing_else_goes_with_them",),
    ),
    Mutant(
        "contracts: names in a map have no bounds",
        "shared/millrace/contracts/compatibility.py",
        '        if "propertyNames" in reads:\n',
        '        if "propertyNames" in reads and not at:\n',
        "bounds of a map's names are compared",
        (f"{_SCHEMA}::test_bounds_of_the_names_in_a_map_are_compared",),
    ),
    Mutant(
        "iot: another fact under a known id is a repeat",
        "apps/iot_maintenance/state/past.py",
        "        return before[1] != content\n",
        "        return False\n",
        "conflicts are told from repeats",
        (f"{_IOT}::test_what_says_something_else_under_a_known_id_is_told_from_a_repeat",),
    ),
    Mutant(
        "iot: another reading of a time is a repeat",
        "apps/iot_maintenance/processes/monitor.py",
        "(part.reading_id, part.sensor_id, part.value, part.unit) == said for part in before",
        "said for part in before",
        "conflicts are told from repeats",
        (f"{_IOT}::test_what_says_something_else_under_a_known_id_is_told_from_a_repeat",),
    ),
    Mutant(
        "iot: what facts have said is kept for ever",
        "apps/iot_maintenance/state/past.py",
        "for name, kept in self.told.items() if kept[0] >= before}",
        "for name, kept in self.told.items()}",
        "what is remembered is forgotten",
        (f"{_IOT}::test_what_was_told_is_forgotten_after_the_grace",),
    ),
)

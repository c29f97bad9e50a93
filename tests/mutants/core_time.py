"""Mutants of time: who is late, what fires when and in which order, how far time has come, identities."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_RUNNER: Final = "shared/millrace/host/runner.py"
_MEMORY: Final = "shared/millrace/host/memory.py"
_TESTS: Final = "tests/unit/millrace"
_WAITING: Final = (
    f"{_TESTS}/test_process.py"
    "::test_rows_that_wait_are_handled_in_order_of_time_when_the_watermark_comes_to_them"
)
_AHEAD: Final = f"{_TESTS}/host/test_runner_ahead.py::test_a_batch_ends_at_the_watermark_that_it_brings"

MUTANTS: Final = (
    Mutant(
        "time: an event at the watermark is on time",
        _RUNNER,
        "            late = row.event_time <= watermark and not on_time\n",
        "            late = row.event_time < watermark and not on_time\n",
        "who is late, in arrival order",
        (f"{_TESTS}/test_process.py::test_an_event_at_the_watermark_is_late_and_one_after_it_is_not",),
    ),
    Mutant(
        "time: an event at the watermark waits for it",
        _RUNNER,
        "            elif row.event_time > watermark:\n",
        "            elif row.event_time >= watermark:\n",
        "who is late, in order of event time",
        (f"{_TESTS}/test_process.py::test_a_row_at_the_watermark_is_late_and_one_after_it_waits",),
    ),
    Mutant(
        "time: a row that waits for exactly the watermark is lost",
        _RUNNER,
        "        passed = [p for p in waiting if p.event_time <= watermark]\n",
        "        passed = [p for p in waiting if p.event_time < watermark]\n",
        "what waits is handled when the watermark reaches it",
        (_WAITING,),
    ),
    Mutant(
        "time: rows that waited run before those of this batch whatever their time",
        _RUNNER,
        "            ready = in_order(ready)\n",
        "            ready = ready[::-1]\n",
        "events are handled in order of event time",
        (_WAITING,),
    ),
    Mutant(
        "time: a row of another process is judged again",
        _RUNNER,
        "            late = row.event_time <= watermark and not on_time\n",
        "            late = row.event_time <= watermark\n",
        "who is late is judged once, where the event came in",
        (
            f"{_TESTS}/windows/test_chains.py"
            "::test_windows_over_results_of_windows_take_none_of_them_for_late",
            _AHEAD,
        ),
    ),
    Mutant(
        "time: timers of one instant fire as they were set",
        "shared/millrace/process.py",
        "(timer.at, timer.name) < (at, best.name)",
        "timer.at < at",
        "timers fire by time, then by name",
        (f"{_TESTS}/test_process.py::test_timers_fire_in_order_of_time_then_name",),
    ),
    Mutant(
        "time: a timer of an instant goes before that instant's events",
        _RUNNER,
        "                self._fire(guard, row.event_time - 1)\n",
        "                self._fire(guard, row.event_time)\n",
        "a timer stands for all of its instant having been seen",
        (
            f"{_TESTS}/test_process.py"
            "::test_a_timer_of_an_instant_goes_after_its_events_also_where_an_earlier_one_goes_before",
        ),
    ),
    Mutant(
        "time: an event fires a key's timer of its own instant",
        _RUNNER,
        "if t.on_key_time and t.at < event_time]",
        "if t.on_key_time and t.at <= event_time]",
        "timers on the key's own time fire strictly before its event",
        (
            f"{_TESTS}/test_process.py"
            "::test_a_key_time_timer_that_an_event_passes_takes_none_of_the_events_own_instant_along",
        ),
    ),
    Mutant(
        "time: an event fires timers that are not on its key's time",
        _RUNNER,
        "if t.on_key_time and t.at < event_time]",
        "if t.at < event_time]",
        "only timers on the key's own time are fired by events",
        (f"{_TESTS}/test_process.py::test_only_key_time_timers_are_fired_by_events",),
    ),
    Mutant(
        "time: a timer that fails stays",
        _RUNNER,
        "            self._remove(timer, domain)\n            guard.renew(",
        "            guard.renew(",
        "a failed timer does not fire again",
        (f"{_TESTS}/host/test_runner.py::test_a_timer_that_raises_is_taken_back_and_does_not_fire_again",),
        hangs=True,
        limit_s=15.0,
    ),
    Mutant(
        "time: timers that were due do not go before a batch's events",
        _RUNNER,
        "        if cursor.soonest <= watermark and from_source:\n            self._fire(guard, watermark)\n",
        "",
        "timers that the watermark has passed fire before the next events",
        (f"{_TESTS}/test_process.py::test_timers_that_the_watermark_passed_fire_before_the_next_events",),
    ),
    Mutant(
        "time: the watermark goes back",
        _MEMORY,
        "        self.watermark = max(self.watermark, to)\n",
        "        self.watermark = to\n",
        "the watermark never goes back",
        (f"{_TESTS}/test_process.py::test_the_watermark_never_goes_back",),
    ),
    Mutant(
        "time: the watermark comes as far as the newest event less the bound",
        _MEMORY,
        "            return self.take() + self.advance_watermark(newest - self._bound - 1)\n",
        "            return self.take() + self.advance_watermark(newest - self._bound)\n",
        "events of the newest instant may still come",
        (
            f"{_TESTS}/test_process.py"
            "::test_the_watermark_stays_behind_the_newest_event_by_the_bound_and_a_millisecond",
        ),
    ),
    Mutant(
        "time: packing tells a watermark of one millisecond too much",
        "shared/millrace/host/packing.py",
        "            told = encode_ahead(last - self.bound_ms - 1)\n",
        "            told = encode_ahead(last - self.bound_ms)\n",
        "the watermark that a batch brings",
        (f"{_TESTS}/host/test_packing.py::test_every_group_is_told_the_watermark_that_a_tasks_rows_bring",),
    ),
    Mutant(
        "time: an event from the future moves the watermark",
        "shared/millrace/host/packing.py",
        "(t for t, k in zip(times, kinds, strict=True) if k == DATA)",
        "(t for t, k in zip(times, kinds, strict=True) if k != CONTROL)",
        "one fast clock does not make the others late",
        (
            f"{_TESTS}/host/test_packing.py"
            "::test_the_newest_of_a_groups_events_moves_no_watermark_if_it_is_far_ahead_of_its_arrival",
        ),
    ),
    Mutant(
        "time: rows are judged by the watermark that their own batch ends with",
        _RUNNER,
        "            self._run_arriving(guard, rows, watermark, tick)\n        self._is_ahead = True\n",
        "            self._run_arriving(guard, rows, ahead, tick)\n        self._is_ahead = True\n",
        "a batch's rows are judged by the watermark that it began with",
        (_AHEAD,),
    ),
    Mutant(
        "time: what follows of the end of a batch is taken as of its beginning",
        _RUNNER,
        "            after = [row for row in rows if row.is_ahead]\n"
        "            rows = [row for row in rows if not row.is_ahead]\n",
        "            after = []\n",
        "a chain takes what came of a batch's end in its own second run",
        (_AHEAD,),
    ),
    Mutant(
        "time: a bounded input runs one millisecond ahead",
        _RUNNER,
        "        behind = 0 if self._waits else bound_ms + 1\n",
        "        behind = 0 if self._waits else bound_ms\n",
        "a bounded run gives what the stream gives",
        (
            f"{_TESTS}/operators/test_processes.py::test_a_bounded_run_gives_what_the_stream_gives",
            f"{_TESTS}/testing/test_properties.py",
        ),
    ),
    Mutant(
        "time: a silence is over as soon as it begins",
        "shared/millrace/runtime/clocks.py",
        "        if progress.behind or now_ms - self._since_ms < self._idle_after_ms:\n",
        "        if progress.behind:\n",
        "event time goes on by itself only after a silence",
        (f"{_TESTS}/runtime/test_clocks.py::test_event_time_goes_on_by_as_much_as_the_silence_lasts",),
    ),
    Mutant(
        "time: event time goes on while events wait to be read",
        "shared/millrace/runtime/clocks.py",
        "        if progress.behind or now_ms - self._since_ms < self._idle_after_ms:\n",
        "        if now_ms - self._since_ms < self._idle_after_ms:\n",
        "what waits to be read is not made late",
        (
            f"{_TESTS}/runtime/test_clocks.py::test_nothing_is_said_before_the_first_event_nor_while_events_wait",
        ),
    ),
    Mutant(
        "identity: two dead letters of an event are one",
        _RUNNER,
        'make_event_id(self._name, key or "", root, "dead_letters", index)',
        'make_event_id(self._name, key or "", root, "dead_letters", 0)',
        "dead letters have identities of their own",
        (f"{_TESTS}/host/test_runner.py::test_two_dead_letters_of_one_event_have_different_identities",),
    ),
    Mutant(
        "identity: a failed timer's dead letter has none",
        _RUNNER,
        "        root = cause or timer_cause\n",
        "        root = cause\n",
        "dead letters of timers are told apart, and written once",
        (f"{_TESTS}/host/test_runner.py::test_a_failed_timers_dead_letter_has_an_identity",),
    ),
    Mutant(
        "identity: timers of one name and time are one",
        _RUNNER,
        '    return f"{clock}:{timer.name}:{timer.at}:{timer.origin:x}"\n',
        '    return f"{clock}:{timer.name}:{timer.at}"\n',
        "a timer's outputs are told apart by what set it",
        (
            f"{_TESTS}/host/test_runner.py"
            "::test_timers_of_one_name_and_time_set_by_different_events_have_different_identities",
        ),
    ),
    Mutant(
        "identity: records are numbered through the batch",
        _RUNNER,
        "        self._main = 0\n        if self._index:\n",
        "        if self._index:\n",
        "identities do not depend on the cut",
        (f"{_TESTS}/host/test_runner.py::test_identities_do_not_depend_on_the_cut",),
    ),
    Mutant(
        "identity: a refinement has the identity of what it refines",
        "shared/millrace/host/rows.py",
        "    if revision:\n        text = ",
        "    if revision < 0:\n        text = ",
        "each result of a window is kept",
        (f"{_TESTS}/host/test_runner.py::test_an_identity_depends_on_the_revision",),
    ),
    Mutant(
        "order: of equal events that with the lesser text of its position goes first",
        "shared/millrace/host/rows.py",
        '    return topic or "", partition or 0, offset or 0, cause or ""\n',
        '    return topic or "", 0, 0, cause or ""\n',
        "a repeat goes after what it repeats, however batches are cut",
        (
            f"{_TESTS}/host/test_runner.py::test_of_two_equal_events_in_one_batch_the_one_that_came_first_is_taken_first",
        ),
    ),
    Mutant(
        "batch: keys with timers are handled together too",
        "shared/millrace/host/together.py",
        "        alone = opened.touched or opened.entry.timers_\n",
        "        alone = False\n",
        "process_batch gives what its events give one by one",
        (
            f"{_TESTS}/test_process_batch.py"
            "::test_a_key_whose_timer_its_own_events_may_fire_is_not_handled_together",
        ),
    ),
)

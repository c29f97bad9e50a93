"""Mutants of time: who is late, what fires when and in which order, how far time has come, identities."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_RUNNER: Final = "shared/millrace/host/runner.py"
_KEY_RUNNER: Final = "shared/millrace/host/key_runner.py"
_TIMERS: Final = "shared/millrace/host/timer_service.py"
_CALLBACKS: Final = "shared/millrace/host/callbacks.py"
_COLLECTOR: Final = "shared/millrace/host/collector.py"
_BROADCAST: Final = "shared/millrace/state/broadcast.py"
_CONTROLS: Final = "shared/millrace/host/controls.py"
_MEMORY: Final = "shared/millrace/host/memory.py"
_PACKING: Final = "shared/millrace/host/packing.py"
_CLOCKS: Final = "shared/millrace/runtime/clocks.py"
_CLOCK_FILES: Final = "shared/millrace/runtime/clock_files.py"
_TOGETHER: Final = "shared/millrace/host/batch_call.py"
_TESTS: Final = "tests/unit/millrace"
_WAITING: Final = (
    f"{_TESTS}/test_process.py"
    "::test_rows_that_wait_are_handled_in_order_of_time_when_the_watermark_comes_to_them"
)
_IDENTITIES: Final = f"{_TESTS}/test_identities.py"
_CHAINS: Final = f"{_TESTS}/windows/test_chains.py"
_END: Final = f"{_TESTS}/test_end_of_input.py"
_KEYS: Final = f"{_TESTS}/host/test_key_clock.py"
_CONTROL: Final = f"{_TESTS}/host/test_control_time.py"
_CLOCK: Final = "shared/millrace/time/clock.py"
_AHEAD: Final = f"{_TESTS}/host/test_runner_ahead.py::test_a_batch_ends_at_the_watermark_that_it_brings"

MUTANTS: Final = (
    Mutant(
        "time: events of a key are taken together over a timer between them",
        _KEY_RUNNER,
        "                raise _TimerBetween\n",
        "                pass\n",
        "process_key gives what process gives",
        (f"{_TESTS}/test_process_key.py::test_events_of_a_key_together_give_what_they_give_one_by_one",),
    ),
    Mutant(
        "time: process_key begins where another key stood",
        _KEY_RUNNER,
        "        self._stand_at(rows[0], rows[0].on_time is not False)\n",
        "",
        "process_key gives what process gives",
        (f"{_TESTS}/test_process_key.py::test_events_of_a_key_together_give_what_they_give_one_by_one",),
    ),
    Mutant(
        "time: process_key goes over the end of a life",
        _KEY_RUNNER,
        "                oldest < newest\n",
        "                oldest > newest\n",
        "process_key gives what process gives",
        (f"{_TESTS}/test_process_key.py::test_events_of_a_key_together_give_what_they_give_one_by_one",),
    ),
    Mutant(
        "time: a timer that process_batch sets and that is due is not fired",
        _RUNNER,
        "                soon.append(together.keys[together.key_of[row]])\n",
        "                pass\n",
        "process_batch gives what process gives",
        (f"{_TESTS}/host/test_runner_together.py",),
    ),
    Mutant(
        "time: a timer of process_batch that is due at once fires later",
        _RUNNER,
        "                raise _TimerInBatch\n",
        "                pass\n",
        "process_batch gives what process gives",
        (f"{_TESTS}/test_process_batch.py::test_timers_of_a_batch_are_those_of_its_events",),
    ),
    Mutant(
        "time: an event at the watermark is on time",
        _KEY_RUNNER,
        "            late = row.event_time <= watermark and not on_time\n",
        "            late = row.event_time < watermark and not on_time\n",
        "who is late, in arrival order",
        (f"{_TESTS}/test_process.py::test_an_event_at_the_watermark_is_late_and_one_after_it_is_not",),
    ),
    Mutant(
        "time: an event at the watermark waits for it",
        _KEY_RUNNER,
        "            elif row.event_time > watermark:\n",
        "            elif row.event_time >= watermark:\n",
        "who is late, in order of event time",
        (f"{_TESTS}/test_process.py::test_a_row_at_the_watermark_is_late_and_one_after_it_waits",),
    ),
    Mutant(
        "time: a row that waits for exactly the watermark is lost",
        _KEY_RUNNER,
        "        passed = [p for p in waiting if p.event_time <= watermark]\n",
        "        passed = [p for p in waiting if p.event_time < watermark]\n",
        "what waits is handled when the watermark reaches it",
        (_WAITING,),
    ),
    Mutant(
        "time: rows that waited run before those of this batch whatever their time",
        _KEY_RUNNER,
        "            ready = in_order(ready)\n",
        "            ready = ready[::-1]\n",
        "events are handled in order of event time",
        (_WAITING,),
    ),
    Mutant(
        "time: a row of another process is judged again",
        _KEY_RUNNER,
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
        _TIMERS,
        "        cursor, until = self._cursor, min(until, before - 1)\n",
        "        cursor, until = self._cursor, min(until, before)\n",
        "a timer stands for all of its instant having been seen",
        (
            f"{_TESTS}/test_process.py"
            "::test_a_timer_of_an_instant_goes_after_its_events_also_where_an_earlier_one_goes_before",
        ),
    ),
    Mutant(
        "time: an event fires a key's timer of its own instant",
        _TIMERS,
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
        _TIMERS,
        "if t.on_key_time and t.at < event_time]",
        "if t.at < event_time]",
        "only timers on the key's own time are fired by events",
        (f"{_TESTS}/test_process.py::test_only_key_time_timers_are_fired_by_events",),
    ),
    Mutant(
        "time: a timer that fails stays",
        _CALLBACKS,
        "            self._remove(timer, domain)\n            rollback.renew(",
        "            rollback.renew(",
        "a failed timer does not fire again",
        (f"{_TESTS}/host/test_runner.py::test_a_timer_that_raises_is_taken_back_and_does_not_fire_again",),
        hangs=True,
        limit_s=15.0,
    ),
    Mutant(
        "time: timers that were due do not go before a batch's events",
        _KEY_RUNNER,
        "        if cursor.soonest <= due and from_source:\n            self._fire(rollback, watermark)\n",
        "",
        "timers that the watermark has passed fire before the next events",
        (f"{_TESTS}/test_process.py::test_timers_that_the_watermark_passed_fire_before_the_next_events",),
    ),
    Mutant(
        "time: the watermark goes back",
        _MEMORY,
        "        before, self.watermark = self.watermark, max(self.watermark, to)\n",
        "        before, self.watermark = self.watermark, to\n",
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
        "time: an event from the future moves the watermark",
        _PACKING,
        "            valid &= of_kind == DATA\n",
        "            valid &= np.array(kinds) != CONTROL\n",
        "one fast clock does not make the others late",
        (
            f"{_TESTS}/host/test_packing.py"
            "::test_an_event_too_far_ahead_moves_no_time_and_one_within_is_taken_for_its_arrival",
        ),
    ),
    Mutant(
        "time: an event is believed whenever it comes",
        _PACKING,
        "        if arrived is not None and self._skew_ms is not None:\n",
        "        if arrived is not None and self._skew_ms is None:\n",
        "one fast clock does not make the others late",
        (f"{_TESTS}/host/test_packing.py::test_how_far_a_fast_clock_may_take_time_with_it",),
    ),
    Mutant(
        "time: what cannot be read is not told",
        _PACKING,
        "            bool(of_clocks.any()),\n",
        "            bool(valid[rows].any()),\n",
        "a partition of which nothing can be read holds time back",
        (
            f"{_TESTS}/host/test_packing.py"
            "::test_a_source_of_which_nothing_can_be_read_has_no_time_and_holds_back_all_the_same",
        ),
    ),
    Mutant(
        "time: only groups with rows are told what was read",
        _PACKING,
        "            chunks += [(label, told) for label in self.labels if label not in tells]\n",
        "            chunks += [(label, told) for label in others if label not in self.labels]\n",
        "every key group has the same clock",
        (
            f"{_TESTS}/host/test_packing.py"
            "::test_every_group_is_told_what_a_task_has_read_with_its_rows_or_without",
        ),
    ),
    Mutant(
        "time: of a source only the last rows of a task are told",
        _PACKING,
        "report if before is None else merged(before, report)",
        "report if before is None else report",
        "whether a batch was full is judged by all that a task has read",
        (
            f"{_TESTS}/host/test_packing.py"
            "::test_sources_in_one_arrow_batch_and_in_several_are_told_apart_and_together",
        ),
    ),
    Mutant(
        "time: a batch that was planned runs again under other settings",
        _CLOCK_FILES,
        "Epoch(planned + 1, settings)",
        "Epoch(planned, settings)",
        "a batch that runs again is the same",
        (
            f"{_TESTS}/runtime/test_clock_files.py"
            "::test_a_batch_that_was_planned_runs_again_under_what_it_was_planned_under",
        ),
    ),
    Mutant(
        "time: settings under which nothing was planned are kept",
        _CLOCK_FILES,
        "if epoch.first_batch <= planned]\n",
        "if epoch.first_batch <= planned + 1]\n",
        "a batch runs under the settings that held when it was planned",
        (f"{_TESTS}/runtime/test_clock_files.py::test_settings_under_which_nothing_was_planned_go",),
    ),
    Mutant(
        "time: rows are judged by the watermark that their own batch ends with",
        _KEY_RUNNER,
        "            self._run_arriving(rollback, rows, watermark, False)\n        self._stream_now =",
        "            self._run_arriving(rollback, rows, ahead, False)\n        self._stream_now =",
        "a batch's rows are judged by the watermark that it began with",
        (_AHEAD,),
    ),
    Mutant(
        "time: what follows of the end of a batch is taken as of its beginning",
        _KEY_RUNNER,
        "            after = [row for row in rows if row.is_ahead]\n"
        "            rows = [row for row in rows if not row.is_ahead]\n",
        "            after = []\n",
        "a chain takes what came of a batch's end in its own second run",
        (_AHEAD,),
    ),
    Mutant(
        "time: a bounded input runs one millisecond ahead",
        _KEY_RUNNER,
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
        _CLOCKS,
        "        if progress.behind or silent_ms < self._idle_after_ms:\n",
        "        if progress.behind:\n",
        "event time goes on by itself only after a silence",
        (f"{_TESTS}/runtime/test_clocks.py::test_event_time_goes_on_by_as_much_as_the_silence_lasts",),
    ),
    Mutant(
        "time: event time goes on while events wait to be read",
        _CLOCKS,
        "        if progress.behind or silent_ms < self._idle_after_ms:\n",
        "        if silent_ms < self._idle_after_ms:\n",
        "what waits to be read is not made late",
        (
            f"{_TESTS}/runtime/test_clocks.py::test_nothing_is_said_before_the_first_event_nor_while_events_wait",
        ),
    ),
    Mutant(
        "time: an idle tick does not say what had arrived",
        _CLOCKS,
        "        return Idle(status.furthest + silent_ms, self._topics, status.arrival)\n",
        "        return Idle(status.furthest + silent_ms, self._topics)\n",
        "a reader that is not so far yet is not meant",
        (f"{_TESTS}/runtime/test_clocks.py::test_event_time_goes_on_by_as_much_as_the_silence_lasts",),
    ),
    Mutant(
        "time: a ticker waits for a batch to tell it of the clock",
        _CLOCKS,
        "        if self._silence is not None:\n            self._send(Wake())",
        "        if self._silence is None:\n            self._send(Wake())",
        "a restart into silence goes on",
        (
            f"{_TESTS}/runtime/test_clocks.py"
            "::test_a_ticker_first_asks_for_a_batch_that_says_how_far_the_clock_is",
        ),
    ),
    Mutant(
        "identity: two dead letters of an event are one",
        _COLLECTOR,
        'make_event_id(self._stored, key or "", root, "dead_letters", index)',
        'make_event_id(self._stored, key or "", root, "dead_letters", 0)',
        "dead letters have identities of their own",
        (f"{_TESTS}/host/test_runner.py::test_two_dead_letters_of_one_event_have_different_identities",),
    ),
    Mutant(
        "identity: a failed timer's dead letter has none",
        _COLLECTOR,
        "        root = cause or timer_cause\n",
        "        root = cause\n",
        "dead letters of timers are told apart, and written once",
        (f"{_TESTS}/host/test_runner.py::test_a_failed_timers_dead_letter_has_an_identity",),
    ),
    Mutant(
        "identity: timers of one name and time are one",
        _CALLBACKS,
        '    return f"\\x1e{_CLOCKS[domain]}:{timer.at}:{timer.again:x}:{timer.name}"\n',
        '    return f"\\x1e{_CLOCKS[domain]}:{timer.at}:{timer.name}"\n',
        "outputs of timers that fire again at one time are told apart",
        (
            f"{_TESTS}/host/test_runner.py"
            "::test_timers_of_one_name_and_time_set_by_different_events_have_different_identities",
        ),
    ),
    Mutant(
        "identity: a timer that fires again at one time is the one before",
        _CALLBACKS,
        "        if self._cause is None:\n            return _UNKNOWN\n",
        "        if self._cause is not None:\n            return 0\n",
        "no two records of a key have one identity",
        (f"{_IDENTITIES}::test_no_two_records_have_one_identity",),
    ),
    Mutant(
        "identity: a timer for later hangs on what set it",
        _CALLBACKS,
        "            and when >= row.event_time\n",
        "            and when > row.event_time + 1_000\n",
        "a timer is its name and time, and keeps no more",
        (f"{_IDENTITIES}::test_a_timer_for_later_keeps_nothing_of_what_set_it",),
    ),
    Mutant(
        "identity: what a record is does not stand in place of its cause",
        _COLLECTOR,
        '            cause = f"\\x1eis:{identity}" if self._identify else None\n',
        '            cause = f"{cause}is:{identity}" if self._identify else None\n',
        "identities of results that are something by themselves hang on nothing else",
        (f"{_IDENTITIES}::test_what_a_record_is_stands_in_place_of_its_cause",),
    ),
    Mutant(
        "identity: records of a changelog that take back are those that they take back",
        "shared/millrace/windows/emission.py",
        'identity=f"{start}:{cell.end}:{change}")',
        'identity=f"{start}:{cell.end}")',
        "no two records of a key have one identity",
        (f"{_IDENTITIES}::test_no_two_records_have_one_identity",),
    ),
    Mutant(
        "ticks: their records have the time that event time has come to",
        _CALLBACKS,
        "        return min(ahead + 1, END_OF_TIME) if ahead",
        "        return min(ahead, END_OF_TIME) if ahead",
        "what a tick brings is not behind the next process of a chain",
        (f"{_CHAINS}::test_windows_over_what_ticks_bring_close_once",),
    ),
    Mutant(
        "ticks: an early result by the wall has the present time",
        "shared/millrace/windows/emission.py",
        "                        ctx.event_time = cell.end - self.closing_ms\n",
        "                        pass\n",
        "an early result has the time of its window",
        (f"{_CHAINS}::test_an_early_result_by_the_clock_on_the_wall_has_the_time_of_its_window",),
    ),
    Mutant(
        "ticks: timers of a tick fire before those that its batch passes",
        _KEY_RUNNER,
        "            self._run_arriving(rollback, rows, watermark, False)\n        self._stream_now =",
        "            self._run_arriving(rollback, rows, watermark, tick)\n        self._stream_now =",
        "what a tick brings comes after all that its batch passes",
        (f"{_CHAINS}::test_what_a_tick_brings_comes_after_what_its_batch_passes",),
    ),
    Mutant(
        "end: timers that timers set fire up to the latest pending one only",
        _TIMERS,
        "        return min(max(latest, self.process.last_due(latest)), END_OF_TIME)\n",
        "        return latest\n",
        "a process says up to when its timers fire at the end of the input",
        (f"{_END}::test_one_timer_that_goes_from_window_to_window_closes_all_of_them_at_the_end",),
    ),
    Mutant(
        "end: only what was pending fires",
        _TIMERS,
        "        latest: int = max(pending)\n",
        "        latest: int = min(pending)\n",
        "all timers that are pending at the end of the input fire",
        (f"{_END}::test_the_end_is_as_if_the_watermark_went_to_the_latest_pending_timer",),
    ),
    Mutant(
        "end: what does not fire is not counted",
        _TIMERS,
        "                self.unfired[timer.name] += 1\n",
        "",
        "timers beyond the end of the input are counted and told",
        (f"{_END}::test_a_timer_that_sets_itself_ends_with_the_input",),
    ),
    Mutant(
        "timers: one that is brought forward stays where it is",
        "shared/millrace/process.py",
        "        if pending is None or when < pending:\n            self.at(",
        "        if pending is None:\n            self.at(",
        "a timer for several things is never later than the first of them",
        (f"{_TESTS}/test_process.py::test_a_timer_that_is_brought_forward_stands_at_the_earliest",),
    ),
    Mutant(
        "identity: records are numbered through the batch",
        _CALLBACKS,
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
        "batch: keys whose own events fire their timers are handled together too",
        _TOGETHER,
        "        if fires or ends:\n",
        "        if ends:\n",
        "process_batch gives what its events give one by one",
        (
            f"{_TESTS}/test_process_batch.py"
            "::test_a_key_whose_timer_its_own_events_may_fire_is_not_handled_together",
        ),
    ),
    Mutant(
        "batch: keys with timers that are due are handled together",
        _TOGETHER,
        "        if key in due or not _on_time(ordered, watermark):\n",
        "        if not _on_time(ordered, watermark):\n",
        "rows and timers of a key go in one order, with process_batch too",
        (f"{_TESTS}/host/test_runner_together.py",),
    ),
    Mutant(
        "batch: what expires between two rows of a key is read as before the first",
        _TOGETHER,
        "        if expiry > last:\n",
        "        if expiry > first:\n",
        "process_batch reads what process reads",
        (f"{_TESTS}/host/test_runner_together.py",),
    ),
    Mutant(
        "batch: what the first row writes never expires before the last",
        _TOGETHER,
        "        if last - first >= self._shortest:\n",
        "        if last - first > self._shortest:\n",
        "process_batch reads what process reads",
        (f"{_TESTS}/host/test_runner_together.py",),
    ),
    Mutant(
        "keys: a key's clock goes back with an older event",
        _KEY_RUNNER,
        "            clock = max(clock, less(min(newest, time.reach), time.bound_ms + 1))\n",
        "            clock = less(min(came, time.reach), time.bound_ms + 1)\n",
        "a key's clock never goes back",
        (_KEYS,),
    ),
    Mutant(
        "keys: a backlog does not hold a key's clock",
        _KEY_RUNNER,
        "            clock = max(clock, less(min(newest, time.reach), time.bound_ms + 1))\n",
        "            clock = max(clock, less(newest, time.bound_ms + 1))\n",
        "what holds the stream back holds the keys",
        (_KEYS,),
    ),
    Mutant(
        "keys: the stream's clock is waited for without end",
        _KEY_RUNNER,
        "        return before, max(clock, self._ahead_of_all), (clock, newest)\n",
        "        return before, clock, (clock, newest)\n",
        "what a silent key has sent comes when the patience is over",
        (_KEYS,),
    ),
    Mutant(
        "keys: a clock is forgotten though the key would be judged otherwise without it",
        _KEY_RUNNER,
        "        if until <= self._ahead_of_all:\n",
        "        if clock <= self._ahead_of_all:\n",
        "a key's clock is kept as long as it says something",
        (_KEYS,),
    ),
    Mutant(
        "keys: timers on the stream's clock wait for the key's",
        _TIMERS,
        "            of_stream = last if until >= END_OF_TIME else min(self._stream_now, before - 1)\n",
        "            of_stream = last\n",
        "timers on the stream's clock do not wait for a silent key",
        (_KEYS,),
    ),
    Mutant(
        "keys: a timer on the stream's clock that fires again has the identity of the first",
        _CALLBACKS,
        '        elif domain == "stream_time":\n            pass\n',
        '        elif domain == "stream_time":\n            return 0\n',
        "two results have two identities",
        (_KEYS,),
    ),
    Mutant(
        "keys: what is behind a process with patience does not wait for it",
        _MEMORY,
        "        self.lag_ms = self.runner.layout.lag_ms = before.lag_ms\n",
        "        self.lag_ms = self.runner.layout.lag_ms = 0\n",
        "order behind clocks of keys costs their patience",
        (_KEYS,),
    ),
    Mutant(
        "control: an event of the very time of a change does not find it",
        _CONTROLS,
        "        place = bisect_right(self.waiting, event_time, key=_time)\n",
        "        place = bisect_right(self.waiting, event_time - 1, key=_time)\n",
        "an event finds what holds at its time",
        (_CONTROL,),
    ),
    Mutant(
        "control: a change takes effect with the batch that brings it",
        _CONTROLS,
        "            if self._waits and row.event_time > watermark:",
        "            if False and row.event_time > watermark:",
        "an event finds what held at its time",
        (_CONTROL,),
    ),
    Mutant(
        "control: changes that wait are forgotten when another has come to its time",
        _CONTROLS,
        "base, self.waiting[count:], self._now.versions[count:])\n",
        "base, [], [])\n",
        "changes wait for their time",
        (_CONTROL,),
    ),
    Mutant(
        "control: a backlog of changes does not hold time back",
        _CLOCK,
        "        elif r.control is not None:\n",
        "        elif r.newest is not None:\n",
        "changes hold time back while a backlog is read",
        (f"{_TESTS}/time/test_clock.py",),
    ),
    Mutant(
        "control: what a change writes in place shows in the versions before it",
        _BROADCAST,
        "            self._touch(key)\n            self.update(self._copy({key: self[key]}))\n",
        "            self._touch(key)\n",
        "versions do not change any more",
        (_CONTROL,),
    ),
    Mutant(
        "control: versions are those of other changes",
        _CONTROLS,
        "before.versions[: _alike(before.waiting, waiting)]",
        "before.versions[: len(before.versions)]",
        "a change that comes between others is in its place",
        (_CONTROL,),
    ),
    Mutant(
        "control: a change that waits sees the watermark of the batch that asks",
        _CONTROLS,
        "less(row.event_time, 1)",
        "self._ctx.watermark",
        "what a change does hangs on no cut",
        (_CONTROL,),
    ),
    Mutant(
        "control: groups that share a worker count what is late once each",
        _CONTROLS,
        "            if report and self._waits and row.event_time != NO_WATERMARK:\n",
        "            if self._waits and row.event_time != NO_WATERMARK:\n",
        "one of them speaks",
        (_CONTROL,),
    ),
    Mutant(
        "keys: a host that waits longer after a restart goes back",
        _MEMORY,
        "        return max(self._floor, less(watermark, self.lag_ms))\n",
        "        return less(watermark, self.lag_ms)\n",
        "time never goes back",
        (_KEYS,),
    ),
    Mutant(
        "timers: one that several set is what the first of them says",
        "shared/millrace/process.py",
        "min(timer.again, again, key=abs)",
        "timer.again",
        "identities hang on no cut",
        (_KEYS,),
    ),
    Mutant(
        "time: of a batch that is all of one input the first event's time is checked for all",
        "shared/millrace/host/key_times.py",
        "FIRST_MS <= min(times) <= max(times) <= LAST_MS\n",
        "FIRST_MS <= times[0] <= LAST_MS\n",
        "an event of no possible time has none",
        (f"{_TESTS}/host/test_packing.py",),
    ),
    Mutant(
        "time: a batch is read as of the input of its first row",
        "shared/millrace/host/key_times.py",
        " and inputs.count(first) == len(inputs):",
        ":",
        "each input has its own key and time",
        (f"{_TESTS}/host/test_packing.py",),
    ),
)

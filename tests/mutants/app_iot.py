"""Mutants of the iot app: alarms, silence, sensors that lie, the join, and the checks of its demo."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_APP: Final = "apps/iot_maintenance"
_TESTS: Final = "tests/unit/apps/iot_maintenance"
_ALARMS: Final = f"{_TESTS}/test_alarms.py"
#: The checks of the demo over the monitor in memory.
_CHECKS: Final = f"{_TESTS}/test_demo.py::test_every_check_of_the_demo_holds"
_CHECKS_FAIL: Final = f"{_TESTS}/test_demo.py::test_a_check_of_the_demo_fails_where_its_feature_is_broken"
_WINDOWS: Final = (
    f"{_TESTS}/test_windows.py::test_after_every_batch_the_tables_are_what_a_look_at_all_that_came_gives"
)
_SHIFT: Final = (
    f"{_TESTS}/test_behind.py"
    "::test_a_machine_that_is_behind_is_told_by_the_streams_end_of_shift_and_once_more_by_its_own"
)

_AHEAD: Final = f"{_APP}/foresight"
_FORESEEN: Final = f"{_TESTS}/test_foresight.py"
_REMAINING: Final = f"{_TESTS}/test_remaining_life.py"
_EVALUATED: Final = f"{_TESTS}/test_evaluate_foresight.py"

MUTANTS: Final = (
    Mutant(
        "iot: the end of an alarm is lost",
        f"{_APP}/alarms/engine.py",
        '            self._tell(name, condition, rule, "inactive")\n',
        "",
        "an alarm's history is whole",
        (f"{_ALARMS}::test_the_sequence_of_opc_ua_part_9_b_1_2",),
    ),
    Mutant(
        "iot: a more severe level is not told",
        f"{_APP}/alarms/engine.py",
        '            self._tell(name, condition, rule, "raised" if level > was else "lowered")\n',
        "",
        "an alarm's history is whole",
        (_ALARMS,),
    ),
    Mutant(
        "iot: an alarm has no dead-band",
        f"{_APP}/alarms/condition.py",
        "                holds = state.raw = level.holds(facts, state.raw)\n",
        "                holds = state.raw = level.holds(facts, False)\n",
        "alarms do not chatter",
        (f"{_ALARMS}::test_a_dead_band_keeps_a_value_at_the_limit_from_chattering",),
    ),
    Mutant(
        "iot: alarms have no delay",
        f"{_APP}/alarms/condition.py",
        "                if at - state.since >= delay:\n",
        "                if at - state.since >= min(delay, 0):\n",
        "delays of alarms",
        (f"{_ALARMS}::test_an_on_delay_waits_without_a_further_reading_and_ends_with_the_condition",),
    ),
    Mutant(
        "iot: a repeated action has a second effect",
        f"{_APP}/alarms/engine.py",
        "        if action.action_id in alarms.acted:\n            return\n",
        "",
        "operators' actions count once",
        (f"{_ALARMS}::test_a_repeated_action_has_no_second_effect",),
    ),
    Mutant(
        "iot: machines that stand still raise alarms",
        f"{_APP}/alarms/engine.py",
        "        by_status = self.status in rule.suppress_in\n",
        "        by_status = False\n",
        "a stopped machine is no alarm",
        (f"{_ALARMS}::test_a_stopped_machine_is_not_an_alarm", _CHECKS),
    ),
    Mutant(
        "iot: a device is silent a millisecond late",
        f"{_APP}/liveness.py",
        "            if at - device.last < timeout:\n",
        "            if at - device.last <= timeout:\n",
        "when a device is silent",
        (f"{_TESTS}/test_liveness.py::test_a_device_is_silent_at_its_timeout_and_not_before",),
    ),
    Mutant(
        "iot: machines behind a dead gateway are silent by themselves",
        f"{_APP}/liveness.py",
        '"gateway" if overdue and device is not own else "own"',
        '"own" if overdue and device is not own else "own"',
        "a dead gateway is one alarm",
        (f"{_TESTS}/test_liveness.py::test_a_dead_gateway_is_one_alarm_and_not_one_for_every_machine",),
    ),
    Mutant(
        "iot: who is heard while all are silent is not watched",
        f"{_APP}/watch.py",
        "        if rows or pending is None or pending > deadline:\n",
        "        if rows or pending is None:\n",
        "every silence is told",
        (
            f"{_TESTS}/test_liveness.py"
            "::test_a_device_that_is_first_heard_while_all_others_are_silent_is_told_when_it_falls_silent_too",
        ),
    ),
    Mutant(
        "iot: silence is never told",
        f"{_APP}/watch.py",
        "        rows = gateway.silent(ctx.key, at, self._m.device_timeout_ms)\n",
        "        rows = gateway.silent(ctx.key, at, self._m.device_timeout_ms)[:0]\n",
        "silent devices are found",
        (_CHECKS,),
    ),
    Mutant(
        "iot: a stuck sensor is believed",
        f"{_APP}/quality.py",
        "        if same >= STUCK and learned:\n",
        "        if same >= 1_000 * STUCK and learned:\n",
        "stuck sensors are found",
        (f"{_TESTS}/test_sensors.py::test_the_same_value_again_and_again_is_a_stuck_sensor", _CHECKS),
    ),
    Mutant(
        "iot: a jump is believed at once",
        f"{_APP}/quality.py",
        "            if away > JUMP * usual:\n",
        "            if away > 1_000 * JUMP * usual:\n",
        "spikes are found",
        (f"{_TESTS}/test_sensors.py::test_a_spike_is_uncertain_and_told_when_it_is_over",),
    ),
    Mutant(
        "iot: sensors that lie raise no alarm",
        f"{_APP}/process.py",
        "            engine.fault(quantity, judged.fault, bad=wrong)\n",
        "            engine.fault(quantity, judged.fault, bad=False)\n",
        "alarms of a sensor's quality",
        (
            f"{_ALARMS}::test_what_a_sensor_gets_wrong_is_a_sensor_alarm_and_never_a_process_alarm",
            _CHECKS,
        ),
    ),
    Mutant(
        "iot: a status of this very instant does not hold yet",
        f"{_APP}/past.py",
        "        place = place_at(statuses, at)\n        since, status",
        "        place = place_at(statuses, at - 1)\n        since, status",
        "the status as of a reading",
        (
            f"{_TESTS}/test_join.py"
            "::test_a_status_of_the_very_instant_holds_for_the_reading_whatever_comes_first",
        ),
    ),
    Mutant(
        "iot: a late status corrects no row",
        f"{_APP}/process.py",
        "            if now != was:\n",
        "            if now != was and k.revision < 0:\n",
        "late facts correct what should have known them",
        (f"{_TESTS}/test_join.py::test_a_late_status_corrects_the_rows_of_its_time_and_no_others",),
    ),
    Mutant(
        "iot: late readings are lost",
        f"{_APP}/process.py",
        "            self._late_reading(event, ctx)\n",
        "            return\n",
        "late readings are joined",
        (_CHECKS,),
    ),
    Mutant(
        "iot: a reading that comes twice has two rows",
        f"{_APP}/process.py",
        "        elif sensor.at == at:\n",
        "        elif sensor.at == at < 0:\n",
        "repeats change nothing",
        (_CHECKS,),
    ),
    Mutant(
        "iot: a shift forgets that its status went on",
        f"{_APP}/process.py",
        "                shift.resume(at, start, end)\n",
        "                shift = machine.shift = ShiftState(start, end, event.status, at)\n",
        "KPIs per shift",
        (f"{_TESTS}/test_kpis.py",),
    ),
    # -- machines that are behind
    Mutant(
        "iot: a device is heard again before it was silent",
        f"{_APP}/liveness.py",
        "    device.told = max(at, device.told)\n",
        "    device.told = at\n",
        "rows of a device are in order",
        (f"{_TESTS}/test_behind.py::test_a_device_that_is_behind_is_not_heard_again_before_it_was_silent",),
    ),
    Mutant(
        "iot: an alarm ends before it begins",
        f"{_APP}/alarms/engine.py",
        "        if last is not None and last[0] >= at:\n",
        "        if last is not None and last[0] >= at + last[0]:\n",
        "rows of an alarm are in order",
        (f"{_TESTS}/test_behind.py::test_a_device_that_is_behind_is_not_heard_again_before_it_was_silent",),
    ),
    Mutant(
        "iot: an old reading ends no_data",
        f"{_APP}/alarms/condition.py",
        "                holds = state.holds and facts.at + level.no_data_ms <= facts.stream_ms\n",
        "                holds = False\n",
        "what is from the time of a silence does not end it",
        (f"{_TESTS}/test_behind.py::test_a_reading_from_the_time_of_a_silence_does_not_end_no_data",),
    ),
    Mutant(
        "iot: a shift waits for its machine",
        f"{_APP}/process.py",
        '            ctx.timers.at(shift.end, TELL_SHIFT, clock="stream")\n',
        '            ctx.timers.delete(TELL_SHIFT, clock="stream")\n',
        "shifts are told when the stream has passed their end",
        (_SHIFT,),
    ),
    Mutant(
        "iot: a shift is told again though nothing has changed",
        f"{_APP}/shifts.py",
        "        if digest == self.told:\n            return None\n",
        "",
        "a revision says something new",
        (f"{_TESTS}/test_behind.py::test_a_shift_of_a_machine_that_said_all_is_told_once",),
    ),
    Mutant(
        "iot: a window is not told anew",
        f"{_APP}/plant.py",
        "        if windows.is_late(at):\n",
        "        if windows.is_late(at) and not windows.standing:\n",
        "what comes behind is told by the next revision",
        (_WINDOWS,),
    ),
    Mutant(
        "iot: what stood at the end of a window is not looked at anew",
        f"{_APP}/windows.py",
        "                if start + size > at:\n                    count.changed = True\n",
        "                if start > at:\n                    count.changed = True\n",
        "what comes behind is told by the next revision",
        (_WINDOWS,),
    ),
    Mutant(
        "iot: an alarm that ended is forgotten while its windows are open",
        f"{_APP}/windows.py",
        "            self.ended = [one for one in self.ended if one.until - 1 > upto]\n",
        "            self.ended = [one for one in self.ended if one.until - WINDOW_MS > upto]\n",
        "standing and stale alarms of open windows",
        (_WINDOWS,),
    ),
    Mutant(
        "iot: a window that was told for good is told anew",
        f"{_APP}/windows.py",
        "            if start + size - 1 > closed:\n",
        "            if start + size - 1 > closed - size:\n",
        "what was told for good stays",
        (
            f"{_TESTS}/test_windows.py"
            "::test_a_window_that_was_told_for_good_is_not_told_anew_by_an_action_that_came_late",
        ),
    ),
    Mutant(
        "iot: health goes back in time",
        f"{_APP}/plant.py",
        "            asset.at = max(asset.at, event.event_time_ms)\n",
        "            asset.at = event.event_time_ms\n",
        "rows of an asset's health are in order",
        (_WINDOWS,),
    ),
    # -- the checks of the demo
    Mutant(
        "iot's checks: any share of what happened will do",
        f"{_APP}/demo.py",
        "        enough = sum(ok) >= min(least * len(ok), len(ok) - 1) and (any(ok) or not ok)\n",
        "        enough = sum(ok) >= 0\n",
        "the demo sees that faults and silences are missed",
        (_CHECKS_FAIL,),
    ),
    Mutant(
        "iot's checks: readings without a status will do",
        f"{_APP}/demo.py",
        "            unknown <= 0.01 * len(readings),\n",
        "            unknown <= 1.0 * len(readings),\n",
        "the demo sees that the join is empty",
        (_CHECKS_FAIL,),
    ),
    Mutant(
        "iot's checks: readings that stand twice are not seen",
        f"{_APP}/demo.py",
        "len(ids) - len(set(ids)), of",
        "len(set(ids)) - len(set(ids)), of",
        "the demo sees that a reading is there twice",
        (_CHECKS_FAIL,),
    ),
    Mutant(
        "iot's checks: noise is not looked for",
        f"{_APP}/quality.py",
        "            if size > LOUD * usual and _is_noise(loud):\n",
        "            if size > 1_000 * LOUD * usual and _is_noise(loud):\n",
        "loud sensors are found",
        (_CHECKS,),
    ),
    Mutant(
        "iot's checks: values out of the physical range are believed",
        f"{_APP}/quality.py",
        "(high is not None and value > high) or (low is not None and value < low):\n",
        "(high is not None and value > high and value < high):\n",
        "impossible values are bad",
        (_CHECKS,),
    ),
    Mutant(
        "iot: features of a step have what comes after it",
        f"{_AHEAD}/process.py",
        "            ctx.timers.at(life.due, STEP)\n",
        "            ctx.timers.at(life.due + 3 * every, STEP)\n",
        "features have nothing of the future",
        (f"{_FORESEEN}::test_streamed_features_are_those_of_pandas_over_the_whole_series",),
    ),
    Mutant(
        "iot: a fading mean forgets that it began",
        f"{_AHEAD}/condition.py",
        "    return (1.0 - (1.0 - alpha) ** steps) / alpha\n",
        "    return 1.0 / alpha\n",
        "features equal those over whole tables",
        (f"{_FORESEEN}::test_streamed_features_are_those_of_pandas_over_the_whole_series",),
    ),
    Mutant(
        "iot: what is kept of a machine grows with its points",
        f"{_AHEAD}/condition.py",
        "            if len(self.points) >= MOST_POINTS:\n                return\n",
        "",
        "state is bounded",
        (f"{_FORESEEN}::test_points_and_facts_beyond_the_bounds_are_left_out",),
    ),
    Mutant(
        "iot: forecasts that wait for the truth are kept for ever",
        f"{_AHEAD}/process.py",
        "            del awaited[:-_AWAITED]\n",
        "",
        "state is bounded",
        (f"{_FORESEEN}::test_a_machine_that_never_fails_keeps_a_few_forecasts",),
    ),
    Mutant(
        "iot: a repaired machine goes on with its old life",
        f"{_AHEAD}/process.py",
        "        life.begun, life.points, life.awaited = at, {}, []\n",
        "",
        "lives end with a failure",
        (f"{_FORESEEN}::test_a_new_life_begins_after_a_repair",),
    ),
    Mutant(
        "iot: intervals do not follow what came true",
        f"{_AHEAD}/distribution.py",
        "        self.below += rate * (miss / 2 - low)\n",
        "        self.below += 0 * rate * (miss / 2 - low)\n",
        "intervals hold under drift",
        (f"{_REMAINING}::test_an_interval_is_wider_after_lives_that_it_missed",),
    ),
    Mutant(
        "iot: intervals are those of all forecasts alike",
        f"{_AHEAD}/distribution.py",
        "_PARTS: Final = 12\n",
        "_PARTS: Final = 1\n",
        "intervals hold",
        (f"{_REMAINING}::test_intervals_are_narrow_where_forecasts_are_good",),
    ),
    Mutant(
        "iot: a plan does not know what too late costs",
        f"{_AHEAD}/lifetimes.py",
        "        return self.early / (self.early + self.late)\n",
        "        return 0.5\n",
        "plans cost the least",
        (f"{_REMAINING}::test_the_date_of_a_plan_costs_the_least",),
    ),
    Mutant(
        "iot: trees of a model are not checked",
        f"{_AHEAD}/trees.py",
        "                _check(tree.nodes, inputs)\n",
        "",
        "files of models do no harm",
        (f"{_REMAINING}::test_trees_that_lead_outside_of_themselves_are_refused",),
    ),
    Mutant(
        "iot: a machine is learned from and tested on",
        f"{_AHEAD}/training.py",
        "    return part[place]\n",
        "    return np.arange(len(place)) % min(folds, len(names))\n",
        "what is judged was not learned from",
        (f"{_REMAINING}::test_machines_are_held_out_whole",),
    ),
    Mutant(
        "iot cmapss: values are not scored by their regime",
        f"{_AHEAD}/baseline.py",
        "        usual = self.usual[place]\n",
        "        usual = self.usual[0]\n",
        "regimes",
        (f"{_FORESEEN}::test_regimes_are_found_and_values_are_scored_by_them",),
    ),
    Mutant(
        "iot azure-pdm: a failure at the step itself is foreseen",
        f"{_APP}/evaluation/azure_pdm.py",
        "(at < end) & (at >= end - HORIZON_MS)\n",
        "(at <= end) & (at >= end - HORIZON_MS)\n",
        "labels look ahead alone",
        (f"{_EVALUATED}::test_labels_are_of_what_comes_within_24_hours_and_not_of_what_is",),
    ),
)

"""Mutants of the iot app: alarms, silence, sensors that lie, the join, and the checks of its demo."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_APP: Final = "apps/iot_maintenance"
_TESTS: Final = "tests/unit/apps/iot_maintenance"
_ALARMS: Final = f"{_TESTS}/test_alarms.py"
_SCORES: Final = f"{_TESTS}/test_scores.py"
_HEALTH: Final = f"{_TESTS}/test_machine_health.py"
_NAB: Final = f"{_TESTS}/test_nab.py"
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
        "iot: a minute is scored with the first reading of the next in it",
        f"{_APP}/anomalies.py",
        "            gathered.pane, gathered.at, gathered.total, gathered.count = pane, at, value, 1\n",
        "            gathered.pane, gathered.at, gathered.total, gathered.count = pane, at, value, 2\n",
        "the mean of a minute is scored",
        (f"{_SCORES}::test_the_mean_of_a_minute_is_scored_when_the_next_one_begins",),
    ),
    Mutant(
        "iot: a point that reports seldom is scored with its next value",
        f"{_APP}/anomalies.py",
        "        if not how.interval_ms or every >= how.interval_ms:\n",
        "        if not how.interval_ms:\n",
        "a value is scored when it comes, where that is seldom",
        (f"{_SCORES}::test_a_point_that_reports_less_often_is_scored_value_by_value",),
    ),
    Mutant(
        "iot: rules do not know the score",
        f"{_APP}/process.py",
        "            facts.anomaly_score, facts.crosses_in_h, facts.health_score = learned\n",
        "",
        "anomaly_score in alarm rules",
        (f"{_SCORES}::test_an_alarm_rule_can_ask_for_the_score",),
    ),
    Mutant(
        "iot: what is known of a point outlives its machine",
        f"{_APP}/anomalies.py",
        "            self.series.clear()\n",
        "            pass\n",
        "what is kept ends",
        (f"{_SCORES}::test_what_is_kept_of_a_point_is_less_than_half_a_kib_and_goes_with_its_machine",),
    ),
    Mutant(
        "iot: all scores are anomalies",
        f"{_APP}/anomalies.py",
        "        if found.score >= self._scoring.threshold:\n",
        "        if found.score >= 0:\n",
        "anomalies are what is beyond the threshold",
        (f"{_SCORES}::test_anomalies_are_the_scores_from_the_threshold_on",),
    ),
    Mutant(
        "nab: the last detection of a window counts",
        f"{_APP}/evaluation/nab_scoring.py",
        "                    first.setdefault(window, worth)\n",
        "                    first[window] = worth\n",
        "the earliest detection of a window counts",
        (f"{_NAB}::test_the_scoring_is_that_of_the_benchmarks_words",),
    ),
    Mutant(
        "nab: rows of the probation are judged",
        f"{_APP}/evaluation/nab_scoring.py",
        "        for row in range(probation(rows), rows):\n",
        "        for row in range(rows):\n",
        "the first 15 % are not judged",
        (f"{_NAB}::test_the_scoring_is_that_of_the_benchmarks_words",),
    ),
    Mutant(
        "nab: what is chosen for a folder is chosen on it",
        f"{_APP}/evaluation/anomalies.py",
        "        others = [i for i, rows in enumerate(series) if rows.folder != folder]\n",
        "        others = [i for i, rows in enumerate(series)]\n",
        "nested: a folder has no part in what is chosen for it",
        (f"{_NAB}::test_nested_chooses_on_the_other_folders_alone",),
    ),
    Mutant(
        "skab: all detections of a minute count as found, none as false",
        f"{_APP}/evaluation/skab.py",
        "        false += len(left)\n",
        "        false += 0\n",
        "false change points cost",
        (f"{_TESTS}/test_skab.py::test_change_points_are_judged_by_the_benchmarks_words",),
    ),
    Mutant(
        "iot: that nothing is foreseen any more is not told",
        f"{_APP}/forecasts.py",
        "        elif expected >= 0:\n",
        "        elif expected > 1e18:\n",
        "a forecast that no longer holds is taken back",
        (f"{_TESTS}/test_forecasts.py::test_when_it_no_longer_rises_that_is_told_once",),
    ),
    Mutant(
        "iot: limits of other kinds of machines are foreseen",
        f"{_APP}/forecasts.py",
        "        if not rule.kinds or kind in rule.kinds\n",
        "",
        "limits are those of the machine's kind",
        (f"{_TESTS}/test_forecasts.py::test_the_limits_are_those_of_the_machines_kind_and_both_sides_count",),
    ),
    Mutant(
        "iot: a minute in which the status changes is judged",
        f"{_APP}/machine_health.py",
        "            known.regime = None\n",
        "            pass\n",
        "what is normal is that of one status",
        (f"{_HEALTH}::test_a_minute_in_which_the_status_changes_is_not_judged_nor_one_without_a_sensor",),
    ),
    Mutant(
        "iot: what is normal is learned from what is not believed",
        f"{_APP}/health_cli.py",
        """ or row["quality"] != "good" or row["revision"]""",
        """ or row["revision"]""",
        "only what is believed is learned from",
        (f"{_HEALTH}::test_only_what_is_believed_counts_and_too_little_is_told",),
    ),
)

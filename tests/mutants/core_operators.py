"""Mutants of operators: repeats, rankings, and what does not come."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_OPERATORS: Final = "shared/millrace/operators"
_PARTS: Final = "shared/millrace/parts"
_TESTS: Final = "tests/unit/millrace/operators"
_ANOMALY: Final = f"{_TESTS}/test_anomaly.py"
_CROSSING: Final = f"{_TESTS}/test_crossing.py"
_CONTROL: Final = f"{_TESTS}/test_control.py"

MUTANTS: Final = (
    Mutant(
        "operators: an event exactly the horizon away is a repeat",
        f"{_OPERATORS}/dedup.py",
        "abs(at - seen.mark_ms) >= self._within",
        "abs(at - seen.mark_ms) > self._within",
        "the horizon of repeats",
        (
            f"{_TESTS}/test_dedup.py::test_an_event_exactly_the_horizon_later_is_no_repeat",
            f"{_TESTS}/test_dedup.py::test_in_arrival_order_the_horizon_goes_both_ways",
        ),
    ),
    Mutant(
        "operators: an older event is always a repeat",
        f"{_OPERATORS}/dedup.py",
        "abs(at - seen.mark_ms) >= self._within",
        "at - seen.mark_ms >= self._within",
        "in arrival order the horizon goes both ways",
        (f"{_TESTS}/test_dedup.py::test_in_arrival_order_the_horizon_goes_both_ways",),
    ),
    Mutant(
        "operators: an older repeat sets the horizon back",
        f"{_OPERATORS}/dedup.py",
        "        anew = self._refresh and at > seen.mark_ms\n",
        "        anew = self._refresh\n",
        "an id that never stops coming passes once",
        (f"{_TESTS}/test_dedup.py::test_in_arrival_order_an_older_repeat_does_not_set_the_horizon_back",),
    ),
    Mutant(
        "operators: of keys that are looked at together a repeat is known for longer",
        f"{_OPERATORS}/dedup.py",
        "                    if not anew:\n                        continue\n",
        "",
        "repeats are dropped alike, of one key or of many at once",
        (f"{_TESTS}/test_dedup.py::test_looking_at_many_keys_together_is_looking_at_each_by_itself",),
    ),
    Mutant(
        "operators: of keys that are looked at together an older event takes the horizon back",
        f"{_OPERATORS}/dedup.py",
        "                    if seen is not None and at <= seen.mark_ms:\n                        continue\n",
        "",
        "repeats are dropped alike, of one key or of many at once",
        (f"{_TESTS}/test_dedup.py::test_looking_at_many_keys_together_is_looking_at_each_by_itself",),
    ),
    Mutant(
        "operators: of equals that which came first is ranked first",
        f"{_PARTS}/top.py",
        "    return -item[1], item[0]\n",
        "    return -item[1], 0\n",
        "a ranking hangs on its events alone",
        (f"{_TESTS}/test_top_n.py::test_of_equals_the_smaller_item_is_first",),
    ),
    Mutant(
        "operators: an item that falls keeps its place",
        f"{_PARTS}/top.py",
        "        if not ranked or place_of(item) > place_of(old):\n",
        "        if not ranked:\n",
        "who was not among the best may take a place",
        (
            f"{_TESTS}/test_top_n.py"
            "::test_an_item_that_falls_gives_its_place_to_one_that_was_not_among_the_best",
        ),
    ),
    Mutant(
        "operators: an item that leaves the best stays in the changelog",
        f"{_OPERATORS}/ranking.py",
        '                self._rank(start, cell, rank, (item, value), ctx, pane, "delete")\n',
        "                pass\n",
        "a changelog followed gives the ranking",
        (f"{_TESTS}/test_top_n.py::test_a_changelog_followed_gives_the_ranking_after_every_event",),
    ),
    Mutant(
        "operators: after an alert no wait begins",
        f"{_OPERATORS}/absence.py",
        "(wait is None or wait.alerted or self._restart)",
        "(wait is None or self._restart)",
        "each absence is told",
        (f"{_TESTS}/test_absence.py::test_another_start_after_an_alert_begins_another_wait",),
    ),
    Mutant(
        "operators: what comes after all is not told",
        f"{_OPERATORS}/absence.py",
        "            if wait.alerted:\n                self._tell_back(wait, ctx)\n",
        "",
        "who was missed and is back is told",
        (f"{_TESTS}/test_absence.py::test_what_comes_after_all_is_told_as_long_as_it_is_remembered",),
    ),
    Mutant(
        "anomalies: what comes after a value is seen before it is judged",
        f"{_OPERATORS}/anomaly.py",
        "        low, high = min(low, value), max(high, value)\n",
        "        low, high = min(low, value), max(high, value + 1e-3)\n",
        "ranges hold what was seen and nothing else",
        (f"{_ANOMALY}::test_scores_are_those_of_the_definition",),
    ),
    Mutant(
        "anomalies: ranges never narrow",
        f"{_OPERATORS}/anomaly.py",
        "        forget = 1 - math.exp(-watched / self.memory_ms)\n",
        "        forget = 0.0\n",
        "what was long ago is told again",
        (f"{_ANOMALY}::test_what_was_seen_is_not_told_again_and_after_long_it_is",),
    ),
    Mutant(
        "anomalies: time without values forgets everything",
        f"{_OPERATORS}/anomaly.py",
        "        watched = min(max(at_ms - state.at_ms, 0), _HOUR_MS)\n",
        "        watched = max(at_ms - state.at_ms, 0)\n",
        "a sensor that was away does not find everything new",
        (f"{_ANOMALY}::test_time_without_values_forgets_an_hour_at_most",),
    ),
    Mutant(
        "anomalies: a day of the week is like the others",
        f"{_OPERATORS}/anomaly.py",
        "        expected = usual + more\n",
        "        expected = usual\n",
        "the season has a week",
        (f"{_ANOMALY}::test_a_day_of_the_week_has_its_own_usual",),
    ),
    Mutant(
        "anomalies: restlessness counts for nothing",
        f"{_OPERATORS}/anomaly.py",
        "        restless = self.change_weight * change\n",
        "        restless = 0.0\n",
        "a series that becomes restless is told",
        (f"{_ANOMALY}::test_a_series_that_becomes_restless_or_stands_still_says_so",),
    ),
    Mutant(
        "anomalies: a value too large is half taken",
        f"{_OPERATORS}/anomaly.py",
        "        if not -_LARGEST < value < _LARGEST:\n",
        "        state.n += value > _LARGEST\n        if not -_LARGEST < value < _LARGEST:\n",
        "what cannot be kept changes nothing",
        (f"{_ANOMALY}::test_a_value_that_cannot_be_kept_leaves_what_is_kept_as_it_was",),
    ),
    Mutant(
        "charts: Q is measured within the components",
        f"{_OPERATORS}/control.py",
        "                left[j] -= along * weight\n",
        "                left[j] += along * weight\n",
        "Q is what the components leave",
        (f"{_CONTROL}::test_statistics_are_those_of_the_covariance_matrix_and_of_scikit_learn",),
    ),
    Mutant(
        "charts: contributions are of the other statistic",
        f"{_OPERATORS}/control.py",
        '        parts = [x * x for x in left] if statistic == "q" else [abs(x) for x in within]\n',
        '        parts = [x * x for x in left] if statistic == "t2" else [abs(x) for x in within]\n',
        "the sensor that has to do with it is named",
        (f"{_CONTROL}::test_a_combination_that_never_was_is_found_by_q_and_its_sensor_named",),
    ),
    Mutant(
        "charts: one regime is as good as another",
        f"{_OPERATORS}/control.py",
        "        known = self.regimes.get(regime)\n",
        "        known = next(iter(self.regimes.values()), None)\n",
        "each regime has its own normal",
        (f"{_CONTROL}::test_each_regime_has_its_own_normal_and_an_unknown_one_none",),
    ),
    Mutant(
        "crossing: a miss makes an interval no wider",
        f"{_OPERATORS}/crossing.py",
        "        wanted = self.coverage if missed else self.coverage - 1\n",
        "        wanted = self.coverage - 1\n",
        "intervals cover what they say",
        (f"{_CROSSING}::test_intervals_cover_what_they_say_however_a_series_changes",),
    ),
    Mutant(
        "crossing: the latest time is the likely one",
        f"{_OPERATORS}/crossing.py",
        "        latest = _reached(steps, [slope * h - w ",
        "        latest = _reached(steps, [slope * h - 0 * w ",
        "a limit is crossed within what was said",
        (f"{_CROSSING}::test_a_limit_is_crossed_when_it_was_said_and_within_what_was_said",),
    ),
)

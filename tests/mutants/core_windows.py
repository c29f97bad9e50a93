"""Mutants of windows: their edges, sessions, lateness, revisions and what is taken back."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_WINDOWS: Final = "shared/millrace/windows"
_TESTS: Final = "tests/unit/millrace/windows"

_BINNED: Final = (
    f"{_TESTS}/test_aggregates.py::test_a_binned_quantile_is_within_its_share_in_any_order_and_bounded_space"
)

MUTANTS: Final = (
    Mutant(
        "windows: a key's events together go on in the window before at its very end",
        "shared/millrace/windows/ranges.py",
        "            if at >= end or cell is None:",
        "            if at > end or cell is None:",
        "an event is in its own window",
        ("tests/unit/millrace/windows/test_invariance.py",),
    ),
    Mutant(
        "windows: what is no number is added",
        f"{_WINDOWS}/aggregates.py",
        "        return acc if is_missing(value) else step(acc, value, at)\n",
        "        return acc if value is None else step(acc, value, at)\n",
        "aggregates do not hang on the order of events",
        (f"{_TESTS}/test_aggregates.py::test_an_aggregate_is_the_same_however_it_is_added_and_merged",),
    ),
    Mutant(
        "windows: of equal floats the first one is told",
        f"{_WINDOWS}/aggregates.py",
        "    return value + 0.0 if acc is None or value < acc else acc\n",
        "    return value if acc is None or value < acc else acc\n",
        "aggregates do not hang on the order of events",
        (f"{_TESTS}/test_aggregates.py::test_an_aggregate_is_the_same_however_it_is_added_and_merged",),
    ),
    Mutant(
        "windows: an event at the end of a hopping window is in it",
        f"{_WINDOWS}/assigners.py",
        "        first = last - (size - 1 - (at - last)) // step * step\n",
        "        first = last - (size - (at - last)) // step * step\n",
        "windows are half-open",
        (f"{_TESTS}/test_ranges.py::test_an_event_is_in_the_windows_that_span_its_time",),
    ),
    Mutant(
        "windows: a tumbling window forgets its offset",
        f"{_WINDOWS}/ranges.py",
        "        start = at - (at - self._offset) % self._size\n",
        "        start = at - at % self._size\n",
        "where tumbling windows begin",
        (f"{_TESTS}/test_ranges.py", f"{_TESTS}/test_invariance.py"),
    ),
    Mutant(
        "windows: a window closes a millisecond late",
        f"{_WINDOWS}/emission.py",
        "    closing_ms: int = 1\n",
        "    closing_ms: int = 0\n",
        "a window speaks when its last instant is over",
        (
            f"{_TESTS}/test_ranges.py::test_an_event_at_the_end_of_a_window_closes_it",
            f"{_TESTS}/test_ranges.py::test_one_watermark_closes_the_windows_of_all_keys",
        ),
    ),
    Mutant(
        "windows: a late event is taken a millisecond longer than allowed",
        f"{_WINDOWS}/ranges.py",
        "            if end - 1 + self._lateness <= line:\n",
        "            if end - 1 + self._lateness < line:\n",
        "allowed lateness",
        (
            f"{_TESTS}/test_ranges.py"
            "::test_late_is_who_finds_the_window_gone_not_who_is_behind_the_watermark",
            f"{_TESTS}/test_triggers.py",
        ),
    ),
    Mutant(
        "windows: a window goes as soon as it has closed",
        f"{_WINDOWS}/emission.py",
        "        if close + self._lateness > now:\n",
        "        if close > now:\n",
        "late events refine what was said",
        (f"{_TESTS}/test_triggers.py::test_a_late_event_within_allowed_lateness_refines_the_result",),
    ),
    Mutant(
        "windows: refinements that wait for more are never told",
        f"{_WINDOWS}/emission.py",
        '            self._emit_pane(start, cell, ctx, "late")  # refinements that waited for more\n',
        "            pass\n",
        "every late event is in a result at last",
        (
            f"{_TESTS}/test_triggers.py"
            "::test_late_events_may_be_refined_several_at_once_and_the_rest_at_the_end",
        ),
    ),
    Mutant(
        "windows: every result is the first revision",
        f"{_WINDOWS}/emission.py",
        "        cell.revision += 1\n        self._row(start, cell, values",
        "        cell.revision = 0\n        self._row(start, cell, values",
        "revisions say which result holds",
        (f"{_TESTS}/test_triggers.py::test_a_late_event_within_allowed_lateness_refines_the_result",),
    ),
    Mutant(
        "windows: a changelog does not take back what it said before",
        f"{_WINDOWS}/emission.py",
        '                self._row(start, cell, cell.said, ctx, pane, "update_before")\n',
        "",
        "a changelog adds up to the final result",
        (f"{_TESTS}/test_triggers.py::test_a_changelog_adds_up_to_the_final_result",),
    ),
    Mutant(
        "windows: sessions that merge stay in the changelog",
        f"{_WINDOWS}/sessions.py",
        "                self.retract(other, old, ctx)\n",
        "                pass\n",
        "sessions that are part of another are taken back",
        (f"{_TESTS}/test_sessions.py::test_a_changelog_takes_back_the_sessions_that_merge",),
    ),
    Mutant(
        "windows: a pause of exactly the gap ends a session",
        f"{_WINDOWS}/sessions.py",
        '        self.closing_ms = 0 if kind.exact_gap == "merge" else 1\n',
        "        self.closing_ms = 1\n",
        "sessions merge at exactly the gap",
        (f"{_TESTS}/test_sessions.py::test_a_gap_of_exactly_the_timeout_merges_unless_it_is_to_split",),
    ),
    Mutant(
        "windows: a session's lateness is judged by the event alone",
        f"{_WINDOWS}/sessions.py",
        "        if end - inside + self._lateness <= line:\n",
        "        if self.end_of(event, at) - inside + self._lateness <= line:\n",
        "lateness is judged by the merged session",
        (
            f"{_TESTS}/test_sessions.py"
            "::test_a_late_event_whose_own_gap_is_over_joins_the_open_session_that_it_touches",
        ),
    ),
    Mutant(
        "windows: of sessions that merge only the first one counts",
        f"{_WINDOWS}/sessions.py",
        "[merge(a, b) for merge, a, b in zip(self._merges, cell.accs, old.accs, strict=True)]",
        "list(cell.accs)",
        "a merged session has the events of all",
        (f"{_TESTS}/test_sessions.py::test_an_event_between_two_sessions_makes_one_of_them",),
    ),
    Mutant(
        "windows: a session that has not closed is silenced by one that has",
        f"{_WINDOWS}/sessions.py",
        "        cell.closed = end - self.closing_ms <= line and all(old.closed for _, old in touched)\n",
        "        cell.closed = end - self.closing_ms <= line or any(old.closed for _, old in touched)\n",
        "a merged session speaks once for all of its parts",
        (f"{_TESTS}/test_sessions.py", f"{_TESTS}/test_chains.py"),
    ),
    Mutant(
        "windows: a session is cut one event late",
        f"{_WINDOWS}/sessions.py",
        "            if other <= at < other + self._limit and at <= cell.end - inside:\n",
        "            if other <= at <= other + self._limit and at <= cell.end - inside:\n",
        "a longest session",
        (f"{_TESTS}/test_sessions.py::test_an_event_exactly_at_the_cut_begins_the_next_session",),
    ),
    Mutant(
        "windows: a look-back includes its open end",
        f"{_WINDOWS}/per_event.py",
        '        self._open_end = 1 if kind.closed == "right" else 0\n',
        "        self._open_end = 0\n",
        "which ends belong to a look-back",
        (f"{_TESTS}/test_sliding.py::test_each_event_gets_what_was_there_before_it",),
    ),
    Mutant(
        "windows: a sliding window loses its first instant",
        f"{_WINDOWS}/per_event.py",
        "        self._queue.prune(queue, last - self._width)\n",
        "        self._queue.prune(queue, last - self._width + 1)\n",
        "both ends belong to a sliding window",
        (f"{_TESTS}/test_sliding.py::test_sliding_windows_agree_with_all_ranges_tried_one_by_one",),
    ),
    Mutant(
        "windows: count windows forget nothing",
        f"{_WINDOWS}/counted.py",
        "        for _ in range(self._leaving):\n",
        "        for _ in range(0):\n",
        "a count window has so many events",
        (f"{_TESTS}/test_counts.py::test_count_windows_hop_over_events",),
    ),
    Mutant(
        "windows: a sum of floats depends on the order",
        f"{_WINDOWS}/exact.py",
        "        return math.fsum(parts)\n",
        "        return sum(parts)\n",
        "exact sums",
        (f"{_TESTS}/test_aggregates.py::test_a_sum_of_floats_does_not_depend_on_order",),
    ),
    Mutant(
        "windows: bins become fewer by what came last",
        f"{_WINDOWS}/binned.py",
        "    halved = max(left.halved, right.halved)\n",
        "    halved = left.halved\n",
        "a quantile by bins is the same however it is added and merged",
        (_BINNED,),
    ),
    Mutant(
        "windows: bins of values below zero are gone through as those above",
        f"{_WINDOWS}/binned.py",
        "    for place in sorted(acc.below, reverse=True):\n",
        "    for place in sorted(acc.below):\n",
        "a quantile by bins is within its share",
        (_BINNED,),
    ),
    Mutant(
        "windows: a sketch is given bytes",
        f"{_WINDOWS}/sketches.py",
        '        return value.decode("latin-1")\n',
        "        return value\n",
        "values of any type are counted",
        (f"{_TESTS}/test_aggregates.py::test_values_of_any_type_are_counted_beyond_the_buffer",),
    ),
    Mutant(
        "sessions: those beyond a cut are merged",
        "shared/millrace/windows/sessions.py",
        " if start // self._cut == part]",
        "]",
        "no session goes on beyond a cut",
        ("tests/unit/millrace/windows/test_sessions.py",),
    ),
    Mutant(
        "sessions: a session ends beyond the cut",
        "shared/millrace/windows/sessions.py",
        "        return min(super().end_of(event, at), at - at % self._cut + self._cut)\n",
        "        return super().end_of(event, at)\n",
        "no session goes on beyond a cut",
        ("tests/unit/millrace/windows/test_invariance.py",),
    ),
    Mutant(
        "distinct: the first ones that came are kept",
        "shared/millrace/windows/value_aggregates.py",
        "            if place < most and (place == len(acc)",
        "            if len(acc) < most and (place == len(acc)",
        "aggregates do not hang on the order of events",
        (
            "tests/unit/millrace/windows/test_aggregates.py::test_an_aggregate_is_the_same_however_it_is_added_and_merged",
        ),
    ),
)

"""Mutants of joins: which version is valid, whose partner is near enough, what is corrected and forgotten."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_JOINS: Final = "shared/millrace/joins"
_TESTS: Final = "tests/unit/millrace/joins"

MUTANTS: Final = (
    Mutant(
        "joins: at one instant the left event goes first",
        f"{_JOINS}/asof.py",
        "    rank = (RIGHT, LEFT)\n",
        "    rank = (LEFT, RIGHT)\n",
        "a version is valid from its own instant on",
        (f"{_TESTS}/test_asof.py::test_a_left_event_meets_the_version_of_its_time",),
    ),
    Mutant(
        "joins: a version is valid at the end of its time",
        f"{_JOINS}/asof.py",
        "at - version.valid_from >= self._keep)",
        "at - version.valid_from > self._keep)",
        "how long a version is valid",
        (f"{_TESTS}/test_asof.py::test_a_version_is_valid_for_as_long_as_it_is_kept",),
    ),
    Mutant(
        "joins: the grace is a millisecond too long",
        f"{_JOINS}/asof.py",
        "        if ctx.event_time + self._grace > ctx.watermark:\n",
        "        if ctx.event_time + self._grace >= ctx.watermark:\n",
        "who is late for a join",
        (f"{_TESTS}/test_asof.py::test_what_is_behind_the_watermark_and_its_grace_is_late",),
    ),
    Mutant(
        "joins: a late version corrects nothing",
        f"{_JOINS}/asof.py",
        "            if (was and was[:2]) != (now and now[:2]):\n",
        "            if was is not None and now is None:\n",
        "rows are corrected by what should have been known",
        (f"{_TESTS}/test_asof.py::test_a_right_event_out_of_order_corrects_the_rows_it_should_have_been_in",),
    ),
    Mutant(
        "joins: of two versions of one instant that which came last holds",
        f"{_JOINS}/asof.py",
        "            and self._encoded(there.value) >= self._encoded(event)\n",
        "            and self._encoded(there.value) == self._encoded(event)\n",
        "results hang on the events alone",
        (f"{_TESTS}/test_asof.py", f"{_TESTS}/test_oracles.py"),
    ),
    Mutant(
        "joins: versions are forgotten a millisecond too early",
        f"{_JOINS}/asof.py",
        "        first = timer.at - self._grace + 1\n",
        "        first = timer.at - self._grace + 2\n",
        "what can still be asked for is kept",
        (f"{_TESTS}/test_asof.py::test_a_version_is_not_forgotten_a_millisecond_too_early",),
    ),
    Mutant(
        "joins: a final row comes a millisecond late",
        f"{_JOINS}/asof.py",
        "            ctx.timers.at(at + self._grace, _ROWS)\n",
        "            ctx.timers.at(at + self._grace + 1, _ROWS)\n",
        "a final row comes when its grace is over",
        (
            f"{_TESTS}/test_asof.py"
            "::test_a_final_row_comes_when_the_watermark_has_passed_the_left_event_by_the_grace",
        ),
    ),
    Mutant(
        "joins: the far end of an interval is outside of it",
        f"{_JOINS}/intervals.py",
        "        first = bisect_left(partners, at - self._ahead[other], key=_at)\n",
        "        first = bisect_right(partners, at - self._ahead[other], key=_at)\n",
        "both ends belong to an interval",
        (
            f"{_TESTS}/test_interval.py::test_a_right_event_before_the_left_one_meets_it_within_backward",
            f"{_TESTS}/test_interval.py::test_without_an_interval_only_events_of_one_time_meet",
        ),
    ),
    Mutant(
        "joins: forward and backward are exchanged",
        f"{_JOINS}/intervals.py",
        "{LEFT: within.forward_ms, RIGHT: within.backward_ms}",
        "{LEFT: within.backward_ms, RIGHT: within.forward_ms}",
        "the bounds of an interval",
        (f"{_TESTS}/test_interval.py::test_a_right_event_after_the_left_one_meets_it_within_forward",),
    ),
    Mutant(
        "joins: who had a partner is told as alone",
        f"{_JOINS}/intervals.py",
        "                    if not row.matched:\n",
        "                    if row.at >= 0:\n",
        "outer rows of those who stayed alone",
        (f"{_TESTS}/test_interval.py::test_those_who_stay_alone_are_told_once",),
    ),
    Mutant(
        "joins: a left window join loses those without a partner",
        f"{_JOINS}/windowed.py",
        '        if how in ("left", "outer"):\n',
        '        if how == "outer":\n',
        "who has nobody in its window is told",
        (f"{_TESTS}/test_windows.py::test_who_has_nobody_in_its_window_is_told_where_asked_for",),
    ),
    Mutant(
        "joins: an interval join's grace is a millisecond too long",
        f"{_JOINS}/intervals.py",
        "        if ctx.event_time + self._grace > ctx.watermark:\n",
        "        if ctx.event_time + self._grace >= ctx.watermark:\n",
        "who is late for a join",
        (f"{_TESTS}/test_grace.py::test_a_late_event_within_the_grace_meets_those_before_and_after_it",),
    ),
    Mutant(
        "joins: a late event meets those before it only",
        f"{_JOINS}/intervals.py",
        "            last = bisect_right(partners, at + self._ahead[side], key=_at)\n",
        "            last = bisect_right(partners, at, key=_at)\n",
        "a late event within the grace is joined",
        (f"{_TESTS}/test_grace.py::test_a_late_event_within_the_grace_meets_those_before_and_after_it",),
    ),
    Mutant(
        "joins: a late event is kept behind those after it",
        f"{_JOINS}/intervals.py",
        "            place = bisect_right(mine, at, key=_at)\n",
        "            place = len(mine)\n",
        "a late event within the grace is joined",
        (f"{_TESTS}/test_grace.py::test_a_late_event_within_the_grace_meets_those_before_and_after_it",),
    ),
    Mutant(
        "joins: somebody is told as alone while partners are taken",
        f"{_JOINS}/intervals.py",
        "            kept, until = self._kept(side), self._over[side]\n",
        "            kept, until = self._kept(side), self._ahead[side]\n",
        "nobody is alone before the grace is over",
        (f"{_TESTS}/test_grace.py",),
    ),
    Mutant(
        "joins: a late event has all pairs of its window told again",
        f"{_JOINS}/windowed.py",
        '        of = kept[-1] if pane == "late" else None\n',
        "        of = None\n",
        "each pair has one row",
        (f"{_TESTS}/test_grace.py::test_a_window_takes_events_until_its_grace_is_over",),
    ),
)

"""Mutants of parts: state logic that processes hold."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_PARTS: Final = "shared/millrace/parts"
_TESTS: Final = "tests/unit/millrace/parts"

MUTANTS: Final = (
    Mutant(
        "parts: a look-back includes its open end",
        f"{_PARTS}/lookback.py",
        "        return bisect_right(self.times, self.at - window_ms, 0, end)\n",
        "        return bisect_left(self.times, self.at - window_ms, 0, end)\n",
        "a window is (at - width, at]",
        (f"{_TESTS}/test_lookback.py::test_every_window_is_that_of_a_plain_list",),
    ),
    Mutant(
        "parts: what a look-back drops leaves its links",
        f"{_PARTS}/lookback.py",
        "        self.links = self.links[gone * columns.width * 4 :]\n",
        "        self.links = self.links[gone * 4 :]\n",
        "columns of a look-back stay in step",
        (f"{_TESTS}/test_lookback.py::test_every_window_is_that_of_a_plain_list",),
    ),
    Mutant(
        "parts: an event with fewer links is taken",
        f"{_PARTS}/lookback.py",
        "        elif len(links) != columns.width:\n",
        "        elif len(links) > columns.width:\n",
        "what does not fit is refused",
        (f"{_TESTS}/test_lookback.py::test_what_does_not_fit_is_refused_and_changes_nothing",),
    ),
    Mutant(
        "parts: a window leaves out the pane that it begins in",
        f"{_PARTS}/tail.py",
        "            first -= 1\n",
        "            pass\n",
        "what is counted in panes is never too little",
        (f"{_TESTS}/test_tail.py::test_windows_are_exact_or_reach_back_to_where_a_pane_begins",),
    ),
    Mutant(
        "parts: who is seen again is counted twice",
        f"{_PARTS}/tail.py",
        "            last = known.get(links[place])\n",
        "            last = None\n",
        "distinct counts over panes are exact",
        (f"{_TESTS}/test_tail.py::test_windows_are_exact_or_reach_back_to_where_a_pane_begins",),
    ),
    Mutant(
        "parts: who comes again late has not been seen since",
        f"{_PARTS}/tail.py",
        "            if last is not None and last <= at:\n",
        "            if last is not None:\n",
        "distinct counts over panes are exact",
        (f"{_TESTS}/test_tail.py::test_windows_are_exact_or_reach_back_to_where_a_pane_begins",),
    ),
    Mutant(
        "parts: panes get longer a level too early",
        f"{_PARTS}/tail.py",
        "            if start + size > newest - upto:\n",
        "            if start + size > newest - upto // 2:\n",
        "a window reaches back by less than a pane of its age",
        (f"{_TESTS}/test_tail.py::test_windows_are_exact_or_reach_back_to_where_a_pane_begins",),
    ),
    Mutant(
        "parts: a sample is not said to be one",
        f"{_PARTS}/tail.py",
        "        return max(0, found) << self.halvings[place]\n",
        "        return max(0, found)\n",
        "distinct counts of many are estimates of all",
        (f"{_TESTS}/test_tail.py::test_many_who_were_seen_are_told_by_a_sample_that_says_so",),
    ),
    Mutant(
        "parts: a late value is counted in the newest pane",
        f"{_PARTS}/moving.py",
        "                place = pane - self.pane - 1\n",
        "                place = -1\n",
        "a mean over time is of the values of its time",
        (f"{_TESTS}/test_moving.py::test_what_is_told_is_that_of_a_plain_list",),
    ),
    Mutant(
        "parts: a pane is forgotten before it ends",
        f"{_PARTS}/moving.py",
        "        gone = until // self.pane_ms - self.pane + len(self.sums) - 1\n",
        "        gone = until // self.pane_ms - self.pane + len(self.sums)\n",
        "only what is over is pruned",
        (f"{_TESTS}/test_moving.py::test_what_is_told_is_that_of_a_plain_list",),
    ),
    Mutant(
        "parts: of two versions of one time the later word holds",
        f"{_PARTS}/versions.py",
        "        if versions[place] >= version:\n            return False\n",
        "        if versions[place] == version:\n            return False\n",
        "versions do not hang on the order in which they come",
        (f"{_TESTS}/test_versions.py::test_words_in_any_order_leave_the_same",),
    ),
    Mutant(
        "parts: a long window of few panes has its end in it",
        f"{_PARTS}/panes.py",
        "for one in sorted(panes) if start <= one < end]\n",
        "for one in sorted(panes) if start <= one <= end]\n",
        "windows of panes are half-open",
        (f"{_TESTS}/test_panes.py::test_sums_of_any_window_are_those_of_its_events",),
    ),
    Mutant(
        "parts: a window is told whose panes are not in it",
        f"{_PARTS}/panes.py",
        "        if end - length <= start:\n            return end\n",
        "        return end\n",
        "the next window with something in it",
        (f"{_TESTS}/test_panes.py::test_sums_of_any_window_are_those_of_its_events",),
    ),
    Mutant(
        "parts: sums over panes are those of the oldest one",
        f"{_PARTS}/panes.py",
        "            sums[item] = numbers.copy() if mine is None else list(map(add, mine, numbers))\n",
        "            sums[item] = numbers if mine is None else list(map(add, mine, numbers))\n",
        "a window is one's own",
        (f"{_TESTS}/test_panes.py::test_sums_of_any_window_are_those_of_its_events",),
    ),
    Mutant(
        "parts: a deadline that is put off to now is put off again",
        f"{_PARTS}/deadlines.py",
        "        if later is None or (at := later(first)) <= now:\n",
        "        if later is None or (at := later(first)) < now:\n",
        "what is due is told",
        (f"{_TESTS}/test_deadlines.py::test_a_deadline_that_is_not_put_off_beyond_now_is_due",),
        hangs=True,
        limit_s=20,
    ),
    Mutant(
        "parts: sessions that meet at the gap stay two",
        f"{_PARTS}/sessions.py",
        "        if other <= end - inside and start <= session.end - inside:\n",
        "        if other < end - inside and start < session.end - inside:\n",
        "sessions merge at exactly the gap",
        (f"{_TESTS}/test_sessions.py::test_sessions_are_the_events_that_reach_each_other",),
    ),
    Mutant(
        "parts: only what is larger than the last place has one",
        f"{_PARTS}/top.py",
        "        found = [item for item in found if item[1] >= least]\n",
        "        found = [item for item in found if item[1] > least]\n",
        "a ranking has as many places as there are items",
        (f"{_TESTS}/test_top.py::test_the_best_are_the_first_of_all_in_order",),
    ),
)

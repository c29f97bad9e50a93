"""What the benchmark of the clock counts, in small: nobody else is late, and other rules lose some."""

from __future__ import annotations

from millrace_apps.benchmarks.clock import QUICK, clock


def test_one_wrong_clock_changes_nothing_of_the_others_and_a_backlog_makes_nothing_late() -> None:
    found = clock(QUICK)
    for of in (found["stream"], found["key"]):
        assert (of["late_of_others"], of["equal"]) == (0, True)
        assert of["events_of_others"] == of["with_the_clock_right"]["events_of_others"] > 0
    assert found["believed"]["late_of_others"] > 0
    for of in found["catch_up"].values():
        assert (of["late"], of["ends_at_the_bound"]) == (0, True)
        assert of["late_by"]["newest_of_all"] > 0
        assert of["waiting_max"] > 0

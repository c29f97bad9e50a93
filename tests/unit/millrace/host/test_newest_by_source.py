"""What the clock tells of each source, for whoever watches a job."""

from __future__ import annotations

import pytest

from millrace.host.intake import Brought, moved
from millrace.time.clock import ClockSettings, ClockState, SourceReport


def report(source: str, newest: int | None, *, is_clock: bool = True) -> SourceReport:
    return SourceReport(0, source, 0, 9, 10, is_clock, newest, None)


@pytest.mark.parametrize("speaks", [True, False])
def test_the_newest_time_of_each_clock_is_told_by_the_one_who_speaks(speaks: bool) -> None:
    brought = Brought(speaks=speaks)
    brought.reports += [
        report("in:0", 5_000),
        report("in:0", 7_000),  # of another task
        report("in:0", 6_000),
        report("in:1", 4_000),
        report("in:2", None),  # dead letters only
        report("labels:0", 1, is_clock=False),
    ]
    after, status = moved("P", ClockState(), ClockSettings(bound_ms=1_000), brought)
    assert status.sources == ({"in:0": 7_000, "in:1": 4_000} if speaks else {})
    silent, quiet = moved("P", ClockState(), ClockSettings(bound_ms=1_000), brought)
    assert (silent, quiet.watermark) == (after, status.watermark), "time itself does not hang on who speaks"

"""What the benchmark of a region measures, in small: both books say the same, and parts are read in part."""

from __future__ import annotations

from dataclasses import replace

from millrace_apps.benchmarks.region import QUICK, region


def test_both_books_say_the_same_and_few_positions_cost_little_of_the_one_in_parts() -> None:
    found = region(replace(QUICK, drivers=6_000, positions=300, few=10, rate=2_000, batches=2))
    assert all(of["correct"] for of in found.values())
    assert (
        found["parts_few"]["bytes_written"]
        < found["parts"]["bytes_written"]
        < found["whole"]["bytes_written"]
    )
    assert 2 * found["parts_few"]["bytes_written"] < found["whole_few"]["bytes_written"]

"""Durations are read as people write them, and written so that they can be read back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import UserError
from millrace.time.durations import DurationError, format_duration, parse_duration, to_ms


@pytest.mark.parametrize(
    ("written", "expected_ms"),
    [
        ("5 seconds", 5_000),
        ("1 second", 1_000),
        ("500ms", 500),
        ("1h", 3_600_000),
        ("1h 30m", 5_400_000),
        ("1 hour, 30 minutes", 5_400_000),
        ("2W", 1_209_600_000),
        ("1.5 s", 1_500),
        ("0.1s", 100),
        (" 10 min ", 600_000),
        ("PT5S", 5_000),
        ("P1DT2H", 93_600_000),
        ("PT0.25S", 250),
        ("pt1m", 60_000),
        ("250", 250),
        (250, 250),
        (250.0, 250),
        (1e3, 1_000),
        ("0", 0),
        (0, 0),
        (timedelta(minutes=2), 120_000),
    ],
)
def test_every_usual_notation_is_read(written: str | int | float | timedelta, expected_ms: int) -> None:
    assert to_ms(written) == expected_ms


@pytest.mark.parametrize(
    "written",
    ["", "soon", "5 lightyears", "-5s", "5 seconds ago", "s", "P", "PT", "P1DT", "1h x", "h1", "٣s",
     "1e3", -1, -0.5, float("nan"), float("inf"), True, timedelta(seconds=-1), {"a": 1}, None],
)  # fmt: skip
def test_what_is_no_duration_is_refused(written: Any) -> None:
    with pytest.raises(DurationError):
        parse_duration(written)


@pytest.mark.parametrize("written", ["0.5ms", 0.5, "1.0005 s"])
def test_finer_than_a_millisecond_is_refused_instead_of_rounded(written: str | float) -> None:
    with pytest.raises(DurationError, match="finer than one millisecond"):
        parse_duration(written)


def test_a_duration_beyond_all_bounds_is_a_user_error_not_an_overflow() -> None:
    with pytest.raises(UserError, match="longer than"):
        parse_duration("99999999999999999999 days")


def test_the_message_shows_what_was_written_and_how_to_write_it() -> None:
    with pytest.raises(DurationError, match=r"'soon' is not a duration: write for example \"5 seconds\""):
        parse_duration("soon")


def test_a_negative_number_of_milliseconds_has_no_text() -> None:
    with pytest.raises(DurationError):
        format_duration(-1)


@given(st.integers(min_value=0, max_value=10**14))
def test_what_is_written_reads_back_the_same(duration_ms: int) -> None:
    assert to_ms(format_duration(duration_ms)) == duration_ms


@given(st.integers(min_value=0, max_value=10**12), st.sampled_from(["ms", "s", "m", "h"]))
def test_number_and_unit_mean_their_product(n: int, unit: str) -> None:
    size = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}[unit]
    if n * size < 10**16:
        assert to_ms(f"{n}{unit}") == to_ms(f"{n} {unit.upper()}") == n * size

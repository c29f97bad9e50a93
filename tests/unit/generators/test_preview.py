"""What a run would send, told beforehand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from millrace_apps.generators.engine.disturb import Disturbances
from millrace_apps.generators.engine.world import deliver_domain
from millrace_apps.generators.preview import dry_run, show_sample
from millrace_apps.generators.timing import Timing
from tests.unit.generators.world import METERS, MeterProfile

PROFILE = MeterProfile(seed=4, malformed=0.5, duplicates=0.2)
ENDLESS = Timing(event_rate=PROFILE.event_rate, speed=2.0, events=None, start_ms=PROFILE.start_ms, live=False)


def told(timing: Timing, capsys: pytest.CaptureFixture[str], wrong: Disturbances | None = None) -> list[str]:
    parameters = {**PROFILE.parameters(), "until_ms": timing.until_ms}
    if wrong is not None:
        parameters["disturbances"] = wrong.parameters()
    dry_run("meters → somewhere", deliver_domain(METERS, PROFILE, wrong), parameters, "t", timing)
    return capsys.readouterr().out.splitlines()


def number_in(line: str) -> int:
    """Return the first number that a line has after the word about."""
    return int(line.partition("about ")[2].split()[0].replace(",", "").removesuffix("/s"))


def test_a_bounded_run_is_told_with_its_repeats_and_broken_messages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    last = told(replace(ENDLESS, events=50_000), capsys)[-1]
    assert last.startswith("in all: about ")
    assert last.endswith(" MB")
    assert number_in(last) == pytest.approx(50_000 * 1.7, rel=0.02)


def test_a_duration_is_told_by_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(replace(ENDLESS, until_ms=PROFILE.start_ms + 3_600_000), capsys)
    assert number_in(lines[-1]) == pytest.approx(3_600 * PROFILE.event_rate * 1.7, rel=0.05)
    assert "  until = 2026-01-01T01:00:00+00:00" in lines


def test_an_endless_run_is_told_by_its_rate(capsys: pytest.CaptureFixture[str]) -> None:
    last = told(ENDLESS, capsys)[-1]
    assert last.startswith("no end: about ")
    assert number_in(last) == pytest.approx(2 * PROFILE.event_rate * 1.7, rel=0.05)
    assert "as fast as possible" in told(replace(ENDLESS, speed=None), capsys)[-1]


def test_only_disturbances_that_are_on_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(ENDLESS, capsys, Disturbances(drift=0.25))
    assert "  drift = 0.25" in lines
    assert not any(line.startswith(("  loss", "  clock_skew", "  idle", "  disturbances")) for line in lines)


def test_a_sample_shows_payloads_as_objects_and_what_is_none_as_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_sample(deliver_domain(METERS, PROFILE), 200)
    decoder, text, kinds = json.JSONDecoder(), capsys.readouterr().out, set()
    while text.strip():
        shown, end = decoder.raw_decode(text.lstrip())
        text = text.lstrip()[end:]
        kinds.add((type(shown["value"]), shown["truth"]["fault"]))
    assert {(dict, None), (dict, "duplicate"), (str, "malformed")} <= kinds
    assert (str, None) not in kinds

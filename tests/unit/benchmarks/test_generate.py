"""The benchmark of the generators: its figures are of runs that sent everything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace_apps.benchmarks import generate
from millrace_apps.benchmarks.cli import app
from millrace_apps.benchmarks.generate import Order, Sizes, _measure
from millrace_apps.benchmarks.streams import BenchmarkFailed


@pytest.mark.parametrize("domain", ["fraud", "orders"])
def test_a_measured_run_sends_every_event_and_says_what_it_took(domain: str, tmp_path: Path) -> None:
    found = _measure(Order(domain, "jsonl", 1_000, str(tmp_path), ""))
    lines = (tmp_path / f"{domain}.jsonl").read_bytes().splitlines()
    assert found["correct"]
    assert len(lines) == 1_000
    assert all(json.loads(line) for line in lines)
    assert found["rows_per_s"] > 0
    assert found["cpu_s_per_million"] > 0
    assert found["rss_mb"]["most"] >= found["rss_mb"]["at_a_tenth"] > 1


def test_the_report_has_the_best_of_the_runs_and_their_memory(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    arguments = ["generate", "--domain", "stocks", "--to", "null", "--events", "500", "--repeats", "2"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0
    report = json.loads(out.read_text())
    assert report["systems"]["stocks to null"]["correct"] is True
    assert report["rss_mb"]["stocks to null"].keys() == {"at_a_tenth", "most"}
    assert (report["configuration"]["events"], report["configuration"]["repeats"]) == (500, 2)


def test_a_run_that_fails_is_an_error_and_no_figure() -> None:
    with pytest.raises(BenchmarkFailed, match=r"no-such to null failed: .*no domain no-such"):
        generate.generate(Sizes(domains=("no-such",), targets=("null",), repeats=1), None)

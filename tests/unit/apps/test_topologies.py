"""The apps' topologies: as their pages show them, and without an engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.cli import build
from millrace.errors import UserError
from millrace.runtime.apps import load_app
from millrace.runtime.settings import load_settings
from millrace.topology.drawing import as_mermaid, as_text, delay_of

ROOT = Path(__file__).resolve().parents[3]
APPS = {
    "fraud": "fraud",
    "iot": "iot_maintenance",
    "clickstream": "clickstream",
    "ridesharing": "ridesharing",
    "aggregates": "aggregates",
}


@pytest.mark.parametrize("name", APPS)
def test_the_readme_shows_the_topology_as_it_is(name: str) -> None:
    page = ROOT / "apps" / APPS[name] / "README.md"
    done = CliRunner().invoke(build(), ["topology", name, "--write", str(page), "--check"])
    assert (done.exit_code, done.output) == (0, "")


def test_a_topology_needs_no_engine() -> None:
    code = (
        "import sys\nfrom millrace.runtime.apps import load_app\n"
        "from millrace.runtime.settings import load_settings\n"
        f"for name in {list(APPS)}:\n"
        "    app = load_app(name)\n    app.topology(load_settings(app.settings, app=name, env={}))\n"
        "assert not {'pyspark', 'delta', 'confluent_kafka'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_each_link_says_what_it_waits_for() -> None:
    app = load_app("iot")
    overrides = ["monitor.clock=key", "monitor.patience=3h"]
    settings = load_settings(app.settings, app="iot", overrides=overrides, env={})
    topology = app.topology(settings)
    delays = [delay_of(topology, link, 500) for link in topology.links]
    assert [(d.ms, d.why) for d in delays] == [
        (10_800_000, "its key's next events, at most 3 h"), (0, "")
    ]  # fmt: skip
    text = as_text(topology, 500)
    assert "MachineMonitor: in event-time order by the clocks of its keys, waits for its key's next" in text
    assert 'MachineMonitor["MachineMonitor<br/>waits 3 h"]' in as_mermaid(topology, 500)
    ridesharing = load_app("ridesharing")
    wired = ridesharing.topology(load_settings(ridesharing.settings, app="ridesharing", env={}))
    assert [delay_of(wired, link, 500).ms for link in wired.links] == [0, 500, 0]


def test_a_page_without_a_place_is_refused_and_one_that_is_old_is_told(tmp_path: Path) -> None:
    page = tmp_path / "PAGE.md"
    page.write_text("nothing")
    done = CliRunner().invoke(build(), ["topology", "iot", "--write", str(page)])
    assert isinstance(done.exception, UserError)
    assert "put <!-- topology: millrace topology iot" in str(done.exception)
    page.write_text("a\n<!-- topology: millrace topology iot --write PAGE -->\nold\n<!-- /topology -->\nb\n")
    done = CliRunner().invoke(build(), ["topology", "iot", "--write", str(page), "--check"])
    assert (done.exit_code, "does not show the topology of iot" in done.output) == (1, True)
    assert CliRunner().invoke(build(), ["topology", "iot", "--write", str(page)]).exit_code == 0
    made = page.read_text()
    assert made.startswith("a\n")
    assert made.endswith("<!-- /topology -->\nb\n")
    assert "flowchart LR" in made
    assert CliRunner().invoke(build(), ["topology", "iot", "--write", str(page), "--check"]).exit_code == 0


def test_a_topology_shows_its_contract() -> None:
    done = CliRunner().invoke(build(), ["topology", "clickstream", "--as", "contract"])
    assert '"process": "Visitors > Entities > Reactions"' in done.output

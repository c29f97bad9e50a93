"""Alerts, dashboard and page of the docs name only metrics that a job says; each alert says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from millrace.observing.exposition import registry_of
from tests.unit.millrace.observing.cases import figures

ROOT = Path(__file__).resolve().parents[4]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
PAGE = ROOT / "docs" / "observing.md"
_NAME = re.compile(r"\bmillrace_[a-z0-9_]+\b")
#: Label → metrics have it.
_SELECTOR = re.compile(r"(millrace_[a-z0-9_]+)\{([^}]*)\}")


def exposed() -> dict[str, set[str]]:
    """Return the samples of a job of which everything is known, each with its labels."""
    found: dict[str, set[str]] = {}
    for family in registry_of(figures).collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return {name: labels for name, labels in found.items() if name.startswith("millrace_")}


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / "deploy" / "grafana" / "millrace.json").read_text())[
        "panels"
    ]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    yield from ((rule["alert"], rule["expr"]) for rule in alerts())
    yield from ((panel["title"], target["expr"]) for panel in panels() for target in panel["targets"])


@pytest.mark.parametrize(("of", "expression"), list(expressions()))
def test_an_expression_names_metrics_and_labels_that_there_are(of: str, expression: str) -> None:
    known = exposed()
    used = _NAME.findall(expression)
    assert used or "up{" in expression
    assert [name for name in used if name not in known] == [], of
    for name, selected in _SELECTOR.findall(expression):
        labels = re.findall(r"(\w+)\s*=", selected)
        assert set(labels) <= known[name] | {"instance", "job"}
    for counter in re.findall(r"(millrace_[a-z_]+_total)\b(?!\{[^}]*\}\[|\[)", expression):
        pytest.fail(f"{of}: a counter's value itself says little: {counter}")


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert "$labels.instance" in rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert ROOT / page == PAGE
    entries = re.findall(r"^### (\w+)\n\n(.+)", PAGE.read_text(), re.MULTILINE)
    assert anchor == rule["alert"].lower()
    assert len(dict(entries)[rule["alert"]]) > 40


def test_no_entry_is_of_an_alert_that_there_is_not() -> None:
    entries = re.findall(r"^### (Millrace\w+)", PAGE.read_text(), re.MULTILINE)
    assert sorted(entries) == sorted(rule["alert"] for rule in alerts())


def test_the_page_lists_every_metric_with_its_labels() -> None:
    listed: dict[str, set[str]] = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `millrace_"):
            names, labels, _ = [cell.strip() for cell in line.strip("|").split("|")]
            for name in _NAME.findall(names):
                listed[name] = set(filter(None, labels.split(", ")))
    known = exposed()
    histogram = {n: known.pop(n) for n in list(known) if n.startswith("millrace_batch_duration_seconds_")}
    assert listed.pop("millrace_batch_duration_seconds") == set().union(*histogram.values())
    assert listed == known


@pytest.mark.parametrize(
    "target",
    [target for panel in panels() for target in panel["targets"]],
    ids=lambda target: target["legendFormat"],
)
def test_a_legend_tells_the_lines_of_several_jobs_apart(target: dict[str, Any]) -> None:
    by = re.search(r"by \(([^)]*)\)", target["expr"])
    (name,) = _NAME.findall(target["expr"])
    own = set() if name.endswith("_info") else exposed()[name]
    labels = set(by[1].split(", ")) - {"le"} if by else own | {"instance"}
    assert labels <= set(re.findall(r"{{(\w+)}}", target["legendFormat"]))


def test_panels_do_not_lie_over_each_other() -> None:
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels()]
    assert len(set(places)) == len(places) >= 16
    assert len({p["id"] for p in panels()}) == len(places)

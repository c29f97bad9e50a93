"""Metrics, alerts and dashboard before a real Prometheus: it scrapes, evaluates, and judges the files.

Where there is none: `scripts/install-prometheus`, or MILLRACE_NO_PROMETHEUS=1 leaves these tests out.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from millrace.kafka.launch import free_port
from millrace.observing.endpoint import Endpoint
from millrace.observing.exposition import Bounds, registry_of
from millrace.observing.figures import Figures
from tests.e2e.fraud_runs import until
from tests.unit.millrace.observing.cases import figures

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "prometheus"
RULES = DEPLOY / "alerts.yaml"
BOUNDS = Bounds(ready_lag=100, ready_age_ms=10_000, dead_after_ms=60_000)
#: A number that an alert holds something against; nothing and no share of it is one.
_BOUND = re.compile(r"(?<![\w.\[])(0\.01|[1-9][0-9]*)(?![\w.\])])")
_INSTANCE = re.compile(r'instance="(\w+)"')
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def programs() -> Path:
    """The folder of `prometheus` and `promtool`."""
    if os.environ.get("MILLRACE_NO_PROMETHEUS") == "1":
        pytest.skip("MILLRACE_NO_PROMETHEUS=1")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millrace"
    places = [os.environ.get("MILLRACE_PROMETHEUS"), shutil.which("promtool")]
    found = [Path(places[0])] if places[0] else [Path(places[1]).parent] if places[1] else []
    found.append(Path(os.environ.get("MILLRACE_CACHE") or cache) / "prometheus" / "usr" / "bin")
    for folder in found:
        if (folder / "promtool").is_file() and (folder / "prometheus").is_file():
            return folder
    pytest.fail(
        "no Prometheus here: run scripts/install-prometheus, name the folder of its programs in "
        "MILLRACE_PROMETHEUS, or leave these tests out with MILLRACE_NO_PROMETHEUS=1",
        pytrace=False,
    )


def promtool(programs: Path, *words: str | Path) -> str:
    """Return what the tool says, and see that it found nothing wrong."""
    done = subprocess.run([programs / "promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def alerts() -> list[str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"]]


def test_rules_and_configuration_are_what_prometheus_takes(programs: Path) -> None:
    said = promtool(programs, "check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert f"{len(alerts())} rules found" in said
    promtool(programs, "check", "config", "--lint=all", "--lint-fatal", DEPLOY / "prometheus.yaml")


def test_each_alert_fires_in_its_case_and_not_beside_it(programs: Path) -> None:
    cases = yaml.safe_load((DEPLOY / "alerts_test.yaml").read_text())["tests"]
    tried = [test for case in cases for test in case["alert_rule_test"]]
    assert sorted({test["alertname"] for test in tried if test["exp_alerts"]}) == sorted(alerts())
    for case in cases:
        fired = [one["exp_labels"] for test in case["alert_rule_test"] for one in test["exp_alerts"]]
        every = {_INSTANCE.findall(one["series"])[0] for one in case["input_series"]}
        assert {labels["instance"] for labels in fired} < every, f"{case['name']}: nobody is well"
    promtool(programs, "test", "rules", DEPLOY / "alerts_test.yaml")


def bounds() -> Iterator[tuple[str, str]]:
    """Yield each alert with its expression where one of its numbers is half of what it is."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for one in group["rules"]:
            for number in _BOUND.finditer(one["expr"]):
                half = f"{float(number[1]) / 2:g}"
                yield one["alert"], one["expr"][: number.start(1)] + half + one["expr"][number.end(1) :]


@pytest.mark.parametrize(("alert", "loosened"), list(bounds()))
def test_an_alert_that_asks_for_half_as_much_is_found_by_its_case(
    programs: Path, tmp_path: Path, alert: str, loosened: str
) -> None:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    group["rules"] = [{**one, "expr": loosened} for one in group["rules"] if one["alert"] == alert]
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump({"groups": [group]}))
    cases = yaml.safe_load((DEPLOY / "alerts_test.yaml").read_text())
    cases["tests"] = [c for c in cases["tests"] if c["alert_rule_test"][0]["alertname"] == alert]
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(cases))
    words = [programs / "promtool", "test", "rules", tmp_path / "test.yaml"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode != 0, loosened
    assert f"alertname: {alert}" in done.stdout + done.stderr


def test_what_the_dashboard_asks_is_promql(programs: Path, tmp_path: Path) -> None:
    panels = json.loads((ROOT / "deploy" / "grafana" / "millrace.json").read_text())["panels"]
    asked = [target["expr"].replace("$instance", ".*") for panel in panels for target in panel["targets"]]
    assert len(asked) > 20
    assert not any("$" in expression for expression in asked)
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(asked)]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(asked)} rules found" in promtool(programs, "check", "rules", file)


@contextmanager
def server(programs: Path, folder: Path, target: str) -> Iterator[str]:
    """Run a Prometheus with our files, every second, on one target; give its address."""
    config = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(RULES)]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = [programs / "prometheus", f"--config.file={folder / 'prometheus.yaml'}",
               f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            yield f"http://{address}"
        finally:
            child.terminate()
            child.wait(20)


def asked(address: str, path: str, **parameters: str) -> Any:
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    try:
        with urllib.request.urlopen(f"{address}/api/v1/{path}{query}", timeout=10) as answer:  # noqa: S310
            return json.loads(answer.read())["data"]
    except (urllib.error.URLError, ConnectionError):
        return None  # it begins


def kept(address: str) -> Samples:
    """Return what the server has of the job now."""
    found = asked(address, "query", query='{__name__=~"millrace_.*"}')
    samples = {}
    for one in [] if found is None else found["result"]:
        labels = {k: v for k, v in one["metric"].items() if k not in ("__name__", "job", "instance")}
        samples[one["metric"]["__name__"], frozenset(labels.items())] = float(one["value"][1])
    return samples


def rule(address: str, name: str) -> Any:
    groups = asked(address, "rules")["groups"]
    return next(one for group in groups for one in group["rules"] if one["name"] == name)


def test_a_real_server_has_every_sample_of_a_job_and_evaluates_every_rule(
    programs: Path, tmp_path: Path
) -> None:
    now = figures()

    def told() -> Figures:
        return now

    expected = {
        (s.name, frozenset(s.labels.items())): s.value
        for family in text_string_to_metric_families(generate_latest(registry_of(told)).decode())
        for s in family.samples
        if s.name.startswith("millrace_")
    }
    with (
        Endpoint("127.0.0.1", 0) as endpoint,
        endpoint.serving(told, BOUNDS),
        server(programs, tmp_path, endpoint.address.removeprefix("http://")) as address,
    ):
        until(lambda: kept(address) != {}, "it has scraped the job", 60)
        (target,) = asked(address, "targets")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        assert kept(address) == expected
        assert len(expected) >= 50

        def are_evaluated() -> bool:
            every = [one for group in asked(address, "rules")["groups"] for one in group["rules"]]
            assert not [one["lastError"] for one in every if one.get("lastError")]
            return len(every) == len(alerts()) and all(one["health"] == "ok" for one in every)

        until(are_evaluated, "each rule is evaluated", 60)
        assert rule(address, "MillraceJobDown")["state"] == "inactive"
        now.error = "the disk is full"
        until(lambda: rule(address, "MillraceJobDown")["state"] == "pending", "an ended query is noticed", 60)
        now.error, now.waiting = None, {}
        until(lambda: rule(address, "MillraceJobDown")["state"] == "inactive", "and one that is back", 60)
        assert not [name for name, _ in kept(address) if name.startswith("millrace_table_waiting")]

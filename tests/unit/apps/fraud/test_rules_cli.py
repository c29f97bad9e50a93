from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace.operations.control_topic import ControlState, audit_row
from millrace.rules import PutListEntry
from millrace_apps.fraud.contracts.events import Control
from millrace_apps.fraud.operations.cli import app
from millrace_apps.fraud.processes.rulebook import LANGUAGE
from tests.unit.millrace.operations.cases import MockBroker, messages_of

RULES = """\
- id: big
  when: amount > 500
  action: review
  owner: ann
- id: testing
  when: small_then_large(2, 80, 10 min)
  action: block
  owner: ann
"""


class Topic:
    """The app's control topic, on a broker in this process."""

    def __init__(self, broker: MockBroker) -> None:
        self.bootstrap, self.name = broker.bootstrap, broker.topic()

    @property
    def values(self) -> list[bytes]:
        """Return what has been sent."""
        return messages_of(self.bootstrap, self.name)


@pytest.fixture(scope="module")
def broker() -> Iterator[MockBroker]:
    mock = MockBroker()
    yield mock
    mock.stop()


@pytest.fixture(autouse=True)
def topic(broker: MockBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Topic:
    made = Topic(broker)
    monkeypatch.setenv("MILLRACE__KAFKA__BOOTSTRAP", made.bootstrap)
    monkeypatch.setenv("MILLRACE__TOPICS__CONTROL", made.name)
    monkeypatch.setenv("MILLRACE__STORAGE__ROOT", str(tmp_path / "app"))
    return made


def run(*command: str) -> str:
    result = CliRunner().invoke(app, list(command))
    if isinstance(result.exception, UserError):
        return f"refused: {result.exception}"
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return str(path)


def test_a_file_is_checked_and_a_bad_rule_is_told_with_file_and_line(rules: str, tmp_path: Path) -> None:
    assert "2 rules are right" in run("rules", "validate", rules)
    bad = tmp_path / "bad.yaml"
    bad.write_text(RULES.replace("amount > 500", "amount > 500 and mcc in (5411)"))
    said = run("rules", "validate", str(bad))
    assert f"{bad}:2: rule 'big': line 1, column 26: a text is looked for, this is a number" in said


def test_a_window_that_no_stage_computes_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("- {id: a, when: 'count(device, 1 h) > 3', action: review}")
    chain = ("-s", "stream.plan=chain")
    assert "the stage 'device' does not run" in run("rules", "validate", str(path), *chain)
    assert "warning" not in run("rules", "validate", str(path)), "as a station it has this stage"
    assert "warning" not in run("rules", "validate", str(path), "-s", "features.entities=device")


@pytest.mark.parametrize("entities", ["shop", "device,device"])
def test_entities_that_do_not_exist_are_refused(rules: str, entities: str) -> None:
    said = run("rules", "validate", rules, "-s", f"features.entities={entities}")
    assert "name each of account, terminal, device, ip, customer, merchant at most once" in said


def test_a_rule_is_published_approved_changed_and_rolled_back(rules: str, topic: Topic) -> None:
    said = run("rules", "publish", rules, "--state", "active", "--by", "ann")
    assert "big: version 1 active" in said
    assert "testing: version 1 shadow, waits for approval (asked by ann)" in said
    assert "a second person must approve" in run("rules", "approve", "testing", "--by", "ann")
    assert "testing: version 1 active" in run("rules", "approve", "testing", "--by", "bob")
    sent = len(topic.values)
    assert "big: unchanged, version 1" in run("rules", "publish", rules, "--by", "ann")
    assert len(topic.values) == sent

    Path(rules).write_text(RULES.replace("500", "400"))
    assert "big: version 2 active" in run(
        "rules", "publish", rules, "--state", "active", "--only", "big", "--by", "ann"
    )
    assert "big: version 1 active" in run("rules", "rollback", "big", "--by", "bob")
    listed = json.loads(run("rules", "list", "--format", "json"))
    states = {r["id"]: [v["state"] for v in r["versions"]] for r in listed["rules"]}
    assert states == {"big": ["active", "paused"], "testing": ["active"]}
    assert [a["what"] for a in listed["rules"][0]["audit"]][-1] == "rollback"
    assert "testing: version 1 paused" in run("rules", "pause", "testing")
    assert "big: version 2 deleted" in run("rules", "delete", "big")
    assert "deleted" in run("rules", "activate", "big")
    assert "2 rules; 0 control events were refused" in run("rules", "list")


def test_a_start_ahead_is_shown(rules: str) -> None:
    said = run("rules", "publish", rules, "--state", "active", "--only", "big", "--from", "2026-12-01T00:00")
    assert "big: version 1 draft, active from 2026-12-01T00:00:00Z" in said
    assert "is no time" in run("rules", "pause", "big", "--from", "tomorrow")


def test_what_the_stream_would_refuse_is_not_sent(rules: str, topic: Topic) -> None:
    run("rules", "publish", rules, "--by", "ann")
    sent = len(topic.values)
    assert "there is no such rule; there are: big, testing" in run("rules", "pause", "bigg")
    assert "no other version has been active" in run("rules", "rollback", "big")
    assert "waits for nobody" in run("rules", "approve", "big")
    assert len(topic.values) == sent


def test_list_entries_are_put_and_removed() -> None:
    start = "2026-01-01T00:00"
    assert "until 2026-01-08" in run("lists", "put", "blocked", "card:c-1", "--for", "7d", "--from", start)
    assert "write kind:value" in run("lists", "put", "blocked", "c-1")
    assert "card:c-1" in run("lists", "show")
    run("lists", "remove", "blocked", "card:c-1")
    assert "card:c-1" not in run("lists", "show")


def test_engine_messages_on_the_topic_mean_nothing_and_refused_events_are_told() -> None:
    book = ControlState(LANGUAGE, Control)
    for value in (b"\xff\x00", b'{"tick": 5}', b'{"kind": "pause_everything"}'):
        book.take(value)
    book.take(b'{"kind": "approve_rule", "id": "a", "version": 1, "by": "x", "at_ms": 1}')
    assert book.refused == ["rule 'a': there is no such rule"]


def test_an_audit_row_says_what_of_what_by_whom() -> None:
    row = audit_row(PutListEntry("blocked", "card:c-1", 9, "ann", 5))
    assert (row["what"], row["subject"], row["by"], row["at_ms"]) == ("put_list_entry", "blocked", "ann", 5)

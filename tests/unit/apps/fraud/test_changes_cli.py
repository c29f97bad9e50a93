"""`millrace fraud changes …` and lists, on a control topic of a broker in this process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from millrace.privacy.keys import make_key_file
from millrace_apps.fraud.contracts.events import Control
from tests.unit.apps.fraud.test_governance import decided, table_of
from tests.unit.apps.fraud.test_rules_cli import Topic, run
from tests.unit.millrace.dashboard.cases import put
from tests.unit.millrace.operations.cases import MockBroker

TWO = ("--set", "governance.two_person=thresholds,allowed,unblock")


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


def sent(topic: Topic) -> list[str]:
    """Kinds of the control events in the topic."""
    return [type(msgspec.json.decode(value, type=Control)).__name__ for value in topic.values]


def put_folder(root: Path) -> int:
    """Decisions as the stream writes them, and labels of some; how many decisions."""
    made = decided(3)
    table_of(made, root / "tables")
    put(root, "labels", [
        {"transaction_id": d.transaction_id, "event_time_ms": d.event_time_ms + 1, "is_fraud": True}
        for d in made[::9]
    ])  # fmt: skip
    return len(made)


def named(said: str) -> str:
    """The proposal that a command names."""
    found = re.search(r"c-[0-9a-f]{12}", said)
    assert found, said
    return found[0]


def test_a_threshold_is_proposed_looked_at_agreed_with_and_undone(topic: Topic, tmp_path: Path) -> None:
    number = put_folder(tmp_path / "app")
    asked = run("changes", "propose", "--threshold", "block_score=0.97", "--reason", "wrong blocks",
                "--last", "900d", "--by", "ann", *TWO)  # fmt: skip
    assert f"{number} decisions" in asked
    assert "waits for a second person" in asked
    name = named(asked)
    waits = run("changes", "list", *TWO)
    assert "block_score: 0.85 now, 0.97 proposed" in waits
    assert "wrong blocks" in waits
    assert "a second person must agree" in run("changes", "approve", name, "--by", "ann", *TWO)
    agreed = run("changes", "approve", name, "--by", "bob", "--last", "900d", *TWO)
    assert "known frauds blocked" in agreed
    assert f"{name} is applied" in agreed
    assert "threshold block_score = 0.97" in run("changes", "list", *TWO)
    assert f"{name} is undone" in run("changes", "undo", name, "--by", "cat", *TWO)
    listed = json.loads(run("changes", "list", "--all", "--format", "json", *TWO))
    assert (listed["thresholds"], listed["proposals"][name][4]) == ({}, "undone")
    assert sent(topic) == ["Propose", "ApproveChange", "UndoChange"]


def test_a_proposal_can_be_rejected_and_what_is_not_known_is_said(topic: Topic) -> None:
    asked = run("changes", "propose", "--put", "allowed=card:c-1", "--by", "ann", *TWO)
    assert "what it would have done is not known" in asked
    name = named(asked)
    assert f"{name} is rejected" in run("changes", "reject", name, "--by", "bob", *TWO)
    assert "nothing waits to be rejected" in run("changes", "reject", name, "--by", "bob", *TWO)
    assert "there is no proposal c-0" in run("changes", "approve", "c-0", "--by", "bob", *TWO)
    assert sent(topic) == ["Propose", "RejectChange"]


def test_lists_become_proposals_where_a_second_person_must_agree(topic: Topic) -> None:
    assert "is on blocked" in run("lists", "put", "blocked", "card:c-1", "--by", "ann", *TWO)
    name = named(run("lists", "put", "allowed", "card:c-2", "--by", "ann", *TWO))
    off = run("lists", "remove", "blocked", "card:c-1", "--by", "ann", *TWO)
    assert "waits for a second person" in off
    assert sent(topic) == ["PutListEntry", "Propose", "Propose"]
    assert "card:c-2" not in run("lists", "show", *TWO)
    run("changes", "approve", name, "--by", "bob", *TWO)
    assert "card:c-2" in run("lists", "show", *TWO)


def test_as_it_comes_what_is_stricter_holds_at_once_and_what_lets_more_pass_waits(topic: Topic) -> None:
    assert "is on blocked" in run("lists", "put", "blocked", "card:c-2", "--by", "ann")
    assert "waits for" in run("lists", "put", "allowed", "card:c-2", "--by", "ann")
    assert "is applied" in run("changes", "propose", "--threshold", "block_score=0.8", "--by", "ann")
    assert "waits for" in run("changes", "propose", "--threshold", "block_score=", "--by", "ann")
    assert sent(topic) == ["PutListEntry", "Propose", "Propose", "Propose"]
    assert "threshold block_score = 0.8" in run("changes", "list")


def test_who_works_alone_can_do_without_a_second_person(topic: Topic) -> None:
    alone = ("--by", "ann", "--set", "governance.two_person=none")
    assert "is on allowed" in run("lists", "put", "allowed", "card:c-2", *alone)
    assert "is applied" in run("changes", "propose", "--threshold", "block_score=0.9", *alone)


def test_looking_ahead_sends_nothing(topic: Topic, tmp_path: Path) -> None:
    number = put_folder(tmp_path / "app")
    out = tmp_path / "report.json"
    said = run("changes", "what-if", "--threshold", "review_score=0.05", "--last", "900d", "--out", str(out))
    assert "looked at" in said, said
    report = json.loads(out.read_text())
    assert report["decisions"] == number
    assert report["then"]["reviews"] > report["now"]["reviews"]
    assert topic.values == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--threshold", "no_such=1"), "there is no threshold"),
        (("--threshold", "block_score=high"), "NAME=VALUE with a number"),
        (("--put", "allowed"), "LIST=VALUE"),
        (("--put", "allowed=c-1"), "kind:value"),
        ((), "nothing is changed"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(words: tuple[str, ...], why: str, topic: Topic) -> None:
    assert why in run("changes", "propose", *words, "--by", "ann")
    assert topic.values == []


NUMBER = "4111 1111 1111 1111"


def test_a_card_number_stands_in_no_change_nor_in_its_reason(topic: Topic, tmp_path: Path) -> None:
    key = tmp_path / "app" / "privacy" / "token.keys"
    make_key_file(key)
    because = ("--reason", f"the holder of {NUMBER} called")
    said = run("changes", "propose", "--put", f"allowed=card:{NUMBER}", *because, "--by", "ann", *TWO)
    name = named(said)
    run("changes", "approve", name, *because, "--by", "bob", *TWO)
    run("changes", "undo", name, *because, "--by", "bob", *TWO)
    run("lists", "put", "blocked", f"card:{NUMBER}", "--reason", NUMBER, "--by", "ann", *TWO)
    assert len(topic.values) == 4
    for value in topic.values:
        assert not re.search(rb"4111\D?1111", value), value
    assert b"called" in topic.values[0]


def test_an_entry_that_ends_in_the_past_is_told_so(topic: Topic) -> None:
    said = run("lists", "put", "blocked", "card:c-1", "--from", "2020-01-01", "--for", "1d", "--by", "ann")
    assert "past by the clock" in said


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e300"])
def test_a_threshold_that_is_no_amount_is_refused_before_it_is_sent(topic: Topic, value: str) -> None:
    for command in ("propose", "what-if"):
        assert "a threshold is a number" in run("changes", command, "--threshold", f"block_score={value}")
    assert topic.values == []

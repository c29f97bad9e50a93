from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.rules import (
    ApproveRule,
    Entry,
    InForce,
    MemoryEntries,
    PublishRule,
    PutListEntry,
    RemoveListEntry,
    RollbackRule,
    Rule,
    RuleError,
    RuleEvent,
    SetRuleState,
    apply_list,
    apply_rule,
    check_rules,
    view_of,
)
from millrace.rules.model import MAX_AUDIT, MAX_LIST, MAX_RULES, MAX_VERSIONS
from tests.unit.millrace.rules.cases import LANGUAGE, Event


class Book:
    """Rules in memory."""

    def __init__(self) -> None:
        self.entries = MemoryEntries()

    def do(self, *events: RuleEvent) -> None:
        for event in events:
            # As on the topic: what cannot be read back there is no event.
            apply_rule(
                LANGUAGE, msgspec.json.decode(msgspec.json.encode(event), type=RuleEvent), self.entries
            )

    def refuse(self, event: RuleEvent, problem: str) -> None:
        before = dict(self.entries)
        with pytest.raises(RuleError, match=problem):
            self.do(event)
        assert dict(self.entries) == before

    def states(self, at: int = 0, rule: str = "big") -> list[str]:
        return [v.state_at(at) for v in self.entries[rule].versions]

    def found(self, at: int, amount: float) -> list[tuple[int, bool]]:
        matches = InForce(LANGUAGE, self.entries).at(at).matches(Event(amount=amount))
        return [(m.version, m.shadow) for m in matches]


def publish(
    version: int, limit: int = 100, *, action: str = "review", rule: str = "big", **kw: Any
) -> PublishRule:
    by = kw.pop("by", "ann")
    return PublishRule(Rule(rule, f"amount > {limit}", action, owner="ann"), version, by, 0, **kw)


def test_a_draft_is_not_asked_a_shadow_is_marked_and_an_active_rule_counts() -> None:
    book = Book()
    book.do(publish(1))
    assert book.found(0, 500) == []
    book.do(SetRuleState("big", 1, "shadow", "ann", 0))
    assert book.found(0, 500) == [(1, True)]
    book.do(SetRuleState("big", 1, "active", "ann", 0))
    assert book.found(0, 500) == [(1, False)]
    book.do(SetRuleState("big", 1, "paused", "ann", 0))
    assert book.found(0, 500) == []


def test_a_new_version_runs_in_shadow_beside_the_active_one_and_replaces_it_when_active() -> None:
    book = Book()
    book.do(publish(1, state="active"), publish(2, 400, state="shadow"))
    assert book.found(0, 500) == [(1, False), (2, True)]
    book.do(SetRuleState("big", 2, "active", "bob", 0))
    assert book.found(0, 500) == [(2, False)]
    assert book.found(0, 300) == []
    book.do(RollbackRule("big", 1, "bob", 0))
    assert book.found(0, 300) == [(1, False)]
    assert book.states() == ["active", "paused"]


def test_a_change_from_an_event_time_on_leaves_no_moment_without_a_rule() -> None:
    """Version 2 takes over at 1,000.

    ::

        version 1  ==========|
        version 2            |=========
                            1000
    """
    book = Book()
    book.do(publish(1, state="active"), publish(2, 200, state="active", from_ms=1_000))
    assert [book.found(at, 500) for at in (0, 999, 1_000, 5_000)] == [[(1, False)]] * 2 + [[(2, False)]] * 2
    rules = InForce(LANGUAGE, book.entries)
    for at in (5_000, 0, 999, 1_000, -5):  # events come in any order
        assert [m.version for m in rules.at(at).matches(Event(amount=500))] == [2 if at >= 1_000 else 1]
    assert {(m.rule.id, m.version) for m in rules.rules} == {("big", 1), ("big", 2)}


def test_a_second_person_approves_a_rule_that_blocks() -> None:
    book = Book()
    book.do(publish(1, action="block", by="bob", state="active"))
    assert book.states() == ["shadow"]
    for same in ("ann", "bob"):  # its owner, and who asked
        book.refuse(ApproveRule("big", 1, same, 0), "a second person must approve")
    book.do(ApproveRule("big", 1, "eve", 0))
    assert book.found(0, 500) == [(1, False)]
    book.refuse(ApproveRule("big", 1, "eve", 0), "waits for nobody")
    audit = [(a.what, a.by) for a in book.entries["big"].audit]
    assert audit == [("publish", "bob"), ("ask active", "bob"), ("approve", "eve")]


def test_an_approved_start_that_lies_ahead_is_kept() -> None:
    book = Book()
    book.do(
        publish(1, action="block", by="bob", state="active", from_ms=1_000), ApproveRule("big", 1, "eve", 0)
    )
    assert [book.found(at, 500) for at in (999, 1_000)] == [[], [(1, False)]]


def test_pausing_withdraws_a_question_for_approval() -> None:
    book = Book()
    book.do(publish(1, action="block", by="bob", state="active"), SetRuleState("big", 1, "paused", "bob", 0))
    book.refuse(ApproveRule("big", 1, "eve", 0), "waits for nobody")


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (publish(1), "version 1 does not follow 1: somebody published before you"),
        (publish(3), "version 3 does not follow 1"),
        (PublishRule(Rule("big", "amount >", "review"), 2, "ann", 0), "line 1, column 9: the text ends"),
        (
            PublishRule(Rule("big", "amount > 1", "explode"), 2, "ann", 0),
            "no action 'explode'; there are: review, block",
        ),
        (SetRuleState("small", 1, "active", "ann", 0), "rule 'small': there is no such rule"),
        (SetRuleState("big", 7, "active", "ann", 0), "there is no version 7; there are 1"),
        (RollbackRule("big", 1, "ann", 0), "has never been active"),
        (ApproveRule("big", 1, "eve", 0), "waits for nobody"),
    ],
)
def test_what_is_refused_changes_nothing(event: RuleEvent, problem: str) -> None:
    book = Book()
    book.do(publish(1))
    book.refuse(event, problem)


def test_a_deleted_rule_stays_deleted() -> None:
    book = Book()
    book.do(publish(1, state="active"), SetRuleState("big", 1, "deleted", "ann", 0))
    assert book.found(0, 500) == []
    book.refuse(SetRuleState("big", 1, "active", "ann", 0), "deleted")
    book.refuse(RollbackRule("big", 1, "ann", 0), "deleted")


def test_versions_audit_and_rules_are_bounded() -> None:
    book = Book()
    for number in range(1, 40):
        book.do(publish(number, state="active" if number == 1 else "draft"))
    entry = book.entries["big"]
    assert (len(entry.versions), len(entry.audit)) == (MAX_VERSIONS, MAX_AUDIT)
    assert book.found(0, 500) == [(1, False)]  # what is in force is never left out
    for number in range(MAX_RULES - 1):
        book.entries[f"r{number}"] = entry
    book.refuse(publish(1, rule="more"), "the most there may be")


def test_an_entry_survives_its_encoding() -> None:
    book = Book()
    book.do(publish(1, state="active"), publish(2, action="block", state="active", from_ms=9))
    entry = book.entries["big"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(entry), type=Entry) == entry


def test_a_rule_that_the_language_no_longer_knows_is_left_out_and_told() -> None:
    book = Book()
    book.do(publish(1, state="active"), publish(1, rule="other", state="active"))
    kept = book.entries["other"]
    (version,) = kept.versions
    gone = msgspec.structs.replace(version, rule=Rule("other", "xyz9 > 1", "review"))
    book.entries["other"] = msgspec.structs.replace(kept, versions=(gone,))
    rules = InForce(LANGUAGE, book.entries)
    assert [m.rule.id for m in rules.at(0).matches(Event(amount=500))] == ["big"]
    assert rules.broken == {("other", 1): "line 1, column 1: there is no field 'xyz9'"}


def test_what_was_compiled_is_kept_by_content() -> None:
    book, view = Book(), view_of(LANGUAGE)
    book.do(publish(1, state="active"))
    first = view(list(book.entries.items()))
    again = {
        id: msgspec.msgpack.decode(msgspec.msgpack.encode(e), type=Entry) for id, e in book.entries.items()
    }
    assert view(list(again.items())) is first
    book.do(SetRuleState("big", 1, "paused", "ann", 0))
    assert view(list(book.entries.items())) is not first


class Lists(dict[str, dict[str, int]]):
    def put(self, key: str, value: dict[str, int]) -> None:
        self[key] = value


def test_list_entries_come_go_and_end_by_themselves() -> None:
    lists = Lists()
    apply_list(PutListEntry("bad", "c-1", 1_000, "ann", 0), lists, now_ms=0)
    apply_list(PutListEntry("bad", "c-2", 500, "ann", 0), lists, now_ms=0)
    assert lists == {"bad": {"c-1": 1_000, "c-2": 500}}
    apply_list(PutListEntry("bad", "c-3", 2_000, "ann", 0), lists, now_ms=500)
    assert lists == {"bad": {"c-1": 1_000, "c-3": 2_000}}
    apply_list(RemoveListEntry("bad", "c-1", "ann", 0), lists, now_ms=500)
    assert lists == {"bad": {"c-3": 2_000}}
    with pytest.raises(RuleError, match="until_ms is past"):
        apply_list(PutListEntry("bad", "c-9", 500, "ann", 0), lists, now_ms=500)
    lists["bad"] = {str(n): 9_000 for n in range(MAX_LIST)}
    with pytest.raises(RuleError, match="the most there may be"):
        apply_list(PutListEntry("bad", "c-9", 9_000, "ann", 0), lists, now_ms=500)


GOOD = """\
rules:
  - id: big
    when: amount > 500
    action: review
  - {id: two, when: "amount > 1", action: block, options: {weight: '0.5'}}
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD, ""),
        (
            "- {id: a, when: 'amont > 1', action: review}",
            "rules.yaml:1: rule 'a': line 1, column 1: there is no field",
        ),
        ("- id: a\n  when: |\n    amount > 1\n    and amont > 2\n  action: review", "rules.yaml:4: rule 'a'"),
        (
            "- {id: a, when: amount > 1, action: review}\n- {id: a, when: amount > 1, action: review}",
            "stands here twice",
        ),
        ("- {id: a, when: amount > 1, action: boom}", "no action 'boom'"),
    ],
)
def test_a_file_of_rules_is_checked_with_file_and_line(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    rules, problems = check_rules(LANGUAGE, path)
    assert len(problems) == bool(problem)
    assert problem in "".join(problems)
    if not problem:
        assert [r.id for r in rules] == ["big", "two"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "rules.yaml:1"),
        ("a: 1", "the file is a list of rules"),
        ("- 5", "rules.yaml:1"),
        ("- {id: a}", "missing required field `when`"),
        ("- {id: a, when: x, wen: y}", "a rule has no field 'wen'"),
        ("- {id: '../a', when: x}", "matching regex"),
    ],
)
def test_a_file_that_is_no_list_of_rules_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(RuleError) as caught:
        check_rules(LANGUAGE, path)
    assert problem in str(caught.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="cannot be read: No such file"):
        check_rules(LANGUAGE, tmp_path / "none.yaml")

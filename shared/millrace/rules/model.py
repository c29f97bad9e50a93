"""Rules as data: a rule, the states of its life, and the events that change them.

The events are control events of a process: add them to its ``control_type``.
"""

from __future__ import annotations

import unicodedata
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

#: ``draft``: kept, never asked. ``shadow``: asked, has no effect. ``active``: in force. ``paused``: has been
#: in force, is not asked. ``deleted``: for good.
State = Literal["draft", "shadow", "active", "paused", "deleted"]
Identifier = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$")]
Person = Annotated[str, Meta(min_length=1, max_length=128)]
TimeMs = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
Version_ = Annotated[int, Meta(ge=1, le=1_000_000)]

#: Most rules, kept versions of one, kept lines of its history, and entries of a list.
MAX_RULES: Final = 1_000
MAX_VERSIONS: Final = 10
MAX_AUDIT: Final = 30
MAX_LIST: Final = 10_000
#: Most characters of a condition, and of what else is said of a rule; most options of one.
MAX_CONDITION: Final = 20_000
MAX_TEXT: Final = 2_000
MAX_OPTIONS: Final = 64
Reason = Annotated[str, Meta(max_length=MAX_TEXT)]


class Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rule as its author writes it.

    Attributes:
        id: Its name, which stays the same over its versions.
        when: The condition, in the app's rule language.
        action: What is to be done where it holds: one of the app's actions.
        owner: Who answers for it.
        description: What it is for.
        reason: Code that results carry; unless given, the id.
        options: What else the app's rules have, by name.
    """

    id: Identifier
    when: str
    action: str = ""
    owner: str = ""
    description: str = ""
    reason: str = ""
    options: dict[str, str] = {}


class PublishRule(msgspec.Struct, frozen=True, tag_field="kind", tag="publish_rule"):
    """Control event: a new version of a rule.

    Attributes:
        rule: The rule.
        version: One more than the last version of this id; 1 for a new one.
        by: Who publishes it.
        at_ms: When, by the publisher's clock, UTC ms; for the record only.
        state: The state it begins in.
        from_ms: Event time from which on it has that state, ms; 0: at once.
        reason: Why.
    """

    rule: Rule
    version: Version_
    by: Person
    at_ms: TimeMs
    state: Literal["draft", "shadow", "active"] = "draft"
    from_ms: TimeMs = 0
    reason: Reason = ""

    def __post_init__(self) -> None:
        # Here and not in the rule's type, with which what is kept is read.
        rule = self.rule
        if len(rule.when) > MAX_CONDITION:
            raise ValueError(f"the rule's condition is out of range: at most {MAX_CONDITION:,} characters")
        if len(rule.options) > MAX_OPTIONS:
            raise ValueError(f"the rule's options are out of range: at most {MAX_OPTIONS}")
        texts = (
            rule.action,
            rule.owner,
            rule.description,
            rule.reason,
            *rule.options,
            *rule.options.values(),
        )
        if max(map(len, texts)) > MAX_TEXT:
            raise ValueError(f"a text of the rule is out of range: at most {MAX_TEXT:,} characters")


class SetRuleState(msgspec.Struct, frozen=True, tag_field="kind", tag="set_rule_state"):
    """Control event: another state for a version of a rule.

    Making one active takes the version that was active out of force. ``deleted`` is for all versions.

    Attributes:
        id: The rule.
        version: Which version.
        state: Its new state.
        by: Who says so.
        at_ms: When, by the publisher's clock, UTC ms; for the record only.
        from_ms: Event time from which on, ms; 0: at once.
        reason: Why.
    """

    id: Identifier
    version: Version_
    state: State
    by: Person
    at_ms: TimeMs
    from_ms: TimeMs = 0
    reason: Reason = ""


class ApproveRule(msgspec.Struct, frozen=True, tag_field="kind", tag="approve_rule"):
    """Control event: a second person agrees that a version becomes active.

    Attributes:
        id: The rule.
        version: Which version.
        by: Who agrees; somebody else than who asked for it.
        at_ms: When, by the publisher's clock, UTC ms; for the record only.
        reason: Why.
    """

    id: Identifier
    version: Version_
    by: Person
    at_ms: TimeMs
    reason: Reason = ""


class RollbackRule(msgspec.Struct, frozen=True, tag_field="kind", tag="rollback_rule"):
    """Control event: an earlier version that was active before is in force again.

    It was approved then if it had to be, so it needs no second person now.

    Attributes:
        id: The rule.
        to_version: Which version.
        by: Who says so.
        at_ms: When, by the publisher's clock, UTC ms; for the record only.
        reason: Why.
    """

    id: Identifier
    to_version: Version_
    by: Person
    at_ms: TimeMs
    reason: Reason = ""


class PutListEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="put_list_entry"):
    """Control event: a value is on a list until a time.

    Attributes:
        list: The list.
        entry: The value.
        until_ms: Event time at which it is off the list by itself, ms.
        by: Who says so.
        at_ms: When, by the publisher's clock, UTC ms; for the record only.
        note: Why.
    """

    list: Identifier
    entry: Annotated[str, Meta(min_length=1, max_length=256)]
    until_ms: TimeMs
    by: Person
    at_ms: TimeMs
    note: Reason = ""


class RemoveListEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="remove_list_entry"):
    """Control event: a value is off a list.

    Attributes:
        list: The list.
        entry: The value.
        by: Who says so.
        at_ms: When, by the publisher's clock, UTC ms; for the record only.
    """

    list: Identifier
    entry: Annotated[str, Meta(min_length=1, max_length=256)]
    by: Person
    at_ms: TimeMs


def same_person(one: str, other: str) -> bool:
    """Return whether two names are one person's: case, blanks and forms of letters make no second person.

    >>> same_person("Ann Lee", " ann  lee"), same_person("ann", "bob")
    (True, False)
    """
    return _plain(one) == _plain(other)


def _plain(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


RuleEvent = PublishRule | SetRuleState | ApproveRule | RollbackRule
ListEvent = PutListEntry | RemoveListEntry


class Audit(msgspec.Struct, frozen=True, array_like=True):
    """A line of a rule's history: what was done to which version, by whom and when."""

    what: str
    version: int
    by: str
    at_ms: int
    from_ms: int = 0


class Step(msgspec.Struct, frozen=True, array_like=True):
    """A state that a version has from an event time on, ms."""

    from_ms: int
    state: State


class Version(msgspec.Struct, frozen=True, array_like=True):
    """A version of a rule as it is kept.

    Attributes:
        number: From 1.
        rule: What was published.
        plan: Its states, in order of time; the first from 0 on.
        asked_by: Who asked for it to be active, while it waits for a second person; else empty.
        asked_from_ms: The event time that was asked for.
        was_active: Whether it has been active: so it may be rolled back to.
    """

    number: int
    rule: Rule
    plan: tuple[Step, ...]
    asked_by: str = ""
    asked_from_ms: int = 0
    was_active: bool = False

    def state_at(self, time_ms: int) -> State:
        """Return its state at an event time."""
        found: State = "draft"
        for step in self.plan:
            if step.from_ms > time_ms:
                break
            found = step.state
        return found


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A rule as it is kept: its newest versions and the newest lines of its history."""

    versions: tuple[Version, ...]
    audit: tuple[Audit, ...]

"""The rule book: versions and life of rules, by control events.

A process keeps two broadcast states and hands them over in ``process_broadcast``; what is refused raises, so
that the event goes to the dead letters and the rules stay as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from millrace.rules.errors import RuleError
from millrace.rules.language import Language
from millrace.rules.model import (
    MAX_AUDIT,
    MAX_LIST,
    MAX_RULES,
    MAX_VERSIONS,
    ApproveRule,
    Audit,
    Entry,
    ListEvent,
    PublishRule,
    PutListEntry,
    RollbackRule,
    Rule,
    RuleEvent,
    SetRuleState,
    State,
    Step,
    Version,
    same_person,
)


class Entries(Protocol):
    """Where rules are kept: a broadcast state, or anything like it."""

    def get(self, key: str) -> Entry | None:
        """Return what is kept at ``key``."""

    def put(self, key: str, value: Entry) -> None:
        """Keep ``value`` at ``key``."""

    def __len__(self) -> int: ...


class Lists(Protocol):
    """Where lists are kept: list → value → event time until which it is on it, ms."""

    def get(self, key: str) -> dict[str, int] | None:
        """Return the list."""

    def put(self, key: str, value: dict[str, int]) -> None:
        """Keep the list."""


class MemoryEntries(dict[str, Entry]):
    """Rules kept in memory: for commands and tests.

    Example:
        >>> from millrace.rules import Field, Language, PublishRule, Rule
        >>> book = MemoryEntries()
        >>> language = Language({"amount": Field("number")})
        >>> apply_rule(language, PublishRule(Rule("big", "amount > 500"), 1, "ann", 0, "active"), book)
        >>> book["big"].versions[0].state_at(0)
        'active'
    """

    def put(self, key: str, value: Entry) -> None:
        """Keep a rule."""
        self[key] = value


def check_rule(language: Language, rule: Rule) -> None:
    """Refuse a rule that does not fit the language.

    Raises:
        RuleError: Says which rule, where in its text, and why.
    """
    if rule.action not in language.actions and (rule.action or language.actions):
        known = ", ".join(language.actions) or "none"
        raise RuleError(f"there is no action {rule.action!r}; there are: {known}", rule=rule.id)
    try:
        language.condition(rule.when)
    except RuleError as error:
        raise error.of(rule.id) from None


def apply_rule(language: Language, event: RuleEvent, entries: Entries) -> None:
    """Do what a rule event says.

    Args:
        language: The app's language.
        event: The event.
        entries: The rules; changed only if the event is accepted.

    Raises:
        RuleError: The event is refused; says why.
    """
    if isinstance(event, PublishRule):
        changed = _published(language, event, entries)
    else:
        kept = entries.get(event.id)
        if kept is None:
            raise RuleError("there is no such rule", rule=event.id)
        if isinstance(event, ApproveRule):
            changed = _approved(event, kept)
        elif isinstance(event, RollbackRule):
            changed = _rolled_back(event, kept)
        else:
            changed = _state_set(language, event, kept)
    entries.put(event.rule.id if isinstance(event, PublishRule) else event.id, changed)


def apply_list(event: ListEvent, lists: Lists, *, now_ms: int) -> None:
    """Put a value on a list, or take it off; forget what is off by itself.

    Args:
        event: The event.
        lists: The lists.
        now_ms: Event time that no event is before, ms: the watermark.

    Raises:
        RuleError: The list is full, or the entry's end is past.
    """
    kept = {value: until for value, until in (lists.get(event.list) or {}).items() if until > now_ms}
    if isinstance(event, PutListEntry):
        if event.until_ms <= now_ms:
            raise RuleError(f"list {event.list!r}: the entry ends before it begins: until_ms is past")
        if len(kept) >= MAX_LIST and event.entry not in kept:
            raise RuleError(f"list {event.list!r} has {MAX_LIST:,} entries, the most there may be")
        kept[event.entry] = event.until_ms
    else:
        kept.pop(event.entry, None)
    lists.put(event.list, kept)


def _published(language: Language, event: PublishRule, entries: Entries) -> Entry:
    check_rule(language, event.rule)
    kept = entries.get(event.rule.id) or Entry((), ())
    if not kept.versions and len(entries) >= MAX_RULES:
        raise RuleError(f"there are {MAX_RULES:,} rules, the most there may be", rule=event.rule.id)
    last = max((v.number for v in kept.versions), default=0)
    if event.version != last + 1:
        raise RuleError(f"version {event.version} does not follow {last}: somebody published before you"
                        if event.version <= last else f"version {event.version} does not follow {last}",
                        rule=event.rule.id)  # fmt: skip
    versions = [*kept.versions, Version(event.version, event.rule, (Step(0, "draft"),))]
    changed = Entry(_newest(versions), _noted(kept, "publish", event.version, event.by, event.at_ms, 0))
    if event.state == "draft":
        return changed
    follow = SetRuleState(event.rule.id, event.version, event.state, event.by, event.at_ms, event.from_ms)
    return _state_set(language, follow, changed)


def _state_set(language: Language, event: SetRuleState, kept: Entry) -> Entry:
    version = _version(kept, event.id, event.version)
    if event.state == "deleted":
        versions = tuple(_planned(v, "deleted", event.from_ms) for v in kept.versions)
        return Entry(versions, _noted(kept, "deleted", version.number, event.by, event.at_ms, event.from_ms))
    if event.state == "active" and version.rule.action in language.two_person:
        asked = msgspec.structs.replace(
            _planned(version, "shadow", event.from_ms), asked_by=event.by, asked_from_ms=event.from_ms
        )
        audit = _noted(kept, "ask active", version.number, event.by, event.at_ms, event.from_ms)
        return Entry(_with(kept, asked), audit)
    changed = _in_state(kept, version, event.state, event.from_ms)
    return Entry(changed, _noted(kept, event.state, version.number, event.by, event.at_ms, event.from_ms))


def _approved(event: ApproveRule, kept: Entry) -> Entry:
    version = _version(kept, event.id, event.version)
    if not version.asked_by:
        raise RuleError(f"version {version.number} waits for nobody's approval", rule=event.id)
    if any(same_person(event.by, other) for other in (version.asked_by, version.rule.owner)):
        raise RuleError(f"{event.by} asked for it or owns it: a second person must approve", rule=event.id)
    start = version.asked_from_ms
    changed = _in_state(kept, msgspec.structs.replace(version, asked_by=""), "active", start)
    return Entry(changed, _noted(kept, "approve", version.number, event.by, event.at_ms, start))


def _rolled_back(event: RollbackRule, kept: Entry) -> Entry:
    version = _version(kept, event.id, event.to_version)
    if not version.was_active:
        raise RuleError(f"version {version.number} has never been active", rule=event.id)
    changed = _in_state(kept, version, "active", 0)
    return Entry(changed, _noted(kept, "rollback", version.number, event.by, event.at_ms, 0))


def _in_state(kept: Entry, version: Version, state: State, from_ms: int) -> tuple[Version, ...]:
    """Return the versions with one in another state; one that is active takes the others out of force."""
    changed = msgspec.structs.replace(
        _planned(version, state, from_ms), asked_by="", was_active=version.was_active or state == "active"
    )
    versions = _with(kept, changed)
    if state != "active":
        return versions
    return tuple(
        v if v.number == version.number or v.state_at(from_ms) != "active" else _planned(v, "paused", from_ms)
        for v in versions
    )


def _planned(version: Version, state: State, from_ms: int) -> Version:
    before = tuple(step for step in version.plan if step.from_ms < from_ms)
    return msgspec.structs.replace(version, plan=(*before, Step(from_ms, state)))


def _version(kept: Entry, rule: str, number: int) -> Version:
    for version in kept.versions:
        if version.number == number:
            if version.plan[-1].state == "deleted":
                raise RuleError("the rule is deleted: publish it anew under another id", rule=rule)
            return version
    known = ", ".join(str(v.number) for v in kept.versions)
    raise RuleError(f"there is no version {number}; there are {known}", rule=rule)


def _with(kept: Entry, changed: Version) -> tuple[Version, ...]:
    return tuple(changed if v.number == changed.number else v for v in kept.versions)


def _newest(versions: list[Version]) -> tuple[Version, ...]:
    """Leave out the oldest versions that neither are nor will be in force."""
    while len(versions) > MAX_VERSIONS:
        idle = (v for v in versions[:-1] if all(s.state in ("draft", "paused") for s in v.plan[-1:]))
        versions.remove(next(idle, versions[0]))
    return tuple(versions)


def _noted(kept: Entry, what: str, version: int, by: str, at_ms: int, from_ms: int) -> tuple[Audit, ...]:
    return (*kept.audit, Audit(what, version, by, at_ms, from_ms))[-MAX_AUDIT:]


def in_state(entry: Entry, time_ms: int) -> Iterator[tuple[Version, State]]:
    """Yield the versions of a rule that are asked at an event time (ms): active or in shadow."""
    for version in entry.versions:
        state = version.state_at(time_ms)
        if state in ("active", "shadow"):
            yield version, state

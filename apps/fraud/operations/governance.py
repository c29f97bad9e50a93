"""Two-person governance of what lets payments pass: thresholds, lists, rules, and proposals to change them.

::

    propose ──► waiting ──► approve, by a second person ──► applied ──► undo ──► undone
       │           └──► reject ──► rejected                    ▲          └──► waits for a second person,
       └── nobody's agreement is needed ───────────────────────┘               where that lets more pass

The stream itself holds to this, so that nobody who writes to the control topic can do without the second
person: what lacks one is refused and ends in the dead letters. Commands look ahead with the code that the
stream runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from millrace.errors import UserError
from millrace.rules import (
    Entry,
    Language,
    PutListEntry,
    RemoveListEntry,
    apply_list,
    apply_rule,
    looked_into,
    same_person,
)
from millrace.rules.book import Entries, Lists
from millrace_apps.fraud.contracts.control_events import (
    ApproveChange,
    Change,
    Propose,
    RejectChange,
    ResetThreshold,
    SetThreshold,
    Settlement,
    UndoChange,
)
from millrace_apps.fraud.processes.currencies import MAX_AMOUNT
from millrace_apps.fraud.processes.decision import ALLOWED, BLOCKED
from millrace_apps.fraud.processes.rulebook import LANGUAGE
from millrace_apps.fraud.processes.scoring import DEFAULTS, THRESHOLD_NAMES

#: What two persons may be needed for.
COVERED: Final = ("block_rules", "approve_rules", "thresholds", "allowed", "unblock", "blocked")
#: What they are needed for unless told.
BY_DEFAULT: Final = ("block_rules", "approve_rules", "thresholds", "allowed")
#: Most proposals that are kept; those that are settled go first.
MAX_PROPOSALS: Final = 500
#: Thresholds of which a lower value lets more pass, and those of which either may; of others a higher one.
_LOWER_PASSES: Final = frozenset({"small_amount", "spree_busy"})
_EITHER_PASSES: Final = frozenset({"min_history"})

Status = Literal["waiting", "applied", "rejected", "undoing", "undone"]
_changes = msgspec.json.Decoder(list[Change])


class UnknownThreshold(UserError):
    """A control event names a threshold that does not exist."""


class NotAgreed(UserError):
    """A second person must agree, and has not; or there is nothing to agree with."""


class Overrides(Protocol):
    """Where thresholds are kept that are not their defaults: a broadcast state, or anything like it."""

    def get(self, key: str) -> float | None:
        """Return the value of a threshold."""

    def put(self, key: str, value: float) -> None:
        """Keep a value."""

    def remove(self, key: str) -> None:
        """Forget a value."""


class Proposal(msgspec.Struct, frozen=True, array_like=True):
    """A proposal as it is kept.

    Attributes:
        changes: What is to be changed, as JSON.
        by: Who proposed it.
        at_ms: When, by the publisher's clock, UTC ms.
        reason: Why.
        status: ``waiting`` for a second person, ``applied``, ``rejected``, ``undoing``: its undoing waits,
            ``undone``.
        agreed_by: Who agreed with it; empty: nobody had to, or has yet.
        settled_by: Who rejected it, or asks for its undoing.
        before: What it changed → the value before it; None: there was none.
        after: The same, with the value that it left.
    """

    changes: str
    by: str
    at_ms: int
    reason: str = ""
    status: Status = "waiting"
    agreed_by: str = ""
    settled_by: str = ""
    before: dict[str, float | None] = {}
    after: dict[str, float | None] = {}

    def each(self) -> list[Change]:
        """Return what is to be changed."""
        return _changes.decode(self.changes)


class Proposals(Protocol):
    """Where proposals are kept: a broadcast state, or anything like it."""

    def get(self, key: str) -> Proposal | None:
        """Return a proposal."""

    def put(self, key: str, value: Proposal) -> None:
        """Keep a proposal."""

    def remove(self, key: str) -> None:
        """Forget a proposal."""

    def items(self) -> Iterable[tuple[str, Proposal]]:
        """Return all of them."""


class RuleEntries(Entries, Protocol):
    """Rules that can be gone through."""

    def items(self) -> Iterable[tuple[str, Entry]]:
        """Return all of them."""


class Kept(NamedTuple):
    """What control events change.

    Attributes:
        overrides: Thresholds that are not their defaults.
        lists: List → value → event time until which it is on it, ms.
        rules: The rules.
        proposals: Proposals of changes.
    """

    overrides: Overrides
    lists: Lists
    rules: RuleEntries
    proposals: Proposals


class Governance(msgspec.Struct, frozen=True):
    """What needs two persons.

    Attributes:
        two_person: Some of :data:`COVERED`: rules that block, rules that approve, thresholds to where more
            passes, entries on ``allowed`` (and what changes lists that rules look into so that more passes),
            what takes a value off ``blocked`` or lets it end earlier, entries on ``blocked``.

    Example:
        >>> sorted(Governance().language().two_person)
        ['approve', 'block']
        >>> Governance(frozenset()).language().two_person
        frozenset()
    """

    two_person: frozenset[str] = frozenset(BY_DEFAULT)

    def language(self) -> Language:
        """Return the language of rules, with the actions of which a second person must approve a rule."""
        actions = frozenset(a for a in ("block", "approve") if f"{a}_rules" in self.two_person)
        if actions == LANGUAGE.two_person:
            return LANGUAGE
        return Language(LANGUAGE.fields, tuple(LANGUAGE.functions), LANGUAGE.actions, actions)

    def why_two(self, change: Change, kept: Kept, now_ms: int) -> str:
        """Return why a second person must agree with a change; empty: none must.

        Args:
            change: The change.
            kept: What holds now.
            now_ms: Event time that no event is before, ms.
        """
        if isinstance(change, SetThreshold | ResetThreshold):
            covered = "thresholds" in self.two_person and _lets_more_pass(change, kept.overrides)
            return f"{change.name} at this value lets more payments pass" if covered else ""
        until = (kept.lists.get(change.list) or {}).get(change.entry, 0)
        if until <= now_ms:
            until = 0
        new = change.until_ms if isinstance(change, PutListEntry) else 0
        if new < until and change.list == BLOCKED and "unblock" in self.two_person:
            return f"{change.entry} would be off {BLOCKED} earlier"
        if new > until and change.list == BLOCKED and "blocked" in self.two_person:
            return f"{change.entry} would be blocked"
        if new != until and "allowed" in self.two_person:
            if new > until and change.list == ALLOWED:
                return f"payments of {change.entry} would pass"
            if (change.list, new > until) in lists_that_pass(kept.rules.items()):
                return f"more payments would pass by a rule that looks into {change.list}"
        return ""


def lists_that_pass(rules: Iterable[tuple[str, Entry]]) -> set[tuple[str, bool]]:
    """Return the lists by which rules let more pass, each with how: by a value that comes on it, or goes off.

    A value that makes a rule hold which approves lets more pass, and one that keeps a rule from holding which
    blocks or reviews. Rules count in whatever state they are.
    """
    return {
        (name, helps == (version.rule.action == "approve"))
        for _, entry in rules
        for version in entry.versions
        for name, does in looked_into(version.rule.when).items()
        for helps in does
    }


def take_control(event: Any, kept: Kept, law: Governance, now_ms: int) -> None:
    """Do what a control event says, if whoever must agree with it does.

    Args:
        event: A control event of thresholds, lists, proposals or rules.
        kept: What is kept; changed only if the event is accepted.
        law: What needs two persons.
        now_ms: Event time that no event is before, ms.

    Raises:
        UserError: The event is refused; says why.
    """
    if isinstance(event, SetThreshold | ResetThreshold | PutListEntry | RemoveListEntry):
        if isinstance(event, SetThreshold | ResetThreshold):
            check_threshold(event)
        if why := law.why_two(event, kept, now_ms):
            raise NotAgreed(f"{why}: propose it, and let a second person approve")
        if isinstance(event, PutListEntry) and event.list == BLOCKED:
            _check_block(event, kept, now_ms)
        _apply(event, kept, now_ms)
    elif isinstance(event, Propose):
        _propose(event, kept, law, now_ms)
    elif isinstance(event, Settlement):
        _settle(event, kept, law, now_ms)
    else:
        apply_rule(law.language(), event, kept.rules)


def check_threshold(change: SetThreshold | ResetThreshold) -> None:
    """Refuse a threshold that does not exist, or cannot be what is asked.

    Raises:
        UnknownThreshold: It does not.
        UserError: Its value is below 0, too large, or no number.
    """
    if change.name not in THRESHOLD_NAMES:
        known = ", ".join(sorted(THRESHOLD_NAMES))
        raise UnknownThreshold(f"there is no threshold '{change.name}'; there are {known}")
    if isinstance(change, SetThreshold) and not 0 <= change.value <= MAX_AMOUNT:  # NaN is neither
        raise UserError(f"{change.name} = {change.value}: a threshold is a number from 0 to {MAX_AMOUNT:,}")


def _check_block(event: PutListEntry, kept: Kept, now_ms: int) -> None:
    """Refuse a block that would end another earlier: who blocks something does not mean to.

    Raises:
        NotAgreed: It would.
    """
    until = _value(event, kept, now_ms)
    if until is not None and event.until_ms < until:
        raise NotAgreed(f"{event.entry} is blocked for longer already: take it off first, or propose it")


def _propose(event: Propose, kept: Kept, law: Governance, now_ms: int) -> None:
    if kept.proposals.get(event.id) is not None:
        raise NotAgreed(f"proposal {event.id} has come before")
    made = Proposal(msgspec.json.encode(event.changes).decode(), event.by, event.at_ms, event.reason)
    # Tried in full before anything of it is kept: it holds together or not at all.
    trial = _trial(kept)
    covered = []
    for change in event.changes:
        covered.append(law.why_two(change, trial, now_ms))
        _apply(change, trial, now_ms)
    _make_room(kept.proposals)
    kept.proposals.put(event.id, made if any(covered) else _applied(made, "", kept, now_ms))


def _settle(event: Settlement, kept: Kept, law: Governance, now_ms: int) -> None:
    found = kept.proposals.get(event.id)
    if found is None:
        raise NotAgreed(f"there is no proposal {event.id}")
    replaced = msgspec.structs.replace
    if isinstance(event, ApproveChange):
        if found.status not in ("waiting", "undoing"):
            raise NotAgreed(f"proposal {event.id} is {found.status} and waits for nobody's agreement")
        if same_person(event.by, found.by if found.status == "waiting" else found.settled_by):
            raise NotAgreed(f"{event.by} asked for {event.id}: a second person must agree")
        changed = (
            _applied(found, event.by, kept, now_ms)
            if found.status == "waiting"
            else _undone(found, event.id, found.settled_by, kept, now_ms)
        )
    elif isinstance(event, RejectChange):
        if found.status not in ("waiting", "undoing"):
            raise NotAgreed(f"proposal {event.id} is {found.status}: nothing waits to be rejected")
        status: Status = "rejected" if found.status == "waiting" else "applied"
        changed = replaced(found, status=status, settled_by=event.by if status == "rejected" else "")
    else:
        changed = _undo(event, found, kept, law, now_ms)
    kept.proposals.put(event.id, changed)


def _undo(event: UndoChange, found: Proposal, kept: Kept, law: Governance, now_ms: int) -> Proposal:
    if found.status != "applied":
        raise NotAgreed(f"proposal {event.id} is {found.status}: only what was applied can be undone")
    trial = _trial(kept)
    covered = []
    for change in _back(found, event.id, event.by, kept, now_ms):
        covered.append(law.why_two(change, trial, now_ms))
        _apply(change, trial, now_ms)
    if any(covered):
        return msgspec.structs.replace(found, status="undoing", settled_by=event.by)
    return _undone(found, event.id, event.by, kept, now_ms)


def _applied(proposal: Proposal, agreed_by: str, kept: Kept, now_ms: int) -> Proposal:
    """Apply a proposal, and remember what was before."""
    trial = _trial(kept)
    before: dict[str, float | None] = {}
    changes = proposal.each()
    for change in changes:
        before.setdefault(_place(change), _value(change, trial, now_ms))
        _apply(change, trial, now_ms)
    after = {_place(change): _value(change, trial, now_ms) for change in changes}
    for change in changes:
        _apply(change, kept, now_ms)
    return msgspec.structs.replace(
        proposal, status="applied", agreed_by=agreed_by, before=before, after=after
    )


def _undone(proposal: Proposal, name: str, by: str, kept: Kept, now_ms: int) -> Proposal:
    for change in _back(proposal, name, by, kept, now_ms):
        _apply(change, kept, now_ms)
    return msgspec.structs.replace(proposal, status="undone", settled_by=by)


def _back(proposal: Proposal, name: str, by: str, kept: Kept, now_ms: int) -> list[Change]:
    """Return the changes that bring back what was before.

    Raises:
        NotAgreed: Somebody has changed it since.
    """
    found: dict[str, Change] = {}
    for change in proposal.each():
        place = _place(change)
        now, left = _value(change, kept, now_ms), proposal.after[place]
        if isinstance(change, PutListEntry | RemoveListEntry) and (left or 0) <= now_ms:
            left = None  # it has ended by itself
        if now != left:
            raise NotAgreed(f"{place} was changed since {name}: undo that first")
        was = proposal.before[place]
        if isinstance(change, SetThreshold | ResetThreshold):
            found[place] = (
                ResetThreshold(change.name, by) if was is None else SetThreshold(change.name, was, by)
            )
        elif was is None or was <= now_ms:
            found[place] = RemoveListEntry(change.list, change.entry, by, proposal.at_ms)
        else:
            note = f"as before {name}"
            found[place] = PutListEntry(change.list, change.entry, int(was), by, proposal.at_ms, note)
    return list(found.values())


def _place(change: Change) -> str:
    if isinstance(change, SetThreshold | ResetThreshold):
        return change.name
    return f"{change.list}/{change.entry}"


def _value(change: Change, kept: Kept, now_ms: int) -> float | None:
    """Return the value of what a change is about."""
    if isinstance(change, SetThreshold | ResetThreshold):
        return kept.overrides.get(change.name)
    until = (kept.lists.get(change.list) or {}).get(change.entry)
    return None if until is None or until <= now_ms else until


def _apply(change: Change, kept: Kept, now_ms: int) -> None:
    if isinstance(change, SetThreshold):
        check_threshold(change)
        kept.overrides.put(change.name, change.value)
    elif isinstance(change, ResetThreshold):
        check_threshold(change)
        kept.overrides.remove(change.name)
    else:
        apply_list(change, kept.lists, now_ms=now_ms)


def _lets_more_pass(change: SetThreshold | ResetThreshold, overrides: Overrides) -> bool:
    default: float = getattr(DEFAULTS, change.name, 0.0)
    held = overrides.get(change.name)
    now = default if held is None else held
    new = change.value if isinstance(change, SetThreshold) else default
    if change.name in _EITHER_PASSES:
        return new != now
    return new < now if change.name in _LOWER_PASSES else new > now


def _make_room(proposals: Proposals) -> None:
    """Forget the oldest proposals that are settled, where there are too many.

    Raises:
        NotAgreed: All of them wait.
    """
    kept = list(proposals.items())
    if len(kept) < MAX_PROPOSALS:
        return
    settled = [(p.at_ms, name) for name, p in kept if p.status in ("applied", "rejected", "undone")]
    if not settled:
        raise NotAgreed(f"{MAX_PROPOSALS} proposals wait, the most there may be")
    proposals.remove(min(settled)[1])


class _Trial(dict[str, Any]):
    """What is kept, to try changes on: what is read is copied when it is first asked for."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self._of = of
        self._read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """Return what is kept."""
        if key not in self._read:
            self._read.add(key)
            found = self._of.get(key)
            if found is not None:
                self[key] = dict(found) if isinstance(found, Mapping) else found
        return super().get(key, default)

    def put(self, key: str, value: Any) -> None:
        """Keep a value."""
        self._read.add(key)
        self[key] = value

    def remove(self, key: str) -> None:
        """Forget a value."""
        self._read.add(key)
        self.pop(key, None)


def _trial(kept: Kept) -> Kept:
    return Kept(_Trial(kept.overrides), _Trial(kept.lists), kept.rules, kept.proposals)


def waiting(proposals: Mapping[str, Proposal]) -> Iterator[tuple[str, Proposal]]:
    """Yield the proposals that wait for a second person, the oldest first."""
    chosen: Sequence[tuple[str, Proposal]] = [
        (name, p) for name, p in proposals.items() if p.status in ("waiting", "undoing")
    ]
    yield from sorted(chosen, key=lambda one: (one[1].at_ms, one[0]))


def try_changes(changes: Sequence[Change], kept: Kept) -> Kept:
    """Return what would be kept after changes; what is kept stays as it is.

    Raises:
        UserError: A change cannot be made.
    """
    trial = _trial(kept)
    for change in changes:
        _apply(change, trial, 0)
    return trial

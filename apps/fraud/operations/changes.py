"""Changes of thresholds and lists as people ask for them: made of text, looked at ahead, proposed, settled.

What the command `millrace fraud changes` and the page have in common.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.errors import UserError
from millrace.rules import PutListEntry
from millrace.time.durations import to_ms
from millrace.time.moments import show_time
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
from millrace_apps.fraud.operations.governance import check_threshold
from millrace_apps.fraud.processes.scoring import DEFAULTS

if TYPE_CHECKING:
    from millrace.operations.control_topic import ControlTopic
    from millrace_apps.fraud.operations.governance import Proposal
    from millrace_apps.fraud.operations.governed_book import GovernedControlState
    from millrace_apps.fraud.operations.what_if import Difference
    from millrace_apps.fraud.settings import FraudSettings

#: What may be said of a proposal → its event.
_SETTLING: Final[dict[str, type[Settlement]]] = {
    "approve": ApproveChange,
    "reject": RejectChange,
    "undo": UndoChange,
}
_SAID: Final = {"waiting": "waits for a second person", "undoing": "its undoing waits for a second person"}


def thresholds_of(texts: Sequence[str], by: str, now_ms: int, reason: str) -> list[Change]:
    """Return changes of thresholds of ``NAME=VALUE``; without a value it gets its default back.

    Args:
        texts: The texts.
        by: Who asks.
        now_ms: When, UTC milliseconds.
        reason: Why.

    Raises:
        UserError: A text is none of these, or there is no such threshold.

    >>> [c.value for c in thresholds_of(["block_score=0.9"], "ann", 0, "")]
    [0.9]
    """
    found: list[Change] = []
    for text in texts:
        name, _, value = text.partition("=")
        try:
            made = (
                SetThreshold(name, float(value), by, now_ms, reason)
                if value
                else ResetThreshold(name, by, now_ms, reason)
            )
        except ValueError:
            raise UserError(f"{text}: write NAME=VALUE with a number, e.g. block_score=0.9") from None
        check_threshold(made)
        found.append(made)
    return found


def name_of(changes: Sequence[Change], by: str, now_ms: int) -> str:
    """Return a name for a proposal that nobody has named."""
    text = msgspec.json.encode((list(changes), by, now_ms))
    return "c-" + hashlib.blake2b(text, digest_size=6).hexdigest()


def open_topic(settings: FraudSettings) -> ControlTopic:
    """Return the control topic of the decisions."""
    from millrace.operations.control_topic import ControlTopic
    from millrace_apps.fraud.operations.app_rules import RULES

    return ControlTopic(RULES, settings)


def read(topic: ControlTopic) -> GovernedControlState:
    """Return what the control topic says."""
    book: Any = topic.read()
    found: GovernedControlState = book
    return found


def propose(
    topic: ControlTopic, changes: Sequence[Change], by: str, now_ms: int, reason: str
) -> tuple[str, GovernedControlState]:
    """Send a proposal; return its name and what the topic says then.

    Raises:
        UserError: It is refused, or the broker did not take it.
    """
    return _sent(topic, Propose(name_of(changes, by, now_ms), list(changes), by, now_ms, reason))


def settle(
    settings: FraudSettings, kind: str, proposal: str, by: str, reason: str
) -> tuple[str, GovernedControlState]:
    """Approve, reject or undo a proposal; return its name and what the topic says then.

    Args:
        settings: The app's settings.
        kind: ``approve``, ``reject`` or ``undo``.
        proposal: Its name.
        by: Who says so.
        reason: Why; card numbers in it become tokens.

    Raises:
        UserError: It is refused, or the broker did not take it.
    """
    from millrace.operations.sending import now_ms
    from millrace_apps.fraud.operations.tokens import without_numbers

    event = _SETTLING[kind](proposal, by, now_ms(), without_numbers(settings, reason))
    return _sent(open_topic(settings), event)


def _sent(topic: ControlTopic, event: Propose | Settlement) -> tuple[str, GovernedControlState]:
    book: Any
    book, _ = topic.change(lambda _: [event])
    return event.id, book


def difference(
    changes: Sequence[Change], settings: FraudSettings, last: str | None, book: GovernedControlState
) -> Difference:
    """Return what changes would have done over the app's own table of decisions.

    Args:
        changes: The changes.
        settings: The app's settings.
        last: Decisions of the last so long; ``None``: all.
        book: What the control topic says: what holds now.

    Raises:
        UserError: A change cannot be made, or there are no decisions.
    """
    from millrace_apps.fraud.operations.app_rules import own_labels
    from millrace_apps.fraud.operations.backtest import read_labels
    from millrace_apps.fraud.operations.what_if import what_if

    labels = own_labels(settings)
    frauds = [] if labels is None else [name for name, is_fraud in read_labels(labels).items() if is_fraud]
    approving = {
        f"{name}@{version.number}"
        for name, entry in book.rules.items()
        for version in entry.versions
        if version.rule.action == "approve"
    }
    table = settings.storage.path("tables", "transactions")
    last_ms = None if last is None else to_ms(last)
    return what_if(changes, book.kept, table, frauds, approving=approving, last_ms=last_ms)


def compared(found: Difference) -> list[tuple[str, float, float]]:
    """Return what is to be compared of a difference: what it is, now, and then."""
    now, then = found.now, found.then
    return [
        ("blocked", now.blocks, then.blocks), ("looked at", now.reviews, then.reviews),
        ("amount blocked", now.block_amount, then.block_amount),
        ("amount looked at", now.review_amount, then.review_amount),
        ("known frauds blocked", now.frauds_blocked, then.frauds_blocked),
        ("known frauds looked at", now.frauds_reviewed, then.frauds_reviewed),
        ("known frauds passed", now.frauds_passed, then.frauds_passed),
    ]  # fmt: skip


def standing_of(proposal: Proposal) -> str:
    """Return where a proposal stands, as it is said."""
    return _SAID.get(proposal.status, f"is {proposal.status}")


def change_text(change: Change, book: GovernedControlState) -> str:
    """Return what a change changes, beside what holds now."""
    if isinstance(change, SetThreshold | ResetThreshold):
        default: float = getattr(DEFAULTS, change.name, 0.0)
        now = book.overrides.get(change.name, default)
        new = change.value if isinstance(change, SetThreshold) else default
        return f"{change.name}: {now:g} now, {new:g} proposed"
    if isinstance(change, PutListEntry):
        return f"{change.entry} on {change.list} until {show_time(change.until_ms)}"
    return f"{change.entry} off {change.list}"

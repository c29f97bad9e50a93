"""Control events of thresholds and lists, at once or by proposal."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from millrace.rules import PutListEntry, RemoveListEntry
from millrace.rules.model import Identifier, Person, Reason, TimeMs
from millrace_apps.fraud.processes.currencies import MAX_AMOUNT

#: Most changes of one proposal.
MAX_CHANGES: Final = 20

_Threshold = Annotated[str, Meta(min_length=1, max_length=128)]
_Author = Annotated[str, Meta(max_length=128)]


class SetThreshold(msgspec.Struct, frozen=True, tag_field="kind", tag="set_threshold"):
    """Control event: from the next batch on, use this threshold.

    Attributes:
        name: A field of :class:`millrace_apps.fraud.processes.scoring.Thresholds`.
        value: Its value.
        by: Who says so; empty: not told.
        at_ms: When, by the publisher's clock, UTC ms; for the record only.
        reason: Why.
    """

    name: _Threshold
    value: Annotated[float, Meta(ge=0, le=MAX_AMOUNT)]
    by: _Author = ""
    at_ms: TimeMs = 0
    reason: Reason = ""


class ResetThreshold(msgspec.Struct, frozen=True, tag_field="kind", tag="reset_threshold"):
    """Control event: go back to the threshold's default.

    Attributes:
        name: A field of :class:`millrace_apps.fraud.processes.scoring.Thresholds`.
        by: Who says so; empty: not told.
        at_ms: When, by the publisher's clock, UTC ms; for the record only.
        reason: Why.
    """

    name: _Threshold
    by: _Author = ""
    at_ms: TimeMs = 0
    reason: Reason = ""


#: What a proposal may change.
Change = SetThreshold | ResetThreshold | PutListEntry | RemoveListEntry


class Propose(msgspec.Struct, frozen=True, tag_field="kind", tag="propose"):
    """Control event: changes that hold together, once a second person agrees where one is needed.

    Attributes:
        id: Name of the proposal.
        changes: What is to be changed, in order.
        by: Who proposes it.
        at_ms: When, by the publisher's clock, UTC ms; for the record only.
        reason: Why.
    """

    id: Identifier
    changes: Annotated[list[Change], Meta(min_length=1, max_length=MAX_CHANGES)]
    by: Person
    at_ms: TimeMs
    reason: Reason = ""


class ApproveChange(msgspec.Struct, frozen=True, tag_field="kind", tag="approve_change"):
    """Control event: a second person agrees with a proposal, or with its undoing, where that waits.

    Attributes:
        id: The proposal.
        by: Who agrees; somebody else than who asked for it.
        at_ms: When, by the publisher's clock, UTC ms; for the record only.
        reason: Why.
    """

    id: Identifier
    by: Person
    at_ms: TimeMs
    reason: Reason = ""


class RejectChange(msgspec.Struct, frozen=True, tag_field="kind", tag="reject_change"):
    """Control event: a proposal that waits, or its undoing, is off.

    Attributes:
        id: The proposal.
        by: Who says so; who asked for it may take it back.
        at_ms: When, by the publisher's clock, UTC ms; for the record only.
        reason: Why.
    """

    id: Identifier
    by: Person
    at_ms: TimeMs
    reason: Reason = ""


class UndoChange(msgspec.Struct, frozen=True, tag_field="kind", tag="undo_change"):
    """Control event: what was before a proposal is to hold again.

    Attributes:
        id: The proposal.
        by: Who asks for it.
        at_ms: When, by the publisher's clock, UTC ms; for the record only.
        reason: Why.
    """

    id: Identifier
    by: Person
    at_ms: TimeMs
    reason: Reason = ""


#: What is done with a proposal that is there.
Settlement = ApproveChange | RejectChange | UndoChange

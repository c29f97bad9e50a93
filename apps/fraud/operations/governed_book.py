"""Control state of the decisions, read by commands: rules, lists, thresholds, proposals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from millrace.errors import UserError
from millrace.operations.control_topic import ControlState
from millrace_apps.fraud.contracts.events import Control, SetRate
from millrace_apps.fraud.operations.governance import Governance, Kept, Proposal, take_control
from millrace_apps.fraud.processes.decision import ALLOWED, BLOCKED
from millrace_apps.fraud.settings import FraudSettings

#: Kinds of values on ``blocked`` and ``allowed``.
_KINDS: Final = ("card", "terminal", "device", "ip", "account")


class Values(dict[str, float]):
    """Thresholds that are not their defaults."""

    def put(self, key: str, value: float) -> None:
        """Keep a value."""
        self[key] = value

    def remove(self, key: str) -> None:
        """Forget a value."""
        self.pop(key, None)


class KeptProposals(dict[str, Proposal]):
    """Proposals by their names."""

    def put(self, key: str, value: Proposal) -> None:
        """Keep a proposal."""
        self[key] = value

    def remove(self, key: str) -> None:
        """Forget a proposal."""
        self.pop(key, None)


@dataclass
class GovernedControlState(ControlState):
    """What the control topic says, read with the code that the stream reads it with.

    Attributes:
        law: What needs two persons.
        overrides: Thresholds that are not their defaults.
        proposals: The proposals.

    Example:
        >>> from millrace_apps.fraud.contracts.control_events import ApproveChange, Propose, SetThreshold
        >>> book = book_of(FraudSettings(governance={"two_person": "thresholds"}))
        >>> book.apply(Propose("p", [SetThreshold("block_score", 0.95)], "ann", 1))
        >>> book.overrides, book.proposals["p"].status
        ({}, 'waiting')
        >>> book.apply(ApproveChange("p", "bob", 2))
        >>> book.overrides
        {'block_score': 0.95}
    """

    law: Governance = field(default_factory=Governance)
    overrides: Values = field(default_factory=Values)
    proposals: KeptProposals = field(default_factory=KeptProposals)

    @property
    def kept(self) -> Kept:
        """What control events change."""
        return Kept(self.overrides, self.lists, self.rules, self.proposals)

    def apply(self, event: Any) -> None:
        """Do what an event says; rates change nothing here.

        Raises:
            UserError: It is refused.
        """
        if not isinstance(event, SetRate):
            take_control(event, self.kept, self.law, now_ms=0)


def book_of(settings: FraudSettings) -> GovernedControlState:
    """Return what a control topic says that has no messages."""
    law = settings.governance.law()
    return GovernedControlState(law.language(), Control, law=law)


def check_value(name: str, value: str) -> None:
    """Refuse a value of a list that nothing would look for.

    Args:
        name: The list.
        value: The value.

    Raises:
        UserError: It is on ``blocked`` or ``allowed``, and does not say of what kind it is.
    """
    if name in (BLOCKED, ALLOWED) and value.partition(":")[0] not in _KINDS:
        raise UserError(f"{value}: on {name} write kind:value, with one of {', '.join(_KINDS)} before it")

"""The control group: a random share of would-be blocks that passes, so that their truth comes out.

A blocked payment tells nothing: no holder complains of it, and whether it was a fraud is not seen. Those of
the control group are what is blocked in all but the action, so what becomes of them holds for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from millrace.experiments.assignment import Experiment, assign

EXPERIMENT: Final = "fraud-blocks"
_THROUGH: Final = "through"


@dataclass(frozen=True)
class ControlGroup:
    """A share of the payments that would be blocked, dealt by a hash of their identity.

    Attributes:
        share: The share, 0 to 1.
        action: What is done with them.

    Example:
        >>> group = ControlGroup(0.1, "approve")
        >>> sum(group.has(f"tx-{n}") for n in range(1_000))
        100
    """

    share: float
    action: Literal["approve", "review"] = "approve"

    @cached_property
    def _experiment(self) -> Experiment:
        return Experiment(EXPERIMENT, {_THROUGH: self.share, "blocked": 1 - self.share})

    def has(self, transaction_id: str) -> bool:
        """Return whether a payment that would be blocked is let through.

        Args:
            transaction_id: Its identity.
        """
        return assign(transaction_id, self._experiment) == _THROUGH

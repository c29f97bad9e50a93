"""Assignment to the arms of an experiment: a hash of names, so nothing is kept and every run agrees."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from millrace.errors import UserError

#: The arm of those in whom no experiment changes anything.
HOLDOUT: Final = "holdout"


class ExperimentError(UserError):
    """An experiment that means nothing."""


def share(subject: str, experiment: str, salt: str = "") -> float:
    """Return a number in [0, 1) that hangs on some names alone.

    Of one subject the numbers of two experiments, or of two salts, have nothing to do with each other.

    Args:
        subject: Who: a person, a card, a zone.
        experiment: What for.
        salt: Deals anew, e.g. when an experiment is repeated.

    Example:
        >>> share("ann", "colour") == share("ann", "colour"), 0 <= share("ann", "colour", "2") < 1
        (True, True)
    """
    names = (subject, experiment, salt) if salt else (subject, experiment)
    digest = hashlib.blake2b("\0".join(names).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    # Of 64 bits the lowest would round up to 1.
    return (int.from_bytes(digest, "big") >> 11) / 2**53


@dataclass(frozen=True)
class Experiment:
    """What is tried on whom.

    Attributes:
        name: Its name.
        arms: Arm → its share of the subjects; together 1.
        salt: Deals the subjects anew.
        holdout: Share of the subjects who are in no experiment at all: the same subjects for all experiments
            that name the same ``holdout_name``, whatever their own names and salts.
        holdout_name: What the hold-out is called.

    Raises:
        ExperimentError: It means nothing.

    Example:
        >>> colour = Experiment("colour", {"control": 0.55, "red": 0.45}, holdout=0.1)
        >>> arms = [colour.arm(f"person-{n}") for n in range(10_000)]
        >>> [round(arms.count(arm) / 10_000, 1) for arm in ("holdout", "control", "red")]
        [0.1, 0.5, 0.4]
    """

    name: str
    arms: Mapping[str, float]
    salt: str = ""
    holdout: float = 0.0
    holdout_name: str = HOLDOUT

    def __post_init__(self) -> None:
        if not self.name:
            raise ExperimentError("an experiment needs a name")
        if HOLDOUT in self.arms:
            raise ExperimentError(f"{self.name}: no arm is called {HOLDOUT}: that is who is in no arm")
        if not self.arms or any(not 0 <= part <= 1 for part in self.arms.values()):
            raise ExperimentError(f"{self.name}: each arm has a share from 0 to 1, and there is one at least")
        if not math.isclose(sum(self.arms.values()), 1, abs_tol=1e-9):
            raise ExperimentError(
                f"{self.name}: the shares of the arms are {sum(self.arms.values()):g} together, not 1"
            )
        if not 0 <= self.holdout <= 1:
            raise ExperimentError(f"{self.name}: the hold-out is a share from 0 to 1, not {self.holdout:g}")

    def arm(self, subject: str) -> str:
        """Return the arm of a subject; ``holdout`` for who is in none."""
        if self.holdout and share(subject, self.holdout_name) < self.holdout:
            return HOLDOUT
        place = share(subject, self.name, self.salt)
        for name, end in self._ends:
            if place < end:
                return name
        return self._ends[-1][0]

    @cached_property
    def _ends(self) -> list[tuple[str, float]]:
        found, end = [], 0.0
        for name, part in self.arms.items():
            end += part
            if part:
                found.append((name, end))
        return found


def assign(subject: str, experiment: Experiment, salt: str | None = None) -> str:
    """Return the arm of a subject in an experiment.

    Args:
        subject: Who.
        experiment: The experiment.
        salt: In place of the experiment's own.
    """
    return (experiment if salt is None else replace(experiment, salt=salt)).arm(subject)

"""Switchback experiments: a region is in one arm for a block of time and in the other for the next.

Where subjects share what an experiment changes (riders share cars, so that a ride of one arm is missing in
the other), subjects cannot be dealt; times can. Blocks come in pairs, each with one block of each arm, and
which of the two comes first is dealt by a hash of names: nothing is kept, and every run says the same.

What a block does reaches into the next one (cars are where the arm before has left them), so the begin of
each block is not judged: the guard. What is compared are the means of blocks and not of subjects, whose
number says nothing of how many times were tried: the interval is that of the differences within pairs, by
Student's t, made for one look (Bojinov, Simchi-Levi and Zhao, Management Science 69, 2023, on design and
carry-over of switchback experiments).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, stdev

import msgspec

from millrace.experiments.assignment import ExperimentError, share

#: Of fewer pairs of blocks no interval is told.
LEAST_PAIRS = 4


@dataclass(frozen=True)
class Switchback:
    """Which arm holds where and when.

    Attributes:
        name: Its name.
        arms: The arm that the other is compared with, and the other.
        block_ms: Length of a block, ms of event time; blocks are counted from 1970.
        guard_ms: What begins so early in a block is not judged, ms.
        salt: Deals the blocks anew.

    Raises:
        ExperimentError: It means nothing.

    Example:
        >>> plan = Switchback("matching", ("fifo", "optimal"), 1_800_000, 600_000)
        >>> pairs = [{plan.arm("north", at * 1_800_000) for at in (2 * n, 2 * n + 1)} for n in range(50)]
        >>> all(pair == {"fifo", "optimal"} for pair in pairs), plan.is_judged(0), plan.is_judged(600_000)
        (True, False, True)
    """

    name: str
    arms: tuple[str, str]
    block_ms: int
    guard_ms: int = 0
    salt: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise ExperimentError("an experiment needs a name")
        if len(self.arms) != 2 or self.arms[0] == self.arms[1]:
            raise ExperimentError(f"{self.name}: a switchback has two different arms")
        if self.block_ms <= 0 or not 0 <= self.guard_ms < self.block_ms:
            raise ExperimentError(f"{self.name}: the guard is shorter than a block, which has a length")

    def block(self, at_ms: int) -> int:
        """Return the number of the block that a time (UTC ms) is in."""
        return at_ms // self.block_ms

    def arm(self, unit: str, at_ms: int) -> str:
        """Return the arm that holds in a unit at a time.

        Args:
            unit: Where, e.g. a region.
            at_ms: When, UTC ms.
        """
        pair, second = divmod(self.block(at_ms), 2)
        turned = share(f"{unit}\0{pair}", self.name, self.salt) < 0.5
        return self.arms[bool(second) ^ turned]

    def is_judged(self, at_ms: int) -> bool:
        """Return whether what begins at a time is judged: not in the guard at the begin of a block."""
        return at_ms % self.block_ms >= self.guard_ms


class Observation(msgspec.Struct, frozen=True, gc=False):
    """What came of something that began in a block.

    Attributes:
        unit: Where.
        at_ms: When it began, UTC ms.
        value: What came of it.
    """

    unit: str
    at_ms: int
    value: float


class ArmBlocks(msgspec.Struct, frozen=True):
    """What is known of an arm.

    Attributes:
        blocks: Its blocks.
        observations: What was judged in them.
        mean: Mean of the means of its blocks; ``None``: it has none.
    """

    blocks: int
    observations: int
    mean: float | None


class SwitchbackReport(msgspec.Struct, frozen=True):
    """What is known of a switchback experiment.

    Attributes:
        experiment: Its name.
        control: The arm that the other is compared with.
        arm: The other.
        arms: Arm → what is known of it.
        pairs: Pairs of blocks of which both were observed.
        difference: The other arm's mean less that of the control arm, mean over pairs; ``None``: no pair.
        low: Lower end of its interval; ``None``: too few pairs.
        high: Upper end.
        guarded: Observations that were left out for the guard.
        broken: Blocks that were left out since another arm held in them.
    """

    experiment: str
    control: str
    arm: str
    arms: dict[str, ArmBlocks]
    pairs: int
    difference: float | None
    low: float | None
    high: float | None
    guarded: int
    broken: int

    @property
    def is_decided(self) -> bool:
        """Whether the interval leaves no doubt which arm has more."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def compare_blocks(
    plan: Switchback,
    observations: Iterable[Observation],
    *,
    confidence: float = 0.95,
    broken: Iterable[tuple[str, int]] = (),
) -> SwitchbackReport:
    """Compare the arms of a switchback experiment, block by block.

    Args:
        plan: The experiment.
        observations: What came of what began, in any order.
        confidence: How sure the interval is.
        broken: Units and numbers of blocks in which another arm held: they and the blocks beside them in
            their pair say nothing, of the arms neither.

    Example:
        >>> plan = Switchback("matching", ("fifo", "optimal"), 100)
        >>> seen = [Observation("north", at, {"fifo": 9.0, "optimal": 7.0}[plan.arm("north", at)] + at % 3)
        ...         for at in range(0, 4_000, 10)]
        >>> found = compare_blocks(plan, seen)
        >>> found.pairs, round(found.difference), found.is_decided
        (20, -2, True)
    """
    said = set(broken)
    away, guarded = said | {(unit, block ^ 1) for unit, block in said}, 0
    values: dict[tuple[str, int], list[float]] = {}
    for one in observations:
        place = (one.unit, plan.block(one.at_ms))
        if place in away:
            continue
        if not plan.is_judged(one.at_ms):
            guarded += 1
            continue
        values.setdefault(place, []).append(one.value)
    means = {place: fmean(found) for place, found in sorted(values.items())}
    observed = dict.fromkeys(plan.arms, 0)
    by_arm: dict[str, list[float]] = {arm: [] for arm in plan.arms}
    differences = []
    for (unit, block), mean in means.items():
        arm = plan.arm(unit, block * plan.block_ms)
        by_arm[arm].append(mean)
        observed[arm] += len(values[unit, block])
        other = means.get((unit, block ^ 1))
        if arm == plan.arms[1] and other is not None:
            differences.append(mean - other)
    difference = fmean(differences) if differences else None
    half = None
    if difference is not None and len(differences) >= LEAST_PAIRS:
        half = _t(len(differences) - 1, confidence) * stdev(differences) / math.sqrt(len(differences))
    return SwitchbackReport(
        plan.name,
        *plan.arms,
        {arm: _of_arm(by_arm[arm], observed[arm]) for arm in plan.arms},
        len(differences),
        difference,
        None if half is None or difference is None else difference - half,
        None if half is None or difference is None else difference + half,
        guarded,
        len(said),
    )


def _of_arm(means: list[float], observed: int) -> ArmBlocks:
    return ArmBlocks(len(means), observed, fmean(means) if means else None)


def _t(degrees: int, confidence: float) -> float:
    """Return the quantile of Student's t that an interval of this confidence ends at."""
    from scipy.stats import t

    return float(t.ppf((1 + confidence) / 2, degrees))

"""Comparison of an experiment's arms: matured cohorts only, with intervals that hold on any day.

A subject counts once, from its first exposure on, by what it did in the time that an outcome needs
(``matures_ms``); who was exposed more lately than that is not compared yet, whatever is known of it. To
compare what has been decided so far would favour whichever outcome is known sooner.

Intervals are asymptotic confidence sequences (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, Annals of
Statistics 52, 2024): with 95 % they hold the truth at *all* times at which somebody looks, together. So an
experiment may be looked at every day and ended when its interval says so; an interval made for one look would
be wrong in a quarter of all experiments that are looked at daily. Whether subjects were dealt as they should
have been is tested in the same way (Lindon and Malek, NeurIPS 2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from millrace.experiments.assignment import HOLDOUT, Experiment, ExperimentError

#: Of fewer subjects in an arm no interval is told: it rests on the central limit theorem.
LEAST: Final = 30
#: The number of subjects at which intervals are as narrow as they get.
TUNED_FOR: Final = 2_000
#: A deal this unlikely, whenever it is looked at, is none.
MISMATCH: Final = 0.001
#: How firmly the test of the deal believes in deals that are nearly right: subjects that it counts as seen.
_PRIOR: Final = 100.0


class Exposure(msgspec.Struct, frozen=True, gc=False):
    """A subject has come to what an experiment changes, in whatever arm it is.

    Attributes:
        experiment: The experiment.
        subject: Who.
        arm: The arm.
        at_ms: When, UTC ms.
    """

    experiment: str
    subject: str
    arm: str
    at_ms: int


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """Something that a subject did.

    Attributes:
        subject: Who.
        at_ms: When, UTC ms.
        value: What it counts: 1 for a purchase, or its money.
    """

    subject: str
    at_ms: int
    value: float = 1.0


class ArmFigures(msgspec.Struct, frozen=True):
    """What is known of an arm.

    Attributes:
        exposed: Its subjects.
        matured: Those of them whose time is over: of these is the rest.
        mean: Mean of what they did; ``None`` where there is nobody.
        variance: Its variance between subjects.
    """

    exposed: int
    matured: int
    mean: float | None
    variance: float | None


class Comparison(msgspec.Struct, frozen=True):
    """An arm beside the control arm.

    Attributes:
        arm: The arm.
        difference: Difference of the means; ``None`` where an arm is empty.
        low: Lower end of its interval; ``None`` where there are too few subjects.
        high: Upper end.
    """

    arm: str
    difference: float | None
    low: float | None
    high: float | None

    @property
    def is_decided(self) -> bool:
        """Whether the interval leaves no doubt which arm does more."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


class SampleRatio(msgspec.Struct, frozen=True):
    """Whether subjects are dealt to the arms as they should be.

    Attributes:
        expected: Arm → share that it should have.
        found: Arm → subjects.
        p: How likely it is to ever see a deal as odd as this, at most; small: figures mean nothing.
        ok: Whether the deal may be believed.
    """

    expected: dict[str, float]
    found: dict[str, int]
    p: float
    ok: bool


class Report(msgspec.Struct, frozen=True):
    """What is known of an experiment.

    Attributes:
        experiment: Its name.
        control: The arm that others are compared with.
        until_ms: Up to when it is known, UTC ms.
        arms: Arm → what is known of it.
        comparisons: The other arms beside the control arm.
        sample_ratio: Whether the deal may be believed.
        crossed: Subjects that were exposed in several arms; they are left out.
    """

    experiment: str
    control: str
    until_ms: int
    arms: dict[str, ArmFigures]
    comparisons: list[Comparison]
    sample_ratio: SampleRatio
    crossed: int


def compare(
    experiment: Experiment,
    exposures: Iterable[Exposure],
    outcomes: Iterable[Outcome],
    *,
    until_ms: int,
    matures_ms: int,
    control: str = "control",
    confidence: float = 0.95,
) -> Report:
    """Compare the arms of an experiment.

    Args:
        experiment: The experiment.
        exposures: Who was exposed; those of other experiments and of the hold-out are passed over.
        outcomes: What was done, whoever did it.
        until_ms: Up to when all is known, UTC ms.
        matures_ms: How long after the first exposure an outcome counts for it, ms; its end counts.
        control: The arm that others are compared with.
        confidence: How sure the intervals are, over all looks together.

    Raises:
        ExperimentError: There is no such arm.

    Example:
        >>> colour = Experiment("colour", {"control": 0.5, "red": 0.5})
        >>> exposures = [Exposure("colour", f"p{n}", colour.arm(f"p{n}"), n) for n in range(4_000)]
        >>> every = {"red": 2, "control": 4}
        >>> bought = [Outcome(e.subject, e.at_ms + 5) for e in exposures if e.at_ms % every[e.arm] == 0]
        >>> found = compare(colour, exposures, bought, until_ms=5_000, matures_ms=10)
        >>> [(c.arm, round(c.difference, 1), c.is_decided) for c in found.comparisons], found.sample_ratio.ok
        ([('red', 0.3, True)], True)
    """
    if control not in experiment.arms:
        raise ExperimentError(f"{experiment.name} has no arm {control}; it has {', '.join(experiment.arms)}")
    first: dict[str, Exposure] = {}
    crossed: set[str] = set()
    for one in exposures:
        if one.experiment != experiment.name or one.arm == HOLDOUT:
            continue
        if one.arm not in experiment.arms:
            raise ExperimentError(f"{experiment.name} has no arm {one.arm}, in which {one.subject} was")
        known = first.get(one.subject)
        if known is not None and known.arm != one.arm:
            crossed.add(one.subject)
        if known is None or one.at_ms < known.at_ms:
            first[one.subject] = one
    sums = {subject: 0.0 for subject in first if subject not in crossed}
    for done in outcomes:
        if done.subject in sums and 0 < done.at_ms - first[done.subject].at_ms <= matures_ms:
            sums[done.subject] += done.value
    exposed = dict.fromkeys(experiment.arms, 0)
    values: dict[str, list[float]] = {arm: [] for arm in experiment.arms}
    for subject, value in sums.items():
        at = first[subject]
        exposed[at.arm] += 1
        if at.at_ms + matures_ms <= until_ms:
            values[at.arm].append(value)
    arms = {arm: _figures(exposed[arm], found) for arm, found in values.items()}
    comparisons = [
        _beside(arm, arms[arm], arms[control], confidence) for arm in experiment.arms if arm != control
    ]
    dealt = sample_ratio(exposed, experiment.arms)
    return Report(experiment.name, control, until_ms, arms, comparisons, dealt, len(crossed))


def _figures(exposed: int, values: list[float]) -> ArmFigures:
    n = len(values)
    if not n:
        return ArmFigures(exposed, 0, None, None)
    mean = math.fsum(values) / n
    if all(value in (0.0, 1.0) for value in values):
        return ArmFigures(exposed, n, mean, _of_share(math.fsum(values), n))
    spread = math.fsum((value - mean) ** 2 for value in values) / max(1, n - 1)
    return ArmFigures(exposed, n, mean, spread)


def _beside(arm: str, of: ArmFigures, control: ArmFigures, confidence: float) -> Comparison:
    if of.mean is None or control.mean is None or of.variance is None or control.variance is None:
        return Comparison(arm, None, None, None)
    difference = of.mean - control.mean
    if min(of.matured, control.matured) < LEAST:
        return Comparison(arm, difference, None, None)
    half = interval_of(of.variance, of.matured, control.variance, control.matured, confidence)
    return Comparison(arm, difference, difference - half, difference + half)


def interval_of(
    variance: float, n: int, control_variance: float, control_n: int, confidence: float = 0.95
) -> float:
    """Return half the width of the interval of a difference of means, which holds on any day.

    Args:
        variance: Variance of one arm.
        n: Its subjects.
        control_variance: Variance of the other arm.
        control_n: Its subjects.
        confidence: How sure it is.

    Example:
        >>> round(interval_of(0.25, 1_000, 0.25, 1_000), 4), round(1.96 * math.sqrt(0.5 / 1_000), 4)
        (0.0679, 0.0438)
    """
    total = n + control_n
    # What one subject says of the difference: it is in one of the arms, by their shares.
    spread = variance * total / n + control_variance * total / control_n
    alpha = 1 - confidence
    rho2 = (-2 * math.log(alpha) + math.log(-2 * math.log(alpha)) + 1) / TUNED_FOR
    grown = total * rho2 + 1
    return math.sqrt(spread * 2 * grown / (total * total * rho2) * math.log(math.sqrt(grown) / alpha))


def difference_of_shares(
    did: int, of: int, control_did: int, control_of: int, confidence: float = 0.95
) -> tuple[float, float, float] | None:
    """Return the difference of two shares with the ends of its interval, which holds on any day.

    Args:
        did: Subjects of an arm that did something.
        of: Subjects of it.
        control_did: Subjects of the control arm that did.
        control_of: Subjects of it.
        confidence: How sure the interval is.

    Returns:
        Difference, lower and upper end; ``None`` where an arm has fewer than 30 subjects.

    Example:
        >>> [round(x, 3) for x in difference_of_shares(560, 700, 480, 800)]
        [0.2, 0.13, 0.27]
    """
    if min(of, control_of) < LEAST:
        return None
    variances = [_of_share(x, n) for x, n in ((did, of), (control_did, control_of))]
    difference = did / of - control_did / control_of
    half = interval_of(variances[0], of, variances[1], control_of, confidence)
    return difference, difference - half, difference + half


def _of_share(did: float, of: int) -> float:
    """Return the variance of a share, as if one subject more had done it and one more not: few say little."""
    likely = (did + 1) / (of + 2)
    return likely * (1 - likely)


def sample_ratio(found: Mapping[str, int], expected: Mapping[str, float]) -> SampleRatio:
    """Return whether subjects were dealt as they should have been; it may be asked on any day.

    Args:
        found: Arm → subjects.
        expected: Arm → share that it should have.

    Example:
        >>> sample_ratio({"a": 5_030, "b": 4_970}, {"a": 0.5, "b": 0.5}).ok
        True
        >>> sample_ratio({"a": 5_300, "b": 4_700}, {"a": 0.5, "b": 0.5}).ok
        False
    """
    counts = {arm: found.get(arm, 0) for arm in expected}
    if any(counts[arm] and not part for arm, part in expected.items()):
        return SampleRatio(dict(expected), counts, 0.0, False)
    parts = {arm: part for arm, part in expected.items() if part}
    total = sum(counts.values())
    log_factor = math.lgamma(_PRIOR) - math.lgamma(_PRIOR + total)
    for arm, part in parts.items():
        alpha = _PRIOR * part
        log_factor += math.lgamma(alpha + counts[arm]) - math.lgamma(alpha) - counts[arm] * math.log(part)
    p = math.exp(-max(0.0, log_factor)) if log_factor < 700 else 0.0
    return SampleRatio(dict(expected), counts, p, p >= MISMATCH)

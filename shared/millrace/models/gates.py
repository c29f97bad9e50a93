"""Promotion gates of models, as data: conditions on rows that champion and challenger have scored.

A gate names a measure, its direction and by how much the challenger must be better than the champion. Rows of
one group (a day, a machine) have much in common, so groups are resampled and not rows, and what counts is the
whole interval of the gain, not the gain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.dead_letters import NOT_JSON
from millrace.errors import MillraceError, UserError

#: Resamplings of the groups.
ROUNDS: Final = 200


class CannotCompare(UserError):
    """Champion and challenger cannot be compared."""


class NotProven(MillraceError):
    """The challenger does not pass a gate."""


#: ``measure(truth, predicted, weights)`` → the figure; not a number where it means nothing.
Measure = Callable[[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any] | None], float]


def _average_precision(truth: Any, predicted: Any, weights: Any) -> float:
    from sklearn.metrics import average_precision_score

    there = truth if weights is None else weights[truth]
    if not there.any():
        return float("nan")
    return float(average_precision_score(truth, predicted, sample_weight=weights))


def _roc_auc(truth: Any, predicted: Any, weights: Any) -> float:
    from sklearn.metrics import roc_auc_score

    seen = truth if weights is None else truth[weights > 0]
    if not 0 < int(np.sum(seen)) < len(seen):
        return float("nan")
    return float(roc_auc_score(truth, predicted, sample_weight=weights))


def _mean_absolute_error(truth: Any, predicted: Any, weights: Any) -> float:
    return float(np.average(np.abs(predicted - truth), weights=weights))


def _root_mean_squared_error(truth: Any, predicted: Any, weights: Any) -> float:
    return float(np.sqrt(np.average((predicted - truth) ** 2, weights=weights)))


def _brier(truth: Any, predicted: Any, weights: Any) -> float:
    return float(np.average((predicted - truth) ** 2, weights=weights))


#: Measures that every app can name; an app may have more of its own.
MEASURES: Final[Mapping[str, Measure]] = {
    "average_precision": _average_precision,
    "roc_auc": _roc_auc,
    "brier": _brier,
    "mean_absolute_error": _mean_absolute_error,
    "root_mean_squared_error": _root_mean_squared_error,
}


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a challenger must show.

    Attributes:
        metric: Name of the measure.
        better: Whether higher or lower figures are better.
        margin: By more than this the challenger must be better than the champion; below 0: it may be worse
            by less than that.
        confidence: Share of the resamplings whose gain the interval holds, whose lower end must be above the
            margin; ``None``: the gain itself must be.
        min_rows: Fewer rows say nothing.
        min_groups: Fewer groups say nothing.
    """

    metric: str
    better: Literal["higher", "lower"] = "higher"
    margin: float = 0.0
    confidence: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = 0.95
    min_rows: Annotated[int, msgspec.Meta(ge=1)] = 1
    min_groups: Annotated[int, msgspec.Meta(ge=1)] = 1


@dataclass(frozen=True)
class Judged:
    """Rows that both models have scored and whose truth is known, of no training of the two.

    Attributes:
        truth: What was the case, shape (n,): True for what classifiers are to find, quantities of regressors.
        champion: The champion's scores, shape (n,).
        challenger: The challenger's, of the same rows in the same order.
        groups: Group of each row, shape (n,).
        rows_are: What a row is, in the plural.
        groups_are: What a group is, in the plural.
        found_are: What classifiers are to find, in the plural; empty: it is not counted.
        weights: For how many each row stands, shape (n,): of rows that are no fair sample; ``None``: for one.
    """

    truth: npt.NDArray[Any]
    champion: npt.NDArray[Any]
    challenger: npt.NDArray[Any]
    groups: npt.NDArray[Any]
    rows_are: str = "rows"
    groups_are: str = "groups"
    found_are: str = ""
    weights: npt.NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        each = (self.truth, self.champion, self.challenger, self.groups, self.weights)
        if len({len(column) for column in each if column is not None}) != 1:
            raise CannotCompare("champion and challenger have not scored the same rows")


class Gain(NamedTuple):
    """How much better the challenger is by one measure, in its direction.

    Attributes:
        champion: The champion's figure.
        challenger: The challenger's.
        low: Lower end of the interval of the gain; the gain itself without an interval.
        high: Upper end.
    """

    champion: float
    challenger: float
    low: float
    high: float


class Verdict(NamedTuple):
    """What came of one gate.

    Attributes:
        gate: The gate.
        passed: Whether the challenger has shown it.
        gain: How much better it is; ``None``: there was too little to say so.
        why: Figures, and what is missing, in a line.
    """

    gate: Gate
    passed: bool
    gain: Gain | None
    why: str


def gain_of(
    judged: Judged,
    gate: Gate,
    *,
    measures: Mapping[str, Measure] = MEASURES,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> Gain:
    """Return how much better the challenger is than the champion on the same rows.

    Args:
        judged: The rows.
        gate: Says the measure, its direction and how sure the interval is.
        measures: Measures by name.
        rounds: Resamplings of the groups.
        seed: Their seed.

    Raises:
        CannotCompare: There is no such measure, or it means nothing on these rows.
    """
    if (measure := measures.get(gate.metric)) is None:
        raise CannotCompare(f"there is no measure {gate.metric}; there are: {', '.join(sorted(measures))}")
    sign = 1.0 if gate.better == "higher" else -1.0
    both = (judged.champion, judged.challenger)
    stand_for = judged.weights
    nothing = [float("nan")]
    now = [measure(judged.truth, scores, stand_for) for scores in both] if len(judged.truth) else nothing
    if not np.isfinite(now).all():
        raise CannotCompare(
            f"{gate.metric} means nothing on {len(judged.truth):,} {judged.rows_are}: "
            "nothing of what is to be found is among them"
        )
    gain = sign * (now[1] - now[0])
    if gate.confidence is None:
        return Gain(now[0], now[1], gain, gain)
    of_group, place = np.unique(judged.groups, return_inverse=True)
    rng = np.random.default_rng(seed)
    gains = []
    for _ in range(rounds):
        drawn = np.bincount(rng.integers(0, len(of_group), len(of_group)), minlength=len(of_group))[place]
        weights = drawn if stand_for is None else drawn * stand_for
        two = [measure(judged.truth, scores, weights) for scores in both]
        if np.isfinite(two).all():
            gains.append(sign * (two[1] - two[0]))
    tail = (1 - gate.confidence) / 2
    low, high = np.quantile(gains, [tail, 1 - tail]) if gains else (-np.inf, np.inf)
    return Gain(now[0], now[1], float(low), float(high))


def judge(
    gates: Sequence[Gate], judged: Judged, *, measures: Mapping[str, Measure] = MEASURES, rounds: int = ROUNDS
) -> list[Verdict]:
    """Return what comes of each gate.

    Args:
        gates: The gates; a challenger must pass them all.
        judged: Rows that both models have scored.
        measures: Measures by name.
        rounds: Resamplings of the groups.

    Raises:
        CannotCompare: There is no gate, no such measure, or it means nothing on these rows.
    """
    if not gates:
        raise CannotCompare("there is no gate to pass")
    return [_verdict(gate, judged, measures, rounds) for gate in gates]


def _verdict(gate: Gate, judged: Judged, measures: Mapping[str, Measure], rounds: int) -> Verdict:
    rows, groups = len(judged.truth), len(np.unique(judged.groups))
    for found, least, are in (
        (rows, gate.min_rows, judged.rows_are),
        (groups, gate.min_groups, judged.groups_are),
    ):
        if found < least:
            why = (
                f"{gate.metric}: {found:,} {are}, {least - found:,} fewer than the {least:,} that are needed"
            )
            return Verdict(gate, False, None, why)
    gain = gain_of(judged, gate, measures=measures, rounds=rounds)
    on = f"{rows:,} {judged.rows_are} of {groups:,} {judged.groups_are}"
    if judged.found_are:
        on += f" with {int(judged.truth.sum()):,} {judged.found_are}"
    return verdict_of(gate, gain, on)


def verdict_of(gate: Gate, gain: Gain, on: str) -> Verdict:
    """Return whether a gain passes a gate, and by how much it does not.

    Args:
        gate: The gate.
        gain: The gain.
        on: Which rows it was measured on.

    Example:
        >>> gate = Gate(metric="mean_absolute_error", better="lower", margin=0.5, confidence=None)
        >>> print(verdict_of(gate, Gain(4.0, 3.75, 0.25, 0.25), "90 days").why)
        mean_absolute_error 4.0000 → 3.7500 on 90 days; gain +0.2500, 0.2500 short of more than +0.5000
    """
    passed = gain.low > gate.margin
    said = f"{gate.metric} {gain.champion:.4f} → {gain.challenger:.4f} on {on}; gain "
    said += f"{gain.low:+.4f}" if gate.confidence is None else f"between {gain.low:+.4f} and {gain.high:+.4f}"
    if not passed:
        end = "" if gate.confidence is None else "its lower end is "
        said += f", {end}{gate.margin - gain.low:.4f} short of more than {gate.margin:+.4f}"
    return Verdict(gate, passed, gain, said)


def read_gates(path: Path) -> tuple[Gate, ...]:
    """Return the gates of a YAML or JSON file: a list of them.

    Raises:
        UserError: The file cannot be read, or holds something else.
    """
    try:
        found = msgspec.yaml.decode(path.read_bytes(), type=tuple[Gate, ...])
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except NOT_JSON as error:
        raise UserError(f"{path} holds no gates: {error}") from error
    if not found:
        raise UserError(f"{path} holds no gate: nothing would have to be shown")
    return found

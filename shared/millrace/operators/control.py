"""Multivariate control charts: Hotelling's T² and the residual Q of what several sensors say together.

What is normal is learned from rows of a normal period, a model for each regime: sensors are scaled, and the
principal components that explain most of them kept. T² is how far a row is from the middle within these
components, Q how far it is from them: a value that each sensor has had before, in a combination that none
had (Jackson and Mudholkar 1979, "Control Procedures for Residuals Associated with Principal Component
Analysis").
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from millrace.errors import UserError
from millrace.operators.base import OperatorDefinitionError, fraction

#: A number, which records can carry, that nothing reaches.
_NO_LIMIT: Final = 1e300


class Regime(msgspec.Struct, frozen=True):
    """What is normal in one regime.

    Attributes:
        mean: Mean of each sensor.
        scale: Standard deviation of each; 1 where it is constant.
        components: The components that are kept: a weight for each sensor.
        variances: Variance along each component.
        t2_limit: T² of a normal row is beyond it with the probability that was chosen.
        q_limit: The same of Q; 1e300 where nothing is left beside the components.
        rows: How many rows it was learned from.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    components: tuple[tuple[float, ...], ...]
    variances: tuple[float, ...]
    t2_limit: float
    q_limit: float
    rows: int


class Reading(NamedTuple):
    """What a row was found to be.

    Attributes:
        t2: Hotelling's T².
        q: Squared distance from the components.
        t2_share: T² as a share of its limit.
        q_share: Q as a share of its limit.
        statistic: Which of the two is further, in shares of its limit.
        contributions: What each sensor has to do with that one: shares that add up to 1.
    """

    t2: float
    q: float
    t2_share: float
    q_share: float
    statistic: Literal["t2", "q"]
    contributions: tuple[float, ...]

    @property
    def share(self) -> float:
        """The larger of the two shares; above 1 the row is not normal."""
        return max(self.t2_share, self.q_share)


class Chart(msgspec.Struct, frozen=True):
    """What is normal, by regime.

    Attributes:
        sensors: Names of the sensors, in the order of values.
        regimes: Name of a regime → what is normal in it.

    Example:
        >>> half = Regime((0.0, 0.0), (1.0, 1.0), ((0.6, 0.8),), (2.0,), 10.0, 1.0, 100)
        >>> found = Chart(("flow", "power"), {"running": half}).read("running", (0.8, -0.6))
        >>> round(found.t2, 6), round(found.q, 6), found.statistic, [round(c, 2) for c in found.contributions]
        (0.0, 1.0, 'q', [0.64, 0.36])
    """

    sensors: tuple[str, ...]
    regimes: Mapping[str, Regime]

    def read(self, regime: str, values: Sequence[float]) -> Reading | None:
        """Return what a row is in a regime; ``None`` where nobody has learned what is normal in it.

        Args:
            regime: The regime.
            values: A value for each sensor.

        Raises:
            ValueError: There are not as many values as sensors.
        """
        known = self.regimes.get(regime)
        if known is None:
            return None
        if len(values) != len(self.sensors):
            raise ValueError(f"{len(values)} values for {len(self.sensors)} sensors")
        z = [(x - m) / s for x, m, s in zip(values, known.mean, known.scale, strict=True)]
        within, left, t2 = [0.0] * len(z), list(z), 0.0
        for weights, variance in zip(known.components, known.variances, strict=True):
            along = math.fsum(w * x for w, x in zip(weights, z, strict=True))
            t2 += along * along / variance
            for j, weight in enumerate(weights):
                within[j] += z[j] * weight * along / variance
                left[j] -= along * weight
        q = math.fsum(x * x for x in left)
        t2_share, q_share = t2 / known.t2_limit, q / known.q_limit
        statistic: Literal["t2", "q"] = "q" if q_share > t2_share else "t2"
        parts = [x * x for x in left] if statistic == "q" else [abs(x) for x in within]
        whole = math.fsum(parts)
        shares = tuple(part / whole for part in parts) if whole else (1 / len(z),) * len(z)
        return Reading(t2, q, t2_share, q_share, statistic, shares)


def fit_chart(
    rows: Mapping[str, Sequence[Sequence[float]]],
    sensors: Sequence[str],
    *,
    explained: float = 0.85,
    confidence: float = 0.999,
) -> Chart:
    """Learn what is normal from rows of a normal period, offline, with scikit-learn.

    Args:
        rows: Regime → its rows, each with a value for each sensor.
        sensors: Names of the sensors.
        explained: Which share of the variance the components explain that are kept, in (0, 1).
        confidence: Which share of normal rows is within the limits, in (0, 1).

    Raises:
        OperatorDefinitionError: There are too few rows, a row does not fit, or a number is out of range.
        UserError: scikit-learn is not installed.
    """
    fraction(explained, "explained", closed=False)
    fraction(confidence, "confidence", closed=False)
    try:
        decomposition = importlib.import_module("sklearn.decomposition")
        stats = importlib.import_module("scipy.stats")
    except ModuleNotFoundError as error:
        raise UserError("fit_chart needs scikit-learn: pip install scikit-learn") from error
    import numpy as np

    found = {}
    for regime, given in rows.items():
        try:
            x = np.asarray(given, dtype=float)
        except ValueError as error:
            raise OperatorDefinitionError(f"fit_chart: rows of {regime or 'the regime'}: {error}") from None
        if x.ndim != 2 or x.shape[1] != len(sensors) or not np.isfinite(x).all():
            raise OperatorDefinitionError(f"fit_chart: a row has {len(sensors)} finite values, one a sensor")
        if len(x) < 2 * len(sensors) + 2:
            raise OperatorDefinitionError(
                f"fit_chart needs {2 * len(sensors) + 2} rows of a regime, not {len(x)}"
            )
        found[regime] = _fit(x, explained, confidence, decomposition.PCA, stats)
    return Chart(tuple(sensors), found)


def _fit(x: Any, explained: float, confidence: float, pca: Any, stats: Any) -> Regime:
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale[scale <= 1e-12 * (abs(mean) + 1e-300)] = 1.0
    made = pca(svd_solver="full").fit((x - mean) / scale)
    variances, count = made.explained_variance_, len(x)
    total = variances.sum()
    if total <= 0:
        raise OperatorDefinitionError("fit_chart: no sensor ever changes")
    kept = int((variances.cumsum() / total < explained).sum()) + 1
    width = kept * (count - 1) * (count + 1) / (count * (count - kept))
    return Regime(
        tuple(mean.tolist()),
        tuple(scale.tolist()),
        tuple(tuple(row) for row in made.components_[:kept].tolist()),
        tuple(variances[:kept].tolist()),
        float(width * stats.f.ppf(confidence, kept, count - kept)),
        _q_limit(variances[kept:].tolist(), float(stats.norm.ppf(confidence))),
        count,
    )


def _q_limit(left: Sequence[float], deviations: float) -> float:
    """Return the limit of Q from the variances that are left out (Jackson and Mudholkar 1979)."""
    one, two, three = (math.fsum(v**power for v in left) for power in (1, 2, 3))
    if one <= 1e-12 or two <= 0.0:
        return _NO_LIMIT
    h = 1 - 2 * one * three / (3 * two * two)
    h = h if abs(h) > 1e-3 else 1e-3
    inner = 1 + deviations * h * math.sqrt(2 * two) / one + two * h * (h - 1) / (one * one)
    return float(one * inner ** (1 / h)) if inner > 0 else _NO_LIMIT

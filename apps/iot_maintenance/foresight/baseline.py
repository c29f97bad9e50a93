"""Baselines by regime of operation: what is usual, and z-scores of a machine's values by it.

A regime is where quantities that say what a machine does (load, altitude, throttle) come together. It is
learned from machines of the past, and read from a file: a machine's own state has nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.dead_letters import NOT_JSON
from millrace.errors import UserError

if TYPE_CHECKING:
    import numpy.typing as npt

#: Most regimes that are looked for.
_MOST: Final = 10
#: Regimes are told apart where they explain this share of the variance of what says what a machine does.
_EXPLAINED: Final = 0.999
#: A quantity that hardly changes within a regime is measured by this share of its size, at least.
_LEAST: Final = 1e-9


class NotABaseline(UserError):
    """A file holds no baseline."""


class Usual(msgspec.Struct, frozen=True, array_like=True):
    """What a quantity is like in a regime: its mean and standard deviation, in its unit."""

    mean: float
    spread: float


class Baseline(msgspec.Struct, frozen=True):
    """The regimes of some machines, and what is usual in each.

    Attributes:
        by: Quantities that tell the regime; none: there is one regime.
        centres: Middle of each regime, in the order of ``by``.
        scale: What a step in each of ``by`` is divided by where distances are taken.
        usual: Of each regime quantity → what it is like there.

    Example:
        >>> flight = Baseline(("load",), ((0.0,), (10.0,)), (1.0,), ({}, {"heat": Usual(50.0, 5.0)}))
        >>> flight.regime({"load": 9.0, "heat": 60.0}), flight.scores({"load": 9.0, "heat": 60.0})
        (1, {'heat': 2.0})
    """

    by: tuple[str, ...] = ()
    centres: tuple[tuple[float, ...], ...] = ()
    scale: tuple[float, ...] = ()
    usual: tuple[dict[str, Usual], ...] = ()

    @property
    def digest(self) -> str:
        """By what it is told from others; empty of none: means of one are no means of another."""
        return sha256(msgspec.json.encode(self)).hexdigest()[:16] if self.usual else ""

    def wants(self, name: str) -> bool:
        """Return whether a quantity tells the regime or is scored; without a baseline all are taken."""
        return not self.usual or name in self.by or name in self.usual[0]

    def regime(self, values: Mapping[str, float]) -> int | None:
        """Return the place of the regime that is nearest; ``None`` where the values do not tell it."""
        if not self.by:
            return 0 if self.usual else None
        try:
            at = [values[name] for name in self.by]
        except KeyError:
            return None
        best, found = None, None
        for place, centre in enumerate(self.centres):
            away = sum(((a - c) / s) ** 2 for a, c, s in zip(at, centre, self.scale, strict=True))
            if best is None or away < best:
                best, found = away, place
        return found

    def scores(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the values of one time as z-scores of their regime; what has no usual there is left out.

        Without a baseline (no regimes) they are returned as they are.
        """
        if not self.usual:
            return dict(values)
        place = self.regime(values)
        if place is None:
            return {}
        usual = self.usual[place]
        return {
            name: (value - usual[name].mean) / usual[name].spread
            for name, value in values.items()
            if name in usual
        }


def fitted(by: Sequence[str], names: Sequence[str], columns: Mapping[str, Any]) -> Baseline:
    """Return the baseline of rows.

    Regimes are told apart by k-means, as few as explain nearly all of the variance of ``by``; where ten do
    not, there is one regime.

    Args:
        by: Quantities that tell the regime.
        names: Quantities that are scored.
        columns: Quantity → its values, shape (n,).
    """
    import numpy as np

    keys = np.column_stack([np.asarray(columns[name], dtype=float) for name in by])
    scale = np.maximum(keys.std(axis=0), _LEAST * np.maximum(np.abs(keys).max(axis=0), 1.0))
    centres, place = _clusters(keys / scale)
    usual = []
    for regime in range(len(centres)):
        here = place == regime
        found = {}
        for name in names:
            values = np.asarray(columns[name], dtype=float)[here]
            mean, spread = float(values.mean()), float(values.std())
            found[name] = Usual(mean, max(spread, _LEAST * max(abs(mean), 1.0)))
        usual.append(found)
    if len(centres) == 1:
        return Baseline(usual=tuple(usual))
    middles = tuple(tuple(float(v) for v in centre) for centre in centres * scale)
    return Baseline(tuple(by), middles, tuple(float(s) for s in scale), tuple(usual))


def _clusters(points: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    import numpy as np
    from sklearn.cluster import KMeans

    whole = float(((points - points.mean(axis=0)) ** 2).sum())
    for count in range(2, _MOST + 1):
        if len(np.unique(points, axis=0)) < count:
            break
        found = KMeans(count, n_init=4, random_state=0).fit(points)
        if found.inertia_ <= (1 - _EXPLAINED) * whole:
            return found.cluster_centers_, found.labels_
    return points.mean(axis=0)[None, :], np.zeros(len(points), dtype=int)


def read_baseline(path: str) -> Baseline:
    """Return the baseline that a file holds; of no file none.

    Raises:
        NotABaseline: It cannot be read, is something else, or contradicts itself.
    """
    if not path:
        return Baseline()
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=Baseline)
    except (OSError, *NOT_JSON) as error:
        raise NotABaseline(f"{path} is no baseline: {error}") from None
    if wrong := _contradiction(found):
        raise NotABaseline(f"{path} is no baseline: {wrong}")
    return found


def _contradiction(of: Baseline) -> str:
    """Return in what a baseline contradicts itself; empty: in nothing."""
    if {len(of.by), len(of.scale), *map(len, of.centres)} != {len(of.by)} or bool(of.by) != bool(of.centres):
        return "a scale, and a number of each centre, for each quantity that tells the regime"
    if len(of.usual) != len(of.centres) and (of.by or len(of.usual) > 1):
        return f"{len(of.centres)} regimes, and what is usual in {len(of.usual)}"
    if not all(step > 0 for step in of.scale) or not all(
        one.spread > 0 for usual in of.usual for one in usual.values()
    ):
        return "scales and spreads are above 0"
    return ""

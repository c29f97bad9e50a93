"""The assignment problem of a dispatch window: who gets whom at the least cost, exactly or nearly.

A problem is a sparse matrix of riders and cars. Leaving a rider unmatched costs that rider's penalty;
so a pair that costs more than the penalty is never made. Subtracting the penalty from every pair of a
rider gives a problem in which "unmatched" costs 0, and only pairs below 0 matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import (
    connected_components,
    min_weight_full_bipartite_matching,
)

Ints = npt.NDArray[np.int64]

#: Up to so many cells of the cost matrix a component is solved densely.
DENSE_CELLS: Final = 300 * 1_000
#: Of a larger component each rider keeps so many of the cheapest cars.
TOP_K: Final = 32


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs that may be made, sorted by rider and then by car, with whole-numbered costs.

    Attributes:
        riders: Number of riders.
        cars: Number of cars.
        rider: Of each pair, the rider.
        car: Of each pair, the car.
        cost: Of each pair, what it costs, ms.
        penalty: Of each rider, what it costs to leave them unmatched, ms.
    """

    riders: int
    cars: int
    rider: Ints
    car: Ints
    cost: Ints
    penalty: Ints

    def value(self, match: Ints) -> int:
        """Return the objective of a match: costs of its pairs, penalties of those left out.

        Args:
            match: Of each rider the number of the pair, or -1.
        """
        made = match >= 0
        return int(self.cost[match[made]].sum() + self.penalty[~made].sum())


def solve(pairs: Pairs, *, dense_cells: int = DENSE_CELLS, top_k: int = TOP_K) -> Ints:
    """Return an optimal match: of each rider the number of the pair, or -1.

    Components of the graph are solved by themselves, which is exact. One with more than ``dense_cells``
    cells keeps the ``top_k`` cheapest pairs of each rider, which is exact where cars are plenty.
    The result hangs on the problem alone: equal costs are decided by the order of riders and cars.

    Args:
        pairs: The problem.
        dense_cells: Largest dense matrix.
        top_k: Pairs that each rider of a larger component keeps.

    >>> two = Pairs(2, 2, *(np.array(x) for x in ([0, 0, 1], [0, 1, 0], [5, 6, 7], [100, 100])))
    >>> solve(two).tolist()
    [1, 2]
    """
    match = np.full(pairs.riders, -1, np.int64)
    gain = pairs.cost - pairs.penalty[pairs.rider]
    (useful,) = np.nonzero(gain < 0)
    if not len(useful):
        return match
    rider, car, gain = pairs.rider[useful], pairs.car[useful], gain[useful]
    size = pairs.riders + pairs.cars
    links = coo_array((np.ones(len(rider), np.int8), (rider, pairs.riders + car)), shape=(size, size))
    _, label = connected_components(links, directed=False)
    of_pair = label[rider]
    order = np.argsort(of_pair, kind="stable")
    edges = np.flatnonzero(np.diff(of_pair[order])) + 1
    for part in np.split(order, edges):
        chosen = _component(rider[part], car[part], gain[part], dense_cells, top_k)
        picked = part[chosen]
        match[rider[picked]] = useful[picked]
    return match


def _component(rider: Ints, car: Ints, gain: Ints, dense_cells: int, top_k: int) -> Ints:
    """Return the positions of the pairs that are made in one component."""
    if len(rider) == 1:
        return np.zeros(1, np.int64)
    riders, row = np.unique(rider, return_inverse=True)
    cars, column = np.unique(car, return_inverse=True)
    if len(riders) == 1:
        return np.array([int(np.argmin(gain))])
    if len(riders) * len(cars) <= dense_cells:
        return _dense(len(riders), len(cars), row, column, gain)
    kept = _cheapest(row, gain, top_k)
    return kept[_sparse(len(riders), len(cars), row[kept], column[kept], gain[kept])]


def _dense(riders: int, cars: int, row: Ints, column: Ints, gain: Ints) -> Ints:
    """Solve with a full matrix; what is no pair gains nothing, like being left unmatched."""
    matrix = np.zeros((riders, cars))
    matrix[row, column] = gain
    at = np.full((riders, cars), -1, np.int64)
    at[row, column] = np.arange(len(row))
    found: Ints = at[linear_sum_assignment(matrix)]
    return found[found >= 0]


def _sparse(riders: int, cars: int, row: Ints, column: Ints, gain: Ints) -> Ints:
    """Solve over the pairs alone; each rider has a column of their own that stands for unmatched."""
    # A weight of 0 would be no edge: all are moved by the same amount, which changes no choice.
    shift = 1 - int(gain.min())
    every = np.arange(riders)
    weights = np.concatenate([gain + shift, np.full(riders, shift)]).astype(np.float64)
    rows, columns = np.concatenate([row, every]), np.concatenate([column, cars + every])
    graph = csr_array((weights, (rows, columns)), shape=(riders, cars + riders))
    matched_rows, matched = min_weight_full_bipartite_matching(graph)
    at = {(int(r), int(c)): i for i, (r, c) in enumerate(zip(row, column, strict=True))}
    made = [at[int(r), int(c)] for r, c in zip(matched_rows, matched, strict=True) if c < cars]
    return np.array(sorted(made), np.int64)


def _cheapest(row: Ints, gain: Ints, k: int) -> Ints:
    """Return the positions of each row's k smallest gains, in order."""
    order = np.lexsort((np.arange(len(row)), gain, row))
    starts = np.flatnonzero(np.diff(row[order], prepend=-1))
    counts = np.diff(np.append(starts, len(order)))
    rank = np.arange(len(order)) - np.repeat(starts, counts)
    return np.sort(order[rank < k])

"""Fairness of waits by H3 cell of the pick-up, from the topics alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import h3
import numpy as np

from millrace_apps.ridesharing.contracts.records import Trip
from millrace_apps.ridesharing.state.lifecycle import TERMINAL
from millrace_apps.ridesharing.topic_audit.evidence import Evidence

#: Who ended by their own will is neither served nor left alone.
_OWN_WILL = frozenset({"rider_cancelled", "refused"})


@dataclass
class Cell:
    """What requests of a cell came to.

    Attributes:
        cell: H3 cell.
        lat: Its middle, degrees.
        lon: Its middle, degrees.
        requests: Requests with the pick-up in it that have ended, but not by the rider's will or refused.
        served: Those of them that were completed.
        waits_s: Of each ride that began, seconds from the wanted time to the pick-up.
    """

    cell: str
    lat: float
    lon: float
    requests: int = 0
    served: int = 0
    waits_s: list[float] = field(default_factory=list)

    @property
    def served_share(self) -> float:
        """Completed over all that ended; 1 where none did."""
        return self.served / self.requests if self.requests else 1.0

    @property
    def mean_wait_s(self) -> float:
        """Mean wait, seconds; 0 where nobody was picked up."""
        return float(np.mean(self.waits_s)) if self.waits_s else 0.0

    @property
    def p95_wait_s(self) -> float:
        """95th percentile of the waits, seconds."""
        return float(np.percentile(self.waits_s, 95)) if self.waits_s else 0.0


def by_cell(evidence: Evidence, trips: Mapping[str, Sequence[Trip]], resolution: int) -> list[Cell]:
    """Return the cells in which somebody asked, those first in which fewest are served.

    A wait is from the time that the rider wanted to leave to the driver's report that the rider is aboard;
    where there is no report, to the step of the trip.

    Args:
        evidence: What was read.
        trips: Request → its steps.
        resolution: Of the cells.
    """
    cells: dict[str, Cell] = {}
    for name, asked in evidence.requests.items():
        request = asked.event
        place = h3.latlng_to_cell(request.pickup_lat, request.pickup_lon, resolution)
        cell = cells.get(place)
        if cell is None:
            cell = cells[place] = Cell(place, *h3.cell_to_latlng(place))
        steps = trips.get(name, ())
        ends = [step for step in steps if step.state in TERMINAL]
        if ends and ends[-1].state not in _OWN_WILL:
            cell.requests += 1
            cell.served += ends[-1].state == "completed"
        aboard = next((step for step in steps if step.state == "in_progress"), None)
        if aboard is not None:
            began = [
                one.event.event_time_ms
                for one in evidence.progress.get(name, ())
                if one.event.stage == "started" and one.event.driver_id == aboard.driver_id
            ]
            wanted = max(request.pickup_at_ms, request.event_time_ms)
            cell.waits_s.append(max(0, (began[0] if began else aboard.at_ms) - wanted) / 1_000)
    return sorted(cells.values(), key=lambda c: (c.served_share, -c.mean_wait_s, c.cell))


@dataclass(frozen=True)
class Fairness:
    """How even it is, over the cells with enough requests.

    Attributes:
        cells: How many have enough.
        requests: Requests of all cells that ended, other than by the rider's will.
        least_served: Least share of served requests in a cell.
        served: The share over all cells.
        longest_wait_s: Longest mean wait in a cell.
        mean_wait_s: Mean wait over all cells.
        wait_gini: Gini coefficient of the cells' mean waits: 0 if all are the same.
    """

    cells: int
    requests: int
    least_served: float
    served: float
    longest_wait_s: float
    mean_wait_s: float
    wait_gini: float


def fairness(cells: Sequence[Cell], *, least: int = 20) -> Fairness:
    """Return how even service is.

    Args:
        cells: Of :func:`by_cell`.
        least: Cells with fewer requests say too little to be compared.

    >>> even = [Cell("a", 0, 0, 20, 20, [60.0]), Cell("b", 0, 0, 20, 10, [60.0])]
    >>> found = fairness(even)
    >>> found.least_served, found.served, found.wait_gini
    (0.5, 0.75, 0.0)
    """
    big = [cell for cell in cells if cell.requests >= least]
    requests = sum(cell.requests for cell in cells)
    waits = [wait for cell in cells for wait in cell.waits_s]
    means = [cell.mean_wait_s for cell in big if cell.waits_s]
    return Fairness(
        len(big),
        requests,
        min((cell.served_share for cell in big), default=1.0),
        sum(cell.served for cell in cells) / requests if requests else 1.0,
        max(means, default=0.0),
        float(np.mean(waits)) if waits else 0.0,
        gini(means),
    )


def gini(values: list[float]) -> float:
    """Return the Gini coefficient: 0 if all have as much, towards 1 if one has everything.

    >>> gini([5.0, 5.0]), gini([0.0, 10.0])
    (0.0, 0.5)
    """
    ordered = np.sort(np.asarray(values, np.float64))
    total = ordered.sum()
    if not len(ordered) or total <= 0:
        return 0.0
    rank = np.arange(1, len(ordered) + 1)
    return float((2 * rank - len(ordered) - 1) @ ordered / (len(ordered) * total))

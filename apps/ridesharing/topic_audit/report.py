"""The audit from the topics, whole: evidence in; violations, ages, drivers and fairness out."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from millrace_apps.ridesharing.topic_audit.evidence import Evidence, Whereabouts
from millrace_apps.ridesharing.topic_audit.fairness import Cell, Fairness, by_cell, fairness
from millrace_apps.ridesharing.topic_audit.findings import Findings, Violated
from millrace_apps.ridesharing.topic_audit.offers import OfferFigures, check_offers
from millrace_apps.ridesharing.topic_audit.steps import EVER, Ledger, Steps, ledger_of

#: Resolution of the cells that are compared: hexagons of 5 km², the zones of the requests.
RESOLUTION = 7


@dataclass(frozen=True)
class Audited:
    """What an audit from the topics has found.

    Attributes:
        rows: The violations, by time.
        ledger: Steps of trips, ends of requests, and what is open.
        offers: What was recomputed of the offers.
        drivers: How drivers stand at the end: ``bound``, ``free``, ``busy``, ``off line``, ``silent``.
        cells: Requests by cell.
        fairness: How even that is.
        counts: Stream → events.
        unreadable: Stream → messages that are no events.
        end_ms: Newest event time, UTC ms.
    """

    rows: list[Violated]
    ledger: Ledger
    offers: OfferFigures
    drivers: dict[str, int]
    cells: list[Cell]
    fairness: Fairness
    counts: dict[str, int]
    unreadable: dict[str, int]
    end_ms: int

    @property
    def count(self) -> int:
        """Number of violations."""
        return len(self.rows)

    def by_reason(self) -> dict[str, int]:
        """Return how many violations have each reason."""
        return dict(sorted(Counter(row.reason for row in self.rows).items()))

    def to_json(self, examples: int = 20) -> dict[str, Any]:
        """Return the report as plain values.

        Args:
            examples: So many violations are told.
        """
        return {
            "violations": self.count,
            "by_reason": self.by_reason(),
            "examples": [msgspec.to_builtins(row) for row in self.rows[:examples]],
            "requests": dict(sorted(self.ledger.ends.items())),
            "open": {
                state: {"count": o.count, "oldest_s": o.oldest_ms / 1_000, "oldest": o.oldest}
                for state, o in sorted(self.ledger.open.items())
            },
            "offers": asdict(self.offers),
            "drivers": self.drivers,
            "fairness": asdict(self.fairness),
            "cells": [
                {
                    "cell": c.cell, "requests": c.requests, "served_share": c.served_share,
                    "mean_wait_s": c.mean_wait_s, "p95_wait_s": c.p95_wait_s,
                }
                for c in self.cells
            ],
            "events": self.counts,
            "unreadable": self.unreadable,
        }  # fmt: skip


def audit_topics(
    evidence: Evidence, *, since_ms: int | None = None, settle_ms: int = 0, resolution: int = RESOLUTION
) -> Audited:
    """Hold what the app said against what came in.

    Args:
        evidence: All that was read; it is closed here.
        since_ms: Requests and offers from then on are judged, UTC ms; by default all.
        settle_ms: What happened in so long before the end is not judged: it may be on its way, ms.
        resolution: H3 resolution of the cells of fairness.

    Returns:
        What was found.

    Example, a request that nobody has taken up after ten minutes:

        >>> from millrace_apps.ridesharing.contracts.events import Position, RideRequest
        >>> evidence = Evidence()
        >>> asked = RideRequest(event_time_ms=0, request_id="r1", rider_id="ann", vehicle_class="standard",
        ...     zone="872830828ffffff", pickup_lat=37.77, pickup_lon=-122.42, dropoff_lat=37.78,
        ...     dropoff_lon=-122.42, pickup_at_ms=0)
        >>> later = Position(event_time_ms=600_000, event_id="e1", driver_id="d1", vehicle_class="standard",
        ...     lat=37.77, lon=-122.42, state="idle")
        >>> evidence.take("requests", asked, 0)
        >>> evidence.take("locations", later, 600_000)
        >>> audited = audit_topics(evidence)
        >>> audited.by_reason(), audited.rows[0].detail
        ({'unheard': 1}, 'asked for 600 s before the end')
    """
    evidence.close()
    since = -EVER if since_ms is None else since_ms
    found, ledger = Findings(), ledger_of(evidence)
    Steps(evidence, ledger, found, since, evidence.end_ms - settle_ms).check()
    offers = check_offers(evidence, ledger.commitments, since, found)
    cells = by_cell(evidence, ledger.trips, resolution)
    return Audited(
        sorted(found.rows, key=lambda row: (row.at_ms, row.reason, row.request_id, row.driver_id)),
        ledger,
        offers,
        _drivers(evidence, ledger),
        cells,
        fairness(cells),
        dict(sorted(evidence.counts.items())),
        dict(sorted(evidence.unreadable.items())),
        evidence.end_ms,
    )


def _drivers(evidence: Evidence, ledger: Ledger) -> dict[str, int]:
    """Return how drivers stand at the end: each who was ever heard of is in one of the states."""
    now, whereabouts = evidence.end_ms, Whereabouts(evidence)
    bound = {one.driver_id for one in ledger.commitments if one.ends_ms == EVER}
    found: Counter[str] = Counter()
    for name in {*evidence.drivers, *evidence.statuses, *bound}:
        known = whereabouts.known(name, now)
        said = [one.event.status for one in evidence.statuses.get(name, ())]
        if name in bound:
            found["bound"] += 1
        elif said and said[-1] == "offline":
            found["off line"] += 1
        elif not known or now - known[-1].at_ms > evidence.config.ttl_ms:
            found["silent"] += 1
        else:
            found["free" if any(s.idle for s in known) else "busy"] += 1
    return dict(sorted(found.items()))

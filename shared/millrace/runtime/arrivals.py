"""Delay statistics of events, and the bound and clock skew that fit them, from a sample of records.

Event time must not run ahead of events that are still on their way. What it follows is the newest
*plausible* time so far, the smaller one of a record's event time and its arrival plus a skew; what lies
further behind that than the bound is late. So an event is on time, whatever other clocks say, as long as
its delay (arrival minus event time) is not more than bound − skew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

#: Of fewer records nothing is said of their pace.
_FEW: Final = 20
#: A skew that is less than this share of the longest usual delay gains nothing.
_WORTH: Final = 0.1


class Arrived(NamedTuple):
    """A record of an event.

    Attributes:
        arrival_ms: Its Kafka timestamp, UTC ms; 0 and less: not known.
        event_ms: Its event time, UTC ms.
    """

    arrival_ms: int
    event_ms: int


#: Records of a partition in their order.
Partition: TypeAlias = Sequence[Arrived]


class Percentiles(NamedTuple):
    """Values of which shares of all values are not larger.

    Attributes:
        p1: One in a hundred is not larger.
        p50: Half of them are not larger.
        p99: All but one in a hundred are not larger.
    """

    p1: int
    p50: int
    p99: int


@dataclass(frozen=True)
class Delays:
    """What the records of a topic say.

    Attributes:
        events: How many there are.
        unknown: How many of them have an unknown arrival.
        delay_ms: Arrival minus event time, ms; ``None``: all arrivals are unknown.
        disorder_ms: How far an event is behind the newest plausible one before it in its partition, ms: all
            but one in a hundred are not further behind.
        in_bulk: Whether they came faster than they happened, as a backfill does: then their delays tell when
            they were loaded, and nothing of their senders.
    """

    events: int
    unknown: int
    delay_ms: Percentiles | None
    disorder_ms: int
    in_bulk: bool


@dataclass(frozen=True)
class Fit:
    """What fits the records of an app's inputs.

    Attributes:
        bound_ms: ``stream.out_of_orderness``, ms: the least with which all but one in a hundred are on time.
        skew_ms: ``stream.clock_skew``, ms.
    """

    bound_ms: int
    skew_ms: int


def percentiles(values: Iterable[int]) -> Percentiles:
    """Return percentiles by the nearest rank: each is one of the values.

    >>> percentiles(range(1, 201))
    Percentiles(p1=2, p50=100, p99=198)
    """
    found = sorted(values)
    return Percentiles(*(found[math.ceil(len(found) * share / 100) - 1] for share in (1, 50, 99)))


def measure(partitions: Iterable[Partition]) -> Delays | None:
    """Return what the records of a topic say; ``None`` if there are none.

    >>> measure([[Arrived(110, 100), Arrived(150, 90), Arrived(170, 160)]])
    Delays(events=3, unknown=0, delay_ms=Percentiles(p1=10, p50=10, p99=60), disorder_ms=10, in_bulk=False)
    """
    parts = [part for part in partitions if part]
    records = [record for part in parts for record in part]
    if not records:
        return None
    known = [record for record in records if record.arrival_ms > 0]
    behind = sorted(ms for part in parts for ms in _behind(part)) or [0]
    # The hours that a fast clock is ahead did not happen.
    happened, came = _span(min(record) for record in known), _span(r.arrival_ms for r in known)
    return Delays(
        events=len(records),
        unknown=len(records) - len(known),
        delay_ms=percentiles(r.arrival_ms - r.event_ms for r in known) if known else None,
        disorder_ms=behind[math.ceil(len(behind) * 0.99) - 1],
        in_bulk=len(known) >= _FEW and happened > 2 * came,
    )


def _behind(part: Partition) -> Iterable[int]:
    """Yield how far each event is behind the newest plausible time before it, ms; the first has none."""
    newest: int | None = None
    for arrival_ms, event_ms in part:
        if newest is not None:
            yield max(0, newest - event_ms)
        plausible = min(event_ms, arrival_ms) if arrival_ms > 0 else event_ms
        newest = plausible if newest is None else max(newest, plausible)


def _span(times: Iterable[int]) -> int:
    """Return how long most of them are apart: a few stragglers are neither slow nor fast."""
    found = sorted(times) or [0]
    return found[len(found) * 95 // 100] - found[len(found) * 5 // 100]


def fit(topics: Sequence[Delays]) -> Fit | None:
    """Return what fits the inputs that tell what time it is; ``None`` where none has records.

    The skew is minus the smallest usual delay: time then follows honest events as without it, and the bound
    can be smaller by as much. Where clocks are ahead it is 0: their events wait until time has come to them,
    and others do not notice. The bound covers what is out of order, and bound − skew the usual delays.

    Args:
        topics: What their records say.

    >>> slow = Delays(2_000, 0, Percentiles(800, 900, 2_000), 700, in_bulk=False)
    >>> fit([slow]), fit([slow, Delays(2_000, 0, Percentiles(-300, 40, 90), 60, in_bulk=False)])
    (Fit(bound_ms=1200, skew_ms=-800), Fit(bound_ms=2000, skew_ms=0))
    """
    if not topics:
        return None
    bound = max(topic.disorder_ms for topic in topics)
    usual = [topic.delay_ms for topic in topics if topic.delay_ms is not None and not topic.in_bulk]
    if not usual:
        return Fit(_rounded_up(bound), 0)
    least, most = min(delay.p1 for delay in usual), max(delay.p99 for delay in usual)
    skew = -_rounded_down(least) if least > 0 and least >= _WORTH * most else 0
    return Fit(_rounded_up(max(bound, most + skew)), skew)


def _rounded_up(ms: int) -> int:
    """Return the next number of two digits and noughts.

    >>> _rounded_up(1_201), _rounded_up(87)
    (1300, 87)
    """
    return -_rounded_down(-ms)


def _rounded_down(ms: int) -> int:
    step: int = 10 ** max(0, len(str(abs(ms))) - 2)
    return ms // step * step

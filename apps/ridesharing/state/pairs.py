"""Riders and drivers who are favourites of each other, and those who are never to meet again.

What is said of a pair holds in all regions, wherever the two are: it comes by the control topic and every
region keeps it. The last word holds, from its time on; what was to hold later is taken back by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from millrace_apps.ridesharing.contracts.events import PairKind, SetPair

#: So many pairs are kept: every group of keys keeps them all.
MOST_PAIRS: Final = 5_000
_NOBODY: Final = frozenset[str]()


class Pair(msgspec.Struct, frozen=True, array_like=True):
    """A rider and a driver.

    Attributes:
        rider_id: The rider.
        driver_id: The driver.
        stands: From when on (UTC ms) what they are to each other, by time.
    """

    rider_id: str
    driver_id: str
    stands: tuple[tuple[int, PairKind], ...]


#: Rider → driver → from when on what they are to each other, by time.
PairsByRider = Mapping[str, Mapping[str, tuple[tuple[int, PairKind], ...]]]


class Named(NamedTuple):
    """Drivers who are something to a rider at a moment.

    Attributes:
        blocked: They are never to meet.
        favourites: They would rather have each other.
    """

    blocked: frozenset[str] = _NOBODY
    favourites: frozenset[str] = _NOBODY


def keep_pair(said: SetPair, watermark: int, kept: Any) -> str:
    """Keep what is said of a pair; return why not, or nothing.

    Args:
        said: What is said.
        watermark: How far the region is, UTC ms: nothing holds from before. What comes late is handled as of
            then, so that what is said holds from then on, and not from the moment after it.
        kept: Name → pair, which is written to: broadcast state.
    """
    # Of one length and one form, whatever names contain.
    name = msgspec.json.encode([said.rider_id, said.driver_id]).decode()
    known = kept.get(name)
    from_ms = max(said.from_ms, watermark, 0)
    before = () if known is None else known.stands
    # What is over is forgotten, but for the last of it, which holds until then.
    over = [n for n, (at, _) in enumerate(before) if at <= watermark]
    left = [one for one in before[over[-1] if over else 0 :] if one[0] < from_ms]
    stands = (*left, (from_ms, said.stands))
    if all(kind == "none" for _, kind in stands):
        kept.remove(name)
    elif known is None and not _has_room(kept, watermark):
        return f"{MOST_PAIRS:,} pairs are kept already"
    else:
        kept.put(name, Pair(said.rider_id, said.driver_id, stands))
    return ""


def _has_room(kept: Any, watermark: int) -> bool:
    """Return whether a pair more can be kept, once those are forgotten who are nothing to each other now."""
    if len(kept) < MOST_PAIRS:  # to look through all of them takes much longer
        return True
    over = [
        name
        for name, pair in kept.items()
        if pair.stands[-1][0] <= watermark and pair.stands[-1][1] == "none"
    ]
    for name in over:
        kept.remove(name)
    return len(kept) < MOST_PAIRS


def by_rider(entries: Iterable[tuple[str, Pair]]) -> PairsByRider:
    """Return the pairs that are kept, by rider and driver.

    >>> by_rider([("", Pair("ann", "d1", ((5, "block"),)))])
    {'ann': {'d1': ((5, 'block'),)}}
    """
    found: dict[str, dict[str, tuple[tuple[int, PairKind], ...]]] = {}
    for _, pair in entries:
        found.setdefault(pair.rider_id, {})[pair.driver_id] = pair.stands
    return found


def stands(known: PairsByRider, rider_id: str, driver_id: str, now: int) -> PairKind:
    """Return what a rider and a driver are to each other at a time.

    >>> stands({"ann": {"d1": ((5, "block"), (9, "none"))}}, "ann", "d1", 8)
    'block'
    """
    of = known.get(rider_id, {}).get(driver_id, ())
    return next((kind for at, kind in reversed(of) if at <= now), "none")


def named(known: PairsByRider, rider_id: str, now: int) -> Named:
    """Return who is something to a rider at a time."""
    of = known.get(rider_id)
    if not of:
        return Named()
    now_of = {driver: stands(known, rider_id, driver, now) for driver in of}
    kinds = {kind: frozenset(d for d, k in now_of.items() if k == kind) for kind in ("block", "favourite")}
    return Named(kinds["block"], kinds["favourite"])

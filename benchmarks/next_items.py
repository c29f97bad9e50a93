"""The index of next items at the size of a shop: bytes, time to build it and to make it anew, time of a list.

Sessions are drawn so that an item is followed by one near to it, and some items are looked at far more often
than others. Everything runs in this process, without Spark; the state is that of the stream's log.
"""

from __future__ import annotations

import os
import random
import resource
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, Final

import msgspec
import numpy as np

from millrace_apps.clickstream.contracts.messages import ItemFacts
from millrace_apps.clickstream.recommend.filters import Asked, list_for, rules_of
from millrace_apps.clickstream.recommend.index import SessionIndex
from millrace_apps.clickstream.recommend.log import SessionLog, let_in
from millrace_apps.clickstream.recommend.log import sessions_of as kept_in
from millrace_apps.clickstream.recommend.scoring import POLICIES, Policy

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_SURFACES: Final[tuple[Policy, ...]] = ("resume", "discover")


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        sessions: Sessions in the index.
        items: Items that there are.
        newest: Newest sessions that an item keeps.
        most: Length of a list.
        clicks: Clicks that are answered with a list for each surface.
        seed: Of the sessions.
    """

    sessions: int = 1_000_000
    items: int = 100_000
    newest: int = 1_000
    most: int = 10
    clicks: int = 2_000
    seed: int = 1


QUICK: Final = Sizes(sessions=20_000, items=5_000, clicks=300)


class Segments(dict[int, list[list[str]]]):
    """Sealed segments of the log."""

    def put(self, key: int, value: list[list[str]]) -> None:
        """Keep a segment."""
        self[key] = value

    def remove(self, key: int) -> None:
        """Forget a segment."""
        del self[key]


def sessions_of(sizes: Sizes, number: int, seed: int) -> Iterator[list[str]]:
    """Yield sessions: 1 to 12 clicks, 3.7 on average; items by a law of Zipf, then those near to them.

    >>> sum(map(len, sessions_of(QUICK, 2_000, 1))) / 2_000 > 3
    True
    """
    rnd = random.Random(seed)
    bounds = list(accumulate((rank + 1) ** -0.8 for rank in range(sizes.items)))
    for _ in range(number):
        item = bisect_right(bounds, rnd.random() * bounds[-1])
        found = [f"item-{item:06d}"]
        while len(found) < 12 and rnd.random() < 0.75:
            near = rnd.random() < 0.6
            step = int(rnd.gauss(0.0, 20.0)) if near else 0
            item = (item + step) % sizes.items if near else bisect_right(bounds, rnd.random() * bounds[-1])
            found.append(f"item-{item:06d}")
        yield found


def next_items(sizes: Sizes) -> dict[str, Any]:
    """Return what the index takes, and how long."""
    log, segments = SessionLog(), Segments()
    part: list[list[str]] = []
    clicks, spent = 0, 0.0
    for session in sessions_of(sizes, sizes.sessions, sizes.seed):
        part.append(session)
        clicks += len(session)
        if len(part) == 1_000:
            begin = time.process_time()
            let_in(log, segments, part, m=sizes.newest, keep=2 * sizes.sessions)
            spent += time.process_time() - begin
            part = []
    let_in(log, segments, part, m=sizes.newest, keep=2 * sizes.sessions)
    state = len(msgspec.msgpack.encode(log)) + sum(len(msgspec.msgpack.encode(s)) for s in segments.values())
    before, begin, wall = _resident(), time.process_time(), time.perf_counter()
    # As a process that begins does (``log.index_of``), though one is at hand here.
    index = SessionIndex(sizes.newest)
    for items in kept_in(log, segments):
        index.add(items)
    restore_s, restore_cpu_s = time.perf_counter() - wall, time.process_time() - begin
    return {
        "sessions": index.sessions,
        "items": len(index.names),
        "clicks": clicks,
        "state_bytes": state,
        "state_bytes_per_session": round(state / sizes.sessions, 1),
        "let_in_cpu_us_per_session": round(spent / sizes.sessions * 1e6, 1),
        "restore_s": round(restore_s, 2),
        "restore_cpu_s": round(restore_cpu_s, 2),
        "index_resident_mb": round((_resident() - before) / 1e6, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 1),
        "rules": sum(len(index.rules(item)) for item in range(len(index.names))),
        **_scored(index, sizes),
    }


def _scored(index: SessionIndex, sizes: Sizes) -> dict[str, Any]:
    """Answer clicks as the stream does, with its built-in rules."""
    rules = rules_of(()).at(0)
    nothing: dict[str, ItemFacts] = {}
    walls: list[float] = []
    begin = time.process_time()
    answered = 0
    for session in sessions_of(sizes, sizes.clicks, sizes.seed + 1):
        for at in range(1, len(session) + 1):
            for surface in _SURFACES:
                wall = time.perf_counter()
                list_for(index, rules, Asked(session[:at], frozenset(), surface, nothing.get), sizes.most)
                walls.append((time.perf_counter() - wall) * 1_000)
            answered += 1
            if answered == sizes.clicks:
                break
        if answered == sizes.clicks:
            break
    cpu = time.process_time() - begin
    p50, p90, p99 = np.percentile(walls, (50, 90, 99))
    return {
        "clicks_answered": answered,
        "list_ms_p50": round(float(p50), 3),
        "list_ms_p90": round(float(p90), 3),
        "list_ms_p99": round(float(p99), 3),
        "cpu_ms_per_click": round(cpu / answered * 1_000, 3),
    }


def _resident() -> int:
    """Return the bytes of memory that this process has now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what it was asked for."""
    return asdict(sizes) | {"surfaces": [surface for surface in POLICIES if surface in _SURFACES]}

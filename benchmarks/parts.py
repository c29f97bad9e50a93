"""`millrace bench parts`: state logic that apps keep of their own, beside parts that could take its place."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final

import msgspec

from millrace.parts.deadlines import Deadlines
from millrace.parts.lookback import LookBack
from millrace.parts.sessions import Sessions
from millrace_apps.clickstream.processes.rules import GA4
from millrace_apps.clickstream.state.sessions import SessionBook
from millrace_apps.fraud.state.labels import FRAUD, GENUINE, PENDING, LabelLog
from millrace_apps.iot_maintenance.processes.liveness import Gateway

_START_MS: Final = 1_767_369_600_000
_DAY_MS: Final = 86_400_000
_MINUTE_MS: Final = 60_000
_TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        labels: Transactions of a terminal, over 37 days.
        devices: Devices of a gateway.
        clicks: Clicks of a visit.
        repeats: Runs; the figure is the least.
        calls: Calls per run.
    """

    labels: int = 400
    devices: int = 20
    clicks: int = 30
    repeats: int = 7
    calls: int = 1_000


QUICK = Sizes(labels=50, devices=5, clicks=5, repeats=1, calls=10)


def parts(sizes: Sizes) -> dict[str, Any]:
    """Compare what apps keep with the parts, by bytes and by time.

    Args:
        sizes: How much.

    Returns:
        Of each pair the bytes of one entry, and µs of a look at it, its unpacking included (of a visit: of
        entering all its clicks); ``correct``: both say the same.
    """
    found = {
        "labels_of_a_terminal": _labels(sizes),
        "silence_at_a_gateway": _silence(sizes),
        "sessions_of_a_visitor": _sessions(sizes),
    }
    return {**found, "correct": all(one["correct"] for one in found.values())}


def _pair(
    sizes: Sizes, own: Callable[[], Any], part: Callable[[], Any], own_b: int, part_b: int
) -> dict[str, Any]:
    return {
        "bytes": {"own": own_b, "part": part_b},
        "us": {"own": _least_us(own, sizes), "part": _least_us(part, sizes)},
        "correct": own() == part(),
    }


def _least_us(call: Callable[[], Any], sizes: Sizes) -> float:
    return min(timeit.repeat(call, number=sizes.calls, repeat=sizes.repeats)) / sizes.calls * 1e6


def _labels(sizes: Sizes) -> dict[str, Any]:
    """Known frauds and genuine ones of a terminal, and the newest of each: a label log, and a look-back."""
    random, at = Random(1), _START_MS
    log, back = LabelLog(), LookBack(_START_MS)
    for _ in range(sizes.labels):
        at += random.randrange(1, 74 * _DAY_MS // sizes.labels)
        label = random.choice([PENDING, GENUINE, GENUINE, GENUINE, GENUINE, FRAUD])
        log.add(at, label)
        back.add(at, label)
    packed_log, packed_back = msgspec.msgpack.encode(log), msgspec.msgpack.encode(back)
    unpack_log = msgspec.msgpack.Decoder(LabelLog).decode
    unpack_back = msgspec.msgpack.Decoder(LookBack).decode

    def of_log() -> tuple[int, int]:
        risk = unpack_log(packed_log).risk(at)
        return risk.frauds, risk.known

    def of_back() -> tuple[int, int]:
        labels = unpack_back(packed_back).value(at).amounts_from(0)
        frauds = labels.count(FRAUD)
        # What risk() looks for as well: where the newest of each kind is.
        for kind in (FRAUD, GENUINE):
            next((place for place in range(len(labels) - 1, -1, -1) if labels[place] == kind), -1)
        return frauds, frauds + labels.count(GENUINE)

    return _pair(sizes, of_log, of_back, len(packed_log), len(packed_back))


def _silence(sizes: Sizes) -> dict[str, Any]:
    """Who is to be looked at when a gateway's first device is overdue: as it is, and by deadlines beside."""
    gateway, waits = Gateway(), Deadlines()
    for number in range(sizes.devices):
        name, at = f"P1-L2-M{number:04d}", _START_MS + number * 500
        gateway.heard(name, "gw", True, at, _TIMEOUT_MS)
        waits.add(at + _TIMEOUT_MS, 0, name)
    first, last = f"P1-L2-M{0:04d}", f"P1-L2-M{sizes.devices - 1:04d}"
    gateway.heard(first, "gw", True, _START_MS + 400, _TIMEOUT_MS)
    packed_own, packed_part = msgspec.msgpack.encode(gateway), msgspec.msgpack.encode((gateway, waits))
    unpack_own = msgspec.msgpack.Decoder(Gateway).decode
    unpack_part = msgspec.msgpack.Decoder(tuple[Gateway, Deadlines]).decode
    now = _START_MS + _TIMEOUT_MS

    def own() -> tuple[list[Any], int, int]:
        kept = unpack_own(packed_own)
        rows = kept.silent("gw", now, (_TIMEOUT_MS, _TIMEOUT_MS))
        return rows, kept.next_ms(), kept.devices[last].last

    def part() -> tuple[list[Any], int, int]:
        kept, due = unpack_part(packed_part)
        devices, silent = kept.devices, []
        while (one := due.take(now, lambda d: devices[d[2]].last + _TIMEOUT_MS)) is not None:
            silent.append(one)
        return silent, due.next_ms, devices[last].last

    return _pair(sizes, own, part, len(packed_own), len(packed_part))


def _sessions(sizes: Sizes) -> dict[str, Any]:
    """A visit's clicks: the book of a visitor's sessions, and sessions by their gap alone."""
    clicks = [_START_MS + number * _MINUTE_MS for number in range(sizes.clicks)]
    gap = GA4.gap_ms or 0

    def own() -> tuple[int, int]:
        book = SessionBook()
        for at in clicks:
            session, _ = book.enter(at, GA4)
            session.span(at, "")
        return len(book.sessions), book.sessions[0].events

    def part() -> tuple[int, int]:
        visits = Sessions[int]()
        for at in clicks:
            visits.add(at, at + gap, 1, int.__add__)
        return len(visits.kept), next(iter(visits.kept.values())).what

    book, visits = SessionBook(), Sessions[int]()
    book.enter(clicks[0], GA4)
    visits.add(clicks[0], clicks[0] + gap, 1, int.__add__)
    return _pair(sizes, own, part, len(msgspec.msgpack.encode(book)), len(msgspec.msgpack.encode(visits)))


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return asdict(sizes)

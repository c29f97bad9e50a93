"""Faults beyond lateness, repeats and broken messages: loss, drifted schemas, wrong clocks, silence.

Every stage here is a stream of messages in, a stream of messages out, as in
:mod:`millrace_apps.generators.engine.stages`: one draw per event from numbers of its own, so that no fault
moves another.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from millrace_apps.generators.engine.delay import Delay, parse_delay
from millrace_apps.generators.engine.message import Fault, Generated
from millrace_apps.generators.engine.profile import check
from millrace_apps.generators.engine.stages import Stream

#: Makes a message of another schema out of a valid one; None where the event does not allow it.
Drift: TypeAlias = Callable[[Generated, int, random.Random], Generated | None]

_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Disturbances:
    """What goes wrong on the way, beside lateness, repeats and broken messages.

    Attributes:
        delay: Law of every event's delay, e.g. ``exponential(mean=200ms)``; empty: uniform, 0 to the
            profile's disorder.
        loss: Share of events that are never sent, 0 to 1.
        drift: Messages of a drifted schema per event, 0 to 1: an added field (the event itself, still
            valid), a renamed field or another type (beside it, with an id of its own).
        unknown_version: Extra messages of a schema version that nobody knows, per event, 0 to 1.
        clock_skew: Share of keys whose clock is wrong, 0 to 1.
        clock_skew_ms: How far a wrong clock is off at most, before or after, ms.
        idle_ms: How long one partition sends nothing, ms; 0: never.
        idle_every_ms: Once in every such time, ms.
        idle_partitions: Of how many partitions; keys are assigned to them as Kafka's clients do.
        silence_ms: How long nothing at all is sent, ms; 0: never.
        silence_every_ms: Once in every such time, ms.
    """

    delay: str = ""
    loss: float = 0.0
    drift: float = 0.0
    unknown_version: float = 0.0
    clock_skew: float = 0.0
    clock_skew_ms: int = 60_000
    idle_ms: int = 0
    idle_every_ms: int = 600_000
    idle_partitions: int = 4
    silence_ms: int = 0
    silence_every_ms: int = 3_600_000

    def __post_init__(self) -> None:
        for name in ("loss", "drift", "unknown_version", "clock_skew"):
            check(0 <= getattr(self, name) <= 1, f"{name} is a share between 0 and 1", getattr(self, name))
        check(1 <= self.clock_skew_ms <= _DAY_MS, "clock skew is 1 ms to one day", self.clock_skew_ms)
        check(self.idle_partitions >= 1, "idle partitions is a count from 1", self.idle_partitions)
        for name in ("idle", "silence"):
            length, every = getattr(self, f"{name}_ms"), getattr(self, f"{name}_every_ms")
            check(0 <= length < every, f"{name} is shorter than its period of {every} ms", length)
        if self.delay:
            parse_delay(self.delay)

    @property
    def law(self) -> Delay | None:
        """The law of delay, if there is one."""
        return parse_delay(self.delay) if self.delay else None

    def parameters(self) -> dict[str, Any]:
        """Return all parameters by name, for the ledger."""
        return asdict(self)


def lost(stream: Stream, share: float, numbers: random.Random) -> Stream:
    """Do not send a share of the messages; they are only noted."""
    draw = numbers.random
    for message in stream:
        if message.is_event and draw() < share and message.fault is None:
            message.fault = Fault("lost", "absent")
            message.dropped = True
        yield message


def beside(stream: Stream, share: float, make: Drift, numbers: random.Random) -> Stream:
    """Add odd messages beside the events, or turn an event itself into one.

    ``make`` returns the event itself (changed, with its fault set) or another message to be sent with it.
    """
    draw, made = numbers.random, 0
    variants = random.Random(int(numbers.random() * (1 << 53))).random
    for message in stream:
        odd: Generated | None = None
        if message.is_event and draw() < share:
            # Numbered and seeded even if another fault came first: that must not move the next one.
            made += 1
            own = random.Random(int(variants() * (1 << 53)))
            if message.fault is None:
                odd = make(message, made, own)
        yield message
        if odd is not None and odd is not message:
            yield odd.beside(message)


class Window(NamedTuple):
    """A time in which a partition, or everything, is silent; the end is not part of it."""

    number: int
    begin_ms: int
    end_ms: int
    partition: int


def windows(
    start_ms: int, length_ms: int, every_ms: int, partitions: int, numbers: random.Random
) -> Iterator[Window]:
    """Yield one window per period, at a random place in it, without end."""
    draw, number = numbers.random, 0
    while True:
        begin = start_ms + number * every_ms + int(draw() * (every_ms - length_ms))
        yield Window(number, begin, begin + length_ms, int(draw() * partitions))
        number += 1


def silent(stream: Stream, name: str, planned: Iterator[Window], partitions: int) -> Stream:
    """Drop what happens in a silent time; every window leaves one note for the ledger.

    Args:
        stream: Messages in order of what happened.
        name: Begins the notes' ids.
        planned: The windows in order.
        partitions: The windows' partitions are of so many; 1: all messages are silent.
    """
    window, withheld, last_ms = next(planned), 0, 0
    for message in stream:
        if message.dropped and not message.value:  # another stage's note
            yield message
            continue
        last_ms = message.happened_ms
        while last_ms >= window.end_ms:
            yield _note(name, window, withheld, partitions)
            window, withheld = next(planned), 0
        inside = last_ms >= window.begin_ms
        if inside and (partitions == 1 or partition_of(message.key, partitions) == window.partition):
            withheld += 1
            continue
        yield message
    if last_ms >= window.begin_ms:
        yield _note(name, window, withheld, partitions)


def _note(name: str, window: Window, withheld: int, partitions: int) -> Generated:
    scope = "all" if partitions == 1 else f"partition {window.partition} of {partitions}"
    note = Generated(f"{name}-{window.number:06d}", b"", b"", [], window.begin_ms, "", 0)
    note.happened_ms = note.due_ms = window.end_ms
    note.dropped = True
    detail = f"{scope}; end_ms={window.end_ms}; withheld={withheld}"
    note.fault = Fault("silence", "absent", detail=detail)
    return note


@lru_cache(maxsize=1 << 16)
def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition that Kafka's own clients choose for a key.

    Source: Kafka's ``BuiltInPartitioner.partitionForKey``: murmur2 of the key, without its sign, modulo
    the number of partitions. The test takes the hash's values from Kafka's own tests.

    >>> partition_of(b"21", 4), partition_of(b"foobar", 4)
    (0, 2)
    """
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    multiplier, mask = 0x5BD1E995, 0xFFFFFFFF
    state = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        state = state * multiplier & mask ^ word
    if whole < len(data):
        state = (state ^ int.from_bytes(data[whole:], "little")) * multiplier & mask
    state = (state ^ state >> 13) * multiplier & mask
    return state ^ state >> 15

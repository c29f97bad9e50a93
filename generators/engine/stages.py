"""The stages between a simulation and its sink: each is a stream of messages in, a stream of messages out.

A simulation yields in event time. :func:`disorder` gives every message its time of arrival, the others
hold back, repeat and break messages, and :func:`in_arrival_order` merges all of it into the order of
sending. Every stage draws once per event from its own random numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import TypeAlias

from millrace_apps.generators.engine.delay import Delay
from millrace_apps.generators.engine.message import Fault, Generated

Stream: TypeAlias = Iterator[Generated]
#: Makes a broken message out of a valid one: ``(event, number, random numbers) → message``.
Corrupt: TypeAlias = Callable[[Generated, int, random.Random], Generated]

#: A repeat follows within this event time, ms: short, so that no watermark passes it before it comes.
DUPLICATE_GAP_MS = 500


def disorder(stream: Stream, bound_ms: int, numbers: random.Random) -> Stream:
    """Let every message arrive 0 to ``bound_ms`` after its event time."""
    draw, span = numbers.random, bound_ms + 1
    for message in stream:
        message.due_ms = message.happened_ms + int(draw() * span)
        yield message


def spaced(stream: Stream, start_ms: int, rate: float) -> Stream:
    """Send messages evenly, so many per second, whenever they arrive by their own pace."""
    for number, message in enumerate(stream):
        message.arrival_ms = message.due_ms
        message.due_ms = start_ms + int(number * 1000 / rate)
        yield message


def delayed(stream: Stream, delay: Delay, numbers: random.Random) -> Stream:
    """Let every message arrive after a delay drawn from a law."""
    draw, quantiles, steps = numbers.random, delay.quantiles_ms, len(delay.quantiles_ms)
    for message in stream:
        message.due_ms = message.happened_ms + quantiles[int(draw() * steps)]
        yield message


def late(
    stream: Stream, share: float, lateness_ms: int, last_ms: int | None, numbers: random.Random
) -> Stream:
    """Hold a share of the messages back until they are ``lateness_ms`` (up to 25 % more) behind.

    Those so near to the end ``last_ms`` are spared that no event would be left to be late against.
    """
    draw = numbers.random
    for message in stream:
        chance = draw()
        if chance < share and message.fault is None:
            held_until_ms = message.event_time_ms + int(lateness_ms * (1 + 0.25 * chance / share))
            if last_ms is None or held_until_ms <= last_ms:
                message.held_until_ms = held_until_ms
                message.fault = Fault("late", "late")
        yield message


def duplicates(stream: Stream, share: float, numbers: random.Random) -> Stream:
    """Send a share of the messages again, byte for byte, up to half a second of event time later."""
    draw = numbers.random
    for message in stream:
        chance = draw() if message.is_event else 1.0
        yield message
        if chance < share and message.fault is None:
            again = message.again()
            again.due_ms = message.due_ms + 1 + int(chance / share * DUPLICATE_GAP_MS)
            again.fault = Fault("duplicate", "duplicate")
            yield again


def malformed(stream: Stream, share: float, corrupt: Corrupt, numbers: random.Random) -> Stream:
    """Add broken messages beside the valid ones; no valid message is lost by it."""
    draw, made = numbers.random, 0
    variants = random.Random(numbers.getrandbits(64))
    for message in stream:
        yield message
        # Repeats draw no number: whether there are any must not change what is broken.
        if message.is_event and draw() < share:
            made += 1
            yield corrupt(message, made, variants).beside(message)


def in_arrival_order(stream: Stream) -> Stream:
    """Merge messages, which come in event time, into their order of arrival.

    Holds the messages of about one disorder bound and the late ones, whatever the stream's length.
    """
    queue: list[tuple[int, int, Generated]] = []
    held: list[tuple[int, int, Generated]] = []
    newest, last_ms = -1, 0
    for order, message in enumerate(stream):
        if message.held_until_ms:
            heappush(held, (message.held_until_ms, order, message))
            continue
        heappush(queue, (message.due_ms, order, message))
        # Whatever is still to come arrives after its own event time, so not before this one's.
        frontier = message.happened_ms
        while queue and queue[0][0] <= frontier:
            ready = heappop(queue)[2]
            yield ready
            last_ms = ready.due_ms
            if ready.event_time_ms > newest and ready.fault is None:
                newest = ready.event_time_ms
                if held and held[0][0] <= newest:
                    yield from _overdue(held, newest, ready.due_ms)
    while queue:
        ready = heappop(queue)[2]
        yield ready
        if ready.fault is None:
            newest = max(newest, ready.event_time_ms)
        yield from _overdue(held, newest, ready.due_ms)
        last_ms = ready.due_ms
    # The stream ended before enough had come to be as late as that against.
    while held:
        message = heappop(held)[2]
        message.due_ms = last_ms = max(last_ms, message.happened_ms)
        if message.fault is not None:
            message.fault.lateness_ms = max(newest - message.event_time_ms, 0)
            message.fault.expected = "either"
        yield message


def _overdue(held: list[tuple[int, int, Generated]], newest_ms: int, now_ms: int) -> Stream:
    while held and held[0][0] <= newest_ms:
        message = heappop(held)[2]
        message.due_ms = now_ms
        if message.fault is not None:
            message.fault.lateness_ms = newest_ms - message.event_time_ms
        yield message

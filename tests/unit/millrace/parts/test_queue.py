"""What a queue tells is what the aggregates of windows tell of a plain list, whatever came and went."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import msgspec
import pytest

from millrace.windows import collect, count, max_of, mean, queue_of, sum_of


class Ev(msgspec.Struct):
    v: float


def place(event: tuple[int, float]) -> tuple[int, bytes]:
    return event[0], msgspec.msgpack.encode(event[1])  # of one time by their encoding


def run(seed: int) -> None:
    """One random life of a queue: of aggregates that subtract, of some that merge, of both."""
    random = Random(seed)
    aggregates = [count(), sum_of("v"), mean("v"), max_of("v"), collect("v")]
    chosen = sorted(random.sample(range(len(aggregates)), random.randint(1, len(aggregates))))
    queue_def = queue_of(Ev, *(aggregates[place] for place in chosen))
    queue, events, now = queue_def.new(), list[tuple[int, float]](), 0
    for _ in range(random.choice([4, 80])):
        now += random.choice([0, 0, 1, 5])
        step = random.random()
        if step < 0.6:
            value = random.choice([0.0, 1.0, -2.5, 1e17, 0.1])
            queue_def.add(queue, now, Ev(value))
            events.append((now, value))
        elif step < 0.85:
            before = now - random.randrange(-1, 12)
            queue_def.prune(queue, before)
            events = [event for event in events if event[0] >= before]
        else:
            queue = msgspec.msgpack.decode(msgspec.msgpack.encode(queue), type=queue_def.type)
        values = [value for _, value in events]
        exact = float(sum(map(Fraction, values), Fraction(0)))
        told = [
            len(values),
            exact,
            exact / len(values) if values else None,
            max(values, default=None),
            [value for _, value in sorted(events, key=place)],
        ]
        found = queue_def.value(queue)
        for which, one in zip(chosen, found, strict=True):
            if which == 2:
                assert one == (None if told[2] is None else pytest.approx(told[2], rel=1e-12))
            else:
                assert (list(one) if which == 4 else one) == told[which]
        times = queue_def.times(queue)
        assert times == ((events[0][0], events[-1][0]) if events else None)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_told_is_that_of_a_plain_list(seed: int) -> None:
    run(seed)

"""What is due is told once, in order, whatever is put off, taken over, forgotten or packed between."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from millrace.parts.deadlines import Deadlines
from millrace.time import NEVER

Due = tuple[int, int, str, int]


def run(seed: int) -> None:
    """One random life of deadlines beside a plain list that is looked through every time."""
    random = Random(seed)
    kept, plain = Deadlines(), list[Due]()
    heard: dict[str, int] = {}
    now = 0

    def really(due: Due) -> int:
        return heard.get(due[2], -1) + 10 if due[1] == 2 else due[0]

    for _ in range(random.choice([3, 40])):
        now += random.randrange(4)
        step = random.random()
        who = random.choice("abc")
        if step < 0.4:
            made = now + random.randrange(-3, 12), random.randrange(3), who, random.randrange(2)
            kept.add(*made)
            plain.append(made)
        elif step < 0.6:
            heard[who] = now
        elif step < 0.65:
            kept.prune(lambda due: due[3] == 1)
            plain = [due for due in plain if due[3] == 1]
        elif step < 0.7:
            other = Deadlines()
            for _ in range(3):
                made = now + random.randrange(-3, 12), random.randrange(3), who, random.randrange(2)
                other.add(*made)
                plain.append(made)
            before = msgspec.msgpack.encode(other)
            kept.merge(other)
            assert msgspec.msgpack.encode(other) == before
        elif step < 0.75:
            kept = msgspec.msgpack.decode(msgspec.msgpack.encode(kept), type=Deadlines)
        else:
            told = []
            while (due := kept.take(now, really)) is not None:
                told.append(due)
            come = [due for due in plain if due[0] <= now]
            put_off = [due for due in come if really(due) > now]
            assert told == sorted(due for due in come if due not in put_off)
            plain = [due for due in plain if due[0] > now]
            plain += [(really(due), *due[1:]) for due in put_off]
            assert kept.next_ms > now
        assert kept.next_ms == min((due[0] for due in plain), default=NEVER)
        assert kept.value(now + 5) == sorted(due for due in plain if due[0] <= now + 5)
        assert bool(kept) is bool(plain)


@pytest.mark.parametrize("seed", range(100))
def test_what_is_due_is_that_of_a_plain_list(seed: int) -> None:
    run(seed)


def test_a_deadline_that_is_not_put_off_beyond_now_is_due() -> None:
    kept = Deadlines()
    kept.add(5, 0)
    assert kept.take(7, later=lambda due: 7) == (5, 0, "", 0)
    kept.add(5, 0)
    assert kept.take(7, later=lambda due: 8) is None
    assert kept.next_ms == 8

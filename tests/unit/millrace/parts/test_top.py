"""The best are the first of all items in order, however they became what they are."""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest

from millrace.parts.top import TopN, best, rise_or_fall


def in_order(items: dict[str, Any]) -> list[tuple[str, Any]]:
    """All items that have a place, by two stable sorts."""
    ranked = sorted(item for item in items if items[item] is not None and not math.isnan(items[item]))
    return [(item, items[item]) for item in sorted(ranked, key=lambda item: items[item], reverse=True)]


def some_number(random: Random) -> float | None:
    return random.choice([None, math.nan, math.inf, -math.inf, 0, 0.0, 1, 1, 2, 2.5, -3, random.random()])


def run(seed: int) -> None:
    """One random history of a ranking beside all its items, and of counts beside a counter."""
    random = Random(seed)
    n, names = random.choice([1, 2, 5]), "abcdefgh"
    items: dict[str, float | None] = {}
    ranking: list[tuple[str, Any]] = []
    counts, counter = TopN(), Counter[str]()
    for _ in range(random.choice([3, 30])):
        item = random.choice(names)
        items[item] = some_number(random)
        wanted = in_order(items)[:n]
        assert best(items.items(), n) == wanted
        after = rise_or_fall(ranking, (item, items[item]), n)
        assert after is None or after == wanted
        ranking = wanted
        step, number = random.random(), random.choice([1, 1, 2, -1, -2])
        if step < 0.8:
            counts.add(item, number)
            counter[item] += number
        elif step < 0.9:
            counts.merge(TopN({"a": 2, "z": 1}))
            counter.update({"a": 2, "z": 1})
        elif step < 0.95:
            counts.prune(1)
            counter = Counter({name: count for name, count in counter.items() if count >= 1})
        else:
            counts = msgspec.msgpack.decode(msgspec.msgpack.encode(counts), type=TopN)
        left = {name: count for name, count in counter.items() if count}
        assert counts.numbers == left
        assert counts.value(n) == in_order(left)[:n]
        assert bool(counts) is bool(left)


@pytest.mark.parametrize("seed", range(100))
def test_the_best_are_the_first_of_all_in_order(seed: int) -> None:
    run(seed)


def test_who_falls_below_what_is_not_known_cannot_be_placed() -> None:
    assert rise_or_fall([("a", 5), ("b", 4)], ("b", 3), 2) is None
    assert rise_or_fall([("a", 5), ("b", 4)], ("b", None), 2) is None
    assert rise_or_fall([("a", 5)], ("a", None), 2) == []  # all there are are known

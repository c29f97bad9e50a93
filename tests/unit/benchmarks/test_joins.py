"""What the benchmark of joins runs gives what its oracles say, and these what a loop says."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from millrace.testing import TestDriver
from millrace_apps.benchmarks import joined, oracles
from millrace_apps.benchmarks.digest import digest
from millrace_apps.benchmarks.inputs import START_MS, Events, card_name
from millrace_apps.benchmarks.w1_job import Purchase


@pytest.fixture(scope="module")
def sides() -> joined.Sides:
    """Few cards over hours, so that limits grow old."""
    made = joined.make_sides(1_500, 12)
    spread = 9_973
    return joined.Sides(
        Events(made.purchases.card, made.purchases.cents, START_MS + np.arange(1_500) * spread),
        oracles.Limits(made.limits.card, START_MS + np.arange(150) * 10 * spread),
    )


def pairs(sides: joined.Sides, reach_ms: int) -> list[tuple[int, list[int]]]:
    """Return for each purchase the limits of its card that are at most so old, oldest first."""
    limits = list(enumerate(zip(sides.limits.card.tolist(), sides.limits.since.tolist(), strict=True)))
    columns = (sides.purchases.card.tolist(), sides.purchases.at.tolist())
    return [
        (i, [n for n, (of, since) in limits if of == card and 0 <= at - since <= reach_ms])
        for i, (card, at) in enumerate(zip(*columns, strict=True))
    ]


def test_the_oracle_of_the_asof_join_is_a_loop(sides: joined.Sides) -> None:
    wanted = [(i, found[-1] if found else -1) for i, found in pairs(sides, joined.KEEP_MS - 1)]
    found = oracles.as_of(sides.purchases, sides.limits, joined.KEEP_MS)
    assert list(zip(*(c.tolist() for c in found), strict=True)) == wanted
    assert -1 in found[1]


def test_the_oracle_of_the_interval_join_is_a_loop(sides: joined.Sides) -> None:
    wanted = [(i, n) for i, found in pairs(sides, joined.BACKWARD_MS) for n in found]
    found = oracles.within(sides.purchases, sides.limits, joined.BACKWARD_MS)
    assert list(zip(*(c.tolist() for c in found), strict=True)) == wanted
    assert len(wanted) > 50


@pytest.mark.parametrize("job", ["asof", "interval"])
def test_every_join_gives_what_is_expected(job: joined.Job, sides: joined.Sides) -> None:
    columns = (sides.purchases.card.tolist(), sides.purchases.cents.tolist(), sides.purchases.at.tolist())
    events = [
        (card_name(c), at, Purchase(i, card_name(c), cents, at))
        for i, (c, cents, at) in enumerate(zip(*columns, strict=True))
    ]
    limits = zip(sides.limits.card.tolist(), sides.limits.since.tolist(), strict=True)
    events += [(card_name(c), at, joined.Limit(n, card_name(c), at)) for n, (c, at) in enumerate(limits)]
    driver = TestDriver(joined.process_of(job))
    driver.send_batch(sorted(events, key=lambda e: e[1]))
    driver.drain()
    assert {e.output for e in driver.emissions} == {"main"}
    rows = [msgspec.json.decode(e.payload) for e in driver.emissions]
    ids = [row["id"] for row in rows]
    numbers = [-1 if row["limit"] is None else row["limit"] for row in rows]
    assert digest(ids, numbers) == joined.expected(job, sides)


def test_batches_of_both_sides_are_of_the_same_time(tmp_path: Path, sides: joined.Sides) -> None:
    cuts = sides.write(tmp_path, 3, with_json=True)
    assert cuts == [0, 550, 1_100, 1_650]
    left, right = (sorted((tmp_path / side).iterdir()) for side in ("left", "right"))
    assert len(left) == len(right) == 8
    for batch in range(3):
        files = slice(2 * batch, 2 * batch + 2)
        at = np.concatenate([pq.read_table(f)["at"].to_numpy() for f in left[files]])
        since = np.concatenate([pq.read_table(f)["since"].to_numpy() for f in right[files]])
        assert at.min() <= since.min() <= since.max() <= at.max()
    table = pq.read_table(right[0])
    found = [msgspec.json.decode(value, type=joined.Limit) for value in table["value"].to_pylist()]
    assert [limit.limit for limit in found] == table["limit"].to_pylist()

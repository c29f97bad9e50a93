"""Random processes give on Spark what they give in memory, and both forget all in the end.

A few cases here, of fixed seeds; ``pytest -m matrix`` adds one that nobody knows beforehand, and ``make
fuzz`` runs them for long.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import StreamFactory, one_partition
from tests.spark.fuzzing import KINDS, check, in_memory, random_case

#: One of each order, with ticks and without; changed only together with what the first test says.
SEEDS = (1, 2, 5, 12)
#: Another one every time, in the name of its test; set it to see the same again.
FRESH = int(os.environ.get("MILLRACE_FUZZ_SEED") or random.SystemRandom().randrange(10**6))


def test_the_fixed_cases_cover_what_there_is() -> None:
    definitions = [random_case(seed).definition for seed in SEEDS]
    assert {d.order for d in definitions} == {"event_time", "key", "in_order_per_key", "commutes"}
    assert {d.ticks for d in definitions} == {True, False}
    states = [state for d in definitions for state in d.states]
    assert {state.kind for state in states} == set(KINDS)
    assert {(state.ttl_time, state.refresh) for state in states if state.ttl} == {
        ("event_time", "write"),
        ("event_time", "read_write"),
        ("processing_time", "write"),
        ("processing_time", "read_write"),
    }
    kinds = Counter(e.output for seed in SEEDS for e in in_memory(random_case(seed))[0])
    assert min(kinds[output] for output in ("main", "side", "late", "dead_letters")) > 10


@pytest.mark.parametrize("seed", range(100))
def test_random_processes_leave_nothing_in_memory(seed: int) -> None:
    emissions, left = in_memory(random_case(seed))
    assert emissions
    assert left == []


@pytest.mark.parametrize("seed", [*SEEDS, pytest.param(FRESH, id=f"fresh-{FRESH}", marks=pytest.mark.matrix)])
def test_both_hosts_give_the_same(stream: StreamFactory, seed: int) -> None:
    check(random_case(seed), stream)


@pytest.mark.parametrize("seed", [*SEEDS, pytest.param(FRESH, id=f"fresh-{FRESH}", marks=pytest.mark.matrix)])
def test_a_station_gives_what_memory_gives(spark: SparkSession, stream: StreamFactory, seed: int) -> None:
    with one_partition(spark):
        check(random_case(seed), stream, plan="station")


@pytest.mark.parametrize("seed", [5, pytest.param(FRESH, id=f"fresh-{FRESH}", marks=pytest.mark.matrix)])
def test_two_stations_give_what_memory_gives(spark: SparkSession, stream: StreamFactory, seed: int) -> None:
    with one_partition(spark, 2):
        check(random_case(seed), stream, plan="station", stations=2)

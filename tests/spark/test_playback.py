"""Playback on Spark gives what it gives in memory, batch by batch."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import SparkSession

from millrace import play
from millrace.playback import Control, Playback, Restart, Tick, at
from millrace.topology import Topology
from tests.cases import case_count
from tests.unit.millrace.playback.test_play import (
    EarlyCards,
    Limit,
    Note,
    OrderedCards,
    Sale,
    steps_of,
    topology_of,
)


def lines(played: Playback) -> list[str]:
    found: list[str] = []
    played.show(write=found.append)
    return found


def both(topology: Topology, steps: list[object], bound: int) -> list[list[str]]:
    return [lines(play(topology, steps, engine, out_of_orderness=bound)) for engine in ("memory", "spark")]


def test_two_inputs_a_chain_rules_ticks_and_a_restart_are_the_same_on_both(spark: SparkSession) -> None:
    steps = [
        [Sale("a", "s", at("10:00"), 100), Note("a", at("10:00"), "x"), Sale("b", "s", at("10:00"), 7)],
        Control(Limit(50)),
        Restart(),
        [Sale("a", "s", at("10:00:30"), 100), Sale("b", "t", at("09:59"), 10)],
        Tick(at("10:01")),
    ]
    topology = topology_of(EarlyCards(), notes_are_clock=True, chain=True)
    memory, on_spark = both(topology, steps, 0)
    assert on_spark == memory
    assert any("EarlyCards.late" in line for line in memory)


def test_a_bounded_chain_is_the_same_on_both(spark: SparkSession) -> None:
    rng = random.Random(3)
    sales = [Sale(rng.choice("abc"), rng.choice("st"), at("10:00") + n * 7 % 50, n) for n in range(50)]
    topology = topology_of(OrderedCards(), notes_are_clock=True, chain=True)
    memory, on_spark = (play(topology, [sales], engine, bounded=True) for engine in ("memory", "spark"))
    assert on_spark.values() == memory.values()
    assert len(memory.values()) == 49
    assert lines(on_spark) == lines(memory)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(case_count(6)))
def test_whatever_is_played_is_the_same_on_both(spark: SparkSession, seed: int) -> None:
    rng = random.Random(seed)
    cards = rng.choice([EarlyCards, OrderedCards])()
    topology = topology_of(cards, notes_are_clock=rng.random() < 0.5, chain=rng.random() < 0.5)
    memory, on_spark = both(topology, steps_of(rng), rng.choice([0, 5_000]))
    assert on_spark == memory

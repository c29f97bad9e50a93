"""Sizing: keys and pages that batches touch held to draws, costs found again, answers that follow load."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from millrace.cli.size import app, number
from millrace.errors import UserError
from millrace.sizing.answer import Machine, size
from millrace.sizing.model import FILL, Costs, Point, Workload, distinct, errors, fit, left_out
from millrace.state.pages import PAGE_BYTES

LOAD = Workload(10_000, 1e6)


@pytest.mark.parametrize("seed", range(60))
def test_distinct_things_are_those_that_are_drawn(seed: int) -> None:
    """The oracle draws them, by the same law, and counts."""
    rng = np.random.default_rng(seed)
    things, draws = int(rng.integers(1, 3_000)), int(rng.integers(1, 6_000))
    zipf = float(rng.choice([0.0, 0.7, 1.0, 1.1, 1.6]))
    weights = np.arange(1, things + 1) ** -zipf
    drawn = [len(set(rng.choice(things, draws, p=weights / weights.sum()).tolist())) for _ in range(20)]
    assert distinct(draws, things, zipf) == pytest.approx(np.mean(drawn), rel=0.05, abs=1.5)


def test_keys_that_are_not_counted_one_by_one_are_alike() -> None:
    weights = np.arange(1, 5_000_001, dtype=float) ** -1.1
    every = float(-np.expm1(-100_000 * weights / weights.sum()).sum())
    assert distinct(100_000, 5e6, 1.1) == pytest.approx(every, rel=0.02)


def drawn(rng: random.Random, truth: Costs, count: int) -> list[Point]:
    """Batches of a machine on which others work: those that follow each other take 1 to 9 times their CPU."""
    points = []
    for place in range(count):
        rows, pages = rng.uniform(100, 20_000), rng.uniform(1, 5_000)
        of_it = truth.batch_ms(rows, pages)
        # What runs on by the clock makes a batch longer, and that makes it more.
        beside = rng.uniform(1, 9) / 2_000
        seconds = of_it * beside / (1 - truth.per_second_ms * beside)
        if place % 3 == 0:
            seconds += rng.uniform(1, 5)
        points.append(
            Point(rows, pages, truth.batch_ms(rows, pages, seconds) * rng.uniform(0.98, 1.02), seconds)
        )
    return points


@pytest.mark.parametrize("seed", range(300))
def test_costs_that_made_the_points_are_found_again(seed: int) -> None:
    rng = random.Random(seed)
    truth = Costs(
        rng.uniform(20, 300), rng.uniform(1, 80), rng.choice([0.0, rng.uniform(1, 200)]),
        rng.choice([0.0, rng.uniform(5, 100)]),
    )  # fmt: skip
    points = drawn(rng, truth, rng.randrange(9, 20))
    found = fit(points)
    assert max(map(abs, errors(found, points))) < 0.05
    assert min(found.per_batch_ms, found.per_row_us, found.per_page_us, found.per_second_ms) >= 0
    untold = [Point(p.rows, p.pages, truth.batch_ms(p.rows, p.pages)) for p in points]
    assert fit(untold).per_second_ms == 0
    assert max(map(abs, errors(fit(untold), untold))) < 0.01


@pytest.mark.parametrize("seed", range(50))
def test_a_point_that_is_left_out_is_foretold_by_the_others_only_with_what_a_second_costs(seed: int) -> None:
    """One batch takes long beside other work; what it takes by the clock is what a fit without it misses."""
    rng = random.Random(seed)
    truth = Costs(rng.uniform(200, 300), rng.uniform(20, 40), 100.0, rng.uniform(60, 120))
    points = drawn(rng, truth, 9)
    rows, pages = rng.uniform(1_000, 8_000), rng.uniform(60, 600)
    slow = Point(rows, pages, truth.batch_ms(rows, pages, 6.0), 6.0)
    alone = left_out([*points, slow])
    assert len(alone) == 10
    assert alone[-1] == pytest.approx(errors(fit(points), [slow])[0])
    assert max(map(abs, alone)) < 0.25
    blind = left_out([replace(point, seconds=0.0) for point in (*points, slow)])
    assert blind[-1] < alone[-1]


#: The first runs of ``millrace bench sizing``: events, pages, seconds between batches; 0: as they are done.
RUNS = [(500, 61, 0), (1_000, 149, 0), (4_000, 228, 0), (8_000, 64, 0), (8_000, 625, 0), (2_000, 163, 0),
        (4_000, 402, 0), (6_000, 87, 0), (500, 61, 4), (2_000, 163, 3), (6_000, 87, 5)]  # fmt: skip


@pytest.mark.parametrize(("noise", "within", "of_100"), [(0.03, 0.15, 95), (0.06, 0.25, 90)])
def test_points_that_are_exact_are_foretold_by_the_others_within_a_bound(
    noise: float, within: float, of_100: int
) -> None:
    """What decides is how exact the points are: of the benchmark's runs, measured with so much noise."""
    truth, found = Costs(234.0, 37.5, 180.0, 38.0), 0
    for seed in range(100):
        rng = random.Random(seed)
        points = []
        for rows, pages, every in RUNS:
            seconds = every or truth.batch_ms(rows, pages) / 1_000 * rng.uniform(0.8, 1.6)
            of_it = truth.batch_ms(rows, pages, seconds)
            points.append(Point(rows, pages, of_it * math.exp(rng.gauss(0, noise)), seconds))
        found += max(map(abs, left_out(points))) <= within
    assert found >= of_100


def test_too_few_points_are_refused() -> None:
    with pytest.raises(UserError, match="2 points are too few to fit 3 costs"):
        fit([Point(1, 1, 1), Point(2, 2, 2)])
    with pytest.raises(UserError, match="3 points are too few to fit 4 costs"):
        left_out([Point(1, 1, 1, 1), Point(2, 2, 2, 1), Point(3, 2, 2, 1), Point(3, 2, 2, 2)])


def test_what_runs_by_the_clock_is_of_the_time_between_batches() -> None:
    """Twice as long between batches: twice the rows, and twice what a second costs."""
    costs = Costs(100, 10, 0, 50)
    assert size(LOAD, Machine(), costs).cpu_s == pytest.approx(0.1 + 0.1 + 0.05)
    assert size(replace(LOAD, batch_s=2.0), Machine(), costs).cpu_s == pytest.approx(0.1 + 0.2 + 0.1)


@pytest.mark.parametrize("seed", range(100))
def test_more_load_never_asks_for_less(seed: int) -> None:
    rng = random.Random(seed)
    load = Workload(
        10 ** rng.uniform(0, 6), 10 ** rng.uniform(1, 10), 10 ** rng.uniform(1, 5), 10 ** rng.uniform(1, 4),
        10 ** rng.uniform(-1, 2), rng.randrange(1, 6), rng.choice([0.0, 0.9, 1.2]),
    )  # fmt: skip
    costs = Costs(rng.uniform(0, 300), rng.uniform(0.1, 80), rng.uniform(0, 200))
    small = size(load, Machine(), costs)
    assert small.pages_touched <= load.pages * load.processes * (1 + 1e-9)
    assert small.key_groups >= max(64, 16 * small.partitions) or small.partitions == 0
    assert small.key_groups & (small.key_groups - 1) == 0
    assert small.nodes >= 1
    for name in ("events_per_s", "keys", "entry_bytes", "event_bytes"):
        more = size(replace(load, **{name: getattr(load, name) * rng.uniform(1.5, 20)}), Machine(), costs)
        for figure in ("cpu_s", "cores", "nodes", "network_bytes_per_s", "partitions"):
            assert getattr(more, figure) >= getattr(small, figure) * (1 - 1e-6), (name, figure)
    twice = size(replace(load, processes=2 * load.processes), Machine(), costs)
    assert twice.state_bytes == pytest.approx(2 * small.state_bytes)


def test_a_million_events_a_second_over_ten_terabytes_by_hand() -> None:
    """Each event is of another key, and each key in another page: a page per event."""
    load = Workload(1e6, 10e12 / 1_040, 1_000, batch_s=10)
    found = size(load, Machine(16, 1e9, 1.25e9, 0.6), Costs(200, 20, 50))
    assert load.state_bytes == pytest.approx(10e12)
    assert found.keys_touched == pytest.approx(1e7, rel=0.01)
    page = PAGE_BYTES * FILL
    assert found.pages_touched == pytest.approx(1e7, rel=0.01)
    assert found.cpu_s == pytest.approx(0.2 + 1e7 * 70e-6, rel=0.01)
    assert found.cores == pytest.approx(found.cpu_s / 10 / 0.6)
    assert found.disk_bytes_per_s == pytest.approx(2 * 1e6 * page, rel=0.01)
    assert found.write_amplification == pytest.approx(page / 1_000, rel=0.01)
    assert (found.nodes, found.why_nodes) == (19, "disk")


@pytest.mark.parametrize(
    "wrong", [{"events_per_s": 0}, {"keys": -1}, {"batch_s": float("nan")}, {"zipf": 4.0}]
)
def test_what_is_no_workload_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        replace(LOAD, **wrong)


def test_the_command_tells_the_same_as_text_and_as_json() -> None:
    words = ["--rate", "1M", "--state", "10TB", "--entry", "1kB", "--every", "10s"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    assert "10 TB" in said.output
    assert "9.62 G keys" in said.output
    told = json.loads(CliRunner().invoke(app, [*words, "--format", "json"]).output)
    assert told["sizing"]["state_bytes"] == pytest.approx(10e12)
    assert f"{told['sizing']['nodes']:,}" in said.output


@pytest.mark.parametrize("text", ["", "k", "1X", "1.2.3", "-1", "nan"])
def test_what_is_no_number_is_told(text: str) -> None:
    with pytest.raises(UserError, match="is no number"):
        number(text)


@pytest.mark.parametrize("words", [[], ["--state", "1GB", "--keys", "5"]])
def test_state_is_told_one_way(words: list[str]) -> None:
    found = CliRunner().invoke(app, ["--rate", "10", *words])
    assert isinstance(found.exception, UserError)

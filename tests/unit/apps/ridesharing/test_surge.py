"""Surge: multipliers held to counts made anew, and to what they promise; the city in which they are tried."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import h3
import numpy as np
import pytest
from typer.testing import CliRunner

from apps.ridesharing.config import DispatchConfig
from apps.ridesharing.evaluate_cli import app as evaluate
from apps.ridesharing.replay import run_replay
from apps.ridesharing.surge.process import Cell, Priced, Quote, Seen, Surge, SurgeConfig, move
from apps.ridesharing.surge.report import carry_out, sign_changes
from apps.ridesharing.surge.world import City, World
from millrace.host.memory_chain import MemoryChain
from millrace.topology import Link, Topology

CASES = int(os.environ.get("MILLRACE_CASES", "25"))
_START = 1_767_225_600_000


def some_config(rng: Random) -> SurgeConfig:
    return SurgeConfig(
        resolution=rng.choice((7, 8)),
        epoch_ms=rng.choice((10_000, 30_000)),
        epochs=rng.choice((1, 4, 10)),
        neighbours=rng.choice((0.0, 0.5)),
        balance=rng.choice((0.5, 2.0)),
        prior_cars=rng.choice((0.5, 2.0)),
        band=rng.choice((0.0, 0.15)),
        step=rng.choice((0.1, 0.5)),
        hold_ms=rng.choice((0, 60_000)),
        rise_again_ms=rng.choice((0, 120_000, 3_600_000)),
        ttl_ms=rng.choice((20_000, 150_000)),
    )


def some_seen(rng: Random, count: int) -> list[Seen]:
    """Requests in bursts, cars that come, move, get rides and fall silent; no two things at one moment."""
    places = [(37.75 + rng.random() * 0.05, -122.45 + rng.random() * 0.05) for _ in range(rng.choice((1, 6)))]
    at, found = _START + rng.randrange(40_000), []
    for number in range(count):
        at += rng.choice((1, 50, 3_000, 9_000, rng.choice((1, 400_000, 5_000_000))))
        if rng.random() < 0.1:
            at = max(-(-at // 10_000) * 10_000 - rng.choice((0, 1)), found[-1].at_ms + 1 if found else 0)
        what = rng.choice(("asks", "asks", "free", "busy"))
        subject = f"q{number}" if what == "asks" else f"d{rng.randrange(4)}"
        found.append(Seen(what, subject, "city", at, *rng.choice(places)))
    return found


def ran(seen: list[Seen], config: SurgeConfig, rng: Random) -> tuple[list[Quote], list[Priced]]:
    bound = rng.choice((0, 60_000))
    chain = MemoryChain(Topology({}, (Link(Surge(config)),)), out_of_orderness_ms=bound, records=True)
    left = sorted(seen, key=lambda one: one.at_ms - rng.randrange(bound + 1))
    found: list[Any] = []
    while left:
        size = rng.choice((1, 4, 60))
        found += chain.run_batch([("city", one.at_ms, one) for one in left[:size]])
        left = left[size:]
        if rng.random() < 0.2:
            chain.restart()
    found += chain.advance_watermark(seen[-1].at_ms + 3 * 3_600_000)
    assert {one.output for one in found} <= {"main", "priced"}, "nothing is late or dead"
    quotes = [one.payload for one in found if one.output == "main"]
    return quotes, [one.payload for one in found if one.output == "priced"]


def anew(seen: list[Seen], config: SurgeConfig) -> tuple[dict[str, float], list[tuple[int, str, float]]]:
    """Quotes and moves from the list of all that was seen, every epoch from the beginning on."""
    size = config.epoch_ms
    cell_of = {id(one): h3.latlng_to_cell(one.lat, one.lon, config.resolution) for one in seen}
    names = {other for name in cell_of.values() for other in h3.grid_disk(name, 1)}
    level = dict.fromkeys(names, 1.0)
    history: dict[str, list[tuple[int, float]]] = {name: [] for name in names}
    quotes: dict[str, float] = {}
    moves: list[tuple[int, str, float]] = []

    asks = [(one.at_ms, cell_of[id(one)]) for one in seen if one.what == "asks"]

    def free_at(end: int, name: str) -> int:
        last: dict[str, Seen] = {}
        for one in seen:
            if one.what != "asks" and one.at_ms < end:
                last[one.subject] = one
        return sum(
            one.what == "free" and end - one.at_ms <= config.ttl_ms and cell_of[id(one)] == name
            for one in last.values()
        )

    first = seen[0].at_ms // size
    cars: dict[tuple[int, str], int] = {}
    for epoch in range(first, seen[-1].at_ms // size + 3 * 3_600_000 // size + 1):
        end = (epoch + 1) * size
        for one in seen:
            if one.what == "asks" and end - size <= one.at_ms < end:
                quotes[one.subject] = level[cell_of[id(one)]]
        since = end - config.epochs * size
        asked = Counter(name for at, name in asks if since <= at < end)
        for name in names:
            cars[epoch, name] = free_at(end, name)
        free = {n: sum(cars.get((epoch - back, n), 0) for back in range(config.epochs)) / config.epochs
                for n in names}  # fmt: skip
        for name in sorted(names):
            near = [other for other in h3.grid_ring(name, 1) if other in names]
            demand = asked[name] + config.neighbours * sum(asked[other] for other in near)
            supply = free[name] + config.neighbours * sum(free[other] for other in near)
            ratio = (demand + config.prior_cars * config.balance) / (supply + config.prior_cars)
            target = min(max((ratio / config.balance) ** config.power, 1.0), config.cap)
            past, now = history[name], level[name]
            # What the past says: the way it went last, when it rose last, when it began to fall.
            ways = [
                1 if after > before else -1
                for (_, before), (_, after) in zip([(0, 1.0), *past], past, strict=False)
            ]
            way = ways[-1] if ways else 0
            rose = max((at for (at, _), w in zip(past, ways, strict=True) if w > 0), default=None)
            fell = max((at for k, ((at, _), w) in enumerate(zip(past, ways, strict=True))
                        if w < 0 and (k == 0 or ways[k - 1] > 0)), default=None)  # fmt: skip
            band = config.band
            if now > 1.0 and ((way > 0 and target < now) or (way < 0 and target >= now)):
                band = config.turn_band
            if target > now + band:
                if way < 0 and fell is not None and end - fell < config.rise_again_ms:
                    continue
            elif target < now - band or (target == 1.0 and now > 1.0):
                if way > 0 and rose is not None and end - rose < config.hold_ms:
                    continue
            else:
                continue
            if round(now + max(-config.step, min(config.step, target - now)), 2) == now:
                continue
            level[name] = round(now + max(-config.step, min(config.step, target - now)), 2)
            past.append((end, level[name]))
            moves.append((end, name, level[name]))
    return quotes, moves


@pytest.mark.parametrize("seed", range(CASES))
def test_quotes_and_multipliers_are_those_counted_anew(seed: int) -> None:
    rng = Random(seed)
    config = some_config(rng)
    seen = some_seen(rng, rng.choice((1, 10, 60)))
    if seen[-1].at_ms - seen[0].at_ms > 3 * 3_600_000:
        seen = [one for one in seen if one.at_ms - seen[0].at_ms <= 3 * 3_600_000]
    quotes, priced = ran(seen, config, rng)
    wanted, moves = anew(seen, config)
    assert {quote.quote_id: quote.multiplier for quote in quotes} == wanted
    assert len(quotes) == len(wanted), "quoted once"
    assert sorted((one.at_ms, one.cell, one.multiplier) for one in priced) == sorted(moves)


@pytest.mark.parametrize("seed", range(CASES))
def test_a_multiplier_keeps_its_step_its_cap_and_turns_twice_an_hour_at_most(seed: int) -> None:
    rng = Random(seed)
    config = SurgeConfig(hold_ms=0, band=0.0, turn_band=0.0, step=rng.choice((0.1, 0.4)))
    cell, before, turned = Cell([], []), 1.0, []
    way = 0
    for now in range(0, 6 * 3_600_000, 30_000):
        target = rng.choice((1.0, cell.multiplier, rng.uniform(1.0, config.cap)))
        changed = move(cell, target, now, config)
        assert changed == (cell.multiplier != before)
        assert 1.0 <= cell.multiplier <= config.cap
        assert abs(cell.multiplier - before) <= config.step + 1e-9
        if changed:
            goes = 1 if cell.multiplier > before else -1
            if way and goes != way:
                turned.append(now)
            way = goes
        before = cell.multiplier
    assert all(later - one >= 3_600_000 for one, later in zip(turned, turned[2:], strict=False))
    assert len(turned) >= 4, "it does turn"


def test_a_city_that_falls_silent_is_forgotten() -> None:
    chain = MemoryChain(Topology({}, (Link(Surge()),)), records=True)
    rows = [Seen("asks", f"q{n}", "city", _START + n, 37.7, -122.4) for n in range(100)]
    chain.run_batch([("city", one.at_ms, one) for one in rows])
    told = [one.payload for one in chain.advance_watermark(_START + 5 * 3_600_000)]
    assert max(one.multiplier for one in told if isinstance(one, Priced)) > 1.5
    assert told[-1].multiplier == 1.0, "and prices come home"
    assert chain.advance_watermark(_START + 50 * 3_600_000) == []


def a_world(**other: Any) -> World:
    return World(seed=3, per_hour=200, cars=40, hours=1.0, shock_from_h=0.25, shock_hours=0.5, **other)


def test_riders_and_drivers_follow_prices_and_every_quote_is_the_one_in_force() -> None:
    world = a_world(shock=3.0)
    requests = world.requests()
    begins, ends = world.shock_ms
    rates = [sum(low <= r.at_ms < high for r in requests) / (high - low)
             for low, high in ((world.start_ms, begins), (begins, ends))]  # fmt: skip
    assert rates[1] / rates[0] == pytest.approx(3.0, rel=0.4)
    city = City(requests, 60, 3, world.start_ms, world.until_ms, usual=40, prices=SurgeConfig(step=0.5))
    run_replay(city, DispatchConfig(window_ms=10_000))
    assert set(city.quotes) == {r.request_id for r in requests}, "everybody who asks is quoted"
    assert set(city.served) <= city.taken < set(city.quotes)
    level: dict[str, list[Priced]] = {}
    for one in city.priced:
        level.setdefault(one.cell, []).append(one)
    for quote in city.quotes.values():
        before = [one.multiplier for one in level.get(quote.cell, []) if one.at_ms <= quote.at_ms]
        assert quote.multiplier == (before[-1] if before else 1.0)
        assert "asked in 5 min" in quote.why
    by_price = {high: [q.quote_id in city.taken for q in city.quotes.values() if (q.multiplier > 1.3) == high]
                for high in (False, True)}  # fmt: skip
    assert np.mean(by_price[True]) < np.mean(by_price[False])
    plain = City(requests, 60, 3, world.start_ms, world.until_ms, usual=40)
    run_replay(plain, DispatchConfig(window_ms=10_000))
    assert {quote.multiplier for quote in plain.quotes.values()} == {1.0}
    assert plain.taken == set(plain.quotes)
    assert (
        len({s.driver_id for s in city.served.values()})
        > 40
        >= len({s.driver_id for s in plain.served.values()})
    )


def test_turns_are_counted_by_cell_and_hour() -> None:
    def moves(*multipliers: float) -> list[Priced]:
        return [Priced("c", "a", n * 60_000, m, m, 0.0, 0.0) for n, m in enumerate(multipliers)]

    assert sign_changes([]) == {}
    assert sign_changes(moves(1.1, 1.2, 1.3)) == {("a", 0): 0}
    assert sign_changes(moves(1.1, 1.0, 1.1, 1.2, 1.1)) == {("a", 0): 3}


def test_the_evaluation_reports_every_pair_beside_none(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    result = CliRunner().invoke(
        evaluate,
        ["surge", "--seed", "2", "--out", str(out), "--cars", "40", "--per-hour", "200", "--hours", "1"],
    )
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    assert {(run["riders"], run["drivers"]) for run in report["runs"]} == {
        (riders, drivers) for riders in (-0.25, -0.5, -1.0) for drivers in (0.1, 0.3)
    }
    first = report["runs"][0]
    assert (first["riders"], first["drivers"]) == (-0.5, 0.3)
    assert report["p95_lower"] == pytest.approx(1 - first["p95_s"] / report["without"]["p95_s"], abs=1e-3)
    assert report["served_more"] == pytest.approx(first["served"] - report["without"]["served"], abs=1e-3)
    assert report["without"]["took"] == report["without"]["asked"] == first["asked"] > first["took"]
    again = carry_out(World(seed=2, per_hour=200, cars=40, hours=1.0, shock_from_h=1 / 3, shock_hours=0.5),
                      pairs=((-0.5, 0.3),))  # fmt: skip
    assert again["without"]["asked"] > 100

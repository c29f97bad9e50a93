"""Surge: multipliers held to counts made anew, and to what they promise; the city in which they are tried."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import h3
import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from millrace.host.memory_chain import MemoryChain
from millrace.testing import TestDriver
from millrace.topology import Link, Topology
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import SetSurgeCap
from millrace_apps.ridesharing.evaluation.cli import app as evaluate
from millrace_apps.ridesharing.evaluation.replay import run_replay
from millrace_apps.ridesharing.processes.matching import Rules
from millrace_apps.ridesharing.surge.config import SurgeConfig
from millrace_apps.ridesharing.surge.process import Cell, Surge, in_hundredths, move
from millrace_apps.ridesharing.surge.records import Asked, Fare, FreeCars, Multiplier, Quote, SurgeCount
from millrace_apps.ridesharing.surge.recount import Asking, Change, Free, recounted
from millrace_apps.ridesharing.surge.report import carry_out, sign_changes
from millrace_apps.ridesharing.surge.world import City, World
from tests.cases import case_count

CASES = case_count(25)
_START = 1_767_225_600_000
HOUR = 3_600_000
#: So long after the last question prices are looked at.
_AFTER_MS = 5_400_000


def some_config(rng: Random) -> SurgeConfig:
    return SurgeConfig(
        resolution=rng.choice((7, 8)),
        epoch_ms=rng.choice((10_000, 30_000)),
        epochs=rng.choice((1, 4, 10)),
        rings=rng.choice((0, 1, 2)),
        neighbours=rng.choice((0.0, 0.5, 0.8)),
        stock=rng.choice((0.0, 0.33, 1.0)),
        queue=rng.choice((0.0, 0.5, 1.0)),
        reserve=rng.choice((0.0, 3.0, 50.0)),
        gone=rng.choice((0.3, 0.6, 1.0)),
        balance=rng.choice((0.5, 2.0)),
        power=rng.choice((0.6, 2.6)),
        prior_cars=rng.choice((0.5, 2.0)),
        slack=rng.choice((0.0, 0.6)),
        rise_epochs=rng.choice((1, 3)),
        fall_epochs=rng.choice((3, 10)),
        band=rng.choice((0.01, 0.15)),
        step=rng.choice((0.1, 0.5)),
        cap=rng.choice((1.0, 1.337, 3.0)),
        hold_ms=rng.choice((0, 60_000, 2_700_000)),
        valid_ms=rng.choice((1_000, 60_000, 300_000)),
    )


class Evening(NamedTuple):
    """What a region is told: who asks, which cars and riders there are at the ends of epochs, caps."""

    asks: list[tuple[int, Asked]]
    free: list[FreeCars]
    caps: list[SetSurgeCap]
    ends: int


def some_evening(rng: Random, config: SurgeConfig, count: int) -> Evening:
    """Quotes in bursts, requests with good, old, strange and used quotes; cars by one source or two."""
    size = config.epoch_ms
    places = [(37.75 + rng.random() * 0.05, -122.45 + rng.random() * 0.05) for _ in range(rng.choice((1, 6)))]
    cells = [h3.latlng_to_cell(*place, config.resolution) for place in places]
    at = _START + rng.randrange(40_000)
    asks: list[tuple[int, Asked]] = []
    riders = rng.choice((2, 100))
    for number in range(count):
        at += rng.choice((1, 50, 3_000, 9_000, rng.choice((1, 400_000, 5_000_000))))
        if rng.random() < 0.1:
            at = -(-at // size) * size + rng.choice((0, 1))
        quotes = [one for _, one in asks if one.what == "quote"]
        taken = rng.choice(quotes[-3:]) if quotes and rng.random() < 0.6 else None
        cell, rider = rng.choice(cells), f"p{rng.randrange(riders)}"
        if taken is not None and rng.random() < 0.8:
            cell, rider = rng.choice((taken.cell, h3.grid_ring(taken.cell, 1)[0])), taken.rider_id
        ahead = rng.choice((0, 0, 0, config.ahead_ms, config.ahead_ms + 1))
        if taken is not None or rng.random() < 0.2:
            quote = "" if taken is None else rng.choice((taken.subject,) * 9 + ("nobody's",))
            asked = Asked("request", f"r{number}", rider, "city", cell, quote, ahead)
        else:
            asked = Asked("quote", f"q{number}", rider, "city", cell, "", ahead)
        asks.append((at, asked))
    first, last = asks[0][0], min(asks[-1][0], asks[0][0] + 2 * HOUR)
    asks = [one for one in asks if one[0] <= last]
    free = [
        FreeCars(
            "city",
            source,
            end,
            *(
                {name: rng.randrange(4) for name in set(rng.choices(cells, k=k))}
                for k in (2, 2, rng.choice((0, 1)))
            ),
        )
        for end in range(-(-first // size) * size, last + 2 * size, size)
        for source in rng.choice((("city",), ("city", "other"), ()))
    ]
    caps = [
        SetSurgeCap(rng.choice((1.0, 1.239, 2.0, 9.0)), f"c{n}", "ann", "test", first + rng.randrange(HOUR))
        for n in range(rng.choice((0, 0, 1, 4)))
    ]
    return Evening(asks, free, caps, last)


class Told(NamedTuple):
    """What the process said."""

    quotes: list[Quote]
    fares: list[Fare]
    moves: list[Multiplier]
    counts: list[SurgeCount]


def ran(evening: Evening, config: SurgeConfig, rng: Random) -> Told:
    bound = rng.choice((0, 60_000))
    chain = MemoryChain(Topology({}, (Link(Surge(config)),)), out_of_orderness_ms=bound, records=True)
    rows: list[tuple[int, Any]] = [*evening.asks, *((one.at_ms, one) for one in evening.free)]
    left = sorted(rows, key=lambda one: (one[0] - rng.randrange(bound + 1), rng.random()))
    if not bound:  # in order; of one moment in any order
        left = sorted(rows, key=lambda one: (one[0], rng.random()))
    found: list[Any] = list(chain.broadcast(*evening.caps))
    while left:
        size = rng.choice((1, 4, 60))
        while 0 < size < len(left) and not bound and left[size][0] == left[size - 1][0]:
            size += 1  # what is of one moment comes together: a batch later it would be late
        found += chain.run_batch([("city", at, one) for at, one in left[:size]])
        left = left[size:]
        if rng.random() < 0.2:
            chain.restart()
    found += chain.advance_watermark(evening.ends + _AFTER_MS)
    assert {one.output for one in found} <= {"main", "fares", "multipliers", "counts"}, (
        "nothing is late or dead"
    )
    by_output = {name: [one.payload for one in found if one.output == name]
                 for name in ("main", "fares", "multipliers", "counts")}  # fmt: skip
    return Told(*by_output.values())


Charged = dict[str, tuple[float, str]]


def anew(
    evening: Evening, config: SurgeConfig
) -> tuple[dict[str, float], Charged, list[tuple[int, str, float]]]:
    """Quotes, fares and moves from the list of all that was told, every epoch from the beginning on."""
    size = config.epoch_ms
    seen = {one.cell for _, one in evening.asks}
    seen |= {cell for one in evening.free for part in (one.cells, one.taken, one.waiting) for cell in part}
    names = {other for cell in seen for other in h3.grid_disk(cell, 2)}
    level = dict.fromkeys(names, 1.0)
    history: dict[str, list[tuple[int, float]]] = {name: [] for name in names}
    asked_for: dict[str, list[float]] = {name: [] for name in names}
    again: dict[str, int] = {}
    crowd = dict.fromkeys(names, 0.0)
    quotes: dict[str, float] = {}
    fares: Charged = {}
    moves: list[tuple[int, str, float]] = []
    demand: list[tuple[int, str, str]] = []
    taken: set[str] = set()
    of_quote = {one.subject: (at, one) for at, one in evening.asks if one.what == "quote"}

    def hundredths(cap: float) -> float:
        return int(cap * 100 + 1e-6) / 100

    def cap_at(at: int) -> float:
        past = [(one.from_ms, one.command_id, one.cap) for one in evening.caps if one.from_ms <= at]
        return hundredths(max(past)[2] if past else config.cap)

    def change(name: str, at: int, to: float) -> None:
        level[name] = to
        history[name].append((at, to))
        moves.append((at, name, to))

    rest = max(0, HOUR - config.hold_ms)

    def course(name: str) -> tuple[int, int]:
        """Which way a cell has gone last, and since when."""
        past = history[name]
        ways = [1 if b > a else -1 for (_, a), (_, b) in zip([(0, 1.0), *past], past, strict=False)]
        since = len(ways)
        while since and ways[since - 1] == ways[-1]:
            since -= 1
        return (ways[-1], past[since][0]) if ways else (0, 0)

    def decide(name: str, end: int, wanted: list[float], askers: float) -> None:
        """Move a cell by what the ratio asked for at the end of every epoch so far, the newest last."""
        now, cap = level[name], cap_at(end)
        way, began = course(name)
        before = [1.0] * 20 + wanted
        up = min(min(before[-config.rise_epochs :]) / (1 + config.slack), cap)
        down = min(max(before[-config.fall_epochs :]), cap)
        if up >= now + config.band:
            if way < 0 and end < again.get(name, began + rest):
                return
            to = round(now + min(config.step, up - now), 2)
        elif down <= now - config.band or (down == 1.0 and now > 1.0):
            if crowd[name] and askers > config.gone * crowd[name]:
                return
            if way > 0 and end - began < config.hold_ms:
                return
            to = round(now - min(config.step, now - down), 2)
        else:
            return
        if to > now:
            again.pop(name, None)
            crowd[name] = max(askers, crowd[name] if way > 0 else 0.0)
        if to != now:
            change(name, end, to)

    def end_of(end: int) -> None:
        since = end - config.epochs * size
        wanted, waits, had, stand = (Counter[str]() for _ in range(4))
        wanted.update(name for at, name, _ in demand if since <= at < end)
        for one in evening.free:
            if since < one.at_ms <= end:
                had.update(one.taken)
            if one.at_ms == end:
                waits.update(one.waiting)
                stand.update(one.cells)
        for name in sorted(names):

            def near(of: Counter[str], cell: str = name) -> float:
                rings = [sum(of[other] for other in h3.grid_ring(cell, k)) for k in range(config.rings + 1)]
                return float(sum(config.neighbours**k * number for k, number in enumerate(rings)))

            cars = near(had) + config.stock * near(stand)
            riders = near(wanted) + config.queue * near(waits)
            needed = (riders + min(config.reserve * riders**0.5, 3 * riders)) / config.balance
            ratio = (needed + config.prior_cars) / (cars + config.prior_cars)
            asked_for[name].append(max(ratio**config.power, 1.0))
            decide(name, end, asked_for[name], near(wanted))

    def ask(at: int, one: Asked) -> None:
        booked = one.ahead_ms > config.ahead_ms
        now = 1.0 if booked else level[one.cell]
        if one.what == "quote":
            quotes[one.subject] = now
        else:
            outcome = "booked" if booked and not one.quote_id else "none"
            if one.quote_id:
                made, quote = of_quote.get(one.quote_id, (0, None))
                outcome = (
                    "unknown" if quote is None or at - made > HOUR
                    else "foreign" if quote.rider_id != one.rider_id
                    else "used" if one.quote_id in taken
                    else "elsewhere" if (quote.ahead_ms > config.ahead_ms) != booked
                    or h3.grid_distance(quote.cell, one.cell) > 1
                    else "expired" if at > made + config.valid_ms
                    else "locked"
                )  # fmt: skip
            fares[one.subject] = (quotes[one.quote_id] if outcome == "locked" else now, outcome)
            if outcome == "locked":
                taken.add(one.quote_id)
                return
        within = [then for then, _, who in demand if who == one.rider_id and at - then < size * config.epochs]
        if not booked and not within:
            demand.append((at, one.cell, one.rider_id))

    def lower(at: int, cap: float) -> None:
        for name in sorted(names):
            if level[name] > hundredths(cap):
                way, began = course(name)
                if way > 0:
                    again[name] = max(at, began + config.hold_ms) + rest
                change(name, at, hundredths(cap))

    begins = min(at for at, _ in evening.asks)
    happens: list[tuple[int, int, Any]] = [(at, 2, one) for at, one in evening.asks]
    happens += [(end, 1, None) for end in range(begins // size * size + size, evening.ends + _AFTER_MS, size)]
    happens += [(one.from_ms, 0, one) for one in evening.caps]
    for at, kind, one in sorted(happens, key=lambda h: (h[0], h[1], getattr(h[2], "command_id", ""))):
        if kind == 0:
            lower(at, one.cap)
        elif kind == 1:
            end_of(at)
        else:
            ask(at, one)
    return quotes, fares, moves


@pytest.mark.parametrize("seed", range(CASES))
def test_quotes_fares_and_multipliers_are_those_counted_anew(seed: int) -> None:
    rng = Random(seed)
    config = some_config(rng)
    evening = some_evening(rng, config, rng.choice((1, 10, 60)))
    told = ran(evening, config, rng)
    quotes, fares, moves = anew(evening, config)
    assert {quote.quote_id: quote.multiplier for quote in told.quotes} == quotes
    assert len(told.quotes) == len(quotes), "quoted once"
    assert {fare.request_id: (fare.multiplier, fare.outcome) for fare in told.fares} == fares
    assert len(told.fares) == len(fares), "charged once"
    assert sorted((one.from_ms, one.cell, one.multiplier) for one in told.moves) == sorted(moves)


@pytest.mark.parametrize("seed", range(CASES))
def test_what_is_recounted_from_the_tables_is_what_was_told(seed: int) -> None:
    rng = Random(1_000_000 + seed)
    config = some_config(rng)
    evening = some_evening(rng, config, rng.choice((1, 10, 60)))._replace(caps=[])
    told = ran(evening, config, rng)
    until = evening.ends + HOUR
    asked = [Asking(q.cell, q.at_ms, q.rider_id) for q in told.quotes if not q.why.startswith("booked")]
    asked += [Asking(f.cell, f.at_ms, f.rider_id) for f in told.fares
              if f.outcome != "locked" and not f.why.rpartition("; ")[2].startswith("booked")]  # fmt: skip
    free = [Free(one.cell, one.end_ms, one.free, one.taken, one.waiting) for one in told.counts]
    found = recounted(asked, free, config, until, in_hundredths(config.cap))
    assert found == sorted(Change(m.cell, m.from_ms, m.multiplier) for m in told.moves if m.from_ms <= until)
    assert sum(one.asked for one in told.counts) <= len(asked)


@pytest.mark.parametrize("seed", range(CASES))
def test_a_multiplier_keeps_its_step_its_cap_and_turns_twice_an_hour_at_most(seed: int) -> None:
    rng = Random(seed)
    config = SurgeConfig(
        hold_ms=rng.choice((0, 600_000, 2_700_000, HOUR)), slack=0.0, rise_epochs=1, fall_epochs=1, gone=1.0,
        step=rng.choice((0.1, 0.4)),
    )  # fmt: skip
    cell, before, turned = Cell([], []), 1.0, []
    way = 0
    for now in range(0, 9 * HOUR, 30_000):
        cap = rng.choice((3.0, 3.0, 2.0))
        target = rng.choice((1.0, cell.multiplier, rng.uniform(1.0, 4.0)))
        changed = move(cell, target, 10.0, cap, now, config)
        assert changed == (cell.multiplier != before)
        assert 1.0 <= cell.multiplier <= max(cap, before)
        assert abs(cell.multiplier - before) <= config.step + 1e-9
        if changed:
            goes = 1 if cell.multiplier > before else -1
            if way and goes != way:
                turned.append((now, goes))
            way = goes
        before = cell.multiplier
    times = [at for at, _ in turned]
    assert all(later - one >= HOUR for one, later in zip(times, times[2:], strict=False))
    assert len(turned) >= 4, "it does turn"


def test_a_multiplier_moves_where_the_ratio_has_asked_for_it_for_long_enough() -> None:
    """Three epochs up, ten down; by less than the slack, or the band, it does not move.

    ::

        target      1 3 3 1 3 3 3 3 ... 1 1 (nine) 2 1 1 (ten)  and the crowd is gone
        multiplier  1 1 1 1 1 1 1.2 1.4     1.4    1.4  1.4     1.2
    """
    config = SurgeConfig(hold_ms=0, slack=0.5, rise_epochs=3, fall_epochs=10)
    crowd = 50.0
    cell, now = Cell([], []), 0

    def after(*targets: float) -> list[float]:
        nonlocal now
        found = []
        for target in targets:
            now += 30_000
            move(cell, target, crowd, 5.0, now, config)
            found.append(cell.multiplier)
        return found

    assert after(1, 3, 3, 1, 3, 3, 3, 3) == [1, 1, 1, 1, 1, 1, 1.2, 1.4]
    assert after(2.1, 2.0, 2.1, 2.0) == [1.4] * 4
    crowd = 1.0
    assert after(1.0) == [1.4], "what was asked for a while ago counts"
    crowd = 50.0
    assert after(*[1.0] * 9, 2.0, *[1.0] * 9) == [1.4] * 19
    assert after(1.0, 1.0) == [1.4, 1.4], "who asked still asks"
    crowd = 31.0
    assert after(1.0, 1.0) == [1.4, 1.4]
    crowd = 30.0
    assert after(1.0) == [1.2]
    now += HOUR
    crowd = 40.0
    assert after(1.85, 1.85, 1.85, 1.9, 1.9, 1.9) == [1.2, 1.2, 1.2, 1.2, 1.2, 1.27]
    assert cell.crowd == 40.0


def test_a_city_that_falls_silent_is_forgotten() -> None:
    driver = TestDriver(Surge())
    driver.broadcast(SetSurgeCap(2.5, "c1", "ann", "test", _START + 200_000))
    cell = h3.latlng_to_cell(37.7, -122.4, 8)
    for n in range(100):
        driver.send("city", Asked("quote", f"q{n}", f"p{n}", "city", cell), at=_START + n)
    driver.advance_watermark(_START + 5 * HOUR)
    told = driver.values("multipliers")
    assert max(one.multiplier for one in told) > 1.5
    assert told[-1].multiplier == 1.0, "and prices come home"
    driver.advance_watermark(_START + 50 * HOUR)
    assert driver.values("multipliers") == told
    assert driver.is_empty(), "and so are quotes"


def test_a_cell_from_before_cars_were_counted_that_are_taken_goes_on() -> None:
    before = msgspec.msgpack.encode([[1] * 10, [2] * 10, 1.4, 1, _START, 3.0, 1.0])
    cell = Surge()._whole(msgspec.msgpack.decode(before, type=Cell))
    assert (cell.multiplier, cell.taken, cell.waiting, cell.targets) == (1.4, [0] * 10, [0] * 10, [])
    assert move(cell, 1.0, 9.0, 5.0, _START + HOUR, SurgeConfig()), "and comes home"
    assert cell.multiplier == 1.2


def a_world(**other: Any) -> World:
    return World(seed=3, per_hour=200, cars=40, hours=1.0, shock_from_h=0.25, shock_hours=0.5, **other)


class Watched(City):
    """A city whose dispatcher is listened to."""

    heard: list[FreeCars]

    def tell(self, message: object, now: int) -> None:
        if isinstance(message, FreeCars):
            self.__dict__.setdefault("heard", []).append(message)
        super().tell(message, now)


@pytest.mark.parametrize("seed", range(2))
def test_prices_of_the_evaluation_go_by_what_the_dispatcher_says(seed: int) -> None:
    world = msgspec.structs.replace(a_world(shock=3.0), seed=seed)
    requests = world.requests()
    city = Watched(requests, 60, seed, world.start_ms, world.until_ms, usual=40, prices=SurgeConfig())
    run_replay(city, DispatchConfig(window_ms=10_000, rules=Rules(near_m=1_000.0)))
    assert sum(sum(one.taken.values()) for one in city.heard) == len(city.served) > 100
    some = 0
    begins = {name: served.offered_ms for name, served in city.served.items()}
    for one in city.heard:
        waits = Counter(
            h3.latlng_to_cell(r.lat, r.lon, 8)
            for r in requests
            if r.request_id in city.taken and r.at_ms <= one.at_ms
            and one.at_ms <= begins.get(r.request_id, r.at_ms + 299_999)
        )  # fmt: skip
        some += len(waits)
        assert one.waiting == dict(waits)
    assert some > 20
    asked = [Asking(q.cell, q.at_ms, f"rider-{q.quote_id}") for q in city.quotes.values()]
    free = [Free(cell, one.at_ms, one.cells.get(cell, 0), one.taken.get(cell, 0), one.waiting.get(cell, 0))
            for one in city.heard for cell in {*one.cells, *one.taken, *one.waiting}]  # fmt: skip
    until = max(one.from_ms for one in city.priced)
    found = recounted(asked, free, SurgeConfig(), until, 5.0)
    assert found == sorted(Change(m.cell, m.from_ms, m.multiplier) for m in city.priced)


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
    level: dict[str, list[Multiplier]] = {}
    for one in city.priced:
        level.setdefault(one.cell, []).append(one)
    for quote in city.quotes.values():
        before = [one.multiplier for one in level.get(quote.cell, []) if one.from_ms <= quote.at_ms]
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
    def moves(*multipliers: float) -> list[Multiplier]:
        pairs = zip((1.0, *multipliers), multipliers, strict=False)
        return [Multiplier("c", "a", n * 60_000, m, before, m, 0.0, 0.0, 3.0, "")
                for n, (before, m) in enumerate(pairs)]  # fmt: skip

    assert sign_changes([]) == {}
    assert sign_changes(moves(1.1, 1.2, 1.3)) == {("a", 0): 0}
    assert sign_changes(moves(1.1, 1.0, 1.1, 1.2, 1.1)) == {("a", 0): 3}


@pytest.mark.long
def test_the_evaluation_reports_every_pair_beside_none(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    result = CliRunner().invoke(
        evaluate,
        ["surge", "--seed", "2", "--out", str(out), "--cars", "20", "--per-hour", "120", "--hours", "1"],
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
    assert report["mean_lower"] == pytest.approx(1 - first["mean_s"] / report["without"]["mean_s"], abs=1e-3)
    assert report["p95_lower_than_near"] == pytest.approx(
        1 - first["p95_s"] / report["without_near"]["p95_s"], abs=1e-3
    )
    assert report["without"]["gave_up"] == pytest.approx(
        1 - report["without"]["completed"] / first["asked"], abs=1e-3
    )
    assert report["without_near"]["multiplier_most"] == 1.0 < first["multiplier_most"]
    assert report["without"]["took"] == report["without"]["asked"] == first["asked"] > first["took"]
    again = carry_out(World(seed=2, per_hour=120, cars=20, hours=1.0, shock_from_h=1 / 3, shock_hours=0.5),
                      pairs=((-0.5, 0.3),))  # fmt: skip
    assert again["without"]["asked"] > 100

"""Aggregations against a batch over all events, whatever the cuts, restarts, repeats and late events."""

from __future__ import annotations

import doctest
import importlib
import math
import random
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace.host.memory_chain import MemoryChain
from millrace.runtime.settings import load_settings
from millrace.topology import Input, read
from millrace_apps.aggregates.app import masking
from millrace_apps.aggregates.book import AggregateControlState
from millrace_apps.aggregates.cli import app as aggregate
from millrace_apps.aggregates.definition import PARTS as SHARDS
from millrace_apps.aggregates.definition import SKETCH_BYTES, Aggregation, AggregationError, Windows, check
from millrace_apps.aggregates.files import read as read_file
from millrace_apps.aggregates.files import shown
from millrace_apps.aggregates.life import MAX_VERSIONS, PublishAggregation, RemoveAggregation, change
from millrace_apps.aggregates.selecting import Source, selecting
from millrace_apps.aggregates.settings import AggregateSettings
from millrace_apps.aggregates.sources import inputs_of, source_of
from millrace_apps.aggregates.windowing import Windowing, keys_per_shard
from tests.cases import case_count

SEEDS = case_count(150, "AGGREGATE_SEEDS")
BOUND = 2_000
SPAN = 60_000


class Sale(msgspec.Struct, frozen=True):
    event_id: str
    card: str | None
    shop: str
    amount: float | None
    event_time_ms: int


TYPES = {"sales": Sale}
WHERES: dict[str, Callable[[Sale], bool]] = {
    "": lambda sale: True,
    "amount > 5": lambda sale: sale.amount is not None and sale.amount > 5,
    "shop == 's1' or amount is missing": lambda sale: sale.shop == "s1" or sale.amount is None,
}
COLUMNS: dict[str, Callable[[list[float | None]], float | None]] = {
    "count": lambda values: float(len(values)),
    "count(amount)": lambda values: float(len(there(values))),
    "sum(amount)": lambda values: math.fsum(there(values)),
    "min(amount)": lambda values: min(there(values), default=None),
    "max(amount)": lambda values: max(there(values), default=None),
    "mean(amount)": lambda values: math.fsum(there(values)) / len(there(values)) if there(values) else None,
}


#: The same of texts, which are looked at with their times.
TEXTS: dict[str, Callable[[list[tuple[int, str]]], Any]] = {
    "first(card)": lambda told: min(told, default=(0, None))[1],
    "last(shop)": lambda told: max(told, default=(0, None))[1],
    "min(card)": lambda told: min((text for _, text in told), default=None),
    "max(shop)": lambda told: max((text for _, text in told), default=None),
    "distinct(card, 2)": lambda told: sorted({text for _, text in told})[:2],
    "count(card)": lambda told: float(len(told)),
}


def computed(text: str, sales: list[Sale]) -> Any:
    """Return what a column has of some sales."""
    if text in COLUMNS:
        return COLUMNS[text]([sale.amount for sale in sales])
    field = text.partition("(")[2].rstrip(")").partition(",")[0]
    told = [(sale.event_time_ms, getattr(sale, field)) for sale in sales]
    return TEXTS[text]([(at, value) for at, value in told if value is not None])


def there(values: list[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def chain(of: Any = Sale) -> MemoryChain:
    sources = {"sales": Source("sales", of, "event_id")}
    topology = (
        read({"sales": Input("sales", "event_id")}, control="control")
        .process(selecting(sources, 10 * SPAN))
        .key_by(("name", "shard"))
        .process(Windowing({"sales": of}))
        .write(tables={"main": "results", "limits": "limits", "late": "late"})
    )
    return MemoryChain(topology, out_of_orderness_ms=BOUND)


def run(made: MemoryChain, sales: list[Sale]) -> list[Any]:
    return made.run_batch([(sale.event_id, sale.event_time_ms, sale, "sales") for sale in sales])


def aggregation(chance: random.Random, name: str, *, sessions: bool) -> Aggregation:
    kind = chance.choice(("tumbling", "hopping", "session") if sessions else ("tumbling", "hopping"))
    every = chance.choice((1_000, 2_500, 3_000)) if kind == "hopping" else None
    size = chance.choice((3_000, 5_000, 7_000)) if kind != "session" else chance.choice((900, 2_000, 4_000))
    chosen = chance.sample(sorted({*COLUMNS, *TEXTS}), chance.randint(1, 5))
    cut = chance.choice((None, size, 9_000, 21_000)) if kind == "session" else None
    return Aggregation(
        name, "sales", Windows(kind, size, every, cut),  # type: ignore[arg-type]
        {f"c{place}": text for place, text in enumerate(chosen)},
        chance.choice(((), ("card",), ("card", "shop"))),
        chance.choice(sorted(WHERES)),
        0 if kind == "session" else chance.choice((0, 0, 1_500, 6_000)),
    )  # fmt: skip


class World:
    """Events in the order in which they come, controls between them, and cuts."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        late = chance.random() < 0.5
        events = []
        for number in range(chance.randrange(20, 90)):
            at = chance.randrange(SPAN)
            came = at + chance.randrange(BOUND)
            if late and chance.random() < 0.15:
                came += chance.randrange(15_000)
            amount = None if chance.random() < 0.1 else chance.randrange(100) / 8
            card = None if chance.random() < 0.05 else f"c{chance.randrange(3)}"
            events.append((came, Sale(f"e{number}", card, f"s{chance.randrange(2)}", amount, at)))
            if chance.random() < 0.1:
                events.append((came + chance.randrange(3_000), events[-1][1]))
        self.sales = [sale for _, sale in sorted(events, key=lambda e: (e[0], e[1].event_id))]
        self.controls: list[tuple[int, Any]] = []
        place, versions = 0, defaultdict[str, int](int)
        standing: set[str] = set()
        for _ in range(chance.randrange(1, 7)):
            place = chance.randint(place, min(len(self.sales), place + 25))
            newest = max((s.event_time_ms for s in self.sales[:place]), default=-1)
            begins = newest + 1 + chance.choice((0, chance.randrange(8_000)))
            name = chance.choice(("first", "other"))
            if name in standing and chance.random() < 0.3:
                standing.discard(name)
                self.controls.append((place, RemoveAggregation(name, "ann", 0, begins)))
                continue
            standing.add(name)
            versions[name] += 1
            made = aggregation(chance, name, sessions=not late)
            check(made, TYPES)
            self.controls.append((place, PublishAggregation(made, versions[name], "ann", 0, begins)))

    def found(self) -> tuple[dict[Any, Any], set[Any], MemoryChain, list[int]]:
        """Run it; return last results, late events, the chain, and the watermark by which each was judged."""
        made, judged, emissions = chain(), [], []
        place = 0
        while place < len(self.sales):
            end = min(len(self.sales), place + self.chance.choice((1, 1, 2, 5, 20)))
            due = [at for at, _ in self.controls if place < at < end]
            end = min([end, *due])
            for at, control in self.controls:
                if at == place:
                    emissions += made.broadcast(control)
            judged += [made.watermark] * (end - place)
            emissions += run(made, self.sales[place:end])
            place = end
            if self.chance.random() < 0.2:
                made.restart()
        emissions += made.drain()
        results, revisions = {}, {}
        late = set()
        for e in emissions:
            record = msgspec.json.decode(e.payload)
            if e.output == "main":
                start, stop = record["window_start_ms"], record["window_end_ms"]
                key = (record["name"], record["version"], tuple(record["key"].values()), start, stop)
                assert record["revision"] == revisions.get(key, -1) + 1
                revisions[key] = record["revision"]
                results[key] = record["values"] | record["texts"] | record["lists"]
                assert all(isinstance(value, float | None) for value in record["values"].values())
            elif e.output == "late":
                event = record["event"]
                late.add((event["name"], event["version"], event["key"], e.event_time))
            else:
                raise AssertionError(record)
        return results, late, made, judged

    def owner(self, name: str, at: int) -> PublishAggregation | None:
        """Who has what begins at a time: who spoke last of those that hold from then or before."""
        found = None
        for _, control in self.controls:
            own = control.aggregation.name if isinstance(control, PublishAggregation) else control.name
            if own == name and control.from_ms <= at:
                found = control
        return found if isinstance(found, PublishAggregation) else None

    def wanted(self, judged: list[int]) -> tuple[dict[Any, Any], set[Any]]:
        """The same by sorting and grouping all events."""
        once: dict[str, tuple[Sale, int]] = {}
        for sale, watermark in zip(self.sales, judged, strict=True):
            once.setdefault(sale.event_id, (sale, watermark))
        groups: dict[Any, list[Sale]] = defaultdict(list)
        late = set()
        by_version = [c for _, c in self.controls if isinstance(c, PublishAggregation)]
        for control in by_version:
            one = control.aggregation
            sessions: dict[Any, list[Sale]] = defaultdict(list)
            for sale, watermark in once.values():
                if not WHERES[one.where](sale):
                    continue
                key, at = tuple(getattr(sale, field) for field in one.key), sale.event_time_ms
                if one.windows.kind == "session":
                    if self.owner(one.name, at) is control:
                        sessions[key].append(sale)
                    continue
                size, step = one.windows.size_ms, one.windows.every_ms or one.windows.size_ms
                mine = [s for s in range(0, at + 1, step) if s <= at < s + size]
                mine += [s for s in range(-step, -size, -step) if at < s + size]
                mine = [s for s in mine if self.owner(one.name, s) is control]
                taken = [s for s in mine if s + size - 1 + one.allowed_lateness_ms > watermark]
                for start in taken:
                    groups[one.name, control.version, key, start, start + size].append(sale)
                if mine and not taken:
                    late.add((one.name, control.version, msgspec.json.encode(key).decode(), at))
            for key, sales in sessions.items():
                cut = one.windows.cut_every_ms
                for session in split(sorted(sales, key=lambda s: s.event_time_ms), one.windows.size_ms, cut):
                    begin, end = session[0].event_time_ms, session[-1].event_time_ms + one.windows.size_ms
                    bounds = begin, end if cut is None else min(end, (begin // cut + 1) * cut)
                    groups[one.name, control.version, key, *bounds] = session
        columns = {(c.aggregation.name, c.version): c.aggregation.aggregates for c in by_version}
        results = {
            key: {column: computed(text, sales) for column, text in columns[key[0], key[1]].items()}
            for key, sales in groups.items()
        }
        return results, late


def split(sales: list[Sale], gap: int, cut: int | None) -> list[list[Sale]]:
    found: list[list[Sale]] = []
    for sale in sales:
        at, before = sale.event_time_ms, found[-1][-1].event_time_ms if found else 0
        if found and at - before <= gap and (cut is None or at // cut == before // cut):
            found[-1].append(sale)
        else:
            found.append([sale])
    return found


def test_any_history_of_definitions_gives_what_a_batch_gives() -> None:
    told = put_aside = 0
    for seed in range(SEEDS):
        world = World(seed)
        results, late, made, judged = world.found()
        wanted, wanted_late = world.wanted(judged)
        assert (results, late) == (wanted, wanted_late), seed
        assert made.is_empty(), f"{seed}: something is kept"
        told, put_aside = told + len(results), put_aside + len(late)
    assert told > 10 * SEEDS
    assert put_aside > SEEDS // 10


def sale(number: int, at: int, card: str = "c", amount: float = 1.0) -> Sale:
    return Sale(f"e{number}", card, "s", amount, at)


def said(emissions: list[Any], output: str = "main") -> list[dict[str, Any]]:
    return [msgspec.json.decode(e.payload) for e in emissions if e.output == output]


def published(one: Aggregation, version: int = 1, begins: int = 0) -> PublishAggregation:
    return PublishAggregation(one, version, "ann", 0, begins)


BY_CARD = Aggregation("n", "sales", Windows("tumbling", 10_000), {"n": "count"}, ("card",))


def test_keys_beyond_the_limit_are_left_out_and_told() -> None:
    made = chain()
    most = 2 * SHARDS
    one = msgspec.structs.replace(BY_CARD, max_keys=most)
    made.broadcast(published(one))
    out = run(made, [sale(n, 1_000, f"c{n}") for n in range(1_000)])
    told = said(out, "limits")
    assert {t["limit"] for t in told} == {"max_keys"}
    assert {t["most"] for t in told} == {most}
    results = said(made.drain())
    left_out = defaultdict(int)
    for t in told:
        left_out[t["shard"]] = max(left_out[t["shard"]], t["events"])
    assert len(results) == keys_per_shard(one) * SHARDS == most
    assert 1_000 - len(results) >= sum(left_out.values()) > (1_000 - len(results)) // 2
    assert made.is_empty()


def test_a_limit_that_was_reached_is_not_reached_any_more_when_windows_are_over() -> None:
    made = chain()
    made.broadcast(published(msgspec.structs.replace(BY_CARD, max_keys=SHARDS)))
    run(made, [sale(n, 1_000, f"c{n}") for n in range(500)])
    out = run(made, [sale(1_000, 50_000, "x")])
    assert len(said(out)) == SHARDS
    out = run(made, [sale(1_001, 51_000, "x")])
    assert said(out, "limits") == []
    # The first of the two was there before time had come to the end of the windows.
    assert [r["values"]["n"] for r in said(made.drain())] == [1.0]


def test_windows_beyond_the_limit_are_left_out_and_told() -> None:
    made = chain()
    made.broadcast(published(msgspec.structs.replace(BY_CARD, max_windows=2)))
    out = run(made, [sale(n, n * 10_000) for n in range(5)])
    assert [(t["limit"], t["events"]) for t in said(out, "limits")] == [
        ("max_windows", 1),
        ("max_windows", 2),
    ]
    found = said(out) + said(made.drain())
    assert [r["window_start_ms"] for r in found] == [0, 10_000]


def test_what_the_job_cannot_take_goes_to_the_dead_letters_and_changes_nothing() -> None:
    made = chain()
    made.broadcast(published(BY_CARD))
    bad = msgspec.structs.replace(BY_CARD, aggregates={"n": "sum(shop)"})
    out = made.broadcast(published(bad, 2))
    assert {e.output.rpartition(".")[2] for e in out} <= {"dead_letters"}
    run(made, [sale(1, 1_000)])
    assert [(r["version"], r["values"]) for r in said(made.drain())] == [(1, {"n": 1.0})]


def test_of_versions_that_both_have_seen_a_window_one_speaks() -> None:
    """The second comes when the first has the window already: it is told by the second alone, with the rest.

    v1   [0, 10) e0 | [10, 20) e1
    v2               from 10: e2
    """
    made = chain()
    made.broadcast(published(BY_CARD))
    run(made, [sale(0, 9_500), sale(1, 10_500)])
    made.broadcast(
        published(msgspec.structs.replace(BY_CARD, aggregates={"total": "sum(amount)"}), 2, 10_000)
    )
    run(made, [sale(2, 10_600, amount=7.0)])
    found = [(r["version"], r["window_start_ms"], r["values"]) for r in said(made.drain())]
    assert found == [(1, 0, {"n": 1.0}), (2, 10_000, {"total": 7.0})]
    assert made.is_empty()


def test_each_function_gives_what_its_name_says() -> None:
    made = chain()
    functions = ("sum", "mean", "min", "max", "stddev", "variance", "first", "last", "count")
    one = msgspec.structs.replace(BY_CARD, aggregates={name: f"{name}(amount)" for name in functions})
    made.broadcast(published(one))
    run(made, [sale(1, 2_000, amount=4.0), sale(2, 1_000, amount=8.0), sale(3, 3_000, amount=3.0)])
    run(made, [Sale("e4", "c", "s", None, 500), Sale("e5", "c", "s", None, 4_000)])
    assert [r["values"] for r in said(made.drain())] == [
        {"sum": 15.0, "mean": 5.0, "min": 3.0, "max": 8.0, "stddev": math.sqrt(7.0), "variance": 7.0,
         "first": 8.0, "last": 3.0, "count": 3.0}
    ]  # fmt: skip


def test_a_window_whose_variance_is_beyond_the_floats_is_told_all_the_same() -> None:
    made = chain()
    made.broadcast(
        published(msgspec.structs.replace(BY_CARD, aggregates={"v": "variance(amount)", "n": "count"}))
    )
    run(made, [sale(1, 1_000, amount=1e154), sale(2, 1_001, amount=-1e154)])
    assert [r["values"] for r in said(made.drain())] == [{"v": None, "n": 2.0}]


SKETCHED = {
    "cards": "count_distinct(card)",
    "amounts": "count_distinct(amount)",
    "low": "quantile(amount, .05)",
    "median": "quantile(amount, 0.5)",
    "high": "quantile(amount, 0.99)",
    "total": "sum(amount)",
}


def of_spread(chance: random.Random, n: int) -> list[Sale]:
    """Sales with amounts of all sizes, below zero, zero and missing, of few cards or of many."""
    cards, span, wide = (
        chance.choice((3, 50, 5_000)),
        chance.choice((8_000, 40_000)),
        chance.choice((1, 4, 60)),
    )
    found = []
    for number in range(n):
        amount: float | None = chance.choice((1, 1, 1, -1)) * chance.lognormvariate(0, wide)
        if chance.random() < 0.2:
            amount = chance.choice((None, 0.0, -0.0, 1.0, float(chance.randrange(20))))
        card = None if chance.random() < 0.05 else f"c{chance.randrange(cards)}"
        found.append(Sale(f"e{number}", card, f"s{number % 2}", amount, chance.randrange(span)))
    return found


def in_cuts(chance: random.Random, sales: list[Sale], one: Aggregation) -> dict[Any, Any]:
    """The results of sales that come in another order within the bound, cut and started anew anywhere."""
    made = chain()
    made.broadcast(published(one))
    left = sorted(sales, key=lambda s: s.event_time_ms + chance.randrange(BOUND))
    out = []
    while left:
        size = chance.choice((1, 20, 300, 2_000))
        out += run(made, left[:size] + left[: chance.randrange(3)])
        left = left[size:]
        if chance.random() < 0.3:
            made.restart()
    out += made.drain()
    assert made.is_empty()
    found = {(r["window_start_ms"], r["window_end_ms"], r["key"]["shop"]): r["values"] for r in said(out)}
    assert len(found) == len(said(out))
    return found


def ranked(values: list[float], q: float) -> tuple[float, float]:
    """The exact quantile, by linear interpolation, and what one per cent of its two neighbours comes to."""
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    pair = [ordered[math.floor(at)], ordered[math.ceil(at)]]
    share = at - math.floor(at)
    return pair[0] * (1 - share) + pair[1] * share, 0.01 * (abs(pair[0]) * (1 - share) + abs(pair[1]) * share)


def test_distinct_counts_and_quantiles_are_the_same_for_any_cut_and_as_near_as_is_said() -> None:
    kinds = (Windows("tumbling", 20_000), Windows("hopping", 20_000, 10_000), Windows("session", 60))
    near: list[float] = []
    many = wide = 0
    for seed in range(max(4, SEEDS // 40)):
        chance = random.Random(seed)
        sales = of_spread(chance, chance.choice((700, 1_600)))
        one = Aggregation("n", "sales", chance.choice(kinds), SKETCHED, ["shop"])
        told = in_cuts(chance, sales, one)
        assert in_cuts(chance, sales, one) == told, seed
        for (start, end, shop), values in told.items():
            inside = [s for s in sales if start <= s.event_time_ms < end and s.shop == shop]
            amounts = [s.amount for s in inside if s.amount is not None]
            cards = {s.card for s in inside if s.card is not None}
            for column, exact in (("cards", len(cards)), ("amounts", len(set(amounts)))):
                if len(inside) < 64:
                    assert values[column] == exact, (seed, start)
                else:
                    near.append(values[column] / exact - 1)
                    many += exact > 250
            sizes = [abs(a) for a in amounts if a]
            bounded = not sizes or max(sizes) / min(sizes) < 2e4  # of both signs
            wide += not bounded and len(amounts) > 255
            for column, q in (("low", 0.05), ("median", 0.5), ("high", 0.99)):
                if not amounts:
                    assert values[column] is None
                    continue
                exact_q, off = ranked(amounts, q)
                assert len(amounts) > 255 or values[column] == pytest.approx(exact_q, rel=1e-12)
                if bounded:
                    assert abs(values[column] - exact_q) <= off * (1 + 1e-9) + 1e-300, (seed, column)
                elif len(amounts) > 255:
                    ordered = sorted(amounts)
                    assert ordered[0] <= values[column] <= ordered[-1]
    assert many > 3
    assert wide > 3
    assert len(near) > 10
    assert max(map(abs, near)) < 4 * 0.0163
    assert math.sqrt(sum(n * n for n in near) / len(near)) < 0.0163


def test_of_a_long_text_the_beginning_is_kept() -> None:
    made = chain()
    one = msgspec.structs.replace(BY_CARD, aggregates={"a": "first(shop)", "all": "distinct(shop, 2)"})
    made.broadcast(published(one))
    run(made, [Sale(f"e{n}", "c", "ab"[n] * 1_000, 1.0, 1_000 + n) for n in range(2)])
    (found,) = said(made.drain())
    assert (found["values"], found["texts"]) == ({}, {"a": "a" * 200})
    assert found["lists"] == {"all": ["a" * 200, "b" * 200]}


def test_what_is_kept_of_a_distinct_count_and_a_quantile_is_bounded() -> None:
    def kept(n: int) -> int:
        chance, made = random.Random(n), chain()
        columns = {"d": "count_distinct(amount)", "q": "quantile(amount, 0.5)"}
        made.broadcast(published(Aggregation("n", "sales", Windows("tumbling", 60_000), columns)))
        amounts = (chance.choice((-1, 1)) * chance.lognormvariate(0, 40) for _ in range(n))
        run(made, [sale(k, 1_000, amount=amount) for k, amount in enumerate(amounts)])
        return len(made.hosts[1].snapshot())

    some = kept(1_000)
    assert some < 2 * SKETCH_BYTES
    assert kept(2_000) < 1.3 * some


class Anonymous(msgspec.Struct, frozen=True):
    event_id: str | None
    shop: str
    event_time_ms: int


def test_where_a_field_is_gone_from_the_events_the_other_aggregations_go_on() -> None:
    before = chain()
    for name, field, where in [("gone", "card", ""), ("asks", "shop", "card == 'c'"), ("stays", "shop", "")]:
        one = msgspec.structs.replace(BY_CARD, name=name, key=(field,), where=where)
        before.broadcast(published(one))
    run(before, [sale(1, 1_000)])
    after = chain(Anonymous)
    after.restore(before.snapshot())
    out = after.run_batch([("e2", 1_500, Anonymous("e2", "s", 1_500), "sales")]) + after.drain()
    assert {r["name"]: r["values"]["n"] for r in said(out)} == {"gone": 1.0, "asks": 1.0, "stays": 2.0}
    assert {e.output for e in out} == {"main"}


def test_events_without_an_identity_are_no_repeats_of_each_other() -> None:
    made = chain(Anonymous)
    made.broadcast(published(msgspec.structs.replace(BY_CARD, key=("shop",))))
    events = [Anonymous(None, "s", 1_000 + n) for n in range(3)]
    made.run_batch([("k", event.event_time_ms, event, "sales") for event in events])
    assert [r["values"] for r in said(made.drain())] == [{"n": 3.0}]


@pytest.mark.parametrize(
    ("topic", "identity"),
    [
        ("fraud.labels", "label_id"), ("fraud.authorisations", "authorisation_id"),
        ("fraud.transactions", "transaction_id"), ("iot.readings", "reading_id"), ("iot.counts", "count_id"),
        ("clickstream.clicks", "event_id"), ("ridesharing.requests", ""),
    ],
)  # fmt: skip
def test_an_event_is_known_again_by_what_names_it_not_by_what_it_is_about(topic: str, identity: str) -> None:
    settings = load_settings(AggregateSettings, app="aggregates", overrides=[f"sources={topic}"], env={})
    (known,) = inputs_of(settings).values()
    assert source_of(topic, known, settings).identity == identity


def test_versions_with_open_windows_are_bounded() -> None:
    kept: dict[str, Any] = {}
    for number in range(1, MAX_VERSIONS + 1):
        kept |= dict(change(published(BY_CARD, number, number * 1_000), kept, TYPES, 0))
    with pytest.raises(AggregationError, match="have open windows yet"):
        list(change(published(BY_CARD, 99, 90_000), kept, TYPES, 0))
    later = dict(change(published(BY_CARD, 99, 90_000), kept, TYPES, 50_000))
    assert [v.number for v in later["n"]] == [MAX_VERSIONS, 99]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"source": "x"}, "the job does not read x"),
        ({"key": ("crad",)}, "no field crad"),
        ({"key": ("card", "card")}, "twice"),
        ({"aggregates": {"n": "sum"}}, "sum of what?"),
        ({"aggregates": {"n": "sum(shop)"}}, "takes a number, and shop is a text"),
        ({"aggregates": {"n": "distinct(amount, 3)"}}, "distinct takes a text, and amount is a number"),
        ({"aggregates": {"n": "distinct(shop)"}}, ": say how many, 1 to 50"),
        ({"aggregates": {"n": "distinct(shop, 51)"}}, ": say how many, 1 to 50"),
        ({"aggregates": {"n": "distinct(shop, 1.5)"}}, ": say how many, 1 to 50"),
        (
            {"aggregates": {"n": "distinct(shop, 50)"}, "max_keys": 100_000},
            "may come to 119 MB in a 64th of its keys, and 32 are the most",
        ),
        ({"windows": Windows("tumbling", 5_000, None, 10_000)}, "cut_every= goes with sessions"),
        ({"windows": Windows("session", 5_000, None, 1_000)}, "no shorter than the gap"),
        ({"aggregates": {"n": "median(amount)"}}, "is none of count"),
        ({"aggregates": {f"n{i}": "count" for i in range(21)}}, "no more than 20"),
        ({"windows": Windows("hopping", 5_000)}, "every= goes with hopping"),
        ({"windows": Windows("tumbling", 5_000, 1_000)}, "every= goes with hopping"),
        ({"windows": Windows("hopping", 5_000, 6_000)}, "no longer than the window"),
        ({"windows": Windows("hopping", 300_000, 1_000)}, "at most 288"),
        ({"windows": Windows("hopping", 200_000, 1_000), "max_windows": 100}, "max_windows is 100"),
        ({"windows": Windows("hopping", 5_000, 2_000), "max_windows": 2}, "each event is in 3 windows"),
        (
            {"windows": Windows("session", 5_000), "allowed_lateness_ms": 5},
            "sessions take no allowed_lateness",
        ),
        ({"aggregates": {"n": "quantile(amount)"}}, "a quantile says which, as in quantile(amount, 0.95)"),
        ({"aggregates": {"n": "sum(amount, 0.5)"}}, "a quantile says which"),
        ({"aggregates": {"n": "quantile(amount, 1.5)"}}, "between 0 and 1, not 1.5"),
        ({"aggregates": {"n": "quantile(shop, 0.5)"}}, "quantile takes a number, and shop is a text"),
        ({"aggregates": {"n": "count_distinct()"}}, "count_distinct of what?"),
        ({"aggregates": {"n": "count_distinct(crad)"}}, "no field crad"),
        (
            {"aggregates": {"n": "quantile(amount, 0.5)"}, "max_keys": 200_000},
            "may come to 61 MB in a 64th of its keys, and 32 are the most",
        ),
        ({"where": "amount >"}, "where: line 1, column 9"),
        ({"where": "crad == 'x'"}, "there is no field 'crad'"),
    ],
)
def test_what_contradicts_itself_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(AggregationError, match=re.escape(said)):
        check(msgspec.structs.replace(BY_CARD, **changes), TYPES)


@pytest.mark.parametrize("module", ["definition", "files", "selecting", "sources"])
def test_examples_run_as_they_stand(module: str) -> None:
    assert doctest.testmod(importlib.import_module(f"millrace_apps.aggregates.{module}")).failed == 0


def test_a_file_is_read_as_it_is_meant(tmp_path: Path) -> None:
    file = tmp_path / "n.yaml"
    file.write_text("{name: n, source: sales, key: card, window: {hopping: 10m, every: 1m}, "
                    "aggregates: {n: count}, allowed_lateness: 30s}")  # fmt: skip
    (one,) = read_file(file)
    assert one.windows == Windows("hopping", 600_000, 60_000)
    assert (one.key, one.allowed_lateness_ms) == (["card"], 30_000)
    file.write_text("{name: n, source: sales, window: {session: 5m, cut_every: 1d}, aggregates: {n: count}}")
    (one,) = read_file(file)
    assert one.windows == Windows("session", 300_000, None, 86_400_000)
    assert shown(one) == "n=count of sales, session 5m cut every 1d"
    for text, said in [
        ("[", "n.yaml:1: "), ("7", "has name, source, window"),
        ("{name: N, source: s, window: {tumbling: 1m}}", "matching regex"),
        ("{name: n, source: s, aggregates: {n: count}}", "window is {tumbling: 1m}"),
        ("{name: n, source: s, window: {tumbling: soon}, aggregates: {n: count}}", "soon"),
        ("{name: n, source: s, window: {tumbling: 1m}, aggregates: {n: count}, colour: red}", "colour"),
    ]:  # fmt: skip
        file.write_text(text)
        with pytest.raises(AggregationError, match=r"n\.yaml") as raised:
            read_file(file)
        assert said in str(raised.value)
    with pytest.raises(AggregationError, match="cannot be read"):
        read_file(tmp_path / "none.yaml")


def test_the_definition_of_the_page_on_sql_is_accepted(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "query.md").read_text()
    (file, text) = re.findall(r"```yaml\n# (\S+)\n(.*?)```", page, re.DOTALL)[0]
    (tmp_path / file).write_text(text)
    done = CliRunner().invoke(aggregate, ["check", str(tmp_path / file)])
    assert done.exit_code == 0, done.exception
    assert done.output.startswith("spend: n=count, total=sum(amount)")


def test_what_says_the_same_is_published_again_only_for_earlier_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "n.yaml"
    file.write_text("{name: n, source: fraud.transactions, window: {tumbling: 1m}, aggregates: {n: count}}")
    settings = load_settings(AggregateSettings, app="aggregates", env={})
    book = AggregateControlState({known.input.topic: known.type for known in inputs_of(settings).values()})

    class Topic:
        def change(self, make: Callable[[AggregateControlState], list[Any]]) -> tuple[None, list[Any]]:
            made = make(book)
            for event in made:
                book.apply(event)
            return None, made

    monkeypatch.setattr("millrace_apps.aggregates.cli._topic", lambda _: Topic())

    def published(*words: str) -> str:
        return CliRunner().invoke(aggregate, ["publish", str(file), "--by", "ann", *words]).output

    assert published().startswith("n: version 1, ")
    for words in ([], ["--from", "2999-01-01"]):
        assert published(*words) == "n: unchanged, version 1\n"
    assert published("--from", "2020-01-01").startswith("n: version 2, ")
    assert published("--from", "2020-01-01") == "n: unchanged, version 2\n"


def test_what_is_hidden_of_a_source_is_hidden_here() -> None:
    fraud = load_settings(AggregateSettings, app="aggregates", env={})
    iot = load_settings(AggregateSettings, app="aggregates", overrides=["sources=iot.readings"], env={})
    assert masking(fraud) is not None
    assert masking(iot) is None
    for sources, said in [("nothing.at.all", "no installed app"), (",", "names no topic")]:
        wrong = load_settings(AggregateSettings, app="aggregates", overrides=[f"sources={sources}"], env={})
        with pytest.raises(UserError, match=said):
            inputs_of(wrong)

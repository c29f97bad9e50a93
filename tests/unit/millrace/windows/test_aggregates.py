"""Each aggregate against plain Python: added one by one, merged, kept and read again, in any order."""

from __future__ import annotations

import itertools
import math
import operator
import os
import random
import statistics
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.parts.accumulators import BoundAggregate
from millrace.state import Aggregator
from millrace.windows import (
    Aggregate,
    WindowDefinitionError,
    approx_count_distinct,
    binned_quantile,
    collect,
    count,
    count_distinct,
    custom,
    distinct,
    first,
    last,
    max_of,
    mean,
    min_of,
    quantile,
    reduce,
    stddev,
    sum_of,
    top_n,
    tumbling,
    variance,
    window,
)
from millrace.windows.binned import share_of
from tests.unit.millrace.windows.cases import At, Ev, examples, play

Events = list[tuple[int, Ev]]
_bytes = msgspec.msgpack.encode


def kept(bound: BoundAggregate, acc: Any) -> Any:
    """Return an accumulator as it comes back from the state store."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(acc), type=bound.accumulator)


def straight(bound: BoundAggregate, events: Events) -> Any:
    acc = bound.create()
    for at, event in events:
        acc = bound.add(acc, event, at)
    return acc


def merged(bound: BoundAggregate, events: Events, seed: int) -> Any:
    """Aggregate a random part of the events each, keep the parts, and merge them in any order."""
    rng = random.Random(seed)
    parts: list[Events] = [[] for _ in range(4)]
    for one in events:
        rng.choice(parts).append(one)
    accs = []
    for part in parts:
        acc = bound.create()
        for at, event in part:
            acc = bound.add(acc, event, at)
            if rng.random() < 0.3:
                acc = kept(bound, acc)
        accs.append(acc)
    rng.shuffle(accs)
    total = bound.create()
    for acc in accs:
        before = msgspec.msgpack.encode(total), msgspec.msgpack.encode(acc)
        new = bound.merge(total, acc)
        assert (msgspec.msgpack.encode(total), msgspec.msgpack.encode(acc)) == before
        total = kept(bound, new)
    return total


def xs(events: Events) -> list[float]:
    return [e.x for _, e in events if e.x is not None and not math.isnan(e.x)]


def exact_variance(values: list[float], ddof: int) -> float | None:
    n = len(values)
    if n <= ddof:
        return None
    center = sum(map(Fraction, values), Fraction(0)) / n
    return float(sum(((Fraction(v) - center) ** 2 for v in values), Fraction(0)) / (n - ddof))


def in_time(events: Events, value: Callable[[Ev], Any]) -> list[Any]:
    """Return values by time; of one time by their encoding."""
    encode = msgspec.msgpack.encode
    return [v for _, _, v in sorted((at, encode(value(e)), value(e)) for at, e in events)]


#: Aggregate and the same in plain Python.
EXACT: dict[str, tuple[Aggregate, Callable[[Events], Any]]] = {
    "count": (count(), len),
    "count_of": (count("x"), lambda es: len(xs(es))),
    "sum_int": (sum_of("v"), lambda es: sum(e.v for _, e in es)),
    "sum_float": (sum_of("x"), lambda es: float(sum(map(Fraction, xs(es)), Fraction(0)))),
    "sum_function": (sum_of(lambda e: e.v * 2, type=int), lambda es: 2 * sum(e.v for _, e in es)),
    "mean": (mean("x"), lambda es: math.fsum(xs(es)) / len(xs(es)) if xs(es) else None),
    "variance": (variance("x"), lambda es: exact_variance(xs(es), 1)),
    "population": (variance("x", ddof=0), lambda es: exact_variance(xs(es), 0)),
    "min": (min_of("x"), lambda es: min(xs(es), default=None)),
    "max_float": (max_of("x"), lambda es: max(xs(es), default=None)),
    "max_function": (max_of(lambda e: e.x, type=float), lambda es: max(xs(es), default=None)),
    "sum_of_number": (sum_of(lambda e: e.x), lambda es: float(sum(map(Fraction, xs(es)), Fraction(0)))),
    "count_function": (count(lambda e: e.x), lambda es: len(xs(es))),
    "distinct_float": (count_distinct("x"), lambda es: len(set(xs(es)))),
    "approx_float": (approx_count_distinct("x"), lambda es: len(set(xs(es)))),
    "top_float": (
        top_n(3, "x", of="tag"),
        lambda es: [best[-1] for best in sorted((-e.x, at, _bytes(e.tag), e.tag)
                                                for at, e in es if xs([(at, e)]))][:3],
    ),
    "max": (max_of("tag"), lambda es: max((e.tag for _, e in es), default=None)),
    "first": (first("v"), lambda es: next(iter(in_time(es, lambda e: e.v)), None)),
    "last": (last("tag"), lambda es: next(reversed(in_time(es, lambda e: e.tag)), None)),
    "collect": (collect("v"), lambda es: in_time(es, lambda e: e.v)),
    "distinct": (count_distinct("tag"), lambda es: len({e.tag for _, e in es})),
    "least": (distinct("tag", most=3), lambda es: sorted({e.tag for _, e in es})[:3]),
    "least_float": (distinct("v", most=2), lambda es: sorted({e.v for _, e in es})[:2]),
    "top": (
        top_n(3, "v", of="tag"),
        lambda es: [best[-1] for best in sorted((-e.v, at, _bytes(e.tag), e.tag) for at, e in es)][:3],
    ),
    "reduce": (reduce(operator.xor, "v", commutes=True), lambda es: _xor([e.v for _, e in es])),
    "approx_small": (approx_count_distinct("tag"), lambda es: len({e.tag for _, e in es})),
    "median_small": (quantile("x", 0.5), lambda es: statistics.median(xs(es)) if xs(es) else None),
}  # fmt: skip


def _xor(values: list[int]) -> int | None:
    total = None
    for v in values:
        total = v if total is None else total ^ v
    return total


#: Nearer to 0 than 1e-140, squares are not exact: see `variance`.
PLAIN = st.floats(-1e12, 1e12, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-140)
FLOATS = PLAIN | st.sampled_from([0.1, 1e15 + 0.3, -1e15, 1e-9, 0.0, -0.0, math.nan])
EVENTS = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.builds(Ev, v=st.integers(0, 30), tag=st.text("abcdefgh", max_size=2), x=FLOATS | st.none()),
    ),
    max_size=30,
)


@pytest.mark.parametrize("name", EXACT)
@examples(30)
@given(events=EVENTS, seed=st.integers(0, 1_000))
def test_an_aggregate_is_the_same_however_it_is_added_and_merged(
    name: str, events: Events, seed: int
) -> None:
    aggregate, expected = EXACT[name]
    bound = aggregate.bind(Ev)
    shuffled = list(events)
    random.Random(seed).shuffle(shuffled)
    found = bound.result(kept(bound, straight(bound, events)))
    assert found == expected(events)
    # To the last bit: 0.0 is equal to -0.0.
    assert _bytes(bound.result(straight(bound, shuffled))) == _bytes(found)
    assert _bytes(bound.result(merged(bound, events, seed))) == _bytes(found)


@given(st.lists(st.floats(-1e-140, 1e-140), max_size=8))
def test_the_variance_of_tiny_values_is_tiny_and_not_negative(values: list[float]) -> None:
    bound = variance("x").bind(Ev)
    found = bound.result(straight(bound, [(0, Ev(x=x)) for x in [*values, 0.0, 0.0]]))
    assert 0.0 <= found <= 1e-279


@pytest.mark.parametrize("name", EXACT)
@examples(30)
@given(events=EVENTS, width=st.integers(1, 8))
def test_an_aggregate_that_subtracts_forgets_what_leaves(name: str, events: Events, width: int) -> None:
    aggregate, expected = EXACT[name]
    bound = aggregate.bind_sliding(Ev)
    if bound.subtract is None:
        return
    events = sorted(events, key=lambda e: (e[0], msgspec.msgpack.encode(e[1])))
    total = bound.create()
    for i, (at, event) in enumerate(events):
        total = bound.add(total, event, at)
        if i >= width:
            total = kept(bound, bound.subtract(total, straight(bound, [events[i - width]])))
        window_of = events[max(0, i - width + 1) : i + 1]
        same = expected(window_of)
        assert bound.result(total) == same


def test_a_sum_of_floats_does_not_depend_on_order() -> None:
    values = [1e16, 1.0, -1e16, 0.1, 0.2, 0.3, 1e-8] * 50
    process = window(Ev, tumbling(10)).aggregate(total=sum_of("x"), sigma=stddev("x"))
    results = set()
    for seed in range(10):
        random.Random(seed).shuffle(values)
        driver = play(process, [At(1, Ev(i, x=x)) for i, x in enumerate(values)], cuts=[seed * 20])
        results.add((driver.values()[0].total, driver.values()[0].sigma))
    assert results == {(math.fsum(values), math.sqrt(exact_variance(values, 1) or 0.0))}


def test_a_variance_survives_values_far_from_zero() -> None:
    values = [1.7e12 + v for v in (1.0, 2.0, 4.0)]
    bound = variance("x").bind(Ev)
    assert bound.result(straight(bound, [(0, Ev(x=v)) for v in values])) == pytest.approx(7 / 3, rel=1e-12)


@pytest.mark.parametrize("aggregate", [min_of, max_of])
@pytest.mark.parametrize(
    ("tp", "values"),
    [
        (Decimal, [Decimal("1.0"), Decimal("1.00"), Decimal("nan"), Decimal("2")]),
        (
            datetime,
            [
                datetime(2020, 1, 1, 12, tzinfo=UTC),
                datetime(2020, 1, 1, 13, tzinfo=timezone(timedelta(hours=1))),
            ],
        ),
        (int | float, [1, 1.0, math.nan, -0.0, 0]),
        (float, [0.0, -0.0, math.nan]),
    ],
)
def test_of_equal_values_the_same_one_is_kept_in_any_order(aggregate: Any, tp: Any, values: Any) -> None:
    bound = aggregate(lambda value: value, type=tp).bind(tp)
    results = set()
    for order in itertools.permutations([(0, value) for value in values]):
        results.add(repr(bound.result(straight(bound, list(order)))))
        results.add(repr(bound.result(merged(bound, list(order), 1))))
    assert len(results) == 1


def test_a_quantile_beside_an_infinite_value_is_a_number() -> None:
    bound = quantile("x", (0.0, 0.5)).bind(Ev)
    events = [(0, Ev(x=x)) for x in (1.0, math.inf, 0.5, math.nan)]
    assert bound.result(straight(bound, events)) == [0.5, 1.0]


def test_what_is_not_finite_makes_the_sum_so_and_stays() -> None:
    bound = sum_of("x").bind(Ev)
    assert bound.result(straight(bound, [(0, Ev(x=v)) for v in (1.0, math.inf, 2.0)])) == math.inf
    assert math.isnan(bound.result(straight(bound, [(0, Ev(x=v)) for v in (math.inf, -math.inf, 2.0)])))
    spread = variance("x").bind(Ev)
    assert math.isnan(spread.result(straight(spread, [(0, Ev(x=v)) for v in (1.0, math.inf, 2.0)])))


def test_a_whole_number_that_outgrows_64_bits_is_an_error_of_its_event() -> None:
    driver = play(window(Ev, tumbling(10)).aggregate(total=sum_of("v")), [At(1, Ev(2**63 - 1)), At(2, Ev(1))])
    [letter] = driver.values("dead_letters")
    assert "beyond 64 bits" in letter["error"]
    assert [r.total for r in driver.values()] == [2**63 - 1]


@pytest.mark.parametrize("seed", [1, 2])
def test_many_distinct_values_are_counted_within_the_stated_error_in_any_order(seed: int) -> None:
    bound = approx_count_distinct("tag").bind(Ev)
    events = [(0, Ev(tag=f"user-{i % 20_000}")) for i in range(25_000)]
    random.Random(seed).shuffle(events)
    acc = merged(bound, events[:5_000], seed)
    acc = bound.merge(acc, straight(bound, events[5_000:]))
    assert bound.result(acc) == bound.result(straight(bound, sorted(events, key=lambda e: e[1].tag)))
    assert abs(bound.result(acc) / 20_000 - 1) < 3 * 1.04 / 64
    assert len(msgspec.msgpack.encode(acc)) < 5_000


class Seen(msgspec.Struct):
    x: float | None = None
    n: int = 0
    tag: str = ""
    moment: datetime = datetime(2020, 1, 1, tzinfo=UTC)
    pair: tuple[int, str] = (0, "")


@pytest.mark.parametrize("field", ["x", "n", "tag", "moment", "pair"])
def test_values_of_any_type_are_counted_beyond_the_buffer(field: str) -> None:
    bound = approx_count_distinct(field).bind(Seen)
    rng = random.Random(3)
    events: Any = [
        (0, Seen(i / 8, i, f"{i}" if i else "", datetime.fromtimestamp(i, UTC), (i % 7, f"{i}")))
        for i in (rng.randrange(300) for _ in range(3_000))
    ]
    exact = len({msgspec.msgpack.encode(getattr(e, field)) for _, e in events})
    assert bound.result(merged(bound, events, 4)) == bound.result(straight(bound, events)) == exact == 300


def test_the_empty_text_counts_as_a_value() -> None:
    bound = approx_count_distinct("tag").bind(Seen)
    events: Any = [(0, Seen(tag="a" * (i % 3))) for i in range(100)]
    assert bound.result(straight(bound, events)) == 3


def spread_of(rng: random.Random) -> list[float]:
    """Values of one of several kinds: near each other, of all sizes, of both signs, with zeros, equal."""
    n, wide = rng.choice((1, 200, 255, 256, 257, 700, 3_000)), rng.choice((0.0, 0.5, 3.0, 40.0, 150.0))
    signs = rng.choice(((1,), (-1,), (1, -1), (1, 1, 1, 0, -1)))
    found = [rng.choice(signs) * math.exp(max(-690.0, min(700.0, rng.gauss(0, wide)))) for _ in range(n)]
    return found + rng.choice(([], [math.nan], [0.0, -0.0], [1e308, -1e308, 1e-308], [math.inf]))


def bins(values: list[float], halved: int) -> int:
    """How many bins of one per cent, each two of them joined so often, values are in."""
    factor = Fraction(101, 99)
    step = math.log(factor) * 2**halved
    kinds = {
        (v > 0, math.ceil(round(math.log(min(abs(v), 1.7e308)) / step, 9)))
        for v in values
        if abs(v) >= 1e-300
    }
    return len(kinds)


def test_a_binned_quantile_is_within_its_share_in_any_order_and_bounded_space() -> None:
    coarse = 0
    for seed in range(int(os.environ.get("BINNED_SEEDS", "60"))):
        rng = random.Random(seed)
        values = spread_of(rng)
        q = rng.choice((0.0, 0.01, 0.5, 0.9, 0.999, 1.0, rng.random()))
        bound = binned_quantile("x", q).bind(Ev)
        events = [(0, Ev(x=x)) for x in values]
        one = straight(bound, events)
        rng.shuffle(events)
        other = merged(bound, events, seed)
        got = bound.result(one)
        assert repr(bound.result(other)) == repr(got), seed
        unlike = bound.merge(straight(bound, events[:3]), straight(bound, events[3:]))
        assert repr(bound.result(unlike)) == repr(got), seed
        assert other.halved == one.halved
        assert len(msgspec.msgpack.encode(one)) < 10_300
        exact = sorted(v for v in values if not math.isnan(v))
        if not exact:
            assert got is None
            continue
        at = q * (len(exact) - 1)
        pair, share = (exact[math.floor(at)], exact[math.ceil(at)]), at - math.floor(at)
        wanted = pair[0] if not share else pair[0] * (1 - share) + pair[1] * share
        if len(exact) <= 255:
            assert got == pytest.approx(wanted, rel=1e-12)
            continue
        off = share_of(0.01, one.halved)
        assert bins(exact, one.halved) <= 1_024, seed
        assert not one.halved or bins(exact, one.halved - 1) > 1_000, seed
        coarse += one.halved > 0
        if math.isfinite(wanted):
            most = off * (abs(pair[0]) * (1 - share) + abs(pair[1]) * share)
            assert abs(got - wanted) <= most * (1 + 1e-9) + 1e-300, (seed, q)
        assert exact[0] <= got <= exact[-1]
    assert coarse > 1


def test_a_binned_quantile_of_a_window_that_slides_is_exact() -> None:
    bound = binned_quantile("x", 0.25).bind_sliding(Ev)
    acc = straight(bound, [(0, Ev(x=x)) for x in (5.0, 1.0, 2.0)])
    assert bound.subtract is not None
    acc = bound.subtract(acc, straight(bound, [(0, Ev(x=5.0))]))
    assert bound.result(acc) == 1.25


def test_quantiles_of_many_values_are_within_the_stated_rank_error_in_bounded_space() -> None:
    rng = random.Random(7)
    values = [rng.lognormvariate(0, 2) for _ in range(20_000)]
    bound = quantile("x", [0.01, 0.5, 0.99]).bind(Ev)
    acc = merged(bound, [(0, Ev(x=x)) for x in values[:2_000]], 3)
    acc = bound.merge(acc, straight(bound, [(0, Ev(x=x)) for x in values[2_000:]]))
    for q, bound_on_error, got in zip(
        (0.01, 0.5, 0.99), (0.002, 0.022, 0.002), bound.result(acc), strict=True
    ):
        rank = sum(v <= got for v in values) / len(values)
        assert abs(rank - q) < bound_on_error
    assert len(msgspec.msgpack.encode(acc)) < 8_000


def test_ones_own_aggregator_works_in_a_window() -> None:
    class Longest(Aggregator[str, str, int]):
        accumulator_type = str

        def create(self) -> str:
            return ""

        def add(self, accumulator: str, value: str) -> str:
            return max(accumulator, value, key=len)

        def result(self, accumulator: str) -> int:
            return len(accumulator)

        def merge(self, left: str, right: str) -> str:
            return max(left, right, key=len)

    process = window(Ev, tumbling(10)).aggregate(
        longest=custom(Longest(), result_type=int, of="tag", commutes=True)
    )
    driver = play(
        process, [At(1, Ev(tag="ab")), At(2, Ev(tag="abcd")), At(3, Ev(tag="a"))], cuts=[1], restarts=True
    )
    assert [r.longest for r in driver.values()] == [4]


def test_a_reduction_that_does_not_commute_takes_events_in_order_of_time() -> None:
    process = window(Ev, tumbling(10)).aggregate(word=reduce(operator.add, "tag"))
    driver = play(process, [At(3, Ev(tag="c")), At(1, Ev(tag="a")), At(2, Ev(tag="b"))], cuts=[1, 2])
    assert [r.word for r in driver.values()] == ["abc"]


class Inner(msgspec.Struct):
    amount: float
    country: str | None = None


class Outer(msgspec.Struct):
    pay: Inner
    maybe: Inner | None = None
    seen: int | None = None


def test_a_field_may_be_inside_another_and_missing_values_are_left_out() -> None:
    process = window(Outer, tumbling(10)).aggregate(
        total=sum_of("pay.amount"), seen=max_of("seen"), lands=count_distinct("pay.country"), n=count("seen")
    )
    events = [Outer(Inner(0.1)), Outer(Inner(0.2, "DE"), seen=4), Outer(Inner(0.3, "FR"))]
    driver = play(process, [At(i, e) for i, e in enumerate(events)])  # type: ignore[arg-type]
    [row] = driver.values()
    assert (row.total, row.seen, row.lands, row.n) == (math.fsum([0.1, 0.2, 0.3]), 4, 2, 1)


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (sum_of("price"), "Ev has no field 'price': it has v, tag, x, gap"),
        (sum_of("tag"), "sum_of needs numbers .int or float., not str"),
        (mean("tag"), "mean needs numbers"),
        (quantile("tag", 0.5), "quantile needs numbers"),
        (binned_quantile("tag", 0.5), "binned_quantile needs numbers"),
        (max_of(lambda e: e.v), "max_of of a function must say what it gives: add type="),
        (collect(lambda e: e.v), "collect of a function"),
        (sum_of(3), "a field's name or a function"),  # type: ignore[arg-type]
    ],
)
def test_an_aggregate_that_does_not_fit_the_event_is_refused(aggregate: Aggregate, message: str) -> None:
    with pytest.raises(WindowDefinitionError, match=message):
        window(Ev, tumbling(10)).aggregate(a=aggregate)


def test_a_path_through_a_field_that_may_be_missing_is_refused() -> None:
    with pytest.raises(WindowDefinitionError, match="goes through a field that may be None"):
        window(Outer, tumbling(10)).aggregate(a=sum_of("maybe.amount"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: variance("x", ddof=2),
        lambda: quantile("x", 1.5),
        lambda: binned_quantile("x", -0.1),
        lambda: binned_quantile("x", 0.5, within=0.6),
        lambda: quantile("x", []),
        lambda: quantile("x", 0.5, k=1),
        lambda: approx_count_distinct("x", lg_k=30),
        lambda: top_n(0, "v"),
    ],
)
def test_options_out_of_range_are_refused(make: Callable[[], Aggregate]) -> None:
    with pytest.raises(WindowDefinitionError):
        make()


def test_without_the_library_a_sketch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(WindowDefinitionError, match=r"pip install 'millrace\[sketches\]'"):
        window(Ev, tumbling(10)).aggregate(a=approx_count_distinct("tag"))

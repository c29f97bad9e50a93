"""Lists, reductions and aggregates: what they keep and hand back, and what they refuse."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.state import (
    Aggregator,
    aggregating_state,
    list_state,
    map_state,
    reducing_state,
    value_state,
    versioned_state,
)
from millrace.state.specs import StateDeclarationError, StateTypeError
from tests.unit.millrace.state.cases import Bed


def test_a_list_keeps_order_and_repeats() -> None:
    bed = Bed(items=list_state(int))
    with bed.on() as s:
        s.items.append(3)
        s.items.extend(iter([1, 3]))
    bed.commit()
    with bed.on() as s:
        assert (list(s.items), len(s.items), 1 in s.items) == ([3, 1, 3], 3, True)
        s.items.replace(x + 1 for x in s.items)
        assert list(s.items) == [4, 2, 4]
        s.items.clear()
        assert not s.items
    bed.commit()
    assert bed.backend.is_empty()


def test_a_list_may_change_while_it_is_iterated() -> None:
    bed = Bed(items=list_state(int))
    with bed.on() as s:
        s.items.extend([1, 2])
        for item in s.items:
            s.items.append(item * 10)
        assert list(s.items) == [1, 2, 10, 20]


def test_an_iterable_that_fails_adds_nothing() -> None:
    def broken() -> Any:
        yield 1
        raise RuntimeError("no more")

    bed = Bed(items=list_state(int))
    with bed.on() as s, pytest.raises(RuntimeError, match="no more"):
        s.items.extend(broken())
    bed.commit()
    assert bed.backend.is_empty()


def test_a_reduction_starts_with_the_first_value() -> None:
    bed = Bed(largest=reducing_state(int, max))
    with bed.on() as s:
        assert s.largest.value is None
        s.largest.add(-5)
        assert s.largest.value == -5
    bed.commit()
    with bed.on() as s:
        s.largest.add(7)
        s.largest.add(3)
        assert s.largest.value == 7
        s.largest.clear()
        assert s.largest.value is None
    bed.commit()
    assert bed.backend.is_empty()


class Moments(msgspec.Struct, array_like=True):
    n: int = 0
    total: float = 0.0


class Mean(Aggregator[float, Moments, float]):
    accumulator_type = Moments

    def create(self) -> Moments:
        return Moments()

    def add(self, accumulator: Moments, value: float) -> Moments:
        accumulator.n += 1
        accumulator.total += value
        return accumulator

    def result(self, accumulator: Moments) -> float:
        return accumulator.total / accumulator.n

    def merge(self, left: Moments, right: Moments) -> Moments:
        return Moments(left.n + right.n, left.total + right.total)


FUNCTIONS = {
    "create": lambda: [0.0, 0.0],
    "add": lambda a, v: [a[0] + v, a[1] + 1],
    "result": lambda a: a[0] / a[1],
    "merge": lambda a, b: [a[0] + b[0], a[1] + b[1]],
}


@pytest.mark.parametrize(
    "declare", [lambda: aggregating_state(Mean()), lambda: aggregating_state(list[float], **FUNCTIONS)]
)
def test_an_aggregate_takes_one_type_keeps_another_and_gives_a_third(declare: Any) -> None:
    bed = Bed(mean=declare())
    with bed.on() as s:
        assert (s.mean.value, s.mean.accumulator) == (None, None)
        s.mean.add(1.0)
    bed.commit()
    with bed.on("1:other") as s:
        s.mean.add(10.0)
        other = s.mean.accumulator
    with bed.on() as s:
        s.mean.add(2.0)
        assert s.mean.value == 1.5
        s.mean.merge(other)
        assert s.mean.value == pytest.approx(13 / 3)
        s.mean.clear()
        s.mean.merge(other)
        assert s.mean.value == 10.0


def test_merging_without_a_merge_function_is_refused() -> None:
    functions = {k: v for k, v in FUNCTIONS.items() if k != "merge"}
    bed = Bed(mean=aggregating_state(list[float], **functions))
    with bed.on() as s:
        s.mean.add(1.0)
        with pytest.raises(StateDeclarationError, match="not how to merge"):
            s.mean.merge([1.0, 1.0])


def test_a_function_that_forgets_to_return_is_told_so() -> None:
    bed = Bed(
        items=aggregating_state(list[int], create=list, add=lambda a, v: a.append(v), result=len),
        largest=reducing_state(int, lambda a, b: None),
    )
    with bed.on() as s:
        with pytest.raises(StateTypeError, match="state 'items': add gave None"):
            s.items.add(1)
        s.largest.add(1)
        with pytest.raises(StateTypeError, match="state 'largest': the reduce function gave None"):
            s.largest.add(2)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: aggregating_state(list[float], create=list), "an Aggregator, or a type and add and result"),
        (lambda: aggregating_state(Aggregator()), "names no accumulator_type"),
        (lambda: reducing_state(int, 3), "needs a function of two values"),  # type: ignore[arg-type]
    ],
)
def test_incomplete_declarations_are_refused(declare: Any, message: str) -> None:
    with pytest.raises(StateDeclarationError, match=message):
        declare()


WRONG = {
    "value": (lambda: value_state(int), lambda s: s.set("text"), "Expected `int | null`, got `str`"),
    "expiring": (lambda: value_state(int, ttl=5), lambda s: s.set("text"), "Expected `int`, got `str`"),
    "map": (lambda: map_state(str, int), lambda s: s.put("a", "text"), "Expected `int`, got `str`"),
    "map key": (lambda: map_state(str, int), lambda s: s.put(1, 1), "Expected `str`"),
    "list": (lambda: list_state(int), lambda s: s.append(1.5), "Expected `int`, got `float`"),
    "reducing": (
        lambda: reducing_state(int, max),
        lambda s: s.add("text"),
        "Expected `int | null`, got `str`",
    ),
    "aggregating": (
        lambda: aggregating_state(int, create=int, add=lambda a, v: v, result=str),
        lambda s: s.add("text"),
        "Expected `int | null`, got `str`",
    ),
    "versioned": (lambda: versioned_state(int, history=5), lambda s: s.put("text"), "Expected `int | null`"),
    "unpackable": (lambda: value_state(Any), lambda s: s.set(object()), "cannot be kept"),
    "too large a number": (lambda: value_state(int), lambda s: s.set(2**70), "cannot be kept"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_value_of_a_wrong_type_is_refused_before_anything_is_written(case: str) -> None:
    declare, write, message = WRONG[case]
    bed = Bed(x=declare())
    with bed.on() as s:
        write(s.x)
    with pytest.raises(StateTypeError) as refused:
        bed.commit()
    assert message in str(refused.value)
    assert bed.backend.is_empty()
    if "cannot be kept" not in message:
        assert str(refused.value).startswith("Bed keeps something else than it declares for key '1:k': ")
        assert "`x" in str(refused.value)


# -- against plain Python ----------------------------------------------------------------------------

OPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "extend", "replace", "clear", "put", "remove", "add", "restart"]),
        st.sampled_from(["1:a", "1:b"]),
        st.integers(-3, 3),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(OPS, st.sampled_from([60, 32_768]))
def test_states_are_what_plain_python_keeps(ops: list[tuple[str, str, int]], page_bytes: int) -> None:
    bed = Bed(
        page_bytes=page_bytes,
        items=list_state(int),
        seen=map_state(int, int),
        total=reducing_state(int, lambda a, b: a + b),
    )
    plain: dict[str, dict[str, Any]] = {k: {"items": [], "seen": {}, "total": None} for k in ("1:a", "1:b")}
    for what, key, number in ops:
        model = plain[key]
        with bed.on(key) as s:
            if what == "append":
                s.items.append(number)
                model["items"].append(number)
            elif what == "extend":
                s.items.extend(range(number))
                model["items"].extend(range(number))
            elif what == "replace":
                s.items.replace(s.items if number else [])
                model["items"] = model["items"] if number else []
            elif what == "clear":
                s.items.clear(), s.seen.clear(), s.total.clear()
                plain[key] = model = {"items": [], "seen": {}, "total": None}
            elif what == "put":
                s.seen.put(number, number * 2)
                model["seen"][number] = number * 2
            elif what == "remove":
                s.seen.remove(number)
                model["seen"].pop(number, None)
            elif what == "add":
                s.total.add(number)
                model["total"] = number + (model["total"] or 0)
            assert list(s.items) == model["items"]
            assert list(s.seen.items()) == list(model["seen"].items())
            assert s.total.value == model["total"]
        if what == "restart":
            bed.commit()
    bed.commit()
    assert set(bed.kept()) == {
        k for k, m in plain.items() if m["items"] or m["seen"] or m["total"] is not None
    }

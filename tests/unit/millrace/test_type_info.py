"""What is known of a type is what msgspec says, whatever was asked before."""

from __future__ import annotations

import random
from typing import Annotated, Any, Literal, Optional

import msgspec
import pytest
from msgspec import inspect

from millrace.state.schema import describe_type
from millrace.type_info import type_info

LEAVES: list[Any] = [
    int, str, float, bool, bytes, None, Literal[1, "a"], Literal["a", 1], Annotated[int, msgspec.Meta(gt=0)],
]  # fmt: skip


def random_type(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(6 if depth < 3 else 1)
    if kind == 0:
        return rng.choice(LEAVES)
    if kind == 1:
        return list[random_type(rng, depth + 1)]  # type: ignore[misc]
    if kind == 2:
        return dict[str, random_type(rng, depth + 1)]  # type: ignore[misc]
    if kind == 3:
        name = rng.choice("AB")
        return msgspec.defstruct(name, [("x", random_type(rng, depth + 1)), (rng.choice("yz"), int)])
    if kind == 4:
        return Optional[random_type(rng, depth + 1)]  # noqa: UP045
    parts = rng.sample([int, str, bytes, None], 3)
    return parts[0] | parts[1] | parts[2] if parts[0] is not None else parts[1] | parts[2]


@pytest.mark.parametrize("seed", range(3))
def test_it_is_what_msgspec_says_of_types_in_any_order(seed: int) -> None:
    rng = random.Random(seed)
    seen = [random_type(rng) for _ in range(300)]
    for tp in [*seen, *rng.sample(seen, 100)]:
        try:
            said = inspect.type_info(tp)
        except TypeError as error:
            with pytest.raises(TypeError, match=str(error)[:20].replace("(", r"\(")):
                type_info(tp)
        else:
            assert type_info(tp) == said


def test_unions_in_another_order_are_described_as_they_are_written() -> None:
    assert int | str == str | int
    first, second = describe_type(dict[str, int | str]), describe_type(dict[str, str | int])
    assert first == describe_type(dict[str, int | str])
    assert (first == second) is (inspect.type_info(int | str) == inspect.type_info(str | int))


def test_what_has_no_hash_is_asked_each_time() -> None:
    tp = Annotated[int, msgspec.Meta(extra={"unit": "s"})]
    assert type_info(tp) == type_info(tp) == inspect.type_info(tp)


def test_two_structs_of_one_name_are_two() -> None:
    one, other = (msgspec.defstruct("Entry", [("x", tp)]) for tp in (int, str))
    assert type_info(list[one]) != type_info(list[other])  # type: ignore[valid-type]

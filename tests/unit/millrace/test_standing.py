"""What stands in tables: of an output's several tables each, and a difference is seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
import pytest

from millrace import Context, KeyedProcess, arrival, value_state
from millrace.testing.standing import Happened, Standing
from millrace.topology import Input, Topology, Upsert, read
from millrace.topology.sinks import Tables


class Paid(msgspec.Struct):
    who: str
    event_time_ms: int
    amount: int


class Balance(msgspec.Struct):
    who: str
    version: int
    amount: int


class Balances(KeyedProcess[Paid, Balance]):
    name = "balances"
    order = arrival(commutes=True)
    version = value_state(int, default=0)
    amount = value_state(int, default=0)

    def process(self, event: Paid, ctx: Context[Balance]) -> None:
        self.version.value = self.version.value + 1
        self.amount.value = self.amount.value + event.amount
        ctx.emit(Balance(ctx.key, self.version.value, self.amount.value))


NEWEST = Upsert("newest", ("who",), newest="version")
LARGEST = Upsert("largest", ("who",), newest="amount")
WORLD = tuple(
    Happened(at, who, at, Paid(who, at, amount))
    for at, who, amount in ((1, "a", 5), (2, "b", 7), (3, "a", -2))
)


def standing(main: Tables | None, world: Iterable[Happened] = WORLD) -> Standing:
    tables = {} if main is None else {"main": main}

    def topology() -> Topology:
        return read(Input("payments", key="who")).process(Balances()).write(tables=tables)

    return Standing(lambda: world, topology, bound_ms=10, ignored=())


@pytest.mark.parametrize(
    ("main", "rows"),
    [
        (None, {"main": 3}),
        ("history", {"main": 3}),
        (NEWEST, {"main": 2}),
        (("history", NEWEST), {"main": 3, "main:newest": 2}),
        ((NEWEST, LARGEST), {"main:newest": 2, "main:largest": 2}),
    ],
)
def test_each_table_of_an_output_stands_under_one_name(main: Tables | None, rows: dict[str, int]) -> None:
    found = standing(main).expected()
    assert {name: sum(of.values()) for name, of in found.items()} == rows
    assert found == standing(main).found(3, seed=1)


def test_tables_with_a_row_per_key_choose_their_rows_by_their_own_field() -> None:
    found = standing((NEWEST, LARGEST)).expected()
    assert amounts(found["main:newest"]) == [3, 7]
    assert amounts(found["main:largest"]) == [5, 7]


def test_after_some_events_only_theirs_stand() -> None:
    assert amounts(standing(NEWEST).expected(2)["main"]) == [5, 7]


def amounts(rows: Counter[bytes]) -> list[int]:
    return sorted(msgspec.json.decode(row)["amount"] for row in rows.elements())

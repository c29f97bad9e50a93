"""A checkpoint that is to have more processes: what stays must be what it was."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from millrace import (
    BroadcastContext,
    Context,
    KeyedProcess,
    arrival,
    broadcast_state,
    side_output,
    value_state,
)
from millrace.checkpoints.conversion import extended
from millrace.checkpoints.rescale import RescaleError
from millrace.runtime.contract import contract_differences
from millrace.topology import Input, Topology, read
from millrace.topology.contract import STATION, contract_of, station_contract


class Seen(msgspec.Struct):
    shop: str
    cents: int
    at: int


class First(KeyedProcess[Seen, Seen]):
    order = arrival(commutes=True)
    total = value_state(int, default=0)
    more = side_output(Seen)

    def process(self, event: Seen, ctx: Context) -> None:
        self.total.value += event.cents
        ctx.emit(event)


class Second(KeyedProcess[Seen, Seen]):
    order = arrival(commutes=True)
    last = value_state(int, default=0)

    def process(self, event: Seen, ctx: Context) -> None:
        self.last.value = event.cents


class Between(KeyedProcess[Seen, Seen]):
    order = arrival(commutes=True)
    control_type = Seen
    most = broadcast_state(str, int)
    count = value_state(int, default=0)

    def process(self, event: Seen, ctx: Context) -> None:
        self.count.value += 1

    def process_broadcast(self, control: Any, ctx: BroadcastContext) -> None:
        self.most.put("most", control.cents)


class Otherwise(First):
    """The same by its name, with a state that is another."""

    name = "First"
    total = value_state(str, default="")

    def process(self, event: Seen, ctx: Context) -> None:
        self.total.value = event.shop


class Newer(First):
    name = "First"
    version = 2


INPUT = Input("payments", "shop", event_time="at")


def two(first: type[First] = First) -> Topology:
    return read(INPUT).process(first()).key_by("shop").process(Second())


def three(first: type[First] = First, taken: str = "First.main") -> Topology:
    between = read(INPUT).process(first()).key_by("shop", output="more").process(Between())
    return between.key_by("shop", output=taken).process(Second())


def kept(topology: Topology, *, is_station: bool = False) -> dict[str, Any]:
    about: dict[str, Any] = json.loads(json.dumps(contract_of(topology, [8, 16])))
    plan = {STATION: station_contract([], 1, None)} if is_station else {}
    return {"incarnation": "a", **about, **plan}


@pytest.mark.parametrize("is_station", [False, True])
def test_processes_that_stay_are_what_they_were_and_the_new_one_has_the_groups_of_the_one_before_it(
    is_station: bool,
) -> None:
    made = extended(kept(two(), is_station=is_station), three())
    wanted = json.loads(json.dumps(contract_of(three(), [8, 8, 16])))
    if is_station:
        wanted[STATION] = station_contract(["Between"], 1, None)
    assert contract_differences(made, {"incarnation": "a", **wanted}) == []
    assert made["states"] == wanted["states"]


def test_a_process_by_itself_gets_another_one_behind_it() -> None:
    one = read(INPUT).process(First())
    alone = {"incarnation": "a", **json.loads(json.dumps(contract_of(one, [8])))}
    made = extended(alone, two())
    assert [link["process"] for link in made["links"]] == ["First", "Second"]
    assert [link["key_groups"] for link in made["links"]] == [8, 8]


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (three(Otherwise), 'First: states.total.type was "int", is now "str"'),
        (three(Newer), "First: version was 1, is now 2"),
        (three(taken="First.more"), 'Second: takes. was "First.main", is now "First.more"'),
    ],
)
def test_what_stays_and_is_another_is_refused(now: Topology, why: str) -> None:
    with pytest.raises(RescaleError) as caught:
        extended(kept(two()), now)
    assert str(caught.value).startswith("the checkpoint cannot be given other processes: ")
    assert why in str(caught.value)

"""Records that go on as they are: nobody can tell, by random topologies, and only what may goes on so."""

from __future__ import annotations

import datetime
import enum
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
import pytest

from millrace import Context, KeyedProcess, arrival, event_time, side_output, value_state
from millrace.host.key_times import KeyFields
from millrace.host.memory import MemoryHost
from millrace.host.memory_chain import MemoryChain
from millrace.host.rows import Row, in_order, json_of
from millrace.host.station import outputs_of_links
from millrace.object_reuse import ObjectReuseError, changeable_in, checked_encoder
from millrace.time.clock import ClockSettings
from millrace.topology import Input, Topology, read
from tests.cases import case_count
from tests.unit.millrace.host.test_station import Runs

CASES = case_count(120)


class Colour(enum.Enum):
    RED = "red"


class Line(msgspec.Struct, frozen=True):
    item: str
    price: float = 0.0


class Order(msgspec.Struct, frozen=True, tag="order"):
    lines: tuple[Line, ...]
    colour: Colour | None
    seen: frozenset[int]
    at: datetime.datetime
    before: Order | None = None


class Loose(msgspec.Struct, tag="loose"):
    n: int


class Listed(msgspec.Struct, frozen=True, tag="listed"):
    names: list[str]


class Mapped(msgspec.Struct, frozen=True, tag="mapped"):
    pair: tuple[int, dict[str, int]]


@pytest.mark.parametrize(
    ("tp", "where"),
    [
        (Order, ""),
        (Order | None, ""),
        (int, ""),
        (Literal["a", "b"], ""),
        (Loose, "Loose is not frozen"),
        (Order | Loose, "Loose is not frozen"),
        (Listed, "Listed.names is a list"),
        (Mapped, "Mapped.pair is a dict"),
        (Any, "it is a any"),
        (bytearray, "it is a bytearray"),
    ],
    ids=str,
)
def test_what_could_be_changed_is_found_in_a_type(tp: Any, where: str) -> None:
    assert changeable_in(tp) == where


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (Line("a", 1), '{"item":"a","price":1} is read as {"item":"a","price":1.0}'),
        (Line("a", float("nan")), "cannot be read"),
        (Line(7), "cannot be read"),  # type: ignore[arg-type]
    ],
)
def test_a_record_that_its_json_does_not_give_back_stops_a_process_in_memory(record: Line, said: str) -> None:
    class Emits(KeyedProcess[int, Line]):
        order = arrival(commutes=True)
        object_reuse = True

        def process(self, event: int, ctx: Context) -> None:
            ctx.emit(record)

    with pytest.raises(ObjectReuseError, match=said.replace("{", r"\{")):
        MemoryHost(Emits()).run_batch([("k", 1, 1)])
    Emits.object_reuse = False
    assert MemoryHost(Emits()).run_batch([("k", 1, 1)])


def test_a_record_that_its_json_gives_back_goes_through() -> None:
    assert checked_encoder("P")(Line("ä", 1.5)) == '{"item":"ä","price":1.5}'.encode()


def test_rows_without_bytes_are_ordered_as_their_json_is() -> None:
    def rows(*, bare: bool) -> list[Row]:
        events = [Line("b"), Line("a", 2.0), Line("a", 10.0)]
        return [Row(1, b"" if bare else msgspec.json.encode(e), f"t:0:{n}", e) for n, e in enumerate(events)]

    assert [r.event for r in in_order(rows(bare=True))] == [r.event for r in in_order(rows(bare=False))]
    assert json_of(Row(1, b"B", None, Line("b"))) == b'B{"item":"b","price":0.0}'
    assert json_of(Row(1, b"7", None, 7)) == b"7"


# -- random topologies -------------------------------------------------------------------------------


class Item(msgspec.Struct, frozen=True, tag="item"):
    """What goes through all links; ``way`` says where it has been."""

    a: str
    b: int | None
    at: int
    way: str = ""
    weight: float = 0.5


class Other(msgspec.Struct, frozen=True, tag="other"):
    a: str
    b: int | None
    at: int
    way: str = ""
    more: tuple[str, ...] = ()


class Changing(msgspec.Struct, tag="changing"):
    """Whoever takes it may change it, and whoever emits it does."""

    a: str
    b: int | None
    at: int
    way: str = ""


Records = Item | Other | Changing


class Step(KeyedProcess[Records, Records]):
    """Adds itself to the way, sends some aside, fails at some after it has emitted, and loses some keys."""

    order = arrival(in_order_per_key=True)
    aside = side_output(Records)
    seen = value_state(int, default=0)

    def process(self, event: Records, ctx: Context) -> None:
        self.seen.value += 1
        if isinstance(event, Changing):
            event.way += "~"
        count = 0 if event.b is None else event.b + 1
        here = f"{event.way}>{self.name}[{ctx.key}]{ctx.input or ''}{self.seen.value}"
        kind = (Item, Item, Other, Changing)[count % 4]
        emitted = kind(event.a, count or None, event.at, here)
        ctx.emit(emitted)
        if isinstance(emitted, Changing):
            emitted.way += "?"
        if count % 3 == 2:
            ctx.output(self.aside, kind(event.a, count, event.at, here + "!"))
        if count % 7 == 6:
            raise ValueError(f"{count} is refused")
        if count % 11 == 10:
            ctx.dead_letter("conflict", "eleven")

    def on_late(self, event: Records, ctx: Context) -> None:
        ctx.emit(Item(event.a, event.b, event.at, f"{event.way}>late {self.name}"))


def step(name: str, inputs: int, *, waits: bool, reuses: bool) -> Step:
    named = {f"i{n}": Records for n in range(inputs)} if inputs > 1 else {}
    of = {
        "name": name,
        "inputs": named,
        "event_type": Records,
        "output_type": Records,
        "object_reuse": reuses,
    }
    if waits:
        of["order"] = event_time()
    made: Step = type(name, (Step,), of)()
    return made


def made(rng: random.Random, *, reuses: bool) -> Topology:
    """Return a random topology: the same of one seed, whether records are reused or not."""

    def link(number: int, inputs: int) -> Step:
        waits, wants = rng.random() < 0.3, rng.random() < 0.8
        return step(f"L{number}", inputs, waits=waits, reuses=reuses and wants)

    topology = read(Input("t", "a", "at")).process(link(0, 1))
    for number in range(1, rng.randint(2, 5)):
        count = rng.choice([1, 1, 2, 3])
        keys = [rng.choice(["a", "b"]) for _ in range(count)]
        outputs = [rng.choice(outputs_of(topology)) for _ in range(count)]
        if count == 1:
            keyed = topology.key_by(keys[0], output=outputs[0])
        else:
            keyed = topology.key_by(
                {f"i{n}": key for n, key in enumerate(keys)},
                output={f"i{n}": output for n, output in enumerate(outputs)},
            )
        topology = keyed.process(link(number, count))
    last = topology.links[-1].name
    tables = {o: f"t{n}" for n, o in enumerate(outputs_of(topology)) if rng.random() < 0.3}
    for one in topology.links:
        tables["dead_letters" if one.name == last else f"{one.name}.dead_letters"] = f"dead_{one.name}"
    return topology.write(tables=tables | {"main": "end", "aside": "end_aside"})


def outputs_of(topology: Topology) -> list[str]:
    last = topology.links[-1].name
    return [
        output if link.name == last else f"{link.name}.{output}"
        for link in topology.links
        for output in ("main", "aside")
    ]


def comparable(emissions: Iterable[Any]) -> Counter[str]:
    found = []
    for e in emissions:
        payload = msgspec.json.decode(e.payload)
        payload.pop("error_digest", None)  # it hashes line numbers of the host's own frames
        found.append(repr((e.key, e.event_time, e.output, bool(e.on_time & 1), payload, e.event_id)))
    return Counter(found)


@pytest.mark.parametrize("part", range(6))
def test_random_topologies_give_what_chains_give_that_write_every_record(part: int) -> None:
    reused = dead = 0
    for seed in range(part, CASES, 6):
        rng = random.Random(seed)
        chain = MemoryChain(made(random.Random(seed), reuses=False))
        topology = made(random.Random(seed), reuses=True)
        _, onward = outputs_of_links(topology)
        reused += sum(bool(to.reused) for of in onward for takers in of.values() for to in takers)
        fields = KeyFields((("a", str),), ("at", int))
        runs = Runs(
            topology, fields, ClockSettings(0), rng=rng, key_groups=rng.choice([1, 2, 8]),
            kept_bytes=rng.choice([0, 400, 1 << 20]),
        )  # fmt: skip
        wanted: Counter[str] = Counter()
        number = 0
        for at in range(rng.randint(1, 10)):
            batch, rows = [], []
            for _ in range(rng.randint(1, 6)):
                item = Item(rng.choice("xyz"), rng.choice([None, *range(12)]), at + 1, weight=rng.random())
                batch.append((item.a, item.at, item))
                rows.append({"value": msgspec.json.encode(item).decode(), "source": f"memory:0:{number}"})
                number += 1
            wanted += comparable(chain.run_batch(batch))
            runs.batch(rows, controls=False)
        found = comparable(runs.emissions)
        assert found == wanted, f"seed {seed}: {(found - wanted)}, {(wanted - found)}"
        dead += sum(n for text, n in found.items() if "dead_letters" in text)
    assert reused, "no record was reused"
    assert dead, "nothing failed"


def test_the_stages_of_fraud_hand_their_payments_on_as_they_are() -> None:
    from millrace.runtime.apps import load_app
    from millrace.runtime.settings import load_settings

    app = load_app("fraud")
    settings = load_settings(
        app.settings, app="fraud", overrides=["features.entities=account,terminal,device,ip"]
    )
    _, onward = outputs_of_links(app.topology(settings))
    goes_on = {to.link: bool(to.reused) for of in onward for takers in of.values() for to in takers}
    assert goes_on == {1: True, 2: True, 3: True, 4: True, 5: True}

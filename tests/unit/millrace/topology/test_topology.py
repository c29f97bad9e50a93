"""Topologies: what they are made of, what is refused, and that memory runs them as they say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec
import pytest

from millrace import Context, KeyedProcess, arrival, event_time
from millrace.host.memory_chain import MemoryChain
from millrace.inputs import InputError
from millrace.process import ProcessDefinitionError
from millrace.testing import TestDriver
from millrace.time import hours
from millrace.topology import FirstOf, Input, KeyingError, RecordKey, Upsert, read
from millrace.topology.contract import contract_of
from millrace.topology.drawing import as_mermaid, as_text
from tests.unit.millrace.topology.shop import Audit, Back, Cards, Sale, Seen, Shops, Total, Turnover, shop

EVENTS = [
    Sale("c1", "s1", 500, 1),
    Sale("c2", "s1", 300, 2),
    Sale("c1", "s2", 100, 3),
    Back("c1", 200, 4),
]


def test_what_a_link_takes_is_an_output_only_where_it_is_written() -> None:
    topology = shop()
    assert [link.name for link in topology.links] == ["Cards", "Shops", "Audit"]
    assert set(topology.outputs) == {
        "main", "late", "dead_letters",
        "Shops.main", "Shops.late", "Shops.dead_letters",
        "Cards.main", "Cards.sold", "Cards.late", "Cards.dead_letters",
    }  # fmt: skip
    unwritten = read(Input("s", "shop", "at")).process(Shops()).key_by("shop").process(Plain())
    assert set(unwritten.outputs) == {
        "main", "late", "dead_letters", "Shops.late", "Shops.dead_letters"
    }  # fmt: skip
    assert topology.types["Cards.main"] is Total
    with pytest.raises(KeyError, match="no link Nobody; there are Cards, Shops, Audit"):
        topology.link("Nobody")


class Plain(KeyedProcess[Turnover, int]):
    order = arrival(commutes=True)

    def process(self, event: Turnover, ctx: Context) -> None:
        ctx.emit(event.sales)


class Named(msgspec.Struct):
    name: str
    at: int


class Names(KeyedProcess[Named, Named]):
    order = arrival(commutes=True)
    inputs: ClassVar = {"sales": Sale, "names": Named}

    def process(self, event: Any, ctx: Context) -> None:
        ctx.emit(event)


def test_keys_that_do_not_begin_with_the_locality_are_refused() -> None:
    local = read(Input("s", ("shop", "card"), "at"), locality="shop").process(Shops())
    assert local.locality == "shop"
    assert "all keys begin with the locality shop" in as_text(local, 0)
    assert local.key_by("shop").process(Plain()).locality == "shop"
    for key in ("card", ("card", "shop"), RecordKey(), FirstOf(("shop",)), (RecordKey(), "shop")):
        with pytest.raises(KeyingError, match=r"key of Shops is .*, and the locality shop: .* begin with"):
            read(Input("s", key, "at"), locality="shop").process(Shops())
    with pytest.raises(KeyingError, match=r"the key of Shops.main is sales, .* as in key=\(shop, sales\)"):
        local.key_by("sales").process(Plain())
    assert read(Input("s", "card", "at")).process(Shops()).locality is None


def test_an_input_without_the_locality_is_refused() -> None:
    sales, names = Input("s", "shop", "at"), Input("n", "shop", "at")
    with pytest.raises(KeyingError, match=r"Names\.names has no field shop to key by; it has name, at"):
        read({"sales": sales, "names": names}, locality="shop").process(Names())


def test_an_output_may_go_to_several_tables() -> None:
    """Appended to one, and merged into another, say; what is written of it later replaces both."""
    newest = Upsert("standing", ("shop",))
    topology = shop().write(tables={"Shops.main": ("history", newest)})
    assert topology.tables["Shops.main"] == ("history", newest)
    assert [table for output, table in topology.written if output == "Shops.main"] == ["history", newest]
    assert "table history; table standing (one row per shop)" in as_text(topology, 0)
    assert "history<br/>standing" in as_mermaid(topology, 0)
    assert topology.write(tables={"Shops.main": "other"}).tables["Shops.main"] == ("other",)


def test_memory_brings_every_link_what_it_takes_by_its_inputs() -> None:
    driver = TestDriver(shop())
    driver.receive(*EVENTS)
    seen = Counter((row.key, row.input) for row in driver.values())
    # The total after what came back has no shop, so it goes to no key.
    assert seen == {
        ("s1", "sales"): 2, ("s1", "totals"): 2, ("s1", "turnovers"): 2,
        ("s2", "sales"): 1, ("s2", "totals"): 1, ("s2", "turnovers"): 1,
    }  # fmt: skip
    assert [row["error"] for row in driver.values("dead_letters")] == ["the event has no key"]
    assert set(driver.values("Cards.sold")) == set(EVENTS[:3])
    assert sorted((t.card, t.cents) for t in driver.values("Cards.main")) == [
        ("c1", 400), ("c1", 500), ("c1", 600), ("c2", 300)
    ]  # fmt: skip
    assert driver.state("s1", process="Audit") == {"number": 6}
    assert driver.state("s1", process="Shops") == {"number": 2}
    assert driver.state("c1") == {"cents": 400}
    with pytest.raises(KeyError, match="no output nothing; there are main, late, dead_letters, "):
        driver.values("nothing")
    with pytest.raises(KeyError, match="no process Nobody; there are Cards, Shops, Audit"):
        driver.timers("s1", process="Nobody")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_batches_and_restarts_change_nothing(size: int) -> None:
    driver = TestDriver(shop())
    for start in range(0, len(EVENTS), size):
        driver.receive(*EVENTS[start : start + size])
        driver.restart()
    assert sorted(Counter((row.key, row.input) for row in driver.values()).values()) == [1, 1, 1, 2, 2, 2]
    assert not driver.is_empty()


def test_records_as_they_are_go_through_a_chain_too() -> None:
    chain = MemoryChain(shop(), records=True)
    rows = [(e.card, e.at, e, "sales") for e in EVENTS[:3] if isinstance(e, Sale)]
    found = [e.payload for e in chain.run_batch(rows) if e.output == "main"]
    assert Counter(row.input for row in found if isinstance(row, Seen)) == {
        "sales": 3, "totals": 3, "turnovers": 3
    }  # fmt: skip


def test_control_events_go_to_all_who_take_them() -> None:
    chain = MemoryChain(shop())
    assert chain.broadcast({"a": 1}) == []
    assert chain.watermark < 0


def test_key_and_time_of_events_are_where_the_topology_says() -> None:
    topology = shop()
    sale, back = EVENTS[0], EVENTS[3]
    assert (topology.input_of(sale), topology.key_of(sale, "sales"), topology.time_of(sale, "sales")) == (
        "sales", "2:c1", 1
    )  # fmt: skip
    assert (topology.input_of(back), topology.key_of(back, "backs"), topology.time_of(back, "backs")) == (
        "backs", "2:c1", 4
    )  # fmt: skip
    with pytest.raises(InputError, match="say by which one a Turnover comes"):
        topology.input_of(Turnover("s", 1))
    with pytest.raises(KeyingError, match="a Back does not have its key, card or the record"):
        topology.key_of(Back("", 1, 1), "backs")
    with pytest.raises(KeyingError, match="a process does not say"):
        TestDriver(Shops()).receive(sale)


class Named(msgspec.Struct, rename="camel"):
    card_id: str
    at_ms: int


class ByName(KeyedProcess[Named, Named]):
    order = arrival(commutes=True)

    def process(self, event: Named, ctx: Context) -> None:
        ctx.emit(event)


class Again(ByName):
    pass


def test_keys_are_named_as_in_json() -> None:
    topology = read(Input("n", "cardId", "atMs")).process(ByName()).key_by("cardId").process(Again())
    assert topology.time_of(Named("c", 7)) == 7
    chain = MemoryChain(topology)
    assert len(chain.run_batch([("c", 1, Named("c", 1))])) == 1
    assert topology.key_of(Named("c", 1)) == "1:c"


class Dated(msgspec.Struct):
    card: str
    at: datetime


class ByDate(KeyedProcess[Dated, Dated]):
    order = arrival(commutes=True)

    def process(self, event: Dated, ctx: Context) -> None:
        ctx.emit(event)


def test_a_time_without_a_zone_is_utc_as_it_is_on_spark() -> None:
    topology = read(Input("d", "card", "at")).process(ByDate())
    bare = datetime(2026, 1, 1, 0, 0, 0, 999)  # noqa: DTZ001
    at = int(bare.replace(tzinfo=UTC).timestamp() * 1000)
    assert [topology.time_of(Dated("c", when)) for when in (bare, bare.replace(tzinfo=UTC))] == [at, at]


class Text(KeyedProcess[str, str]):
    order = arrival(commutes=True)

    def process(self, event: str, ctx: Context) -> None:
        ctx.emit(event)


class OwnClock(Text):
    order = event_time(clock="key", patience=hours(1))


class Ticking(KeyedProcess[Sale, int]):
    order = arrival(commutes=True)
    processing_time = True

    def process(self, event: Sale, ctx: Context) -> None:
        pass


class Wants(KeyedProcess[Named, int]):
    order = arrival(commutes=True)

    def process(self, event: Named, ctx: Context) -> None:
        pass


class Orderless(KeyedProcess[Sale, int]):
    def process(self, event: Sale, ctx: Context) -> None:
        pass


SALES = Input("s", "card", "at")
BACKS = Input("b", "card", "at")
BOTH: dict[str, Input] = {"sales": SALES, "backs": BACKS}


def sold() -> Any:
    return read(Input("s", "shop", "at")).process(Shops())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: read(SALES).process(Cards()), "Cards has the inputs sales, backs; connected are"),
        (lambda: read(BOTH).process(Shops()), "Shops has the inputs one, without a name; connected are"),
        (lambda: read(Input("s", "nothing", "at")).process(Shops()), "Shops has no field nothing to key by"),
        (lambda: read(Input("s", "card", "cents at")).process(Shops()), "event type has no field cents at"),
        (lambda: read(Input("s", "card", "shop")).process(Shops()), "event time shop of Shops must be"),
        (lambda: read(Input("s", (), "at")).process(Shops()), "the input Shops names no field"),
        (lambda: read(Input("s", "card", "at", clock=False)).process(Shops()), "no input is a clock"),
        (
            lambda: read({"sales": SALES, "backs": Input("b", ("card", "why"), "at")}).process(Cards()),
            "keys of as many parts",
        ),
        (lambda: read(SALES).process(Ticking()), "name a `control`"),
        (lambda: read(SALES).process(Orderless()), "Orderless declares no order"),
        (lambda: read(Input("t", "x")).process(Text()), "Text is str; here it must be a msgspec struct"),
        (lambda: sold().key_by("shop", output="sold"), "Shops has no output 'sold'; it has main"),
        (lambda: sold().key_by("shop", output="Nobody.main"), "no output 'Nobody.main'"),
        (lambda: sold().key_by("nothing"), "Shops.main has no field nothing to key by; it has shop, sales"),
        (lambda: sold().key_by(()), "`by` names no field"),
        (lambda: sold().key_by("shop", output={}), "`output` names no output"),
        (lambda: sold().key_by("shop").process(Shops()), "Shops is in the chain already"),
        (lambda: sold().key_by("shop").process(OwnClock()), 'OwnClock has clock="key", and takes what'),
        (lambda: sold().key_by("shop").process(Wants()), "Turnover: it lacks atMs, cardId"),
        (lambda: sold().key_by("shop").process(Text()), "Text takes str, and Shops.main is Turnover"),
        (lambda: sold().key_by("shop").process(Audit()), "Audit has the inputs totals, turnovers, sales"),
        (lambda: sold().write(tables={"mian": "x"}), "no output 'mian'; it has main"),
        (lambda: sold().write(topics={"Cards.main": "x"}), "no output 'Cards.main'"),
        (lambda: sold().write(tables={"main": Upsert("t", ("id",), "n")}), "merged by id, n, which main"),
        (lambda: sold().write(tables={"main": ("a", Upsert("t", ("id",)))}), "merged by id, which main"),
        (lambda: sold().write(tables={"main": ("t", "t")}), "t is named twice, for main and for main"),
        (lambda: sold().write(tables={"main": "t", "late": "t"}), "t is named twice, for main and for late"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_anything_runs(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((KeyingError, ProcessDefinitionError)) as refused:
        make()
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


class Ping(msgspec.Struct, tag=True, frozen=True):
    car: str
    at: int


class Pong(msgspec.Struct, tag=True, frozen=True):
    car: str
    free: bool


class Emits(KeyedProcess[Ping, Ping | Pong]):
    order = arrival(commutes=True)

    def process(self, event: Ping, ctx: Context) -> None:
        ctx.emit(event)
        ctx.emit(Pong(event.car, True))


class Takes(KeyedProcess[Ping | Pong, str]):
    order = arrival(commutes=True)

    def process(self, event: Ping | Pong, ctx: Context) -> None:
        ctx.emit(f"{ctx.key} {type(event).__name__}")


class TakesOne(KeyedProcess[Pong | Back, str]):
    order = arrival(commutes=True)
    inputs: ClassVar = {"pongs": Pong, "backs": Back}

    def process(self, event: Any, ctx: Context) -> None:
        pass


def test_tagged_unions_cross_links() -> None:
    topology = read(Input("p", "car", "at")).process(Emits()).key_by("car").process(Takes())
    driver = TestDriver(topology)
    driver.receive(Ping("c", 1))
    assert driver.values() == ["c Ping", "c Pong"]
    with pytest.raises(KeyingError, match=r"Ping of Emits\.main has no field free"):
        read(Input("p", "car", "at")).process(Emits()).key_by("free")


def test_the_contract_names_what_links_take() -> None:
    found = contract_of(shop(), [8, 8, 4])
    assert found["process"] == "Cards > Shops > Audit"
    assert [link.get("takes") for link in found["links"]] == [
        None, "Cards.sold".removeprefix("Cards."),
        {"totals": "Cards.main", "turnovers": "main", "sales": "Cards.sold"},
    ]  # fmt: skip
    assert [link["key"] for link in found["links"]] == [["card = (expression)"], ["shop"], ["shop"]]
    assert [link["key_groups"] for link in found["links"]] == [8, 8, 4]
    assert list(found["states"]) == ["Cards.cents", "Shops.number", "Audit.number"]


def test_a_key_may_be_the_first_of_several() -> None:
    assert str(FirstOf(("a", RecordKey()))) == "a or the record's key"

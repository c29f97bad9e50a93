"""Playback: what `play` gives is what a test driver gives that is moved by hand, whatever is played."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import Any, ClassVar

import msgspec
import pytest

from millrace import (
    BroadcastContext,
    Context,
    KeyedProcess,
    Timer,
    arrival,
    broadcast_state,
    play,
    seconds,
    side_output,
    value_state,
)
from millrace.playback import Control, PlaybackError, Restart, Tick, at
from millrace.playback.text import clock_text, record_line
from millrace.testing import TestDriver
from millrace.topology import FirstOf, Input, RecordKey, Topology, read
from tests.cases import case_count


class Sale(msgspec.Struct, tag="sale"):
    card: str
    shop: str
    at: int
    cents: int
    received: int = 0


class Note(msgspec.Struct, tag="note"):
    card: str
    at: int
    text: str


class Limit(msgspec.Struct):
    cents: int


class Sum(msgspec.Struct):
    shop: str
    cents: int


class Cards(KeyedProcess[Sale | Note, Sum]):
    """Two inputs, control events, a timer on either clock, a side output, one event in ten that fails."""

    inputs: ClassVar = {"sales": Sale, "notes": Note}
    control_type: ClassVar = Limit
    processing_time: ClassVar = True
    limits = broadcast_state(str, int)
    cents = value_state(int, default=0)
    quiet = side_output(str)

    def process(self, event: Sale | Note, ctx: Context) -> None:
        if isinstance(event, Note):
            ctx.output(self.quiet, event.text)
            return
        if event.cents == 7:
            raise ValueError("seven")
        self.cents.value += min(event.cents, self.limits.get("now") or 1_000)
        ctx.timers.after(seconds(20), "quiet")
        ctx.processing_timers.after(seconds(5), "wall")
        ctx.emit(Sum(event.shop, self.cents.value))

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.output(self.quiet, f"{timer.name} {self.cents.value}")

    def process_broadcast(self, control: Limit, ctx: BroadcastContext) -> None:
        self.limits.put("now", control.cents)


class EarlyCards(Cards):
    order = arrival(in_order_per_key=True)


class OrderedCards(Cards):
    order = "event_time"


class Shops(KeyedProcess[Sum, Sum]):
    order = arrival(commutes=True)
    most = value_state(int, default=0)

    def process(self, event: Sum, ctx: Context) -> None:
        self.most.value = max(self.most.value, event.cents)
        ctx.emit(Sum(ctx.key, self.most.value))


def topology_of(cards: KeyedProcess[Any, Any], *, notes_are_clock: bool, chain: bool) -> Topology:
    inputs = {"sales": Input("sales", "card", "at"), "notes": Input("notes", "card", "at", notes_are_clock)}
    topology = read(inputs, control="control").process(cards)
    return topology.key_by("shop").process(Shops()) if chain else topology


def steps_of(rng: random.Random) -> list[Any]:
    """Batches, ticks, limits and restarts, as they may come."""
    now = wall = at("10:00")
    steps: list[Any] = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.random()
        now += rng.choice([0, 1, 999, 5_000, 30_000])
        if kind < 0.1:
            steps.append(Restart())
        elif kind < 0.2:
            wall += rng.choice([0, 3_000, 9_000])
            steps.append(Tick(wall))
        elif kind < 0.3:
            steps.append(Control(Limit(rng.choice([1, 50]))))
        else:
            batch = [
                _event(rng, now - rng.choice([0, 0, 1, 4_000, 60_000])) for _ in range(rng.randint(0, 5))
            ]
            steps.append(batch[0] if len(batch) == 1 else batch)
    return steps


def _event(rng: random.Random, when: int) -> Sale | Note:
    card = rng.choice("ab")
    if rng.random() < 0.3:
        return Note(card, when, rng.choice(["x", "\u2028"]))
    return Sale(card, rng.choice("st"), when, rng.choice([7, 10, 100]), received=when)


def by_hand(topology: Topology, steps: list[Any], bound: int) -> list[tuple[str, str, int, bytes]]:
    """The same with a test driver, whose own watermark follows what it is sent."""
    driver = TestDriver(topology, out_of_orderness_ms=bound)
    for step in steps:
        if isinstance(step, Restart):
            driver.restart()
        elif isinstance(step, Tick):
            driver.advance_processing_time(step.at)
        elif isinstance(step, Control):
            driver.broadcast(step.event)
        else:
            driver.receive(*(step if isinstance(step, list) else [step]))
    driver.drain()
    return [(e.output, e.key, e.event_time, e.payload) for e in driver.emissions]


def test_what_is_played_is_what_a_driver_gives_that_is_moved_by_hand() -> None:
    seen: Counter[str] = Counter()
    for seed in range(case_count(150)):
        rng = random.Random(seed)
        topology = topology_of(
            rng.choice([EarlyCards, OrderedCards])(), notes_are_clock=True, chain=rng.random() < 0.5
        )
        steps, bound = steps_of(rng), rng.choice([0, 1, 5_000])
        played = play(topology, steps, out_of_orderness=bound)
        found = [(e.output, e.key, e.event_time, e.payload) for b in played.batches for e in b.emitted]
        # The driver moves the watermark behind a batch, and not with it: the order within one is another.
        assert Counter(found) == Counter(by_hand(topology, steps, bound)), seed
        seen.update(output for output, *_ in found)
    assert {"main", "late", "dead_letters", "quiet", "OrderedCards.quiet", "EarlyCards.late"} <= {*seen}


def test_the_watermark_of_a_batch_is_what_the_clocks_before_it_make() -> None:
    """Worked out from the list of events once more; notes are no clock."""
    for seed in range(case_count(100)):
        rng = random.Random(seed)
        steps, bound = steps_of(rng), rng.choice([0, 5_000])
        topology = topology_of(EarlyCards(), notes_are_clock=False, chain=False)
        played = play(topology, steps, out_of_orderness=bound)
        for number, batch in enumerate(played.batches):
            before = [e for s in steps[:number] for e in (s if isinstance(s, list) else [s])]
            sales = [e.at for e in before if isinstance(e, Sale)]
            assert batch.watermark == (max(sales) - bound - 1 if sales else None)


def test_a_bounded_input_has_the_sums_of_its_events_and_nothing_late() -> None:
    for seed in range(case_count(100)):
        rng = random.Random(seed)
        steps = [s for s in steps_of(rng) if not isinstance(s, Restart | Tick | Control)]
        played = play(topology_of(OrderedCards(), notes_are_clock=True, chain=True), steps, bounded=True)
        events = [e for s in steps for e in (s if isinstance(s, list) else [s])]
        sales = sorted(
            (e for e in events if isinstance(e, Sale) and e.cents != 7),
            key=lambda s: (s.at, msgspec.json.encode(s)),
        )
        most: dict[str, int] = {}
        for card in "ab":
            total = 0
            for sale in (s for s in sales if s.card == card):
                total += sale.cents
                most[sale.shop] = max(most.get(sale.shop, 0), total)
        told: dict[str, int] = {}
        for one in played.values():
            told[one.shop] = max(told.get(one.shop, 0), one.cents)
        assert told == most, seed
        assert played.values("OrderedCards.late") == played.values("late") == []
        failed = sum(isinstance(e, Sale) and e.cents == 7 for e in events)
        assert [d.error for d in played.values("OrderedCards.dead_letters")] == ["ValueError: seven"] * failed


class Closing(KeyedProcess[Sum, Sum]):
    """Tells a shop's last sum an hour later."""

    order = "event_time"
    last = value_state(int, default=0)

    def process(self, event: Sum, ctx: Context) -> None:
        self.last.value = event.cents
        ctx.timers.after(seconds(3_600), "close")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(Sum(ctx.key, self.last.value))
        self.last.clear()


def test_a_bounded_chain_ends_in_all_its_links() -> None:
    cards = topology_of(OrderedCards(), notes_are_clock=True, chain=False)
    sales = [Sale("a", "s", at("10:00"), 5), Sale("b", "t", at("10:30"), 8), Sale("a", "s", at("10:10"), 5)]
    played = play(cards.key_by("shop").process(Closing()), [sales], bounded=True)
    assert played.values() == [Sum("s", 10), Sum("t", 8)]


def test_a_clock_that_is_ahead_moves_the_watermark_no_further_than_when_its_event_was_received() -> None:
    sales = [Sale("a", "s", at("10:30"), 1, at("10:00")), Sale("b", "s", at("10:00:01"), 1, at("10:00:01"))]
    topology = topology_of(EarlyCards(), notes_are_clock=True, chain=False)
    assert len(play(topology, sales).values("late")) == 1
    held = play(topology, sales, arrived_at="received")
    assert held.values("late") == []
    assert [batch.after for batch in held.batches[:2]] == [at("10:00") - 1, at("10:00:01") - 1]


def test_without_an_end_what_waits_is_not_told() -> None:
    topology = topology_of(OrderedCards(), notes_are_clock=True, chain=False)
    assert play(topology, [Sale("a", "s", 1, 5)], drain=False).values() == []
    assert play(topology, [Sale("a", "s", 1, 5)]).values() == [Sum("s", 5)]


def test_bounds_are_told_as_keyed_takes_them() -> None:
    topology = topology_of(EarlyCards(), notes_are_clock=True, chain=False)
    for bound in ("5 seconds", 5_000, timedelta(seconds=5)):
        assert play(topology, [], out_of_orderness=bound).plan.bound_ms == 5_000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: play(t, [], "flink"), "there is no engine 'flink': memory or spark"),
        (
            lambda t: play(t, [Restart()], bounded=True),
            "a bounded input is events alone, and a Restart is none",
        ),
        (
            lambda t: play(read(Input("x", RecordKey(), "at")).process(Alone()), []),
            "the key of the input 'x' has the record's key: events that are played have no record around "
            "them, so a key is fields of theirs",
        ),
        (
            lambda t: play(read(Input("x", [FirstOf(("card", RecordKey()))], "at")).process(Alone()), []),
            "the key of the input 'x' has card or the record's key: events that are played have no record "
            "around them, so a key is fields of theirs",
        ),
    ],
)
def test_what_cannot_be_played_is_refused_in_a_line(call: Any, message: str) -> None:
    with pytest.raises(PlaybackError) as refused:
        call(topology_of(EarlyCards(), notes_are_clock=True, chain=False))
    assert (str(refused.value), refused.value.exit_code) == (message, 2)


class Alone(KeyedProcess[Sale, Sale]):
    order = arrival(commutes=True)

    def process(self, event: Sale, ctx: Context) -> None:
        ctx.emit(event)


class Doubling(KeyedProcess[Sale, Sale]):
    order = arrival(commutes=True)

    def process(self, event: Sale, ctx: Context) -> None:
        event.cents *= 2
        ctx.emit(event)


def test_what_a_process_changes_in_its_event_does_not_change_what_is_played() -> None:
    topology, sales = read(Input("sales", "card", "at")).process(Doubling()), [Sale("a", "s", 1, 5)]
    assert [[sale.cents for sale in play(topology, sales).values()] for _ in range(2)] == [[10], [10]]
    assert sales == [Sale("a", "s", 1, 5)]


def test_an_output_that_is_not_there_is_named_with_those_that_are() -> None:
    topology = read(Input("sales", "card", "at")).process(Alone())
    with pytest.raises(KeyError, match="no output x; there are main, late, dead_letters"):
        play(topology, []).values("x")


def test_what_is_shown_has_every_kind_of_line(capsys: pytest.CaptureFixture[str]) -> None:
    topology = topology_of(EarlyCards(), notes_are_clock=True, chain=False)
    steps = [Sale("a", "s", at("10:00"), 5), Restart(), Control(Limit(1)), Tick(at("10:01")),
             Note("b", at("09:59"), "x"), Sale("a", "s", at("10:00:01"), 7)]  # fmt: skip
    play(topology, steps).show("-- all")
    assert capsys.readouterr().out.splitlines() == [
        "-- all",
        "batch 0",
        "  in     10:00:00  Sale card=a shop=s cents=5 received=0",
        "  out    10:00:00  Sum shop=s cents=5",
        "restart: the query ends, and another goes on from its checkpoint",
        "batch 1, watermark 09:59:59.999",
        "  rule   Limit cents=1",
        "batch 2, watermark 09:59:59.999",
        "  tick   10:01:00",
        "  quiet  10:00:00  wall 5",
        "batch 3, watermark 09:59:59.999",
        "  in     09:59:00  Note card=b text=x",
        '  late   09:59:00  notes {"type":"note","card":"b","at":1767607140000,"text":"x"}, 59.999 s behind',
        "batch 4, watermark 09:59:59.999",
        "  in     10:00:01  Sale card=a shop=s cents=7 received=0",
        "  dead_letters  10:00:01  process_error: ValueError: seven",
        "the input ends",
        "  quiet  10:00:20  quiet 5",
        "",
    ]
    play(topology, steps).show(inputs=False)
    shown = capsys.readouterr().out
    assert not any(word in shown for word in ("batch", "restart", " in ", "tick", "rule"))


def test_times_are_read_and_written_as_a_clock_shows_them() -> None:
    for text in ("00:00:00", "10:05:07", "10:05:07.250", "day 4 23:59:59.999"):
        assert clock_text(at(text)) == text
    assert clock_text(at("09:00") - 36_000_000) == "day 0 23:00:00"


def test_records_of_all_shapes_are_told_in_one_line() -> None:
    class Part(msgspec.Struct):
        x: float

    class Whole(msgspec.Struct):
        at: int
        parts: list[Part]
        names: dict[str, int]
        none: None = None

    record = Whole(at("10:00"), [Part(0.1 + 0.2)], {"a": 1})
    assert record_line(record) == "Whole at=10:00:00 parts=[(Part x=0.3)] names={a: 1} none=None"
    assert record_line("text") == "text"

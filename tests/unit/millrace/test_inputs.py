"""Processes with several inputs: which input an event came by, and what is kept of that."""

from __future__ import annotations

import base64
import random
from typing import ClassVar

import msgspec
import numpy as np
import pytest

from millrace import KeyedProcess, arrival, hours, list_state, value_state
from millrace.host.memory_chain import MemoryChain
from millrace.inputs import MOST_INPUTS, NO_INPUT, InputError, Inputs, unmarked
from millrace.process import ProcessDefinitionError
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, same_as_batch


class Reading(msgspec.Struct):
    value: float


class Status(msgspec.Struct):
    text: str


class Seen(KeyedProcess[Reading | Status, str]):
    order = "event_time"
    inputs: ClassVar = {"status": Status, "readings": Reading}

    def process(self, event, ctx):
        ctx.emit(f"{ctx.event_time} {ctx.input} {event}")
        ctx.timers.at(ctx.event_time + 1, "after")

    def on_timer(self, timer, ctx):
        ctx.emit(f"timer by {ctx.input!r}")


class Both(KeyedProcess[Reading, str]):
    """A join with itself: both inputs are of one type."""

    order = arrival(commutes=True)
    inputs: ClassVar = {"left": Reading, "right": Reading}
    kept = list_state(str, ttl=hours(1))

    def process(self, event, ctx):
        if event.value < 0:
            self.kept.append("never seen")
            raise ValueError("negative")
        self.kept.append(f"{ctx.input} {event.value:g}")
        ctx.emit(", ".join(sorted(self.kept)))


def test_the_context_names_the_input_and_ties_are_in_the_order_of_inputs():
    driver = TestDriver(Seen())
    driver.send_batch([("a", 5, Reading(1.0)), ("a", 5, Status("on")), ("a", 4, Reading(0.5))])
    driver.drain()

    assert driver.values() == [
        "4 readings Reading(value=0.5)",
        "5 status Status(text='on')",
        "5 readings Reading(value=1.0)",
        "timer by ''",
    ]


def test_an_event_that_waits_keeps_its_input_through_a_restart():
    driver = TestDriver(Seen(), out_of_orderness_ms=10)
    driver.send("a", Status("on"), at=5)
    driver.restart()
    driver.drain()

    assert driver.values()[0] == "5 status Status(text='on')"


def test_inputs_of_one_type_are_told_apart_by_name():
    driver = TestDriver(Both())
    driver.send("a", Reading(1.0), at=1, input="left")
    driver.send("a", Reading(2.0), at=2, input="right")

    assert driver.values() == ["left 1", "left 1, right 2"]


class Heard(msgspec.Struct):
    about: str


class Tell(KeyedProcess[Reading, Heard]):
    """The first of a chain: two inputs of one type, and events that wait for their turn."""

    order = "event_time"
    inputs: ClassVar = {"left": Reading, "right": Reading}

    def process(self, event, ctx):
        if event.value < 0:
            raise ValueError("negative")
        ctx.emit(Heard(f"{ctx.input} {event.value:g}"))


class Count(KeyedProcess[Heard, str]):
    order = "event_time"

    def process(self, event, ctx):
        ctx.emit(event.about)


def test_the_first_of_a_chain_may_have_several_inputs():
    chain = MemoryChain(Tell(), ("about", Count()), out_of_orderness_ms=10)
    emitted = chain.run_batch(
        [
            ("a", 3, Reading(3.0), "right"),
            ("a", 1, Reading(1.0), "left"),
            ("a", 2, Reading(-1.0), "right"),
        ]
    )
    emitted += chain.drain()

    assert sorted(e.payload for e in emitted if e.output == "main") == [b'"left 1"', b'"right 3"']
    (letter,) = [msgspec.json.decode(e.payload) for e in emitted if e.output == "Tell.dead_letters"]
    assert base64.b64decode(letter["value"]) == b'{"value":-1.0}'


def test_a_failing_event_is_put_aside_as_it_came_and_the_others_are_done_again():
    driver = TestDriver(Both())
    driver.send_batch(
        [
            ("a", 1, Reading(1.0), "right"),
            ("a", 2, Reading(-1.0), "left"),
            ("a", 3, Reading(3.0), "left"),
        ]
    )

    assert driver.values() == ["right 1", "left 3, right 1"]
    (letter,) = driver.values("dead_letters")
    assert letter["value"] == "eyJ2YWx1ZSI6LTEuMH0="  # {"value":-1.0}, without the input in front
    assert driver.state("a")["kept"] is not None


def test_a_late_event_says_by_which_input_it_came():
    driver = TestDriver(Seen())
    driver.send("a", Reading(1.0), at=100)
    driver.send("a", Status("off"), at=50)

    assert driver.values("late") == [
        {"input": "status", "event": '{"text":"off"}', "lateness_ms": 49, "watermark_ms": 99}
    ]


@pytest.mark.parametrize(
    ("event", "named", "says"),
    [
        (Reading(1.0), None, "the inputs left, right: say by which one a Reading comes"),
        (Reading(1.0), "middle", "no input 'middle'; it has left, right"),
    ],
)
def test_an_unknown_input_is_refused(event, named, says):
    with pytest.raises(InputError, match=says):
        TestDriver(Both()).send("a", event, at=1, input=named)


def test_too_many_inputs_are_refused():
    with pytest.raises(ProcessDefinitionError, match="more than 26 inputs"):

        class Many(KeyedProcess[Reading, str]):
            order = "event_time"
            inputs: ClassVar = {f"i{n}": Reading for n in range(27)}


def test_the_inputs_of_a_process_of_the_most_keep_their_order_and_none_looks_like_json():
    names = [f"i{n}" for n in range(MOST_INPUTS)]
    inputs = Inputs(dict.fromkeys(names, Reading), "Many")
    marked = [inputs.mark(b'{"value":1.0}', rank) for rank in range(MOST_INPUTS)]
    assert marked == sorted(set(marked))
    assert [inputs.name_of(raw) for raw in marked] == names
    for raw in marked:
        assert inputs.decode(raw) == Reading(1.0)
        assert inputs.only([raw, raw]).decode(unmarked(raw)) == Reading(1.0)
        assert not raw[:1].isspace()
        assert raw[:1] < b" "
    for text in (b"\t1", b"\n1", b"\r1", b" 1", b"\x0b", b"\x0c"):
        assert unmarked(text) == text


def test_an_event_of_no_input_breaks_the_contract_and_keeps_its_bytes():
    inputs = Inputs({"left": Reading, "right": Reading}, "Both")

    with pytest.raises(msgspec.ValidationError, match="it came by none of the inputs left, right"):
        inputs.decode(NO_INPUT + b'{"value":1.0}')
    assert unmarked(NO_INPUT + b'{"value":1.0}') == b'{"value":1.0}'


class Sums(KeyedProcess[Reading, float]):
    """What came by the left input, less what came by the right one."""

    order = arrival(commutes=True)
    inputs: ClassVar = {"left": Reading, "right": Reading}
    total = value_state(float, default=0.0, ttl=hours(1))

    def process(self, event, ctx):
        if event.value < 0:
            raise ValueError("negative")
        self.total.value += event.value if ctx.input == "left" else -event.value
        ctx.emit(self.total.value)


class SumsTogether(Sums):
    name = "Sums"
    batches: ClassVar = []

    def process_batch(self, batch):
        self.batches.append(len(batch))
        values = batch.column("value")
        if (values < 0).any():
            raise ValueError("negative")
        signed = np.where(np.array(batch.inputs) == "left", values, -values)
        totals, found = batch.read(self.total), []
        for key, value in zip(batch.key_of_row.tolist(), signed.tolist(), strict=True):
            totals[key] += value
            found.append(totals[key])
        batch.write(self.total, totals)
        batch.emit(found)


def test_a_batch_says_by_which_input_each_of_its_events_came():
    draw = random.Random(4)
    values = [draw.choice([1.0, 2.5, 4.0, -1.0 if n % 40 == 39 else 3.0]) for n in range(200)]
    events = [
        (draw.choice("abc"), n, Reading(value), draw.choice(["left", "right"]))
        for n, value in enumerate(values)
    ]
    found = {}
    for process in (Sums(), SumsTogether()):
        driver = TestDriver(process)
        for low in range(0, len(events), 20):
            driver.send_batch(events[low : low + 20])
            driver.restart()
        found[type(process)] = sorted(driver.emissions)

    assert SumsTogether.batches == [20] * 10
    assert found[SumsTogether] == found[Sums]


def test_any_order_any_cut_and_batch_give_the_same():
    events = [("a", n % 7, Reading(float(n)) if n % 3 else Status(str(n))) for n in range(30)]
    invariant(Seen(), events, bound_ms=10)
    same_as_batch(Seen(), events, bound_ms=10)

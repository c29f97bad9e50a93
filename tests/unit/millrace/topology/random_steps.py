"""Processes that tell the way of each event, and random topologies of them."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import msgspec

from millrace import Context, KeyedProcess, arrival, side_output, value_state
from millrace.topology import Input, Topology, read


class Item(msgspec.Struct, frozen=True):
    """What goes through all links; ``way`` says where it has been."""

    a: str
    b: int
    c: bool | None
    at: int
    way: str = ""


class Step(KeyedProcess[Item, Item]):
    """Adds itself to the way, with how many of this input it has seen of the key; one in three goes aside."""

    order = arrival(in_order_per_key=True)
    aside = side_output(Item)
    seen = value_state(dict[str, int])

    def process(self, event: Item, ctx: Context) -> None:
        seen = self.seen.value or {}
        seen[ctx.input] = seen.get(ctx.input, 0) + 1
        self.seen.value = seen
        key = ctx.key if isinstance(ctx.key, str) else ",".join(ctx.key)
        now = msgspec.structs.replace(
            event, way=f"{event.way}>{self.name}[{key}]{ctx.input}{seen[ctx.input]}", b=event.b + 1
        )
        if now.b % 3:
            ctx.emit(now)
        else:
            ctx.output(self.aside, now)


def step(name: str, inputs: int) -> Step:
    named = {f"i{n}": Item for n in range(inputs)} if inputs > 1 else {}
    cls = type(name, (Step,), {"name": name, "inputs": named, "event_type": Item, "output_type": Item})
    made: Step = cls()
    return made


KEYS: tuple[Any, ...] = ("a", "b", "c", ("a", "c"), ("b", "a"))
#: Keys that begin with what every step leaves as it is.
LOCAL_KEYS: tuple[Any, ...] = ("a", ("a", "c"), ("a", "b"))


def made(rng: random.Random, locality: str | None = None) -> Topology:
    """Return a random topology; with the locality ``a``, if any."""
    among = KEYS if locality is None else LOCAL_KEYS
    topology = read(Input("t", "a", "at"), locality=locality).process(step("L0", 1))
    for number in range(1, rng.randint(2, 5)):
        count = rng.choice([1, 1, 2, 3])
        wide = rng.random() < 0.4
        keys = [rng.choice([k for k in among if isinstance(k, tuple) == wide]) for _ in range(count)]
        outputs = [rng.choice(list_outputs(topology)) for _ in range(count)]
        if count == 1:
            keyed = topology.key_by(keys[0], output=outputs[0])
        else:
            keyed = topology.key_by(
                {f"i{n}": key for n, key in enumerate(keys)},
                output={f"i{n}": output for n, output in enumerate(outputs)},
            )
        topology = keyed.process(step(f"L{number}", count))
    tables = {output: f"t{n}" for n, output in enumerate(list_outputs(topology)) if rng.random() < 0.5}
    return topology.write(tables=tables)


def list_outputs(topology: Topology) -> list[str]:
    """All that any link emits, also what others take."""
    last = topology.links[-1].name
    return [
        output if link.name == last else f"{link.name}.{output}"
        for link in topology.links
        for output in ("main", "aside")
    ]


def counted(
    found: Counter[tuple[str, str]], topology: Topology
) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """Return the ways without their numbers, and what the last steps counted, where all of that comes out.

    Which of a key's records of one instant comes first is not said, so the number of a way is not, either.
    """
    last = topology.links[-1].name
    whole = {
        link.name
        for link in topology.links
        if {o if link.name == last else f"{link.name}.{o}" for o in ("main", "aside")} <= {*topology.outputs}
    }
    ways, counts = Counter[tuple[str, str]](), Counter[str]()
    for output, way in found.elements():
        ways[output, re.sub(r"\](i\d)?\d+", r"]\1", way)] += 1
        step = way.rpartition(">")[2]
        if step.partition("[")[0] in whole:
            counts[step] += 1
    return ways, counts

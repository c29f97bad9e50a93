"""Random topologies in memory against an evaluation that knows nothing of batches, hosts or rows."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, ClassVar

import msgspec
import pytest

from millrace import Context, KeyedProcess, arrival
from millrace.host.memory_chain import MemoryChain
from millrace.topology import Input, Topology, read
from tests.cases import case_count
from tests.unit.millrace.topology.random_steps import Item, counted, made, step

CASES = case_count(150)


def text(value: Any) -> str | None:
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


class Evaluation:
    """Every event through all links before the next one comes, in the order of the links."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.seen: dict[tuple[str, tuple[Any, ...], str], int] = {}
        self.out: Counter[tuple[str, str]] = Counter()
        self.without_key = 0

    def take(self, item: Item) -> None:
        emitted: dict[tuple[str, str], list[Item]] = {}
        for link in self.topology.links:
            taken = [(t.input, t.key, e) for t in link.takes for e in emitted.get((t.link, t.output), [])]
            if not link.takes:
                taken = [("", ("a",), item)]
            for name, key, event in sorted(taken, key=lambda x: x[0]):
                self._one(
                    link.name, name, tuple(text(getattr(event, field)) for field in key), event, emitted
                )
        for (link_name, output), found in emitted.items():
            last = self.topology.links[-1].name
            full = output if link_name == last else f"{link_name}.{output}"
            if full in self.topology.outputs:
                self.out.update((full, e.way) for e in found)

    def _one(self, link: str, name: str, key: tuple[Any, ...], event: Item, emitted: Any) -> None:
        if None in key:
            self.without_key += 1
            return
        place = link, key, name
        self.seen[place] = self.seen.get(place, 0) + 1
        way = f"{event.way}>{link}[{','.join(key)}]{name}{self.seen[place]}"
        now = msgspec.structs.replace(event, way=way, b=event.b + 1)
        emitted.setdefault((link, "main" if now.b % 3 else "aside"), []).append(now)


def test_random_topologies_give_what_a_plain_evaluation_gives() -> None:
    taken_twice = 0
    for seed in range(CASES):
        rng = random.Random(seed)
        topology = made(rng)
        chain, wanted = MemoryChain(topology), Evaluation(topology)
        out: Counter[tuple[str, str]] = Counter()
        for at in range(rng.randint(1, 25)):
            item = Item(rng.choice("xyz"), rng.randrange(5), rng.choice([True, False, None]), at)
            for e in chain.run_batch([(item.a, at, item)]):
                name = e.output.rpartition(".")[2]
                if name in ("main", "aside"):
                    out[e.output, msgspec.json.decode(e.payload)["way"]] += 1
                elif name == "dead_letters":
                    out["without", "key"] += 1
            wanted.take(item)
            if rng.random() < 0.1:
                chain.restart()
        missing = out.pop(("without", "key"), 0)
        assert counted(out, topology) == counted(wanted.out, topology), seed
        # A later link's dead letters come out only where nobody writes elsewhere: all of them do here.
        assert missing == wanted.without_key, seed
        taken = [(t.link, t.output) for link in topology.links for t in link.takes]
        taken_twice += len(taken) != len(set(taken))
    assert taken_twice > CASES // 10


@pytest.mark.parametrize("size", [3, 50])
def test_cuts_change_no_count(size: int) -> None:
    """In larger batches keys are handled one after the other: what each has seen stays as much."""
    for seed in range(CASES // 3):
        rng = random.Random(seed)
        topology = made(rng)
        items = [Item(rng.choice("xyz"), rng.randrange(5), True, at) for at in range(50)]
        totals = []
        for step_size in (1, size):
            chain, total = MemoryChain(topology), Counter[str]()
            for at in range(0, 50, step_size):
                batch = [(item.a, item.at, item) for item in items[at : at + step_size]]
                total.update(e.output for e in chain.run_batch(batch))
            totals.append(total)
        assert totals[0] == totals[1], seed


class Both(KeyedProcess[Item, str]):
    order = arrival(commutes=True)
    inputs: ClassVar = {"one": Item, "other": Item}

    def process(self, event: Item, ctx: Context) -> None:
        ctx.emit(f"{ctx.input} {ctx.key}")


def test_an_output_may_come_by_two_inputs_with_two_keys() -> None:
    topology = (
        read(Input("t", "a", "at"))
        .process(step("L0", 1))
        .key_by({"one": "a", "other": "b"}, output={"one": "main", "other": "main"})
        .process(Both())
    )
    found = MemoryChain(topology).run_batch([("x", 1, Item("x", 0, None, 1))])
    assert sorted(e.payload for e in found) == [b'"one x"', b'"other 1"']

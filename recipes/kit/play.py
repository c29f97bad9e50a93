"""A recipe's input as steps, played as batches on either engine, with what came out of each.

A step is a micro-batch: on Spark it is a file of a folder that is read as a stream. The watermark moves
between two batches, as it does there; :func:`turns` says how far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from millrace import KeyedProcess, Late
from millrace.dead_letters import DeadLetter
from millrace.host.groups import encode_key, key_part
from millrace.host.memory import MemoryHost
from millrace.host.memory_chain import MemoryChain
from millrace.host.runner import Row
from millrace.host.system import Drain, Tick
from millrace.process import LateInput
from millrace.time import NO_WATERMARK

#: The end of a plan's input.
END: Final = Drain("recipe")


@dataclass(frozen=True)
class Control:
    """A step: a control event, for every key."""

    event: Any


@dataclass(frozen=True)
class Restart:
    """A step: the query ends here, and another goes on from its checkpoint."""


@dataclass(frozen=True)
class Plan:
    """What is played.

    Attributes:
        steps: An event, a list of events that come together, a ``Tick``, a ``Control`` or a ``Restart``.
        by: The field (or fields) that is the key.
        event_time: The field that is the event time, UTC ms.
        bound_ms: How far events come out of order, ms.
        drain: Whether the input ends in a drain, so that everything that waits comes out.
        bounded: Whether all of it is there, to be handled at once, as a table is.
        links: The processes; all but the first with the field that is their key.
        arrived_at: The field that says when an event was received, UTC ms; "": that is not known.
    """

    steps: Sequence[Any]
    by: tuple[str, ...]
    event_time: str
    bound_ms: int
    drain: bool
    bounded: bool = False
    links: tuple[tuple[tuple[str, ...], KeyedProcess[Any, Any]], ...] = ()
    arrived_at: str = ""

    @property
    def outputs(self) -> dict[str, tuple[KeyedProcess[Any, Any], Any]]:
        """Every output: the process that emits it and the type of its records, as they are told."""
        found: dict[str, tuple[KeyedProcess[Any, Any], Any]] = {}
        for number, (_, process) in enumerate(reversed(self.links)):
            own = {"main": process.output_type, **{tag.name: tag.type for tag in process.side_outputs}}
            if number:
                del own["main"]  # the events of the next process
            led = f"{process.name}." if number else ""
            found |= {f"{led}{name}": (process, tp) for name, tp in own.items()}
            found[f"{led}late"] = (process, LateInput if process.inputs else Late)
            found[f"{led}dead_letters"] = (process, DeadLetter)
        return found

    @property
    def whole(self) -> list[Any]:
        """All events."""
        return [event for step in self.steps for event in self.events(step)]

    @property
    def has_controls(self) -> bool:
        """Whether something else than events is among the steps."""
        return any(isinstance(step, Tick | Control) for step in self.steps)

    def events(self, step: Any) -> list[Any]:
        """Return the events of a step; none where it is something else."""
        if isinstance(step, Tick | Control | Restart | Drain | None):
            return []
        return list(step) if isinstance(step, list | tuple) else [step]

    def key(self, event: Any) -> Any:
        """Return an event's key as a process sees it."""
        parts = tuple(key_part(getattr(event, name)) for name in self.by)
        return parts[0] if len(parts) == 1 else parts

    def time(self, event: Any) -> int:
        """Return an event's time, ms."""
        return int(getattr(event, self.event_time))

    def arrived(self, event: Any) -> int | None:
        """Return when an event was received, ms, where that is known."""
        return int(getattr(event, self.arrived_at)) if self.arrived_at else None

    def plausible(self, event: Any) -> int:
        """Return an event's time as the watermark believes it, ms: no later than it was received."""
        arrived = self.arrived(event)
        return self.time(event) if arrived is None else min(self.time(event), arrived)


class Out(NamedTuple):
    """One record that came out."""

    output: str
    key: str
    event_time: int
    on_time: bool
    payload: bytes


class Turn(NamedTuple):
    """A batch that is to come: its step, the watermark by which it is judged, and the one it makes."""

    step: Any
    watermark: int | None
    after: int | None = None


#: Told of every batch: what it was, and what came out of it.
Teller = Callable[[Turn, list[Out]], None]


def turns(plan: Plan) -> Iterator[Turn]:
    """Yield the batches of a plan, each with the watermark that those before it have made."""
    reached: int | None = None
    for step in (*plan.steps, *([END] if plan.drain else [])):
        before = reached
        times = [plan.plausible(event) - plan.bound_ms - 1 for event in plan.events(step)]
        reached = max(times if before is None else [before, *times], default=None)
        yield Turn(step, before, reached)


def play_in_memory(plan: Plan, tell: Teller) -> None:
    """Play a plan on the in-memory host."""
    if plan.bounded:
        tell(Turn(plan.whole, None), _at_once(plan))
        return
    host = _host(plan)
    for turn in turns(plan):
        step = turn.step
        if isinstance(step, Restart):
            host = _restarted(host, plan)
            tell(turn, [])
            continue
        if isinstance(step, Drain):
            emissions = host.drain()
        elif isinstance(step, Tick):
            emissions = host.advance_processing_time(step.at)
        elif isinstance(step, Control):
            emissions = host.broadcast(step.event)
        else:
            first = host.hosts[0] if isinstance(host, MemoryChain) else host
            rows = first.rows_of([(plan.key(e), plan.time(e), e) for e in plan.events(step)])
            emissions = host.run_rows(rows, to=NO_WATERMARK if turn.after is None else turn.after)
        tell(turn, [Out(e.output, e.key, e.event_time, e.on_time, e.payload) for e in emissions])


def _at_once(plan: Plan) -> list[Out]:
    """Return what comes of a bounded input."""
    host = MemoryHost(plan.links[0][1])
    rows: dict[str, list[Row]] = {}
    for number, event in enumerate(plan.whole):
        parts = plan.key(event)
        text = encode_key((parts,) if isinstance(parts, str) else parts)
        raw = msgspec.json.encode(event)
        rows.setdefault(text, []).append(Row(plan.time(event), raw, f"memory:0:{number}", event))
    host.runner.run_bounded(host.store, rows, plan.bound_ms)
    return [Out(e.output, e.key, e.event_time, e.on_time, e.payload) for e in host.take()]


def _host(plan: Plan) -> MemoryHost | MemoryChain:
    (_, first), *links = plan.links
    if not links:
        return MemoryHost(first, out_of_orderness_ms=plan.bound_ms)
    return MemoryChain(first, *links, out_of_orderness_ms=plan.bound_ms)


def _restarted(host: MemoryHost | MemoryChain, plan: Plan) -> MemoryHost:
    """Return a host that knows only what the other one has kept."""
    if isinstance(host, MemoryChain):
        raise TypeError("a chain in memory cannot be restarted")
    fresh = MemoryHost(plan.links[0][1], out_of_orderness_ms=plan.bound_ms)
    fresh.restore(host.snapshot())
    return fresh


def decoded(plan: Plan, out: Out) -> Any:
    """Return a record as what it was when it was emitted."""
    process, tp = plan.outputs[out.output]
    record = msgspec.json.decode(out.payload, type=tp)
    if isinstance(record, Late):
        return msgspec.structs.replace(record, event=msgspec.convert(record.event, process.event_type))
    return record

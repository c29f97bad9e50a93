"""Plays a topology over events at hand, and keeps what came out, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, Self

import msgspec

from millrace.host.system import Drain, Tick
from millrace.playback.memory import play_in_memory
from millrace.playback.steps import Batch, Control, Emitted, Plan, PlaybackError, Restart, events_of
from millrace.playback.text import clock_text, record_line
from millrace.time.durations import to_ms
from millrace.topology import Topology


def play(
    topology: Topology,
    steps: Sequence[Any],
    engine: str = "memory",
    *,
    out_of_orderness: str | int | timedelta = 0,
    arrived_at: str = "",
    bounded: bool = False,
    drain: bool = True,
) -> Playback:
    """Play events through a topology, and return what came out.

    Args:
        topology: Inputs and processes, as :func:`millrace.topology.read` begins them; keys are fields of the
            events. An event comes by the input that its type tells.
        steps: The stream. An event is a batch of its own, a list of events is one batch;
            :class:`Control`, :class:`Tick` and :class:`Restart` stand among them.
        engine: ``memory``: in milliseconds, without Java. ``spark``: a streaming query over a folder of
            files, one a batch, on the session that runs, or on
            :func:`millrace.runtime.session.local_session`.
        out_of_orderness: How far events may come out of order, as :func:`millrace.keyed` takes it.
        arrived_at: Field that says when an event was received, UTC ms: one whose own time is later moves the
            watermark no further than that. "": that is not known.
        bounded: The input is a table: all is handled at once, and nothing is late.
        drain: Whether the input ends: the watermark then goes to the end of time, and every timer fires.

    Raises:
        PlaybackError: There is no such engine, or a step or key that cannot be played.
        InputError: An event is of no input.

    Example:
        >>> import msgspec
        >>> from millrace import KeyedProcess, arrival, play, value_state
        >>> from millrace.playback import at
        >>> from millrace.topology import Input, read
        >>> class Payment(msgspec.Struct):
        ...     user: str
        ...     at: int
        ...     amount: float
        >>> class Balance(KeyedProcess[Payment, float]):
        ...     order = arrival(commutes=True)
        ...     total = value_state(float, default=0.0)
        ...     def process(self, event, ctx):
        ...         self.total.value += event.amount
        ...         ctx.emit(self.total.value)
        >>> balances = read(Input("payments", key="user", event_time="at")).process(Balance())
        >>> payments = [Payment("ann", at("10:00"), 150), Payment("ann", at("10:05"), 100)]
        >>> played = play(balances, payments).show()
        batch 0
          in    10:00:00  Payment user=ann amount=150
          out   10:00:00  150.0
        batch 1, watermark 09:59:59.999
          in    10:05:00  Payment user=ann amount=100
          out   10:05:00  250.0
        the input ends: nothing waits
        <BLANKLINE>
        >>> played.values()
        [150.0, 250.0]
    """
    plan = Plan(topology, steps, to_ms(out_of_orderness), arrived_at, bounded, drain)
    if engine == "memory":
        return Playback(plan, list(play_in_memory(plan)))
    if engine != "spark":
        raise PlaybackError(f"there is no engine '{engine}': memory or spark")
    from millrace.playback.spark import play_on_spark

    return Playback(plan, play_on_spark(plan))


@dataclass(frozen=True)
class Playback:
    """What was played, and what came out; made by :func:`play`.

    Attributes:
        plan: The topology and the steps.
        batches: What came out, by batch.
    """

    plan: Plan
    batches: Sequence[Batch] = field(repr=False)

    def values(self, output: str = "main") -> list[Any]:
        """Return the records of an output, as they were emitted, in order of batch, event time and key.

        Raises:
            KeyError: There is no such output.
        """
        if output not in self._decoders:
            raise KeyError(f"no output {output}; there are {', '.join(self._decoders)}")
        return [
            self._decoders[output](one.payload)
            for batch in self.batches
            for one in self._sorted(batch.emitted)
            if one.output == output
        ]

    def show(self, title: str = "", *, inputs: bool = True, write: Callable[[str], object] = print) -> Self:
        """Print what went in and what came out, batch by batch.

        ``in`` is an event, ``out`` a record of the main output, any other word a side output; the time is
        the event time.

        Args:
            title: A line above it.
            inputs: Whether what went in, and where batches begin, is printed too.
            write: Takes a line.
        """
        for line in (*([title] if title else []), *self._lines(inputs=inputs), ""):
            write(line)
        return self

    @cached_property
    def _decoders(self) -> dict[str, Callable[[bytes], Any]]:
        return {name: msgspec.json.Decoder(tp).decode for name, tp in self.plan.topology.types.items()}

    def _sorted(self, emitted: Sequence[Emitted]) -> list[Emitted]:
        places = {output: place for place, output in enumerate(self._decoders)}
        return sorted(emitted, key=lambda e: (e.event_time, e.key, places[e.output]))

    def _lines(self, *, inputs: bool) -> Iterator[str]:
        width = max(len(name) for name in self._decoders if "." not in name and name != "dead_letters")
        number = 0
        for batch in self.batches:
            if isinstance(batch.step, Restart):
                if inputs:
                    yield "restart: the query ends, and another goes on from its checkpoint"
                continue
            if inputs:
                yield self._title(batch, number)
                for word, when, line in self._in(batch.step):
                    yield f"  {word:{width}}{f'  {when}' if when else ''}  {line}".rstrip()
            number += 1
            for one in self._sorted(batch.emitted):
                record = self._decoders[one.output](one.payload)
                word = "out" if one.output == "main" else one.output
                without = self._times[""] if word == "late" and "" in self._times else ""
                line = record_line(record, without=without)
                yield f"  {word:{width}}  {clock_text(one.event_time)}  {line}"

    @cached_property
    def _times(self) -> dict[str, str]:
        return {name: str(one.event_time) for name, one in self.plan.topology.inputs.items()}

    def _title(self, batch: Batch, number: int) -> str:
        if self.plan.bounded:
            return "all at once"
        if isinstance(batch.step, Drain):
            return "the input ends" + ("" if batch.emitted else ": nothing waits")
        mark = "" if batch.watermark is None else f", watermark {clock_text(batch.watermark)}"
        return f"batch {number}{mark}"

    def _in(self, step: Any) -> Iterator[tuple[str, str, str]]:
        """Yield what went in: a word, a time if it has one, and what it is."""
        if isinstance(step, Tick):
            yield "tick", clock_text(step.at), ""
        elif isinstance(step, Control):
            yield "rule", "", record_line(step.event)
        for event in events_of(step):
            without = self._times[self.plan.topology.input_of(event)]
            yield "in", clock_text(self.plan.time(event)), record_line(event, without=without)

"""Plays a plan on the in-memory host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy

from millrace.host.memory_chain import MemoryChain, event_of
from millrace.host.runner import Emission
from millrace.host.system import Drain, Tick
from millrace.playback.steps import Batch, Control, Emitted, Plan, Restart, events_of
from millrace.time import NO_WATERMARK


def play_in_memory(plan: Plan) -> Iterator[Batch]:
    """Yield every batch of a plan with what comes out of it."""
    chain = MemoryChain(plan.topology, out_of_orderness_ms=plan.bound_ms)
    for batch in plan.batches():
        if isinstance(batch.step, Restart):
            chain.restart()
            yield batch
        else:
            yield batch._replace(emitted=_emitted(_run(chain, plan, batch)))


def _run(chain: MemoryChain, plan: Plan, batch: Batch) -> list[Emission]:
    step = batch.step
    if isinstance(step, Drain):
        return chain.drain()
    if isinstance(step, Tick):
        return chain.advance_processing_time(step.at)
    if isinstance(step, Control):
        return chain.broadcast(step.event)
    # What a process changes in its event must not change the caller's list.
    events = [event_of(plan.topology, deepcopy(event)) for event in events_of(step)]
    if plan.bounded:
        return chain.run_bounded(events)
    rows = chain.hosts[0].rows_of(events)
    return chain.run_rows(rows, to=NO_WATERMARK if batch.after is None else batch.after)


def _emitted(emissions: Iterable[Emission]) -> list[Emitted]:
    return [Emitted(e.output, e.key, e.event_time, bool(e.on_time), e.payload) for e in emissions]

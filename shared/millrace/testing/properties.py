"""Properties that every process has, as checks for its tests: what comes out hangs on the events alone.

:func:`invariant` runs the same events in other orders, cuts, with restarts and repetitions, :func:`leaks`
looks at what is left when all is over, :func:`same_as_batch` compares the stream with a run over the
bounded input. Append outputs are compared as multisets, outputs of ``upsert_by`` by the last record of
each key; identities, the side output ``late`` and intermediate updates are no part of a result.

Nothing here needs hypothesis; with it, let it choose the events and the seed::

    @given(events=..., seed=st.integers(0, 1000))
    def test_any_order(events, seed):
        invariant(MyProcess(), events, bound_ms=10_000, seed=seed)
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from millrace.errors import UserError
from millrace.host.groups import context_key, encode_key
from millrace.host.memory import LiveStore, MemoryHost
from millrace.host.runner import Emission
from millrace.inputs import event_encoder
from millrace.process import KeyedProcess, order_of
from millrace.state.paged import owner_of
from millrace.testing.deliveries import Delivery, Event, cut, in_some_order, simpler

#: ``any``: whatever the bound allows; ``per_key``: each key's events stay in order of time.
Orders = Literal["any", "per_key"]
#: Name of an upserted output → the fields that, with the process's key, are the key of its records.
UpsertBy = Mapping[str, Sequence[str]]

#: How often a failing delivery is run again to find a smaller one.
_SHRINKS: Final = 400
_SHOWN: Final = 5
#: A tick of processing time after everything that a test may set on it.
_FAR_TICK: Final = 1 << 60


class NotInvariant(AssertionError):
    """A process gives another result for the same events, brought in another way."""


class UnfitEvents(UserError):
    """The events given to a check cannot show what it is to show."""


@dataclass(frozen=True)
class Leak:
    """What is kept of a key after everything has ended.

    Attributes:
        key: The key.
        state: Its states by name.
        timers: Its pending timers by name: times, ms.
    """

    key: Any
    state: dict[str, Any]
    timers: dict[str, int]


class _Check:
    """Runs deliveries of some events and compares what comes out."""

    def __init__(
        self,
        process: KeyedProcess[Any, Any],
        events: Iterable[Event],
        bound_ms: int,
        upsert_by: UpsertBy | None,
        ignore: Sequence[str],
    ) -> None:
        self.process = process
        # One order of time that all hosts share: ties by the bytes of the event.
        encode = event_encoder(process)
        self.events = sorted(events, key=lambda e: (e[1], encode(*e[2:])))
        self.bound_ms = bound_ms
        self.upsert_by = dict(upsert_by or {})
        self.ignore = frozenset(ignore)
        outputs = {"main", *(tag.name for tag in process.side_outputs)}
        unknown = sorted(set(self.upsert_by) - outputs)
        if unknown:
            raise UnfitEvents(
                f"upsert_by: {process.name} has no output '{unknown[0]}'; it has {', '.join(sorted(outputs))}"
            )

    def run(self, delivery: Delivery) -> list[Emission]:
        """Return what comes out of a delivery, the end of the input included."""
        host = MemoryHost(self.process, out_of_orderness_ms=self.bound_ms)
        emissions: list[Emission] = []
        for number, batch in enumerate(delivery.batches):
            emissions += host.run_batch([self.events[place] for place in batch])
            if number in delivery.restarts:
                kept = host.snapshot()
                host = MemoryHost(self.process, out_of_orderness_ms=self.bound_ms)
                host.restore(kept)
        return emissions + host.drain()

    def result(self, emissions: Iterable[Emission], *, repeats: bool = False) -> Counter[str]:
        """Return the final result: what may hang on the events only."""
        appended: Counter[str] = Counter()
        last: dict[tuple[str, str, str], str] = {}
        for e in emissions:
            if e.output == "late":
                continue
            record = msgspec.json.decode(e.payload)
            if e.output == "dead_letters":
                if repeats and record["reason"] == "duplicate":
                    continue
                record = {name: record[name] for name in ("reason", "stage", "error", "key", "value")}
            elif isinstance(record, dict):
                record = {name: value for name, value in record.items() if name not in self.ignore}
            key = context_key(e.key)
            if e.output in self.upsert_by:
                place = self._place(e.output, record)
                change = record.pop("change", "insert") if isinstance(record, dict) else "insert"
                if change == "delete":
                    last.pop((e.output, e.key, place), None)
                elif change != "update_before":
                    last[e.output, e.key, place] = f"{e.output} of {key!r}, last of {place}: {record}"
            else:
                appended[f"{e.output} of {key!r} at {e.event_time}: {record}"] += 1
        return appended + Counter(last.values())

    def _place(self, output: str, record: Any) -> str:
        fields = self.upsert_by[output]
        missing = [name for name in fields if not isinstance(record, dict) or name not in record]
        if missing:
            raise UnfitEvents(f"upsert_by: records of '{output}' have no field '{missing[0]}'")
        return ", ".join(f"{name}={record[name]!r}" for name in fields) or "the key"

    def finest(self, places: Iterable[int]) -> Delivery:
        """Return the delivery in order of time, an event a batch."""
        return Delivery(tuple((place,) for place in sorted(set(places))))

    def differs(self, delivery: Delivery, *, repeats: bool) -> bool:
        places = [place for batch in delivery.batches for place in batch]
        wanted = self.result(self.run(self.finest(places)), repeats=repeats)
        return self.result(self.run(delivery), repeats=repeats) != wanted

    def smaller(self, delivery: Delivery, *, repeats: bool) -> Delivery:
        """Return a delivery that still differs, with fewer events, batches and restarts."""
        left = _SHRINKS
        found = True
        while found:
            found = False
            for candidate in simpler(delivery):
                if left == 0:
                    return delivery
                left -= 1
                if self.differs(candidate, repeats=repeats):
                    delivery, found = candidate, True
                    break
        return delivery

    def refuse(self, delivery: Delivery, what: str, *, repeats: bool) -> None:
        """Raise what says how the smallest failing part of a delivery differs."""
        delivery = self.smaller(delivery, repeats=repeats)
        places = [place for batch in delivery.batches for place in batch]
        wanted = self.result(self.run(self.finest(places)), repeats=repeats)
        found = self.result(self.run(delivery), repeats=repeats)
        raise NotInvariant(
            "\n".join(
                [
                    f"{self.process.name}: {what}; {len(places)} events show it:",
                    *delivery.describe(self.events),
                    *_difference(wanted, found, "in order, an event a batch", "brought so"),
                ]
            )
        )


def _difference(wanted: Counter[str], found: Counter[str], left: str, right: str) -> list[str]:
    lines = []
    for name, more in ((left, wanted - found), (right, found - wanted)):
        lines.append(f"only {name}: {'nothing' if not more else ''}".rstrip())
        texts = sorted(more.elements())
        lines += [f"  {text}" for text in texts[:_SHOWN]]
        lines += [f"  … and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return lines


def invariant(
    process: KeyedProcess[Any, Any],
    events: Iterable[Event],
    *,
    bound_ms: int = 0,
    orders: Orders | None = None,
    runs: int = 10,
    cuts: bool = True,
    restarts: bool = True,
    duplicates: int = 0,
    upsert_by: UpsertBy | None = None,
    ignore: Sequence[str] = (),
    seed: int = 0,
) -> None:
    """Check that the result of a process does not depend on how its events are brought.

    The measure is the run in order of time with an event a batch. Of the others, the first brings
    everything in one batch, the rest are drawn from the seed.

    Args:
        process: The process.
        events: Tuples of key, event time (ms) and event, in any order.
        bound_ms: How far an event may come behind a later one, ms: the watermark's distance.
        orders: Orders to try; unless given ``per_key`` for a process that declares
            ``in_order_per_key`` and ``any`` for others.
        runs: How many deliveries to try.
        cuts: Whether to cut the events into batches in random places; else an event is a batch.
        restarts: Whether to go on from a snapshot between some of the batches.
        duplicates: How many events, chosen at random, come twice. The process must put a repeat aside
            without effect; dead letters with the reason ``duplicate`` are then no part of the result.
        upsert_by: For outputs whose records replace each other: output → fields that with the process's
            key say which. A field ``change`` is read as a changelog's: ``delete`` takes a record back.
        ignore: Fields of records that may differ, such as ``revision``.
        seed: Where the deliveries come from.

    Raises:
        NotInvariant: It shows the smallest failing delivery, what differs, and the seed.

    Example:
        >>> from millrace import KeyedProcess, arrival, value_state
        >>> class Last(KeyedProcess[str, str]):
        ...     order = arrival(commutes=True)          # which is not so
        ...     last = value_state(str)
        ...     def process(self, event, ctx):
        ...         ctx.emit(f"{event} after {self.last.value}")
        ...         self.last.value = event
        >>> events = [("a", 1, "x"), ("a", 2, "y"), ("b", 3, "z")]
        >>> invariant(Last(), events, orders="per_key")
        >>> try:
        ...     invariant(Last(), events, bound_ms=5)
        ... except NotInvariant as error:
        ...     print(error)
        Last: the result hangs on how events are brought (run 8, seed 0); 2 events show it:
          batch 0: 'a' at 2: 'y'
          batch 1: 'a' at 1: 'x'
        only in order, an event a batch:
          main of 'a' at 1: x after None
          main of 'a' at 2: y after x
        only brought so:
          main of 'a' at 1: x after y
          main of 'a' at 2: y after None
    """
    check = _Check(process, events, bound_ms, upsert_by, ignore)
    order = order_of(process)
    per_key = orders == "per_key" if orders else order.mode == "arrival" and order.in_order_per_key
    repeats = duplicates > 0
    places = range(len(check.events))
    wanted = check.result(check.run(check.finest(places)), repeats=repeats)
    rng = random.Random(seed)
    for number in range(runs):
        whole = number == 0 and cuts
        taken = in_some_order(rng, check.events, bound_ms, duplicates, per_key=per_key)
        delivery = Delivery((tuple(taken),)) if whole else cut(rng, taken, cuts=cuts, restarts=restarts)
        if check.result(check.run(delivery), repeats=repeats) != wanted:
            what = f"the result hangs on how events are brought (run {number}, seed {seed})"
            check.refuse(delivery, what, repeats=repeats)


def leaks(process: KeyedProcess[Any, Any], events: Iterable[Event], *, bound_ms: int = 0) -> list[Leak]:
    """Return what a process keeps of any key when its input has ended and every clock with it.

    Timers have fired and times to live have passed, so what is left would stay for ever.

    Args:
        process: The process.
        events: Tuples of key, event time (ms) and event; the order is that in which they come.
        bound_ms: How far the watermark stays behind the newest event, ms.

    Example:
        >>> from millrace import KeyedProcess, arrival, value_state
        >>> class Seen(KeyedProcess[str, str]):
        ...     order = arrival(commutes=True)
        ...     ever = value_state(int, default=0)
        ...     today = value_state(int, default=0, ttl=86_400_000)
        ...     def process(self, event, ctx):
        ...         self.ever.value += 1
        ...         self.today.value += 1
        >>> leaks(Seen(), [("a", 1, "x"), ("a", 2, "y")])
        [Leak(key='a', state={'ever': 2}, timers={})]
    """
    host = MemoryHost(process, out_of_orderness_ms=bound_ms)
    for event in events:
        host.run_batch([event])
    if process.needs_ticks():
        host.advance_processing_time(_FAR_TICK)
        host.drain()
        host.advance_processing_time(2 * _FAR_TICK)
    host.drain()
    host.take()
    empty = host.runner.layout.decode(host.runner.layout.encode(host.store.open(encode_key(("",))).entry))
    found = []
    for key, cell in host.store.cells.items():
        entry = host.runner.layout.decode(cell.body)
        names = [s.name for s in host.runner.layout.specs if getattr(entry, s.name) != getattr(empty, s.name)]
        timers = {t.name: t.at for t in (*entry.timers_, *entry.processing_timers_)}
        found.append(
            Leak(context_key(owner_of(key)[0]), {name: getattr(entry, name) for name in names}, timers)
        )
    return found


def same_as_batch(
    process: KeyedProcess[Any, Any],
    events: Iterable[Event],
    *,
    bound_ms: int = 0,
    oracle: Callable[[list[Event]], Iterable[Any]] | None = None,
    output: str = "main",
    upsert_by: UpsertBy | None = None,
    ignore: Sequence[str] = (),
) -> None:
    """Check that the stream gives what a run over the bounded input gives, and what an oracle says.

    A process with ``process_batch`` is run without it too: it must give what ``process`` gives.

    Args:
        process: The process.
        events: Tuples of key, event time (ms) and event, in any order.
        bound_ms: How far the watermark stays behind the newest event, ms.
        oracle: The records of ``output``, computed from all events in order of time in another way.
        output: The output that the oracle speaks of.
        upsert_by: See :func:`invariant`.
        ignore: See :func:`invariant`.

    Raises:
        NotInvariant: It shows what differs.

    Example:
        >>> import itertools
        >>> from millrace import KeyedProcess, arrival, value_state
        >>> class Sum(KeyedProcess[int, int]):
        ...     order = arrival(in_order_per_key=True)
        ...     total = value_state(int, default=0)
        ...     def process(self, event, ctx):
        ...         self.total.value += event
        ...         ctx.emit(self.total.value)
        >>> def running(events):
        ...     return itertools.accumulate(event for _, _, event in events)
        >>> same_as_batch(Sum(), [("a", 1, 5), ("a", 9, 6)], oracle=running)
    """
    check = _Check(process, events, bound_ms, upsert_by, ignore)
    emissions = check.run(check.finest(range(len(check.events))))
    stream = check.result(emissions)
    others = {"the run over the bounded input": check.result(_bounded(check))}
    if type(process).process_batch is not KeyedProcess.process_batch:
        whole = Delivery((tuple(range(len(check.events))),))
        others["process_batch over everything at once"] = check.result(check.run(whole))
        others["process, one by one"] = check.result(_one_by_one(check).run(whole))
    for name, found in others.items():
        if found != stream:
            lines = _difference(stream, found, "in the stream", f"in {name}")
            raise NotInvariant("\n".join([f"{process.name}: stream and {name} differ", *lines]))
    if oracle is not None:
        records = [msgspec.json.decode(e.payload) for e in emissions if e.output == output]
        wanted = [msgspec.json.decode(msgspec.json.encode(record)) for record in oracle(check.events)]
        left, right = Counter(map(repr, wanted)), Counter(map(repr, records))
        if left != right:
            lines = _difference(left, right, "by the oracle", "in the stream")
            raise NotInvariant("\n".join([f"{process.name}: stream and oracle differ", *lines]))


def _bounded(check: _Check) -> list[Emission]:
    """Run the events as the batch mode of the Spark host does."""
    host = MemoryHost(check.process)
    rows, runner = host.rows_of(check.events), host.runner
    runner.controls.load(None)
    runner.run_bounded(LiveStore(runner.layout), rows, check.bound_ms)
    return runner.emissions


def _one_by_one(check: _Check) -> _Check:
    """Return the check of the same process without its ``process_batch``."""
    process = check.process
    names = {"name": process.name, "stored_as": process.stored_as}
    hook = KeyedProcess.process_batch
    plain: Any = type(type(process).__name__, (type(process),), {**names, "process_batch": hook})
    made = plain.__new__(plain)
    made.__dict__.update(process.__dict__)
    found = object.__new__(_Check)
    found.__dict__.update({**check.__dict__, "process": made})
    return found

"""Properties that every process has, as checks for its tests: what comes out hangs on the events alone.

:func:`invariant` runs the same events in other orders, cuts, with restarts and repetitions, :func:`leaks`
looks at what is left when all is over, :func:`same_as_batch` compares the stream with a run over the
bounded input, :func:`same_as_process` what handles events together with what handles them one by one.
Append outputs are compared as multisets, outputs of ``upsert_by`` by the last record of each key;
identities, the side output ``late`` and intermediate updates are no part of a result, but for the last.

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
from millrace.host.memory import MemoryHost
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

    A process with ``process_batch`` or ``process_key`` is run without them too: they must give what
    ``process`` gives. :func:`same_as_process` looks closer.

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
    if hooks := _hooks(process):
        whole = Delivery((tuple(range(len(check.events))),))
        others[f"{' and '.join(hooks)} over everything at once"] = check.result(check.run(whole))
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


def same_as_process(
    process: KeyedProcess[Any, Any],
    events: Iterable[Event],
    *,
    bound_ms: int = 0,
    runs: int = 10,
    seed: int = 0,
) -> None:
    """Check that ``process_batch`` and ``process_key`` give just what ``process`` gives, one by one.

    The same batches are run with and without them. All that comes out is compared, with its identities and
    times, and what is kept of each key after every batch. Events come in any order: some of them late, some
    batches with all, and not all keys' events fit to be handled together.

    Args:
        process: A process that has one of the two, or both.
        events: Tuples of key, event time (ms) and event, in any order.
        bound_ms: How far the watermark stays behind the newest event, ms.
        runs: How many deliveries to try.
        seed: Where the deliveries come from.

    Raises:
        NotInvariant: It shows the first batches that differ.
        UnfitEvents: The process has neither, or of these events none could be handled together.

    Example:
        >>> from millrace import KeyedProcess, arrival, value_state
        >>> class Last(KeyedProcess[str, str]):
        ...     order = arrival(in_order_per_key=True)
        ...     last = value_state(str, default="")
        ...     def process(self, event, ctx):
        ...         ctx.emit(self.last.value + event)
        ...         self.last.value = event
        ...     def process_key(self, events, ctx):
        ...         for event in events:
        ...             ctx.emit(self.last.value + event)
        ...         self.last.value = event                                 # too late for the second
        >>> events = [("a", 1, "x"), ("a", 2, "y"), ("a", 3, "z")]
        >>> try:
        ...     same_as_process(Last(), events)
        ... except NotInvariant as error:
        ...     print(error)
        Last: process_key and process differ (run 0, seed 0), after batch 0:
          batch 0: 'a' at 1: 'x'; 'a' at 2: 'y'; 'a' at 3: 'z'
        only by process:
          main of 'a' at 2, on time, 98e3ee6308ad9afba651b95efa17eb8b: "xy"
          main of 'a' at 3, on time, 40693072b84f9a9e3c877c70c63f3be4: "yz"
        only by process_key:
          main of 'a' at 2, on time, 98e3ee6308ad9afba651b95efa17eb8b: "y"
          main of 'a' at 3, on time, 40693072b84f9a9e3c877c70c63f3be4: "z"
    """
    hooks = " and ".join(_hooks(process))
    if not hooks:
        raise UnfitEvents(f"{process.name} has neither process_batch nor process_key")
    check = _Check(process, events, bound_ms, None, ())
    plain = _one_by_one(check)
    rng, handled = random.Random(seed), 0
    for number in range(runs):
        taken = in_some_order(rng, check.events, bound_ms, 0, per_key=number % 2 == 0)
        if number % 3 == 2:
            rng.shuffle(taken)
        delivery = cut(rng, taken, cuts=True, restarts=False) if number else Delivery((tuple(taken),))
        hosts = [MemoryHost(of.process, out_of_orderness_ms=bound_ms) for of in (plain, check)]
        for place, batch in enumerate(delivery.batches):
            rows = [check.events[event] for event in batch]
            wanted, found = (_exactly(host, host.run_batch(rows)) for host in hosts)
            if found != wanted:
                what = f"{hooks} and process differ (run {number}, seed {seed}), after batch {place}:"
                shown = Delivery(delivery.batches[: place + 1]).describe(check.events)
                lines = _difference(wanted, found, "by process", f"by {hooks}")
                raise NotInvariant("\n".join([f"{process.name}: {what}", *shown, *lines]))
        handled += hosts[1].runner.together
    if not handled:
        raise UnfitEvents(f"{process.name}: {hooks} handled none of these events, which show nothing")


def _exactly(host: MemoryHost, emissions: Iterable[Emission]) -> Counter[str]:
    """Return all that came out, and what is kept of each key."""
    found: Counter[str] = Counter()
    for e in emissions:
        record = msgspec.json.decode(e.payload)
        if e.output == "dead_letters":
            del record["error_digest"]
        said = msgspec.json.encode(record).decode()
        timed = "on time" if int(e.on_time) == 1 else f"on time: {int(e.on_time)}"
        identity = "" if e.event_id is None else f", {e.event_id}"
        found[f"{e.output} of {context_key(e.key)!r} at {e.event_time}, {timed}{identity}: {said}"] += 1
    layout = host.runner.layout
    for key, cell in host.store.cells.items():
        entry = layout.decode(cell.body)
        kept = {s.name: getattr(entry, s.name) for s in layout.specs}
        timers = [*entry.timers_, *entry.processing_timers_, *getattr(entry, "stream_timers_", ())]
        found[f"kept of {key}: {kept}, {timers}, {entry.pending_}"] += 1
    return found


def _hooks(process: KeyedProcess[Any, Any]) -> list[str]:
    """Return which of the two the process has."""
    names = ("process_batch", "process_key")
    return [name for name in names if getattr(type(process), name) is not getattr(KeyedProcess, name)]


def _bounded(check: _Check) -> list[Emission]:
    """Run the events as the batch mode of the Spark host does."""
    return MemoryHost(check.process, out_of_orderness_ms=check.bound_ms).run_bounded(check.events)


def _one_by_one(check: _Check) -> _Check:
    """Return the check of the same process without its ``process_batch`` and ``process_key``."""
    process = check.process
    names = {"name": process.name, "stored_as": process.stored_as}
    hooks = {"process_batch": KeyedProcess.process_batch, "process_key": KeyedProcess.process_key}
    plain: Any = type(type(process).__name__, (type(process),), {**names, **hooks})
    plain.event_type, plain.output_type = process.event_type, process.output_type
    made = plain.__new__(plain)
    made.__dict__.update(process.__dict__)
    found = object.__new__(_Check)
    found.__dict__.update({**check.__dict__, "process": made})
    return found

"""`millrace bench latency`: from when an event is due until its answer can be read, app by app."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from millrace_apps.benchmarks.app_bench import Answers, AppBench, Key, Record
from millrace_apps.benchmarks.app_run import BenchRun, bench_run, read_ends, run_beside
from millrace_apps.benchmarks.report import percentiles
from millrace_apps.benchmarks.streams import BenchmarkFailed
from millrace_apps.benchmarks.warmth import WarmUp, told

#: Until what was read has been answered, also what waits for the clock to go on, s.
_SETTLE_S: Final = 5
_POLL_S: Final = 0.2
_LIMIT_S: Final = 300.0
#: For the batches of the warm-up, s.
_WARM_LIMIT_S: Final = 1_800.0


class Asked(NamedTuple):
    """A message that may be answered.

    Attributes:
        at_ms: Its event time.
        sent_ms: When the generator sent it.
    """

    at_ms: int
    sent_ms: int


class Answer(NamedTuple):
    """An answer as a reader can have it.

    Attributes:
        cause: What it answers.
        arrived_ms: When the broker had it.
        decided_ms: When it was decided on, event time; ``None``: at once.
    """

    cause: Key
    arrived_ms: int
    decided_ms: int | None


class Measured(NamedTuple):
    """What of a run counts.

    Attributes:
        begin_ms: What is due from then on, wall clock.
        end_ms: What is due before.
        warm_batches: Batches that had been committed when it began.
    """

    begin_ms: int
    end_ms: int
    warm_batches: int


def latency(
    bench: AppBench,
    rate: int,
    duration_s: int,
    warm_up: WarmUp,
    bootstrap: str | None,
    overrides: Sequence[str],
) -> dict[str, Any]:
    """Measure the time from when an event is due until its answer, or its row, can be read.

    The generator is an open loop: what it sends late counts against us. An answer can be read when it is in
    its topic; a row when the table's commit is there.

    Args:
        bench: What is known of the app.
        rate: Events per second.
        duration_s: Seconds measured.
        warm_up: What comes before them.
        bootstrap: A broker, or ``None`` for an embedded one.
        overrides: Settings of the app.
    """
    taken: dict[str, int] = {}
    committed = 0

    def note(batch: int, _counts: dict[str, int]) -> None:
        nonlocal committed
        committed = batch  # those before it
        taken.update(read_ends(run.root / "checkpoint", batch))

    with bench_run(bench, bootstrap, overrides, prepare=bench.paced, on_batch=note) as run:
        measured = _run_paced(run, rate, duration_s, warm_up, taken, lambda: committed)
        asked = asked_of(run.messages(bench.answers.stream), bench.answers)
        answers = answers_of(run.messages(bench.answers.topic), bench.answers)
        window_ms = bench.answers.window_ms(run.settings)
        rows = _row_latencies(run.root / "tables" / bench.timed_rows) if bench.timed_rows else []
    due = asked_with_due(asked, own_clock=bench.own_clock)
    begin, end = measured.begin_ms, measured.end_ms
    found = figures(bench.answers.name, due, answers, begin, window_ms, end_ms=end)
    if bench.timed_rows:
        kept = [ms for at, ms in rows if begin <= at < end]
        found = {"events": len(kept), "decision_ms": percentiles(kept) if kept else None, **found}
        found["correct"] = bool(kept)  # few transactions alert, in a short run none
    return {**found, "warm_batches": measured.warm_batches}


def _run_paced(
    run: BenchRun,
    rate: int,
    duration_s: int,
    warm_up: WarmUp,
    taken: Mapping[str, int],
    committed: Callable[[], int],
) -> Measured:
    """Run the job while the generator sends; stop it when all has been read: what is slow must count.

    Args:
        run: The run.
        rate: Events per second.
        duration_s: Seconds measured.
        warm_up: What comes before them.
        taken: Topic → how many of its events have been through a batch.
        committed: Returns how many batches have been committed.

    Returns:
        What of it counts.
    """
    found: list[Measured] = []

    def produce(ended: threading.Event) -> None:
        while not run.job.started.wait(_POLL_S):
            if ended.is_set():
                return
        # What counts is when a message was sent, by the clock.
        with run.generating({"rate": rate, "timestamps": "append"}, run.bench.live) as check:
            if not _warm(warm_up, committed, check, ended):
                return
            begin = time.time_ns() // 1_000_000
            found.append(Measured(begin, begin + duration_s * 1_000, committed()))
            if ended.wait(duration_s):
                return
        _await_read(run, taken, ended)
        time.sleep(_SETTLE_S)

    run_beside(run, produce)
    if not found:
        raise BenchmarkFailed("the app ended before it was warm")
    return found[0]


def _warm(
    warm_up: WarmUp, committed: Callable[[], int], check: Callable[[], None], ended: threading.Event
) -> bool:
    """Wait until the warm-up is over; return False when the job has ended before."""
    begin = time.monotonic()
    tell = told(lambda: f"warming up: {committed()} of {warm_up.batches} batches committed")
    while not warm_up.is_over(committed(), seconds := time.monotonic() - begin):
        if ended.wait(_POLL_S):
            return False
        check()
        tell()
        if seconds > _WARM_LIMIT_S:
            raise BenchmarkFailed(
                f"{committed()} of {warm_up.batches} batches of the warm-up were committed "
                f"in {_WARM_LIMIT_S:.0f} s: give fewer --warm-batches"
            )
    return True


def _await_read(run: BenchRun, taken: Mapping[str, int], ended: threading.Event) -> None:
    from millrace.kafka.admin import end_offsets

    ends = {run.topic(s): sum(end_offsets(run.broker, run.topic(s)).values()) for s in run.bench.streams}
    deadline = time.monotonic() + _LIMIT_S
    while any(taken.get(topic, 0) < end for topic, end in ends.items()):
        if ended.is_set():
            return
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"the app has not read everything {_LIMIT_S:.0f} s after the last event")
        time.sleep(_POLL_S)


def asked_of(messages: Iterable[tuple[Record, int]], answers: Answers) -> dict[Key, Asked]:
    """Return the messages that may be answered, by what they have in common with their answer.

    Args:
        messages: The stream's messages, each with the time at which it was sent, ms.
        answers: What answers what.
    """
    found: dict[Key, Asked] = {}
    for event, sent_ms in messages:
        key = answers.asked(event)
        if key is not None:
            found.setdefault(key, Asked(event["event_time_ms"], sent_ms))
    return found


def answers_of(messages: Iterable[tuple[Record, int]], answers: Answers) -> list[Answer]:
    """Return the answers, each with the time at which the broker had it.

    Args:
        messages: The topic's messages, each with that time, ms.
        answers: What answers what.
    """
    found = []
    for message, arrived_ms in messages:
        decided = None if answers.decided is None else answers.decided(message)
        found.append(Answer(answers.answered(message), arrived_ms, decided))
    return found


def asked_with_due(asked: dict[Key, Asked], *, own_clock: bool) -> dict[Key, tuple[Asked, int]]:
    """Return with each message when it was due, by the wall clock in ms.

    A generator that goes with the clock has that as event time. One with a time of its own never sends early:
    what it sent most promptly tells how far the two clocks are apart.

    Args:
        asked: The messages.
        own_clock: Whether event time is not the wall clock's.
    """
    apart = min((a.sent_ms - a.at_ms for a in asked.values()), default=0) if own_clock else 0
    return {key: (a, a.at_ms + apart) for key, a in asked.items()}


def figures(
    name: str,
    due: dict[Key, tuple[Asked, int]],
    answers: Iterable[Answer],
    begin_ms: int,
    window_ms: int = 0,
    *,
    end_ms: float = math.inf,
) -> dict[str, Any]:
    """Return the latencies of the first answer of each message that was due in the time that counts.

    Args:
        name: What an answer is; the fields begin with it.
        due: The messages, with when they were due.
        answers: The answers.
        begin_ms: Messages due before this time are the warm-up's.
        window_ms: Length of the window whose end an answer waits for, 0: none. What was not decided on at the
            first end, for want of something to answer with, counts from its own window's end alone.
        end_ms: Messages due from this time on do not count.
    """
    first: dict[Key, Answer] = {}
    without_cause = 0
    for answer in sorted(answers, key=lambda a: a.arrived_ms):
        if answer.cause in due:
            first.setdefault(answer.cause, answer)
        else:
            without_cause += 1
    counted = {key: of for key, of in due.items() if begin_ms <= of[1] < end_ms}
    measured = [(counted[key], a) for key, a in first.items() if key in counted]
    prompt = [(of, a) for of, a in measured if _wait_ms(of[0], a) <= window_ms]
    behind = [float(a.sent_ms - at) for a, at in counted.values()]
    found: dict[str, Any] = {
        f"{name}_ms": _percentiles(a.arrived_ms - at for (_, at), a in prompt),
        f"{name}_from_sent_ms": _percentiles(a.arrived_ms - of.sent_ms for (of, _), a in prompt),
        f"{name}s": len(prompt),
        "sent_behind_ms": _percentiles(behind),
        "asked": len(behind),
        "without_cause": without_cause,
        "correct": bool(prompt),
    }
    if window_ms:
        found[f"{name}_after_window_ms"] = _percentiles(
            a.arrived_ms - at - _wait_ms(of, a) for (of, at), a in measured
        )
        found |= {"window_ms": window_ms, "waited_for_another_window": len(measured) - len(prompt)}
    return found


def _wait_ms(asked: Asked, answer: Answer) -> int:
    """Return how long after its event time a message was decided on, ms of event time."""
    return 0 if answer.decided_ms is None else answer.decided_ms - asked.at_ms


def _percentiles(values: Iterable[float]) -> dict[str, float] | None:
    kept = [float(value) for value in values]
    return percentiles(kept) if kept else None


def _row_latencies(table: Path) -> list[tuple[int, float]]:
    """Return event time and latency (ms) of every row: the commit's time minus the event's."""
    import pyarrow.parquet as pq

    found = []
    for commit in sorted((table / "_delta_log").glob("*.json")):
        visible = commit.stat().st_mtime * 1000
        for line in commit.read_text().splitlines():
            added = json.loads(line).get("add")
            if added is not None and added["dataChange"]:  # others have rows that were there before
                times = pq.read_table(table / added["path"], columns=["event_time_ms"])["event_time_ms"]
                found += [(t, visible - t) for t in times.to_pylist()]
    return found

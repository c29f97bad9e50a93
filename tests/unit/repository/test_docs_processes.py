"""Every process that the pages define or use keeps the rules that it declares."""

from __future__ import annotations

import doctest
import enum
import random
import re
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from millrace import KeyedProcess, days, hours, minutes
from millrace.defined_process import DefinedProcess
from millrace.host.memory import MemoryHost
from millrace.operators.ranking import RankedWindows
from millrace.process import order_of
from millrace.testing.properties import invariant, same_as_batch
from millrace.windows.process import WindowProcess

ROOT = Path(__file__).resolve().parents[3]
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md"))
         if re.search(r"(>>>|\.\.\.) .*(KeyedProcess\[|TestDriver\()", page.read_text("utf-8"))]  # fmt: skip
#: Steps from an event to the next: within a bound, a timer's delay, over the end of a life.
STEPS = (0, 0, 1, 7, 500, 1_500, 5_000, minutes(2), minutes(11), hours(1), hours(25), days(91))
#: For timers that set themselves every second: a day of them is a hundred thousand callbacks.
SHORT_STEPS = (0, 0, 1, 7, 500, 1_500, 5_000, minutes(2))
BOUND = 2_000


def processes_of(page: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, KeyedProcess[Any, Any]]:
    """Run the examples of a page; return what they define, and what they run."""
    found: list[KeyedProcess[Any, Any]] = []
    begin = MemoryHost.__init__

    def noted(host: MemoryHost, process: KeyedProcess[Any, Any], **options: Any) -> None:
        found.append(process)
        begin(host, process, **options)

    monkeypatch.setattr(MemoryHost, "__init__", noted)
    page_test = doctest.DocTestParser().get_doctest(page.read_text("utf-8"), {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(page_test, clear_globs=False)
    assert runner.failures == 0
    monkeypatch.undo()
    run = {type(process) for process in found}
    for value in page_test.globs.values():
        its_own = (
            isinstance(value, type) and issubclass(value, KeyedProcess) and value.__module__ == "builtins"
        )
        if its_own and value not in run:
            found.append(value())
    return {f"{n}: {p.name}": p for n, p in enumerate({type(p): p for p in found}.values())}


def made(tp: Any, at: int, rng: random.Random, name: str = "") -> Any:
    """Return a value of a type; what is named like a time is the event's."""
    if typing.get_origin(tp) is typing.Annotated:
        return made(typing.get_args(tp)[0], at, rng, name)
    if typing.get_origin(tp) in (typing.Union, types.UnionType):
        return made(rng.choice(typing.get_args(tp)), at, rng, name)
    if typing.get_origin(tp) is Literal:
        return rng.choice(typing.get_args(tp))
    if tp is int:
        return at if name in ("at", "since") else rng.randint(0, 9)
    if tp is str:
        return rng.choice(["a", "b", "c", "s1", "x"])
    if tp is float:
        return float(rng.randint(-3, 9) * 25)  # sums of these are exact
    if tp is bool:
        return rng.random() < 0.5
    if tp in (type(None), None):
        return None
    if typing.get_origin(tp) is dict:
        _, values = typing.get_args(tp)
        return {rng.choice("ab"): made(values, at, rng) for _ in range(rng.randint(0, 2))}
    if typing.get_origin(tp) is list:
        return [made(typing.get_args(tp)[0], at, rng) for _ in range(rng.randint(0, 2))]
    if isinstance(tp, type) and issubclass(tp, enum.Enum):
        return rng.choice(list(tp))
    if isinstance(tp, type) and issubclass(tp, msgspec.Struct):
        fields = {f.name: made(f.type, at, rng, f.name) for f in msgspec.structs.fields(tp)}
        return tp(**fields)
    raise AssertionError(f"say how to make a {tp}")


def events_of(process: KeyedProcess[Any, Any], seed: int, steps: Sequence[int]) -> list[Any]:
    """Return events of two keys, some of one time and some far apart."""
    rng = random.Random(seed)
    at, events = 1_000_000, []
    for _ in range(25):
        at += rng.choice(steps)
        key = rng.choice(["a", "b"])
        if process.inputs:
            name = rng.choice(list(process.inputs))
            events.append((key, at, made(process.inputs[name], at, rng), name))
        else:
            events.append((key, at, made(process.event_type, at, rng)))
    return events


def measure(process: KeyedProcess[Any, Any]) -> dict[str, Any] | None:
    """Return which records of a process replace each other; ``None`` where they cannot be compared."""
    order = order_of(process)
    if isinstance(process, WindowProcess):
        definition = process.definition
        if not getattr(definition, "may_repeat", False):
            return {}
        if definition.trigger.discard:
            return None  # each says a part, and the parts are those of its batches
        row = ("window_start_ms", "item") if isinstance(process, RankedWindows) else ("window_start_ms",)
        return {"upsert_by": {"main": row}, "ignore": ("revision", "pane")}
    if order.corrects:
        if "left_id" not in {field.name for field in msgspec.structs.fields(process.output_type)}:
            return None  # its records are made by a function of the page, and do not say what they correct
        return {"upsert_by": {"main": ("left_id",)}, "ignore": ("revision",)}
    if order.mode == "arrival" and order.commutes and not isinstance(process, DefinedProcess):
        # What it says at every event is intermediate: what counts is what it says last.
        return {"upsert_by": dict.fromkeys(("main", *(tag.name for tag in process.side_outputs)), ())}
    return {}


def is_endless(process: KeyedProcess[Any, Any], events: list[Any]) -> bool:
    """Return whether a timer sets itself anew: in a stream it goes on with the time of all keys."""
    host = MemoryHost(process, out_of_orderness_ms=BOUND)
    host.run_batch(events)
    host.drain()
    return bool(host.runner.unfired)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_processes_of_a_page_keep_the_rules_they_declare(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = processes_of(page, monkeypatch)
    assert found
    broken = []
    for name, process in found.items():
        how = measure(process)
        if how is None or process.needs_ticks():
            continue  # what processing time does is no matter of the events alone
        endless = is_endless(process, events_of(process, 0, SHORT_STEPS))
        for seed in range(2):
            events = events_of(process, seed, SHORT_STEPS if endless else STEPS)
            try:
                invariant(process, events, bound_ms=BOUND, runs=4, seed=seed, **how)
                if not endless:
                    same_as_batch(process, events, bound_ms=BOUND, **how)
            except AssertionError as error:
                broken.append(f"{name} {seed}\n{error}")
                break
    assert not broken, "\n\n".join(broken)

"""What the ``main`` of a recipe is handed: streams to play on an engine, told line by line."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from millrace import KeyedProcess
from millrace.host.system import Drain, Tick
from millrace.time import ms
from millrace_apps.recipes.kit.play import Control, Out, Plan, Restart, Turn, decoded, play_in_memory
from millrace_apps.recipes.kit.text import clock, told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Engine = Literal["memory", "spark"]
#: Records by output, in the order in which they were told.
Results = dict[str, list[Any]]

_IN: Final = "in"


class Run:
    """One run of a recipe.

    Args:
        engine: ``memory``: the in-memory host, in milliseconds. ``spark``: a streaming query on a local
            session, over a folder of files that are read as a stream, one file a batch.
        say: Where lines go.
        session: A Spark session that runs already; by default one is started when it is needed.
    """

    def __init__(
        self,
        engine: Engine = "memory",
        say: Callable[[str], None] = print,
        session: SparkSession | None = None,
    ) -> None:
        self.engine = engine
        self.say = say
        #: What was played so far.
        self.plans: list[Plan] = []
        self._session = session
        self._stack = ExitStack()
        self._folder: Path | None = None
        self._folders = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def spark(self) -> SparkSession:
        """The Spark session of this run."""
        if self._session is None:
            from millrace_apps.recipes.kit.session import start_session

            print("starting Spark …", file=sys.stderr)
            self._session = self._stack.enter_context(start_session())
        return self._session

    def folder(self) -> Path:
        """Return a fresh folder, which is gone after the run."""
        if self._folder is None:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-")))
        self._folders += 1
        made = self._folder / str(self._folders)
        made.mkdir()
        return made

    def keyed(
        self,
        steps: Sequence[Any],
        *,
        by: str | tuple[str, ...],
        event_time: str = "at",
        out_of_orderness: timedelta | int = 0,
        drain: bool = True,
        bounded: bool = False,
        arrived_at: str = "",
    ) -> Keyed:
        """Give a stream a key and an event time, as :func:`millrace.keyed` does with a DataFrame.

        Args:
            steps: The stream: an event is a batch of its own, a list of events one together; ``Tick``,
                ``Control`` and ``Restart`` stand among them.
            by: Name of the key field, or names of several.
            event_time: Name of the field that is the event time, UTC ms.
            out_of_orderness: How far events may come out of order, a ``timedelta`` or ms.
            drain: Whether the input ends: the watermark then goes to the end of time.
            bounded: Whether the input is a table (a bounded DataFrame) and not a stream.
            arrived_at: Name of the field that says when an event was received, UTC ms. An event whose own
                time is later moves the watermark no further than that.
        """
        keys = (by,) if isinstance(by, str) else by
        bound = ms(out_of_orderness)
        return Keyed(self, Plan(steps, keys, event_time, bound, drain, bounded, arrived_at=arrived_at))


@dataclass(frozen=True)
class Keyed:
    """A stream with a key and an event time, and the processes that it has been through."""

    run: Run
    plan: Plan
    _next: tuple[str, ...] = ()

    def process(self, process: KeyedProcess[Any, Any]) -> Keyed:
        """Run a process over the stream; nothing starts before :meth:`show`."""
        links = (*self.plan.links, (self._next, process))
        return replace(self, plan=replace(self.plan, links=links))

    def key_by(self, by: str | tuple[str, ...]) -> Keyed:
        """Give what the last process emits another key, for the next one."""
        return replace(self, _next=(by,) if isinstance(by, str) else by)

    def show(self, title: str = "", *, inputs: bool = True) -> Results:
        """Play the stream and tell what goes in and what comes out.

        Args:
            title: A line above it.
            inputs: Whether what goes in, and where batches begin, is told too.

        Returns:
            The records of every output.
        """
        self.run.plans.append(self.plan)
        teller = _Teller(self.run.say, self.plan, inputs)
        if title:
            self.run.say(title)
        if self.run.engine == "memory":
            play_in_memory(self.plan, teller)
        else:
            from millrace_apps.recipes.kit.spark import play_on_spark

            play_on_spark(self.plan, teller, self.run.spark, self.run.folder())
        self.run.say("")
        return teller.results


@dataclass
class _Teller:
    """Tells batch by batch what went in and what came out, in one order on both engines."""

    say: Callable[[str], None]
    plan: Plan
    inputs: bool
    results: Results = field(default_factory=dict)
    batches: int = 0

    def __post_init__(self) -> None:
        self.results = {output: [] for output in self.plan.outputs}
        self._places = {output: place for place, output in enumerate(self.results)}
        self._width = max(len(name) for name in self.results if "." not in name and name != "dead_letters")

    def __call__(self, turn: Turn, emitted: list[Out]) -> None:
        """Tell one batch."""
        if isinstance(turn.step, Restart):
            if self.inputs:
                self.say("restart: the query ends, and another goes on from its checkpoint")
            return
        emitted = sorted(emitted, key=lambda e: (e.event_time, e.key, self._places[e.output]))
        if self.inputs:
            mark = "" if turn.watermark is None else f", watermark {clock(turn.watermark)}"
            end = "the input ends" if isinstance(turn.step, Drain) else f"batch {self.batches}{mark}"
            if isinstance(turn.step, Drain) and not emitted:
                end += ": nothing waits"
            self.say("all at once" if self.plan.bounded else end)
            self.batches += 1
        self._inputs(turn.step)
        self._outputs(emitted)

    def _inputs(self, step: Any) -> None:
        if not self.inputs:
            return
        if isinstance(step, Tick):
            self.say(f"  {'tick':{self._width}}  {clock(step.at)}")
        elif isinstance(step, Control):
            self.say(f"  {'rule':{self._width}}  {told(step.event)}")
        for event in self.plan.events(step):
            line = told(event, without=self.plan.event_time)
            self.say(f"  {_IN:{self._width}}  {clock(self.plan.time(event))}  {line}")

    def _outputs(self, emitted: list[Out]) -> None:
        for out in emitted:
            record = decoded(self.plan, out)
            self.results[out.output].append(record)
            name = "out" if out.output == "main" else out.output
            line = told(record, without=self.plan.event_time if name == "late" else "")
            self.say(f"  {name:{self._width}}  {clock(out.event_time)}  {line}")

"""A witness process in an app's topology: it emits the position of every record that was handled.

What a process does with an event is one thing: what it emits, and what it leaves in its state, is kept as a
whole or not at all. So a record of the witness is there exactly where the event was handled to its end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from millrace.errors import MillraceError
from millrace.process import BroadcastContext, KeyedProcess
from millrace.side_outputs import side_output
from millrace.topology import Topology

#: The side output by which the first process says what it has handled, and the table that it goes to.
HANDLED_OUTPUT: Final = "chaos_handled"


class Handled(msgspec.Struct, frozen=True, gc=False):
    """A record that was handled.

    Attributes:
        cause: Where it stands: ``topic:partition:offset``.
        late: Whether it was handled as a late one.
    """

    cause: str
    late: bool


@dataclass
class Taken:
    """What processes in this place have made of control events.

    Attributes:
        causes: Where those stand that were taken.
        raised: Where those stand at which a process failed: not because it refuses them, and says so.
    """

    causes: set[str] = field(default_factory=set)
    raised: dict[str, str] = field(default_factory=dict)


def with_witness(topology: Topology, controls: Taken | None = None, *, writes: bool = False) -> Topology:
    """Return a topology that says of every record that its first process handles that it did.

    Args:
        topology: The topology; it stays as it is.
        controls: Where it is noted what became of control events, if it runs in this place.
        writes: Whether what is said goes to a table, :data:`HANDLED_OUTPUT`; so do all dead letters.
    """
    links = []
    for place, link in enumerate(topology.links):
        process = link.process
        if place == 0:
            process = _watched(process)
        if controls is not None and process.control_type is not None:
            process = _noting(process, controls)
        links.append(replace(link, process=process))
    made = replace(topology, links=tuple(links))
    if not writes:
        return made
    tables = {made.full_name(links[0].name, HANDLED_OUTPUT): HANDLED_OUTPUT}
    letters = [made.full_name(link.name, "dead_letters") for link in links]
    tables |= {full: f"chaos_{number}" for number, full in enumerate(letters) if full not in made.tables}
    return made.write(tables=tables)


def _noting(process: KeyedProcess[Any, Any], controls: Taken) -> KeyedProcess[Any, Any]:
    """Return a copy of a process that notes what it makes of control events."""
    base: Any = type(process)

    def take(self: Any, control: Any, ctx: BroadcastContext) -> None:
        cause = ctx.cause or ""
        try:
            base.process_broadcast(self, control, ctx)
        except MillraceError:
            raise
        except Exception as error:
            controls.raised[cause] = f"{type(error).__name__}: {error}"
            raise
        controls.causes.add(cause)

    return _derived(process, {"process_broadcast": take})


def _watched(process: KeyedProcess[Any, Any]) -> KeyedProcess[Any, Any]:
    """Return a copy of a process that tells what it handles."""
    base: Any = type(process)

    def tell(self: Any, ctx: Any, *, late: bool) -> None:
        ctx.output(self.chaos_handled, Handled(ctx.cause or "", late))

    def handle(self: Any, event: Any, ctx: Any) -> None:
        base.process(self, event, ctx)
        tell(self, ctx, late=False)

    @contextlib.contextmanager
    def quiet(self: Any) -> Iterator[None]:
        """What hands its events on to `process` would have them told twice."""
        self.__dict__["process"] = lambda event, ctx: base.process(self, event, ctx)
        try:
            yield
        finally:
            del self.__dict__["process"]

    def handle_late(self: Any, event: Any, ctx: Any) -> None:
        with quiet(self):
            base.on_late(self, event, ctx)
        tell(self, ctx, late=True)

    def handle_key(self: Any, events: Iterator[Any], ctx: Any) -> None:
        def told() -> Iterator[Any]:
            for event in events:
                tell(self, ctx, late=False)
                yield event

        with quiet(self):
            base.process_key(self, told(), ctx)

    body: dict[str, Any] = {
        HANDLED_OUTPUT: side_output(Handled),
        "process": handle,
        "on_late": handle_late,
        # Its events go to `process`, one by one, with their places.
        "process_batch": KeyedProcess.process_batch,
    }
    if base.process_key is not KeyedProcess.process_key:
        body["process_key"] = handle_key
    return _derived(process, body)


def _derived(process: KeyedProcess[Any, Any], body: dict[str, Any]) -> KeyedProcess[Any, Any]:
    """Return a copy of a process whose class has other methods, and the same name everywhere."""
    base: Any = type(process)
    kept = {
        "name": process.name,
        "stored_as": process.stored_as,
        "__module__": __name__,
        "__doc__": base.__doc__,
    }
    # A process that says how it is made anew would be made anew as it was.
    made: Any = type(f"Watched{base.__name__}", (base,), {"__reduce_ex__": _as_it_is, **kept, **body})
    derived = object.__new__(made)
    derived.__dict__.update(process.__dict__)
    return derived  # type: ignore[no-any-return]


def _as_it_is(process: Any, _protocol: Any) -> Any:
    return object.__new__, (type(process),), process.__dict__

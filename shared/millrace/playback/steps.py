"""Playback steps: batches, ticks, control events and restarts, and the watermark that they move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from millrace.errors import UserError
from millrace.host.system import Drain, Tick
from millrace.time import NO_WATERMARK
from millrace.topology import Topology
from millrace.topology.keys import field_of

#: The end of an input that is played.
END: Final = Drain("playback")


class PlaybackError(UserError):
    """A topology, its steps or an engine cannot be played as asked for."""


@dataclass(frozen=True)
class Control:
    """A step: a control event, for every key.

    Attributes:
        event: The event, of the ``control_type`` of a process.
    """

    event: Any


@dataclass(frozen=True)
class Restart:
    """A step: the query ends here, and another goes on from its checkpoint."""


class Emitted(NamedTuple):
    """One record that came out.

    Attributes:
        output: Its output, by the topology's name.
        key: The key that it was emitted for, as text.
        event_time: Its time, ms.
        on_time: Whether it is no correction.
        payload: The record as JSON.
    """

    output: str
    key: str
    event_time: int
    on_time: bool
    payload: bytes


class Batch(NamedTuple):
    """One batch.

    Attributes:
        step: What was played in it.
        watermark: What its events are judged by, ms; ``None``: there is no watermark yet.
        after: The watermark at its end, ms; ``None``: there is still none.
        emitted: What came out of it.
    """

    step: Any
    watermark: int | None = None
    after: int | None = None
    emitted: Sequence[Emitted] = ()


@dataclass(frozen=True)
class Plan:
    """A topology and what is played through it; the arguments of :func:`~millrace.playback.play`."""

    topology: Topology
    steps: Sequence[Any]
    bound_ms: int = 0
    arrived_at: str = ""
    bounded: bool = False
    drain: bool = True

    def __post_init__(self) -> None:
        for name, one in self.topology.inputs.items():
            if computed := [part for part in one.parts if not isinstance(part, str)]:
                raise PlaybackError(
                    f"the key of the input {name or one.topic!r} has {computed[0]}: events that are played "
                    "have no record around them, so a key is fields of theirs"
                )
        if self.bounded and (other := [s for s in self.steps if isinstance(s, Tick | Control | Restart)]):
            raise PlaybackError(f"a bounded input is events alone, and a {type(other[0]).__name__} is none")

    @property
    def events(self) -> list[Any]:
        """All events."""
        return [event for step in self.steps for event in events_of(step)]

    def time(self, event: Any) -> int:
        """Return an event's time, ms."""
        return self.topology.time_of(event, self.topology.input_of(event))

    def arrived(self, event: Any) -> int | None:
        """Return when an event was received, ms, where that is known."""
        return int(field_of(event, self.arrived_at)) if self.arrived_at else None

    def batches(self) -> Iterator[Batch]:
        """Yield the batches that are to come, nothing emitted yet, with their watermarks."""
        if self.bounded:
            yield Batch(self.events)
            return
        reached: int | None = None
        for step in (*self.steps, *([END] if self.drain else [])):
            before = reached
            times = [self._plausible(event) - self.bound_ms - 1 for event in self._clock_events(step)]
            reached = max(times if before is None else [before, *times], default=None)
            yield Batch(step, before, reached)

    def _clock_events(self, step: Any) -> list[Any]:
        inputs = self.topology.inputs
        of_clocks = [e for e in events_of(step) if inputs[self.topology.input_of(e)].clock]
        return [event for event in of_clocks if self.time(event) != NO_WATERMARK]

    def _plausible(self, event: Any) -> int:
        """Return an event's time as the watermark believes it, ms: no later than it was received."""
        arrived = self.arrived(event)
        return self.time(event) if arrived is None else min(self.time(event), arrived)


def events_of(step: Any) -> list[Any]:
    """Return the events of a step; none where it is something else."""
    if isinstance(step, Tick | Control | Restart | Drain):
        return []
    return list(step) if isinstance(step, list | tuple) else [step]

"""A topology ahead of its query: what was committed, and on top of it what has been seen since.

A :class:`~millrace.host.station.Station` runs the processes as the query does, on state that it reads from
the committed batch. What it writes stays in memory. Its clock stands where the batch left it: an event is
judged as late by what the query has committed, never by another event that came by another way. When the
query has committed more, another station begins there with what the query has not read yet, and takes the
first one's place.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

import msgspec

from millrace.checkpoints.committed import CommittedState
from millrace.checkpoints.stages import Stage
from millrace.errors import UserError
from millrace.host.chunks import WATERMARK, InputChunk, decode_output
from millrace.host.groups import group_labels
from millrace.host.intake import JsonEvents
from millrace.host.rows import Emission
from millrace.host.station import (
    SHARED,
    TOKEN,
    At,
    Station,
    StationLink,
    outputs_of_links,
)
from millrace.inputs import mark_of
from millrace.process import order_of
from millrace.serving.following import NotCommittedYet
from millrace.time.clock import ClockSettings
from millrace.topology import Topology
from millrace.topology.keys import text_of

_log = logging.getLogger("millrace.serving")

#: No report of what was read comes to the clock, so that it stands still whatever it goes by.
_STILL: Final = ClockSettings(bound_ms=0)
#: Times that a new station is brought up to what came while it was made, before others have to wait for it.
_ROUNDS: Final = 3


@dataclass
class Seen:
    """An event that was seen before the query has it.

    Attributes:
        key: The text of its key.
        time: Its event time, ms.
        value: Its bytes, led by the mark of its input.
        identity: What it is called.
        seen_at: When it was seen, on a clock that never goes back, seconds.
        place: Where it stands in the stream (partition, offset); ``None``: that is not known.
        is_kept: Whether it is certain to arrive, so that it is not forgotten before.
    """

    key: str
    time: int
    value: bytes
    identity: str
    seen_at: float = field(default_factory=monotonic)
    place: tuple[int, int] | None = None
    is_kept: bool = False


class _Store:
    """A committed batch as a station keeps state; what is written stays here.

    Args:
        state: The state; it must not be moved while this is in use.
        stages: Its processes, in the order of the links.
    """

    def __init__(self, state: CommittedState, stages: Sequence[Stage]) -> None:
        self._state = state
        self._stages = stages
        self._own: dict[At, bytes | None] = {}

    def read(self, places: Sequence[At]) -> list[bytes | None]:
        """Return values; those of the batch without their seals, which a station takes too."""
        return [self._own[at] if at in self._own else self._committed(at) for at in places]

    def _committed(self, at: At) -> bytes | None:
        if at == TOKEN:
            return None
        link, label, number = at
        stage = self._stages[link]
        if stage.link is None and label == SHARED:
            # In a chain each key group has a copy.
            for one in group_labels(stage.key_groups):
                if found := self._state.values(stage, 0, one, [number]):
                    return found[number]
            return None
        return self._state.values(stage, 0, label, [number]).get(number)

    def write(self, place: At, data: bytes) -> None:
        """Keep a value."""
        self._own[place] = data

    def remove(self, place: At) -> None:
        """Keep in mind that a value is gone."""
        self._own[place] = None

    def push(self) -> None:
        """Nothing to send."""

    def flush(self) -> None:
        """Nothing to send."""


class Ahead:
    """A topology on a committed batch.

    Args:
        topology: The topology, made as the query makes it.
        state: The state; it must stay at its batch.

    Raises:
        UserError: The checkpoint has other processes, several stations, or keys with clocks of their own.
    """

    def __init__(self, topology: Topology, state: CommittedState) -> None:
        wanted = [link.process.stored_as for link in topology.links]
        kept = [stage.process for stage in state.stages]
        if wanted != kept:
            raise UserError(
                f"the checkpoint has the processes {', '.join(kept)}, these settings make "
                f"{', '.join(wanted)}: serve with the settings that the query runs with"
            )
        if any(stage.stations > 1 for stage in state.stages):
            raise UserError("the query has several stations; this serves one, or a chain (stream.stations=1)")
        if order_of(topology.links[0].process).by_key:
            raise UserError("keys with clocks of their own cannot be served ahead of the stream")
        names, onward = outputs_of_links(topology)
        links = [
            StationLink(
                link.process,
                JsonEvents(link.process.event_type, link.process.control_type, inputs=link.process.inputs),
                stage.key_groups,
                onward[place],
                names[place],
            )
            for place, (link, stage) in enumerate(zip(topology.links, state.stages, strict=True))
        ]
        self.batch = state.batch
        self.topology = topology
        self._station = Station(links)
        self._store = _Store(state, state.stages)

    def run(self, events: Iterable[Seen]) -> list[Emission]:
        """Run events as one batch, and return what comes out."""
        found = list(events)
        chunk = InputChunk(
            [one.key for one in found],
            [one.time for one in found],
            None,
            [one.identity for one in found],
            None,
            [one.value for one in found],
        )
        emitted = []
        for output, _, packed in self._station.run([chunk] if found else [], self._store, _STILL):
            if output != WATERMARK:
                for identity, key, at, on_time, payload in zip(*decode_output(packed), strict=True):
                    emitted.append(Emission(output, identity, key, at, bool(on_time & 1), payload))
        return emitted


class AheadOfQuery:
    """A topology that goes along with its query, ahead of it. Threads may share it.

    Args:
        make: Makes the topology, once for each of two stations.
        open_state: Opens the committed state, twice: one is in use while the other goes on.
        input: The input that events come by; empty where the topology has but one.
        forget_s: What the stream has not brought by then will not come: it is left out, seconds.
    """

    def __init__(
        self,
        make: Callable[[], Topology],
        open_state: Callable[[], CommittedState],
        input: str = "",
        *,
        forget_s: float = 900.0,
    ) -> None:
        self._make, self._open = make, open_state
        self._forget_s = forget_s
        topology = make()
        process = topology.links[0].process
        told = topology.inputs[input]
        self._topic, self._key = told.topic, told.parts
        self._mark = mark_of(list(process.inputs).index(input)) if process.inputs else b""
        self._states: list[CommittedState] = []
        self._at_work: Ahead | None = None
        self._lock = threading.Lock()
        self._moving = threading.Lock()
        #: What the committed batch does not have, in the order in which it was seen.
        self._seen: list[Seen] = []
        #: Partition → the first offset that the committed batch has not.
        self.offsets: Mapping[int, int] = {}

    def seen_before(self, seen: Iterable[Seen]) -> None:
        """Go on from what a server before this one has seen, in its order; before the first batch is read."""
        with self._lock:
            self._seen[:0] = seen

    def seen_of(self, event: Any, raw: bytes, at: int, identity: str) -> Seen:
        """Return an event as it is run.

        Args:
            event: The event.
            raw: Its JSON.
            at: Its event time, ms.
            identity: What it is called.
        """
        return Seen(text_of(event, self._key), at, self._mark + raw, identity)

    @property
    def waiting(self) -> int:
        """How many events have been seen that the committed batch does not have."""
        return len(self._seen)

    @property
    def batch(self) -> int | None:
        """The committed batch that it stands on; ``None``: none yet."""
        at_work = self._at_work
        return None if at_work is None else at_work.batch

    @property
    def topology(self) -> Topology:
        """The topology at work.

        Raises:
            NotCommittedYet: There is none.
        """
        if self._at_work is None:
            raise NotCommittedYet("the query has committed no batch yet")
        return self._at_work.topology

    @property
    def state(self) -> CommittedState:
        """The committed state that it stands on.

        Raises:
            NotCommittedYet: There is none.
        """
        if self._at_work is None:
            raise NotCommittedYet("the query has committed no batch yet")
        return self._states[0]

    def take(self, one: Seen) -> tuple[list[Emission], int, int]:
        """Run an event on top of what is known.

        Returns:
            What came out, the committed batch, and how many events were seen before it since then.

        Raises:
            NotCommittedYet: There is no committed batch.
        """
        with self._lock:
            if self._at_work is None:
                raise NotCommittedYet("the query has committed no batch yet")
            before = len(self._seen)
            self._seen.append(one)
            return self._at_work.run([one]), self._at_work.batch, before

    def follow(self) -> bool:
        """Go on to the last committed batch; return whether there is a new one.

        Raises:
            MillraceError: It cannot be read.
        """
        with self._moving:
            if self._states and self._states[0].checkpoint.last() == self.batch:
                return False
            if len(self._states) < 2:
                self._states.append(self._open())
            state = self._states[-1]
            state.move_to()
            new = Ahead(self._make(), state)
            offsets = self._offsets(state)
            with self._lock:
                since = list(self._seen)
            old = {id(one) for one in since if self._is_over(one, offsets)}
            new.run(one for one in since if id(one) not in old)
            ran = len(since)
            for number in range(_ROUNDS):
                if number == _ROUNDS - 1 or len(self._seen) - ran < 2:
                    break
                with self._lock:
                    more = self._seen[ran:]
                new.run(more)
                ran += len(more)
            with self._lock:
                if more := self._seen[ran:]:
                    new.run(more)
                self._seen = [one for one in self._seen if id(one) not in old]
                self._at_work, self.offsets = new, offsets
            self._states.reverse()
            return True

    def _offsets(self, state: CommittedState) -> dict[int, int]:
        """Return partition → the first offset that the batch has not."""
        for told in state.checkpoint.position(state.batch).sources:
            found: Mapping[str, Any] = msgspec.json.decode(told) if told else {}
            if isinstance(found, dict) and isinstance(of_topic := found.get(self._topic), dict):
                return {int(partition): int(offset) for partition, offset in of_topic.items()}
        return {}

    def _is_over(self, one: Seen, offsets: Mapping[int, int]) -> bool:
        if one.place is not None:
            partition, offset = one.place
            return offset < offsets.get(partition, 0)
        return not one.is_kept and monotonic() - one.seen_at > self._forget_s

"""``chaos input``: hostile records through an app's topology, and what became of each of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.chaos.account import Account, Report
from millrace.chaos.hostile import Message, Sender, Sent
from millrace.chaos.memory import MemoryStation
from millrace.chaos.witness import HANDLED_OUTPUT, Handled, Taken, with_witness
from millrace.dead_letters import DeadLetter, position
from millrace.runtime.apps import input_versions

if TYPE_CHECKING:
    from millrace.runtime.apps import App
    from millrace.runtime.settings import AppSettings
    from millrace.topology import Topology

#: So many records are a batch.
_BATCHES: Final = (1, 20, 200, 1_000, 2_000, 2_000)
#: One record in so many that an app emits is looked at: what it says may be answered.
_LEARNED: Final = 20
_PROGRESS_S: Final = 10.0

_handled = msgspec.json.Decoder(Handled).decode
_letter = msgspec.json.Decoder(DeadLetter).decode


def input_in_memory(
    app: App,
    settings: AppSettings,
    world: Iterable[Message],
    *,
    events: int,
    seed: int,
    on_progress: Callable[[str], None] = lambda _line: None,
) -> Report:
    """Send hostile records through an app's topology in memory.

    Args:
        app: The app.
        settings: Its settings, settled.
        world: Records of its generated world, in order of sending.
        events: How many records are sent, the world's among them.
        seed: The same one sends the same.
        on_progress: Told in a line now and then how far it is.
    """
    topology = app.topology(settings)
    taken = Taken()
    station = MemoryStation(with_witness(topology, taken), settings, input_versions(app, topology))
    run = _Run(Sender(topology, world, seed=seed), station, topology, taken)
    rng, began, told, ended, done = random.Random(seed), time.monotonic(), time.monotonic(), "", 0
    sent = run.sender.send(events)
    while not ended and (batch := list(islice(sent, rng.choice(_BATCHES)))):
        ended = _ended(run.batch, batch)
        done += len(batch)
        if time.monotonic() - told > _PROGRESS_S:
            told = time.monotonic()
            on_progress(f"{done:,} of {events:,} sent, {done / (told - began):,.0f} a second")
    ended = ended or _ended(run.end)
    if ended:
        ended = f"after {done:,} records: {ended}"
    rows = run.account.rows()
    return Report(
        app.name,
        "memory",
        seed,
        done,
        time.monotonic() - began,
        rows,
        run.account.faults,
        ended,
        run.sender.cases,
    )


class _Run:
    """A run: what is sent, where it goes, and what is known of it."""

    def __init__(self, sender: Sender, station: MemoryStation, topology: Topology, taken: Taken) -> None:
        self.sender, self.account, self._controls = sender, Account(), taken
        self._station = station
        first = topology.links[0].name
        self._handled = topology.full_name(first, HANDLED_OUTPUT)
        self._letters = {
            topology.full_name(link.name, "dead_letters"): link.name == first for link in topology.links
        }
        self._emitted = 0

    def batch(self, batch: list[Sent]) -> None:
        values: dict[tuple[str, int], bytes] = {}
        begun: dict[str, int] = {}
        for one in batch:
            topic = one.message.topic
            offset = begun.setdefault(topic, self._station.next_offset(topic))
            begun[topic] = offset + 1
            values[topic, offset] = one.message.value
            self.account.sent(one, 0, offset)
        self._take(self._station.run([one.message for one in batch]), values)

    def end(self) -> None:
        self._take(self._station.drain(), {})

    def _take(self, out: Iterator[tuple[str, bytes]], values: dict[tuple[str, int], bytes]) -> None:
        account = self.account
        for output, payload in out:
            if output == self._handled:
                found = _handled(payload)
                account.handled(found.cause, late=found.late)
            elif output in self._letters:
                self._read_letter(_letter(payload), values, first=self._letters[output])
            else:
                self._emitted += 1
                if self._emitted % _LEARNED == 0:
                    self.sender.learn(payload)
        account.taken(self._controls.causes)
        self._controls.causes.clear()
        for cause, error in self._controls.raised.items():
            account.fault("broadcast raises", "control", f"{error} [{cause}]")
        self._controls.raised.clear()

    def _read_letter(self, letter: DeadLetter, values: dict[tuple[str, int], bytes], *, first: bool) -> None:
        cause = None if letter.topic is None else f"{letter.topic}:{letter.partition}:{letter.offset}"
        told = letter.reason, letter.stage, letter.process, letter.error
        self.account.letter(cause, *told, first=first)
        topic, _, offset = position(cause)
        if first and topic is not None and offset is not None:
            value = values.get((topic, offset))
            if value is not None and value != letter.value:
                self.account.fault(
                    "a dead letter with other bytes", letter.process, f"{cause}: {value[:100]!r}"
                )


def _ended(run: Callable[..., None], *arguments: Any) -> str:
    """Return the error with which a part of a run ends; empty where it does not."""
    try:
        run(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""

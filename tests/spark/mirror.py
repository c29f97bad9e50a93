"""The in-memory host, driven batch by batch as Spark drives its own, and what both must agree on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from millrace import KeyedProcess
from millrace.host.groups import encode_key
from millrace.host.memory import LiveStore
from millrace.host.runner import Row, Runner, StreamTime
from millrace.host.system import Drain, Idle, SystemMessage, Tick, encode_system
from millrace.process import order_of
from millrace.time import END_OF_TIME, NEVER, NO_WATERMARK, less

#: What ends the input of the streams of these tests.
DRAIN = Drain("stream")

SCHEMA = "value string, source string, control boolean"


class Item(NamedTuple):
    """A row of a batch: an event, a control event or a message of the engine, with its source id."""

    source: str
    value: Any
    control: bool = False


def to_row(item: Item) -> dict[str, Any]:
    """Return an item as a row of the stream."""
    message = isinstance(item.value, SystemMessage)
    value = encode_system(item.value) if message else msgspec.json.encode(item.value)
    return {"value": value.decode(), "source": item.source, "control": message or item.control}


class Mirror:
    """The in-memory host driven as Spark drives its own: the watermark moves at the end of a batch.

    Args:
        process: The process.
        bound_ms: How far the watermark stays behind the newest event, ms.
        control_time: Field of control events from which time on they hold.
    """

    def __init__(self, process: KeyedProcess[Any, Any], bound_ms: int, control_time: str = "") -> None:
        self._control_time = control_time
        self._decode = msgspec.json.Decoder(process.event_type).decode
        self.runner = Runner(process, encode=msgspec.json.encode, decode=self._decode)
        self.store = LiveStore(self.runner.layout)
        self._bound = bound_ms
        self._order = order_of(process)
        self.runner.layout.lag_ms = self._order.patience_ms
        self._watermark = self._newest = self._tick = NO_WATERMARK
        self._broadcast: bytes | None = None

    def batch(self, items: Iterable[Item], *, key: str, at: str) -> None:
        """Run one batch, then what waits for the watermark that it ends with.

        Args:
            items: Its rows.
            key: Field of an event's key.
            at: Field of its time.
        """
        rows: dict[str, list[Row]] = {}
        controls: list[Row] = []
        ticks, silent, drained = [], NO_WATERMARK, False
        for source, value, control in items:
            if isinstance(value, Tick):
                ticks.append(value.at)
            elif isinstance(value, Drain):
                drained = True
            elif isinstance(value, Idle):
                silent = max(silent, value.at)
            elif not control:
                raw = msgspec.json.encode(value)
                when = getattr(value, at)
                text = encode_key((getattr(value, key),))
                rows.setdefault(text, []).append(Row(when, raw, source, self._decode(raw)))
                self._newest = max(self._newest, when)
            else:
                when = getattr(value, self._control_time, None) if self._control_time else None
                time = NO_WATERMARK if when is None else when
                controls.append(Row(time, msgspec.json.encode(value), source, value))
        tick = max(ticks, default=NO_WATERMARK)
        ticked = self.runner.process.needs_ticks() and tick > self._tick
        if ticked:
            self._tick = tick
        before = self._watermark
        if self._newest != NO_WATERMARK:
            self._watermark = max(before, max(self._newest, silent) - self._bound - 1)
        if drained:
            self._watermark = END_OF_TIME
        if self._order.by_key:  # what is due by a key's clock and by the stream's goes in one order
            self._step(rows, controls, before, self._watermark, ticked=ticked, passed=before)
        else:
            self._step(rows, controls, before, before, ticked=False, passed=before)
            self._step({}, [], self._watermark, self._watermark, ticked=ticked, passed=before)

    def end_run(self) -> None:
        """Restart."""
        self.store = LiveStore(self.runner.layout, self.store.pack())

    def _step(
        self,
        rows: dict[str, list[Row]],
        controls: list[Row],
        watermark: int,
        ahead: int,
        *,
        ticked: bool,
        passed: int,
    ) -> None:
        runner, lag = self.runner, self._order.patience_ms
        runner.controls.load(self._broadcast)
        if controls:
            changed = runner.controls.take(controls, self._broadcast, less(watermark, lag), report=True)
            self._broadcast = self._broadcast if changed is None else changed
        newest = {key: max(row.event_time for row in of_key) for key, of_key in rows.items()}
        runner.run_batch(
            self.store,
            rows,
            less(watermark, lag),
            self._tick,
            tick=ticked,
            ahead=less(ahead, lag),
            passed=less(passed, lag),
            time=StreamTime(watermark, ahead, NEVER, self._bound, newest),
        )
        changed = runner.controls.pass_(self._broadcast, less(ahead, lag), report=True)
        self._broadcast = self._broadcast if changed is None else changed
        self.store.commit(less(ahead, lag), self._tick)


def comparable(emissions: Iterable[Any]) -> Counter[str]:
    """What both hosts must agree on; a digest hashes line numbers of the host's own frames."""
    found = []
    for e in emissions:
        payload = e.payload if not isinstance(e.payload, bytes) else msgspec.json.decode(e.payload)
        if e.output == "dead_letters":
            payload = {k: v for k, v in payload.items() if k != "error_digest"}
        found.append(repr((e.key, e.event_time, e.output, bool(e.on_time & 1), payload, e.event_id)))
    return Counter(found)

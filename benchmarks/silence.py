"""`millrace bench silence`: all devices fall silent at once; when has the last been declared?"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import msgspec

from millrace.connectors.producing import Delivery, Record
from millrace.runtime.monitor import BatchStat, QueryMonitor
from millrace.time import ms
from millrace_apps.benchmarks.app_bench import Record as Message
from millrace_apps.benchmarks.app_bench import bench_of
from millrace_apps.benchmarks.app_run import BenchRun, bench_run, run_beside
from millrace_apps.benchmarks.report import percentiles
from millrace_apps.benchmarks.streams import BenchmarkFailed
from millrace_apps.iot_maintenance.settings import IotSettings

#: Beside one trigger, the last declaration may take so long, s.
TARGET_S: Final = 10.0
_LIMIT_S: Final = 300.0
_POLL_S: Final = 0.2
#: What comes twice comes soon, s.
_SETTLE_S: Final = 5.0


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        devices: Devices, gateways included.
        per_gateway: Devices of one gateway, itself included.
    """

    devices: int = 100_000
    per_gateway: int = 50


QUICK: Final = Sizes(devices=1_000)


class Device(NamedTuple):
    """A machine or a gateway, and the gateway that it is heard through."""

    device_id: str
    gateway_id: str


def fleet(sizes: Sizes) -> Iterator[Device]:
    """Yield the devices, each gateway before its machines.

    >>> [d.device_id for d in fleet(Sizes(devices=3, per_gateway=2))]
    ['p01-l00001-gw', 'p01-l00001-m001', 'p01-l00002-gw']
    """
    for number in range(sizes.devices):
        line, place = divmod(number, sizes.per_gateway)
        name = f"p01-l{line + 1:05}"
        yield Device(f"{name}-m{place:03}" if place else f"{name}-gw", f"{name}-gw")


def silence(sizes: Sizes, bootstrap: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Measure how long after its timeout each device is declared silent, by the wall and the stream's clock.

    Every device beats once, then nothing comes at all: the stream's clock goes on by its idle ticks.

    Args:
        sizes: How much.
        bootstrap: A broker, or ``None`` for an embedded one.
        overrides: Settings of the app.
    """
    monitor = QueryMonitor()
    with bench_run(bench_of("iot"), bootstrap, overrides, monitor=monitor) as run:
        beats: list[int] = []
        warm: list[int] = []

        def act(ended: threading.Event) -> None:
            _await(lambda: run.job.started.is_set(), ended, "the query")
            # A batch, so that everything is loaded before the clock runs.
            _beat(run, [Device("warm-up", "warm-up")])
            _await(lambda: monitor.snapshot().batches > 0, ended, "the first batch")
            warm.append(monitor.snapshot().batches)
            beats.extend(_beat(run, fleet(sizes)))
            # What is missing after this is reported as missing.
            _await(lambda: _declared(run) > sizes.devices, ended)
            time.sleep(_SETTLE_S)

        run_beside(run, act)
        settings = run.settings
        ticks = [(message["at"], at) for message, at in run.messages("control") if "at" in message]
        told = [(row, at) for row, at in run.messages("liveness") if row["device_id"] != "warm-up"]
    assert isinstance(settings, IotSettings)  # noqa: S101  (the app is iot)
    timeout_ms, bound_ms = ms(settings.monitor.device_timeout), ms(settings.stream.out_of_orderness)
    # The watermark stays behind what a tick says, and must have passed the timeout.
    clock = Clock(timeout_ms, [(time_ms - bound_ms - 1, at) for time_ms, at in ticks])
    return {
        **figures({d.device_id for d in fleet(sizes)}, told, clock, monitor.snapshot().recent),
        "warm_batches": warm[0],
        "beats_sent_s": (beats[-1] - beats[0]) / 1_000,
    }


def _await(reached: Callable[[], bool], ended: threading.Event, what: str = "") -> None:
    """Wait for something; where it has a name, that it does not come is an error."""
    deadline = time.monotonic() + _LIMIT_S
    while not reached():
        if ended.is_set() or time.monotonic() > deadline:
            if what:
                raise BenchmarkFailed(f"{what} did not come")
            return
        time.sleep(_POLL_S)


def _beat(run: BenchRun, devices: Iterable[Device]) -> list[int]:
    """Let every device beat once, now; return the times of the first and the last, ms."""
    from millrace.kafka.admin import client_config

    times: list[int] = []

    def beats() -> Iterator[Record]:
        for device in devices:
            times.append(time.time_ns() // 1_000_000)
            value = {
                "heartbeat_id": f"{device.device_id}-1",
                "device_id": device.device_id,
                "device_kind": "gateway" if device.device_id == device.gateway_id else "machine",
                "gateway_id": device.gateway_id,
                "event_time_ms": times[-1],
            }
            yield device.gateway_id.encode(), msgspec.json.encode(value), []

    delivery = Delivery({**client_config(run.broker), "linger.ms": 50, "partitioner": "murmur2_random"})
    delivery.send(run.topic("heartbeats"), beats())
    delivery.flush()
    return [times[0], times[-1]]


def _declared(run: BenchRun) -> int:
    """Return how many declarations there are, that of the device of the warm-up included."""
    from millrace.kafka.admin import end_offsets

    return sum(end_offsets(run.broker, run.topic("liveness")).values())


class Clock(NamedTuple):
    """The stream's clock while nothing comes.

    Attributes:
        timeout_ms: How long a device may be silent.
        ticks: Watermark that an idle tick brings, and when the tick was sent, ms.
    """

    timeout_ms: int
    ticks: Sequence[tuple[int, int]]

    def reached(self, time_ms: int) -> int | None:
        """Return when the stream was told that this time has come, ms; ``None``: never."""
        return min((at for watermark, at in self.ticks if watermark >= time_ms), default=None)


def figures(
    devices: set[str], told: Sequence[tuple[Message, int]], clock: Clock, batches: Sequence[BatchStat]
) -> dict[str, Any]:
    """Return how long after their timeouts devices were declared silent, and whether each was, once.

    Args:
        devices: Who has fallen silent.
        told: Rows of liveness, each with when the broker had it, ms.
        clock: The stream's clock.
        batches: The query's batches.
    """
    silent = [(row, at) for row, at in told if row["state"] == "silent"]
    counts = Counter(row["device_id"] for row, _ in silent)
    after = [(at - row["last_heard_ms"] - clock.timeout_ms) / 1_000 for row, at in silent]
    if not after:
        raise BenchmarkFailed("no device was declared silent")
    first, last = min(at for _, at in silent), max(at for _, at in silent)
    telling = [b.duration_ms for b in batches if b.start_ms <= last and b.start_ms + b.duration_ms >= first]
    trigger_s = max(telling, default=0) / 1_000
    due = clock.reached(max(row["last_heard_ms"] for row, _ in silent) + clock.timeout_ms)
    by_stream = None if due is None else (last - due) / 1_000
    return {
        "declared": len(counts),
        "missing": len(devices - counts.keys()),
        "repeated": sum(n > 1 for n in counts.values()),
        "correct": counts.keys() == devices and max(counts.values()) == 1 and len(told) == len(silent),
        "after_timeout_s": percentiles(after),
        "last_after_timeout_s": max(after),
        "last_after_stream_clock_s": by_stream,
        "trigger_s": trigger_s,
        "within_target": by_stream is not None and by_stream <= trigger_s + TARGET_S,
        "within_target_by_wall_clock": max(after) <= trigger_s + TARGET_S,
        "causes": dict(Counter(row["cause"] for row, _ in silent)),
    }


def configuration(sizes: Sizes, overrides: Sequence[str]) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return {**asdict(sizes), "target_s_after_trigger": TARGET_S, "settings": list(overrides)}

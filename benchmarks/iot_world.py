"""Worlds of the iot demo in memory: what its minute sends through the app's topology, and the ledger."""

from __future__ import annotations

import itertools
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from millrace.dead_letters import reason_of
from millrace.demo import DemoRun
from millrace.host.memory_chain import MemoryChain
from millrace.testing.world_ledger import ReadLedger, WorldRun, read_world_ledger
from millrace.time import ms
from millrace.time.durations import to_ms
from millrace.topology.sinks import table_name
from millrace_apps.generators.engine.world import deliver_domain
from millrace_apps.generators.iot import DOMAIN, IotProfile
from millrace_apps.generators.world_ledger import WorldLedger
from millrace_apps.iot_maintenance import demo
from millrace_apps.iot_maintenance.contracts.signals import INPUTS, as_row
from millrace_apps.iot_maintenance.settings import IotSettings
from millrace_apps.iot_maintenance.topology import topology

#: The day on which all worlds are, UTC ms at midnight.
DAY_MS: Final = 1_767_225_600_000
_HOUR_MS: Final = 3_600_000
_BATCH: Final = 1_000
#: Options of the generator that are a profile's by another name, or none of it.
_OTHERS: Final = frozenset({"rate", "duration", "lateness", "partitions", "topic", "ledger", "bootstrap"})


class World(NamedTuple):
    """What became of a world.

    Attributes:
        tables: Table → its rows, in the order in which they came.
        topics: Topic → its values.
        ledger: What is true.
    """

    tables: Mapping[str, list[dict[str, Any]]]
    topics: Mapping[str, list[bytes]]
    ledger: ReadLedger


def profile(
    seed: int, hour: int, *, machines: int = 0, seconds: float = 60.0, rate: int = 1_000
) -> IotProfile:
    """Return the profile of a demo that begins at an hour of the day, as its generator is told.

    Args:
        seed: The demo's seed.
        hour: The hour, UTC.
        machines: How many machines; 0: as many as the demo has at that rate.
        seconds: For how long events are sent.
        rate: Events per second.
    """
    told = demo.generate(DemoRun("", Path(), IotSettings(), seconds, rate, seed))
    options = dict(itertools.pairwise(told))
    given = {name[2:].replace("-", "_"): text for name, text in options.items() if name.startswith("--")}
    of = {name: float(text) for name, text in given.items() if name not in _OTHERS and name != "quiet"}
    whole = {"seed", "machines", "disorder_ms"}
    made = IotProfile(
        start_ms=DAY_MS + hour * _HOUR_MS,
        event_rate=float(rate),
        events=round(rate * seconds),
        lateness_ms=to_ms(given["lateness"]),
        **{name: int(value) if name in whole else value for name, value in of.items()},  # type: ignore[arg-type]
    )
    return replace(made, machines=machines) if machines else made


def run_world(made: IotProfile, settings: IotSettings) -> World:
    """Send a world through the app's topology in this process.

    Args:
        made: The world.
        settings: The app's settings.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-world-") as folder:
        path = Path(folder) / "ledger.jsonl"
        ledger = WorldLedger(path, WorldRun("iot", made.seed, dict.fromkeys(DOMAIN.streams, "t"), {}, {}))
        tables, topics = _run(made, settings, ledger)
        ledger.finish()
        return World(tables, topics, read_world_ledger(path))


def _run(
    made: IotProfile, settings: IotSettings, ledger: WorldLedger
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[bytes]]]:
    wired = topology(settings)
    host = MemoryChain(wired, out_of_orderness_ms=ms(settings.stream.out_of_orderness))
    named: dict[str, list[str]] = defaultdict(list)
    for output, one in wired.written:
        named[output].append(table_name(one))
    decoders = {name: msgspec.json.Decoder(kind) for name, kind in INPUTS.items()}
    tables: dict[str, list[dict[str, Any]]] = defaultdict(list)
    topics: dict[str, list[bytes]] = defaultdict(list)
    batch: list[Any] = []

    def take(emitted: Any) -> None:
        for e in emitted:
            if e.output in wired.topics:
                topics[wired.topics[e.output]].append(e.payload)
            for table in named[e.output]:
                row = {**msgspec.json.decode(e.payload), "_event_id": str(len(tables[table]))}
                tables[table].append(row)

    for message in deliver_domain(DOMAIN, made):
        ledger.add(message)
        try:
            event = decoders[message.stream].decode(message.value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            tables["dead_letters"].append({"reason": reason_of(error)})
            continue
        batch.append(as_row(message.stream, event))
        if len(batch) == _BATCH:
            take(host.run_batch(batch))
            batch = []
    take(host.run_batch(batch))
    take(host.drain())
    return tables, topics

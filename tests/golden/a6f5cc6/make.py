"""Checkpoints of the four apps as commit a6f5cc6 wrote them; it runs there, see README.md.

Each app gets a small world of its generator, delayed and repeated, with some events that are late. It is
stopped after some batches, without the empty one that Spark would run next: windows are open, timers are
due and pending, events wait. What it leaves is kept (checkpoint, contract, tables), and so are the records
that come next. Then it goes on by itself to the end of the input; the tables it ends with are what a later
version must arrive at.
"""

from __future__ import annotations

import json
import lzma
import os
import random
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

#: Stands in the kept files for the folder in which they were written.
ROOT = b"/@golden@"
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
#: A Thursday, 13:00 UTC.
START = 1_767_268_800_000
#: App → what it is set to; a later version is given the same.
SETTINGS: dict[str, list[str]] = {
    "fraud": ["stream.out_of_orderness=10 s"],
    "iot": ["stream.out_of_orderness=5 min"],
    "clickstream": ["stream.out_of_orderness=3 min"],
    "ridesharing": ["stream.out_of_orderness=30 s"],
}
COMMON = ["stream.max_future_skew=100000d", "spark.key_groups=4", "spark.shuffle_partitions=1"]
#: How long an event is on its way that is held up: longer than a batch takes of its time.
LATE_MS = {"fraud": 6 * MINUTE, "iot": 35 * MINUTE, "clickstream": 20 * MINUTE, "ridesharing": 20 * MINUTE}
BOUND_MS = {"fraud": 10 * SECOND, "iot": 5 * MINUTE, "clickstream": 3 * MINUTE, "ridesharing": 30 * SECOND}
#: So many batches before the stop, and after it.
BEFORE, AFTER = 3, 2
Sent = tuple[int, str, str, Any]


def fraud() -> Iterator[Sent]:
    """Payments with frauds, and what is said of them within minutes."""
    from millrace_apps.generators.fraud import FraudProfile, simulate

    profile = FraudProfile(
        seed=4, start_ms=START, event_rate=0.4, cards=25, terminals=20, fraud_rate=30, fraud_scale=0.02,
        label_scale=0.0005, events=500,
    )  # fmt: skip
    yield from _simulated(simulate(profile))


def iot() -> Iterator[Sent]:
    """A small fleet with faults; a shift, ten minutes and more of alarms end on both sides of the stop."""
    from millrace_apps.generators.iot import IotProfile, simulate

    profile = IotProfile(
        seed=5, start_ms=START, machines=6, machines_per_line=2, lines_per_plant=1, event_rate=0.16,
        failure_scale=30, sensor_fault_rate=3000.0, outage_rate=200.0, events=1_000,
    )  # fmt: skip
    yield from _simulated(simulate(profile))


def clickstream() -> Iterator[Sent]:
    """An hour and a half of the shop, with carts that are left and orders."""
    from millrace_apps.generators.clickstream import ClickstreamProfile, simulate

    profile = ClickstreamProfile(
        seed=6, start_ms=START, event_rate=0.15, people=40, items=50, known=0.6, boundaries=0.3,
        conversion=0.5, recovery=0.3, events=430,
    )  # fmt: skip
    yield from _simulated(simulate(profile))


def ridesharing() -> Iterator[Sent]:
    """A city in a loop with the app, in memory: riders and drivers answer what it has told them."""
    from millrace_apps.generators.engine.loop import Mailbag
    from millrace_apps.generators.ridesharing import RidesProfile
    from millrace_apps.generators.ridesharing.agents import World
    from millrace_apps.generators.ridesharing.loop import APP_TOPICS
    from millrace_apps.ridesharing.contracts.events import Signal
    from millrace_apps.ridesharing.evaluation.replay import Chain, memory_chain
    from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
    from millrace_apps.ridesharing.settings import RidesharingSettings

    config = RidesharingSettings().dispatch_config()
    profile = RidesProfile(
        seed=5, start_ms=START, drivers=30, rings=1, location_interval_ms=60_000, requests_per_hour=60,
        late_accepts=0.15, cancel_races=0.15, breakdowns=0.1, no_shows=0.1, prebooked=0.2,
    )  # fmt: skip
    world, mail = World(profile), Mailbag(APP_TOPICS)
    app = Chain(lambda: memory_chain(Dispatcher(config), audit=False))
    while world.now_ms < START + 70 * MINUTE:
        until, batch = world.now_ms + 4 * SECOND, []
        for simulated in world.advance(until):
            fields = {"stream": simulated.stream, "entity": simulated.key}
            signal = msgspec.convert(fields | msgspec.structs.asdict(simulated.event), Signal)
            batch.append((simulated.key, signal.event_time_ms, signal, simulated.stream))
            yield (signal.event_time_ms, simulated.stream, simulated.key, simulated.event)
        for told in app.run(batch, until - 1):
            topic = f"ridesharing.{told.output}"
            if topic in APP_TOPICS and (message := mail.open(topic, told.payload)) is not None:
                world.receive(message)


WORLDS: dict[str, Callable[[], Iterator[Sent]]] = {
    "fraud": fraud, "iot": iot, "clickstream": clickstream, "ridesharing": ridesharing,
}  # fmt: skip


def _simulated(events: Iterable[Any]) -> Iterator[Sent]:
    for one in events:
        yield one.event_time_ms, one.stream, one.key, one.event


def records(name: str, settings: Any) -> list[list[Any]]:
    """Return an app's records by batch: out of order within the bound, some repeated, late or broken."""
    from millrace.runtime.replay import Record

    rng, bound = random.Random(7), BOUND_MS[name]
    sent: list[tuple[int, Record]] = []
    for at, stream, key, event in WORLDS[name]():
        # One of fifty is held up on its way, and late.
        came = at + (LATE_MS[name] if rng.random() < 0.02 else rng.randrange(bound * 4 // 5))
        record = Record(getattr(settings.topics, stream), msgspec.json.encode(event), key.encode(), came)
        sent.append((came, record))
        if rng.random() < 0.02:
            sent.append((came + rng.randrange(bound // 5), record))
    sent.sort(key=lambda pair: pair[0])
    first = sent[0][1]
    sent.insert(len(sent) // 3, (0, first._replace(value=b'{"broken')))
    sent.insert(len(sent) * 4 // 5, (0, first._replace(value=b'{"broken":')))
    ordered = [record for _, record in sent]
    # The larger part comes before the stop.
    cut = len(ordered) * 3 // 5
    return [*_pieces(ordered[:cut], BEFORE), *_pieces(ordered[cut:], AFTER)]


def _pieces(of: list[Any], n: int) -> list[list[Any]]:
    size = -(-len(of) // n)
    return [of[i : i + size] for i in range(0, len(of), size)]


def make(name: str, archive: Path) -> None:
    """Run an app to the stop, keep what it leaves, go on to the end, and keep what it says then."""
    from millrace.runtime.apps import load_app
    from millrace.runtime.contract import check_contract
    from millrace.runtime.replay import RecordFiles, run_records
    from millrace.runtime.session import spark_session
    from millrace.runtime.settings import load_settings

    app = load_app(name)
    settings = load_settings(app.settings, app=name, overrides=[*COMMON, *SETTINGS[name]], env={})
    batches = records(name, settings)
    with tempfile.TemporaryDirectory(prefix="millrace-golden-") as folder:
        root, later = Path(folder) / "app", Path(folder) / "later"
        with spark_session(
            f"golden-{name}", master="local[2]", shuffle_partitions=1, quick_start=True,
            log_file=Path(folder) / "spark.log",
            conf={
                "spark.sql.streaming.noDataMicroBatches.enabled": "false",
                "spark.sql.streaming.minBatchesToRetain": "1",
            },
        ) as spark:  # fmt: skip
            _contract(spark, app, settings, root, check_contract)
            # The files have their offsets from one writer; those of later wait beside.
            files = RecordFiles(root / "records")
            for batch in batches:
                files.add(batch)
            later.mkdir()
            for path in sorted((root / "records").glob("*.parquet"))[BEFORE:]:
                path.rename(later / path.name)
            run_records(app, settings, root, root / "records", drain=False, session=spark)
            stopped = Path(folder) / "stopped"
            shutil.copytree(root, stopped)
            for path in sorted(later.iterdir()):
                shutil.copy2(path, root / "records" / path.name)
            spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
            run_records(app, settings, root, root / "records", drain=True, session=spark)
        last = max((root / "records").iterdir())
        shutil.copy2(last, later / last.name)
        pack(stopped, root, later, archive)


def _contract(spark: Any, app: Any, settings: Any, root: Path, check: Callable[..., str]) -> None:
    """Write the contract that ``millrace run`` would have."""
    from millrace.connectors.kafka import with_source_id
    from millrace.runtime.replay import _SPARK_RECORDS

    empty = root.parent / "empty"
    empty.mkdir()
    rows = spark.readStream.schema(_SPARK_RECORDS).parquet(str(empty))
    check(root, app.build({"events": with_source_id(rows)}, settings).stream.contract())


def pack(stopped: Path, own: Path, later: Path, archive: Path) -> None:
    """Keep checkpoint and tables as of the stop, the records after it, and what tables have more then."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as kept:

        def add(name: str, data: bytes) -> None:
            # One date, so that the same checkpoint makes the same archive.
            kept.writestr(zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)

        for top in ("checkpoint", "contract.json", "tables"):
            paths = [stopped / top] if top.endswith(".json") else sorted((stopped / top).rglob("*"))
            for path in paths:
                if path.is_file() and not path.name.endswith(".crc"):
                    add(str(path.relative_to(stopped)), _bare(path, own))
        for path in sorted(later.iterdir()):
            add(f"records/{path.name}", path.read_bytes())
        told = json.dumps(_told_after(stopped, own), sort_keys=True, default=str)
        add("expected.json.xz", lzma.compress(told.encode(), preset=9))


def _bare(path: Path, own: Path) -> bytes:
    data, text = path.read_bytes(), os.fsencode(own)
    if text in data and path.suffix in (".parquet", ".sst", ".changelog", ".zip"):
        raise RuntimeError(f"{path} holds a path and is no text: it would not be readable elsewhere")
    return data.replace(text, ROOT)


def _rows(root: Path) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of all tables."""
    from deltalake import DeltaTable

    found = {}
    for table in sorted((root / "tables").iterdir()):
        found[table.name] = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return found


def _told_after(stopped: Path, ended: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all tables at the end that they did not have at the stop."""
    before, found = _rows(stopped), {}
    for table, rows in _rows(ended).items():
        there = {repr(row) for row in before.get(table, ())}
        found[table] = [row for row in rows if repr(row) not in there]
    return found


if __name__ == "__main__":
    target = Path(__file__).parent if len(sys.argv) < 3 else Path(sys.argv[2])
    for chosen in sys.argv[1].split(",") if len(sys.argv) > 1 else WORLDS:
        make(chosen, target / f"{chosen}.zip")
        print(f"{chosen}: {(target / f'{chosen}.zip').stat().st_size} bytes", flush=True)

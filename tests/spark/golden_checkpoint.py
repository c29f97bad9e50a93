"""A checkpoint that Spark wrote, kept in the repository, so that later versions must go on from it.

``python -m tests.spark.golden_checkpoint`` writes it anew, which is right only when the version of the
state's encoding was raised on purpose: the one before stays where it is, and stays tested.
"""

from __future__ import annotations

import operator
import os
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Literal

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace import (
    BroadcastContext,
    Context,
    KeyedProcess,
    Timer,
    aggregating_state,
    broadcast_state,
    keyed,
    list_state,
    map_state,
    reducing_state,
    value_state,
    versioned_state,
)
from millrace.host.spark import ProcessedStream
from millrace.host.system import Idle, Tick
from millrace.local.jars import ensure_jars
from millrace.runtime.contract import check_contract
from millrace.runtime.session import spark_session
from millrace.state.layout import ENCODING_VERSION
from tests.spark.conftest import Stream
from tests.spark.mirror import DRAIN, SCHEMA, Item, to_row

DATA = Path(__file__).parent / "data" / "golden"
#: Stands in the kept files for the folder in which they were written.
ROOT = b"/@golden@"
START = 1_700_000_000_000
SECOND, MINUTE = 1_000, 60_000
BOUND = 10 * SECOND
#: Text and JSON among the files of a checkpoint; the others hold no paths.
TEXT = ("sources", "offsets", "commits", "metadata", "_metadata", "_stateSchema")


class Sight(msgspec.Struct):
    """An event."""

    who: str
    at: int
    n: int
    note: str | None = None


class Limit(msgspec.Struct):
    """A control event."""

    name: str
    above: int


class Place(msgspec.Struct):
    """A value with a structure."""

    x: float
    names: list[str] = []


class Everything(KeyedProcess[Sight, list[Any]]):
    """Keeps state of every kind and timers on both clocks; its events wait for the watermark."""

    order = "event_time"
    processing_time = True
    control_type = Limit
    number = value_state(int, default=0)
    place = value_state(Place, default_factory=lambda: Place(0.5), ttl=5 * MINUTE, refresh="read_write")
    given = value_state(str, ttl="per_write")
    notes = map_state(str, int, ttl=MINUTE)
    last = list_state(int, ttl=2 * MINUTE)
    total = reducing_state(int, operator.add)
    spread = aggregating_state(
        list[int], create=list, add=lambda kept, n: sorted({*kept, n}), result=lambda kept: kept[-1] - kept[0]
    )
    price = versioned_state(float, history=MINUTE)
    session = value_state(str, ttl=MINUTE, ttl_time="processing_time")
    limits = broadcast_state(str, int)

    def process(self, event: Sight, ctx: Context) -> None:
        """Tell what was kept, and keep more."""
        ctx.emit(["saw", event.n, event.note, self._kept(ctx), sorted(self.limits.items())])
        self.number.value += event.n
        self.place.value.names.append(event.who)
        if event.note is not None:
            self.given.set(event.note, ttl=90 * SECOND)
            self.notes.put(event.note, event.n)
            self.session.value = event.note
        self.last.append(event.n)
        self.total.add(event.n)
        self.spread.add(event.n)
        self.price.put(event.n / 4, ctx.event_time - event.n * 100)
        ctx.timers.after(30 * SECOND, "soon")
        ctx.timers.after(10 * MINUTE, "end")
        ctx.processing_timers.after(MINUTE, "tick")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Tell what was kept; at the end forget it."""
        ctx.emit([timer.domain, timer.name, timer.at, self._kept(ctx)])
        if timer.name == "end":
            for state in (self.number, self.total, self.spread, self.price, self.last):
                state.clear()

    def process_broadcast(self, control: Limit, ctx: BroadcastContext) -> None:
        """Set a limit."""
        self.limits.put(control.name, control.above)

    def _kept(self, ctx: Context) -> list[Any]:
        versions = [[v.value, v.valid_from] for v in self.price.versions(since=ctx.event_time - MINUTE)]
        place = self.place.value
        return [
            self.number.value, [place.x, place.names], self.given.value, list(self.notes.items()),
            list(self.last), self.total.value, self.spread.value, versions, self.session.value,
        ]  # fmt: skip


def batches(part: Literal["before", "after"]) -> list[list[Item]]:
    """Return the batches that stand in the checkpoint, or those that come after it."""
    number = 0 if part == "before" else 1_000
    made: list[list[Item]] = []

    def add(*values: Any) -> None:
        nonlocal number
        batch = []
        for value in values:
            batch.append(Item(f"golden:0:{number}", value, isinstance(value, Limit)))
            number += 1
        made.append(batch)

    def sights(start: int, count: int) -> list[Sight]:
        notes = ["red", None, "blue", "né"]
        return [Sight(f"who-{i % 7}", START + start + i * 700, i % 11, notes[i % 4]) for i in range(count)]

    if part == "before":
        add(*sights(0, 60), Limit("low", 3))
        add(Tick(START), *sights(45 * SECOND, 60))
        # So many keys, and so much of each, that groups have several pages.
        long = [Sight(f"long-{i}", START + 90 * SECOND + i, i, "x" * 2_000 + str(i)) for i in range(80)]
        add(Tick(START + 5), *long)
        add(*sights(95 * SECOND, 30))
    else:
        add(*sights(80 * SECOND, 10), *sights(118 * SECOND, 30), Limit("high", 9))
        add(Tick(START + 3 * MINUTE), Sight("long-3", START + 3 * MINUTE, 1, "new"))
        add(Idle(START + 8 * MINUTE))
        add(Tick(START + 60 * MINUTE))
        add(DRAIN)
        add(Tick(START + 90 * MINUTE))
        add(DRAIN)
    return made


def build(df: DataFrame) -> ProcessedStream:
    """Return the stream of the golden process."""
    return keyed(
        df, by="who", event_time="at", value="value", out_of_orderness=BOUND, source_id="source",
        control=F.col("control"), key_groups=4,
    ).process(Everything())  # fmt: skip


def write(archive: Path) -> None:
    """Run the first part on Spark and keep the checkpoint it leaves."""
    ensure_jars(("spark",))
    with tempfile.TemporaryDirectory(prefix="millrace-golden-") as folder:
        root = Path(folder) / "stream"
        how: dict[str, Any] = {"master": "local[2]", "shuffle_partitions": 2, "quick_start": True}
        with spark_session("golden", **how, log_file=Path(folder) / "spark.log") as spark:
            stream = Stream(spark, root, SCHEMA, build)
            for batch in batches("before"):
                stream.add([to_row(item) for item in batch])
            stream.run()
            if stream.output is None or len(stream.state("pages")) < 8:
                raise RuntimeError("no group has several pages")
            (root / "contract").mkdir()
            check_contract(root / "contract", stream.output.contract())
        pack(root, archive)


def pack(root: Path, archive: Path) -> None:
    """Keep a checkpoint, its folder's name replaced; the input's files are not needed."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    own = str(root).encode()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as kept:
        for path in sorted([*(root / "checkpoint").rglob("*"), *(root / "contract").rglob("*")]):
            name = path.relative_to(root)
            if not path.is_file() or path.name.endswith(".crc"):
                continue
            data = path.read_bytes()
            if own in data and not set(name.parts) & set(TEXT):
                raise RuntimeError(f"{name} holds a path and is no text: it would not be readable elsewhere")
            # One date, so that the same checkpoint makes the same archive.
            kept.writestr(
                zipfile.ZipInfo(str(name), (2000, 1, 1, 0, 0, 0)),
                data.replace(own, ROOT),
                zipfile.ZIP_DEFLATED,
            )


def unpack(archive: Path, root: Path) -> None:
    """Put a kept checkpoint into a folder."""
    with zipfile.ZipFile(archive) as kept:
        for name in kept.namelist():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(kept.read(name).replace(ROOT, os.fsencode(root)))


if __name__ == "__main__":
    # Classes of the module that is run are not found by workers under its name.
    from tests.spark import golden_checkpoint

    target = DATA / f"v{ENCODING_VERSION}" / "checkpoint.zip"
    golden_checkpoint.write(target)
    print(f"{target}: {target.stat().st_size} bytes")
    sys.exit(0)

"""An app's real pipeline over records that are in files: how evaluations run.

What Kafka would bring is written as a folder of Parquet files, one per batch, with the columns of
:func:`millrace.connectors.kafka.kafka_stream`; the app's own topology gets them as its stream, and its
tables are written as always. No broker runs, nothing is sent to topics, and the batches are the same
each time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.errors import UserError
from millrace.host.spark_uploads import AwaitingUploads
from millrace.host.system import Drain, encode_system
from millrace.runtime.apps import App
from millrace.runtime.clock_files import Epoch
from millrace.runtime.contract import check_contract, refuse_older
from millrace.runtime.plans import is_short, settled
from millrace.runtime.settings import AppSettings
from millrace.time.clock import ClockSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What Kafka's source gives, without ``source_id``, which is made of it.
RECORDS: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
_FIRST_FILE_S: Final = 1_000_000_000
#: Whose input ends at the end of the records.
_INCARNATION: Final = "replay"


class Record(NamedTuple):
    """A record as a topic would have it.

    Attributes:
        topic: Its topic.
        value: Its value.
        key: Its key.
        timestamp_ms: When it was sent, ms since the epoch, UTC.
        headers: Its headers: name and value.
    """

    topic: str
    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = 0
    headers: Sequence[tuple[str, bytes]] = ()


@dataclass(frozen=True)
class Replayed:
    """What a replay did.

    Attributes:
        folder: Where it worked.
        rows: Records that were read.
        batches: Batches, the first of which also warms the engine up.
        seconds: From the start of the query to its end.
        first_batch_s: Until the first batch was written; part of ``seconds``.
        first_batch_rows: Records of the first batch.
        outputs: Records per output.
    """

    folder: Path
    rows: int
    batches: int
    seconds: float
    first_batch_s: float
    first_batch_rows: int
    outputs: Mapping[str, int]

    @property
    def events_per_s(self) -> float:
        """Records per second, the start of the query included."""
        return self.rows / max(self.seconds, 1e-9)

    @property
    def warm_events_per_s(self) -> float:
        """Records per second after the first batch; of a single batch, the same as with it."""
        if self.batches < 2:
            return self.events_per_s
        return (self.rows - self.first_batch_rows) / max(self.seconds - self.first_batch_s, 1e-9)

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Read a table that the pipeline wrote.

        Args:
            name: Name of the table.
            columns: These columns only.
        """
        from deltalake import DeltaTable

        wanted = None if columns is None else list(columns)
        return DeltaTable(str(self.folder / "tables" / name)).to_pyarrow_table(columns=wanted)


class RecordFiles:
    """Writes records as the files of a replay, a file per batch; offsets are counted per partition.

    Args:
        folder: Where the files go; made if it is missing.
        first: Number of the first file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = RecordFiles(Path(folder))
        ...     files.add([Record("t", b"{}"), Record("t", b"[]")])
        ...     files.rows
        2
    """

    def __init__(self, folder: Path, *, first: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._offsets: dict[str, int] = {}
        self._files = first
        self.rows = 0

    def add(self, records: Iterable[Record]) -> None:
        """Write one batch; an empty one is left out."""
        topics, values, keys, times, headers = [], [], [], [], []
        for topic, value, key, at, named in records:
            topics.append(topic)
            values.append(value)
            keys.append(key)
            times.append(at)
            headers.append([{"key": k, "value": v} for k, v in named] or None)
        self.add_columns(topics, values, keys, times, headers)

    def add_columns(
        self,
        topics: str | Sequence[str],
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Any] | None = None,
    ) -> None:
        """Write one batch of columns, each with an element per record.

        Args:
            topics: Their topics, or the one topic of all.
            values: Values.
            keys: Keys; left out: none.
            timestamps_ms: When they were sent, ms since the epoch, UTC; left out: 0.
            headers: Lists of ``{"key": …, "value": …}``; left out: none.
        """
        rows = len(values)
        if not rows:
            return
        named = [topics] * rows if isinstance(topics, str) else list(topics)
        table = pa.Table.from_arrays(
            [
                pa.nulls(rows, pa.binary()) if keys is None else pa.array(keys, pa.binary()),
                pa.array(values, pa.binary()),
                pa.array(named, pa.string()),
                pa.array([0] * rows, pa.int32()),
                pa.array(self._places(named), pa.int64()),
                pa.array([0] * rows if timestamps_ms is None else timestamps_ms, pa.timestamp("ms", "UTC")),
                pa.nulls(rows, RECORDS.field("headers").type)
                if headers is None
                else pa.array(headers, RECORDS.field("headers").type),
            ],
            schema=RECORDS,
        )
        path = self._folder / f"{self._files:06}.parquet"
        pq.write_table(table, path, compression="lz4")
        # The engine takes files in the order of their times, whose grain is coarser than our speed.
        os.utime(path, (_FIRST_FILE_S + self._files,) * 2)
        self._files += 1
        self.rows += rows

    def _places(self, topics: Sequence[str]) -> list[int]:
        places = []
        offsets = self._offsets
        for topic in topics:
            place = offsets.get(topic, 0)
            offsets[topic] = place + 1
            places.append(place)
        return places


def run_records(
    app: App,
    settings: AppSettings,
    folder: Path,
    batches: Iterable[Iterable[Record]] | Path,
    *,
    drain: bool = True,
    session: SparkSession | None = None,
    on_batch: Callable[[int, dict[str, int]], None] | None = None,
    log_file: Path | None = None,
) -> Replayed:
    """Run an app's pipeline over records and return what it did; the tables stay under ``folder/tables``.

    A run that was cut off goes on where it was when it is started again over the same folder and files.

    Args:
        app: The app.
        settings: Its settings; ``kafka.*`` is not used.
        folder: Where files, checkpoint and tables go.
        batches: The records, by batch; or a folder that :class:`RecordFiles` has filled.
        drain: At the end move the watermark to the end of time, so that every timer fires; the app must
            have a control topic.
        session: An existing session; left out, one is started and stopped as ``millrace run`` does.
        on_batch: Called after each batch with its id and the number of records per output.
        log_file: Where Spark's own log goes.

    Raises:
        UserError: No records, or the app has no control topic and ``drain`` is wanted.
        QueryFailed: The query failed.
        ContractMismatch: There is a checkpoint of another version in the folder.
    """
    settings = settled(app, settings, "chain", root=folder)
    refuse_older(folder, [link.process for link in app.topology(settings).links])
    source = batches if isinstance(batches, Path) else folder / "records"
    if not isinstance(batches, Path):
        _write_batches(app, settings, source, batches, drain=drain)
    elif drain:
        _end_of(app, settings, source)
    if not any(source.glob("*.parquet")):
        raise UserError(f"{app.name}: there are no records to replay")
    run = _Run(app, settings, folder, source, on_batch)
    if session is not None:
        return run.on(session)
    from millrace.runtime.job import state_conf
    from millrace.runtime.session import spark_session

    spark = settings.spark
    with spark_session(
        f"millrace-replay-{app.name}",
        master=spark.master,
        shuffle_partitions=spark.shuffle_partitions,
        driver_memory=spark.driver_memory,
        quick_start=is_short(settings, lambda: _rows(source), until_end=True),
        log_file=log_file or folder / "logs" / "spark.log",
        conf=state_conf(settings) | dict(spark.conf),
        preload=(app.topology.__module__,),
    ) as made:
        return run.on(made)


def _rows(source: Path) -> int:
    return sum(pq.read_metadata(file).num_rows for file in source.glob("*.parquet"))


def _write_batches(
    app: App, settings: AppSettings, source: Path, batches: Iterable[Iterable[Record]], *, drain: bool
) -> None:
    files = RecordFiles(source)
    for batch in batches:
        files.add(batch)
    if drain and files.rows:
        files.add([_end(app, settings)])


def _end_of(app: App, settings: AppSettings, source: Path) -> None:
    """Add the end of the input to a folder of files, unless it is there."""
    last = max(source.glob("*.parquet"), default=None)
    if last is None:
        return
    end = _end(app, settings)
    if pq.read_metadata(last).num_rows == 1 and pq.read_table(last)["value"][0].as_py() == end.value:
        return
    RecordFiles(source, first=int(last.stem) + 1).add([end])


def _end(app: App, settings: AppSettings) -> Record:
    control = app.topics(settings).control
    if control is None:
        raise UserError(f"{app.name} has no control topic, by which the end of the input would come")
    return Record(control, encode_system(Drain(_INCARNATION)))


def _clock_of_records(live: ClockSettings) -> ClockSettings:
    """Return what the clock of records in files goes by.

    A file is a batch that is whole, however large it is, and when its records arrived says nothing.
    """
    nothing = tuple(None for _ in live.limits)
    off = tuple(None for _ in live.skews)
    return msgspec.structs.replace(live, limits=nothing, skews=off, incarnation=_INCARNATION)


class _Run:
    """One replay."""

    def __init__(
        self,
        app: App,
        settings: AppSettings,
        folder: Path,
        source: Path,
        on_batch: Callable[[int, dict[str, int]], None] | None,
    ) -> None:
        self._app, self._settings, self._folder, self._source = app, settings, folder, source
        self._on_batch = on_batch
        self._batches = 0
        self._first_s = 0.0
        self._outputs: dict[str, int] = {}
        self._began = 0.0

    def on(self, spark: SparkSession) -> Replayed:
        """Run on a session."""
        from millrace.connectors.kafka import with_source_id
        from millrace.host.spark_clock import clock_settings_for
        from millrace.runtime.job import QueryFailed, first_line
        from millrace.runtime.shipping import ship_project
        from millrace.runtime.wiring import outputs_of

        ship_project(spark, self._folder / "shipped")
        records = (
            spark.readStream.schema(_SPARK_RECORDS).option("maxFilesPerTrigger", 1).parquet(str(self._source))
        )
        # What an app keeps beside its tables, a replay keeps in its own folder.
        storage = self._settings.storage.model_copy(update={"root": str(self._folder)})
        settings = self._settings.model_copy(update={"storage": storage})
        outputs = outputs_of(self._app, with_source_id(records), settings)
        incarnation = check_contract(self._folder, outputs.stream.contract())
        self._began = time.monotonic()
        router = self._router(replace(outputs, topics={}), incarnation)
        writer = (
            outputs.stream.raw.writeStream.queryName(f"replay-{self._app.name}")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .foreachBatch(AwaitingUploads(router, self._folder / "checkpoint" / "state"))
            .trigger(availableNow=True)
        )
        with clock_settings_for(spark, [Epoch(0, _clock_of_records(outputs.stream.clock))]):
            query = writer.start()
        try:
            while not query.awaitTermination(1):
                pass
        except Exception as error:
            raise QueryFailed(f"{self._app.name}: {first_line(str(error))}") from error
        finally:
            query.stop()
            router.close()
        files = sorted(self._source.glob("*.parquet"))
        rows = [pq.read_metadata(path).num_rows for path in files]
        return Replayed(
            self._folder,
            sum(rows),
            self._batches,
            time.monotonic() - self._began,
            self._first_s,
            rows[0],
            self._outputs,
        )

    def _router(self, outputs: Any, incarnation: str) -> Any:
        from millrace.connectors.driver_writer import DriverWriter
        from millrace.connectors.router import DeadLetterLimit, Router
        from millrace.connectors.spark_writer import SparkWriter

        def place(table: str) -> str:
            return str(self._folder / "tables" / table)

        name, limit = f"replay:{self._app.name}:{incarnation}", DeadLetterLimit(1.0)
        wait_s = self._settings.stream.merge_interval.total_seconds()
        small = DriverWriter(outputs, place, {}, name, limit, merge_interval_s=wait_s)
        small.prepare()
        large = SparkWriter(outputs, place, {}, name, limit)
        records = self._settings.stream.driver_write_max_records
        return Router(small, large, driver_write_max_records=records, on_batch=self._after_batch)

    def _after_batch(self, batch_id: int, counts: dict[str, int]) -> None:
        if not self._batches:
            self._first_s = time.monotonic() - self._began
        self._batches += 1
        for output, n in counts.items():
            self._outputs[output] = self._outputs.get(output, 0) + n
        if self._on_batch is not None:
            self._on_batch(batch_id, counts)


_SPARK_RECORDS: Final = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)

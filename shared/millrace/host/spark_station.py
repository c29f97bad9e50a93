"""A station inside ``transformWithState``: one operator, one task, a worker of its own.

Spark gives the operator a key for each station, under which all its state stands in one map; each is in a
partition of its own. The worker is the same from batch
to batch, since no other task is given the environment that this one asks for, so that what it has built and
read stays at hand. Where Spark takes another worker nonetheless, that one finds another's token and reads all
it needs: it is slower, and nothing else.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark import SparkContext, TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Row as SparkRow
from pyspark.sql import types as t
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from millrace.host.chunks import decode_input
from millrace.host.groups import group_labels
from millrace.host.packing import keep_out_of_collection
from millrace.host.spark_clock import BatchClock
from millrace.host.spark_state import StateClient
from millrace.host.spark_worker import OUTPUT_SCHEMA, leave_collection_to_spark
from millrace.host.station import VARIABLE, At, Station, StationLink
from millrace.state.keyring import KeyReference

#: The state of a station: link, label of a key group, number of a page → bytes.
PLACE_SCHEMA: Final = t.StructType(
    [
        t.StructField("link", t.IntegerType()),
        t.StructField("label", t.IntegerType()),
        t.StructField("page", t.LongType()),
    ]
)
BYTES_SCHEMA: Final = t.StructType([t.StructField("data", t.BinaryType())])
#: What a station's workers have in their environment, and no others: Spark keeps these apart.
_ENVIRONMENT: Final = "MILLRACE_STATION"
#: Stations that a worker keeps, at least; of one query it has as many as the query has.
_MOST: Final = 4
#: So many pools of workers a session has at most: Spark ends none of them before the session ends, so that
#: streams made later take turns with those of earlier ones.
_POOLS: Final = 4

#: One in so many collections of a worker looks at everything.
WHOLE_EVERY: Final = 16

_pool = itertools.cycle(range(_POOLS))
_OutputRow = SparkRow(*OUTPUT_SCHEMA.fieldNames())
#: The stations of this worker, by identity and number, with their clocks.
_stations: dict[tuple[str, int], tuple[Station, BatchClock]] = {}


class _SparkStore:
    """The bytes of a station in Spark's state store.

    Args:
        pages: The map that they are in.
    """

    def __init__(self, pages: Any) -> None:
        self._client = StateClient(pages)
        self._unsent: dict[At, bytes | None] = {}

    def read(self, places: Sequence[At]) -> list[bytes | None]:
        return self._client.get(places)

    def write(self, place: At, data: bytes) -> None:
        self._unsent[place] = data

    def remove(self, place: At) -> None:
        self._unsent[place] = None

    def push(self) -> None:
        unsent, self._unsent = self._unsent, {}
        self._client.put(unsent.items(), wait=False)

    def flush(self) -> None:
        self.push()
        self._client.put(())


class StationProcessor(StatefulProcessor):
    """Runs a station.

    Args:
        identity: Identity of the stream that it is of.
        packed: What a station is made of, pickled: a worker unpickles it once.
        stations: How many there are.
    """

    def __init__(self, identity: str, packed: bytes, stations: int) -> None:
        self._identity = identity
        self._packed = packed
        self._stations = stations

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state; called on the driver for the schema and in every task."""
        leave_collection_to_spark()
        keep_survivors_out_of_collection()
        self._pages = handle.getMapState(VARIABLE, PLACE_SCHEMA, BYTES_SCHEMA)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[SparkRow]:
        """Run one batch."""
        station, clock = self._station(group_labels(self._stations).index(int(key[0])))
        chunks = (decode_input(row[1]) for row in rows)
        for output, records, chunk in station.run(chunks, _SparkStore(self._pages), clock.now()):
            yield _OutputRow(output, records, chunk)

    def close(self) -> None:
        """Nothing to release."""

    def _station(self, number: int) -> tuple[Station, BatchClock]:
        place = self._identity, number
        found = _stations.get(place)
        if found is None:
            links, keys, clock = cloudpickle.loads(self._packed)
            while len(_stations) >= max(_MOST, self._stations):
                del _stations[next(iter(_stations))]
                gc.unfreeze()  # its parts hold each other: they are to be found
            found = _stations[place] = Station(links, keys, number=number, stations=self._stations), clock
            keep_out_of_collection()
        return found


def run_station(
    rows: DataFrame,
    links: Sequence[StationLink],
    keys: KeyReference | None,
    clock: BatchClock,
    stations: int = 1,
) -> DataFrame:
    """Run a topology over packed rows, whose ``_group`` is the label of a station, in one operator.

    Args:
        rows: The rows; for a single station in one partition.
        links: The links.
        keys: Where the keys are that state is encrypted with.
        clock: What the clock goes by.
        stations: How many there are.
    """
    identity = uuid.uuid4().hex
    packed = cloudpickle.dumps((tuple(links), keys, clock))  # type: ignore[no-untyped-call]
    processor = StationProcessor(identity, packed, stations)
    with _own_workers(rows.sparkSession, next(_pool)):
        return rows.groupBy("_group").transformWithState(
            statefulProcessor=processor,
            outputStructType=OUTPUT_SCHEMA,
            outputMode="Append",
            timeMode="None",
        )


def keep_survivors_out_of_collection() -> None:
    """Have a worker of Spark's look at what has survived a collection in one of some collections only.

    Spark has its workers collect after every task. A station's pages are tens of thousands of objects, none
    of which is in a cycle. What is left of a task may be, and may have survived because the next one had not
    taken its place yet.
    """
    if TaskContext.get() is not None and _apart not in gc.callbacks:
        gc.callbacks.append(_apart)


class _Apart:
    """Keeps survivors out of collections; called by the collector before and after each.

    Attributes:
        seen: Whole collections so far.
    """

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "stop":
            gc.freeze()
            return
        self.seen += 1
        if self.seen % WHOLE_EVERY == 0:
            gc.unfreeze()


_apart: Final = _Apart()


@contextlib.contextmanager
def _own_workers(session: SparkSession, pool: int) -> Iterator[None]:
    """Have functions that are made in the block run in workers of their own, where Spark can say so."""
    context: SparkContext | None = getattr(session, "_sc", None)
    environment = getattr(context, "environment", None)
    if not isinstance(environment, dict):
        yield
        return
    environment[_ENVIRONMENT] = str(pool)
    try:
        yield
    finally:
        del environment[_ENVIRONMENT]

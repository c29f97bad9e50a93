"""Spark's settings for stateful streaming, each with the reason why it is not left as it is."""

from __future__ import annotations

from typing import NamedTuple

from millrace.runtime.redaction import spark_name_regex, spark_text_regex


class Default(NamedTuple):
    """A setting that Millrace changes.

    Attributes:
        value: What it is set to; text, as Spark takes it.
        reason: Why.
    """

    value: str
    reason: str


_STATE = "spark.sql.streaming.stateStore"

#: Settings of every session. Those marked *frozen* become part of a checkpoint: changing them needs a
#: new one.
STREAMING_DEFAULTS: dict[str, Default] = {
    f"{_STATE}.providerClass": Default(
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        "transformWithState needs it; frozen",
    ),
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": Default(
        "true", "a batch uploads what it changed and not whole snapshots"
    ),
    f"{_STATE}.rocksdb.trackTotalNumberOfRows": Default(
        "false", "counting rows costs a read before every write: 3-4 times slower puts"
    ),
    f"{_STATE}.rocksdb.boundedMemoryUsage": Default(
        "true", "one memory budget for all partitions of an executor instead of one each"
    ),
    f"{_STATE}.rocksdb.maxMemoryUsageMB": Default("256", "the budget of the line above"),
    f"{_STATE}.checkpointFormatVersion": Default(
        "2", "state files are named by a unique id per attempt, so a retried task cannot overwrite; frozen"
    ),
    "spark.sql.streaming.minBatchesToRetain": Default(
        "10", "each batch keeps the pages it rewrote: 100 (the default) are gigabytes for nothing"
    ),
    "spark.sql.streaming.noDataProgressEventInterval": Default(
        "1000", "an idle query reports every second, so that rates and lag on show are true"
    ),
    "spark.sql.streaming.stopTimeout": Default("60000", "a stop that hangs is an error, not a wait for ever"),
    "spark.sql.adaptive.enabled": Default(
        "false", "it re-plans small batches at a cost larger than the batch"
    ),
    "spark.sql.session.timeZone": Default("UTC", "times mean the same on every machine"),
    "spark.sql.execution.arrow.pyspark.enabled": Default("true", "toPandas and createDataFrame by columns"),
    "spark.sql.execution.arrow.maxBytesPerBatch": Default(
        "2147483647",
        "any smaller limit makes Spark measure the batch anew after every row that goes to Python, half of "
        "the JVM's work with a column of lists; batches are limited by rows (maxRecordsPerBatch)",
    ),
    "spark.sql.execution.pythonUDF.arrow.enabled": Default("true", "the same for functions in Python"),
    "spark.databricks.delta.snapshotPartitions": Default(
        "2", "50 tasks (the default) to read a small table's log cost seconds per commit"
    ),
    "spark.databricks.delta.stats.collect.using.tableSchema": Default(
        "true", "statistics by the table's schema"
    ),
    "spark.sql.extensions": Default("io.delta.sql.DeltaSparkSessionExtension", "Delta tables"),
    "spark.sql.catalog.spark_catalog": Default(
        "org.apache.spark.sql.delta.catalog.DeltaCatalog", "Delta tables by name"
    ),
    "spark.ui.showConsoleProgress": Default("false", "progress bars would tear the terminal's live view"),
    "spark.redaction.regex": Default(
        spark_name_regex(), "the default misses most secrets of Kafka's and Hadoop's clients"
    ),
    "spark.redaction.string.regex": Default(
        spark_text_regex(), "plans are shown and logged, and by default in them nothing is hidden"
    ),
}

#: Of a query that runs as a station, beside those of every session.
STATION_DEFAULTS: dict[str, Default] = {
    f"{_STATE}.minDeltasForSnapshot": Default(
        "30",
        "a snapshot writes out and links what is in memory: after ten quick batches (the default) pages that "
        "each batch writes again came to the disk six times a minute, and were sorted into the rest as often",
    ),
}

#: Of a station that can ask for uploads of its state.
ASKED_DEFAULTS: dict[str, Default] = {
    f"{_STATE}.maintenanceInterval": Default(
        "150s",
        "with random keys all of a large state's files are sorted anew within a minute (the default), and "
        "uploaded again; quick batches ask for uploads before",
    ),
}

#: Only with a local master: the checkpoint is on a local disk, workers are on this machine.
LOCAL_DEFAULTS: dict[str, Default] = {
    "spark.sql.streaming.checkpointFileManagerClass": Default(
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
        "the default shells out for permissions: a small batch takes 35-50 % less time without",
    ),
    "spark.authenticate": Default(
        "true",
        "the driver's ports would take what any user of this machine sends; Spark makes the secret itself",
    ),
    "spark.python.unix.domain.socket.enabled": Default(
        "true", "state calls of a Python worker are 10-25 % quicker than over loopback TCP"
    ),
    "spark.hadoop.fs.file.impl": Default(
        "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
        "without its native library Hadoop starts a chmod process for every file it makes on a local disk: "
        "about 35 for a batch that writes two tables",
    ),
    "spark.delta.logStore.file.impl": Default(
        "io.delta.storage.LocalLogStore",
        "the default starts readlink processes, about 20 for a batch that writes two tables; a table has one "
        "writer, the owner of the checkpoint",
    ),
}

#: Option of the driver's JVM for short runs.
QUICK_START = Default(
    "-XX:TieredStopAtLevel=1",
    "most of a short run's CPU time goes to the JVM's optimising compiler: without it the first batch needs "
    "about 60 % of the CPU time, and long runs of large batches are slower",
)

#: Options of the driver's JVM for all other runs with a local master: it shares its cores with the work.
STEADY_RUN = {
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000": (
        "the optimising compiler takes what is ten times as hot as by default: planning and start-up code is "
        "not worth it, and on two cores it held up the first minutes"
    ),
    "-XX:+UseParallelGC": "the concurrent collector cost a fifth of the JVM's CPU time of a drain",
}

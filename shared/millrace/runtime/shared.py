"""One Spark session for the queries of several apps in one process.

A JVM takes seconds of CPU time to start and a gigabyte of memory, whatever it does: on a laptop four apps in
one cost about what two cost alone. Each app has a session of its own over the same engine (``newSession``),
with its own number of partitions, and a pool of its own, so that none waits until another's backlog is read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Gives the session of an app: its name, and what its queries are set to.
Sessions = Callable[[str, Mapping[str, str]], AbstractContextManager["SparkSession"]]

#: What the shared engine needs: tasks of all pools take turns, not one job after the other.
SHARED_CONF: Final = {"spark.scheduler.mode": "FAIR"}
_POOL: Final = "spark.scheduler.pool"


class SharedSession:
    """Gives each app a session over an engine that is started elsewhere; the engine outlives them all.

    Apps may ask before there is one: they wait.

    Example:
        >>> shared = SharedSession()
        >>> with spark_session("demo", conf=SHARED_CONF) as spark:  # doctest: +SKIP
        ...     shared.give(spark)
        ...     with shared.of("fraud", {"spark.sql.shuffle.partitions": "1"}) as own:
        ...         own.conf.get("spark.sql.shuffle.partitions")
        '1'
    """

    def __init__(self) -> None:
        self._there = threading.Event()
        self._spark: SparkSession | None = None
        self._making = threading.Lock()

    def give(self, spark: SparkSession | None) -> None:
        """Say which engine there is; ``None``: there will be none, and nobody needs to wait."""
        self._spark = spark
        self._there.set()

    @contextmanager
    def of(self, app: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
        """Give an app's session while the block runs.

        Args:
            app: Its name, which its pool has too.
            conf: What it is set to, beside what the engine was started with.

        Raises:
            MillraceError: There is no engine: it did not start, or has ended.
        """
        from millrace.errors import MillraceError

        self._there.wait()
        if self._spark is None:
            raise MillraceError(f"{app}: Spark did not start")
        with self._making:
            session = self._spark.newSession()
            for name, value in conf.items():
                session.conf.set(name, value)
        # Of this thread, and so of the query that it starts.
        session.sparkContext.setLocalProperty(_POOL, app)
        yield session

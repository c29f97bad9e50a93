"""Holds a query back whose state store is behind with uploading its snapshots.

Each changelog of Spark's state store begins with the versions that it stands on, back to the snapshot that
was uploaded last, as text of at most 64 KiB: about 820 versions, one for each batch. The batch after that
cannot be written, nor can it after a restart. Snapshots are uploaded in the background, once a minute:
batches of less than 75 ms, or uploads that take minutes, get there. So the query waits for the upload before.

With a local master uploads can be asked for. So they are made less often by the clock, since each may be the
whole state, and sooner where batches are quick.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: A version may stand on so many others since the last snapshot that was uploaded.
MOST_VERSIONS: Final = 780
#: Of so many of them uploads are asked for after as many versions, and again after so many more.
_ASK_AT: Final = 0.75
_AGAIN_AFTER: Final = 0.04
_LOOK_S: Final = 0.25
_TELL_S: Final = 60.0

log = logging.getLogger(__name__)


class AwaitingUploads:
    """Writes the batches of a query, and has the next one wait where it must.

    Args:
        write: Writes a batch.
        state: The folder ``state`` of the query's checkpoint.
        stop: When set, nothing is waited for.
        most: Versions that may have come since the last snapshot that was uploaded.
        ask: Has what is there uploaded, in the background; ``None``: that cannot be asked for.
    """

    def __init__(
        self,
        write: Callable[[DataFrame, int], None],
        state: Path,
        stop: threading.Event | None = None,
        *,
        most: int = MOST_VERSIONS,
        ask: Callable[[], None] | None = None,
    ) -> None:
        self._write, self._state, self._stop, self._most, self._ask = write, state, stop, most, ask
        self._uploaded = self._asked = -math.inf

    def __call__(self, batch: Any, batch_id: int) -> None:
        """Write one batch."""
        self._write(batch, batch_id)
        version = batch_id + 1
        if self._ask is not None and self._is_time(version):
            self._uploaded = min(uploaded(self._state), version)
            if self._is_time(version):
                self._asked = version
                self._ask()
        if version - self._uploaded >= self._most:
            self._wait(version)

    def _is_time(self, version: int) -> bool:
        """Return whether uploads are to be asked for."""
        return (
            version - self._uploaded >= self._most * _ASK_AT
            and version - self._asked >= self._most * _AGAIN_AFTER
        )

    def _wait(self, version: int) -> None:
        """Wait until the versions since the last snapshot are few enough."""
        told = -math.inf
        while True:
            self._uploaded = min(uploaded(self._state), version)
            behind = version - self._uploaded
            if behind < self._most or (self._stop is not None and self._stop.is_set()):
                return
            if time.monotonic() - told >= _TELL_S:
                told = time.monotonic()
                if self._ask is not None:
                    self._ask()
                log.warning(
                    "%d versions of the state stand on the snapshot that was uploaded last, and Spark can "
                    "name no more than some 800: the query waits for the next upload "
                    "(spark.sql.streaming.stateStore.maintenanceInterval says how often there is one)",
                    int(behind),
                )
            (self._stop or threading.Event()).wait(_LOOK_S)


def uploads_of(spark: SparkSession) -> Callable[[], None] | None:
    """Return what has the state stores of this process upload their newest snapshots, in the background.

    Spark does it by the clock alone, and has no other way to it than a function of its own.

    Args:
        spark: The session; its master is local.

    Returns:
        The function; ``None`` where this PySpark has none, or there is no JVM to ask.
    """
    try:
        jvm: Any = spark._jvm
        name = "org.apache.spark.sql.execution.streaming.state.StateStore"
        stores = jvm.java.lang.Class.forName(f"{name}$")
        of_all = stores.getField("MODULE$").get(None)
        session = spark._jsparkSession  # noqa: SLF001
        conf = getattr(jvm, f"{name}Conf").apply(session.sessionState().conf())
        new_array = spark.sparkContext._gateway.new_array  # type: ignore[union-attr]
        types = new_array(jvm.java.lang.Class, 1)
        types[0] = conf.getClass()
        upload = stores.getDeclaredMethod("doMaintenance", types)
        upload.setAccessible(True)
        given = new_array(jvm.java.lang.Object, 1)
        given[0] = conf
    except Exception as error:  # whichever of another PySpark's
        log.info("uploads of state are made by the clock alone: %s", error)
        return None

    def ask() -> None:
        try:
            upload.invoke(of_all, given)
        except Exception as error:
            log.warning("the state's upload could not be asked for, and comes by the clock: %s", error)

    return ask


def uploaded(state: Path) -> float:
    """Return the version of the oldest of all stores' newest snapshots; infinity where there is no store.

    A store that has none yet stands on version 0.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> uploaded(folder)
    inf
    >>> store = folder / "0" / "0"
    >>> store.mkdir(parents=True)
    >>> for name in ("1_a.changelog", "31_b.changelog", "31_b.zip", "9_c.zip"):
    ...     (store / name).touch()
    >>> uploaded(folder)
    31
    """
    found = math.inf
    for _, _, names in os.walk(state):
        versions = [int(name.split("_")[0].split(".")[0]) for name in names if _is_of(name, ".zip")]
        if versions or any(_is_of(name, ".changelog") for name in names):
            found = min(found, max(versions, default=0))
    return found


def _is_of(name: str, kind: str) -> bool:
    return name.endswith(kind) and name[0].isdigit()

"""A small Spark session for looking at checkpoints and writing them anew."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millrace.errors import MillraceError
from millrace.runtime.session import spark_session


class StateUnreadable(MillraceError):
    """State could not be read or written."""


@contextlib.contextmanager
def tool_session(*, memory: str = "2g", log_file: Path | None = None) -> Iterator[SparkSession]:
    """Start a local session that says nothing, and stop it when the block ends.

    Args:
        memory: Heap of its JVM.
        log_file: Where Spark's own log goes.

    Raises:
        StateUnreadable: Spark or its workers could not do what the block asked for; in one line.
    """
    logging.getLogger("py4j").setLevel(logging.ERROR)
    with spark_session(
        "millrace-state", master="local[*]", driver_memory=memory, quick_start=True, log_file=log_file
    ) as spark:
        try:
            yield spark
        except (PySparkException, Py4JJavaError) as error:
            text = str(error)  # asked for while the JVM is there to tell
            logging.getLogger("millrace.state").debug("%s", text)
            raise StateUnreadable(reason(text)) from None


def reason(text: str) -> str:
    r"""Return the line of an engine's error that says what went wrong: ours, if there is one, else its root.

    >>> reason("Job aborted.\n  File x\nmillrace.state.cells.StateCorrupted: page 3 is damaged")
    'page 3 is damaged'
    >>> reason("An error occurred while calling o1.x.\n: Failed: job aborted\nCaused by: Full: no space")
    'Full: no space'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        name, colon, rest = line.partition(": ")
        if colon and rest and name.startswith("millrace."):
            return rest
    caused = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    # Py4J says "An error occurred while calling o12.x" first, and below it, after a colon, which.
    said = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return next(iter([*reversed(caused), *said, *lines]), "unknown error")

"""The Spark session of a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def start_session() -> Iterator[SparkSession]:
    """Start a small local session, with the jars of the lock."""
    from millrace.local.jars import ensure_jars
    from millrace.runtime.session import spark_session

    ensure_jars(("spark",))
    with spark_session("recipe", master="local[2]", quick_start=True) as spark:
        yield spark

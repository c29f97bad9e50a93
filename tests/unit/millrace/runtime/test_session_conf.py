"""What a session is started with."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import UserError
from millrace.runtime import session
from millrace.runtime.defaults import QUICK_START, STEADY_RUN
from millrace.runtime.session import spark_metrics

ARCHIVE = "-XX:SharedArchiveFile=/cache/spark.jsa"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Path | None]:
    """Return where each archive of classes that was asked for may be written."""
    asked: list[Path | None] = []

    def flags(_java: Any, _jars: Sequence[Path], *, write_below: Path | None = None, **_: Any) -> list[str]:
        asked.append(write_below)
        return [ARCHIVE]

    monkeypatch.setattr(session, "archive_flags", flags)
    monkeypatch.setattr(session, "check_java", lambda: None)
    monkeypatch.setattr(session, "jar_paths", lambda _: [])
    monkeypatch.setattr(session, "log_configuration", lambda scratch: scratch / "log4j2.properties")
    return asked


def options(**more: Any) -> list[str]:
    """Return the options of the JVM."""
    conf = session.session_conf(scratch=Path("/scratch"), **more)
    return conf["spark.driver.extraJavaOptions"].split()


@pytest.mark.parametrize("quick", [True, False])
def test_every_local_run_takes_sparks_classes_from_the_archive(asked: list[Path | None], quick: bool) -> None:
    found = options(master="local[2]", quick_start=quick)
    assert ARCHIVE in found
    assert (QUICK_START.value in found) is quick
    assert ("-XX:+UseParallelGC" in found) is not quick
    assert asked == [None]


@pytest.mark.parametrize("quick", [True, False])
def test_it_is_written_by_runs_that_are_typical(asked: list[Path | None], quick: bool) -> None:
    options(master="local[2]", quick_start=quick, writes_archive=True)
    assert asked == [Path("/scratch")]


def test_the_driver_of_a_cluster_takes_none(asked: list[Path | None]) -> None:
    found = options(master="spark://host:7077")
    assert ARCHIVE not in found
    assert not set(found) & set(STEADY_RUN)
    assert asked == []


def test_spark_shows_its_metrics_where_it_is_told_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{taken} .*metrics.spark_port"):
            spark_metrics("127.0.0.1", taken)
    conf = spark_metrics("127.0.0.1", taken)
    assert (conf["spark.ui.enabled"], conf["spark.ui.port"]) == ("true", str(taken))
    assert spark_metrics("127.0.0.1", None) == {}

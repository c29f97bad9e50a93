"""A query waits for the upload of its state's snapshots, before Spark cannot name the versions since."""

from __future__ import annotations

import logging
import math
import pickle
import random
import threading
from pathlib import Path

import pytest

from millrace.host.spark_uploads import AwaitingUploads, uploaded


class Store:
    """The files of one store; a version that is a snapshot has a ``.zip``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)

    def put(self, version: int, kind: str = "changelog", name: str = "_8f1e") -> None:
        (self._folder / f"{version}{name}.{kind}").touch()


def test_the_oldest_of_the_newest_snapshots_counts_whatever_else_is_there(tmp_path: Path) -> None:
    """Random stores of several operators and partitions, beside a list of them."""
    rng = random.Random(5)
    for case in range(200):
        state = tmp_path / str(case)
        newest = []
        for number in range(rng.randrange(4)):
            store = Store(state / str(rng.randrange(2)) / str(number))
            snapshots = sorted(rng.sample(range(1, 2_000), rng.randrange(3)))
            for version in range(1, rng.randrange(2, 9)):
                store.put(version, name=rng.choice(["", "_8f1e"]))
            for version in snapshots:
                store.put(version, "zip", rng.choice(["", "_8f1e"]))
            store.put(5_000, "sst", "")
            (state / ".5001_x.zip.tmp").touch()
            newest.append(max(snapshots, default=0))
        assert uploaded(state) == min(newest, default=math.inf)


def test_a_batch_that_is_far_from_the_last_snapshot_waits_for_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stores = Store(tmp_path / "0" / "0"), Store(tmp_path / "0" / "1")
    written: list[int] = []
    looks = 0

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            nonlocal looks
            looks += 1
            for store in stores if looks == 2 else ():
                store.put(max(written), "zip")
            return False

    query = AwaitingUploads(lambda _, batch: written.append(batch), tmp_path, Stop(), most=5)
    with caplog.at_level(logging.WARNING):
        for batch in range(4):
            for store in stores:
                store.put(batch + 1)
            query(None, batch)
        assert looks == 0
        query(None, 4)  # version 5 stands on 0
    assert (written, looks) == ([0, 1, 2, 3, 4], 2)
    assert [record.message[:20] for record in caplog.records] == ["5 versions of the st"]
    for batch in range(5, 8):
        query(None, batch)
    assert looks == 2  # version 8 stands on 4


def test_uploads_are_asked_for_before_the_query_would_wait(tmp_path: Path) -> None:
    store = Store(tmp_path / "0" / "0")
    asked: list[int] = []
    done: list[int] = []
    comes = {81: 79, 157: 150}  # batch → the snapshot that is there behind it

    def write(_: object, batch: int) -> None:
        done.append(batch)
        store.put(batch + 1)
        if batch in comes:
            store.put(comes[batch], "zip")

    stopped = threading.Event()
    stopped.set()
    query = AwaitingUploads(write, tmp_path, stopped, most=100, ask=lambda: asked.append(done[-1] + 1))
    for batch in range(235):
        query(None, batch)
    # Each 4 versions until there is one; then after 75 since that.
    assert asked == [75, 79, 154, 225, 229, 233]


def test_a_store_that_was_not_seen_at_first_is_looked_at_later(tmp_path: Path) -> None:
    """A folder that cannot be read for a moment is as none: the query would end for good without uploads."""
    asked: list[int] = []
    stopped = threading.Event()
    stopped.set()
    query = AwaitingUploads(
        lambda _, batch: store.put(batch + 1) if batch else None, tmp_path, stopped, most=100,
        ask=lambda: asked.append(1),
    )  # fmt: skip
    query(None, 0)
    store = Store(tmp_path / "0" / "0")
    for batch in range(1, 75):
        query(None, batch)
    assert asked == []
    query(None, 75)  # version 76 stands on 0
    assert asked == [1]


def test_without_many_versions_nothing_is_asked_for(tmp_path: Path) -> None:
    store = Store(tmp_path / "0" / "0")
    for version in range(1, 75):
        store.put(version)
    asked: list[int] = []
    query = AwaitingUploads(lambda *_: None, tmp_path, most=100, ask=lambda: asked.append(1))
    for batch in range(74):
        query(None, batch)
    assert asked == []


@pytest.mark.timeout(20)
def test_no_store_none_that_is_stopped_and_none_that_begins_anew_waits(tmp_path: Path) -> None:
    written: list[int] = []

    def write(_: object, batch: int) -> None:
        written.append(batch)

    AwaitingUploads(write, tmp_path / "none", most=2)(None, 900)
    stopped = threading.Event()
    stopped.set()
    store = Store(tmp_path / "state" / "0" / "0")
    store.put(900)
    AwaitingUploads(write, tmp_path / "state", stopped, most=2)(None, 900)
    store.put(900, "zip")
    AwaitingUploads(write, tmp_path / "state", most=2)(None, 900)
    assert written == [900] * 3


def test_a_write_that_fails_fails_and_waits_for_nothing(tmp_path: Path) -> None:
    Store(tmp_path / "0" / "0").put(1)

    def fail(_: object, batch: int) -> None:
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        AwaitingUploads(fail, tmp_path, most=1)(None, 5)


def test_it_can_be_sent_to_a_server(tmp_path: Path) -> None:
    sent = pickle.loads(pickle.dumps(AwaitingUploads(print, tmp_path)))  # noqa: S301
    sent("rows", 3)

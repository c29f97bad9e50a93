"""What was told to be safe arrives, whatever happens to the server, the broker or the disk."""

from __future__ import annotations

import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from millrace.errors import UserError
from millrace.serving import outbox as module
from millrace.serving.handing import HandingOn, NotHandedOn, Place
from millrace.serving.outbox import Outbox
from tests.cases import case_count

CASES = case_count(15)


class Broker(HandingOn):
    """Takes what it is sent, in a random mood: at once, later, or not."""

    def __init__(self, rng: Random | None = None) -> None:
        self.there: list[bytes] = []
        self.late: list[tuple[bytes, Future[Place]]] = []
        self.is_down = self.is_slow = False
        self._rng = rng

    def send(self, key: bytes, value: bytes) -> Future[Place]:
        done: Future[Place] = Future()
        mood = self._rng.random() if self._rng else 1.0
        if self.is_down or mood < 0.1:
            done.set_exception(NotHandedOn("nobody is there"))
        elif self.is_slow or mood < 0.4:
            self.late.append((value, done))
        else:
            self.take(value, done)
        return done

    def take(self, value: bytes, done: Future[Place]) -> None:
        self.there.append(value)
        done.set_result((0, len(self.there) - 1))

    def settle(self) -> None:
        late, self.late = self.late, []
        for value, done in late:
            self.take(value, done)

    def close(self) -> int:
        return 0


def until(condition: Callable[[], bool], patience_s: float = 10.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "not within the patience"
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", 0.02)


@pytest.mark.parametrize("seed", range(CASES))
def test_all_that_is_safe_arrives_over_restarts_and_moods_of_the_broker(seed: int, tmp_path: Path) -> None:
    """Held against a list of what was told to be safe; each place that is told holds the event."""
    rng = Random(seed)
    safe: list[bytes] = []
    broker = Broker(rng)
    number = 0
    for _ in range(rng.randrange(1, 6)):
        box = Outbox(tmp_path, "t", lambda: broker)
        assert [kept.value for kept in box.found] == safe
        assert all(kept.place is None or broker.there[kept.place[1]] == kept.value for kept in box.found)
        sent = []
        for _ in range(rng.randrange(40)):
            value = b"%d" % number
            number += 1
            sent.append((value, box.send(b"k", value, b"n" + value)))
            if rng.random() < 0.3:
                broker.settle()
        for value, one in sent:
            one.safe.result(10)
            safe.append(value)
        if rng.random() < 0.5:
            until(lambda box=box: broker.settle() or box.waiting == 0)  # type: ignore[misc]
            assert set(safe) <= set(broker.there)
        for value, one in sent:
            if one.place.done():
                assert broker.there[one.place.result()[1]] == value
        left = box.close()
        broker.late.clear()  # what was on its way in the server's memory is gone with it
    box = Outbox(tmp_path, "t", lambda: broker)
    assert box.to_send >= left
    assert [kept.note for kept in box.found] == [b"n" + value for value in safe]
    until(lambda: broker.settle() or box.waiting == 0)  # type: ignore[func-returns-value]
    assert box.close() == 0
    assert set(broker.there) == set(safe)


def test_what_the_broker_takes_at_once_goes_on_in_the_order_in_which_it_came(tmp_path: Path) -> None:
    broker = Broker()
    box = Outbox(tmp_path, "t", lambda: broker)
    for number in range(500):
        box.send(b"k", b"%d" % number)
    until(lambda: len(broker.there) == 500)
    assert broker.there == [b"%d" % number for number in range(500)]
    assert box.close() == 0


@pytest.mark.parametrize("seed", range(CASES))
def test_a_broker_that_goes_and_comes_does_not_let_later_events_overtake(seed: int, tmp_path: Path) -> None:
    rng, broker = Random(seed), Broker()
    box = Outbox(tmp_path, "t", lambda: broker)
    for number in range(60):
        broker.is_down = rng.random() < 0.4
        one = box.send(b"k", b"%d" % number)
        if rng.random() < 0.5:
            one.safe.result(10)
            time.sleep(rng.random() * 0.01)
    broker.is_down = False
    until(lambda: len(broker.there) == 60)
    assert broker.there == [b"%d" % number for number in range(60)]
    assert box.close() == 0


_CHILD = """
import sys
from pathlib import Path
from concurrent.futures import Future
from millrace.serving.handing import HandingOn
from millrace.serving.outbox import Outbox

class Nowhere(HandingOn):
    def __init__(self): pass
    def send(self, key, value): return Future()
    def close(self): return 0

box = Outbox(Path(sys.argv[1]), "t", Nowhere)
number = 0
while True:
    box.send(b"k", b"%d" % number).safe.result()
    print(number, flush=True)
    number += 1
"""


def test_a_server_that_is_killed_loses_nothing_that_was_safe(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert child.stdout is not None
    said = [child.stdout.readline() for _ in range(50)]
    child.send_signal(signal.SIGKILL)
    said += child.stdout.readlines()
    child.stdout.close()
    child.wait(10)
    told = [int(line) for line in said if line.endswith("\n")]
    broker = Broker()
    box = Outbox(tmp_path, "t", lambda: broker)
    until(lambda: box.waiting == 0)
    assert box.close() == 0
    # One may be on the disk that was not told any more.
    assert broker.there[: len(told)] == [b"%d" % number for number in told]
    assert len(broker.there) - len(told) in (0, 1)


def test_nothing_is_taken_while_the_broker_is_away_for_long_if_that_is_asked_for(tmp_path: Path) -> None:
    broker = Broker()
    broker.is_down = True
    box = Outbox(tmp_path, "t", lambda: broker, refuse_after_s=0.05)
    box.send(b"k", b"1").safe.result(10)
    time.sleep(0.1)
    with pytest.raises(NotHandedOn, match="taken nothing for"):
        box.send(b"k", b"2").safe.result(10)
    broker.is_down = False
    until(lambda: box.waiting == 0)
    assert box.send(b"k", b"3").safe.result(10) is None
    until(lambda: len(broker.there) == 2)
    assert (box.close(), broker.there) == (0, [b"1", b"3"])


def test_more_than_it_holds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    broker = Broker()
    broker.is_slow = True
    box = Outbox(tmp_path, "t", lambda: broker)
    for number in range(3):
        box.send(b"k", b"%d" % number).safe.result(10)
    with pytest.raises(NotHandedOn, match="3 payments wait"):
        box.send(b"k", b"3").safe.result(10)
    assert box.close() == 3


def test_what_the_disk_does_not_take_is_not_safe_and_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, whole = Broker(), module._transaction

    def full(_rows: object) -> object:
        raise sqlite3.OperationalError("database or disk is full")

    box = Outbox(tmp_path, "t", lambda: broker)
    box.send(b"k", b"1").safe.result(10)
    until(lambda: box.waiting == 0)
    monkeypatch.setattr(module, "_transaction", full)
    with pytest.raises(NotHandedOn, match="disk is full"):
        box.send(b"k", b"2").safe.result(10)
    monkeypatch.setattr(module, "_transaction", whole)
    assert box.send(b"k", b"3").safe.result(10) is None
    until(lambda: box.waiting == 0)
    assert (box.close(), broker.there) == (0, [b"1", b"3"])
    again = Outbox(tmp_path, "t", lambda: broker)
    # The place of the first one could not be noted at first, and was later.
    assert [(kept.value, kept.place) for kept in again.found] == [(b"1", (0, 0)), (b"3", (0, 1))]
    again.close()


def test_servers_of_one_folder_have_a_file_each_and_the_next_takes_over_what_they_left(
    tmp_path: Path,
) -> None:
    broker = Broker()
    broker.is_slow = True
    one, two = (Outbox(tmp_path, "t", lambda: broker) for _ in range(2))
    one.send(b"k", b"1").safe.result(10)
    two.send(b"k", b"2").safe.result(10)
    assert (one.close(), two.close()) == (1, 1)
    broker.late.clear()
    broker.is_slow = False
    three = Outbox(tmp_path, "t", lambda: broker)
    until(lambda: three.waiting == 0)
    assert three.close() == 0
    assert sorted(broker.there) == [b"1", b"2"]
    assert [path.name for path in tmp_path.glob("*.sqlite*")] == ["outbox-1.sqlite"]


def test_what_goes_elsewhere_is_not_sent_here(tmp_path: Path) -> None:
    broker = Broker()
    broker.is_slow = True
    box = Outbox(tmp_path, "old", lambda: broker)
    box.send(b"k", b"1").safe.result(10)
    assert box.close() == 1
    with pytest.raises(UserError, match="holds 1 events for the topic old"):
        Outbox(tmp_path, "new", lambda: broker)
    broker.is_slow = False
    box = Outbox(tmp_path, "old", lambda: broker)
    until(lambda: box.waiting == 0)
    assert box.close() == 0
    new = Outbox(tmp_path, "new", lambda: broker)
    assert (new.found, new.close()) == ([], 0)


def test_what_the_stream_has_committed_is_removed_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEEP_MS", 0)
    monkeypatch.setattr(module, "_TIDY_S", 0.02)
    broker, committed = Broker(), {0: 0}
    box = Outbox(tmp_path, "t", lambda: broker, committed=lambda: committed)
    for number in range(10):
        box.send(b"secret", b"secret %d" % number).safe.result(10)
    until(lambda: box.waiting == 0)
    committed[0] = 7
    time.sleep(0.3)
    assert box.close() == 0
    again = Outbox(tmp_path, "t", lambda: broker, committed=lambda: {0: 10})
    assert [kept.value for kept in again.found] == [b"secret 7", b"secret 8", b"secret 9"]
    again.close()
    assert b"secret" not in b"".join(path.read_bytes() for path in tmp_path.glob("outbox*"))


def test_its_files_are_for_its_owner_and_one_that_is_none_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "served"
    of_others = set(threading.enumerate())
    box = Outbox(folder, "t", Broker)
    box.send(b"k", b"1").safe.result(10)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    box.close()
    (folder / "outbox-1.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(UserError, match="cannot be used: file is not a database"):
        Outbox(folder, "t", Broker)
    assert set(threading.enumerate()) <= of_others


def test_many_at_once_are_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits, whole = [0], module._transaction

    def counted(rows: sqlite3.Connection) -> object:
        commits[0] += 1
        time.sleep(0.02)  # a disk that takes its time
        return whole(rows)

    monkeypatch.setattr(module, "_transaction", counted)
    broker = Broker()
    box = Outbox(tmp_path, "t", lambda: broker)
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda n: box.send(b"k", b"%d" % n).safe.result(10), range(160)))
    assert commits[0] < 80
    assert box.close() == 0
    assert len(broker.there) == 160

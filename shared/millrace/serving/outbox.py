"""Events stand on the disk before they are answered, and go on to the stream from there.

A transactional outbox (C. Richardson, "Pattern: Transactional outbox", microservices.io): what is answered is
one row of a SQLite file, written through to the disk. A thread sends rows on in their order and notes where
each has arrived. What a server that ended had not sent is sent by the next one, so that an event arrives at
least once, and the stream knows repeats by their identity.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millrace.errors import UserError
from millrace.serving.handing import HandingOn, NotHandedOn, Place, Sent

_log = logging.getLogger("millrace.serving")

#: Name of a file of the outbox; servers of one folder have one each.
_FILES: Final = "outbox-*.sqlite"
_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, topic TEXT NOT NULL, "
    "key BLOB NOT NULL, value BLOB NOT NULL, note BLOB NOT NULL, partition INTEGER, offset INTEGER)"
)
#: What waits for the broker at most; beyond it nothing is taken.
MOST: Final = 100_000
#: How long a row is kept after the stream has committed it: so long the same answer is given again, ms.
KEEP_MS: Final = 900_000
#: What the stream has not committed by then is removed if it has arrived, ms.
_KEEP_AT_MOST_MS: Final = 24 * 3_600_000
_TIDY_S: Final = 30.0
#: Until what the broker has refused is sent again.
_AGAIN_S: Final = 1.0


@dataclass
class Kept:
    """A row of the outbox.

    Attributes:
        key: The event's key in its topic.
        value: The event.
        note: What was kept with it.
        place: Where it has arrived; ``None``: not yet, as far as is known.
        sent: The same to wait for, for what has not arrived.
        number: Its place in the outbox.
        since: When it was put in, on a clock that never goes back, seconds.
    """

    key: bytes
    value: bytes
    note: bytes = b""
    place: Place | None = None
    sent: Sent = field(default_factory=lambda: Sent(Future(), Future()))
    number: int = 0
    since: float = field(default_factory=time.monotonic)


class Outbox:
    """Takes events, keeps them, and sends them on.

    Args:
        folder: The folder of its file, which only its owner can read; made if need be.
        topic: The topic that they go to.
        hand_on: Makes what sends them.
        refuse_after_s: Take nothing as long as something has waited longer for the broker, seconds; ``None``:
            take what comes, up to :data:`MOST`.
        committed: Returns partition → the first offset that the stream has not committed.

    Raises:
        UserError: The file cannot be used, or holds events that were not sent for another topic.

    Example:
        >>> from tempfile import mkdtemp
        >>> class Nowhere(HandingOn):
        ...     def __init__(self): self.there = []
        ...     def send(self, key, value):
        ...         self.there.append((key, value))
        ...         found = Future(); found.set_result((0, 1)); return found
        ...     def close(self): return 0
        >>> nowhere = Nowhere()
        >>> box = Outbox(Path(mkdtemp()), "payments", lambda: nowhere)
        >>> sent = box.send(b"card-7", b"{}")
        >>> sent.safe.result(5), sent.place.result(5)
        (None, (0, 1))
        >>> box.close(), nowhere.there
        (0, [(b'card-7', b'{}')])
    """

    def __init__(
        self,
        folder: Path,
        topic: str,
        hand_on: Callable[[], HandingOn],
        *,
        refuse_after_s: float | None = None,
        committed: Callable[[], Mapping[int, int]] = dict,
    ) -> None:
        self._topic, self._refuse_after_s, self._committed = topic, refuse_after_s, committed
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path, self._lock_file = _own(folder)
        #: Rows that are to be written, to be noted as arrived, to be sent, and that the broker has refused.
        self._new: deque[Kept] = deque()
        self._arrived: deque[tuple[Kept, Place]] = deque()
        self._to_send: list[Kept] = []
        self._refused: list[Kept] = []
        self._again_at = 0.0
        self._in_flight = 0
        self._waiting: dict[int, Kept] = {}
        self._wake = threading.Condition()
        self._ending = False
        try:
            self._rows = _opened(self._path)
            _adopt(folder, self._rows)
            #: What it held at the start, the oldest first.
            self.found = self._read()
        except (sqlite3.Error, UserError) as error:
            os.close(self._lock_file)
            if isinstance(error, UserError):
                raise
            raise UserError(f"the outbox {self._path} cannot be used: {error}") from error
        self._last = self._rows.execute("SELECT coalesce(max(id), 0) FROM outbox").fetchone()[0]
        #: Of it, what had not arrived.
        self.to_send = len(self._waiting)
        try:
            self._hand_on = hand_on()
        except BaseException:
            self._rows.close()
            os.close(self._lock_file)
            raise
        self._tidied = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="millrace-outbox", daemon=True)
        self._thread.start()

    def send(self, key: bytes, value: bytes, note: bytes = b"") -> Sent:
        """Keep an event and send it on.

        Args:
            key: Its key in the topic.
            value: The event.
            note: Kept beside it, for a server that begins anew.

        Returns:
            When it is safe on the disk, and where it has arrived; :class:`NotHandedOn` where it is not taken.
        """
        kept = Kept(key, value, note)
        with self._wake:
            if why := self._refuses():
                kept.sent.safe.set_exception(NotHandedOn(why))
                return kept.sent
            self._new.append(kept)
            self._wake.notify()
        return kept.sent

    def _refuses(self) -> str:
        if self._ending:
            return "the server ends"
        if len(self._waiting) + len(self._new) >= MOST:
            return f"{MOST:,} payments wait for the broker"
        if self._refuse_after_s is not None and self.oldest_s > self._refuse_after_s:
            return f"the broker has taken nothing for {self.oldest_s:.1f} s"
        return ""

    @property
    def waiting(self) -> int:
        """How many events are kept and have not arrived yet."""
        return len(self._waiting)

    @property
    def oldest_s(self) -> float:
        """How long the oldest of them has waited, seconds."""
        with self._wake:
            oldest = next(iter(self._waiting.values()), None)
        return 0.0 if oldest is None else time.monotonic() - oldest.since

    def _read(self) -> list[Kept]:
        of_other = self._rows.execute(
            "SELECT topic, count(*) FROM outbox WHERE topic <> ? AND partition IS NULL GROUP BY topic",
            (self._topic,),
        ).fetchone()
        if of_other is not None:
            raise UserError(
                f"the outbox {self._path} holds {of_other[1]:,} events for the topic {of_other[0]} that were "
                f"not sent: serve once with that topic, or send them with `served send`"
            )
        found = []
        for number, key, value, note, partition, offset in self._rows.execute(
            "SELECT id, key, value, note, partition, offset FROM outbox WHERE topic = ? ORDER BY id",
            (self._topic,),
        ):
            kept = Kept(key, value, note, None if partition is None else (partition, offset), number=number)
            kept.sent.safe.set_result(None)
            if kept.place is None:
                self._waiting[number] = kept
            else:
                kept.sent.place.set_result(kept.place)
            found.append(kept)
        return found

    def _work(self) -> None:
        self._to_send += self._waiting.values()
        while True:
            self._send_on()
            with self._wake:
                if not (self._new or self._arrived or self._ending):
                    self._wake.wait(_AGAIN_S / 4)
                ending = self._ending
                new, self._new = list(self._new), deque()
                arrived = [self._arrived.popleft() for _ in range(len(self._arrived))]
            self._write(new, arrived)
            if time.monotonic() - self._tidied > _TIDY_S:
                self._tidied = time.monotonic()
                self._tidy()
            if ending and not new and not arrived:
                return

    def _write(self, new: list[Kept], arrived: list[tuple[Kept, Place]]) -> None:
        """Write rows through to the disk in one go, and send those that are new."""
        if not new and not arrived:
            return
        at_ms = time.time_ns() // 1_000_000
        for kept in new:
            self._last += 1
            kept.number = self._last
        try:
            with _transaction(self._rows):
                self._rows.executemany(
                    "INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?, NULL, NULL)",
                    [(one.number, at_ms, self._topic, one.key, one.value, one.note) for one in new],
                )
                self._rows.executemany(
                    "UPDATE outbox SET partition = ?, offset = ? WHERE id = ?",
                    [(*place, one.number) for one, place in arrived],
                )
        except sqlite3.Error as error:  # a full disk, say: what is not on it was not taken
            _log.warning("the outbox cannot be written: %s", error)
            for kept in new:
                kept.sent.safe.set_exception(NotHandedOn(f"the outbox cannot be written: {error}"))
            with self._wake:
                # They have arrived all the same; noted later, or sent once more by the next server.
                self._arrived.extendleft(reversed(arrived))
            time.sleep(0 if self._ending else _AGAIN_S / 4)
            return
        with self._wake:
            self._waiting.update((kept.number, kept) for kept in new)
        for kept in new:
            kept.sent.safe.set_result(None)
            self._to_send.append(kept)
        self._send_on()

    def _send_on(self) -> None:
        """Send what is to be sent, in its order: where the broker refuses something, all behind it waits.

        What came later must not overtake it, or the stream would find it late.
        """
        with self._wake:
            if self._refused:
                if self._in_flight or time.monotonic() < self._again_at:
                    return
                self._to_send = sorted((*self._refused, *self._to_send), key=lambda kept: kept.number)
                self._refused.clear()
        sent = 0
        for kept in self._to_send:
            if self._refused:
                break
            sent += 1
            self._send(kept)
        del self._to_send[:sent]

    def _send(self, kept: Kept) -> None:
        def told(found: Future[Place]) -> None:
            with self._wake:
                self._in_flight -= 1
                if found.exception() is not None:
                    self._refused.append(kept)
                    self._again_at = time.monotonic() + _AGAIN_S
                    return
                kept.place = found.result()
                self._waiting.pop(kept.number, None)
                # Nobody waits for it: it is written with the next event.
                self._arrived.append((kept, kept.place))
            kept.sent.place.set_result(kept.place)

        with self._wake:
            self._in_flight += 1
        self._hand_on.send(kept.key, kept.value).add_done_callback(told)

    def _tidy(self) -> None:
        """Remove what the stream has committed a while ago."""
        now = time.time_ns() // 1_000_000
        try:
            with _transaction(self._rows):
                for partition, offset in self._committed().items():
                    self._rows.execute(
                        "DELETE FROM outbox WHERE topic = ? AND partition = ? AND offset < ? AND at_ms < ?",
                        (self._topic, partition, offset, now - KEEP_MS),
                    )
                self._rows.execute(
                    "DELETE FROM outbox WHERE partition IS NOT NULL AND at_ms < ?", (now - _KEEP_AT_MOST_MS,)
                )
        except sqlite3.Error as error:
            _log.warning("the outbox cannot be tidied: %s", error)

    def close(self) -> int:
        """Send what is left; return how much was not taken by then, which the next server sends."""
        with self._wake:
            self._ending = True
            self._wake.notify()
        self._thread.join(10)
        self._hand_on.close()
        self._write([], [self._arrived.popleft() for _ in range(len(self._arrived))])
        self._tidy()
        self._rows.close()
        os.close(self._lock_file)
        return len(self._waiting)


@contextlib.contextmanager
def _transaction(rows: sqlite3.Connection) -> Iterator[None]:
    rows.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # it was ended by what went wrong
            rows.execute("ROLLBACK")
        raise
    rows.execute("COMMIT")


def _opened(path: Path) -> sqlite3.Connection:
    rows = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    rows.execute("PRAGMA journal_mode = WAL")
    # Each commit is on the disk before it is answered.
    rows.execute("PRAGMA synchronous = FULL")
    # What is removed is not left in free pages.
    rows.execute("PRAGMA secure_delete = ON")
    rows.execute(_TABLE)
    return rows


def _locked(path: Path) -> int | None:
    """Return the open lock of a file of an outbox; ``None``: a server has it."""
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _own(folder: Path) -> tuple[Path, int]:
    """Return a file that no other server has, and its lock."""
    number = 1
    while True:
        path = folder / f"outbox-{number}.sqlite"
        if (lock := _locked(path)) is not None:
            # SQLite gives its other files the rights of this one.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            return path, lock
        number += 1


def _adopt(folder: Path, rows: sqlite3.Connection) -> None:
    """Take over what servers that have ended left in files of their own."""
    for path in sorted(folder.glob(_FILES)):
        if (lock := _locked(path)) is None:
            continue
        try:
            left = _opened(path)
            found = left.execute(
                "SELECT at_ms, topic, key, value, note, partition, offset FROM outbox ORDER BY id"
            ).fetchall()
            with _transaction(rows):
                rows.executemany(
                    "INSERT INTO outbox (at_ms, topic, key, value, note, partition, offset) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    found,
                )
            with _transaction(left):
                left.execute("DELETE FROM outbox")
            left.close()
            path.unlink()
        finally:
            os.close(lock)

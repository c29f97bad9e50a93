"""Goes on with a run that was killed: how far it got, kept beside its ledger.

Nothing of a simulation is stored. What was sent is made again from the same parameters, noted in the ledger
and not sent; then the run goes on with the next message, so that the result has the same bytes as without
the crash.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from millrace.dead_letters import NOT_JSON
from millrace.errors import MillraceError, UserError
from millrace_apps.generators.engine.message import Generated
from millrace_apps.generators.sinks import Sink

#: How far a run got is written after so many seconds.
PERIOD_S: Final = 5.0


class Notes(Protocol):
    """The part of a ledger that a run needs."""

    def add(self, message: Generated) -> None:
        """Take note of a message."""

    def sync(self) -> None:
        """Return when every record so far is on disk."""


class Bookmark(msgspec.Struct, frozen=True):
    """How far a run got.

    Attributes:
        domain: Name of the domain.
        target: Where it sends to.
        parameters: Every parameter that decides the bytes.
        messages: So many were delivered,
        position: and end there: file → bytes, or topic/partition → offset.
    """

    domain: str
    target: str
    parameters: dict[str, Any]
    messages: int
    position: dict[str, int]


def bookmark_path(ledger: Path) -> Path:
    """Return where the bookmark of a run with this ledger lies."""
    return ledger.with_name(f"{ledger.name}.resume")


def save(path: Path, bookmark: Bookmark) -> None:
    """Write a bookmark so that a crash leaves the old one or the new one, never a torn one."""
    beside = path.with_name(f"{path.name}.new")
    try:
        with beside.open("wb") as file:
            file.write(msgspec.json.encode(bookmark))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise MillraceError(f"cannot write {path}: {error.strerror}") from error


def load(ledger: Path) -> Bookmark | None:
    """Return the bookmark beside a ledger; None where no run has begun.

    Raises:
        UserError: If the run has ended, so that nothing is left to go on with, or the bookmark is none.
    """
    path = bookmark_path(ledger)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Bookmark)
    except FileNotFoundError:
        if _has_ended(ledger):
            raise UserError(
                f"the run of {ledger} has ended: there is nothing to resume; leave --resume out, or give "
                "another --ledger FILE"
            ) from None
        return None
    except (OSError, *NOT_JSON) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def _has_ended(ledger: Path) -> bool:
    if not ledger.exists() or ledger.stat().st_size == 0:
        return False
    with ledger.open("rb") as file:
        file.seek(max(0, ledger.stat().st_size - (1 << 16)))
        return b'{"record":"summary"' in file.read()


def check_same(found: Bookmark, domain: str, target: str, parameters: dict[str, Any]) -> None:
    """Refuse to go on with a run of other parameters, with the first that differs."""
    now = {"domain": domain, "target": target, **_plain(parameters)}
    then = {"domain": found.domain, "target": found.target, **found.parameters}
    for name in sorted(now.keys() | then.keys()):
        if now.get(name) != then.get(name):
            was, now_is = then.get(name), now.get(name)
            raise UserError(
                f"--resume goes on with the same stream only: {name} was {was}, now it is {now_is}"
            )


def _plain(parameters: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(parameters))
    return plain


def replay(stream: Iterator[Generated], notes: Notes, messages: int, stop: threading.Event) -> int:
    """Make the messages that were sent again, note them, and send none.

    Returns:
        When the last of them was due, on the clock of event time, ms; 0 if there was none.
    """
    due_ms = done = 0
    while done < messages:
        message = next(stream, None)
        if message is None:
            raise UserError(f"--resume: the stream ends after {done} messages, but {messages} were sent")
        if stop.is_set():
            raise MillraceError("stopped before it had caught up with what was sent; nothing was sent twice")
        notes.add(message)
        due_ms = message.due_ms
        done += not message.dropped
    return due_ms


class Keeper:
    """Writes the bookmark every five seconds while a run goes on.

    Args:
        path: Where it lies; None writes nothing.
        first: What the bookmark says at the start.
        sink: Says where its messages end.
        notes: The ledger: on disk before the bookmark that relies on it.
        now: Seconds of a clock that only goes forward.
    """

    def __init__(
        self,
        path: Path | None,
        first: Bookmark,
        sink: Sink,
        notes: Notes,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._first, self._sink, self._notes, self._now = path, first, sink, notes, now
        self.sent = first.messages
        self._saved = -1
        self._next = 0.0
        self.keep()

    def keep(self) -> None:
        """Write the bookmark if it is time to."""
        now = self._now()
        if self._path is None or now < self._next or self.sent == self._saved:
            return
        position = self._sink.position()
        if position is not None:
            self._notes.sync()
            save(self._path, msgspec.structs.replace(self._first, messages=self.sent, position=position))
            self._saved = self.sent
        # A sink that cannot say it now is asked again soon.
        self._next = self._now() + (PERIOD_S if position is not None else PERIOD_S / 10)

    def remove(self) -> None:
        """Take the bookmark away: the run has ended."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

"""Sending dead letters again: the bytes as they came, or as a function made them, each once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec

from millrace.dead_letters.journal import Entry, Journal, Status
from millrace.dead_letters.letters import Letter, Position

#: Kafka headers that a replay adds: the dead letter's id, and which replay of the event it is.
FROM_HEADER: Final = "dlq.replayed_from"
COUNT_HEADER: Final = "dlq.replay_count"
#: So many letters are noted, sent and noted again at a time.
CHUNK: Final = 500

_SAME_EVENT: Final = "of an event of which another letter is sent"

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
#: Makes the bytes to send from a dead letter; None leaves it out.
Fix: TypeAlias = Callable[[Letter], "bytes | None"]


@dataclass(frozen=True)
class Original:
    """An event as it stands in Kafka."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True)
class Outgoing:
    """A record to send.

    Attributes:
        letter_id: Of which dead letter.
        topic: Where it goes.
        partition: Its partition; None leaves that to its key.
        key: Its Kafka key.
        value: Its bytes.
        headers: Its Kafka headers.
        fixed: Whether a function changed it.
        source: Where its event stands in Kafka.
    """

    letter_id: str
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes
    headers: Headers
    fixed: bool = False
    source: str | None = None


class Undelivered(NamedTuple):
    """Why a record was not delivered.

    Attributes:
        why: The reason.
        in_doubt: Whether it may have been delivered all the same, as when no answer came.
    """

    why: str
    in_doubt: bool = False


class Originals(Protocol):
    """Gives events as they stand in Kafka."""

    def fetch(self, positions: Sequence[Position]) -> Mapping[Position, Original]:
        """Return those that are still there."""


class Sender(Protocol):
    """Sends records."""

    def send(self, records: Sequence[Outgoing]) -> Mapping[str, Undelivered]:
        """Send records and wait for their delivery; return id → reason of those that were not."""


@dataclass(frozen=True)
class Plan:
    """What is to be sent, and where.

    Attributes:
        fix: Makes the bytes to send.
        to: Topic instead of the one that an event came by.
        again: Also letters that were sent before.
        in_doubt: Also letters of which a replay that was killed does not know.
        most: An event that was replayed so often is left: it comes back each time.
    """

    fix: Fix | None = None
    to: str | None = None
    again: bool = False
    in_doubt: bool = False
    most: int = 3


@dataclass
class Summary:
    """What became of the letters of a replay.

    Attributes:
        sent: How many were sent (in a dry run: would be).
        fixed: How many of them a function changed.
        from_kafka: How many of them are as Kafka still has them, key and headers included.
        failed: Identity → why it was not delivered, or why the function failed.
        skipped: Why → how many were left out.
    """

    sent: int = 0
    fixed: int = 0
    from_kafka: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)

    @property
    def seen(self) -> int:
        """How many letters there were."""
        return self.sent + len(self.failed) + sum(self.skipped.values())

    def skip(self, why: str) -> None:
        """Count a letter that is left out."""
        self.skipped[why] = self.skipped.get(why, 0) + 1


class Replay:
    """Sends dead letters again.

    Args:
        plan: What and where to.
        journal: What was sent before.
        originals: Where events are looked up; without it, letters go as their table has them.
        now: Gives the time, UTC milliseconds.

    Example:
        >>> replay = Replay(Plan(), Journal(path, "run-1"), now=lambda: 0)  # doctest: +SKIP
        >>> replay.run(table.read(), sender).sent  # doctest: +SKIP
        17
    """

    def __init__(
        self, plan: Plan, journal: Journal, originals: Originals | None = None, *, now: Callable[[], int]
    ) -> None:
        self._plan, self._journal, self._originals, self._now = plan, journal, originals, now

    def run(
        self, letters: Iterable[Letter], sender: Sender, progress: Callable[[Summary], None] | None = None
    ) -> Summary:
        """Send letters; each is noted before and after.

        Args:
            letters: The dead letters.
            sender: Sends the records.
            progress: Called with the summary after each chunk.

        Raises:
            UserError: Another replay is at work.
        """
        summary = Summary()
        for chunk in _chunks(letters, CHUNK):
            records = list(self._records(chunk, summary))
            self._note(records, {}, begins=True)
            undelivered: Mapping[str, Undelivered] = sender.send(records) if records else {}
            self._note(records, undelivered, begins=False)
            summary.failed.update({one: failed.why for one, failed in undelivered.items()})
            done = [record for record in records if record.letter_id not in undelivered]
            summary.sent += len(done)
            summary.fixed += sum(record.fixed for record in done)
            if progress is not None:
                progress(summary)
        return summary

    def preview(self, letters: Iterable[Letter], keep: int = 20) -> tuple[list[Outgoing], Summary]:
        """Return what would be sent, and what would become of the letters; nothing is sent or noted.

        Args:
            letters: The dead letters.
            keep: So many records are returned, the first ones.
        """
        summary = Summary()
        found: list[Outgoing] = []
        for chunk in _chunks(letters, CHUNK):
            for record in self._records(chunk, summary):
                summary.sent += 1
                summary.fixed += record.fixed
                if len(found) < keep:
                    found.append(record)
        return found, summary

    # -- what is sent ----------------------------------------------------------------------------

    def _records(self, letters: Sequence[Letter], summary: Summary) -> Iterator[Outgoing]:
        wanted: list[Letter] = []
        seen: set[Position] = set()
        for letter in letters:
            why = self._unfit(letter) or (_SAME_EVENT if letter.position in seen else None)
            if why:
                summary.skip(why)
                continue
            wanted.append(letter)
            if letter.position is not None:
                seen.add(letter.position)
        positions = [letter.position for letter in wanted if letter.position is not None]
        originals = self._originals.fetch(positions) if self._originals and positions else {}
        for letter in wanted:
            original = originals.get(letter.position) if letter.position else None
            if original is not None and original.value != letter.value:
                original = None  # the topic was made anew, or the event is one between two processes
            record = self._record(letter, original, summary)
            if record is not None:
                summary.from_kafka += original is not None
                yield record

    def _unfit(self, letter: Letter) -> str | None:
        """Return why a letter is not sent; None if it is."""
        status = self._journal.status(letter.letter_id)
        if status == "sent" and not self._plan.again:
            return "sent before (--again sends them once more)"
        if status == "sending" and not (self._plan.in_doubt or self._plan.again):
            return "in doubt: a replay was stopped while it sent them (--in-doubt sends them)"
        if letter.stage == "timer":
            return "of a timer: there is no event to send"
        sent = self._journal.sources.get(str(letter.position))
        if sent not in (None, letter.letter_id) and not self._plan.again:
            return _SAME_EVENT
        if letter.value is None:
            return "without bytes: they were not kept"
        if self._destination(letter) is None:
            return "of no known topic (--to TOPIC sends them there)"
        return None

    def _destination(self, letter: Letter) -> tuple[str, int | None] | None:
        if self._plan.to is not None:
            return self._plan.to, None
        # An event goes to the partition that it came by, whatever partitioner its producer has.
        return None if letter.position is None else letter.position[:2]

    def _record(self, letter: Letter, original: Original | None, summary: Summary) -> Outgoing | None:
        if original is None:
            key = _kafka_key(letter.key) if letter.kafka_key is None else letter.kafka_key
            original = Original(key, letter.value, _kafka_headers(letter.headers))
        count = _count(original.headers) + 1
        if count > self._plan.most:
            summary.skip(f"replayed {self._plan.most} times already (--most sets the limit)")
            return None
        value, where = self._fixed(letter, summary), self._destination(letter)
        if value is None or where is None:
            return None
        kept = [(n, v) for n, v in original.headers if n not in (FROM_HEADER, COUNT_HEADER)]
        added = [(FROM_HEADER, letter.letter_id.encode()), (COUNT_HEADER, str(count).encode())]
        fixed, headers = value != letter.value, [*kept, *added]
        source = str(letter.position) if letter.position else None
        return Outgoing(letter.letter_id, *where, original.key, value, headers, fixed, source)

    def _fixed(self, letter: Letter, summary: Summary) -> bytes | None:
        if self._plan.fix is None:
            return letter.value
        try:
            value: object = self._plan.fix(letter)
            if value is not None and not isinstance(value, bytes):
                raise TypeError(f"it gave {type(value).__name__}, not bytes or None")
        except Exception as error:  # the function is the user's: one letter, not the replay, fails
            summary.failed[letter.letter_id] = f"the fix failed: {type(error).__name__}: {error}"
            return None
        if value is None:
            summary.skip("left out by the fix")
        return value

    def _note(
        self, records: Sequence[Outgoing], undelivered: Mapping[str, Undelivered], *, begins: bool
    ) -> None:
        entries = []
        for record in records:
            failed = undelivered.get(record.letter_id)
            if failed is not None and failed.in_doubt:
                continue  # what was noted before stands
            ended: Status = "sent" if failed is None else "failed"
            attempt = self._journal.attempts(record.letter_id) + begins
            entries.append(
                Entry(
                    letter_id=record.letter_id,
                    status="sending" if begins else ended,
                    topic=record.topic,
                    attempt=attempt,
                    fixed=record.fixed,
                    error=None if failed is None else failed.why,
                    source=record.source,
                )
            )
        self._journal.add(entries, self._now())


def _chunks(letters: Iterable[Letter], size: int) -> Iterator[list[Letter]]:
    source = iter(letters)
    while chunk := list(islice(source, size)):
        yield chunk


def _count(headers: Headers) -> int:
    found = [value for name, value in headers if name == COUNT_HEADER]
    text = (found[-1] or b"").decode(errors="replace") if found else ""
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _kafka_key(key: str | None) -> bytes | None:
    """Return a process's key as the Kafka key that it most likely was; several parts joined with ``|``."""
    from millrace.host.groups import context_key

    if key is None:
        return None
    try:
        found = context_key(key)
    except ValueError:
        return key.encode()
    return (found if isinstance(found, str) else "|".join(str(part) for part in found)).encode()


def _kafka_headers(headers: str | None) -> Headers:
    """Return the headers that a letter keeps as JSON, as Kafka has them."""
    try:
        found = msgspec.json.decode(headers or "{}", type=dict[str, str | list[str]])
    except msgspec.DecodeError:
        return []
    return [(n, v.encode()) for n, vs in found.items() for v in (vs if isinstance(vs, list) else [vs])]


def load_fix(target: str) -> Fix:
    """Return the function that ``module:function`` names; the current folder is searched too.

    Raises:
        UserError: There is no such function.
    """
    import importlib
    import os
    import sys

    from millrace.errors import UserError

    module, _, name = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name, None) if module and name else None
    except ImportError as error:
        raise UserError(f"--fix {target}: {error}") from error
    if not callable(found):
        raise UserError(f"--fix {target}: name a function as module:function; it gets a Letter, gives bytes")
    fix: Fix = found
    return fix


def shown(record: Outgoing) -> str:
    """Return a record in one line of JSON, for people."""
    text = (record.value or b"").decode(errors="backslashreplace")
    return json.dumps(
        {
            "letter": record.letter_id,
            "topic": record.topic,
            "partition": record.partition,
            "key": None if record.key is None else record.key.decode(errors="backslashreplace"),
            "fixed": record.fixed,
            "value": text if len(text) <= 200 else text[:197] + "...",
        },
        ensure_ascii=False,
    )

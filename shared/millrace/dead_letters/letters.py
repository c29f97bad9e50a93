"""The dead letters of an app as its Delta table has them, read without Spark, a file at a time."""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from millrace.connectors.gathering import is_gathered, times_of, written_in
from millrace.errors import UserError

#: The table that apps write them to.
TABLE: Final = "dead_letters"
#: An id may be given by its first characters, from so many on.
SHORTEST_PREFIX: Final = 4

#: Its columns.
COLUMNS: Final = (
    "_event_id", "reason", "stage", "process", "error", "error_digest", "key", "event_time_ms", "topic",
    "partition", "offset", "value", "headers",
)  # fmt: skip
#: When a row was written, beside the columns of a file that was made of others.
_AT: Final = "_millrace_written_ms"
#: Columns that tables of earlier versions do not have.
LATER_COLUMNS: Final = ("kafka_key", "timestamp_ms")


class LetterError(UserError):
    """There is no such table or dead letter."""


class Position(NamedTuple):
    """Where an event stands in Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter as it was kept.

    Attributes:
        letter_id: Its identity.
        written_ms: When it was written to the table, UTC milliseconds; after another tool has compacted the
            table, when that happened.
        reason: Why, in one word.
        stage: Where it happened.
        process: Name of the process.
        error: The error in one line.
        error_digest: The same for every event that fails at the same line of code.
        key: Key of the process, where it was known.
        event_time_ms: Event time, where it was known, UTC milliseconds.
        position: Where the event stands in Kafka, where it came from there.
        value: Its original bytes; a timer has none.
        headers: Its Kafka headers, where they were kept, as a JSON object.
        kafka_key: Its Kafka key, where it was kept.
        timestamp_ms: When Kafka got it, UTC milliseconds, where that was kept.
    """

    letter_id: str
    written_ms: int
    reason: str
    stage: str
    process: str
    error: str
    error_digest: str = ""
    key: str | None = None
    event_time_ms: int | None = None
    position: Position | None = None
    value: bytes | None = None
    headers: str | None = None
    kafka_key: bytes | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which dead letters; an empty part selects all.

    Attributes:
        ids: Identities, or their first characters.
        reasons: Reasons.
        stages: Stages.
        processes: Names of processes.
        digests: Digests of errors.
        topics: Topics that the events came by.
        since_ms: Written at this time or later, UTC milliseconds.
        until_ms: Written before this time, UTC milliseconds.
    """

    ids: Sequence[str] = ()
    reasons: Sequence[str] = ()
    stages: Sequence[str] = ()
    processes: Sequence[str] = ()
    digests: Sequence[str] = ()
    topics: Sequence[str] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def is_everything(self) -> bool:
        """Whether it selects every dead letter."""
        return self == Selection()

    def is_of(self, written_ms: int) -> bool:
        """Return whether what was written then is among them.

        >>> Selection(since_ms=5, until_ms=9).is_of(5), Selection(since_ms=5, until_ms=9).is_of(9)
        (True, False)
        """
        begun = self.since_ms is None or written_ms >= self.since_ms
        return begun and (self.until_ms is None or written_ms < self.until_ms)

    def columns(self) -> dict[str, Sequence[str]]:
        """Return the values that columns must have."""
        wanted = {
            "reason": self.reasons,
            "stage": self.stages,
            "process": self.processes,
            "error_digest": self.digests,
            "topic": self.topics,
        }
        return {name: values for name, values in wanted.items() if values}

    def wanted(self) -> Any:
        """Return the condition on the columns of the table, for Arrow; ``None``: there is none."""
        import pyarrow.dataset as ds

        tests = [ds.field(name).isin(list(values)) for name, values in self.columns().items()]
        return functools.reduce(operator.and_, tests) if tests else None


class DeadLetterTable:
    """The table of dead letters of an app, and those that are committed and not in it yet.

    Args:
        path: Its folder or URI.

    Raises:
        LetterError: There is no such table, or it holds no dead letters.
    """

    def __init__(self, path: str) -> None:
        from deltalake import DeltaTable

        from millrace.connectors.merging import open_with_times

        if not DeltaTable.is_deltatable(path):
            raise LetterError(f"there is no table {path}: the app has written nothing there yet")
        self.path = path
        self._waiting: list[tuple[int, Any]] = []
        if "://" in path:
            self._table: Any = DeltaTable(path)
        else:
            self._table, self._waiting = open_with_times(Path(path))
        self._columns = {field.name for field in self._table.schema().fields}
        missing = set(COLUMNS) - self._columns
        if missing:
            raise LetterError(f"{path} is no table of dead letters: it has no {', '.join(sorted(missing))}")

    def read(
        self, selection: Selection | None = None, *, columns: Sequence[str] = (*COLUMNS, *LATER_COLUMNS)
    ) -> Iterator[Letter]:
        """Yield dead letters, those that were written first in front; memory holds one batch of a file.

        Args:
            selection: Which ones; default all.
            columns: Columns that are needed; the others stay empty.
        """
        selection = selection or Selection()
        for row, written_ms in self._rows(selection, columns):
            letter = _letter(row, written_ms)
            if not selection.ids or any(letter.letter_id.startswith(one) for one in selection.ids):
                yield letter

    def find(self, prefix: str) -> Letter:
        """Return the dead letter whose id begins with ``prefix``.

        Raises:
            LetterError: There is none or more than one, or the prefix is too short.
        """
        if len(prefix) < SHORTEST_PREFIX:
            raise LetterError(f"'{prefix}' is too short: give at least {SHORTEST_PREFIX} characters of an id")
        found: dict[str, Letter] = {}
        for letter in self.read(Selection(ids=[prefix])):
            if letter.letter_id == prefix:
                return letter
            found[letter.letter_id] = letter
        if len(found) > 1:
            raise LetterError(f"'{prefix}' begins {len(found)} ids: give more of it")
        if not found:
            raise LetterError(f"no dead letter's id begins with '{prefix}'; `millrace dlq list` has the ids")
        return next(iter(found.values()))

    def _rows(self, selection: Selection, columns: Sequence[str]) -> Iterator[tuple[dict[str, Any], int]]:
        import pyarrow as pa

        actions = pa.table(self._table.get_add_actions(flatten=True))
        written = dict(
            zip(actions["path"].to_pylist(), actions["modification_time"].to_pylist(), strict=True)
        )
        wanted = selection.wanted()
        columns = [name for name in columns if name in self._columns]
        dataset = self._table.to_pyarrow_dataset()
        fragments = [(written[f.path], f.path, f) for f in dataset.get_fragments()]
        for written_ms, path, fragment in sorted(fragments, key=lambda found: found[:2]):
            if is_gathered(path):
                yield from self._gathered(fragment, dataset.schema, columns, selection)
                continue
            if not selection.is_of(written_ms):
                continue
            # Its own filter does not compare texts as a MERGE or DELETE of the library writes them.
            needed = [*dict.fromkeys((*columns, *selection.columns()))]
            for batch in fragment.to_batches(schema=dataset.schema, columns=needed):
                rows = pa.Table.from_batches([batch])
                for row in (rows if wanted is None else rows.filter(wanted)).select(columns).to_pylist():
                    yield row, written_ms
        for written_ms, rows in self._waiting:
            if selection.is_of(written_ms):
                kept = rows if wanted is None else rows.filter(wanted)
                for row in kept.select([name for name in columns if name in rows.column_names]).to_pylist():
                    yield row, written_ms

    @staticmethod
    def _gathered(
        fragment: Any, schema: Any, columns: Sequence[str], selection: Selection
    ) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield the rows of a file that was made of others, each with when it was written itself."""
        written = written_in(fragment.metadata.metadata or {})
        if not any(selection.is_of(one.at_ms) for one in written):
            return
        times, wanted, place = times_of(written), selection.wanted(), 0
        needed = [*dict.fromkeys((*columns, *selection.columns()))]
        for group in fragment.split_by_row_group():
            rows = group.to_table(schema=schema, columns=needed)
            rows = rows.append_column(_AT, times.slice(place, rows.num_rows))
            place += rows.num_rows
            for row in (rows if wanted is None else rows.filter(wanted)).to_pylist():
                if selection.is_of(at_ms := row.pop(_AT)):
                    yield {name: row[name] for name in columns}, at_ms


def _letter(row: Mapping[str, Any], written_ms: int) -> Letter:
    where: Any = row.get("topic"), row.get("partition"), row.get("offset")
    optional = ("key", "event_time_ms", "value", "headers", *LATER_COLUMNS)
    known = {name: row[name] for name in optional if name in row}
    return Letter(
        letter_id=row.get("_event_id") or _digest(row),
        written_ms=written_ms,
        reason=row.get("reason") or "",
        stage=row.get("stage") or "",
        process=row.get("process") or "",
        error=row.get("error") or "",
        error_digest=row.get("error_digest") or "",
        position=None if None in where else Position(*where),
        **known,
    )


def _digest(row: Mapping[str, Any]) -> str:
    """Return an id for a letter whose event had none: the same for the same content."""
    parts = [repr(row.get(name)) for name in COLUMNS if name not in ("_event_id", "headers")]
    return hashlib.blake2b("|".join(parts).encode(), digest_size=16).hexdigest()

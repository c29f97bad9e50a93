"""The journal of replays: a Delta table beside the dead letters.

A letter is noted as ``sending`` before it is sent and as ``sent`` or ``failed`` after. So a replay that is
killed leaves letters that may or may not have been sent: those are in doubt, and not sent again unasked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from millrace.errors import MillraceError, UserError

#: The table, beside that of the dead letters.
TABLE: Final = "dead_letters_replayed"
_APP_ID: Final = "millrace-dlq-replay"

Status = Literal["sending", "sent", "failed"]


class JournalError(MillraceError):
    """What was sent cannot be noted."""


@dataclass(frozen=True)
class Entry:
    """One line of the journal.

    Attributes:
        letter_id: Which dead letter.
        status: ``sending``, ``sent`` or ``failed``.
        topic: Where it went.
        attempt: Which replay of it, from 1 on.
        fixed: Whether a function changed it.
        error: Why it failed.
        source: Where its event stands in Kafka, as ``topic:partition:offset``.
    """

    letter_id: str
    status: Status
    topic: str
    attempt: int
    fixed: bool = False
    error: str | None = None
    source: str | None = None


class Journal:
    """The journal of an app's replays; made by the first.

    Two replays at once would send letters twice, so the second to write is refused.

    Args:
        path: Folder or URI of its table.
        run_id: Identity of this replay.
    """

    def __init__(self, path: str, run_id: str) -> None:
        self.path, self._run_id = path, run_id
        self._table: Any = None
        #: Identity of a dead letter → how its last replay ended, and how many it had.
        self.known: dict[str, tuple[Status, int]] = {}
        #: Position of an event → the letter of it that was sent, or may have been.
        self.sources: dict[str, str] = {}
        self._load()

    def status(self, letter_id: str) -> Status | None:
        """Return how the last replay of a dead letter ended; None if it had none."""
        found = self.known.get(letter_id)
        return found[0] if found else None

    def attempts(self, letter_id: str) -> int:
        """Return how many replays a dead letter had."""
        found = self.known.get(letter_id)
        return found[1] if found else 0

    def add(self, entries: Iterable[Entry], now_ms: int) -> None:
        """Note what is about to happen, or what happened.

        Args:
            entries: The lines.
            now_ms: The time, UTC milliseconds.

        Raises:
            UserError: Another replay wrote to the journal since this one began.
            JournalError: The table cannot be written.
        """
        made = list(entries)
        if not made:
            return
        self._append(made, now_ms)
        for entry in made:
            self._know(entry.letter_id, entry.status, entry.attempt, entry.source)

    def _know(self, letter_id: str, status: Status, attempt: int, source: str | None) -> None:
        self.known[letter_id] = status, attempt
        if source is None:
            return
        if status != "failed":
            self.sources[source] = letter_id
        elif self.sources.get(source) == letter_id:
            del self.sources[source]

    def _load(self) -> None:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self.path):
            return
        self._table = DeltaTable(self.path)
        rows: dict[str, tuple[tuple[int, bool], Mapping[str, Any]]] = {}
        columns = ["letter_id", "status", "attempt", "source"]
        for batch in self._table.to_pyarrow_dataset().to_batches(columns=columns):
            for row in batch.to_pylist():
                # Of one attempt, its end counts; files come in any order.
                rank = row["attempt"], row["status"] != "sending"
                if row["letter_id"] not in rows or rows[row["letter_id"]][0] < rank:
                    rows[row["letter_id"]] = rank, row
        for name, (_, row) in rows.items():
            self._know(name, row["status"], row["attempt"], row["source"])

    def _append(self, entries: list[Entry], now_ms: int) -> None:
        import pyarrow as pa
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError, DeltaError

        schema = _schema()
        when = datetime.fromtimestamp(now_ms / 1000, UTC)
        rows = [{**entry.__dict__, "run_id": self._run_id, "at": when} for entry in entries]
        try:
            if self._table is None:
                self._table = DeltaTable.create(self.path, schema=schema, mode="error")
            version = self._table.transaction_version(_APP_ID) or 0
            write_deltalake(
                self._table,
                pa.Table.from_pylist(rows, schema=schema),
                mode="append",
                # Two writers that began with the same version exclude each other.
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(_APP_ID, version + 1)], max_commit_retries=0
                ),
            )
        except CommitFailedError as error:
            raise UserError(
                f"another replay writes to {self.path}: wait until it has ended, and start again"
            ) from error
        except (DeltaError, OSError) as error:
            raise JournalError(f"cannot write {self.path}: {error}") from error


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            ("letter_id", pa.string()),
            ("status", pa.string()),
            ("run_id", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
            ("topic", pa.string()),
            ("attempt", pa.int32()),
            ("fixed", pa.bool_()),
            ("error", pa.string()),
            ("source", pa.string()),
        ]
    )

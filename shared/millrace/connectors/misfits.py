"""Records that their table cannot take, as dead letters: nothing of them is lost, and the job goes on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2b

import msgspec
import pyarrow as pa

from millrace.dead_letters import DeadLetter, one_line
from millrace.errors import MillraceError
from millrace.host.chunks import OutputChunk
from millrace.host.json_columns import Misfit
from millrace.host.rows import make_event_id
from millrace.host.spark_records import TypedColumns


class OfOtherType(MillraceError):
    """A record has a value that is not of its column's type, and nowhere to be put aside."""


def letters_of(process: str, output: str, table: str, misfits: Sequence[Misfit]) -> OutputChunk:
    """Return dead letters of records that a table cannot take.

    Args:
        process: Name of the process that emitted them.
        output: The output that they are of.
        table: The table.
        misfits: The records.
    """
    digest = blake2b(f"{output}\x1f{table}".encode(), digest_size=6).hexdigest()
    letters = [
        DeadLetter(
            reason="process_error",
            stage="table",
            process=process,
            error=f"table {table}: {one_line(misfit.error)}",
            error_digest=digest,
            event_time_ms=misfit.event_time_ms,
            value=misfit.payload,
        )
        for misfit in misfits
    ]
    ids = [
        None if of.event_id is None else make_event_id(table, "", of.event_id, "dead_letters", 0)
        for of in misfits
    ]
    times, count = [of.event_time_ms for of in misfits], len(letters)
    return OutputChunk(ids, [""] * count, times, bytes(count), list(map(msgspec.json.encode, letters)))


def as_rows(letters: OutputChunk, known: Collection[str]) -> pa.Table:
    """Return dead letters as rows of their table.

    Args:
        letters: The dead letters.
        known: Identities of those that the table has already.
    """
    rows = TypedColumns(DeadLetter).table(letters)
    return rows.filter(pa.array([of not in known for of in letters.event_ids])) if known else rows

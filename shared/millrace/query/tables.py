"""SQL over Delta tables by DataFusion, which comes with ``deltalake``: no JVM, an answer in a moment.

A table with one row per key is asked as it will be when what waits beside it has been merged.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from millrace.errors import UserError
from millrace.query.catalog import AppTable, asked_for, unknown_table

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.topology import Upsert

_NO_TABLE: Final = re.compile(r"table '(?:\w+\.)?(?P<name>[^']+)' not found", re.IGNORECASE)
_PARSER: Final = re.compile(r'ParserError\("(.*?)(?: at Line: (\d+), Column: (\d+))?"\)', re.DOTALL)
_ESCAPED, _QUOTE = '\\"', '"'
_WRAPPED: Final = re.compile(
    r"(?:[A-Z]\w*(?: \w+)? error|Error during planning|This feature is not implemented): "
)
#: Schemas of what is asked through views.
_AS_KEPT, _WAITING = "as_kept", "waiting"
#: How often it is looked whether a query is to end, seconds.
_LOOK_S: Final = 0.1


class QueryError(UserError):
    """A query cannot be answered as it is written."""


class Answer:
    """The rows that a query gives, a batch at a time.

    Attributes:
        schema: Their columns; times are UTC.
    """

    def __init__(self, reader: Any) -> None:
        import pyarrow as pa

        self._reader = pa.RecordBatchReader.from_stream(reader)
        self.schema: pa.Schema = self._reader.schema

    def batches(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows.

        Args:
            limit: No more than so many.

        Raises:
            QueryError: One of them cannot be computed.
        """
        left = limit
        while left is None or left > 0:
            try:
                batch = interruptible(self._reader.read_next_batch)
            except StopIteration:
                return
            except Exception as error:  # of the engine: a division by zero, a text that is no number
                raise QueryError(said(error)) from None
            part = batch if left is None else batch.slice(0, left)
            if left is not None:
                left -= part.num_rows
            yield part


def interruptible(call: Callable[[], Any]) -> Any:
    """Return what a call of the engine gives, or raise what it raises; Ctrl-C is heard while it works."""
    done: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            done.put((call(), None))
        except BaseException as error:  # raised again below
            done.put((None, error))

    Thread(target=run, name="millrace-query", daemon=True).start()
    while True:
        try:
            # A signal may reach another thread than this one: it is heard when this one looks.
            found, error = done.get(timeout=_LOOK_S)
        except Empty:
            continue
        if error is not None:
            raise error
        return found


@contextmanager
def asking(
    text: str,
    tables: Sequence[AppTable],
    upserts: Mapping[str, Upsert],
    app: str | None = None,
) -> Iterator[Answer]:
    """Answer a query while the block runs.

    Args:
        text: One SELECT statement.
        tables: All tables that may be asked.
        upserts: Full name → what names a row, of tables with one row per key.
        app: Names without an app are this one's; ``None``: there are none such.

    Raises:
        QueryError: The text is no query, or names what is not there.
    """
    from deltalake import QueryBuilder

    config = {"datafusion.execution.time_zone": "+00:00"}
    if app is not None:
        config["datafusion.catalog.default_schema"] = app
    engine = QueryBuilder(config)
    with tempfile.TemporaryDirectory(prefix="millrace-query-") as folder:
        schemas = {table.app for table in tables} | {_AS_KEPT, _WAITING}
        for schema in sorted(schemas - ({app} if app else {"public"})):
            _do(engine, f'CREATE SCHEMA "{schema}"')
        for number, table in enumerate(asked_for(text, tables)):
            _register(engine, table, upserts.get(table.full_name), Path(folder) / str(number))
        known = [table.full_name for table in tables]
        # Nothing but a query can be a view: what would write is refused here, before it is done.
        _do(engine, f'CREATE VIEW "{_AS_KEPT}"."asked" AS\n{_one(text)}', known, app)
        yield Answer(_do(engine, _one(text), known, app))


@contextmanager
def readable(table: AppTable) -> Iterator[None]:
    """Say which table it is that cannot be opened in the block.

    Raises:
        QueryError: It cannot: its first commit is not there yet, or its log is damaged.
    """
    from deltalake.exceptions import DeltaError

    try:
        yield
    except DeltaError as error:
        raise QueryError(f"table {table.full_name} cannot be read: {said(error)}") from None


def _one(text: str) -> str:
    return text.strip().removesuffix(";").strip()


def _register(engine: Any, table: AppTable, upsert: Upsert | None, folder: Path) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    from millrace.connectors.gathering import as_columns
    from millrace.connectors.merging import last_versions, open_with_waiting

    name = f'"{table.app}"."{table.name}"'
    with readable(table):
        opened, waits = open_with_waiting(table.folder)
    if not waits:
        engine.register(name, opened)
        return
    schema = pa.schema(opened.schema().to_arrow())
    rows = pa.concat_tables([as_columns(rows, schema) for rows in waits])
    write_deltalake(str(folder), rows if upsert is None else last_versions(rows, upsert))
    kept, waiting = f'"{_AS_KEPT}"."{folder.name}"', f'"{_WAITING}"."{folder.name}"'
    engine.register(kept, opened)
    engine.register(waiting, DeltaTable(str(folder)))
    if upsert is None:
        columns = ", ".join(f'"{column}"' for column in schema.names)
        both = f"SELECT {columns} FROM {kept} UNION ALL SELECT {columns} FROM {waiting}"  # noqa: S608  (names are quoted)
    else:
        both = merged(kept, waiting, upsert, schema.names)
    _do(engine, f"CREATE VIEW {name} AS {both}")


def merged(kept: str, waiting: str, upsert: Upsert, columns: Sequence[str]) -> str:
    """Return the query of a table's rows as they are when the newest of what waits is merged.

    Args:
        kept: Name of the table.
        waiting: Name of what waits: the last version of each row.
        upsert: What names a row, and which version is newer.
        columns: The table's columns.
    """
    on = _sql(upsert.matching("t", "s"))
    newer = upsert.newer("t", "s")
    wins = "TRUE" if newer is None else f"({_sql(newer)}) IS TRUE"
    there, new = f's."{upsert.key[0]}" IS NOT NULL', f't."{upsert.key[0]}" IS NULL'
    stays = "" if upsert.deleted is None else f' AND s."{upsert.deleted}" IS NOT TRUE'
    names = {side: ", ".join(f'{side}."{name}"' for name in columns) for side in ("t", "s")}
    return (  # names of a table's own columns, quoted
        f"SELECT {names['t']} FROM {kept} t LEFT JOIN {waiting} s ON {on} WHERE NOT ({there} AND {wins}) "  # noqa: S608
        f"UNION ALL "
        f"SELECT {names['s']} FROM {waiting} s LEFT JOIN {kept} t ON {on} WHERE ({new} OR {wins}){stays}"
    )


def _sql(condition: str) -> str:
    return condition.replace("`", '"')


def _do(engine: Any, text: str, known: Sequence[str] = (), app: str | None = None) -> Any:
    try:
        return engine.execute(text)
    except Exception as error:  # the engine has no types of errors for what is wrong with a text
        missing = _NO_TABLE.search(str(error))
        if missing is not None:
            name = missing["name"].removeprefix("public.")
            raise unknown_table(name, known) from None
        raise QueryError(said(error)) from None


def said(error: Exception) -> str:
    """Return what an engine says is wrong, in one line without what it wraps around it.

    Args:
        error: Its error; of a syntax error the line is that of the text behind a line of its own.
    """
    found = _PARSER.search(str(error))
    if found is not None:
        line = f"line {int(found[2]) - 1}, column {found[3]}: " if found[2] else ""
        return f"{line}{found[1].replace(_ESCAPED, _QUOTE)}"
    text = str(error).partition(", errors:")[0].partition("\n\n")[0].partition("\n   0: ")[0]
    while head := _WRAPPED.match(text):
        text = text[head.end() :]
    return " ".join(text.split())

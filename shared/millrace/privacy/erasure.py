"""Forgetting somebody in the tables of an app: rows are found by exact names, deleted, and looked for again.

Deletion goes by the columns that an app says name somebody. The look afterwards goes another way: through
every text of every row, so that it finds what the app forgot to say. Messages are read as JSON and looked
through text by text and key by key. What is a number is no name, but in fields that name somebody; so nobody
called 42 is found in a price of 42 or 19.42, nor in 1423.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millrace.connectors.upkeep import delete

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

#: Identity of a row, in all tables that a stream writes.
_ID: Final = "_event_id"
_AT_ONCE: Final = 1_000
#: Of dead letters: by which topic they came, and columns of their keys.
_TOPIC: Final = "topic"
_KEYS: Final = ("key", "kafka_key")
#: What a key of state or a column may have before a name: ``u:``, ``p:u:``.
_LED: Final = re.compile(r"(?:[a-z]:)+")


class _Object(list[tuple[str, Any]]):
    """An object of JSON with all of its pairs: of two with one key neither hides the other."""


@dataclass(frozen=True)
class Names:
    """What somebody is called, exactly.

    Attributes:
        values: The names.
        fields: Field that names somebody → the names that count there, as texts or as numbers, and no other.
        others: Fields that name something else: a text there is no name.
        exact: Whether names are these and nothing else; without it letters may lead them, as in ``u:42``.
        keyed: Topic → the field that the keys of its records are: of dead letters that came by it.

    Example:
        >>> names = Names(("42",), fields={"user": {"42"}, "cookie": {"c1"}}, others={"item"})
        >>> names.stands_in(b'{"user":"42"}'), names.stands_in(b'{"user":42}'), names.stands_in(b"u:42")
        (True, True, True)
        >>> names.stands_in(b'{"price":42,"cost":19.42,"item":"42","cookie":"42"}'), names.stands_in(b"4-42")
        (False, False)
        >>> [Names(("42", "u:42"), exact=True).stands_in(text) for text in ("42", "u:42", "c:42", '"c:42')]
        [True, True, False, False]
    """

    values: tuple[str, ...]
    fields: Mapping[str, Set[str]] = field(default_factory=dict, kw_only=True)
    others: Set[str] = field(default=frozenset(), kw_only=True)
    exact: bool = field(default=False, kw_only=True)
    keyed: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def keys(self) -> list[str]:
        """Return the names as columns of keys have them: as they are, and led by their length."""
        return _keys(self.values)

    def stands_in(self, message: bytes | str) -> bool:
        """Return whether a message has one of the names: as a whole, in its JSON, or in its text."""
        return self.named_by(message)

    def named_by(self, value: Any, of: str = "") -> bool:
        """Return whether a value has one of the names, however deep.

        Args:
            value: A column's value, or what was read of JSON.
            of: The field that it stands in.
        """
        if isinstance(value, Mapping | _Object):
            pairs = value.items() if isinstance(value, Mapping) else value
            return any(
                (of not in self.others and self._is(str(key))) or self.named_by(one, str(key))
                for key, one in pairs
            )
        if isinstance(value, bytes | str):
            return of not in self.others and self._text(value, of)
        if isinstance(value, Iterable):
            return any(self.named_by(one, of) for one in value)
        return of in self.fields and not isinstance(value, bool) and str(value) in self.fields[of]

    def may_stand_in(self, buffers: Iterable[bytes]) -> bool:
        """Return whether a name may stand in what has these bytes; a cheap look."""
        are_numbers = self.fields and any(value.isdecimal() for value in self.values)
        if are_numbers or any(json.dumps(value) != f'"{value}"' for value in self.values):
            # Numbers have no texts, and JSON may write a letter in more ways than one.
            return True
        needles = [value.encode() for value in self.values]
        return any(needle in buffer for buffer in buffers for needle in needles)

    @cached_property
    def _all(self) -> frozenset[str]:
        return frozenset(self.keys())

    def _is(self, text: str, of: str = "") -> bool:
        known = self._known.get(of, self._all)
        led = None if self.exact else _LED.match(text)
        return text in known or (led is not None and text[led.end() :] in known)

    def _text(self, value: bytes | str, of: str) -> bool:
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        if of in self.fields:
            return self._is(text, of)
        if self._is(text):
            return True
        if text.lstrip()[:1] in ("{", "[", '"'):
            try:
                return self.named_by(json.loads(text, object_pairs_hook=_Object))
            except (ValueError, RecursionError):
                pass  # something cut off: what can be seen of it
        return bool(self.values) and self._words.search(text) is not None

    @cached_property
    def _known(self) -> dict[str, frozenset[str]]:
        return {name: frozenset(_keys(values)) for name, values in self.fields.items()}

    @cached_property
    def _words(self) -> re.Pattern[str]:
        """What a text that is no JSON has where it names somebody; of numbers only what is clearly a name."""
        words = [re.escape(value) for value in self.values if value and not value.isdecimal()]
        every = "|".join(re.escape(value) for value in self.values if value)
        led = "" if self.exact else "(?:[a-z]:)*"
        ways = [f"(?<=[\"']){led}(?:{every})(?=[\"'])"] if every else []
        if words:
            ways.append(rf"(?<![\w-])(?:{'|'.join(words)})(?![\w-])")
        for name, values in sorted(self.fields.items()):
            there = "|".join(re.escape(value) for value in sorted(values) if value)
            ways += [rf"(?<!\w){re.escape(name)}[\"']?\s*[:=]\s*[\"']?(?:{there})(?![\w.-])"] if there else []
        return re.compile("|".join(ways) or "(?!)")


def _keys(values: Iterable[str]) -> list[str]:
    return [key for value in values if value for key in (value, f"{len(value.encode())}:{value}")]


def delete_rows(table: Path, columns: Sequence[str], names: Names) -> int:
    """Delete the rows of a Delta table in which one of some columns is a name; return how many.

    Args:
        table: The table.
        columns: Columns; of a struct's field ``event.card_id``. What the table does not have is left out.
        names: The names.
    """
    opened = _open(table)
    if opened is None or not names.values:
        return 0
    there = opened.to_pyarrow_dataset().schema
    return delete_where(table, {column: names.keys() for column in columns if _has(there, column.split("."))})


def delete_letters(table: Path, names: Names) -> int:
    """Delete the rows of a table of dead letters, or of events as text, that name somebody; return how many.

    Args:
        table: The table; its columns of bytes and texts are looked through as messages.
        names: The names.
    """
    opened = _open(table)
    if opened is None:
        return 0
    found = list(dict.fromkeys(_ids(opened, names)))
    for start in range(0, len(found), _AT_ONCE):
        delete_where(table, {_ID: found[start : start + _AT_ONCE]})
    return len(found)


def delete_where(table: Path, values: Mapping[str, Sequence[str]]) -> int:
    """Delete the rows of a Delta table in which a column has one of its values; return how many.

    Args:
        table: The table; one that does not exist has no rows.
        values: Column, of texts → the values; of a struct's field ``event.card_id``. What the table does not
            have is left out.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if (opened := _open(table)) is None:
        return 0
    there = pa.schema(opened.schema().to_arrow())
    wanted = {
        column: pa.array(of, pa.string())
        for column, of in values.items()
        if of and _has(there, column.split("."))
    }
    if not wanted:
        return 0

    def chosen(rows: pa.Table) -> pa.ChunkedArray:
        found = [pc.is_in(_field(rows, column), value_set=of) for column, of in wanted.items()]
        return reduce(pc.or_, found)

    columns = list(dict.fromkeys(column.split(".")[0] for column in wanted))
    condition = " OR ".join(f"{_sql(column)} IN ({quoted(values[column])})" for column in wanted)
    return delete(table, chosen, columns, condition=condition)


def _field(rows: pa.Table, column: str) -> pa.ChunkedArray:
    """Return a column as texts, or the field of a struct: of none it is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    first, *rest = column.split(".")
    return pc.cast(pc.struct_field(rows[first], rest) if rest else rows[first], pa.string())


def _ids(opened: DeltaTable, names: Names) -> Iterator[str]:
    for batch in opened.to_pyarrow_dataset().to_batches():
        if _ID in batch.schema.names:
            ids = batch[_ID].to_pylist()
            yield from (ids[row] for row in _rows(batch, names))


def count_left(table: Path, names: Names) -> int:
    """Return in how many rows of a Delta table somebody is named, in whatever column, however deep."""
    opened = _open(table)
    if opened is None or not names.values:
        return 0
    return sum(len(_rows(batch, names)) for batch in opened.to_pyarrow_dataset().to_batches())


def count_rows(rows: pa.Table, names: Names) -> int:
    """Return in how many of some rows somebody is named, in whatever column, however deep."""
    return sum(len(_rows(batch, names)) for batch in rows.to_batches())


def _rows(batch: pa.RecordBatch, names: Names) -> list[int]:
    """Return the rows of a batch that name somebody: candidates by Arrow's search, then each exactly."""
    found: set[int] = set()
    topics = batch[_TOPIC].to_pylist() if names.keyed and _TOPIC in batch.schema.names else []
    for column, name in zip(batch.columns, batch.schema.names, strict=True):
        buffers = (memoryview(buffer).tobytes() for buffer in column.buffers() if buffer is not None)
        values = column.to_pylist() if names.may_stand_in(buffers) else []
        fields = [names.keyed.get(topic, name) for topic in topics] if name in _KEYS else []
        found |= {
            row for row, value in enumerate(values) if names.named_by(value, fields[row] if fields else name)
        }
    return sorted(found)


def rows_with(
    opened: DeltaTable, column: str, values: Iterable[str], columns: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Delta table in which a column has one of some values.

    What merges have written has texts in a form (views) that a dataset's own filter does not compare.

    Args:
        opened: The table.
        column: The column, of texts.
        values: The values.
        columns: Further columns that are wanted, of texts.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(sorted(values), pa.string())
    for batch in opened.to_pyarrow_dataset().to_batches(columns=list(dict.fromkeys([column, *columns]))):
        plain = pa.table({name: pc.cast(batch[name], pa.string()) for name in batch.schema.names})
        yield from plain.filter(pc.is_in(plain[column], value_set=wanted)).to_pylist()


def wait_for_rows(
    table: Path, column: str, values: Iterable[str], *, patience_s: float, poll_s: float = 0.5
) -> list[str]:
    """Wait until a Delta table has each of some values in a column; return those that did not come.

    Args:
        table: The table, which may still have to be made.
        column: The column.
        values: The values.
        patience_s: How long, seconds.
        poll_s: How often it is looked at, seconds.
    """
    wanted, deadline = set(values), time.monotonic() + patience_s
    while True:
        opened = _open(table)
        if opened is not None:
            wanted -= {row[column] for row in rows_with(opened, column, wanted)}
        if not wanted or time.monotonic() > deadline:
            return sorted(wanted)
        time.sleep(poll_s)


def quoted(values: Iterable[str]) -> str:
    """Return texts as SQL writes them.

    >>> quoted(["a", "o'b"])
    "'a', 'o''b'"
    """
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values)


def _sql(column: str) -> str:
    first, *rest = column.split(".")
    return first + "".join(f"['{part}']" for part in rest)


def _has(schema: Any, parts: Sequence[str]) -> bool:
    import pyarrow as pa

    fields: Any = pa.schema(schema)
    for part in parts:
        names = [field.name for field in fields]
        if part not in names:
            return False
        kind = fields.field(part).type
        fields = kind if pa.types.is_struct(kind) else ()
    return True


def _open(table: Path) -> DeltaTable | None:
    from deltalake import DeltaTable

    return DeltaTable(str(table)) if DeltaTable.is_deltatable(str(table)) else None

"""Sinks of outputs: tables with one row per key, beside those that are appended to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Upsert:
    """A table that has one row per key: a newer record replaces the row.

    A batch's last record per key is merged. The same batch again changes nothing.

    Attributes:
        table: Name of the Delta table.
        key: Fields that name a row; never null.
        newest: Field that grows with each version of a row: a record below the row's is left out. Of several
            the next one counts where those before are equal. None: the record that comes last wins.
        deleted: Boolean field; a record in which it holds removes the row.
    """

    table: str
    key: tuple[str, ...]
    newest: str | tuple[str, ...] | None = None
    deleted: str | None = None

    def matching(self, row: str, record: str) -> str:
        """Return the SQL condition that a record is a version of a row.

        Args:
            row: Alias of the table.
            record: Alias of the records.

        Example:
            >>> Upsert("sessions", key=("id",)).matching("t", "s")
            't.`id` = s.`id`'
        """
        return " AND ".join(f"{row}.`{field}` = {record}.`{field}`" for field in self.key)

    @property
    def versions(self) -> tuple[str, ...]:
        """The fields of ``newest``, in order of what counts first."""
        return (self.newest,) if isinstance(self.newest, str) else tuple(self.newest or ())

    def newer(self, row: str, record: str) -> str | None:
        """Return the SQL condition that a record is not below its row; ``None``: none is.

        Args:
            row: Alias of the table.
            record: Alias of the records.

        Example:
            >>> Upsert("alarms", key=("id",), newest=("at", "number")).newer("t", "s")
            's.`at` > t.`at` OR (s.`at` = t.`at` AND (s.`number` >= t.`number`))'
        """
        condition: str | None = None
        for field in reversed(self.versions):
            new, old = f"{record}.`{field}`", f"{row}.`{field}`"
            condition = (
                f"{new} >= {old}"
                if condition is None
                else f"{new} > {old} OR ({new} = {old} AND ({condition}))"
            )
        return condition


#: A table by its name is appended to.
Table = str | Upsert
#: Where an output goes: to a table, or to several.
Tables = Table | Sequence[Table]


def table_name(table: Table) -> str:
    """Return the name of a table.

    >>> table_name("late"), table_name(Upsert("sessions", ("id",)))
    ('late', 'sessions')
    """
    return table.table if isinstance(table, Upsert) else table


def each_table(tables: Tables) -> tuple[Table, ...]:
    """Return the tables of an output one by one.

    >>> each_table("late"), each_table(("history", Upsert("sessions", ("id",))))
    (('late',), ('history', Upsert(table='sessions', key=('id',), newest=None, deleted=None)))
    """
    return (tables,) if isinstance(tables, str | Upsert) else tuple(tables)


def written(tables: Mapping[str, Tables]) -> list[tuple[str, Table]]:
    """Return each output that goes to a table, with that table.

    >>> written({"late": "late", "main": ("history", "daily")})
    [('late', 'late'), ('main', 'history'), ('main', 'daily')]
    """
    return [(output, table) for output, there in tables.items() for table in each_table(there)]

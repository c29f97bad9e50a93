"""Training sets from an app's own Delta tables: what was read, and of which version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from millrace.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


class CannotTrain(UserError):
    """There is not enough known to train on."""


class TrainingTables:
    """The tables that a training set is read from; it remembers which version of each was read.

    Args:
        folder: Where the tables are.
        wanted: Table → version that is to be read; left out: the newest.

    Attributes:
        versions: Table → the version of it that was read.
    """

    def __init__(self, folder: Path, wanted: Mapping[str, int] | None = None) -> None:
        self.folder, self._wanted = folder, dict(wanted or {})
        self.versions: dict[str, int] = {}

    def read(self, name: str, columns: Sequence[str], *, optional: Sequence[str] = ()) -> pd.DataFrame:
        """Read columns of a table, of one version however often it is read.

        Args:
            name: The table.
            columns: Names of its columns.
            optional: Columns that a table of an earlier version may lack: of ``columns`` they are all
                ``None`` then, others are left out.

        Raises:
            CannotTrain: There is no such table or version, or it lacks a column.
        """
        version = self._wanted.get(name, self.versions.get(name))
        found, read = read_table(self.folder / name, columns, version, optional=optional)
        self.versions[name] = read
        return found

    def find(self, name: str, columns: Sequence[str], *, optional: Sequence[str] = ()) -> pd.DataFrame | None:
        """Read columns of a table as :meth:`read` does; ``None``: there is no such table."""
        from deltalake import DeltaTable

        there = name in self._wanted or DeltaTable.is_deltatable(str(self.folder / name))
        return self.read(name, columns, optional=optional) if there else None

    def check_wanted(self) -> None:
        """Refuse versions of tables that were asked for and not read.

        Raises:
            CannotTrain: Nothing is learned from such a table.
        """
        if left := sorted(set(self._wanted) - set(self.versions)):
            raise CannotTrain(
                f"nothing is read from a table {left[0]}; tables: {', '.join(sorted(self.versions))}"
            )


def read_table(
    folder: str | Path, columns: Sequence[str], version: int | None = None, *, optional: Sequence[str] = ()
) -> tuple[pd.DataFrame, int]:
    """Read columns of a Delta table; return them with the table's version.

    Args:
        folder: The table.
        columns: Names of the columns.
        version: The version to read; ``None``: the newest.
        optional: Columns that may not be there: of ``columns`` they are all ``None`` then, others are left
            out.

    Raises:
        CannotTrain: There is no such table or version, or it lacks a column.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        table = DeltaTable(str(folder), version=version)
    except TableNotFoundError as error:
        raise CannotTrain(f"there is no table {folder}: run the app first") from error
    except (DeltaError, OSError) as error:
        if version is None:
            raise
        raise CannotTrain(f"the table {folder} has no version {version}, or no longer") from error
    names = {f.name for f in table.schema().fields}
    there = [name for name in columns if name in names]
    if missing := [name for name in columns if name not in names and name not in optional]:
        raise CannotTrain(f"the table {folder} has no column {', '.join(missing[:5])}")
    there = [*there, *(name for name in optional if name in names and name not in columns)]
    found = table.to_pyarrow_table(columns=there).to_pandas()
    for name in set(columns) - set(there):
        found[name] = None
    return found[[*columns, *(n for n in there if n not in columns)]], int(table.version())


def parse_versions(texts: Sequence[str]) -> dict[str, int]:
    """Return table → version of texts as ``labels@12``.

    Raises:
        UserError: A text says something else.

    >>> parse_versions(["labels@12", "transactions@3"])
    {'labels': 12, 'transactions': 3}
    """
    found = {}
    for text in texts:
        name, sign, version = text.rpartition("@")
        if not sign or not name or not version.isdecimal():
            raise UserError(f"--table-version {text}: write TABLE@VERSION, e.g. labels@12")
        found[name] = int(version)
    return found


def matrix(columns: Any, inputs: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return features as the array that models take, shape (n, features).

    Args:
        columns: Anything whose items are columns: a table, a data frame, a dict of arrays.
        inputs: The features, in order.
    """
    return np.column_stack([np.asarray(columns[name], dtype=np.float32) for name in inputs])

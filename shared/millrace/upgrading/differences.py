"""Differences between two versions' outputs of the same input, by identity.

Both go on writing while they are compared, and are never at the same place. So each table is read twice, with
a line between: first what stands there, then, once both have read up to all that this can come from, again.
What stood in one at first and is not in the other by then is only in that one. What came after the first look
is left for the next comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

#: A row: column → value.
Row = Mapping[str, Any]
#: Rows of one kind of which examples are given.
EXAMPLES: Final = 5


class Looks(NamedTuple):
    """A table of one version at two looks; the second has whatever was appended meanwhile, too."""

    first: Sequence[Row]
    then: Sequence[Row]


class TableDifference(msgspec.Struct):
    """How a table of two versions differs.

    Attributes:
        blue: Rows of the version that runs, at the first look.
        green: Rows of the new version, at the first look.
        same: Rows that are in both and equal.
        only_blue: Rows that the new version does not have.
        only_green: Rows that only the new version has.
        differ: Rows that are in both, with other values.
        moving: Rows that changed between the two looks, and are not compared: of tables with one row per key.
        twice_blue: Rows whose identity the running version has more than once.
        twice_green: The same of the new version.
        columns: Column → rows in which it differs.
        columns_only_blue: Columns that the new version does not have.
        columns_only_green: Columns that only the new version has.
        examples: Some identities by kind: ``only_blue``, ``only_green``, ``differ``.
    """

    blue: int = 0
    green: int = 0
    same: int = 0
    only_blue: int = 0
    only_green: int = 0
    differ: int = 0
    moving: int = 0
    twice_blue: int = 0
    twice_green: int = 0
    columns: dict[str, int] = {}
    columns_only_blue: list[str] = []
    columns_only_green: list[str] = []
    examples: dict[str, list[str]] = {}

    @property
    def is_same(self) -> bool:
        """Whether both say the same: new columns say something, too."""
        counts = (self.only_blue, self.only_green, self.differ, self.twice_blue, self.twice_green)
        return not any(counts) and not self.columns_only_blue and not self.columns_only_green


def difference(
    blue: Looks, green: Looks, identity: Sequence[str], columns: tuple[Iterable[str], Iterable[str]]
) -> TableDifference:
    """Return how a table differs whose rows are appended and never change.

    Args:
        blue: What the running version wrote.
        green: What the new one wrote.
        identity: Columns that name a row.
        columns: Names of the columns of each.

    Example:
        >>> blue = [{"id": 1, "n": 5}, {"id": 2, "n": 6}]
        >>> green = [{"id": 1, "n": 7}]
        >>> found = difference(Looks(blue, blue), Looks(green, green), ["id"], (["id", "n"], ["id", "n"]))
        >>> found.only_blue, found.only_green, found.columns
        (1, 0, {'n': 1})
    """
    name = _namer(identity)
    blue_first, green_first = Counter(map(name, blue.first)), Counter(map(name, green.first))
    blue_then, green_then = _by(name, blue.then), _by(name, green.then)
    found = _Found(*columns)
    for key in blue_first.keys() | green_first.keys():
        if key not in green_then:
            found.one("only_blue", key)
        elif key not in blue_then:
            found.one("only_green", key)
        else:
            found.both(key, blue_then[key], green_then[key])
    said = found.said
    said.blue, said.green = blue_first.total(), green_first.total()
    said.twice_blue = sum(count > 1 for count in blue_first.values())
    said.twice_green = sum(count > 1 for count in green_first.values())
    return said


def difference_by_key(
    blue: Looks, green: Looks, key: Sequence[str], columns: tuple[Iterable[str], Iterable[str]]
) -> TableDifference:
    """Return how a table differs that has one row per key, which changes.

    Keys that the new version has not written since it began are not looked at; those whose row changed
    between the looks are counted as ``moving``.

    Args:
        blue: What the running version has, of keys that may be older than the new version.
        green: What the new one has.
        key: Columns that name a row.
        columns: Names of the columns of each.
    """
    name = _namer(key)
    looks = [_by(name, rows) for rows in (*blue, *green)]
    blue_first, blue_then, green_first, green_then = looks
    found = _Found(*columns)
    for one in green_first.keys() | green_then.keys():
        still = all(
            _same(a.get(one), b.get(one)) for a, b in ((blue_first, blue_then), (green_first, green_then))
        )
        if not still:
            found.said.moving += 1
        elif one not in blue_then:
            found.one("only_green", one)
        else:
            found.both(one, blue_then[one], green_then[one])
    found.said.blue, found.said.green = len(blue_first), len(green_first)
    return found.said


class _Found:
    """What is found while rows are compared one by one."""

    def __init__(self, blue: Iterable[str], green: Iterable[str]) -> None:
        before, after = set(blue), set(green)
        self._common = sorted(before & after)
        self.said = TableDifference(
            columns_only_blue=sorted(before - after), columns_only_green=sorted(after - before)
        )

    def one(self, kind: str, key: tuple[Any, ...]) -> None:
        setattr(self.said, kind, getattr(self.said, kind) + 1)
        examples = self.said.examples.setdefault(kind, [])
        if len(examples) < EXAMPLES:
            examples.append(", ".join(map(str, key)))

    def both(self, key: tuple[Any, ...], blue: Row, green: Row) -> None:
        others = [c for c in self._common if not _same(blue.get(c), green.get(c))]
        for column in others:
            self.said.columns[column] = self.said.columns.get(column, 0) + 1
        if others:
            self.one("differ", key)
        else:
            self.said.same += 1


def _namer(columns: Sequence[str]) -> Callable[[Row], tuple[Any, ...]]:
    return lambda row: tuple(row.get(column) for column in columns)


def _by(name: Callable[[Row], tuple[Any, ...]], rows: Iterable[Row]) -> dict[tuple[Any, ...], Row]:
    return {name(row): row for row in rows}


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are the same; what is no number is the same as itself.

    >>> _same(float("nan"), float("nan")), _same({"a": 1}, {"a": 1.0}), _same(0, None)
    (True, True, False)
    """
    return bool(one == other) or repr(one) == repr(other)

"""A partition of Spark's state store as of a version: a snapshot, and the changelogs since."""

from __future__ import annotations

import heapq
import json
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from millrace.checkpoints.changelogs import read_changes, read_lineage
from millrace.checkpoints.sorted_table import Found, SortedTable, StateFormatUnknown


class Version(NamedTuple):
    """A version of a partition.

    Attributes:
        number: One more than the batch that made it.
        name: Its name; ``None`` where versions have none.
    """

    number: int
    name: str | None

    @property
    def stem(self) -> str:
        """What its files are called."""
        return str(self.number) if self.name is None else f"{self.number}_{self.name}"


#: Numbers of the variables where no snapshot tells: a state store counts them as they are opened.
_FIRST: Final = 2
#: So many bytes of changes are kept beside a snapshot before a newer one takes its place.
_MOST_CHANGES: Final = 64 << 20


class _Changes:
    """What was changed since a snapshot: the values in a file without a name, where they stand in memory."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="millrace-state-")  # noqa: SIM115 - as long as this
        self.at: dict[bytes, tuple[int, int] | None] = {}
        self.size = 0

    def keep(self, changes: Mapping[bytes, bytes | None]) -> dict[bytes, tuple[int, int] | None]:
        """Keep values, and return where: they are found once ``at`` knows it."""
        places: dict[bytes, tuple[int, int] | None] = {}
        end, kept = self.size, []
        for key, value in changes.items():
            if value is None:
                places[key] = None
                continue
            places[key] = end, len(value)
            end += len(value)
            kept.append(value)
        data = memoryview(b"".join(kept))
        while data:
            written = os.pwrite(self._file.fileno(), data, self.size)
            self.size += written
            data = data[written:]
        return places

    def get(self, place: tuple[int, int]) -> bytes:
        """Return a value."""
        return os.pread(self._file.fileno(), place[1], place[0])


class Partition:
    """A partition as of a version.

    Args:
        folder: Its folder.
        variables: Names of its variables in the order in which they are opened.
        version: The version.

    Raises:
        FileNotFoundError: Files of it are not there, or not there any more.
        StateCorrupted: Files are damaged.
        StateFormatUnknown: They are of a form that is not read here.
    """

    def __init__(self, folder: Path, variables: tuple[str, ...], version: Version) -> None:
        self._folder = folder
        self._tables: list[SortedTable] = []
        self._changes = _Changes()
        #: Name of a variable → the bytes that its keys begin with.
        self.variables: Mapping[str, bytes] = {
            name: number.to_bytes(2, "little") for number, name in enumerate(variables, _FIRST)
        }
        base, rest = self._way(version)
        self.base = base
        if base is not None:
            self._open(base)
        self._changes.at = self._changes.keep(self._read(rest))
        self.version = version

    def _way(self, version: Version) -> tuple[Version | None, list[Version]]:
        """Return the newest snapshot up to a version, and the versions since, in order."""
        names = set(os.listdir(self._folder))
        if f"{version.stem}.zip" in names:
            return version, []
        if version.name is None:
            line = [Version(number, None) for number in range(1, version.number + 1)]
        else:
            line = [*self._before(version), version]
        for place in range(len(line) - 1, -1, -1):
            if f"{line[place].stem}.zip" in names:
                return line[place], line[place + 1 :]
        if line[0].number != 1:
            raise FileNotFoundError(f"{self._folder} has no snapshot before version {version.number}")
        return None, line

    def _before(self, version: Version) -> list[Version]:
        """Return the versions that one stands on, back to a snapshot, in order."""
        found = read_lineage((self._folder / f"{version.stem}.changelog").read_bytes())
        if found is None:
            raise StateFormatUnknown(f"the changelogs in {self._folder} are not of a form that is read here")
        return sorted(Version(*one) for one in found)

    def _open(self, version: Version) -> None:
        with zipfile.ZipFile(self._folder / f"{version.stem}.zip") as packed:
            about = json.loads(packed.read("metadata").split(b"\n", 1)[1])
            if any(i.file_size for i in packed.infolist() if i.filename.endswith(".log")):
                raise StateFormatUnknown(f"{self._folder}: snapshot {version.number} has a log of its own")
        names = about.get("columnFamilyMapping")
        if names:
            self.variables = {name: int(n).to_bytes(2, "little") for name, n in names.items()}
        self._tables = [
            SortedTable(self._folder / "SSTs" / table["dfsSstFileName"])
            for table in about.get("sstFiles", ())
        ]

    def _read(self, versions: list[Version]) -> dict[bytes, bytes | None]:
        """Return what versions have changed, of each key the last."""
        found: dict[bytes, bytes | None] = {}
        for one in reversed(versions):
            own = dict(read_changes((self._folder / f"{one.stem}.changelog").read_bytes()))
            found = own | found
        return found

    def coming(self, version: Version) -> dict[bytes, tuple[int, int] | None] | None:
        """Return what :meth:`move` needs to go on to a version; ``None``: it must be read anew.

        It is as long as its newest snapshot is far behind, or where the version does not stand on this one.
        """
        if version == self.version:
            return {}
        before = [] if version.name is None else self._before(version)
        if version.name is None:
            before = [Version(number, None) for number in range(1, version.number)]
        try:
            since = before[before.index(self.version) + 1 :]
        except ValueError:
            return None
        if self._changes.size > _MOST_CHANGES and self._newer_snapshot(before):
            return None
        return self._changes.keep(self._read([*since, version]))

    def _newer_snapshot(self, line: list[Version]) -> bool:
        low = 0 if self.base is None else self.base.number
        return any((self._folder / f"{one.stem}.zip").exists() for one in line if one.number > low)

    def move(self, version: Version, coming: dict[bytes, tuple[int, int] | None]) -> None:
        """Go on to a version."""
        self._changes.at.update(coming)
        self.version = version

    def get(self, key: bytes) -> bytes | None:
        """Return a value; ``None`` where there is none."""
        if key in self._changes.at:
            place = self._changes.at[key]
            return None if place is None else self._changes.get(place)
        newest: Found | None = None
        for table in self._tables:
            found = table.get(key)
            if found is not None and (newest is None or found.sequence > newest.sequence):
                newest = found
        return None if newest is None else newest.value

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all keys, in order, with their values."""
        streams = [((key, -found.sequence, found.value) for key, found in t.entries()) for t in self._tables]
        before: bytes | None = None
        changed = sorted(self._changes.at.items())
        at = 0
        for key, _, value in heapq.merge(*streams, key=lambda one: one[:2]):
            if key == before:
                continue
            before = key
            while at < len(changed) and changed[at][0] < key:
                yield from self._changed(*changed[at])
                at += 1
            if key not in self._changes.at and value is not None:
                yield key, value
        for one in changed[at:]:
            yield from self._changed(*one)

    def _changed(self, key: bytes, place: tuple[int, int] | None) -> Iterator[tuple[bytes, bytes]]:
        if place is not None:
            yield key, self._changes.get(place)

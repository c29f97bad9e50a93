"""State files: the snapshots and changelogs that make a version of a state store's partition."""

from __future__ import annotations

import json
import os
import re
import zipfile
from functools import cached_property
from pathlib import Path
from typing import Final

from millrace.checkpoints.changelogs import read_lineage
from millrace.errors import UserError

#: What is said of a file that holds less than what was written.
DAMAGED: Final = "was cut off or is damaged: restore it from a backup, or go back to a savepoint"
_STATE_FILE = re.compile(r"(\d+)(?:_([0-9a-f-]{36}))?\.(zip|changelog|delta|snapshot)(\.crc)?")


class PartitionFiles:
    """The state files of one partition of an operator.

    A version of the state is a snapshot (``zip``, with its tables in the folder ``SSTs``) and the
    changelogs since. The changelog of a version names those before it back to the snapshot.

    Args:
        folder: The partition's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _names(self) -> list[str]:
        return sorted(os.listdir(self._folder))

    def files(self, version: int, unique_id: str | None) -> list[str]:
        """Return the files that a version needs; all up to it where that cannot be told.

        Args:
            version: The version: one more than the batch that made it.
            unique_id: Its name, where versions have names.

        Raises:
            FileNotFoundError: A file of it is not there, or not there any more.
        """
        wanted = None if unique_id is None else self._lineage(version, unique_id)
        versions = {}
        for name in self._names:
            if (found := _STATE_FILE.fullmatch(name)) is not None:
                versions[name] = (int(found[1]), found[2])
        if wanted is None:
            kept = [name for name, (v, _) in versions.items() if v <= version]
            if not any(versions[name][0] == version for name in kept):
                raise FileNotFoundError(f"{self._folder} has no version {version}")
        else:
            kept = [name for name, at in versions.items() if at in wanted]
            missing = wanted - {versions[name] for name in kept}
            if missing:
                raise FileNotFoundError(f"{self._folder} has no version {min(missing)[0]}")
        return kept + self._tables([name for name in kept if name.endswith(".zip")])

    def _lineage(self, version: int, unique_id: str) -> set[tuple[int, str | None]] | None:
        """Return the versions that one is made of, back to the newest snapshot; ``None``: unknown."""
        stem = f"{version}_{unique_id}"
        if f"{stem}.zip" in self._names:
            return {(version, unique_id)}
        if f"{stem}.changelog" not in self._names:
            raise FileNotFoundError(f"{self._folder} has no version {version}")
        before = read_lineage((self._folder / f"{stem}.changelog").read_bytes())
        if before is None:
            return None
        line = sorted({*before, (version, unique_id)})
        snapshots = [at for at in line if f"{at[0]}_{at[1]}.zip" in self._names]
        if not snapshots and line[0][0] != 1:
            raise FileNotFoundError(f"{self._folder} has no snapshot before version {version}")
        return {at for at in line if not snapshots or at >= snapshots[-1]}

    def _tables(self, snapshots: list[str]) -> list[str]:
        """Return the tables that snapshots are made of.

        Raises:
            UserError: A snapshot is damaged.
        """
        found: set[str] = set()
        for name in snapshots:
            try:
                with zipfile.ZipFile(self._folder / name) as packed:
                    about = json.loads(packed.read("metadata").split(b"\n", 1)[1])
            except (zipfile.BadZipFile, KeyError, ValueError, IndexError):
                raise UserError(f"{self._folder / name} {DAMAGED}") from None
            found |= {f"SSTs/{table['dfsSstFileName']}" for table in about.get("sstFiles", ())}
        sums = {f"{name}.crc" for name in found if (self._folder / f"{name}.crc").exists()}
        return sorted(found | sums)

"""Savepoints: a committed batch of a query, kept apart from it, to begin another query with.

A savepoint is a folder: the files of one batch of the checkpoint, the contract beside it, and a
manifest with what else belongs to that moment (offsets, watermark, versions of the tables) and a SHA-256
of every file. It is made under another name and renamed when it is complete; one that is not complete,
or of which a byte has changed, is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from millrace.checkpoints import positions
from millrace.checkpoints.checkpoint import Checkpoint, app_root, relocate
from millrace.checkpoints.positions import TablePosition
from millrace.errors import UserError
from millrace.runtime.clock_files import CLOCK_FILE, CLOCK_FOLDER, read_status, write_status
from millrace.runtime.contract import CONTRACT_FILE, RESTORED, CheckpointInUse, owned, write_contract

MANIFEST = "manifest.json"
#: Beside a checkpoint: its savepoints.
SAVEPOINTS = "savepoints"
_FORMAT = 1
_DRAINED = "drained"
#: How long a job that runs may take to merge what waits for its tables, s.
_MERGED_S = 90.0

#: What a restore does about tables that were written to since: see :func:`restore`.
Tables = Literal["refuse", "rollback", "merge", "keep"]


class SavepointError(UserError):
    """A savepoint cannot be made or used as asked for."""


class SavepointCorrupted(SavepointError):
    """A savepoint is not complete, or not what was written."""


@dataclass(frozen=True)
class Savepoint:
    """A savepoint that is there.

    Attributes:
        path: Its folder.
        manifest: What stands in its manifest.
    """

    path: Path
    manifest: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its name."""
        return self.path.name

    @property
    def batch(self) -> int:
        """The batch that it keeps."""
        return int(self.manifest["batch"])

    @property
    def bytes(self) -> int:
        """What its files take."""
        return sum(int(size) for size, _ in self.manifest["files"].values())

    @property
    def contract(self) -> dict[str, Any]:
        """The contract of the process that wrote it."""
        return dict(self.manifest["contract"])

    @property
    def tables(self) -> dict[Path, TablePosition]:
        """Where the tables stood."""
        return positions.from_data(self.manifest["tables"])


def create(
    checkpoint: Checkpoint,
    *,
    name: str | None = None,
    batch: int | None = None,
    to: Path | None = None,
    now: datetime | None = None,
    patience_s: float = _MERGED_S,
) -> Savepoint:
    """Keep a committed batch of a query, which may run meanwhile.

    Args:
        checkpoint: The checkpoint.
        name: Name of the savepoint; unless given, ``batch-N``.
        batch: A committed batch that is still kept; unless given the last one.
        to: Folder of savepoints; unless given, beside the checkpoint.
        now: The time that stands in the manifest; it decides nothing.
        patience_s: How long the job that runs may take to merge what waits for its tables, s.

    Raises:
        SavepointError: The name is taken, the checkpoint was drained, or rows wait for a table and no job
            merges them.
        CheckpointError: There is no batch to keep, or it went while it was copied.
    """
    if (checkpoint.root / _DRAINED).exists():
        raise SavepointError(
            f"the checkpoint in {checkpoint.root} has been drained: its timers fired as at the end of time, "
            "and nothing can go on from it"
        )
    folder = to or checkpoint.root / SAVEPOINTS
    if name is not None:
        _check_name(folder, name)
    part = folder / f".part-{uuid.uuid4().hex[:12]}"
    part.mkdir(parents=True)
    try:
        contract = checkpoint.contract()
        chosen = checkpoint.copy(part / "checkpoint", batch)
        _wait_for_merges(checkpoint.root, patience_s)
        name = name or f"batch-{chosen}"
        _check_name(folder, name)
        copy = Checkpoint(part, part / "checkpoint")
        status = read_status(checkpoint.root, chosen)
        if status is not None:
            write_status(part, chosen, status)
        if (checkpoint.root / positions.WRITTEN).is_dir():
            shutil.copytree(checkpoint.root / positions.WRITTEN, part / "checkpoint" / positions.WRITTEN)
        manifest = {
            "format": _FORMAT,
            "created_at": (now or datetime.now(UTC)).isoformat(timespec="seconds"),
            "source": str(checkpoint.root),
            **_about(copy, chosen),
            "contract": contract,
            "tables": positions.as_data(_positions(checkpoint.root, contract["incarnation"], chosen)),
            "files": _digests(part / "checkpoint"),
        }
        write_contract(part, contract)  # to look into it like into any checkpoint; the manifest's counts
        _write_manifest(part / MANIFEST, manifest)
        part.rename(folder / name)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Savepoint(folder / name, manifest)


def _wait_for_merges(root: Path, patience_s: float) -> None:
    """Wait until what batches have left for tables is in them: a table's version is all that is kept of it.

    Raises:
        SavepointError: Nobody merges it.
    """
    from millrace.connectors.merging import wait_for_merges

    folders = [path for path, kind in positions.tables_of(root).items() if kind == "delta"]
    if not wait_for_merges(folders, patience_s=0.0):
        return
    try:
        with owned(root):
            left = wait_for_merges(folders, patience_s=0.0)
    except CheckpointInUse:
        left = wait_for_merges(folders, patience_s=patience_s)
    if left:
        raise SavepointError(
            f"rows that batches left for {', '.join(left)} are not in the tables yet, and no job merges "
            "them: start the job once, or wait for it, and make the savepoint then"
        )


def _about(copy: Checkpoint, batch: int) -> dict[str, Any]:
    """Return what a manifest says of the batch that was copied."""
    position = copy.position(batch)
    return {
        "batch": batch,
        "watermark_ms": copy.watermark(batch),
        "offsets": list(position.sources),
        "partitions": position.partitions,
    }


def _positions(root: Path, incarnation: str, batch: int) -> dict[Path, TablePosition]:
    found = {
        path: positions.position_of(path, kind, incarnation, batch)
        for path, kind in positions.tables_of(root).items()
    }
    return {path: at for path, at in found.items() if at is not None}


def _check_name(folder: Path, name: str) -> None:
    if not name or name.startswith(".") or "/" in name:
        raise SavepointError(f"'{name}' cannot be the name of a savepoint: it becomes a folder in {folder}")
    if (folder / name).exists():
        raise SavepointError(f"there is a savepoint {name} in {folder} already: choose another --name")


def _digests(folder: Path) -> dict[str, tuple[int, str]]:
    """Return size and SHA-256 of every file below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[str(path.relative_to(folder))] = (path.stat().st_size, digest)
    return found


def _write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    text = json.dumps(manifest, sort_keys=True)
    path.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}\n")


# -- finding and checking ----------------------------------------------------------------------


def list_savepoints(folder: Path) -> list[Savepoint]:
    """Return the savepoints in a folder by batch; what is not complete is none."""
    if not folder.is_dir():
        return []
    found = [load(path) for path in folder.iterdir() if (path / MANIFEST).exists()]
    return sorted(found, key=lambda s: (s.batch, s.name))


def load(path: Path) -> Savepoint:
    """Return the savepoint in a folder; its manifest is checked, its files are not yet.

    Raises:
        SavepointError: There is none.
        SavepointCorrupted: Its manifest is not what was written, or of a later version.
    """
    if not path.is_dir():
        raise SavepointError(f"there is no savepoint {path}")
    try:
        digest, text = (path / MANIFEST).read_text().split("\n", 1)
    except (OSError, ValueError, UnicodeDecodeError) as error:
        raise SavepointCorrupted(
            f"{path} is no complete savepoint: its {MANIFEST} is missing or cut off"
        ) from error
    text = text.removesuffix("\n")
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise SavepointCorrupted(f"{path / MANIFEST} is damaged: it is not what was written")
    manifest = json.loads(text)
    if manifest["format"] != _FORMAT:
        raise SavepointCorrupted(f"{path} has format {manifest['format']}, this version reads {_FORMAT}")
    return Savepoint(path.absolute(), manifest)


def verify(savepoint: Savepoint) -> None:
    """Check every file of a savepoint.

    Raises:
        SavepointCorrupted: One is missing, has changed, or does not belong there.
    """
    found = _digests(savepoint.path / "checkpoint")
    wanted = {name: (int(size), digest) for name, (size, digest) in savepoint.manifest["files"].items()}
    wrong = [f"{name} is missing" for name in wanted.keys() - found.keys()]
    wrong += [f"{name} does not belong to it" for name in found.keys() - wanted.keys()]
    wrong += [f"{name} is damaged" for name in wanted.keys() & found.keys() if wanted[name] != found[name]]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise SavepointCorrupted(
            f"the savepoint {savepoint.path} cannot be used: {min(wrong)}{more}; restore it from a backup"
        )


def find(name: str, near: str | None = None) -> Savepoint:
    """Return a savepoint by path, or by name beside a checkpoint.

    Args:
        name: A path, a name, or ``APP/NAME``.
        near: The folder or app whose savepoint is meant by a bare name.

    Raises:
        SavepointError: There is none.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return load(path)
    app, slash, rest = name.partition("/")
    root = app_root(app) if slash else None
    if root is not None:
        return load(root / SAVEPOINTS / rest)
    if near is not None:
        return load(savepoints_folder(near) / name)
    raise SavepointError(
        f"there is no savepoint {name}: give its path, APP/NAME, or its name with --to of the checkpoint "
        "it was made of"
    )


def savepoints_folder(target: str) -> Path:
    """Return where the savepoints of an app or a folder are."""
    path = Path(target).expanduser()
    root = path.absolute() if path.is_dir() else app_root(target)
    if root is None:
        root = path.absolute()
    return root / SAVEPOINTS


# -- restoring ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Restored:
    """What a restore did.

    Attributes:
        checkpoint: The checkpoint that a query can go on from.
        incarnation: Its identity, new.
        done: What was done about tables, a line each.
    """

    checkpoint: Checkpoint
    incarnation: str
    done: tuple[str, ...] = ()


def restore(savepoint: Savepoint, to: Path, *, tables: Tables = "refuse", replace: bool = False) -> Restored:
    """Make a checkpoint of a savepoint, that a new query goes on from.

    The checkpoint gets an identity of its own, so tables do not take its batches for those of the query
    that the savepoint was made of. What that one wrote after the savepoint would come twice:

    - ``refuse``: only if the tables are still where the savepoint saw them;
    - ``rollback``: the tables are brought back to where they were then;
    - ``merge``: the new query leaves out what they have already, by its ``event_id``;
    - ``keep``: nothing is done; for a query that writes to other tables.

    The process may be a later version: whether it can read what was kept is checked when it starts.

    Args:
        savepoint: The savepoint; all its files are checked first.
        to: The folder that is given to ``write_to``, or an app's ``storage.root``.
        tables: What to do about tables that were written to since.
        replace: Take the place of a checkpoint that is there; it is removed.

    Raises:
        SavepointCorrupted: The savepoint is damaged.
        SavepointError: There is a checkpoint already, or tables were written to since.
        CheckpointInUse: A query runs there.
    """
    from millrace.connectors.merging import waiting_rows

    verify(savepoint)
    to = to.absolute()
    with owned(to):
        if not replace and ((to / "checkpoint").exists() or (to / CONTRACT_FILE).exists()):
            raise SavepointError(
                f"{to} has a checkpoint already: choose another folder, or take its place with --replace"
            )
        moved = written_since(savepoint)
        if moved and tables == "refuse":
            raise SavepointError(
                f"after this savepoint something was written to {_some(moved)}, and a query from it would "
                "write the same again: --rollback brings tables back to the savepoint, "
                "--merge writes only what is missing, --keep-tables is for a query that writes to others"
            )
        already = _known(savepoint)
        for path in moved if tables == "merge" else ():
            newer = positions.ids_written_after(path, savepoint.tables[path], waiting_rows(path))
            already[path] = already.get(path, frozenset()) | newer
        done: list[str] = []

        def settle() -> None:
            if tables == "rollback":
                for path in moved:
                    if positions.has_waiting(path):
                        done.append(positions.forget_waiting(path))
                    if positions.has_moved(path, savepoint.tables[path]):
                        done.append(positions.roll_back(path, savepoint.tables[path]))
            positions.keep_ids(to, already)
            status = read_status(savepoint.path, savepoint.batch)
            if status is not None:
                write_status(to, savepoint.batch, status)
            (to / _DRAINED).unlink(missing_ok=True)

        contract = new_contract(savepoint.contract, {"savepoint": savepoint.name})
        with new_checkpoint(to, contract, settle) as folder:
            for name in savepoint.manifest["files"]:
                if name.startswith(f"{positions.WRITTEN}/"):
                    continue  # stands beside a checkpoint, not in it
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(savepoint.path / "checkpoint" / name, target)
            (folder / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    return Restored(Checkpoint(to, to / "checkpoint"), contract["incarnation"], tuple(done))


def _known(savepoint: Savepoint) -> dict[Path, frozenset[str]]:
    """Return the records that tables had when the query itself had been restored and had not caught up."""
    files = positions.kept_ids(savepoint.path / "checkpoint")
    return {table: positions.read_ids(file) for table, file in files.items()}


def written_since(savepoint: Savepoint) -> list[Path]:
    """Return the tables that something was written to since a savepoint, or left for."""
    return [
        path
        for path, at in savepoint.tables.items()
        if positions.has_moved(path, at) or positions.has_waiting(path)
    ]


def _some(paths: list[Path]) -> str:
    return f"{paths[0]}" + (f" and {len(paths) - 1} more tables" if len(paths) > 1 else "")


@contextlib.contextmanager
def new_checkpoint(
    root: Path, contract: Mapping[str, Any], settle: Callable[[], None] | None = None
) -> Iterator[Path]:
    """Fill a folder that becomes the checkpoint in ``root`` when the block ends well.

    A checkpoint that is there is moved aside with its contract, and removed at the end. The new contract
    is the last that is written: whatever is cut off before leaves a folder without one, on which no query
    starts.

    Args:
        root: The folder that holds the contract.
        contract: The contract of the new checkpoint.
        settle: What else must have happened before a query may start, e.g. bringing tables back.
    """
    part, gone = (root / f"checkpoint-{what}-{uuid.uuid4().hex[:12]}" for what in ("new", "old"))
    part.mkdir(parents=True)
    try:
        yield part
        relocate(part, root / "checkpoint")
        gone.mkdir()
        for name in (CONTRACT_FILE, CLOCK_FILE, CLOCK_FOLDER, "checkpoint"):
            if (root / name).exists():
                (root / name).rename(gone / name)
        part.rename(root / "checkpoint")
        if settle is not None:
            settle()
        write_contract(root, dict(contract))
        shutil.rmtree(gone)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def new_contract(contract: Mapping[str, Any], restored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contract of a checkpoint that was made of another; its incarnation is new."""
    return {**contract, "incarnation": uuid.uuid4().hex[:12], RESTORED: dict(restored)}

"""A checkpoint of Spark as files: its batches, where they stand, and the files a batch's state is in.

All files of a checkpoint are written once, under a temporary name first, and later removed; none is
changed. So the files of one committed batch are a consistent copy of the query, also while it runs:
either all of them are still there, or the copy is begun again with a later batch.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.checkpoints.state_files import DAMAGED, PartitionFiles
from millrace.errors import UserError
from millrace.local.home import demo_path
from millrace.runtime.clock_files import read_watermark
from millrace.runtime.contract import CONTRACT_FILE

#: How often a copy is begun again when the running query removed files under it.
_TRIES = 5
_FROZEN_PARTITIONS = "spark.sql.shuffle.partitions"


class CheckpointError(UserError):
    """A checkpoint is not there, has no committed batch, or cannot be read."""


@dataclass(frozen=True)
class Operator:
    """A stateful operator of the query.

    Attributes:
        id: Its number.
        name: Spark's name of it.
        partitions: Into how many its state is divided.
        variables: Names of its state variables.
    """

    id: int
    name: str
    partitions: int
    variables: tuple[str, ...]


@dataclass(frozen=True)
class Position:
    """How far a batch has come.

    Attributes:
        batch: The batch.
        sources: Offsets of every source after it, as Spark writes them; ``None``: not begun.
        metadata: What Spark keeps beside them: time, frozen settings.
    """

    batch: int
    sources: tuple[str | None, ...]
    metadata: dict[str, Any]

    @property
    def partitions(self) -> int:
        """Into how many the state is divided."""
        return int(self.metadata["conf"][_FROZEN_PARTITIONS])


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint and what stands beside it.

    Attributes:
        root: The folder that holds the contract.
        folder: Spark's own folder in it.
    """

    root: Path
    folder: Path

    def contract(self) -> dict[str, Any]:
        """Return the contract beside the checkpoint.

        Raises:
            CheckpointError: There is none.
        """
        path = self.root / CONTRACT_FILE
        try:
            found: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            raise CheckpointError(
                f"{self.root} has no {CONTRACT_FILE}: name the folder that was given to write_to, or an app"
            ) from None
        except ValueError as error:
            raise CheckpointError(f"{path} cannot be read ({error}): restore it from a backup") from error
        return found

    def batches(self) -> list[int]:
        """Return the committed batches that are still kept, in order."""
        planned = _numbers(self.folder / "offsets")
        return sorted(planned & _numbers(self.folder / "commits"))

    def last(self) -> int:
        """Return the last committed batch.

        Raises:
            CheckpointError: No batch was committed yet.
        """
        found = self.batches()
        if not found:
            raise CheckpointError(f"{self.folder} has no committed batch yet: let the query finish one")
        return found[-1]

    def planned(self) -> list[int]:
        """Return batches that were planned after the last committed one: they run at the next start."""
        last = max(_numbers(self.folder / "commits"), default=-1)
        return sorted(b for b in _numbers(self.folder / "offsets") if b > last)

    def position(self, batch: int) -> Position:
        """Return where the sources stand after a batch.

        Raises:
            CheckpointError: The batch is not kept any more.
        """
        lines = self._log("offsets", batch)
        sources = tuple(None if line == "-" else line for line in lines[2:])
        return Position(batch, sources, _object(self.folder / "offsets" / str(batch), lines[1]))

    def plan(self, sources: tuple[str | None, ...]) -> int:
        """Plan the batch after the last committed one so that it ends at some offsets; return its number.

        The query must not run. A batch that was planned and has committed nothing is planned anew: when the
        query starts it takes what is planned, and no more.

        Args:
            sources: Offsets of every source, as Spark writes them.

        Raises:
            CheckpointError: No batch was committed yet, or the query has other sources.
        """
        last = self.last()
        kept, planned = self.position(last), self.planned()
        if len(kept.sources) != len(sources):
            raise CheckpointError(
                f"{self.folder} reads {len(kept.sources)} sources, and offsets of {len(sources)} are given"
            )
        lines = self._log("offsets", planned[0] if planned else last)
        for batch in planned:
            (self.folder / "offsets" / str(batch)).unlink()
        ends = ["-" if one is None else one for one in sources]
        rewrite(self.folder / "offsets" / str(last + 1), "\n".join([*lines[:2], *ends]))
        return last + 1

    def commit(self, batch: int) -> dict[str, Any]:
        """Return what Spark wrote when it committed a batch: names of state files."""
        return _object(self.folder / "commits" / str(batch), self._log("commits", batch)[1])

    def watermark(self, batch: int) -> int | None:
        """Return the watermark (ms) at which the next batch runs.

        ``None``: before the first event, or where the query was not started by ``write_to`` or an app.
        """
        return read_watermark(self.root, batch)

    def operators(self, batch: int) -> list[Operator]:
        """Return the stateful operators as of a batch."""
        found = []
        for number in sorted(_numbers(self.folder / "state")):
            path = self._metadata_of(number, batch)
            if path is not None:
                about = _object(path, path.read_text().partition("\n")[2])
                properties = json.loads(about.get("operatorPropertiesJson") or "{}")
                found.append(
                    Operator(
                        number,
                        about["operatorInfo"]["operatorName"],
                        int(about["stateStoreInfo"][0]["numPartitions"]),
                        tuple(
                            v["stateName"]
                            for v in properties.get("stateVariables", ())
                            if v["stateVariableType"] != "TimerState"
                        ),
                    )
                )
        return found

    def _metadata_of(self, operator: int, batch: int) -> Path | None:
        folder = self.folder / "state" / str(operator) / "_metadata" / "v2"
        written = [b for b in _numbers(folder) if b <= batch]
        return folder / str(max(written)) if written else None

    def _log(self, name: str, batch: int) -> list[str]:
        path = self.folder / name / str(batch)
        try:
            lines = path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            kept = ", ".join(map(str, self.batches())) or "none"
            raise CheckpointError(
                f"{self.folder} does not keep batch {batch} (kept: {kept}); the setting "
                "spark.sql.streaming.minBatchesToRetain says how many are kept"
            ) from None
        if len(lines) < 2:  # a version, and what it says
            raise _damaged(path)
        return lines

    # -- files ---------------------------------------------------------------------------------

    def files(self, batch: int) -> list[str]:
        """Return the files (relative to the folder) that a query needs to go on after ``batch``."""
        found = ["metadata"]
        for log in ("offsets", "commits"):
            # Spark looks at the batch before the last planned one, too.
            found += [f"{log}/{b}" for b in (batch - 1, batch) if (self.folder / log / str(b)).exists()]
        found += [str(p.relative_to(self.folder)) for p in _visible(self.folder / "sources")]
        ids = self.commit(batch).get("stateUniqueIds") or {}
        for operator in sorted(_numbers(self.folder / "state")):
            at = self.folder / "state" / str(operator)
            for kept in ("_metadata", "_stateSchema"):
                found += [
                    str(p.relative_to(self.folder))
                    for p in _visible(at / kept)
                    if not (p.parent.name == "v2" and p.name.isdigit() and int(p.name) > batch)
                ]
            of_operator = ids.get(str(operator), [])
            # Folders beyond are of a time before the state was divided into fewer.
            for partition in range(self.position(batch).partitions):
                own = of_operator[partition] if partition < len(of_operator) else []
                names = PartitionFiles(at / str(partition)).files(
                    batch + 1, own[0] if len(own) == 1 else None
                )
                found += [f"state/{operator}/{partition}/{name}" for name in names]
        return found

    def copy(self, to: Path, batch: int | None = None, *, link: bool = False) -> int:
        """Copy the files of a committed batch, while the query may run.

        Args:
            to: A folder that does not exist.
            batch: The batch; unless given the last one.
            link: Make hard links where the file system can: what a running query removes stays readable,
                at no cost. Only for copies that nobody writes to.

        Returns:
            The batch.

        Raises:
            CheckpointError: There is no committed batch, or none that could be copied in time.
        """
        for _ in range(_TRIES):
            chosen = self.last() if batch is None else batch
            try:
                for name in self.files(chosen):
                    target = to / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    _copy(self.folder / name, target, link and "_metadata" not in target.parts)
                relocate(to)
            except FileNotFoundError:
                shutil.rmtree(to, ignore_errors=True)
                if batch is not None:
                    self._log("commits", batch)  # says that it is not kept any more
                continue
            return chosen
        raise CheckpointError(
            f"{self.folder}: files of batch {chosen} went while they were copied, {_TRIES} times: the query "
            "commits faster than they can be read; raise spark.sql.streaming.minBatchesToRetain"
        )


@contextlib.contextmanager
def held(checkpoint: Checkpoint, batches: Iterable[int | None]) -> Iterator[tuple[Checkpoint, int]]:
    """Keep a batch while the block runs, though its query goes on and removes it: an engine takes its time.

    Args:
        checkpoint: The checkpoint.
        batches: The first of these that is still kept; ``None``: the last one.

    Returns:
        A copy with the batch, on the disk of the checkpoint of links, and the batch.

    Raises:
        CheckpointError: None of them is kept any more.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-state-") as folder:
        copy = Checkpoint(checkpoint.root, Path(folder) / "checkpoint")
        gone: CheckpointError | None = None
        for batch in batches:
            try:
                chosen = checkpoint.copy(copy.folder, batch, link=True)
            except CheckpointError as error:
                gone = gone or error
                continue
            yield copy, chosen
            return
        checkpoint.last()  # says it where there is none at all
        raise gone or CheckpointError(
            f"{checkpoint.folder}: the batches that it kept went one after the other"
        )


def _object(path: Path, text: str) -> dict[str, Any]:
    """Return the object that a line of a file is.

    Raises:
        CheckpointError: It is none.
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _damaged(path)
    return found


def _damaged(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} {DAMAGED}")


def relocate(folder: Path, to: Path | None = None) -> None:
    """Let a checkpoint that was copied know its own place: Spark keeps absolute paths of schemas.

    Args:
        folder: Where it is.
        to: Where it will be; unless given, where it is.
    """
    home = (to or folder).absolute()
    for path in (folder / "state").glob("*/_metadata/v2/*"):
        if path.name.isdigit():
            version, _, about = path.read_text().partition("\n")
            metadata = _object(path, about)
            for store in metadata["stateStoreInfo"]:
                at = home / "state" / path.parts[-4] / "_stateSchema" / store["storeName"]
                store["stateSchemaFilePaths"] = [
                    f"file:{at / Path(old).name}" for old in store["stateSchemaFilePaths"]
                ]
            rewrite(path, f"{version}\n{json.dumps(metadata, separators=(',', ':'))}")


def rewrite(path: Path, text: str) -> None:
    """Write a file of a checkpoint anew; checksums of what it was before go."""
    for name in (f"{path.name}.crc", f".{path.name}.crc"):  # Spark's, and that of Hadoop's local file system
        path.with_name(name).unlink(missing_ok=True)
    path.write_text(text)


def locate(target: str) -> Checkpoint:
    """Return the checkpoint at a path, or that of an app.

    Args:
        target: The folder that was given to ``write_to``, an app's ``storage.root``, Spark's folder inside
            of either, or the name of an app.

    Raises:
        CheckpointError: There is no checkpoint.
    """
    path = Path(target).expanduser()
    if path.is_dir():
        path = path.absolute()
        if (path / "offsets").is_dir():
            return Checkpoint(path.parent, path)
        if (path / "checkpoint" / "offsets").is_dir():
            return Checkpoint(path, path / "checkpoint")
        raise CheckpointError(f"{path} holds no checkpoint (no folder checkpoint/offsets)")
    root = app_root(target)
    if root is None:
        raise CheckpointError(f"there is no folder {target} and no app of that name")
    if not (root / "checkpoint" / "offsets").is_dir():
        demo = demo_path(target)
        has_one = (demo / "checkpoint" / "offsets").is_dir()
        other = f", or name that of its last demo: {demo}" if has_one else ""
        raise CheckpointError(f"{target} has no checkpoint in {root}: run it first{other}")
    return Checkpoint(root, root / "checkpoint")


def app_root(name: str) -> Path | None:
    """Return the folder of an app's checkpoint, ``None`` if there is no such app."""
    from millrace.runtime.apps import load_app
    from millrace.runtime.installed import list_apps

    if name not in list_apps():
        return None
    from millrace.runtime.settings import load_settings

    root = load_settings(load_app(name).settings, app=name).storage.local_root
    if root is None:
        raise CheckpointError(f"the storage.root of {name} is not a local or mounted folder")
    return root


def _numbers(folder: Path) -> set[int]:
    """Return the names in a folder that are numbers."""
    try:
        return {int(name) for name in os.listdir(folder) if name.isdigit()}
    except FileNotFoundError:
        return set()


def _visible(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, less those that are being written and checksums that are optional."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            yield path


def _copy(source: Path, target: Path, link: bool) -> None:
    if link:
        try:
            os.link(source, target)
        except FileNotFoundError:
            raise
        except OSError:  # another disk, or one without links
            pass
        else:
            return
    shutil.copy2(source, target)

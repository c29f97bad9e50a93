"""Exported models: the folder from which workers read, and the only one.

``<folder>/<name>/<alias>.json`` is the manifest of the version under an alias, and names its file by the
file's digest. The file is complete before the manifest names it, and a manifest takes the place of the one
before by a rename: who reads one finds the file that belongs to it, whatever happens meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from millrace.errors import MillraceError
from millrace.models.files import FILE_LIMIT, check_bytes, sha256_of
from millrace.models.manifest import BrokenModel, Manifest, decoded, encoded

#: The alias that decides, the one that is scored in its shadow, and the one before that decides no more.
CHAMPION: Final = "champion"
CHALLENGER: Final = "challenger"
PREVIOUS: Final = "previous"
#: How often workers look into the folder, seconds: a new model is in force after this and its loading.
POLL_S: Final = 0.5
#: Larger manifests are none, bytes.
MANIFEST_LIMIT: Final = 4 << 20
#: For so long files stay that no manifest names any more: somebody may be about to read them. Seconds.
KEPT_S: Final = 3_600
_CHUNK = 1 << 20
_ALIAS: Final = re.compile(r"^[a-z][a-z0-9_-]{0,49}$")
_drafts = itertools.count()


class NoExports(MillraceError):
    """The folder of a model's exports is not there, or cannot be read."""


class Found(NamedTuple):
    """What stands under an alias.

    Attributes:
        manifest: Its manifest.
        stamp: Changes when one of the two files is written anew.
    """

    manifest: Manifest
    stamp: tuple[int, ...]


@dataclass(frozen=True)
class Exports:
    """The exported versions of a model, by alias.

    Attributes:
        folder: Folder of all exports; every worker must see it under this path.
        name: Name of the registered model.
    """

    folder: str
    name: str

    @property
    def path(self) -> Path:
        """The folder of this model."""
        return Path(self.folder) / self.name

    def find(self, alias: str) -> Found | None:
        """Return the manifest under an alias; ``None``: no version has it.

        Raises:
            NoExports: There is no folder, or it cannot be read.
            BrokenModel: The manifest is none, or that of another model.
        """
        place = self._manifest(alias)
        try:
            stamp = _stamp(place)
            data = _read(place, MANIFEST_LIMIT)
        except FileNotFoundError:
            if not self.path.is_dir():
                raise NoExports(f"no model has been exported to {self.path}") from None
            return None
        except OSError as error:
            raise NoExports(f"{place} cannot be read: {error.strerror}") from error
        if len(data) > MANIFEST_LIMIT:
            raise BrokenModel(f"{place} has more than {MANIFEST_LIMIT:,} bytes: it is no manifest")
        manifest = decoded(data)
        if manifest.name != self.name:
            raise BrokenModel(f"{place} is of the model {manifest.name}, not {self.name}")
        with contextlib.suppress(OSError):
            stamp += _stamp(self.path / manifest.file)
        return Found(manifest, stamp)

    def data(self, manifest: Manifest) -> bytes:
        """Return the bytes of the file that a manifest names; what loads them holds them to it.

        Raises:
            BrokenModel: The file is not there, or too large.
        """
        place = self.path / manifest.file
        if manifest.size > FILE_LIMIT:
            raise BrokenModel(
                f"version {manifest.version} of {self.name} has {manifest.size:,} bytes: "
                f"more than {FILE_LIMIT:,} are not read"
            )
        try:
            return _read(place, manifest.size)
        except OSError as error:
            raise BrokenModel(
                f"version {manifest.version} of {self.name}: {place} cannot be read: {error.strerror}"
            ) from error

    def holds(self, manifest: Manifest) -> bool:
        """Return whether the file that a manifest names is there, whole."""
        try:
            return sha256_of(self.data(manifest)) == manifest.sha256
        except BrokenModel:
            return False

    def publish(self, alias: str, manifest: Manifest, data: bytes) -> None:
        """Put a version under an alias; workers take it from here on.

        Args:
            alias: The alias.
            manifest: The version's manifest.
            data: The bytes of its file.

        Raises:
            BrokenModel: They do not belong together, or the manifest could not be read again.
            NoExports: The folder cannot be written.
        """
        check_bytes(manifest, data)
        place, said = self._manifest(alias), encoded(manifest)
        decoded(said)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with self._locked():
                self._put_file(manifest, data)
                self._touch_named()
                _write(place, said)
                self._sweep()
        except OSError as error:
            raise NoExports(f"{self.path} cannot be written: {error.strerror}") from error

    def publish_estimator(self, alias: str, estimator: Any, *, version: str = "1", **about: Any) -> Manifest:
        """Put a scikit-learn estimator under an alias, as :meth:`publish` does with the bytes of its file.

        Args:
            alias: The alias.
            estimator: The trained model, which skops can store.
            version: Its version.
            about: Further fields of its :class:`~millrace.models.manifest.Manifest`.

        Returns:
            The manifest.

        Raises:
            BrokenModel: The manifest could not be read again.
            NoExports: The folder cannot be written.
        """
        import skops.io

        data: bytes = skops.io.dumps(estimator)
        manifest = Manifest(name=self.name, version=version, size=len(data), sha256=sha256_of(data), **about)
        self.publish(alias, manifest, data)
        return manifest

    def withdraw(self, alias: str) -> None:
        """Take an alias away; nothing happens where there is none."""
        with contextlib.suppress(FileNotFoundError), self._locked():
            self._touch_named()
            self._manifest(alias).unlink()

    def _manifest(self, alias: str) -> Path:
        if not _ALIAS.match(alias):
            raise ValueError(f"{alias!r} is no alias: write small letters, digits, - and _")
        return self.path / f"{alias}.json"

    def _put_file(self, manifest: Manifest, data: bytes) -> None:
        place = self.path / manifest.file
        if self.holds(manifest):
            os.utime(place)
        else:
            _write(place, data)

    def _touch_named(self) -> None:
        """Let what is named now count as used now."""
        for found in self.path.glob("*.json"):
            with contextlib.suppress(OSError, BrokenModel):
                os.utime(self.path / decoded(_read(found, MANIFEST_LIMIT)).file)

    def _sweep(self) -> None:
        """Remove the files that no manifest has named for a while, and drafts that a crash left."""
        named = set()
        for found in self.path.glob("*.json"):
            try:
                named.add(decoded(_read(found, MANIFEST_LIMIT)).file)
            except (OSError, BrokenModel):
                return  # what it names is not known
        before = time.time() - KEPT_S
        for file in (*self.path.glob("*.skops"), *self.path.glob(".*.part")):
            with contextlib.suppress(OSError):
                if file.name not in named and file.stat().st_mtime < before:
                    file.unlink()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one writer in at a time; readers never wait."""
        with (self.path / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _stamp(path: Path) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read(path: Path, limit: int) -> bytes:
    """Return a file's bytes, and one more than the limit where it has more."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts, left = [], limit + 1
        while left > 0 and (part := os.read(descriptor, min(_CHUNK, left))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _write(path: Path, data: bytes) -> None:
    """Write a file whole, or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}-{next(_drafts)}.part")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left[:_CHUNK]) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

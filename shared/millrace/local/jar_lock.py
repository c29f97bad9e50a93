"""`jars.lock`: which jars Millrace needs, and the hash that each must have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from millrace.errors import UserError

#: What a jar is for: Spark's classpath, or the classpath of the embedded broker's own JVM.
JarGroup: TypeAlias = Literal["spark", "broker"]

_Coordinate = Annotated[str, msgspec.Meta(pattern=r"^[\w.\-]+:[\w.\-]+:[\w.\-]+$")]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
_Bytes = Annotated[int, msgspec.Meta(ge=1)]


class Artifact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One jar file of a Maven repository.

    Args:
        coordinate: ``group:artifact:version``.
        sha256: Hash of the file, in hexadecimal.
        size: Bytes, where known.

    Example:
        >>> Artifact(coordinate="io.delta:delta-storage:4.4.0", sha256="0" * 64).repository_path
        'io/delta/delta-storage/4.4.0/delta-storage-4.4.0.jar'
    """

    coordinate: _Coordinate
    sha256: _Sha256
    size: _Bytes | None = None

    @property
    def file_name(self) -> str:
        """The jar's own file name."""
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"

    @property
    def repository_path(self) -> str:
        """Where a Maven repository keeps the file, relative to its root, with forward slashes."""
        group, artifact, version = self.coordinate.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{self.file_name}"


class Jar(Artifact, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A jar that is needed: the first choice, and what may stand in for it.

    Args:
        group: What the jar is for.
        alternates: Used, in order, when the first choice is not to be had.
        note: What a person should know about it.
    """

    group: JarGroup
    alternates: tuple[Artifact, ...] = ()
    note: str | None = None

    @property
    def choices(self) -> tuple[Artifact, ...]:
        """The first choice and its alternates, in order of preference."""
        return (self, *self.alternates)

    @property
    def expected_size(self) -> int:
        """Bytes to expect of a download: the first size known among the choices, else 0."""
        return next((choice.size for choice in self.choices if choice.size), 0)


class JarLock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole lock file; ``jar`` is the name of its tables."""

    version: Literal[1]
    jar: tuple[Jar, ...]

    def of_group(self, group: JarGroup) -> tuple[Jar, ...]:
        """Return the jars of one group, in the order of the file."""
        return tuple(jar for jar in self.jar if jar.group == group)


def lock_path() -> Path:
    """Return the lock file: beside this module, which in the source tree is a link to the one at its root."""
    return Path(__file__).with_name("jars.lock")


def load_lock(path: Path | None = None) -> JarLock:
    """Read and check the lock file.

    Args:
        path: The file; by default the one that came with this installation.

    Raises:
        UserError: The file cannot be read or breaks the format; the message says where.

    Example:
        >>> len(load_lock().of_group("spark"))
        6
    """
    path = path or lock_path()
    try:
        return msgspec.toml.decode(path.read_bytes(), type=JarLock)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise UserError(f"{path} is not a jar lock: {error}") from error

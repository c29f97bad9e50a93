"""A model's file, read so that nothing in it can do harm: skops, of checked types, of bounded size."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Sequence
from typing import Any, Final

from millrace.models.manifest import BrokenModel, Manifest

#: Larger files are no models, bytes; unpacked they may have a few times as much.
FILE_LIMIT: Final = 256 << 20
UNPACKED_LIMIT: Final = 1 << 30
#: Types that a file may hold beside those that skops trusts: reviewed, and checked by
#: :class:`~millrace.models.forest.Forest` before they are used.
TREES: Final = ("sklearn.tree._tree.Tree",)


def sha256_of(data: bytes) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal.

    >>> sha256_of(b"model")[:8]
    '9372c470'
    """
    return hashlib.sha256(data).hexdigest()


def check_bytes(manifest: Manifest, data: bytes) -> None:
    """Hold the bytes of a file to its manifest.

    Raises:
        BrokenModel: The file is cut off, or another one.
    """
    if len(data) != manifest.size:
        raise BrokenModel(
            f"version {manifest.version} of {manifest.name}: its file has {len(data):,} bytes, "
            f"the manifest says {manifest.size:,}: it is cut off, or another one"
        )
    if (found := sha256_of(data)) != manifest.sha256:
        raise BrokenModel(
            f"version {manifest.version} of {manifest.name}: its file has the SHA-256 {found[:12]}…, "
            f"the manifest says {manifest.sha256[:12]}…: it was changed"
        )


def estimator_of(data: bytes, trusted: Sequence[str] = ()) -> Any:
    """Return the estimator that a file holds; no code of the file runs.

    Args:
        data: The file's bytes.
        trusted: Types that it may hold beside those that skops trusts.

    Raises:
        BrokenModel: It is no such file, would unpack to too much, or holds a type that is not trusted.
    """
    import skops.io

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as members:
            unpacked = sum(member.file_size for member in members.infolist())
        if unpacked > UNPACKED_LIMIT:
            raise BrokenModel(f"the file unpacks to {unpacked:,} bytes, more than {UNPACKED_LIMIT:,}")
        foreign = sorted(set(skops.io.get_untrusted_types(data=data)) - set(trusted))
        if foreign:
            raise BrokenModel(f"the file holds {', '.join(foreign[:3])}, which is not trusted")
        return skops.io.loads(data, trusted=list(trusted))
    except BrokenModel:
        raise
    except zipfile.BadZipFile as error:
        raise BrokenModel(f"the file is no skops file, or cut off: {error}") from error
    except Exception as error:  # whatever a broken file makes its readers raise
        raise BrokenModel(f"the file cannot be read: {type(error).__name__}: {error}") from error

"""Files that Spark reads as a stream, one a batch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec


def write_batches(folder: Path, batches: Iterable[Sequence[Any]], *, start: int = 0) -> None:
    """Write batches of records as lines of JSON, a file each.

    With ``maxFilesPerTrigger`` 1 a streaming read takes them one by one, in this order.

    Args:
        folder: Where they go; it is made if need be.
        batches: Lists of records: structs, dicts, or JSON that is written already (``msgspec.Raw``).
        start: Number of the first file, where there are some already.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_batches(Path(folder), [[{"user": "ann", "at": 1}], [{"user": "bob", "at": 2}]])
        ...     [(path.name, path.read_text()) for path in sorted(Path(folder).iterdir())]
        [('00000.json', '{"user":"ann","at":1}'), ('00001.json', '{"user":"bob","at":2}')]
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number, batch in enumerate(batches, start):
        path = folder / f"{number:05}.json"
        path.write_bytes(b"\n".join(msgspec.json.encode(record) for record in batch))
        # Spark takes files by the time they were changed; a second apart leaves no doubt.
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))

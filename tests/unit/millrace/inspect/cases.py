"""A checkpoint that Spark wrote, unpacked where a test wants it: five batches, all kinds of state."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from millrace.inspect.checkpoint import Checkpoint

_ARCHIVE = Path(__file__).parents[3] / "spark" / "data" / "golden" / "v2" / "checkpoint.zip"
LAST = 4


def kept_checkpoint(root: Path) -> Checkpoint:
    """Unpack the checkpoint below ``root``, with its contract beside it."""
    with zipfile.ZipFile(_ARCHIVE) as kept:
        for name in kept.namelist():
            path = root / name.replace("contract/contract.json", "contract.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(kept.read(name).replace(b"/@golden@", os.fsencode(root)))
    return Checkpoint(root, root / "checkpoint")

"""A checkpoint that Spark wrote, unpacked where a test wants it: five batches, each with its clock."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

from millrace.checkpoints.checkpoint import Checkpoint
from millrace.runtime.clock_files import write_status
from millrace.state.layout import ENCODING_VERSION
from millrace.time.clock import CLOCK_VERSION, ClockStatus

_ARCHIVE = Path(__file__).parents[3] / "spark" / "data" / "golden" / "v2" / "checkpoint.zip"
LAST = 4
#: The watermark at the end of each batch, ms.
WATERMARKS = (
    1_700_000_031_299,
    1_700_000_055_000,
    1_700_000_080_078,
    1_700_000_099_000,
    1_700_000_105_299,
)


def _as_of_now(contract: Path) -> None:
    """Let the contract say what those of this version do: the tests are about files, not about the state."""
    found = json.loads(contract.read_text()) | {"encoding": ENCODING_VERSION, "clock": CLOCK_VERSION}
    found.pop("time_domain", None)
    contract.write_text(json.dumps(found))


def kept_checkpoint(root: Path) -> Checkpoint:
    """Unpack the checkpoint below ``root``, with its contract and what its clock said beside it."""
    with zipfile.ZipFile(_ARCHIVE) as kept:
        for name in kept.namelist():
            path = root / name.replace("contract/contract.json", "contract.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(kept.read(name).replace(b"/@golden@", os.fsencode(root)))
    _as_of_now(root / "contract.json")
    before = WATERMARKS[0]
    for batch, watermark in enumerate(WATERMARKS):
        write_status(root, batch, ClockStatus(before, watermark, watermark + 5_001, watermark + 5_100))
        before = watermark
    return Checkpoint(root, root / "checkpoint")

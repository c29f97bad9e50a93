"""Beside a checkpoint: what its clock goes by, from which batch on, and how far it was after each batch.

A batch that was planned before a restart runs again under the settings that it was planned under: the rows
that it took, and the watermark that they make, would be others with another limit or bound. So settings stand
in a file with the number of the first batch that they hold for.

How far the clock is stands in the state, with every key group. Who has no engine at hand (a dashboard, a
savepoint's manifest) reads it from small files, one for each of the last batches.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from millrace.time import END_OF_TIME, NO_WATERMARK
from millrace.time.clock import ClockSettings, ClockStatus

#: What the clock goes by.
CLOCK_FILE: Final = "clock.json"
#: The folder of what it said.
CLOCK_FOLDER: Final = "clock"
#: Batches whose clock is kept: more than checkpoints keep.
_KEPT: Final = 200


class Epoch(msgspec.Struct, array_like=True, frozen=True):
    """Settings, and the first batch that they hold for."""

    first_batch: int
    settings: ClockSettings


def settings_of(epochs: list[Epoch], batch: int) -> ClockSettings:
    """Return the settings that hold for a batch: of the epochs that have begun the last.

    >>> old, new = ClockSettings(bound_ms=5), ClockSettings(bound_ms=7)
    >>> [settings_of([Epoch(0, old), Epoch(4, new)], batch).bound_ms for batch in (0, 3, 4)]
    [5, 5, 7]
    """
    begun = [epoch for epoch in epochs if epoch.first_batch <= batch]
    return (begun[-1] if begun else epochs[0]).settings


def keep_settings(root: Path, settings: ClockSettings) -> list[Epoch]:
    """Write settings beside a checkpoint, for the batches that are not planned yet; return all that hold.

    Args:
        root: The folder that holds the checkpoint.
        settings: What the clock goes by from now on.
    """
    path = root / CLOCK_FILE
    planned = _last_planned(root / "checkpoint" / "offsets")
    kept = read_settings(root)
    before = [epoch for epoch in kept if epoch.first_batch <= planned]
    if not before or before[-1].settings != settings:
        epochs = [*before[-1:], Epoch(planned + 1, settings)]
    else:
        epochs = before[-1:]
    if epochs != kept:
        root.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(epochs), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    return epochs


def read_settings(root: Path) -> list[Epoch]:
    """Return what stands beside a checkpoint; nothing where there is none."""
    try:
        return msgspec.json.decode((root / CLOCK_FILE).read_bytes(), type=list[Epoch])
    except FileNotFoundError:
        return []


def _last_planned(offsets: Path) -> int:
    try:
        return max((int(name) for name in os.listdir(offsets) if name.isdigit()), default=-1)
    except FileNotFoundError:
        return -1


def write_status(root: Path, batch: int, status: ClockStatus) -> None:
    """Note how far the clock is at the end of a batch; a batch that runs again says the same.

    Args:
        root: The folder that holds the checkpoint.
        batch: The batch.
        status: What its clock said.
    """
    folder = root / CLOCK_FOLDER
    folder.mkdir(exist_ok=True)
    part = folder / f".{batch}.part"
    said = msgspec.structs.asdict(status)
    # What the next process of a chain needs of it, and whoever watches the job itself; nobody else.
    for name in ("reach", "lag_ms", "sources"):
        del said[name]
    if not status.control_late:
        del said["control_late"]
    part.write_bytes(msgspec.json.encode(said))
    part.replace(folder / f"{batch}")
    with contextlib.suppress(FileNotFoundError):
        (folder / f"{batch - _KEPT}").unlink()


def read_status(root: Path, batch: int) -> ClockStatus | None:
    """Return how far the clock was at the end of a batch; ``None`` where that is not known."""
    try:
        said = msgspec.json.decode((root / CLOCK_FOLDER / f"{batch}").read_bytes(), type=dict[str, Any])
        return ClockStatus(**said)
    except (FileNotFoundError, msgspec.DecodeError, TypeError):
        return None


def shown_watermark(status: ClockStatus | None) -> int | None:
    """Return the watermark (ms) of what a clock said.

    ``None``: before the first event, at the end of time, or where it is not known.
    """
    return None if status is None or status.watermark in (NO_WATERMARK, END_OF_TIME) else status.watermark


def read_watermark(root: Path, batch: int) -> int | None:
    """Return the watermark (ms) at the end of a batch, as :func:`shown_watermark` gives it."""
    return shown_watermark(read_status(root, batch))

"""Sampled metrics of a job, slow to find: sizes of its state, and which models decide."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from millrace.observing.figures import ModelFigures, StateFigures

#: State of more bytes than this on the disk is not gone through beside the job: `millrace state list` does.
MOST_BYTES: Final = 256 << 20
_ALIASES: Final = ("champion", "challenger")


def load() -> None:
    """Import what a look at state needs."""
    import millrace.checkpoints.committed
    import millrace.checkpoints.figures
    import millrace.models.exports  # noqa: F401


def state_files_bytes(root: Path) -> int:
    """Return what the files of a checkpoint's state take on the disk, of all batches that are kept; bytes.

    Args:
        root: The folder with the checkpoint.
    """
    total = 0
    for path in (root / "checkpoint" / "state").rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


def sampled_state(
    root: Path, key_file: str | None, now_ms: int, *, files_bytes: int | None = None
) -> dict[str, StateFigures]:
    """Return what the state of each process comes to as of the last committed batch.

    Args:
        root: The folder with the checkpoint.
        key_file: File of the keys that it is encrypted with.
        now_ms: Now, UTC ms.
        files_bytes: What its files take, if that is known.

    Returns:
        Process → figures; nothing where there is more than :data:`MOST_BYTES`.
    """
    from millrace.checkpoints.checkpoint import Checkpoint
    from millrace.checkpoints.committed import CommittedState
    from millrace.checkpoints.figures import added, figures_of_group

    checkpoint = Checkpoint(root, root / "checkpoint")
    if (state_files_bytes(root) if files_bytes is None else files_bytes) > MOST_BYTES:
        return {}
    state = CommittedState(checkpoint, key_file=key_file)
    found = {}
    for stage in state.stages:
        parts = [figures_of_group(label, group, 1) for _, label, group in state.groups(stage.process)]
        total = added(parts, 1)
        largest = total.largest_keys[0] if total.largest_keys else (0, "")
        mean = total.stored_bytes / (stage.key_groups * stage.stations)
        found[stage.process] = StateFigures(
            batch=state.batch,
            at_ms=now_ms,
            entries=total.entries,
            bytes=total.stored_bytes,
            pages=total.pages,
            timers=total.timers + total.processing_timers,
            waiting=total.waiting,
            largest_entry_bytes=largest[0],
            largest_key=largest[1],
            groups=total.groups,
            skew=max((p.stored_bytes for p in parts), default=0) / mean if mean else 0.0,
        )
    return found


def models_in(exports: Iterable[Path]) -> dict[str, ModelFigures]:
    """Return the models that have an alias in folders of exports: ``name/alias`` → the model.

    Args:
        exports: The folders, each with a folder per model.
    """
    from millrace.errors import MillraceError
    from millrace.models.exports import Exports

    found = {}
    for folder in exports:
        if not folder.is_dir():
            continue
        for path in sorted(p for p in folder.iterdir() if p.is_dir()):
            for alias in _ALIASES:
                place = path / f"{alias}.json"
                try:
                    exported = Exports(str(folder), path.name).find(alias)
                    since_ms = int(place.stat().st_mtime * 1000)
                except (MillraceError, OSError):
                    continue
                if exported is not None:
                    manifest = exported.manifest
                    found[f"{path.name}/{alias}"] = ModelFigures(
                        manifest.version, manifest.trained_until_ms, since_ms
                    )
    return found

"""Sampled metrics of a job, slow to find: sizes of its state, and which models decide."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.observing.figures import ModelFigures, StateFigures

if TYPE_CHECKING:
    from millrace.checkpoints.checkpoint import Checkpoint
    from millrace.checkpoints.committed import CommittedState
    from millrace.checkpoints.stages import Stage

#: Of state of more bytes than this on the disk a sample of pages is looked at beside the job.
MOST_BYTES: Final = 256 << 20
#: CPU seconds that a look at a sample of a process's state takes at most, and pages of a key group in it.
BUDGET_S: Final = 0.5
_PAGES: Final = 8
#: Bytes that batches wrote since a snapshot and that are read for it at most.
MOST_CHANGES: Final = 64 << 20
_KEPT_BYTES: Final = 8 << 20
_VERSION: Final = re.compile(r"\d+")
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
        Process → figures; of more than :data:`MOST_BYTES` estimates from a sample; nothing where batches
        write so much that not even a part of it can be read at little cost.
    """
    from millrace.checkpoints.checkpoint import Checkpoint
    from millrace.checkpoints.committed import CommittedState

    checkpoint = Checkpoint(root, root / "checkpoint")
    many = (state_files_bytes(root) if files_bytes is None else files_bytes) > MOST_BYTES
    parts = partitions_to_read(checkpoint) if many else None
    if parts is not None and not parts:
        return {}
    state = CommittedState(checkpoint, key_file=key_file, partitions=parts, kept_bytes=_KEPT_BYTES)
    return {
        stage.process: _counted(state, stage, now_ms)
        if parts is None
        else _estimated(state, stage, parts, now_ms)
        for stage in state.stages
    }


def partitions_to_read(checkpoint: Checkpoint) -> frozenset[int]:
    """Return partitions, chosen by chance, of which what batches wrote since a snapshot is not too much.

    A snapshot is mapped and read where it is needed; what was written since is read as a whole.

    Args:
        checkpoint: The checkpoint.
    """
    batch = checkpoint.last()
    numbers = list(range(checkpoint.position(batch).partitions))
    random.Random(batch).shuffle(numbers)  # noqa: S311 - which are looked at is no secret
    chosen, left = set(), MOST_CHANGES
    for number in numbers:
        folders = (checkpoint.folder / "state").glob(f"[0-9]*/{number}")
        left -= sum(changes_bytes(folder, batch + 1) for folder in folders)
        if left < 0:
            break
        chosen.add(number)
    return frozenset(chosen)


def changes_bytes(folder: Path, version: int) -> int:
    """Return what the changelogs of a partition take that its newest snapshot does not have; bytes.

    Args:
        folder: The partition's folder.
        version: The version that is read: one more than the batch.
    """
    names = [(_VERSION.match(name), name) for name in os.listdir(folder)]
    files = [(int(found[0]), name) for found, name in names if found is not None]
    base = max((number for number, name in files if number <= version and name.endswith(".zip")), default=0)
    return sum(
        (folder / name).stat().st_size
        for number, name in files
        if base < number <= version and name.endswith(".changelog")
    )


def _counted(state: CommittedState, stage: Stage, now_ms: int) -> StateFigures:
    """Return what all of a process's state comes to."""
    from millrace.checkpoints.figures import added, figures_of_group

    parts = [figures_of_group(label, group, 1) for _, label, group in state.groups(stage.process)]
    total = added(parts, 1)
    mean = total.stored_bytes / (stage.key_groups * stage.stations)
    largest = total.largest_keys[0] if total.largest_keys else (0, "")
    return StateFigures(
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


def _estimated(state: CommittedState, stage: Stage, parts: Collection[int], now_ms: int) -> StateFigures:
    """Return what the state of a process comes to by some pages of some key groups, within a budget of time.

    Groups are taken by chance, of each some pages by chance; what these hold on average times the pages that
    there are is what the group holds, and the groups that were taken stand for all. So numbers of keys,
    timers and bytes are estimates, the largest entry is the largest of what was looked at, and skew is that
    of the groups that were.
    """
    from millrace.checkpoints.figures import Figures, added, sample_of_group
    from millrace.host.groups import group_labels

    chance = random.Random(state.batch)  # noqa: S311 - as above
    labels = group_labels(stage.key_groups)
    every = [(station, label) for station in range(stage.stations) for label in labels]
    places = [one for one in every if state.partition_of(stage, *one) in parts]
    chance.shuffle(places)
    ends = time.thread_time() + BUDGET_S
    found_in, looked, pages = list[Figures](), 0, 0
    sizes: list[float] = []
    scaled = dict.fromkeys(("entries", "stored_bytes", "timers", "processing_timers", "waiting"), 0.0)
    for station, label in places:
        if looked and time.thread_time() > ends:
            break
        looked += 1
        found = sample_of_group(label, partial(state.values, stage, station, label), 1, chance, _PAGES)
        if found is None:
            sizes.append(0.0)
            continue
        part, own = found
        found_in.append(part)
        pages += own
        for name in scaled:
            scaled[name] += getattr(part, name) * own / max(1, part.pages)
        sizes.append(part.stored_bytes * own / max(1, part.pages))
    if not looked:
        return StateFigures(state.batch, now_ms, share=0.0)
    total, times = added(found_in, 1), len(every) / looked
    largest = total.largest_keys[0] if total.largest_keys else (0, "")
    told = {name: round(value * times) for name, value in scaled.items()}
    mean = sum(sizes) / looked
    return StateFigures(
        batch=state.batch,
        at_ms=now_ms,
        entries=told["entries"],
        bytes=told["stored_bytes"],
        pages=round(pages * times),
        timers=told["timers"] + told["processing_timers"],
        waiting=told["waiting"],
        largest_entry_bytes=largest[0],
        largest_key=largest[1],
        groups=round(len(found_in) * times),
        skew=max(sizes) / mean if mean else 0.0,
        share=total.pages / (pages * times) if pages else looked / len(every),
    )


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

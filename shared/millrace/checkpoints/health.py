"""State health: how the state of a process grows, and what in it wants a look."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from millrace.checkpoints.figures import Figures

#: An entry that is warned of when it is written, bytes; see ``docs/writing-a-process.md``.
LARGE_ENTRY: Final = 1_000_000
#: A key that takes more than this share of all bytes is named, if they come to more than ``_NOT_LITTLE``.
LARGE_SHARE: Final = 0.25
_NOT_LITTLE: Final = 1_000_000
#: Growth that is told: by this share, between the batches that are compared.
GROWTH: Final = 0.1
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True)
class Health:
    """How a process's state does.

    Attributes:
        process: Its name.
        from_batch: The earlier batch of the two that are compared.
        to_batch: The later one.
        hours: Event time between them, where the watermark of both is known.
        entries: Keys at the later one.
        stored_bytes: What all of it takes there.
        more_entries: By how many keys it grew.
        more_bytes: By how many bytes.
        waiting: Events that wait for the watermark.
        timers: Pending timers, on both clocks.
        unbounded: States without a time to live → keys that hold something in them.
        largest_keys: (bytes, key), the largest first.
        findings: What wants a look, a sentence each; empty: nothing.
    """

    process: str
    from_batch: int
    to_batch: int
    hours: float | None
    entries: int
    stored_bytes: int
    more_entries: int
    more_bytes: int
    waiting: int
    timers: int
    unbounded: dict[str, int] = field(default_factory=dict)
    largest_keys: list[tuple[int, str]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


def health_of(
    process: str,
    before: tuple[int, Figures],
    after: tuple[int, Figures],
    watermarks: Mapping[int, int | None],
    unbounded: Collection[str] = (),
) -> Health:
    """Return how the state of a process does between two batches.

    Args:
        process: Its name.
        before: The earlier batch, and its figures.
        after: The later one, and its figures.
        watermarks: Batch → the watermark after it, ms.
        unbounded: States that have no time to live.

    >>> found = health_of("Cards", (3, Figures(entries=10, stored_bytes=1_000, states={"seen": 10})),
    ...                   (9, Figures(entries=30, stored_bytes=3_000, states={"seen": 30})),
    ...                   {3: 0, 9: 7_200_000}, ["seen"])
    >>> found.more_entries, found.hours
    (20, 2.0)
    >>> found.findings
    ['`seen` has no time to live and held 20 keys more: it grows with every new key']
    """
    (earlier, old), (later, new) = before, after
    marks = watermarks.get(earlier), watermarks.get(later)
    hours = None if marks[0] is None or marks[1] is None else (marks[1] - marks[0]) / _HOUR_MS
    held = {name: new.states.get(name, 0) for name in unbounded if new.states.get(name)}
    findings = []
    for name, keys in held.items():
        more = keys - old.states.get(name, 0)
        if more > 0:
            findings.append(
                f"`{name}` has no time to live and held {more:,} keys more: it grows with every new key"
            )
    findings += _of_keys(new)
    if (
        later > earlier
        and old.stored_bytes > _NOT_LITTLE
        and new.stored_bytes > (1 + GROWTH) * old.stored_bytes
    ):
        share = new.stored_bytes / old.stored_bytes - 1
        findings.append(f"it grew by {share:.0%} within {later - earlier} batches")
    if new.schemas > 1:
        findings.append(
            "pages of an earlier version of the process are left: they are brought over when touched"
        )
    return Health(
        process=process,
        from_batch=earlier,
        to_batch=later,
        hours=hours,
        entries=new.entries,
        stored_bytes=new.stored_bytes,
        more_entries=new.entries - old.entries,
        more_bytes=new.stored_bytes - old.stored_bytes,
        waiting=new.waiting,
        timers=new.timers + new.processing_timers,
        unbounded=held,
        largest_keys=new.largest_keys,
        findings=findings,
    )


def _of_keys(found: Figures) -> list[str]:
    told = []
    for size, key in found.largest_keys:
        if size > LARGE_ENTRY:
            told.append(f"key {key} takes {size:,} bytes in one entry: `paged=True` keeps a map in parts")
        elif found.stored_bytes > _NOT_LITTLE and size > LARGE_SHARE * found.entry_bytes:
            told.append(f"key {key} takes {size / found.entry_bytes:.0%} of all bytes")
    return told

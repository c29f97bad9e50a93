"""What the tests of windows share: an event, ways to run a process, and oracles written another way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from hypothesis import settings

from millrace.testing import TestDriver
from millrace.windows import WindowProcess

#: Further than any event of a test, far from where numbers end.
FAR = 1 << 50
#: A bound so large that the watermark moves by hand only.
BY_HAND = 1 << 51


def examples(n: int) -> settings:
    """How many cases a property is tried on; a loaded machine is no failure."""
    return settings(max_examples=n, deadline=None, print_blob=True)


class Ev(msgspec.Struct, frozen=True):
    """An event with a number, a name, a measure that may be missing, and a gap of its own."""

    v: int = 1
    tag: str = ""
    x: float | None = None
    gap: int = 0


class At(NamedTuple):
    """An event in its place."""

    at: int
    event: Ev
    key: str = "k"


class Restarting(TestDriver):
    """A driver that starts anew from a snapshot after everything it does."""

    __test__ = False

    def send_batch(self, events: Any) -> None:
        super().send_batch(events)
        self.restart()

    def advance_watermark(self, to: int) -> None:
        super().advance_watermark(to)
        self.restart()


Drive = Callable[..., TestDriver]


def tagged(text: str, key: str = "k") -> list[At]:
    """Read events as people write them: ``"a1 b5 b7"`` is a at 1, b at 5 and 7."""
    return [At(int(word[1:]), Ev(tag=word[0]), key) for word in text.split()]


def rows(driver: TestDriver, *columns: str) -> list[tuple[Any, ...]]:
    """Return these columns of the main output, in order of emission."""
    return [tuple(getattr(r, c) for c in columns) for r in driver.values()]


def windows(driver: TestDriver, value: str) -> list[tuple[int, int, Any]]:
    """Return (start, end, value) of the main output, in order of emission."""
    return rows(driver, "window_start_ms", "window_end_ms", value)  # type: ignore[return-value]


def play(
    process: WindowProcess,
    events: Iterable[At],
    *,
    cuts: Sequence[int] = (),
    restarts: bool = False,
    bound: int = BY_HAND,
) -> TestDriver:
    """Run events in batches that end at ``cuts``, then raise the watermark to the end."""
    driver = (Restarting if restarts else TestDriver)(process, out_of_orderness_ms=bound)
    todo = list(events)
    edges = [0, *sorted(c for c in set(cuts) if 0 < c < len(todo)), len(todo)]
    for low, high in itertools.pairwise(edges):
        driver.send_batch([(e.key, e.at, e.event) for e in todo[low:high]])
    driver.advance_watermark(FAR)
    return driver


def fail_on_dead_letters(driver: TestDriver) -> None:
    """Dead letters would hide what went wrong in a process."""
    assert driver.values("dead_letters") == []


def ranges_of(at: int, size: int, step: int, offset: int = 0) -> list[tuple[int, int]]:
    """Return the hopping windows of an instant, by trying all that could be."""
    first = (at - offset - size) // step - 1
    last = (at - offset) // step + 1
    starts = [offset + n * step for n in range(first, last + 1)]
    return [(s, s + size) for s in starts if s <= at < s + size]


def sessions_of(events: Iterable[At], gap: Callable[[Ev], int]) -> list[tuple[int, int, list[At]]]:
    """Return (start, end, events) of one key's sessions, from all events in order of time."""
    found: list[tuple[int, int, list[At]]] = []
    for e in sorted(events, key=lambda e: e.at):
        if found and e.at <= found[-1][1]:
            start, end, inside = found[-1]
            found[-1] = (start, max(end, e.at + gap(e.event)), [*inside, e])
        else:
            found.append((e.at, e.at + gap(e.event), [e]))
    return found


def by_key(events: Iterable[At]) -> dict[str, list[At]]:
    """Return the events of each key."""
    found: dict[str, list[At]] = {}
    for e in events:
        found.setdefault(e.key, []).append(e)
    return found

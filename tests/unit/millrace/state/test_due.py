"""What is due in a store that lives on and is looked at only when it says so, beside plain dictionaries.

As a station does: a key group is left alone as long as no row comes and :meth:`PagedStore.wakes` says that
there is nothing to do; now and then it is let go of, and read anew.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from millrace.state import map_state, value_state
from millrace.state.layout import TimerRecord
from millrace.time import END_OF_TIME, NEVER, NO_WATERMARK
from tests.cases import case_count
from tests.unit.millrace.state.cases import MINUTE, Bed
from tests.unit.millrace.state.test_store import short_lists

KEYS = [f"{len(name)}:{name}" for name in (f"k{n}" for n in range(40))]
#: Times that are none of the others: the bounds, and around the epoch.
BOUNDS = (NO_WATERMARK, NO_WATERMARK + 1, -(2**40), -1, 0, 1, END_OF_TIME - 1, END_OF_TIME, NEVER)


class Kept:
    """What is kept of a key."""

    def __init__(self) -> None:
        self.text = ""
        self.timers: dict[str, int] = {}
        self.processing: dict[str, int] = {}
        self.seen: dict[int, int] = {}

    def is_empty(self) -> bool:
        return not (self.text or self.timers or self.processing or self.seen)


class World:
    """A group's store, and the same in dictionaries.

    Args:
        chance: Decides.
        page_bytes: Size at which a page is split.
        keys: The keys.
    """

    def __init__(self, chance: random.Random, page_bytes: int, keys: list[str]) -> None:
        self.chance, self.keys = chance, keys
        seen = map_state(int, int, ttl=2 * MINUTE)
        self.bed = Bed(page_bytes=page_bytes, lives_on=True, label=chance.randrange(9),
                       text=value_state(str, default=""), seen=seen)  # fmt: skip
        self.kept: dict[str, Kept] = {}
        self.wm, self.tick = chance.choice((0, 10 * MINUTE, -5)), 0
        self.bed.watermark, self.bed.processing_time = self.wm, self.tick

    def batch(self, events: int, *, on: int | None = None) -> None:
        """A batch of so many events, at whose end the clocks are further."""
        chance, bed = self.chance, self.bed
        self.wm = min(END_OF_TIME, self.wm + chance.choice((0, 1, 1_000, MINUTE, 10 * MINUTE)))
        if on is not None:
            self.wm = max(self.wm, on)
        self.tick += chance.choice((0, 0, 1, MINUTE))
        due = sorted(k for k, e in self.kept.items() if any(at <= self.wm for at in e.timers.values()))
        ticked = sorted(
            k for k, e in self.kept.items() if any(at <= self.tick for at in e.processing.values())
        )
        wakes = bed.store.wakes()
        self.check_wakes(wakes)
        if not (events or is_due(wakes, self.wm, self.tick)):
            assert (due, ticked) == ([], [])
            return
        assert sorted(bed.store.due(self.wm)) == due
        assert sorted(bed.store.due_processing(self.tick)) == ticked
        for key in dict.fromkeys((*due, *ticked)):
            self.fire(key)
        touched = [chance.choice(self.keys) for _ in range(events)]
        bed.store.fetch(touched)
        for key in touched:
            self.change(key)
        bed.commit(self.wm, processing_time=self.tick)
        line = bed.store._sweeps.line(self.wm)
        for entry in self.kept.values():
            entry.seen = {n: at for n, at in entry.seen.items() if at > line}
        self.kept = {key: entry for key, entry in self.kept.items() if not entry.is_empty()}
        if chance.random() < 0.1:
            bed.store = bed._store()  # let go of

    def fire(self, key: str) -> None:
        """Take what is due away; some of it is set again, for the same time or another."""
        entry = self.kept[key]
        for timers, now in ((entry.timers, self.wm), (entry.processing, self.tick)):
            for name, at in list(timers.items()):
                if at <= now:
                    del timers[name]
                    if self.chance.random() < 0.2:
                        timers[name] = (
                            self.chance.choice((now + 1, now + MINUTE, at)) if at < now else now + 1
                        )
        self.put(key)

    def change(self, key: str) -> None:
        chance, entry = self.chance, self.kept.setdefault(key, Kept())
        name = chance.choice("abc")
        timers, now = chance.choice(((entry.timers, self.wm), (entry.processing, self.tick)))
        did = chance.random()
        if did < 0.3:
            entry.text = "x" * chance.randrange(50)
        elif did < 0.5:
            timers[name] = now + chance.choice((0, 1, 500, 30 * MINUTE))
        elif did < 0.6:
            timers[name] = chance.choice(BOUNDS)
        elif did < 0.7 and timers:  # deleted, and set again for the same time by another name
            at = timers.pop(chance.choice(list(timers)))
            timers["again"] = at
        elif did < 0.78:
            timers.clear()
        elif did < 0.8:
            timers.update({f"many-{n}": now + n for n in range(chance.choice((3, 2_000)))})
        elif did < 0.9:
            n, ttl = chance.randrange(3), chance.choice((1, MINUTE, 40 * MINUTE))
            of_before = entry.seen.get(n, 0)  # a life ends no earlier than before
            entry.seen[n] = max(max(self.wm, 0) + ttl, of_before if of_before > max(self.wm, 0) else 0)
            with self.bed.on(key, now=max(self.wm, 0)) as s:
                s.seen.put(n, 1, ttl=ttl)
        else:
            entry.text, entry.seen = "", {}
            entry.timers.clear(), entry.processing.clear()
        self.put(key)

    def put(self, key: str) -> None:
        entry = self.kept.setdefault(key, Kept())
        with self.bed.on(key, now=max(self.wm, 0)) as s:
            s.text.value = entry.text
            if not entry.seen:
                s.seen.clear()
            kept = self.bed.cursor.entry
            kept.timers_[:] = [TimerRecord(at, name) for name, at in entry.timers.items()]
            kept.processing_timers_[:] = [TimerRecord(at, name) for name, at in entry.processing.items()]

    def check(self) -> None:
        """Compare all that is kept."""
        found = self.bed.kept()
        assert found.keys() == self.kept.keys()
        for key, entry in found.items():
            wanted = self.kept[key]
            assert entry.text == wanted.text
            assert {t.name: t.at for t in entry.timers_} == wanted.timers
            assert {t.name: t.at for t in entry.processing_timers_} == wanted.processing
            assert {n: at for n, (at, _) in entry.seen.items()} == wanted.seen

    def check_wakes(self, wakes: tuple[int | None, ...]) -> None:
        """A group may wake too early, never too late."""
        next_line = self.bed.store._sweeps.next
        times = [
            [at for e in self.kept.values() for at in e.timers.values()],
            [next_line(at) for e in self.kept.values() for at in e.seen.values()],
            [at for e in self.kept.values() for at in e.processing.values()],
        ]
        for wake, of_kind in zip(wakes, times, strict=False):
            first = min(of_kind, default=NEVER)
            assert first == NEVER or (wake is not None and wake <= first)


def is_due(wakes: tuple[int | None, ...], watermark: int, tick: int) -> bool:
    times = zip(wakes, (watermark, watermark, tick, tick), strict=True)
    return any(wake is not None and wake <= now for wake, now in times)


@pytest.mark.parametrize("seed", range(case_count(150)))
def test_what_is_due_is_what_dictionaries_say(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    if chance.random() < 0.5:
        short_lists(monkeypatch)
    world = World(chance, chance.choice((80, 200, 2_048)), KEYS[: chance.choice((3, 12, 40))])
    for _ in range(30):
        world.batch(chance.choice((0, 0, 0, 1, 2, 20)))
        if chance.random() < 0.2:
            world.check()
    world.batch(0, on=END_OF_TIME)  # the input has ended
    world.check()


def test_what_is_due_beyond_1024_pages_is_what_dictionaries_say() -> None:
    """Lists of pages in index pages, which come and go, of the size that they have at work."""
    chance: Any = random.Random(0)
    keys = [f"11:card-{n:06}" for n in range(6_000)]
    world = World(chance, 120, keys)
    for events in (6_000, 50, 0, 0, 50, 500, 0, 0, 20):
        world.batch(events)
    assert len(world.bed.store._header.pages) > 1_024
    assert world.bed.store._header.index_bits > 0
    world.bed.store = world.bed._store()
    for events in (1, 0, 0, 30, 0):
        world.batch(events)
    world.check()

"""Which pages are folded when some become empty, beside a rule that is applied until nothing is left."""

from __future__ import annotations

import random
import zlib

import pytest

from millrace.state import value_state
from millrace.state.cells import INDEX
from tests.cases import case_count
from tests.unit.millrace.state.cases import Bed

Place = tuple[int, int]


def places(bed: Bed) -> set[Place]:
    """Return depth and prefix of all pages."""
    return {(info.depth, info.prefix) for info in bed.store._index.all() if info.schema != INDEX}


def keys_of(place: Place, keys: set[str]) -> set[str]:
    depth, prefix = place
    return {key for key in keys if zlib.crc32(key.encode()) >> (32 - depth) == prefix}


def folded(pages: set[Place], emptied: set[Place], left: set[str]) -> set[Place]:
    """Fold, one at a time and from the start each time, a page that was emptied with the one beside it."""
    pages, emptied = set(pages), set(emptied)
    while True:
        found = next(
            (place for place in sorted(pages & emptied) if place[0] and (place[0], place[1] ^ 1) in pages),
            None,
        )
        if found is None:
            return pages
        depth, prefix = found
        parent = depth - 1, prefix >> 1
        pages = pages - {found, (depth, prefix ^ 1)} | {parent}
        if not keys_of(parent, left):
            emptied.add(parent)


@pytest.mark.parametrize("seed", range(case_count(15)))
def test_what_is_folded_is_what_the_rule_folds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    if chance.random() < 0.5:  # index pages, from few pages on
        monkeypatch.setattr("millrace.state.page_index.FLAT_PAGES", 8)
        monkeypatch.setattr("millrace.state.page_index._FIRST_BITS", 2)
    bed = Bed(
        page_bytes=chance.choice([40, 120]), lives_on=chance.random() < 0.5, x=value_state(int, default=0)
    )
    left = {f"{n}" for n in range(chance.choice([5, 60, 300]))}
    for key in sorted(left):
        with bed.on(key) as s:
            s.x.value = 1
    bed.commit()
    for _ in range(chance.randrange(1, 8)):
        before = places(bed)
        gone = set(chance.sample(sorted(left), int(len(left) * chance.choice([0.05, 0.5, 0.9, 1.0]))))
        if chance.random() < 0.5:  # all of some pages
            gone |= {
                key
                for place in chance.sample(sorted(before), len(before) // 2)
                for key in keys_of(place, left)
            }
        emptied = {place for place in before if (of := keys_of(place, left)) and of <= gone}
        for key in sorted(gone):
            with bed.on(key) as s:
                s.x.clear()
        left -= gone
        bed.commit()
        if not left:
            break
        assert places(bed) == folded(before, emptied, left)
        for key in sorted(left):
            with bed.on(key) as s:
                assert s.x.value == 1

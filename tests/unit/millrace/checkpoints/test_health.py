"""What is said of the growth of state, and what wants a look."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.checkpoints.figures import Figures
from millrace.checkpoints.health import health_of
from millrace.cli.lint_state import unbounded_states

OLD = Figures(entries=100, entry_bytes=2_000_000, stored_bytes=2_000_000, states={"total": 100, "seen": 40})


def findings(new: Figures, unbounded: tuple[str, ...] = (), old: Figures = OLD, to: int = 9) -> list[str]:
    return health_of("P", (3, old), (to, new), {}, unbounded).findings


def test_what_stands_still_wants_no_look() -> None:
    assert findings(OLD, ("seen",)) == []
    assert findings(replace(OLD, states={"total": 300, "seen": 40}), ("seen",)) == []


def test_a_state_without_an_end_is_told_of_when_it_grows() -> None:
    (found,) = findings(replace(OLD, states={"total": 100, "seen": 1_043}), ("seen",))
    assert found == "`seen` has no time to live and held 1,003 keys more: it grows with every new key"
    assert findings(replace(OLD, states={"seen": 1_043})) == []  # it has a time to live
    assert findings(replace(OLD, states={"seen": 39}), ("seen",)) == []


def test_growth_is_told_of_where_there_is_much() -> None:
    assert findings(replace(OLD, stored_bytes=2_190_000)) == []
    assert findings(replace(OLD, stored_bytes=2_300_000)) == ["it grew by 15% within 6 batches"]
    assert findings(replace(OLD, stored_bytes=2_300_000), to=3) == []  # one batch with itself
    little = Figures(entries=1, stored_bytes=1_000)
    assert findings(replace(little, stored_bytes=900_000), old=little) == []


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (1_000_001, ["key ann takes 1,000,001 bytes in one entry: `paged=True` keeps a map in parts"]),
        (600_000, ["key ann takes 30% of all bytes"]),
        (400_000, []),
    ],
)
def test_a_key_that_takes_much_is_named(size: int, said: list[str]) -> None:
    assert findings(replace(OLD, largest_keys=[(size, "ann"), (10, "bob")])) == said


def test_pages_of_before_are_told_of() -> None:
    assert findings(replace(OLD, schemas=2)) == [
        "pages of an earlier version of the process are left: they are brought over when touched"
    ]


def test_growth_by_the_hour_is_of_event_time() -> None:
    new = replace(OLD, entries=90, stored_bytes=3_000_000)
    found = health_of("P", (3, OLD), (9, new), {3: 1_000, 9: 1_000 + 5_400_000})
    assert (found.hours, found.more_entries, found.more_bytes) == (1.5, -10, 1_000_000)
    assert health_of("P", (3, OLD), (9, new), {3: None, 9: 5}).hours is None


def test_of_apps_the_states_without_an_end_are_known() -> None:
    by_process = unbounded_states("iot")
    assert len(by_process) >= 3
    assert sum(map(len, by_process.values())) >= 1
    assert unbounded_states("/some/folder") == {}

"""State that this and every earlier version since 3 wrote is read; older state is refused by its version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millrace.state.cells import Cell, StateCorrupted, read_header
from millrace.state.layout import ENCODING_VERSION
from tests.unit.millrace.state.cases import HOUR, Bed
from tests.unit.millrace.state.golden import FOLDER, GROUPS, TICK, WATERMARK, as_json, from_json

#: The oldest version that is read as it is.
FIRST_READ = 3


def version(path: Path) -> int:
    return int(path.stem.removeprefix("state-"))


FILES = sorted(p for p in FOLDER.glob("state-*.json") if version(p) >= FIRST_READ)
REFUSED = sorted(p for p in FOLDER.glob("state-*.json") if version(p) < FIRST_READ)


def kept(path: Path, group: str) -> dict[str, Any]:
    return json.loads(path.read_text())[group]  # type: ignore[no-any-return]


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_golden_state_is_read_as_it_was_meant(path: Path, group: str) -> None:
    golden = kept(path, group)
    bed = GROUPS[group][1](from_json(golden))
    assert json.loads(json.dumps(as_json(bed)["entries"])) == golden["entries"]


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("path", REFUSED, ids=lambda p: p.stem)
def test_golden_state_of_before_is_refused_by_its_version(path: Path, group: str) -> None:
    """Whatever its header looks like: not as damaged, and never read as something else."""
    message = f"state was written with encoding version {version(path)}, this is {ENCODING_VERSION}"
    with pytest.raises(StateCorrupted, match=message):
        GROUPS[group][1](from_json(kept(path, group)))


@pytest.mark.parametrize("group", GROUPS)
def test_a_header_of_version_2_can_be_looked_at_and_means_what_that_of_version_3_does(group: str) -> None:
    """For whoever brings it over: it is the one of now, but for when the engine was to wake the group."""
    older, own = (from_json(kept(FOLDER / f"state-{n}.json", group)).header or b"" for n in (2, 3))
    found, now = read_header(older, older=True), read_header(own)
    assert read_header(own, older=True) == now
    # Timers of before had other fields, so the bytes of entries differ; their times do not.
    assert _times(found.inline) == _times(now.inline)
    found.inline = now.inline = None
    assert found == now


def _times(cells: dict[str, Cell] | None) -> dict[str, tuple[int | None, ...]]:
    return {
        key: (c.timer, c.expiry, c.processing_timer, c.processing_expiry) for key, c in (cells or {}).items()
    }


@pytest.mark.parametrize("group", GROUPS)
def test_this_version_writes_what_it_promised(group: str) -> None:
    """Other bytes under the same number would be read wrongly, or not at all: raise the number."""
    golden = kept(FOLDER / f"state-{ENCODING_VERSION}.json", group)
    assert json.loads(json.dumps(as_json(GROUPS[group][0]()))) == golden


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_golden_state_is_worked_with(path: Path) -> None:
    bed: Bed = GROUPS["one_page"][1](from_json(kept(path, "one_page")))
    assert bed.store.broadcast == 77
    assert bed.store.due(WATERMARK + 7) == ["1:é"]
    assert bed.store.due_processing(TICK + 60_000) == ["1:é"]
    bed.processing_time = TICK
    with bed.on("1:é", now=WATERMARK + 6) as s:
        assert (s.plain.value, s.optional.value, s.account.value.limit) == (-7, "ü", 9.75)
        assert (s.expiring.value.y, s.ticking.value, s.seen.get("p").x) == (2.0, b"\x00\xff", 2)
        assert (dict(s.brief.items()), list(s.items)) == ({-3: True}, [1.0, -0.25])
        assert (list(s.recent), s.largest.value, s.total.value) == (["for ever", "a second"], 2**40, 4)
        assert (s.price.get(WATERMARK + 3).valid_to, s.price.get(WATERMARK + 4)) == (WATERMARK + 4, None)
        assert s.rate.value == 1.0
    bed.tick(TICK + 3 * HOUR)
    bed.commit(WATERMARK + 3 * HOUR)
    with bed.on("1:é", now=WATERMARK + 3 * HOUR) as s:
        assert (s.expiring.value, s.ticking.value, list(s.recent)) == (None, None, ["for ever"])
        assert s.price.value == 2.5


def test_the_golden_state_of_this_version_is_there() -> None:
    assert f"state-{ENCODING_VERSION}.json" in [p.name for p in FILES]
    assert [p.name for p in REFUSED] == ["state-2.json"]

"""Files of a state store that are read without an engine: against dictionaries, in random histories."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from millrace.checkpoints import partition as partition_module
from millrace.checkpoints.changelogs import Change, read_changes, read_lineage
from millrace.checkpoints.partition import Partition, Version
from millrace.checkpoints.sorted_table import Found, SortedTable, StateFormatUnknown
from millrace.state.cells import StateCorrupted
from tests.cases import case_count
from tests.unit.millrace.checkpoints.spark_files import PartitionWriter, changelog, lz4_blocks, table

CASES = case_count(300)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    # In memory: thousands of small files.
    root = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path("/tmp")
    at = root / f"millrace-partitions-{os.getpid()}"
    at.mkdir()
    yield at
    shutil.rmtree(at)


def keys(rng: Random) -> list[bytes]:
    return [
        b"\x02\x00" + rng.choice((b"a", b"ab", b"\xff")) * rng.randrange(4) + bytes((n,)) for n in range(12)
    ]


def check(state: Partition, kept: dict[bytes, bytes], known: list[bytes]) -> None:
    assert dict(state.items()) == kept
    assert [key for key, _ in state.items()] == sorted(kept)
    assert {key: state.get(key) for key in known} == {key: kept.get(key) for key in known}


@pytest.mark.parametrize("seed", range(CASES))
def test_what_is_read_is_what_was_written_at_every_version(
    folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many versions with snapshots between, of keys that came back, too; readers go along, jump and begin."""
    rng = Random(seed)
    monkeypatch.setattr(partition_module, "_MOST_CHANGES", rng.choice((0, 300, 1 << 20)))
    at = folder / str(seed)
    writer = PartitionWriter(at, {"default": 1, "pages": 2})
    known = keys(rng)
    states: dict[Version, dict[bytes, bytes]] = {}
    following: Partition | None = None
    ever: dict[bytes, bytes] = {}
    for _ in range(rng.randrange(1, 12)):
        changes: list[tuple[bytes, bytes | None]] = []
        for _ in range(rng.randrange(9)):
            value = None if rng.random() < 0.3 else rng.randbytes(rng.choice((0, 3, 40, 300)))
            changes.append((rng.choice(known), value))
        writer.commit(changes, packed=rng.random() < 0.7)
        version = Version(*writer.lineage[-1])
        states[version] = dict(writer.kept)
        if rng.random() < 0.25:
            writer.snapshot(parts=rng.randrange(1, 4), old=ever, lz4=rng.random() < 0.7)
        ever |= {key: value for key, value in changes if value is not None}
        if following is None:
            following = Partition(at, ("pages",), version)
        elif rng.random() < 0.6:
            coming = following.coming(version)
            if coming is None:
                following = Partition(at, ("pages",), version)
            else:
                before = states[following.version]
                check(following, before, known)  # what is coming is not seen yet
                following.move(version, coming)
        check(following, states[following.version], known)
        old = rng.choice(list(states))
        check(Partition(at, ("pages",), old), states[old], known)
    shutil.rmtree(at)
    # What was opened stays readable when its files are gone.
    assert following is not None
    check(following, states[following.version], known)


@pytest.mark.parametrize("seed", range(CASES))
def test_a_changelog_that_is_not_whole_is_refused_and_never_half_read(seed: int) -> None:
    rng = Random(seed)
    changes = [
        (rng.randbytes(rng.randrange(1, 9)), rng.choice((None, rng.randbytes(rng.randrange(60)))))
        for _ in range(rng.randrange(9))
    ]
    data = lz4_blocks(
        changelog([(1, "a-b")], changes), size=rng.choice((16, 64, 1 << 16)), packed=rng.random() < 0.6
    )
    assert list(read_changes(data)) == [Change(*one) for one in changes]
    assert read_lineage(data) == [(1, "a-b")]
    # Cut anywhere, or whole blocks of what was cut; the last block is empty and says no more than that it is.
    torn = data[: rng.randrange(len(data) - 21)]
    if rng.random() < 0.5:
        plain = changelog([(1, "a-b")], changes)
        torn = lz4_blocks(plain[: rng.randrange(4, len(plain))])
    with pytest.raises((StateCorrupted, StateFormatUnknown)):
        list(read_changes(torn))


@pytest.mark.parametrize("seed", range(CASES))
def test_a_table_finds_every_key_and_no_other_and_one_that_is_torn_is_refused(
    folder: Path, seed: int
) -> None:
    rng = Random(seed)
    entries: dict[bytes, list[tuple[bytes, int, bytes | None]]] = {}
    for number in range(rng.randrange(1, 60)):
        key = rng.randbytes(rng.randrange(1, 3))
        value = rng.choice((None, rng.randbytes(rng.randrange(50))))
        entries.setdefault(key, []).append((key, number, value))
    data = table(
        [one for of in entries.values() for one in of],
        block=rng.choice((1, 60, 4_000)),
        lz4=rng.random() < 0.5,
    )
    path = folder / f"{seed}.sst"
    path.write_bytes(data)
    read = SortedTable(path)
    for number in range(256):
        key = bytes((number,))
        newest = max(entries.get(key, ()), key=lambda one: one[1], default=None)
        assert read.get(key) == (None if newest is None else Found(*newest[1:]))
    assert len(list(read.entries())) == sum(map(len, entries.values()))
    path.write_bytes(data[: rng.randrange(len(data))])
    with pytest.raises(StateCorrupted):
        SortedTable(path)
    path.unlink()


def test_forms_that_are_not_known_are_said_to_be_so(tmp_path: Path) -> None:
    data = table([(b"a", 1, b"v")])
    newer = data[:-12] + b"\x06\0\0\0" + data[-8:]
    (tmp_path / "new.sst").write_bytes(newer)
    with pytest.raises(StateFormatUnknown, match="format 6"):
        SortedTable(tmp_path / "new.sst")
    with pytest.raises(StateFormatUnknown, match="not packed with LZ4"):
        list(read_changes(b"(\xb5/\xfd" + bytes(40)))
    merged = lz4_blocks(changelog([], [])[:-1] + b"\x11")
    with pytest.raises(StateFormatUnknown, match="records that are not read"):
        list(read_changes(merged))


def test_a_version_without_its_files_is_not_there(tmp_path: Path) -> None:
    writer = PartitionWriter(tmp_path / "p", {"pages": 2})
    for number in range(3):
        writer.commit([(b"k", bytes((number,)))])
    first, last = Version(*writer.lineage[0]), Version(*writer.lineage[-1])
    (tmp_path / "p" / f"{first.stem}.changelog").unlink()
    with pytest.raises(FileNotFoundError):
        Partition(tmp_path / "p", ("pages",), last)
    writer.snapshot()
    assert Partition(tmp_path / "p", ("pages",), last).get(b"k") == b"\x02"

"""What state comes to beside a job, held to its entries read key by key; and models by their manifests."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from millrace.chaos.hostile import Message
from millrace.checkpoints.committed import CommittedState
from millrace.models.exports import CHAMPION
from millrace.models.manifest import Manifest, encoded
from millrace.observing import sampling
from millrace.runtime.settings import AppSettings, load_settings
from millrace.topology import Input, read
from tests.cases import case_count
from tests.unit.millrace.serving.memory_query import MemoryQuery
from tests.unit.millrace.serving.test_server import START, Sale, Shops, Totals

#: Shop and card of each sale.
SALES = [("oslo", "c1"), ("oslo", "c2"), ("bergen", "c1"), ("oslo", "c1"), ("narvik", "c9"), ("oslo", "c3")]


@pytest.fixture
def query(tmp_path: Path) -> MemoryQuery:
    settings = load_settings(AppSettings, app="test", overrides=("spark.key_groups=4",))
    made = read(Input("sales", key=("shop", "card"), event_time="at")).process(Totals())
    found = MemoryQuery(tmp_path / "app", made.key_by("shop").process(Shops()), settings, "sales")
    for number, (shop, card) in enumerate(SALES):
        found.run([Message("sales", None, msgspec.json.encode(Sale(shop, card, START, 100 + number)), 0)])
    return found


def test_state_comes_to_what_its_keys_come_to(query: MemoryQuery) -> None:
    found = sampling.sampled_state(query.writer.checkpoint.root, None, 5)
    state = CommittedState(query.writer.checkpoint)
    keys: dict[str, set[tuple[str, ...]]] = {
        "Totals": set(SALES), "Shops": {(shop,) for shop, _ in SALES},
    }  # fmt: skip
    assert found.keys() == keys.keys()
    for process, of in keys.items():
        sizes = {}
        for key in of:
            entry = state.entry(process, key)
            assert entry is not None
            sizes["|".join(key)] = entry[1]
        told = found[process]
        assert (told.entries, told.batch, told.at_ms) == (len(of), state.batch, 5)
        assert told.largest_entry_bytes == max(sizes.values()) == sizes[told.largest_key]
        assert told.bytes > sum(sizes.values())
        assert 1 <= told.groups <= told.pages <= 4
        assert 1 <= told.skew <= 4


def many(folder: Path, seed: int, keys: int) -> MemoryQuery:
    """Return a query with so many keys, whose sizes differ."""
    chance = random.Random(seed)
    settings = load_settings(AppSettings, app="test", overrides=("spark.key_groups=16",))
    made = read(Input("sales", key=("shop", "card"), event_time="at")).process(Totals())
    found = MemoryQuery(folder, made, settings, "sales")
    sales = [
        Sale(f"shop-{chance.randrange(50)}", f"c{number}" + "x" * chance.randrange(60), START, number)
        for number in range(keys)
    ]
    found.run([Message("sales", None, msgspec.json.encode(sale), 0) for sale in sales])
    return found


@pytest.mark.parametrize("seed", range(case_count(4)))
def test_large_state_is_told_by_a_sample_that_is_near_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    root = many(tmp_path / "app", seed, 6_000).writer.checkpoint.root
    whole = sampling.sampled_state(root, None, 5)["Totals"]
    assert whole.share == 1.0
    assert whole.pages > 80
    monkeypatch.setattr(sampling, "MOST_BYTES", 10)
    monkeypatch.setattr(sampling, "_PAGES", 3)
    (some,) = sampling.sampled_state(root, None, 5).values()
    assert some.pages == whole.pages
    assert 0 < some.share < 0.7
    for name in ("entries", "bytes"):
        assert getattr(some, name) == pytest.approx(getattr(whole, name), rel=0.15), name
    assert some.largest_entry_bytes <= whole.largest_entry_bytes
    assert (some.groups, some.batch, some.at_ms) == (whole.groups, whole.batch, 5)
    assert some.skew == pytest.approx(whole.skew, rel=0.3)
    assert sampling.sampled_state(root, None, 5, files_bytes=10)["Totals"] == whole


def test_a_sample_of_all_pages_is_all_of_it(query: MemoryQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    root = query.writer.checkpoint.root
    whole = sampling.sampled_state(root, None, 5)
    some = sampling.sampled_state(root, None, 5, files_bytes=sampling.MOST_BYTES + 1)
    for process, found in some.items():
        own = whole[process]
        assert (found.entries, found.pages, found.timers, found.waiting, found.groups, found.share) == (
            own.entries, own.pages, own.timers, own.waiting, own.groups, 1.0,
        )  # fmt: skip
        assert (found.largest_entry_bytes, found.largest_key) == (own.largest_entry_bytes, own.largest_key)


def test_where_batches_write_too_much_nothing_is_read(
    query: MemoryQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written since a snapshot is read as a whole, so there is an end to it."""
    checkpoint = query.writer.checkpoint
    folder = checkpoint.folder / "state" / "0" / "0"
    written = sum(path.stat().st_size for path in folder.glob("*.changelog"))
    assert sampling.changes_bytes(folder, checkpoint.last() + 1) == written > 0
    assert sampling.changes_bytes(folder, 1) < written
    (folder / f"{checkpoint.last()}_x.zip").touch()
    newest = max(folder.glob("*.changelog"), key=lambda path: int(path.name.partition("_")[0]))
    assert sampling.changes_bytes(folder, checkpoint.last() + 1) == newest.stat().st_size
    monkeypatch.setattr(sampling, "MOST_BYTES", 10)
    assert sampling.partitions_to_read(checkpoint) == {0}
    monkeypatch.setattr(sampling, "MOST_CHANGES", newest.stat().st_size - 1)
    assert sampling.partitions_to_read(checkpoint) == frozenset()
    assert sampling.sampled_state(checkpoint.root, None, 5) == {}


def test_a_sample_ends_when_its_time_is_over_and_stands_for_the_groups_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = many(tmp_path / "app", 1, 3_000).writer.checkpoint.root
    whole = sampling.sampled_state(root, None, 5)["Totals"]
    monkeypatch.setattr(sampling, "MOST_BYTES", 10)
    monkeypatch.setattr(sampling, "BUDGET_S", 0.0)
    (some,) = sampling.sampled_state(root, None, 5).values()
    assert 0 < some.share < 0.2, "one group of sixteen"
    assert some.groups == 16
    assert some.entries == pytest.approx(whole.entries, rel=0.4)


def test_files_of_state_are_all_that_the_checkpoint_keeps_of_it(query: MemoryQuery) -> None:
    root = query.writer.checkpoint.root
    every = [path for path in (root / "checkpoint").rglob("*") if path.is_file()]
    kept = [path.read_bytes() for path in every if "state" in path.relative_to(root / "checkpoint").parts[:1]]
    folders = sum(p.stat().st_size for p in (root / "checkpoint" / "state").rglob("*") if p.is_dir())
    assert sampling.state_files_bytes(root) == sum(map(len, kept)) + folders > 0
    assert sampling.state_files_bytes(root / "nowhere") == 0


def test_models_are_told_by_name_and_alias_and_what_is_broken_is_left_out(tmp_path: Path) -> None:
    for name, version in (("risk", "3"), ("wear", "8")):
        made = Manifest(
            name=name, version=version, size=3, sha256="0" * 64, inputs=("load",), trained_until_ms=77
        )
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{CHAMPION}.json").write_bytes(encoded(made))
    (tmp_path / "wear" / f"{CHAMPION}.json").write_text("{")
    (tmp_path / "notes.txt").write_text("")
    found = sampling.models_in((tmp_path, tmp_path / "nothing"))
    assert {name: (m.version, m.trained_until_ms) for name, m in found.items()} == {
        "risk/champion": ("3", 77)
    }
    assert found["risk/champion"].since_ms > 0

"""What state comes to beside a job, held to its entries read key by key; and models by their manifests."""

from __future__ import annotations

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


def test_state_that_is_too_large_is_not_gone_through(
    query: MemoryQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "MOST_BYTES", 10)
    root = query.writer.checkpoint.root
    assert sampling.sampled_state(root, None, 5) == {}
    assert sampling.sampled_state(root, None, 5, files_bytes=10) != {}
    assert sampling.sampled_state(root, None, 5, files_bytes=11) == {}


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

"""Committed state by files: which batch counts, which may be had, and the command that shows a key."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace import cli
from millrace.chaos.hostile import Message
from millrace.checkpoints.checkpoint import CheckpointError
from millrace.checkpoints.committed import CommittedState
from millrace.runtime.settings import AppSettings, load_settings
from millrace.topology import Input, read
from tests.unit.millrace.serving.memory_query import MemoryQuery
from tests.unit.millrace.serving.test_server import START, Sale, Shops, Totals


@pytest.fixture
def query(tmp_path: Path) -> MemoryQuery:
    settings = load_settings(AppSettings, app="test", overrides=("spark.key_groups=4",))
    made = read(Input("sales", key=("shop", "card"), event_time="at")).process(Totals())
    return MemoryQuery(tmp_path / "app", made.key_by("shop").process(Shops()), settings, "sales")


def sell(query: MemoryQuery, card: str, cents: int, *, commits: bool = True) -> None:
    sale = msgspec.json.encode(Sale("oslo", card, START, cents))
    query.run([Message("sales", None, sale, 0)], commits=commits)


def cents(state: CommittedState) -> Any:
    found = state.entry("Shops", ("oslo",))
    return None if found is None else found[0].states["cents"].value


def test_only_what_is_committed_counts_and_a_reader_may_go_back(query: MemoryQuery) -> None:
    for number in range(1, 5):
        sell(query, "c1", number)
    state = CommittedState(query.writer.checkpoint)
    sell(query, "c1", 100, commits=False)
    state.move_to()
    assert (state.batch, cents(state)) == (3, 10)
    query.settle()
    state.move_to()
    assert (state.batch, cents(state)) == (4, 110)
    assert state.reloads == 1
    for batch, expected in ((0, 1), (2, 6), (4, 110)):
        state.move_to(batch)
        assert (state.batch, cents(state)) == (batch, expected)
    with pytest.raises(CheckpointError, match="does not keep batch 9"):
        state.move_to(9)
    assert cents(state) == 110


def test_what_goes_while_it_is_read_is_read_anew_from_a_later_batch(
    query: MemoryQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    sell(query, "c1", 1)
    state = CommittedState(query.writer.checkpoint)
    checkpoint, last = query.writer.checkpoint, type(query.writer.checkpoint).last

    def told(self: Any) -> int:
        batch = last(self)
        if batch < 3:  # the query goes on, and clears what is behind it
            old = query.writer.partition.lineage[-1]
            sell(query, "c1", 1)
            query.writer.partition.snapshot()
            (query.writer.partition.folder / f"{old[0]}_{old[1]}.changelog").unlink()
        return batch

    sell(query, "c1", 1)
    monkeypatch.setattr(type(checkpoint), "last", told)
    state.move_to()
    assert (state.batch, cents(state)) == (3, 4)


def test_a_key_is_shown_without_an_engine(
    query: MemoryQuery, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sell(query, "c1", 7)
    root = str(query.writer.checkpoint.root)
    monkeypatch.setattr("millrace.checkpoints.session.tool_session", None)

    def show(*more: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["millrace", "state", "show", root, *more])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), capsys.readouterr().out

    code, said = show("--process", "Totals", "--key", "oslo", "--key", "c1", "-f", "json")
    assert code == 0
    assert json.loads(said)["states"] == {"cents": 7}
    assert show("--process", "Shops", "--key", "rome")[0] == 1
    assert show("--key", "oslo")[0] == 2

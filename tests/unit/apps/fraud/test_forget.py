"""A card is forgotten: by the stages that know it, in the tables, and by exactly its names."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from click.testing import Result
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from millrace.checkpoints.positions import WAITING
from millrace.cli import build
from millrace.connectors.merging import _keep
from millrace.host.memory import MemoryHost
from millrace.privacy.keys import read_ring, rotate
from millrace_apps.fraud.app import begin
from millrace_apps.fraud.contracts.events import CardErasure, Decision, Erased, Transaction
from millrace_apps.fraud.operations.forgetting import COLUMNS, names_of
from millrace_apps.fraud.settings import FraudSettings
from tests.cases import case_count
from tests.unit.apps.fraud.cases import DAY, HOUR, MINUTE, START_MS, driver, label, transaction
from tests.unit.apps.fraud.chain import ALL, Chain

GONE, OTHER = "card-1", "card-12"


def erasure(at: int, card: str = GONE, id: str = "e-1") -> CardErasure:
    return CardErasure(id, START_MS + at, card)


def test_all_stages_that_know_a_card_by_its_key_forget_it() -> None:
    chain = Chain((*ALL, "customer", "merchant"), measures=True, out_of_orderness_ms=DAY)
    fields: dict[str, Any] = {"account_id": "a", "device_id": "d", "ip": "10.0.0.1", "customer_id": "c"}
    first = [transaction(at * MINUTE, 10, card=card, **fields) for at in range(6) for card in (GONE, OTHER)]
    chain.send(*first)
    chain.send(label(first[0], HOUR))
    whose = {host.runner.process.name for host in chain.chain.hosts if GONE in keys_of(host)}
    assert whose == {"CardMonitor", "DecisionDesk"}
    chain.send(erasure(2 * HOUR))
    kept = {host.runner.process.name: keys_of(host) for host in chain.chain.hosts}
    assert {name for name, keys in kept.items() if any(GONE in (key, key[1:]) for key in keys)} == set()
    assert OTHER in kept["CardMonitor"] & kept["DecisionDesk"]
    chain.send(
        transaction(3 * HOUR, 10, card=GONE, **fields), transaction(3 * HOUR, 10, card=OTHER, **fields)
    )
    new, old = chain.decisions[-2:]
    assert (new.card_id, new.purchases_before, new.card.count_30d, new.card_labels) == (GONE, 0, 1, None)
    assert (old.card_id, old.purchases_before) == (OTHER, 6)
    assert new.terminal is not None
    assert new.terminal.pair_count_30d == 7  # a hash of it, among the terminal's
    erased = [msgspec.json.decode(p, type=Erased) for p in chain.of("erased")]
    assert erased == [Erased("e-1", START_MS + 2 * HOUR)]


def keys_of(host: MemoryHost) -> set[str]:
    """Return the keys that a host keeps something of."""
    return {key.partition(":")[2] for key in host.store.cells}


@pytest.mark.parametrize("seed", range(case_count(10)))
def test_of_10000_events_what_comes_after_an_erasure_is_as_of_a_new_card(seed: int) -> None:
    """The oracle decides on each stretch between two erasures of a card as if it were a card of its own."""
    random, at = Random(seed), 0
    events: list[Transaction | CardErasure] = []
    lives: dict[str, int] = {}
    expected = driver(out_of_orderness_ms=DAY)
    told: list[str] = []
    for number in range(1_000):
        at += random.choice([MINUTE, 10 * MINUTE, HOUR])
        card = f"card-{random.randrange(4)}"
        if random.random() < 0.03:
            events.append(erasure(at, card, f"e-{number}"))
            lives[card] = lives.get(card, 0) + 1
            continue
        kind = random.choice(["purchase", "purchase", "refund"])
        tx = transaction(at, random.choice([1, 20, 300]), id=f"t-{number}", card=card, kind=kind)  # type: ignore[arg-type]
        events.append(tx)
        told.append(tx.transaction_id)
        alone = msgspec.structs.replace(tx, card_id=f"{card}/{lives.get(card, 0)}")
        expected.send_batch([(alone.card_id, alone.event_time_ms, alone)])
    target = driver(out_of_orderness_ms=DAY)
    while events:
        cut = random.randrange(1, 30)
        target.send_batch([(e.card_id, e.event_time_ms, e) for e in events[:cut]])
        events = events[cut:]
        target.restart()
    found, wanted = by_id(target.values()), by_id(expected.values())
    assert sorted(found) == sorted(told)
    for one, as_new in ((found[t], wanted[t]) for t in told):
        left, right = (msgspec.to_builtins(d) | {"card_id": ""} for d in (one, as_new))
        assert left == right


def by_id(decisions: list[Decision]) -> dict[str, Decision]:
    return {d.transaction_id: d for d in decisions}


def test_a_late_erasure_is_one_too_and_the_same_again_is_no_fault() -> None:
    target = driver()
    for at in (0, 50 * DAY):
        target.send_batch([(GONE, START_MS + at, transaction(at, 10, card=GONE))])
    target.send_batch([(GONE, START_MS, erasure(0)), (GONE, START_MS, erasure(0))])
    assert target.state(GONE) is None
    assert target.values("dead_letters") == []
    assert len(target.values("erased")) == 2


def tables(root: Path) -> None:
    """Write tables in which both cards stand; the name of one begins with that of the other."""

    def write(name: str, **columns: Any) -> None:
        rows = len(next(iter(columns.values())))
        ids = [f"{name}-{row}" for row in range(rows)]
        write_deltalake(str(root / "tables" / name), pa.table({"_event_id": ids, **columns}))

    for name in COLUMNS:
        if name != "late":
            write(name, card_id=[GONE, OTHER, GONE], amount=[1.0, 2.0, 3.0])
    write("late", event=[{"card_id": GONE, "amount": 1.0}, {"card_id": OTHER, "amount": 2.0}])
    letters: dict[str, list[Any]] = {
        "key": ["6:card-1", "7:card-12", None, None, None, None],
        "kafka_key": [b"x", GONE.encode(), None, b"card-12", None, None],
        "value": [b"{}", b"{}", b'{"card_id":"card-1"', b'{"card_id":"card-12"', b"xcard-1 -card-1", None],
        "headers": [None, None, None, None, '{"a":"card-123"}', '{"a":"of card-1"}'],
    }
    write("dead_letters", **letters)
    write("dead_letters_desk", **letters)
    write("rule_audit", entry=["card:card-1", "card:card-12"])
    write("erasures", erasure_id=["e-0"])


def run(root: Path, *more: str, card: str = GONE) -> Result:
    return CliRunner().invoke(build(), ["fraud", "forget", "--card", card, "--root", str(root), *more])


def left_in(root: Path, name: str) -> list[str]:
    return sorted(DeltaTable(str(root / "tables" / name)).to_pyarrow_table()["_event_id"].to_pylist())


def test_rows_of_the_card_go_and_those_of_one_whose_name_begins_alike_stay(tmp_path: Path) -> None:
    tables(tmp_path)
    assert run(tmp_path, "--check").exit_code == 1
    proof = tmp_path / "proof.json"
    done = run(tmp_path, "--tables-only", "--out", str(proof))
    assert done.exit_code == 0, done.output
    for name in COLUMNS:
        assert left_in(tmp_path, name) == [f"{name}-1"]
    for name in ("dead_letters", "dead_letters_desk"):
        assert left_in(tmp_path, name) == [f"{name}-3", f"{name}-4"]
    assert left_in(tmp_path, "rule_audit") == ["rule_audit-0", "rule_audit-1"]
    assert "rule_audit               deleted        0   left 1  (kept: who did what)" in done.output
    assert "nothing is left" in done.output
    told = json.loads(proof.read_text())
    assert {one["table"]: one["deleted"] for one in told["tables"]}["dead_letters"] == 4
    assert (told["clean"], told["confirmed"]) == (True, None)
    assert GONE not in proof.read_text()
    assert run(tmp_path, "--check").exit_code == 0
    assert run(tmp_path, "--check", card=OTHER).exit_code == 1
    assert run(tmp_path, "--check", card="card").exit_code == 0


def test_earlier_versions_keep_the_rows_until_they_are_removed(tmp_path: Path) -> None:
    tables(tmp_path)
    done = run(tmp_path, "--tables-only")
    assert "files of earlier versions; `millrace tables vacuum fraud`" in done.output
    assert any(holds(path) for path in (tmp_path / "tables").rglob("*.parquet"))
    done = run(tmp_path, "--tables-only", "--vacuum")
    assert "files of earlier versions removed" in done.output
    assert "files of earlier versions; `millrace" not in done.output
    files = [path for name in COLUMNS for path in (tmp_path / "tables" / name).glob("*.parquet")]
    assert len(files) == len(COLUMNS)
    assert not any(holds(path) for path in files)


def holds(path: Path) -> bool:
    import pyarrow.parquet as pq

    return f"{GONE}'" in repr(pq.read_table(path).to_pylist())


def test_rows_that_wait_for_their_table_are_left(tmp_path: Path) -> None:
    """A killed job left them: the next run brings them in."""
    tables(tmp_path)
    for name, cards in (("alerts", [OTHER, GONE, GONE]), ("labels", [OTHER])):
        folder = tmp_path / "tables" / name / WAITING
        folder.mkdir()
        _keep(folder / "000000000004.arrow", pa.table({"card_id": cards}), f"fraud:0:{name}", 4)
    done = run(tmp_path, "--tables-only")
    assert done.exit_code == 1
    assert "alerts                   deleted        2   left 2" in done.output
    assert "labels                   deleted        2   left 0" in done.output
    assert "table alerts: 1 files of rows that a run left for it; the next run" in done.output
    assert run(tmp_path, "--check").exit_code == 1


def test_what_the_app_forgot_to_say_is_found(tmp_path: Path) -> None:
    tables(tmp_path)
    more = pa.table({"_event_id": ["n-0", "n-1"], "deep": [[{"whose": [GONE]}], [{"whose": [OTHER]}]]})
    write_deltalake(str(tmp_path / "tables" / "alerts"), more, schema_mode="merge", mode="append")
    done = run(tmp_path, "--tables-only")
    assert done.exit_code == 1
    assert "SOMETHING IS LEFT" in done.output
    assert "alerts                   deleted        2   left 1" in done.output


def test_a_number_stands_under_the_tokens_of_all_keys(tmp_path: Path) -> None:
    number = "4111111111111111"
    settings = FraudSettings.model_validate({"storage": {"root": str(tmp_path)}})
    begin(settings)
    keys = tmp_path / "privacy" / "token.keys"
    first = read_ring(keys).token(number)
    rotate(keys, [first])
    found = names_of(settings, "4111 1111 1111 1111").values
    assert found == tuple(read_ring(keys).tokens(number))
    assert found[0] == first
    assert len(found) == 2
    assert names_of(settings, first).values == (first,)
    off = FraudSettings.model_validate({"privacy": {"tokens": "off"}})
    assert names_of(off, number).values == (number,)

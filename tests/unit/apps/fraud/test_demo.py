"""The demo's checks on a small stream through the stages in memory: they hold, and they can fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from apps.fraud import demo
from apps.fraud.entity_stages import stages
from apps.fraud.events import Label, Transaction
from apps.fraud.ledger import Ledger, read_ledger
from apps.fraud.settings import FraudSettings
from generators.fraud import DOMAIN, SCHEMA_VERSION, FraudProfile, fraud_events
from generators.ledger import LedgerWriter
from millrace.dead_letters import reason_of
from millrace.demo import DemoRun
from millrace.host.memory_chain import MemoryChain
from tests.unit.apps.fraud.cases import MINUTE, START_MS
from tests.unit.apps.fraud.chain import time_of

PROFILE = FraudProfile(
    seed=5, start_ms=START_MS, events=3_000, event_rate=1.5, cards=50, terminals=40, fraud_rate=5,
    late=0.005, lateness_ms=5 * MINUTE, duplicates=0.01, malformed=0.004, label_scale=0.001,
)  # fmt: skip
#: Output of the stages → table.
OUTPUTS = {"main": "transactions", "late_transactions": "late"}
Row = dict[str, Any]
Tables = dict[str, list[Row]]


def run_app(profile: FraudProfile, ledger: LedgerWriter) -> Tables:
    """Send the stream, and return what stands in the tables."""
    types = {"": Transaction, "transactions": Transaction, "labels": Label}
    first, rest = stages(FraudSettings().features.stages, labels=FraudSettings().labels.rules())
    chain = MemoryChain(first, *rest, out_of_orderness_ms=2 * MINUTE)
    found: Tables = {name: [] for name in ("transactions", "late", "dead_letters", "alerts", "labels")}
    batch: list[tuple[str, int, Any]] = []
    emitted = []
    for message in fraud_events(profile):
        ledger.add(message)
        try:
            event: Any = msgspec.json.decode(message.value, type=types[message.stream])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            found["dead_letters"].append({"reason": reason_of(error)})
            continue
        batch.append((event.card_id, time_of(event), event))
        if len(batch) == 200:
            emitted += chain.run_batch(batch)
            batch = []
    emitted += chain.run_batch(batch) + chain.drain()
    for e in emitted:
        output = e.output.rpartition(".")[2]
        table = OUTPUTS.get(output, output)
        if table in found:
            found[table].append({**msgspec.json.decode(e.payload), "_event_id": e.event_id})
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tables, Ledger]:
    path = tmp_path_factory.mktemp("demo") / "ledger.jsonl"
    parameters = PROFILE.parameters()
    writer = LedgerWriter(
        path, domain=DOMAIN, seed=PROFILE.seed, schema_version=SCHEMA_VERSION, parameters=parameters
    )
    tables = run_app(PROFILE, writer)
    writer.finish()
    return tables, read_ledger(path)


@pytest.fixture
def checked(
    seen: tuple[Tables, Ledger], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., dict[str, bool]]:
    """Name of each check → whether it holds, with the rows of some tables changed."""

    def check(**changes: Callable[[list[Row]], list[Row]]) -> dict[str, bool]:
        tables, ledger = seen
        changed = {**tables, **{name: change(tables[name]) for name, change in changes.items()}}
        monkeypatch.setattr(demo, "app_rows", lambda folder, name, columns=None: changed[name])
        run = DemoRun("", tmp_path, FraudSettings(), 60.0, 100, PROFILE.seed)
        told = {row["_event_id"] for row in tables["alerts"]}
        return {check.name: check.ok for check in demo.checks(run, ledger, told)}

    return check


def test_every_check_of_the_demo_holds(checked: Callable[..., dict[str, bool]]) -> None:
    found = checked()
    assert [name for name, holds in found.items() if not holds] == []
    assert len([name for name in found if name.startswith("caught: ")]) == 3


def test_nothing_that_is_checked_is_missing_from_the_stream(seen: tuple[Tables, Ledger]) -> None:
    tables, ledger = seen
    summary = ledger.summary
    assert min(summary.duplicates, summary.malformed, summary.late, summary.labels) > 5
    assert len(ledger.episodes) >= 9
    assert len(tables["late"]) == summary.late


def less(rows: list[Row]) -> list[Row]:
    return rows[1:]


def twice(rows: list[Row]) -> list[Row]:
    return [*rows, rows[-1]]


def none(rows: list[Row]) -> list[Row]:
    return []


def of_others(rows: list[Row]) -> list[Row]:
    return [{**row, "transaction_id": f"another-{n}"} for n, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("table", "change", "broken"),
    [
        ("transactions", less, "events sent = rows in transactions + late"),
        ("transactions", twice, "no transaction twice"),
        ("transactions", lambda rows: [{**r, "amount": 1.0} for r in rows], "sum of purchases, cents"),
        ("late", less, "events sent = rows in transactions + late"),
        ("dead_letters", less, "malformed in dead letters"),
        ("dead_letters", lambda rows: rows[:-1], "repeats in dead letters"),
        ("dead_letters", lambda rows: [*rows, {"reason": "process_error"}], "no other dead letters"),
        ("alerts", twice, "alerts on the topic = rows in alerts"),
        ("alerts", none, "caught: spree"),
        ("alerts", of_others, "false alarms"),
        ("labels", less, "labels sent = rows in labels"),
    ],
)
def test_a_check_of_the_demo_fails_where_rows_are_missing_too_many_or_wrong(
    table: str, change: Any, broken: str, checked: Callable[..., dict[str, bool]]
) -> None:
    assert not checked(**{table: change})[broken]

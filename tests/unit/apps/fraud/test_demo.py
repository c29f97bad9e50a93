"""The demo's checks on a small stream through the stages in memory: they hold, and they can fail."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.console.report import Check
from millrace.dead_letters import reason_of
from millrace.demo import DemoRun
from millrace.host.memory_chain import MemoryChain
from millrace.testing.world_ledger import ReadLedger, WorldRun, read_world_ledger
from millrace_apps.fraud import demo
from millrace_apps.fraud.contracts.events import Authorisation, Label, Transaction
from millrace_apps.fraud.demo import REASONS, SCENARIOS
from millrace_apps.fraud.processes.entity_stages import stages
from millrace_apps.fraud.settings import USUAL_ENTITIES, FraudSettings
from millrace_apps.generators.engine import deliver_domain
from millrace_apps.generators.fraud import DOMAIN, FraudProfile
from millrace_apps.generators.fraud import SCENARIOS as FRAUDS
from millrace_apps.generators.world_ledger import WorldLedger
from tests.broken import (
    Break,
    Rows,
    added,
    all_hold,
    breaks,
    check_listed,
    doubled,
    dropped,
    fails,
    halved,
    less,
    renamed,
    shifted,
    stuck,
    where,
)
from tests.cases import sampled
from tests.unit.apps.fraud.cases import MINUTE, START_MS
from tests.unit.apps.fraud.chain import time_of

PROFILE = FraudProfile(
    seed=5,
    start_ms=START_MS,
    events=4_200,
    event_rate=1.5,
    cards=80,
    terminals=300,
    fraud_rate=22,
    fraud_scale=0.002,
    late=0.01,
    lateness_ms=15 * MINUTE,
    duplicates=0.01,
    malformed=0.004,
    label_scale=0.001,
    authorised=0.1,
)
#: Output of the stages → table.
OUTPUTS = {"main": "transactions", "late_transactions": "late"}
TABLES = ("transactions", "late", "dead_letters", "alerts", "labels", "authorisations")
TYPES = {"transactions": Transaction, "labels": Label, "authorisations": Authorisation}
Tables = dict[str, Rows]


def run_app(profile: FraudProfile, path: Path, *absent: str) -> tuple[Tables, ReadLedger]:
    """Send the streams, and return what stands in the tables, and the ledger.

    Args:
        profile: What is sent.
        path: Where the ledger goes.
        absent: Fields of transactions that are not sent.
    """
    run = WorldRun(DOMAIN.name, profile.seed, dict.fromkeys(DOMAIN.streams, ""), {}, profile.parameters())
    first, rest = stages(USUAL_ENTITIES, labels=FraudSettings().labels.rules())
    chain = MemoryChain(first, *rest, out_of_orderness_ms=2 * MINUTE)
    found: Tables = {name: [] for name in TABLES}
    batch: list[tuple[str, int, Any]] = []
    emitted = []
    with WorldLedger(path, run) as ledger:
        for message in deliver_domain(DOMAIN, profile):
            ledger.add(message)
            try:
                event: Any = msgspec.json.decode(message.value, type=TYPES[message.stream])
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                found["dead_letters"].append({"reason": reason_of(error)})
                continue
            if absent and message.stream == "transactions":
                event = msgspec.structs.replace(event, **dict.fromkeys(absent))
            batch.append((event.card_id, time_of(event), event))
            if len(batch) == 200:
                emitted += chain.run_batch(batch)
                batch = []
        ledger.finish()
    emitted += chain.run_batch(batch) + chain.drain()
    for e in emitted:
        output = e.output.rpartition(".")[2]
        table = OUTPUTS.get(output, output)
        if table in found:
            found[table].append({**msgspec.json.decode(e.payload), "_event_id": e.event_id})
    return found, read_world_ledger(path)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tables, ReadLedger]:
    return run_app(PROFILE, tmp_path_factory.mktemp("demo") / "ledger.jsonl")


def checked(
    seen: tuple[Tables, ReadLedger], patch: pytest.MonkeyPatch, one: Break | None = None
) -> list[Check]:
    """The demo's checks, with something broken."""
    tables, ledger = seen
    changed = tables if one is None else one.applied(tables)
    patch.setattr(
        demo, "app_rows", lambda folder, name, columns: [{c: r[c] for c in columns} for r in changed[name]]
    )
    run = DemoRun("", Path(), FraudSettings(), 60.0, 100, PROFILE.seed)
    return demo.checks(run, ledger, {row["_event_id"] for row in tables["alerts"]})


def test_every_check_of_the_demo_holds(
    seen: tuple[Tables, ReadLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    all_hold(checked(seen, monkeypatch))


def test_the_demo_sends_what_its_checks_ask_for() -> None:
    run = DemoRun("localhost:9092", Path(), FraudSettings(), 60.0, 1_000, 7)
    assert {*SCENARIOS, *REASONS.values()} <= FRAUDS.keys()
    assert demo.generate(run)[-1] == "authorisations=fraud.authorisations"


#: Field that is not sent → the checks that cannot hold then.
TOLD_BY = {
    "latitude": {"caught: impossible_travel", "told by IMPOSSIBLE_TRAVEL: impossible_travel"},
    "device_id": {
        "caught: device_ring",
        "told by SHARED_DEVICE: device_ring",
        "told by NEW_DEVICE: account_takeover",
    },
    "ip": {"told by NEW_ADDRESS: account_takeover"},
}


@pytest.mark.parametrize("field", TOLD_BY)
def test_a_reason_is_not_told_without_the_field_that_it_goes_by(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = checked(run_app(PROFILE, tmp_path / "ledger.jsonl", field), monkeypatch)
    assert {check.name for check in found if not check.holds} == TOLD_BY[field]


def test_a_device_is_new_only_beside_another(
    seen: tuple[Tables, ReadLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of cards that were never online before the fraud, nothing is asked about devices."""
    tables, ledger = seen
    card_of = {row["transaction_id"]: row["card_id"] for row in tables["transactions"]}
    taken = [t for t in ledger.truths if t.kind == "account_takeover"]
    cards = Counter(card for t in taken for card in {card_of.get(name) for name in t.event_ids})
    once = [t for t in taken if all(cards[card_of.get(name)] == 1 for name in t.event_ids)]
    assert once
    frauds = {name for truth in once for name in truth.event_ids}
    rows = [
        row if row["transaction_id"] in frauds else {**row, "device_id": None}
        for row in tables["transactions"]
    ]
    others = [t for t in ledger.truths if t.kind != "account_takeover"]
    told = {**tables, "transactions": rows}, msgspec.structs.replace(ledger, truths=[*others, *once])
    empty = {c.name for c in checked(told, monkeypatch) if c.is_empty}
    assert empty == {"told by NEW_DEVICE: account_takeover"}


def test_without_late_events_or_frauds_the_demo_says_that_it_compares_nothing(
    seen: tuple[Tables, ReadLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, ledger = seen
    few = msgspec.structs.replace(ledger, truths=[], faults=[f for f in ledger.faults if f.kind != "late"])
    empty = {c.name for c in checked(({**tables, "late": []}, few), monkeypatch) if c.is_empty}
    assert empty == {_LATE, *demo.SELDOM}


def kind(name: str) -> Any:
    return where(lambda row: row["kind"] == name, shifted("billing_amount", 0.01))


def reason(name: str, change: Any) -> Any:
    return where(lambda row: row["reason"] == name, change)


def on_time(rows: Rows) -> Rows:
    """An event is set aside that the watermark had not passed."""
    return [{**rows[0], "watermark_ms": rows[0]["event"]["event_time_ms"] - 1}, *rows[1:]]


def of_others(rows: Rows) -> Rows:
    """What is set aside are other transactions than those that came late."""
    return [
        {**row, "event": {**row["event"], "transaction_id": f"another-{n}"}} for n, row in enumerate(rows)
    ]


_LATE = "late events set aside, no other"
BREAKS = (
    *breaks(
        "events sent = rows in transactions + late",
        one_transaction_dropped={"transactions": less},
        one_late_event_dropped={"late": less},
        transactions_doubled={"transactions": doubled},
    ),
    *breaks(
        "no transaction twice", transactions_doubled={"transactions": doubled}, late_doubled={"late": doubled}
    ),
    *breaks(
        "sum of purchases, cents",
        a_cent_more={"transactions": kind("purchase")},
        amounts_stuck={"transactions": stuck("billing_amount")},
    ),
    *breaks(
        "sum of refunds, cents",
        a_cent_more={"transactions": kind("refund")},
        taken_for_purchases={"transactions": stuck("kind", "purchase")},
    ),
    *breaks(
        "sum of top_ups, cents",
        a_cent_more={"transactions": kind("top_up")},
        taken_for_purchases={"transactions": stuck("kind", "purchase")},
    ),
    *breaks(
        "repeats in dead letters",
        dropped={"dead_letters": reason("duplicate", less)},
        doubled={"dead_letters": reason("duplicate", doubled)},
        another_reason={"dead_letters": reason("duplicate", stuck("reason", "conflict"))},
    ),
    *breaks(
        "malformed in dead letters",
        dropped={"dead_letters": reason("malformed", less)},
        doubled={"dead_letters": reason("malformed", doubled)},
    ),
    *breaks("no other dead letters", one_that_failed={"dead_letters": added({"reason": "process_error"})}),
    *breaks(
        _LATE,
        decided_on_like_all_others={"late": dropped},
        half_of_them_dropped={"late": halved},
        one_before_the_watermark={"late": on_time},
        others_than_those_sent_late={"late": of_others},
    ),
    *breaks(
        "alerts on the topic = rows in alerts",
        one_not_in_the_table={"alerts": less},
        one_not_on_the_topic={"alerts": added({"_event_id": "another"})},
    ),
    *breaks("no alert twice", doubled={"alerts": doubled}),
    *breaks(
        "alerts = transactions to be looked at",
        dropped={"alerts": less},
        of_other_transactions={"alerts": renamed("transaction_id")},
        approved_after_all={"transactions": stuck("action", "approve")},
    ),
    *breaks("labels sent = rows in labels", dropped={"labels": less}, doubled={"labels": doubled}),
    *breaks("no label twice", doubled={"labels": doubled}, stuck={"labels": stuck("label_id")}),
    *breaks(
        "authorisations sent = rows in authorisations",
        dropped={"authorisations": less},
        doubled={"authorisations": doubled},
    ),
    *breaks(
        "no authorisation twice",
        doubled={"authorisations": doubled},
        stuck={"authorisations": stuck("authorisation_id")},
    ),
    *breaks("payments declined", taken_for_approved={"authorisations": stuck("status", "approved")}),
    *(
        one
        for code, of in REASONS.items()
        for one in breaks(
            f"told by {code}: {of}",
            alerts_dropped={"alerts": dropped},
            alerts_of_other_transactions={"alerts": renamed("transaction_id")},
            reasons_dropped={"alerts": stuck("reasons", [])},
        )
    ),
    *(
        one
        for scenario in SCENARIOS
        for one in breaks(
            f"caught: {scenario}",
            alerts_dropped={"alerts": dropped},
            alerts_of_other_transactions={"alerts": renamed("transaction_id")},
        )
    ),
    *breaks("false alarms", alerts_of_what_is_genuine={"alerts": renamed("transaction_id")}),
)


@pytest.mark.parametrize("one", sampled(BREAKS), ids=str)
def test_a_check_of_the_demo_fails_where_its_feature_is_broken(
    one: Break, seen: tuple[Tables, ReadLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fails(checked(seen, monkeypatch, one), one.check)


def test_every_check_is_listed_with_what_breaks_it(
    seen: tuple[Tables, ReadLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_listed("`millrace demo fraud`", [check.name for check in checked(seen, monkeypatch)], BREAKS)

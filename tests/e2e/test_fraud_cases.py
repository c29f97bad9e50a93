"""The case work on a real broker and real tables, compared with the same processes in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from millrace.host.memory_chain import MemoryChain
from millrace.testing.kafka import TopicFactory, consume_all, produce
from millrace_apps.fraud.cases.app import CaseSettings
from millrace_apps.fraud.cases.book import CaseBook
from millrace_apps.fraud.cases.events import AlertSeen, Case, CaseAct, CaseLabel, Disposition, QueueEntry
from millrace_apps.fraud.cases.queue import ReviewQueue
from millrace_apps.fraud.contracts.events import Control
from tests.e2e.fraud_runs import MILLRACE, Command
from tests.unit.apps.fraud.case_book_cases import HOUR, alert, history

CASES = (*MILLRACE, "fraud", "cases")
CAPACITY = 3
RING = "device:d-7"


def run(folder: Path, *words: str) -> str:
    command = Command([*CASES, *words, "--root", str(folder)], folder)
    assert command.wait() == 0, command.err
    return command.out


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        DeltaTable(str(folder / "cases" / "tables" / table)).to_pyarrow_table().to_pylist()
    )
    return found


def in_memory(
    alerts: Iterable[AlertSeen], dispositions: Iterable[Disposition], acts: Iterable[CaseAct]
) -> tuple[dict[str, Case], dict[str, QueueEntry], dict[str, CaseLabel]]:
    rules = CaseSettings().rules()
    chain = MemoryChain(CaseBook(rules), ("queue", ReviewQueue(CAPACITY)))
    events = [(rules.key_of(a), a.event_time_ms, a, "alerts") for a in alerts]
    events += [(rules.key_of(d), d.at_ms, d, "dispositions") for d in dispositions]  # type: ignore[misc]
    events += [(rules.key_of(a), a.at_ms, a, "acts") for a in acts]  # type: ignore[misc]
    emissions = chain.run_batch(sorted(events, key=lambda e: e[1])) + chain.drain()

    def last(output: str, tp: Any, key: str) -> dict[str, Any]:
        records = [msgspec.json.decode(e.payload, type=tp) for e in emissions if e.output == output]
        return {getattr(r, key): r for r in records}

    return (
        last("CaseBook.book", Case, "case_id"),
        last("main", QueueEntry, "case_id"),
        last("CaseBook.labels", CaseLabel, "label_id"),
    )


@pytest.mark.matrix
def test_alerts_become_cases_and_a_disposition_comes_back_as_labels(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    """Alerts in, a run; an analyst decides by the command; another run to the end."""
    names = ("alerts", "dispositions", "acts", "control", "labels", "decisions", "dead_letters")
    topics = {name: topic_factory(prefix=f"cases-{name}") for name in names}
    sets = [f"topics.{name}={topic}" for name, topic in topics.items()]
    sets += ["stream.out_of_orderness=1h", f"cases.capacity={CAPACITY}", "spark.shuffle_partitions=2"]
    shared = ["--bootstrap", kafka_bootstrap, *(word for one in sets for word in ("-s", one))]
    alerts = sorted((a for a in history(3) if isinstance(a, AlertSeen)), key=lambda a: a.event_time_ms)
    alerts.append(alert(22 * 24 * HOUR, "tx-last", card="card-9"))
    # A ring of three cards of one device.
    of_ring: Any = {"ring": RING, "codes": ("SHARED_DEVICE",), "amount": 300.0}
    alerts += [alert(22 * 24 * HOUR - 2 * HOUR + n, f"r-{n}", card=f"card-r{n}", **of_ring) for n in range(3)]
    # The topic is at least once: each alert comes twice.
    values = [(a.card_id, msgspec.json.encode(a)) for a in alerts]
    produce(kafka_bootstrap, topics["alerts"], [*values, *values])

    run(tmp_path, "run", "--until-end", "--no-drain", *shared)
    still_open = [row for row in rows(tmp_path, "cases") if row["status"] == "open"]
    (chosen,) = [row["case_id"] for row in still_open if row["subject"] == RING]
    run(tmp_path, "claim", chosen, "--by", "eva", *shared)
    said = run(tmp_path, "dispose", chosen, "--verdict", "fraud", "--by", "eva", *shared)
    assert "the topic and the journal" in said
    run(tmp_path, "run", "--until-end", *shared)

    (disposition,) = [msgspec.convert(r, Disposition) for r in rows(tmp_path, "dispositions")]
    (claim,) = [msgspec.convert(r, CaseAct) for r in rows(tmp_path, "case_acts")]
    cases, entries, labels = in_memory(alerts, [disposition], [claim])
    assert {r["case_id"]: r["status"] for r in rows(tmp_path, "cases")} == {
        i: c.status for i, c in cases.items()
    }
    assert cases[chosen].status == "fraud"
    found = {row["case_id"]: row for row in rows(tmp_path, "cases")}
    for case_id, case in cases.items():
        row = found[case_id]
        assert (row["alerts"], row["amount"], row["priority"], row["revision"]) == (
            case.alerts, case.amount, case.priority, case.revision,
        )  # fmt: skip
    assert {r["case_id"]: r["place"] for r in rows(tmp_path, "queue")} == {
        i: e.place for i, e in entries.items()
    }
    on_topic = [json.loads(m.value() or b"") for m in consume_all(kafka_bootstrap, topics["labels"])]
    assert (
        {x["label_id"] for x in on_topic}
        == set(labels)
        == {r["label_id"] for r in rows(tmp_path, "case_labels")}
    )
    assert all(x["is_fraud"] for x in on_topic)
    assert (found[chosen]["subject"], disposition.ring, claim.ring) == (RING, RING, RING)
    assert [card["card_id"] for card in found[chosen]["cards"]] == ["card-r0", "card-r1", "card-r2"]
    blocks = {m.value() or b"" for m in consume_all(kafka_bootstrap, topics["decisions"])}
    taken = [msgspec.json.decode(block, type=Control) for block in blocks]
    assert {(one.list, one.entry, one.by) for one in taken} == {
        ("blocked", f"card:card-r{n}", "eva") for n in range(3)
    }
    assert [h["what"] for h in found[chosen]["history"]] == ["claim", "fraud"]
    assert {r["reason"] for r in rows(tmp_path, "dead_letters")} == {"duplicate"}

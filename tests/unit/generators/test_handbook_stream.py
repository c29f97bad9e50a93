"""The Handbook's table as a stream: its rows in order, its labels in the ledger and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace.testing.world_ledger import read_world_ledger
from millrace_apps.generators.cli import app
from millrace_apps.generators.engine import Generated, deliver_domain
from millrace_apps.generators.engine.stages import spaced
from millrace_apps.generators.fraud import SCENARIOS as FRAUDS
from millrace_apps.generators.handbook import DOMAIN, SCENARIOS, HandbookProfile, simulate_handbook

SMALL = HandbookProfile(seed=3, customers=60, terminals=120, days=40, radius=25.0)
FLAGS = ["--seed", "3", "--customers", "60", "--terminals", "120", "--days", "40", "--radius", "25"]
_KIND = (None, *SCENARIOS)


def rows(profile: HandbookProfile = SMALL) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = simulate_handbook(profile).transactions.to_pylist()
    return found


def messages(profile: HandbookProfile) -> Iterator[Generated]:
    return deliver_domain(DOMAIN, profile)


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["handbook", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_every_row_is_a_message_in_order_of_time_without_its_label() -> None:
    sent = list(messages(SMALL))
    expected = rows()
    assert len(sent) == len(expected) > 2_000
    for message, row in zip(sent, expected, strict=True):
        event = json.loads(message.value)
        when = row.pop("TX_DATETIME").replace(tzinfo=UTC)
        assert datetime.fromisoformat(event.pop("TX_DATETIME")) == when
        assert message.event_time_ms == message.due_ms == when.timestamp() * 1000
        scenario, _ = row.pop("TX_FRAUD_SCENARIO"), row.pop("TX_FRAUD")
        assert event == row
        assert message.key.decode() == str(row["CUSTOMER_ID"])
        assert [truth.kind for truth in message.truths] == ([_KIND[scenario]] if scenario else [])
    assert {truth.kind for message in sent for truth in message.truths} == set(SCENARIOS) <= set(FRAUDS)


def test_a_truth_names_who_was_compromised_and_covers_its_payments() -> None:
    hits = {
        (hit.scenario, hit.entity, hit.first_day): hit.end_day for hit in simulate_handbook(SMALL).compromises
    }
    for message in messages(SMALL):
        for truth in message.truths:
            event = json.loads(message.value)
            place, entity = truth.entity.split("-")
            assert event[f"{place.upper()}_ID"] == int(entity)
            if truth.kind != "high_amount":
                scenario = 2 if place == "terminal" else 3
                first, end = truth.detail["first_day"], truth.detail["end_day"]
                assert hits[scenario, int(entity), first] == end
                assert first <= event["TX_TIME_DAYS"] < end


def test_a_rate_spaces_the_payments_evenly_and_changes_no_byte() -> None:
    own = list(messages(replace(SMALL, events=50)))
    paced = list(spaced(messages(replace(SMALL, events=50)), SMALL.start_ms, 4.0))
    assert [m.value for m in own] == [m.value for m in paced]
    assert {after.due_ms - before.due_ms for before, after in pairwise(paced)} == {250}


def test_a_stream_of_another_start_is_the_same_half_a_year_later() -> None:
    later = replace(SMALL, start_ms=1_767_225_600_000)
    before, after = next(messages(SMALL)), next(messages(later))
    assert after.event_time_ms - before.event_time_ms == 2_832 * 86_400_000
    assert before.transaction_id == after.transaction_id == "0"


def test_the_command_writes_lines_with_a_complete_ledger(tmp_path: Path) -> None:
    out, ledger = tmp_path / "payments.jsonl", tmp_path / "ledger.jsonl"
    run(*FLAGS, "--to", "jsonl", "--out", str(out), "--ledger", str(ledger), "--quiet")
    expected = rows()
    assert len(out.read_bytes().splitlines()) == len(expected)
    read = read_world_ledger(ledger)
    assert read.summary.valid_unique == len(expected)
    assert read.run.parameters["customers"] == 60
    frauds = sum(len(truth.event_ids) for truth in read.truths)
    assert frauds == sum(row["TX_FRAUD"] for row in expected) > 100


def test_parquet_is_the_table_as_published(tmp_path: Path) -> None:
    path = tmp_path / "handbook.parquet"
    said = run(*FLAGS, "--to", "parquet", "--out", str(path))
    assert pq.read_table(path).equals(simulate_handbook(SMALL).transactions)
    assert f"wrote {len(rows()):,} transactions" in said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--to", "parquet"], "needs a file"),
        (["--to", "parquet", "--out", "x", "--ledger", "y"], "leave it out"),
        (["--to", "parquet", "--out", "x", "--ledger", "y", "--resume"], "--to kafka or jsonl"),
        (["--rate", "5", "--speed", "2"], "leave one of them out"),
        (["--speed", "0"], "--speed is above 0"),
        (["--customers", "0"], "customers is a count"),
        (["--start", "yesterday"], "--start is a time"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(flags: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["handbook", *flags])
    assert isinstance(done.exception, UserError)
    assert said in str(done.exception)
    assert "\n" not in str(done.exception)


def test_it_is_listed_and_described() -> None:
    listed = CliRunner().invoke(app, ["list"]).output
    described = CliRunner().invoke(app, ["describe", "handbook"]).output
    assert "handbook" in listed
    assert all(word in described for word in ("TX_AMOUNT", "customers", *SCENARIOS))
    assert "TX_AMOUNT" in run(*FLAGS, "--sample", "2")
    assert "nothing was sent" in run(*FLAGS, "--dry-run")

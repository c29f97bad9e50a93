"""The ledger says what is in the stream: recomputed here from the bytes alone."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import jsonschema
import pytest

from millrace_apps.generators.fraud import FraudProfile, fraud_events
from millrace_apps.generators.ledger import LedgerWriter
from millrace_apps.generators.ledger_records import Ledger, LedgerError, read_ledger
from millrace_apps.generators.run import run
from millrace_apps.generators.sinks import LineSink

SCHEMA = Path(__file__).parents[3] / "apps/fraud/schemas/transaction.v2.schema.json"
PROFILE = FraudProfile(
    seed=21,
    events=8_000,
    cards=150,
    late=0.02,
    lateness_ms=2_000,
    duplicates=0.03,
    malformed=0.01,
    fraud_rate=3,
)


def generate(folder: Path, profile: FraudProfile = PROFILE, stop: threading.Event | None = None) -> Path:
    path = folder / "ledger.jsonl"
    writer = LedgerWriter(
        path, domain="fraud", seed=profile.seed, schema_version="1", parameters=profile.parameters()
    )
    with LineSink.to_file(folder / "out.jsonl") as sink, writer:
        run(fraud_events(profile), sink, writer, stop or threading.Event())
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    generate(folder)
    return folder


@pytest.fixture(scope="module")
def ledger(folder: Path) -> Ledger:
    return read_ledger(folder / "ledger.jsonl")


class Recount:
    """What is in a file of lines, found out without the generator's help."""

    def __init__(self, path: Path, lateness_ms: int) -> None:
        validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_bytes()))
        self.valid: dict[str, dict[str, object]] = {}
        self.duplicates: list[str] = []
        self.malformed = 0
        self.late: dict[str, int] = {}
        self.cents: Counter[str] = Counter()
        newest = 0
        self.lines = path.read_bytes().split(b"\n")[:-1]
        raw: dict[str, bytes] = {}
        for line in self.lines:
            try:
                event = json.loads(line.decode())
                validator.validate(event)
            except (ValueError, jsonschema.ValidationError):
                self.malformed += 1
                continue
            name, at = event["transaction_id"], event["event_time_ms"]
            if name in self.valid:
                assert raw[name] == line
                self.duplicates.append(name)
                continue
            self.valid[name], raw[name] = event, line
            if newest - at >= lateness_ms:
                self.late[name] = newest - at
            newest = max(newest, at)
            self.cents[event["kind"]] += round(event["amount"] * 100)


@pytest.fixture(scope="module")
def found(folder: Path) -> Recount:
    return Recount(folder / "out.jsonl", PROFILE.lateness_ms)


def test_the_summary_equals_a_recount_of_the_bytes(found: Recount, ledger: Ledger) -> None:
    times = [event["event_time_ms"] for event in found.valid.values()]
    summary = ledger.summary
    assert summary.sent == len(found.lines)
    assert summary.valid_unique == len(found.valid) == 8_000
    assert summary.duplicates == len(found.duplicates) > 0
    assert summary.malformed == found.malformed > 0
    assert summary.late == len(found.late) > 0
    assert (summary.first_event_time_ms, summary.last_event_time_ms) == (min(times), max(times))  # type: ignore[type-var]
    assert summary.amount_cents == dict(found.cents)
    assert set(found.cents) == {"purchase", "refund", "top_up"}


def test_every_fault_is_listed_with_the_event_it_was_done_to(found: Recount, ledger: Ledger) -> None:
    assert [fault.transaction_id for fault in ledger.faults_of("duplicate")] == found.duplicates
    assert {f.transaction_id: f.lateness_ms for f in ledger.faults_of("late")} == found.late
    broken = {fault.transaction_id for fault in ledger.faults_of("malformed")}
    assert len(broken) == found.malformed
    assert not broken & found.valid.keys()
    assert {fault.expected for fault in ledger.faults} == {"late", "duplicate", "dead_letter"}
    assert {fault.reason for fault in ledger.faults_of("malformed")} == {
        "malformed",
        "schema",
        "range",
    }
    assert len({fault.id for fault in ledger.faults}) == len(ledger.faults)


def test_every_truth_names_events_of_its_card(found: Recount, ledger: Ledger) -> None:
    assert ledger.episodes
    for truth in ledger.truths:
        events = [found.valid[name] for name in truth.transaction_ids]
        assert {event["card_id"] for event in events} == {truth.card_id}
        times = [event["event_time_ms"] for event in events]
        assert (truth.first_event_time_ms, truth.last_event_time_ms) == (min(times), max(times))  # type: ignore[type-var]
    assert len({truth.episode_id for truth in ledger.truths}) == len(ledger.truths)


def test_the_ledger_says_how_to_make_the_stream_again(ledger: Ledger) -> None:
    assert FraudProfile(**ledger.run.parameters) == PROFILE
    assert (ledger.run.domain, ledger.run.seed, ledger.run.schema_version) == ("fraud", 21, "1")


def test_the_same_run_writes_the_same_ledger(folder: Path, tmp_path: Path) -> None:
    assert generate(tmp_path).read_bytes() == (folder / "ledger.jsonl").read_bytes()


def test_a_fraud_cut_off_by_the_end_is_marked(tmp_path: Path) -> None:
    # Frauds begin all the time, so that some cannot be finished.
    ledger = read_ledger(generate(tmp_path, FraudProfile(seed=4, events=3_000, cards=300, fraud_rate=50)))
    cut = [truth for truth in ledger.truths if not truth.complete]
    assert cut
    assert len(ledger.episodes) == len(ledger.truths) - len(cut)
    assert ledger.summary.episodes == len(ledger.truths)


def test_a_stopped_run_has_a_complete_ledger_of_what_was_sent(tmp_path: Path) -> None:
    class StopAfter(threading.Event):
        asked = 0

        def is_set(self) -> bool:
            self.asked += 1
            return self.asked > 3_210

    summary = read_ledger(generate(tmp_path, stop=StopAfter())).summary
    found = Recount(tmp_path / "out.jsonl", PROFILE.lateness_ms)
    assert summary.sent == len(found.lines) == 3_210
    assert (summary.valid_unique, summary.malformed) == (len(found.valid), found.malformed)


def test_an_empty_run_has_a_ledger_too(tmp_path: Path) -> None:
    summary = read_ledger(generate(tmp_path, FraudProfile(events=0))).summary
    assert (summary.sent, summary.first_event_time_ms, summary.amount_cents) == (0, None, {})


def test_a_ledger_without_summary_is_refused(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    for end in (b"", lines[-1][:40]):
        torn = tmp_path / "torn.jsonl"
        torn.write_bytes(b"".join(lines[:-1]) + end)
        with pytest.raises(LedgerError, match="the generator did not end cleanly"):
            read_ledger(torn)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda lines: [b'{"record":"what"}\n', *lines], r":1: no ledger record"),
        (lambda lines: [b"not json\n", *lines], r":1: no ledger record"),
        (lambda lines: lines[1:], r":1: no ledger: a Fault does not belong here"),
        (lambda lines: [*lines, lines[-1]], r"a Summary does not belong here"),
        (lambda lines: [lines[0], *lines], r":2: no ledger: a Run does not belong here"),
        (lambda lines: [lines[0], *lines[2:]], r"contradicts itself"),
    ],
)
def test_a_damaged_ledger_is_refused_with_its_place(
    folder: Path, tmp_path: Path, edit: object, says: str
) -> None:
    lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_bytes(b"".join(edit(lines)))  # type: ignore[operator]
    with pytest.raises(LedgerError, match=says):
        read_ledger(damaged)


def test_a_missing_ledger_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"cannot read the ledger .*nowhere\.jsonl"):
        read_ledger(tmp_path / "nowhere.jsonl")

"""A killed run that is gone on with has the bytes of one that was never disturbed."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import UserError
from millrace.testing.world_ledger import WorldRun
from millrace_apps.generators import resume as resuming
from millrace_apps.generators.command import Destination, Job, execute, found_bookmark
from millrace_apps.generators.engine import Generated
from millrace_apps.generators.engine.disturb import Disturbances
from millrace_apps.generators.engine.world import deliver_domain
from millrace_apps.generators.fraud import FraudProfile
from millrace_apps.generators.resume import Bookmark, bookmark_path, load, save
from millrace_apps.generators.timing import Timing
from millrace_apps.generators.world_ledger import WorldLedger
from tests.payments import transactions_of
from tests.unit.generators.world import METERS, MeterProfile

PROFILE = MeterProfile(seed=9, events=1_500, late=0.05, lateness_ms=2_000, duplicates=0.05, malformed=0.05)
WRONG = Disturbances(loss=0.05, drift=0.05, idle_ms=500, idle_every_ms=4_000)
AT_ONCE = Timing(event_rate=100.0, speed=None, events=PROFILE.events, start_ms=PROFILE.start_ms, live=False)


class Crash(Exception):
    """What ends a run as nothing in the generator does."""


def until(stream: Iterator[Generated], crash_at: int | None) -> Iterator[Generated]:
    for number, message in enumerate(stream):
        if number == crash_at:
            raise Crash
        yield message


def job(crash_at: int | None = None, profile: MeterProfile = PROFILE) -> Job:
    topics = {name: spec.topic for name, spec in METERS.streams.items()}
    parameters = {**profile.parameters(), "disturbances": WRONG.parameters()}
    run = WorldRun("meters", profile.seed, topics, dict.fromkeys(topics, "1"), parameters)
    return Job(
        domain="meters",
        stream=until(deliver_domain(METERS, profile, WRONG), crash_at),
        parameters=parameters,
        events=profile.events,
        open_ledger=lambda path, again: WorldLedger(path, run, resume=again),
    )


def generate(folder: Path, *, crash_at: int | None = None, resume: bool = False, **changes: Any) -> None:
    topics = {name: spec.topic for name, spec in METERS.streams.items()}
    destination = Destination("jsonl", "", topics, 1, folder / "out")
    ledger = folder / "ledger.jsonl"
    bookmark = found_bookmark(ledger, "jsonl", resume=resume)
    work = job(crash_at, **changes)
    execute(work, AT_ONCE, destination, ledger_path=ledger, quiet=True, bookmark=bookmark)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    # Under the same name: a bookmark and a ledger say nothing of the folder they lie in.
    folder = tmp_path_factory.mktemp("undisturbed")
    generate(folder)
    found = files(folder)
    assert found.keys() == {"ledger.jsonl", "out/reports.jsonl", "out/openings.jsonl"}
    return found


@pytest.mark.parametrize("seed", range(6))
def test_crashes_at_random_points_change_no_byte(
    seed: int, tmp_path: Path, undisturbed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crash, torn ends, go on, crash again, torn ends, go on to the end."""
    monkeypatch.setattr(resuming, "PERIOD_S", 0.0)
    numbers = random.Random(seed)
    for crash_at in sorted(numbers.randrange(1_600) for _ in range(2)):
        with pytest.raises(Crash):
            generate(tmp_path, crash_at=crash_at, resume=True)
        for path in (tmp_path / "out").iterdir():
            # What came after the bookmark is there in part.
            with path.open("ab") as out:
                out.write(b'{"torn":' * numbers.randrange(3))
        ledger = tmp_path / "ledger.jsonl"
        ledger.write_bytes(ledger.read_bytes()[: numbers.randrange(ledger.stat().st_size + 1)])
    generate(tmp_path, resume=True)
    assert files(tmp_path) == undisturbed


def test_a_run_goes_on_from_its_bookmark_and_not_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "PERIOD_S", 0.0)
    with pytest.raises(Crash):
        generate(tmp_path, crash_at=1_200, resume=True)
    mark = load(tmp_path / "ledger.jsonl")
    assert mark is not None
    assert 768 <= mark.messages <= 1_200
    lines = sum((tmp_path / f"out/{name}.jsonl").read_bytes().count(b"\n") for name in METERS.streams)
    assert mark.messages <= lines


def test_a_run_without_resume_begins_anew(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    with pytest.raises(Crash):
        generate(tmp_path, crash_at=700)
    assert bookmark_path(tmp_path / "ledger.jsonl").exists()
    generate(tmp_path)
    assert files(tmp_path) == undisturbed


def test_nothing_is_left_to_resume_after_a_clean_end(tmp_path: Path) -> None:
    generate(tmp_path)
    with pytest.raises(UserError, match=r"ledger\.jsonl has ended: there is nothing to resume"):
        generate(tmp_path, resume=True)


def test_another_stream_is_not_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        generate(tmp_path, crash_at=700)
    with pytest.raises(UserError, match="the same stream only: seed was 9, now it is 10"):
        generate(tmp_path, resume=True, profile=MeterProfile(**{**PROFILE.parameters(), "seed": 10}))


def test_a_file_that_lost_what_was_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "PERIOD_S", 0.0)
    with pytest.raises(Crash):
        generate(tmp_path, crash_at=700)
    (tmp_path / "out/reports.jsonl").write_bytes(b"")
    with pytest.raises(UserError, match="shorter than the"):
        generate(tmp_path, resume=True)


@pytest.mark.parametrize(
    ("ledger", "to", "says"),
    [
        (None, "jsonl", "add --ledger FILE"),
        (Path("l.jsonl"), "stdout", "kafka or jsonl"),
        (Path("l.parquet"), "jsonl", "a ledger of JSON lines"),
    ],
)
def test_what_cannot_be_resumed_is_said(ledger: Path | None, to: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        found_bookmark(ledger, to, resume=True)


def test_a_damaged_bookmark_is_named(tmp_path: Path) -> None:
    bookmark_path(tmp_path / "l.jsonl").write_bytes(b"{}")
    with pytest.raises(UserError, match=r"cannot read .*l\.jsonl\.resume"):
        load(tmp_path / "l.jsonl")


def test_a_bookmark_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl.resume"
    for messages in (1, 2):
        save(path, Bookmark("meters", "out", {}, messages, {"bytes": 7}))
    assert load(tmp_path / "l.jsonl") == Bookmark("meters", "out", {}, 2, {"bytes": 7})
    assert [p.name for p in tmp_path.iterdir()] == ["l.jsonl.resume"]


def test_a_real_kill_at_random_points_changes_no_byte(tmp_path: Path) -> None:
    """SIGKILL twice on the way, then to the end, with the files of an undisturbed run."""
    profile = FraudProfile(
        cards=100,
        seed=3,
        events=12_000,
        late=0.02,
        lateness_ms=2_000,
        duplicates=0.02,
        malformed=0.02,
        fraud_rate=3.0,
    )
    flags = [
        "--seed",
        "3",
        "--events",
        "12000",
        "--late",
        "0.02",
        "--lateness",
        "2s",
        "--fraud-rate",
        "3",
        "--cards",
        "100",
    ]
    flags += [
        "--label-scale",
        "0",
        "--duplicates",
        "0.02",
        "--malformed",
        "0.02",
        "--start",
        "2026-01-01",
        "--rate",
        "8000",
        "--event-rate",
        "1000",
    ]
    folder, ledger = tmp_path / "out", tmp_path / "ledger.jsonl"
    out = folder / "transactions.jsonl"
    where = ["--to", "jsonl", "--out", str(folder), "--ledger", str(ledger), "--resume", "--quiet"]
    code = (
        "import millrace_apps.generators.resume as r; r.PERIOD_S = 0.02\n"
        "from millrace.cli import main\nimport sys\nsys.argv[0] = 'millrace'\nmain()"
    )
    command = [sys.executable, "-c", code, "generate", "fraud", *flags, *where]
    numbers = random.Random(7)
    for _ in range(2):
        behind = numbers.randrange(300_000, 900_000) + (out.stat().st_size if out.exists() else 0)
        process = subprocess.Popen(command)
        try:
            deadline = time.monotonic() + 60
            while not (out.exists() and out.stat().st_size > behind):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.005)
        finally:
            process.kill()
            process.wait()
        assert bookmark_path(ledger).exists()
    subprocess.run(command, check=True)
    written = [message.value + b"\n" for message in transactions_of(profile)]
    assert out.read_bytes() == b"".join(written)
    undisturbed = tmp_path / "undisturbed.jsonl"
    where = ["--to", "stdout", "--ledger", str(undisturbed), "--quiet"]
    subprocess.run([*command[:5], *flags, *where], check=True, capture_output=True)
    assert ledger.read_bytes() == undisturbed.read_bytes()
    assert not bookmark_path(ledger).exists()

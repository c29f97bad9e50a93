"""`millrace generate` as a person or a script uses it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millrace.cli import main
from millrace.errors import UserError
from millrace.testing.world_ledger import read_world_ledger
from millrace_apps.generators.fraud import FraudProfile
from tests.payments import transactions_of

START = "2026-01-01T00:00:00Z"
COMMAND = [sys.executable, "-c", "from millrace.cli import main; main()", "generate", "orders"]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["millrace", "generate", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_list_names_the_domains(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "list") == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"fraud", "handbook", "iot"} <= set(names)
    assert "payments" not in names


def test_the_former_name_of_a_domain_is_taken_and_told_to_be_old(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--start", START, "--sample", "1"]
    assert call(monkeypatch, "fraud", *flags) == 0
    today = capsys.readouterr()
    assert call(monkeypatch, "payments", *flags) == 0
    former = capsys.readouterr()
    assert (former.out, today.err) == (today.out, "")
    assert former.err == "payments is the former name of the domain fraud: use that\n"


def test_a_file_gets_the_payloads_one_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    flags = ["--rate", "max", "--events", "2000", "--seed", "7", "--start", START, "--to", "jsonl"]
    own = ["--disorder-ms", "0", "--label-scale", "0"]
    assert call(monkeypatch, "fraud", *flags, *own, "--out", str(out)) == 0
    sent = transactions_of(FraudProfile(seed=7, events=2000, disorder_ms=0))
    assert (out / "transactions.jsonl").read_bytes().splitlines() == [e.value for e in sent]
    shown = capsys.readouterr()
    assert "sent 2,000 messages" in shown.err
    assert shown.out == ""


def test_quiet_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ["--rate", "max", "--events", "10", "--to", "jsonl", "--out", str(tmp_path / "out.jsonl")]
    assert call(monkeypatch, "fraud", *flags, "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_rate_and_sink_change_neither_stream_nor_ledger(tmp_path: Path) -> None:
    common = [
        *("--events", "1500", "--seed", "3", "--start", START, "--event-rate", "1000"),
        *("--late", "0.05", "--lateness", "700ms", "--duplicates", "0.05", "--malformed", "0.05", "--quiet"),
    ]
    ledgers = [tmp_path / f"ledger-{number}.jsonl" for number in range(2)]
    out = tmp_path / "out.jsonl"
    to_file = [*COMMAND, *common, "--rate", "max", "--to", "jsonl", "--out", str(out)]
    subprocess.run([*to_file, "--ledger", str(ledgers[0])], check=True)
    to_stdout = [*COMMAND, *common, "--rate", "3000", "--to", "stdout", "--ledger", str(ledgers[1])]
    done = subprocess.run(to_stdout, check=True, capture_output=True)
    assert done.stdout == out.read_bytes()
    assert ledgers[0].read_bytes() == ledgers[1].read_bytes()
    assert done.stderr == b""


def test_sample_shows_messages_with_key_headers_and_truth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "fraud", "--sample", "2") == 0
    shown = capsys.readouterr().out
    first = json.loads(shown[: shown.index("\n}") + 2])
    assert first["value"]["card_id"] == first["key"]
    assert first["headers"]["schema_version"] == "1"
    assert first["truth"] == {"truths": [], "fault": None}
    assert shown.count('"key"') == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_with_a_complete_ledger(tmp_path: Path, number: signal.Signals) -> None:
    out, ledger = tmp_path / "out.jsonl", tmp_path / "ledger.jsonl"
    faults = ["--late", "0.1", "--lateness", "600ms", "--duplicates", "0.1", "--malformed", "0.1"]
    process = subprocess.Popen(
        [*COMMAND, "--rate", "2000", *faults, "--to", "jsonl", "--out", str(out), "--ledger", str(ledger)],
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 60
        while not (out.exists() and out.stat().st_size > 800_000):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        _, shown = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert b"Traceback" not in shown
    summary = read_world_ledger(ledger).summary
    assert summary.sent == len(out.read_bytes().split(b"\n")) - 1
    assert summary.faults["late"] > 0


def test_a_killed_run_leaves_a_ledger_that_says_so(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    to = ["--to", "jsonl", "--out", os.devnull]
    process = subprocess.Popen(
        [*COMMAND, "--rate", "max", "--duplicates", "0.5", *to, "--ledger", str(ledger), "--quiet"]
    )
    try:
        deadline = time.monotonic() + 60
        while not (ledger.exists() and ledger.stat().st_size > 0):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    with pytest.raises(UserError, match="did not end cleanly"):
        read_world_ledger(ledger)


def test_a_reader_that_has_enough_is_no_error() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--rate", "max", "--to", "stdout"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert "order_id" in json.loads(process.stdout.readline())
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--rate", "fast"], "--rate is a number of events per second"),
        (["--duration", "soon"], "'soon' is not a duration"),
        (["--late", "2"], "late is a share between 0 and 1, got 2.0"),
        (["--cards", "0"], "cards is a count"),
        (["--start", "noon"], "--start is a time with its zone"),
        (["--to", "jsonl"], "add --out FILE"),
        (["--to", "stdout", "--out", "x"], "--out is the file of --to jsonl"),
        (["--to", "jsonl", "--out", "/nowhere/at/all"], "cannot write /nowhere/at/all"),
        (["--to", "stdout", "--events", "1", "--ledger", "/nowhere/at/all"], "cannot write the ledger"),
    ],
)
def test_a_bad_flag_is_one_clear_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str], says: str
) -> None:
    assert call(monkeypatch, "fraud" if "--cards" in flags else "orders", *flags) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("millrace: ")
    assert says in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--out", "/dev/full"], "cannot write /dev/full: No space left"),
        (["--out", os.devnull, "--ledger", "/dev/full"], "cannot write the ledger /dev/full: No space left"),
    ],
)
def test_a_full_disk_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str], says: str
) -> None:
    common = ["--rate", "max", "--events", "20000", "--duplicates", "0.1", "--to", "jsonl", "--quiet"]
    assert call(monkeypatch, "orders", *common, *flags) == 1
    shown = capsys.readouterr().err
    assert says in shown
    assert shown.count("\n") == 1


def test_the_commands_are_cheap_to_import() -> None:
    code = (
        "import sys, millrace_apps.generators.cli\n"
        "heavy = {'faker', 'confluent_kafka', 'rich', 'pandas', 'pyspark', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

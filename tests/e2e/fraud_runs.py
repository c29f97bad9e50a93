"""The command line in processes that can be watched, stopped, killed and counted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import psutil
from deltalake import DeltaTable

from millrace.runtime.apps import app_version
from millrace.testing.kafka import consume_all
from millrace_apps.fraud.processes.reasons import LEAST
from tests.e2e.fraud_stream import FraudStream, FraudTopics, by, differences

MILLRACE = (sys.executable, "-m", "millrace")
#: Ends a command when this process is killed; it becomes the command, so its id is the command's.
_DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--") if shutil.which("setpriv") else ()
TABLES = ("transactions", "alerts", "labels", "late", "dead_letters")
#: Spark needs 8 s to its first batch on an idle machine; this is for a busy one.
PATIENCE_S = 240.0


def until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition; say what did not come."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.05)


class Command:
    """A command in a session of its own, so that everything it started is found, and ended with the test.

    It has a folder of its own for temporary files, so that what it leaves there is found, too.

    Args:
        arguments: The command and its arguments.
        folder: Working directory; its output is kept there.
        env: Environment variables beside this process's own.
    """

    _count = 0

    def __init__(self, arguments: Sequence[str], folder: Path, *, env: dict[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        Command._count += 1
        # Short, and not below a test's folder: sockets with long paths are refused.
        self._temporary = Path(tempfile.mkdtemp(prefix="mr-"))
        temporary = {
            "TMPDIR": str(self._temporary),
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={self._temporary}",
        }
        self._out, self._err = (folder / f"command-{Command._count}.{end}" for end in ("out", "err"))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [*_DIES_WITH_US, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env=os.environ | temporary | (env or {}),
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Return the exit code."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"still runs after {timeout_s:g} s:\n{self.out}\n{self.err}") from error

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition while the command runs."""

        def reached() -> bool:
            if condition():
                return True
            assert self.running(), f"ended with {self.wait()} before: {what}\n{self.out}\n{self.err}"
            return False

        until(reached, what)

    def until_said(self, text: str) -> None:
        """Wait until the command has printed this."""
        self.until(lambda: text in self.out, f"it says {text!r}")

    def processes(self) -> list[psutil.Process]:
        """Return what runs of the command and of all that it started."""
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return found

    def until_gone(self) -> None:
        """Wait until nothing runs of it any more: no JVM, no Python worker."""
        until(lambda: not self.processes(), f"{self.pid} and all that it started are gone", 60)

    def check_nothing_left(self) -> None:
        """Fail if anything of it runs or lies in the folder for temporary files, now that it has ended."""
        self.until_gone()
        assert list(self._temporary.rglob("*")) == []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while left := self.processes():
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.poll()
            time.sleep(0.02)
        self._process.wait()
        shutil.rmtree(self._temporary)


def run_arguments(
    bootstrap: str, topics: FraudTopics, root: Path, settings: Iterable[str] = (), *, master: str = "local[2]"
) -> list[str]:
    """Return the arguments of ``millrace run fraud`` for a short run."""
    usual = [
        f"storage.root={root}",
        "spark.quick_start=true",
        "stream.out_of_orderness=2 hours",
        "stream.keep_headers=all",
        # What an entity's stage has seen hangs on the order in which batches bring the cards.
        "features.entities=none",
    ]
    sets = [*usual, *topics.settings, *settings]
    return ["fraud", "--bootstrap", bootstrap, "--master", master, *(f"--set={item}" for item in sets)]


def run_to_end(
    bootstrap: str,
    topics: FraudTopics,
    root: Path,
    settings: Iterable[str] = (),
    *,
    master: str = "local[2]",
    env: dict[str, str] | None = None,
    drain: bool = False,
) -> str:
    """Run the app until its input ends, see that nothing is left of it, and return what it printed."""
    arguments = run_arguments(bootstrap, topics, root, settings, master=master)
    how = ["--until-end", *([] if drain else ["--no-drain"])]
    with Command([*MILLRACE, "run", *how, *arguments], root.parent, env=env) as command:
        assert command.wait() == 0, f"{command.out}\n{command.err}"
        command.check_nothing_left()
        assert command.err == ""
        return command.out


def table(root: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table."""
    rows: list[dict[str, Any]] = DeltaTable(str(root / "tables" / name)).to_pyarrow_table().to_pylist()
    return rows


def check_same_tables(root: Path, reference: Path) -> None:
    """Compare two runs' tables, whatever the order of their rows: every field, identities among them."""
    for name in TABLES:
        found, expected = by("_event_id", table(root, name)), by("_event_id", table(reference, name))
        assert found.keys() == expected.keys(), name
        different = [
            f"{name} {identity}: {field} is {found[identity].get(field)!r}, was {value!r}"
            for identity, row in expected.items()
            for field, value in row.items()
            if found[identity].get(field) != value or found[identity].keys() != row.keys()
        ]
        assert different == []


def committed_batches(root: Path) -> list[int]:
    """Return the batches that a query has committed."""
    folder = root / "checkpoint" / "commits"
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())


def check_tables(stream: FraudStream, topics: FraudTopics, root: Path) -> None:
    """Compare all tables with what must come of the stream: nothing lost, nothing twice, nothing else."""
    decided, alerts = table(root, "transactions"), table(root, "alerts")
    assert all(len(row["reasons"]) >= LEAST for row in alerts)
    for row in (*decided, *alerts):
        # Those without weight only compare; tests/unit/apps/fraud/test_stages.py has them.
        row["reasons"] = [reason for reason in row["reasons"] if reason["weight"]]
    assert differences(stream.decisions, by("transaction_id", decided)) == []
    for row in alerts:
        row["thresholds"] = dict(row["thresholds"])
    assert differences(stream.alerts, by("transaction_id", alerts)) == []
    assert table(root, "late") == []

    letters = table(root, "dead_letters")
    found = {
        (row["topic"], row["partition"], row["offset"]): (
            row["reason"],
            row["stage"],
            row["value"],
            None if row["headers"] is None else msgspec.json.decode(row["headers"]),
            row["kafka_key"],
        )
        for row in letters
    }
    assert len(found) == len(letters)
    assert found == stream.dead_letters(topics)
    check_labels(stream, table(root, "labels"), decided)


def check_labels(stream: FraudStream, rows: list[dict[str, Any]], decided: list[dict[str, Any]]) -> None:
    """Compare the table of labels, and what decisions knew of their cards, with the labels that were sent."""
    taken = [msgspec.json.decode(v) for i, v in enumerate(stream.labels) if i not in stream.refused_labels]
    found = [
        {name: v for name, v in row.items() if name != "corrects" and not name.startswith("_")}
        for row in rows
    ]
    assert by("label_id", found) == by("label_id", taken)
    newest = {said["card_id"]: said for said in sorted(taken, key=lambda said: int(said["event_time_ms"]))}
    knew = 0
    for row in decided:
        said, known = newest.get(row["card_id"]), row["card_labels"]
        if said is None or row["event_time_ms"] < said["event_time_ms"] - 1_000:
            assert known is None
        elif row["event_time_ms"] >= said["event_time_ms"]:
            assert (known["frauds"], known["known"]) == (int(said["is_fraud"]), 1)
            knew += 1
    assert knew > 5 or not taken


def check_topics(bootstrap: str, topics: FraudTopics, root: Path, *, repeats: bool = False) -> None:
    """Compare the output topics with the tables.

    Args:
        bootstrap: The broker.
        topics: The topics.
        root: Where the tables are.
        repeats: Whether records may come more than once, with one identity: topics are at-least-once, and
            a batch that is done again after a crash is sent again.
    """
    sent: list[tuple[dict[str, str], Any]] = [
        (_headers(message), message)
        for topic in (topics.alerts, topics.dead_letters)
        for message in consume_all(bootstrap, topic)
    ]
    messages = {headers["event_id"]: (headers, message) for headers, message in sent}
    assert repeats or len(messages) == len(sent)
    rows = by("_event_id", [*table(root, "alerts"), *table(root, "dead_letters")])
    assert messages.keys() == rows.keys()
    for identity, row in rows.items():
        headers, message = messages[identity]
        if message.topic() == topics.alerts:
            _check_alert(row, message)
        else:
            _check_dead_letter(row, headers, message)


def _headers(message: Any) -> dict[str, str]:
    return {name: text.decode() for name, text in message.headers()}


def _check_alert(row: Any, message: Any) -> None:
    assert message.key().decode() == row["card_id"]
    payload = {name: value for name, value in row.items() if not name.startswith("_")}
    assert msgspec.json.decode(message.value()) == payload | {"thresholds": dict(row["thresholds"])}


def _check_dead_letter(row: Any, headers: dict[str, str], message: Any) -> None:
    expected = {f"dlq.{name}": row[name] for name in ("reason", "stage", "process", "error", "headers")}
    expected["dlq.source"] = f"{row['topic']}:{row['partition']}:{row['offset']}"
    expected["event_id"] = row["_event_id"]
    expected["dlq.timestamp"] = str(row["timestamp_ms"])
    expected |= {"dlq.app": "fraud", "dlq.version": app_version("fraud")}
    assert headers == {name: value for name, value in expected.items() if value is not None}
    assert message.value() == row["value"]
    assert message.key() == (row["kafka_key"] or b"")

"""A new version beside the running one and in its place, while events come: nothing lost, nothing twice."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from millrace.kafka.admin import end_offsets
from millrace.observing.jobs import find_jobs
from millrace.observing.reading import Jobs
from millrace.testing.kafka import TopicFactory, consume_all
from tests.e2e.fraud_runs import MILLRACE, Command, check_tables, check_topics, run_arguments, table, until
from tests.e2e.fraud_stream import FraudStream, FraudTopics, ordered_stream, with_labels


@contextmanager
def sending(stream: FraudStream, bootstrap: str, topics: FraudTopics) -> Iterator[threading.Event]:
    """Send the stream a few at a time while the block runs, and what is left of it once the event is set."""
    hurry, count = threading.Event(), len(stream.messages)

    def send() -> None:
        for first in range(0, count, 20):
            if first > 0.9 * count:
                hurry.wait()  # so that something is left for the new version on any machine
            stream.send(bootstrap, topics, first=first, last=min(first + 20, count))
            hurry.wait(1.0)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield hurry
    finally:
        hurry.set()
        thread.join()


@contextmanager
def ending(home: Path) -> Iterator[None]:
    """End every job that has a record in the end: those of the background outlive who began them."""
    try:
        yield
    finally:
        for job in find_jobs(home / "jobs"):
            if job.record is not None and job.state == "running":
                for process in [*psutil.Process(job.record.pid).children(recursive=True)]:
                    process.kill()
                psutil.Process(job.record.pid).kill()


def asked(folder: Path, home: Path, *words: str, code: int = 0) -> Any:
    # What it starts outlives it: it gets no folder for temporary files that goes with the command.
    env = {"MILLRACE_HOME": str(home), "TMPDIR": tempfile.gettempdir(), "JAVA_TOOL_OPTIONS": ""}
    with Command([*MILLRACE, *words, "--json"], folder, env=env) as command:
        assert command.wait() == code, f"{command.out}\n{command.err}"
        return json.loads(command.out)


@pytest.mark.long
@pytest.mark.parametrize("own_state", [False, True])
def test_under_load_a_second_version_is_compared_and_takes_over_from_the_offset_where_the_first_ends(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path, own_state: bool
) -> None:
    """Events come all the while. With its own state the second reads up to X before it takes over.

    ::

        blue      |-- batches ------------------------| X
        green           |-- own folder and topics --| (G..X)
        new                                             X |-- batches --| stop
        real outputs    <---------- blue -----------> X <---- new ---->
    """
    topics, stream = FraudTopics.make(topic_factory), with_labels(ordered_stream(3_000, cards=80))
    home, root = tmp_path / "home", tmp_path / "app"
    jobs = Jobs(home / "jobs")
    arguments = run_arguments(kafka_bootstrap, topics, root)

    def ends() -> dict[int, int]:
        return end_offsets(kafka_bootstrap, topics.transactions)

    def lag(place: Path) -> int | None:
        return next((s.lag_total for s in jobs.all() if s.root == str(place)), None)

    with (
        ending(home),
        sending(stream, kafka_bootstrap, topics) as hurry,
        Command([*MILLRACE, "run", *arguments], tmp_path, env={"MILLRACE_HOME": str(home)}) as blue,
    ):
        blue.until(lambda: (root / "checkpoint" / "commits" / "1").exists(), "two batches are committed")
        begun = asked(tmp_path, home, "bluegreen", "start", "fraud", "--root", str(root))
        green = Path(begun["root"])
        assert (begun["did"], green) == ("runs", tmp_path / "app-green")
        assert begun["offsets"][topics.transactions] != {"0": 0, "1": 0}
        said = asked(tmp_path, home, "bluegreen", "diff", "fraud", "--root", str(root))
        assert said["same"]
        assert said["tables"]["transactions"]["same"] > 50

        words = ["bluegreen", "switch", "fraud", "--if-same", "--root", str(root)]
        done = asked(tmp_path, home, *words, *(["--own-state"] if own_state else []))
        assert blue.wait() == 0, blue.err
        assert (done["did"], done["fit"]["how"]) == ("upgraded", "as it is")
        line = done["offsets"][topics.transactions]
        assert 0 < sum(line.values()) < len(stream.messages)
        hurry.set()
        until(lambda: sum(ends().values()) == len(stream.messages), "all is sent")
        until(lambda: lag(root) == 0, "all is read")
        asked(tmp_path, home, "stop", "fraud", "--root", str(root))

    contract = json.loads((root / "contract.json").read_text())
    assert contract.get("restored", {}).get("savepoint", "").startswith("switch-") is own_state
    check_tables(stream, topics, root)
    check_topics(kafka_bootstrap, topics, root)
    own = [str(m.headers()) for t in begun["topics"] for m in consume_all(kafka_bootstrap, t)]
    assert len(own) > 0
    written = {row["_event_id"] for row in table(root, "transactions")}
    assert {row["_event_id"] for row in table(green, "transactions")} < written


@pytest.mark.matrix
def test_a_new_version_that_does_not_start_is_rolled_back_and_another_version_takes_a_savepoint(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    """One job: refused, rolled back, stopped, upgraded with nothing running; all it says is there once."""
    topics, stream = FraudTopics.make(topic_factory), with_labels(ordered_stream(1_500, cards=40))
    home, root = tmp_path / "home", tmp_path / "app"
    jobs = Jobs(home / "jobs")
    arguments = run_arguments(kafka_bootstrap, topics, root)
    third = len(stream.messages) // 3
    port = int(kafka_bootstrap.rpartition(":")[2])  # taken

    def is_read() -> bool:
        return next((s.lag_total for s in jobs.all()), None) == 0

    with (
        ending(home),
        Command([*MILLRACE, "run", *arguments], tmp_path, env={"MILLRACE_HOME": str(home)}) as old,
    ):
        stream.send(kafka_bootstrap, topics, last=third)
        old.until(is_read, "the first third is read")
        refused = asked(
            tmp_path, home, "upgrade", "fraud", "--root", str(root), "--set", "spark.key_groups=32", code=2
        )
        assert (refused["did"], refused["stopped_pid"], old.running()) == ("refused", None, True)
        assert not (root / "savepoints").exists()
        words = ("upgrade", "fraud", "--root", str(root))
        fits = asked(tmp_path, home, *words, "--check")
        assert (fits["did"], old.running()) == ("checked", True)
        back = asked(tmp_path, home, *words, "--set", f"metrics.port={port}", code=1)
        assert (back["did"], old.wait()) == ("rolled back", 0)
        assert "port" in back["why"]
        stream.send(kafka_bootstrap, topics, first=third, last=2 * third)
        until(is_read, "the second third is read")
        asked(tmp_path, home, "stop", "fraud", "--root", str(root))

        contract = json.loads((root / "contract.json").read_text())
        contract.get("links", [contract])[0]["version"] = 0  # as if an earlier version had written it
        (root / "contract.json").write_text(json.dumps(contract))
        sets = [part for one in arguments[5:] for part in ("--set", one.removeprefix("--set="))]
        sets += ["--set", f"kafka.bootstrap={kafka_bootstrap}", "--set", "spark.master=local[2]"]
        done = asked(tmp_path, home, *words, *sets)
        assert (done["did"], done["fit"]["how"], done["stopped_pid"]) == (
            "upgraded",
            "from a savepoint",
            None,
        )
        stream.send(kafka_bootstrap, topics, first=2 * third)
        until(is_read, "all is read")
        asked(tmp_path, home, "stop", "fraud", "--root", str(root))
    check_tables(stream, topics, root)
    check_topics(kafka_bootstrap, topics, root)

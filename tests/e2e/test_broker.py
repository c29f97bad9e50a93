"""The embedded broker is a real one: it starts soon, keeps what it is told to, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from millrace.errors import UserError
from millrace.kafka import broker as broker_module
from millrace.kafka.admin import (
    BrokerUnreachable,
    TopicSpec,
    client_config,
    cluster_id,
    create_topics,
    delete_topics,
    end_offsets,
    ping,
    topic_partitions,
)
from millrace.kafka.broker import EmbeddedBroker, broker_or_embedded
from millrace.testing.kafka import Record, TopicFactory, consume_all, produce


def until(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def listens(bootstrap: str) -> bool:
    host, _, port = bootstrap.partition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


def values(bootstrap: str, topic: str) -> list[bytes]:
    return sorted((message.value() or b"") for message in consume_all(bootstrap, topic))


@pytest.fixture
def silent_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class TestLife:
    def test_it_is_ready_within_ten_seconds_and_small_and_leaves_nothing_but_its_log(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        took = []
        for attempt in range(3):  # the best of three, because the machine may be busy with something else
            logs = tmp_path / f"logs-{attempt}"
            began = time.monotonic()
            with EmbeddedBroker(log_dir=logs) as broker:
                elapsed = time.monotonic() - began
                # Where it had less than a core to itself, its own work tells.
                spent = psutil.Process(broker.pid).cpu_times()
                took.append(min(elapsed, spent.user + spent.system))
                assert ping(broker.bootstrap)
                assert psutil.Process(broker.pid).memory_info().rss < 400 * 1024**2
                pid, bootstrap, place = broker.pid, broker.bootstrap, broker.data_dir
                assert place.exists()
            assert (gone(pid), listens(bootstrap), place.exists()) == (True, False, False)
            assert [file.name for file in logs.iterdir()] == [broker.log_file.name]
            assert "Kafka Server started" in broker.log_file.read_text()
            if took[-1] < 10:
                break
        assert min(took) < 10
        assert capfd.readouterr() == ("", "")

    def test_two_know_nothing_of_each_other_and_a_given_directory_is_kept_for_one_at_a_time(
        self, tmp_path: Path
    ) -> None:
        place = tmp_path / "with space"
        with EmbeddedBroker(log_dir=tmp_path) as one, EmbeddedBroker(place) as two:
            first = cluster_id(two.bootstrap)
            assert cluster_id(one.bootstrap) != first
            create_topics(two.bootstrap, {"kept": TopicSpec(2)})
            produce(two.bootstrap, "kept", ["a", "b"])
            assert topic_partitions(two.bootstrap) == {"kept": 2}
            assert topic_partitions(one.bootstrap) == {}
            with pytest.raises(UserError, match="is in use by another broker"):
                EmbeddedBroker(place).start()
        with EmbeddedBroker(place) as broker:
            assert cluster_id(broker.bootstrap) == first
            assert values(broker.bootstrap, "kept") == [b"a", b"b"]
            assert broker.log_file == place / "logs" / "broker.log"

    def test_a_port_taken_at_the_last_moment_is_replaced_and_a_crashed_one_restarts_there_with_its_messages(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_port: int
    ) -> None:
        from millrace.kafka import launch

        with socket.create_server(("127.0.0.1", 0)) as server:
            ports = iter([server.getsockname()[1], silent_port])
            choose = launch.free_port
            monkeypatch.setattr(launch, "free_port", lambda **unlike: next(ports, None) or choose(**unlike))
            with EmbeddedBroker(log_dir=tmp_path) as broker:
                address, log = broker.bootstrap, broker.log_file
                assert address != f"127.0.0.1:{server.getsockname()[1]}"
                create_topics(address, {"kept": TopicSpec()})
                produce(address, "kept", ["before"])
                broker.kill()
                assert not broker.is_alive()
                broker.restart()
                produce(address, "kept", ["after"])
                assert values(address, "kept") == [b"after", b"before"]
                assert (broker.bootstrap, broker.log_file) == (address, log)

    def test_it_dies_with_a_parent_that_is_killed(self, tmp_path: Path) -> None:
        script = (
            "import sys, time; from pathlib import Path; from millrace.kafka.broker import EmbeddedBroker\n"
            "with EmbeddedBroker(log_dir=Path(sys.argv[1])) as broker:\n"
            "    print(broker.pid, broker.bootstrap, broker.data_dir, flush=True); time.sleep(600)"
        )
        parent = subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True)
        with parent:
            assert parent.stdout is not None
            pid, bootstrap, place = parent.stdout.readline().split()
            assert ping(bootstrap)
            parent.kill()
        until(lambda: gone(int(pid)), "the broker ended")
        until(lambda: not Path(place).exists(), "its data is deleted")
        assert not listens(bootstrap)


class TestMistakes:
    def test_a_taken_port_is_one_line(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with pytest.raises(UserError, match=rf"^port {port} is taken"):
                EmbeddedBroker(port=port, log_dir=tmp_path).start()

    def test_a_directory_that_cannot_be_made_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(UserError, match=r"cannot write .*file"):
            EmbeddedBroker(tmp_path / "file" / "below").start()

    def test_a_broker_that_dies_shows_the_end_of_its_log_and_leaves_nothing(self, tmp_path: Path) -> None:
        broker = EmbeddedBroker(log_dir=tmp_path, settings={"num.io.threads": "many"})
        with pytest.raises(UserError, match=r"(?s)see .*\.log, which ends with:.*num\.io\.threads"):
            broker.start()
        assert not broker.is_alive()

    def test_a_broker_that_is_too_slow_is_ended(self, tmp_path: Path) -> None:
        broker = EmbeddedBroker(log_dir=tmp_path, ready_timeout_s=0.05)
        before = psutil.Process().children(recursive=True)  # the broker of other tests, for one
        with pytest.raises(UserError, match=r"did not answer within 0\.05 s: see .*\.log"):
            broker.start()
        new = [child for child in psutil.Process().children(recursive=True) if child not in before]
        assert not [child for child in new if "kafka.Kafka" in child.cmdline()]

    def test_no_java_is_one_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(UserError, match="no Java found"):
            EmbeddedBroker(log_dir=tmp_path).start()


class TestBrokerOrEmbedded:
    def test_a_broker_named_in_the_environment_is_used(
        self, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(broker_module, "EmbeddedBroker", None)  # any use would fail
        with broker_or_embedded(environ={"KAFKA_BOOTSTRAP_SERVERS": kafka_bootstrap}) as bootstrap:
            assert bootstrap == kafka_bootstrap
        assert ping(kafka_bootstrap)

    def test_a_broker_named_in_the_call_wins(self, kafka_bootstrap: str, silent_port: int) -> None:
        other = {"KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{silent_port}"}
        with broker_or_embedded(kafka_bootstrap, environ=other) as bootstrap:
            assert bootstrap == kafka_bootstrap

    def test_a_broker_that_does_not_answer_is_one_line_soon(
        self, silent_port: int, capfd: pytest.CaptureFixture[str]
    ) -> None:
        began = time.monotonic()
        with (
            pytest.raises(BrokerUnreachable, match=rf"no Kafka broker answers at 127\.0\.0\.1:{silent_port}"),
            broker_or_embedded(f"127.0.0.1:{silent_port}", timeout_s=1.0),
        ):
            pass
        assert time.monotonic() - began < 5
        assert capfd.readouterr() == ("", "")

    def test_without_a_name_an_embedded_one_is_started(self, tmp_path: Path) -> None:
        with broker_or_embedded(environ={}, log_dir=tmp_path) as bootstrap:
            assert ping(bootstrap)
        assert not listens(bootstrap)


class TestAdmin:
    def test_messages_come_back_as_they_were_sent(
        self, kafka_bootstrap: str, topic_factory: TopicFactory
    ) -> None:
        topic = topic_factory(partitions=3)
        sent = Record(
            b"value", b"key", [("h", b"1"), ("h", b"2")], partition=2, timestamp_ms=1_000_000_000_000
        )
        assert produce(kafka_bootstrap, topic, [sent]) == 1
        (got,) = consume_all(kafka_bootstrap, topic)
        assert (got.value(), got.key(), got.headers()) == (b"value", b"key", [("h", b"1"), ("h", b"2")])
        assert (got.partition(), got.offset(), got.timestamp()[1]) == (2, 0, 1_000_000_000_000)

    def test_many_messages_all_come_back(self, kafka_bootstrap: str, topic_factory: TopicFactory) -> None:
        topic = topic_factory(partitions=4)
        keyed = [(str(number % 7), str(number)) for number in range(20_000)]
        produce(kafka_bootstrap, topic, keyed)
        got = {message.value() for message in consume_all(kafka_bootstrap, topic)}
        assert got == {value.encode() for _, value in keyed}
        assert sum(end_offsets(kafka_bootstrap, topic).values()) == 20_000

    def test_aborted_messages_are_not_consumed_and_markers_do_not_block(
        self, kafka_bootstrap: str, topic_factory: TopicFactory
    ) -> None:
        topic = topic_factory()
        producer = Producer(client_config(kafka_bootstrap) | {"transactional.id": topic})
        producer.init_transactions(30)
        for value, end in (("kept", producer.commit_transaction), ("gone", producer.abort_transaction)):
            producer.begin_transaction()
            producer.produce(topic, value)
            producer.flush(30)
            end(30)
        assert values(kafka_bootstrap, topic) == [b"kept"]

    def test_creating_topics_again_changes_nothing(
        self, kafka_bootstrap: str, topic_factory: TopicFactory
    ) -> None:
        name = topic_factory(partitions=2)
        assert create_topics(kafka_bootstrap, {name: TopicSpec(5)}) == set()
        assert topic_partitions(kafka_bootstrap)[name] == 2

    def test_deleted_topics_are_gone_and_unknown_ones_do_not_matter(
        self, kafka_bootstrap: str, topic_factory: TopicFactory
    ) -> None:
        name = topic_factory()
        assert delete_topics(kafka_bootstrap, [name, f"{name}-unknown"]) == {name}
        assert name not in topic_partitions(kafka_bootstrap)
        with pytest.raises(UserError, match=f"there is no topic {name}"):
            end_offsets(kafka_bootstrap, name)

    @pytest.mark.parametrize(
        ("name", "spec"), [("no spaces", TopicSpec()), ("t", TopicSpec(config={"no.such": "1"}))]
    )
    def test_what_the_broker_refuses_is_one_line(
        self, name: str, spec: TopicSpec, kafka_bootstrap: str
    ) -> None:
        with pytest.raises(UserError, match=rf"cannot create topic {name}"):
            create_topics(kafka_bootstrap, {name: spec})

    def test_old_timestamps_are_no_reason_to_delete(
        self, kafka_bootstrap: str, topic_factory: TopicFactory
    ) -> None:
        from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

        resource = ConfigResource(ConfigResource.Type.TOPIC, topic_factory())
        admin = AdminClient(client_config(kafka_bootstrap))
        answer = admin.describe_configs([resource])
        assert answer[resource].result(30)["retention.ms"].value == "-1"

    def test_an_option_that_no_client_knows_is_one_line(self, kafka_bootstrap: str) -> None:
        with pytest.raises(UserError, match=r"No such configuration property"):
            ping(kafka_bootstrap, options={"no.such.option": "1"})


class TestCommand:
    @pytest.fixture
    def millrace(self, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
        env = {key: value for key, value in os.environ.items() if key != "KAFKA_BOOTSTRAP_SERVERS"}
        env["MILLRACE_HOME"] = str(tmp_path / "home")

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-c", "from millrace.cli import main; main()", "kafka", *arguments]
            return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)

        return run

    def test_start_status_topics_stop(
        self, millrace: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, silent_port: int
    ) -> None:
        assert millrace("status").returncode == 1
        address = f"127.0.0.1:{silent_port}"
        try:
            started = millrace("start", "--port", str(silent_port))
            assert (started.returncode, started.stderr) == (0, "")
            assert f"broker ready: {address}" in started.stdout
            create_topics(address, {"orders": TopicSpec(2)})
            produce(address, "orders", ["a", "b", "c"])

            status = millrace("status")
            assert status.returncode == 0
            assert address in status.stdout
            assert "topics: orders" in status.stdout
            assert "orders: 2 partitions, end offset 3" in millrace("topics").stdout
            assert f"already runs: {address}" in millrace("start").stdout
            other = millrace("start", "--data-dir", str(tmp_path / "other"))
            assert (other.returncode, len(other.stderr.splitlines())) == (2, 1)
        finally:
            stopped = millrace("stop")
        assert stopped.returncode == 0
        assert not listens(address)
        found = re.search(r"pid: (\d+)", status.stdout)
        assert found is not None
        assert gone(int(found[1]))
        assert millrace("status").returncode == 1
        assert "no broker runs" in millrace("stop").stdout

    def test_in_the_foreground_it_ends_on_sigterm_with_exit_code_0(
        self, tmp_path: Path, silent_port: int
    ) -> None:
        code = "from millrace.cli import main; main()"
        command = [sys.executable, "-c", code, "kafka", "start", "--foreground", "--port", str(silent_port)]
        env = os.environ | {"MILLRACE_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            assert f"broker ready: 127.0.0.1:{silent_port}" in running.stdout.readline()
            running.stdout.readline()
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) == 0
        assert not listens(f"127.0.0.1:{silent_port}")

    def test_topics_without_a_broker_say_what_to_do(
        self, millrace: Callable[..., subprocess.CompletedProcess[str]]
    ) -> None:
        answer = millrace("topics")
        assert answer.returncode == 2
        assert re.fullmatch(r"millrace: no broker runs; start one with .*\n", answer.stderr)

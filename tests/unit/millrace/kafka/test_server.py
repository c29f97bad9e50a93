"""What an embedded broker is told, where its files go, and which started broker a command finds again."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from millrace.errors import UserError
from millrace.kafka import detached
from millrace.kafka import launch as launching
from millrace.kafka.broker import EmbeddedBroker
from millrace.kafka.detached import DetachedBroker
from millrace.kafka.formatting import Formatted
from millrace.kafka.launch import BrokerStartFailed, free_port, launch
from millrace.kafka.server import Server, new_id
from millrace.local.class_archive import archive_flags, keep_archive
from millrace.local.home import home
from millrace.local.java_check import Java
from millrace.local.processes import DetachedProcess

JAVA = Java(Path("/usr/bin/java"), 17, "17.0.1")


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "place", tmp_path / "logs" / "broker.log", 19092, 19093)


class TestServer:
    def test_clients_reach_it_on_this_machine_only(self, server: Server) -> None:
        assert server.bootstrap == "127.0.0.1:19092"
        listeners = server.properties()["listeners"]
        assert listeners == "PLAINTEXT://127.0.0.1:19092,CONTROLLER://127.0.0.1:19093"

    def test_what_is_sent_and_kept_only_its_user_can_read(self, server: Server) -> None:
        before = os.umask(0o022)
        try:
            server.write()
        finally:
            os.umask(before)
        assert {server.root.stat().st_mode & 0o077, server.data.stat().st_mode & 0o077} == {0}

    def test_given_settings_win(self, server: Server) -> None:
        changed = dataclasses.replace(server, settings={"log.retention.ms": "1000"})
        assert server.properties()["log.retention.ms"] == "-1"
        assert changed.properties()["log.retention.ms"] == "1000"

    def test_a_path_survives_the_settings_file(self, tmp_path: Path) -> None:
        odd = Server(tmp_path / "a\\b c", tmp_path / "log", 1, 2)
        odd.write()
        assert f"log.dirs={tmp_path}/a\\\\b c/data\n" in odd.properties_file.read_text()

    def test_a_directory_that_cannot_be_made_is_a_user_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(UserError, match="choose another data directory"):
            Server(tmp_path / "file" / "below", tmp_path / "log", 1, 2).write()

    def test_the_cluster_id_is_that_of_formatted_data(self, server: Server) -> None:
        server.write()
        assert server.cluster_id() is None
        (server.data / "meta.properties").write_text("#comment\nnode.id=1\ncluster.id=abc\n")
        assert server.cluster_id() == "abc"

    def test_data_is_in_use_while_another_process_holds_its_lock(self, server: Server) -> None:
        assert not server.is_in_use()
        server.write()
        lock = server.data / ".lock"
        lock.touch()
        assert not server.is_in_use()
        script = (
            "import fcntl, sys; lock = open(sys.argv[1], 'r+b'); fcntl.lockf(lock, fcntl.LOCK_EX)\n"
            "print('locked', flush=True); sys.stdin.read()"
        )
        holder = subprocess.Popen(
            [sys.executable, "-c", script, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"locked\n"
            assert server.is_in_use()
        assert not server.is_in_use()

    def test_cluster_ids_differ_and_are_no_options(self) -> None:
        made = {new_id() for _ in range(300)}
        assert len(made) == 300
        assert not [one for one in made if one.startswith("-")]
        assert {len(base64.urlsafe_b64decode(one + "==")) for one in made} == {16}


class TestFormatted:
    """A directory that is formatted by a copy of what Kafka's tool wrote once."""

    @pytest.fixture
    def formatted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Formatted:
        monkeypatch.setenv("MILLRACE_CACHE", str(tmp_path / "cache"))
        jar = tmp_path / "a.jar"
        jar.write_bytes(b"1")
        return Formatted(JAVA, [jar])

    def new(self, root: Path, settings: dict[str, str] | None = None) -> Server:
        server = Server(root, root / "broker.log", 9092, 9093, settings or {})
        server.write()
        return server

    def by_tool(self, server: Server, about: str = "node.id=1\ndirectory.id=d0\ncluster.id=c0\n") -> None:
        (server.data / "bootstrap.checkpoint").write_bytes(b"features")
        (server.data / "meta.properties").write_text(f"#\n{about}")

    def test_a_copy_has_ids_of_its_own(self, formatted: Formatted, tmp_path: Path) -> None:
        first, *others = [self.new(tmp_path / name) for name in "abc"]
        assert formatted.copy_to(first) is None
        self.by_tool(first)
        formatted.keep(first)
        ids = {"d0", "c0"}
        for server in others:
            cluster = formatted.copy_to(server)
            assert cluster == server.cluster_id()
            assert (server.data / "bootstrap.checkpoint").read_bytes() == b"features"
            lines = (server.data / "meta.properties").read_text().splitlines()
            assert [line.partition("=")[0] for line in lines] == [
                "#",
                "node.id",
                "directory.id",
                "cluster.id",
            ]
            assert lines[1] == "node.id=1"
            ids |= {line.partition("=")[2] for line in lines[2:]}
        assert len(ids) == 6

    def test_what_is_not_as_usual_is_left_to_the_tool(self, formatted: Formatted, tmp_path: Path) -> None:
        first, other = self.new(tmp_path / "a"), self.new(tmp_path / "b")
        self.by_tool(first)
        (first.data / "more").touch()
        formatted.keep(first)
        assert formatted.copy_to(other) is None, "the tool writes more than is known"
        (first.data / "more").unlink()
        unusual = {"a.setting": "1"}
        kept_by = self.new(tmp_path / "c", unusual)
        self.by_tool(kept_by)
        formatted.keep(kept_by)
        assert formatted.copy_to(other) is None, "the tool may look at settings"
        self.by_tool(first, "node.id=1\ncluster.id=c0\n")
        formatted.keep(first)
        assert formatted.copy_to(other) is None, "an id stands elsewhere"
        assert list(other.data.iterdir()) == []
        self.by_tool(first)
        formatted.keep(first)
        assert formatted.copy_to(self.new(tmp_path / "d", unusual)) is None
        assert formatted.copy_to(other)

    def test_others_could_have_changed_it(self, formatted: Formatted, tmp_path: Path) -> None:
        first = self.new(tmp_path / "a")
        self.by_tool(first)
        formatted.keep(first)
        for file in (tmp_path / "cache").rglob("meta.properties"):
            file.chmod(0o666)
        assert formatted.copy_to(self.new(tmp_path / "b")) is None

    def test_several_at_once_leave_whole_files(self, formatted: Formatted, tmp_path: Path) -> None:
        servers = [self.new(tmp_path / f"s{n}") for n in range(8)]
        for server in servers:
            self.by_tool(server)
            (server.data / "bootstrap.checkpoint").write_bytes(b"features" * 50_000)
        done = threading.Event()
        torn: list[int] = []

        def look() -> None:
            while not done.is_set():
                with contextlib.suppress(FileNotFoundError):
                    if (size := (formatted._folder / "bootstrap.checkpoint").stat().st_size) != 400_000:
                        torn.append(size)

        looking = threading.Thread(target=look)
        looking.start()
        with ThreadPoolExecutor(8) as pool:
            for _ in range(20):
                list(pool.map(formatted.keep, servers))
        done.set()
        looking.join()
        assert not torn
        kept = [file.name for file in (tmp_path / "cache").rglob("*") if file.is_file()]
        assert sorted(kept) == ["bootstrap.checkpoint", "meta.properties"]

    def test_a_cache_that_cannot_be_written_is_no_reason_not_to_start(
        self, formatted: Formatted, tmp_path: Path
    ) -> None:
        (tmp_path / "cache").write_bytes(b"no folder")
        first = self.new(tmp_path / "a")
        self.by_tool(first)
        formatted.keep(first)
        assert formatted.copy_to(self.new(tmp_path / "b")) is None
        formatted.forget()

    def test_it_is_forgotten_when_a_broker_does_not_start(self, formatted: Formatted, tmp_path: Path) -> None:
        first = self.new(tmp_path / "a")
        self.by_tool(first)
        formatted.keep(first)
        formatted.forget()
        assert formatted.copy_to(self.new(tmp_path / "b")) is None
        formatted.forget()


class TestDamagedCopy:
    """A broker that ends at its start: what it began with may be damaged."""

    @pytest.fixture
    def began_with(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Have a broker start if its directory is as the tool leaves it; returns how each one's was."""
        monkeypatch.setenv("MILLRACE_CACHE", str(tmp_path / "cache"))
        jar = tmp_path / "a.jar"
        jar.write_bytes(b"1")
        began_with: list[str] = []

        def by_tool(server: Server, *_: Any) -> str:
            (server.data / "bootstrap.checkpoint").write_bytes(b"whole")
            (server.data / "meta.properties").write_text("directory.id=d0\ncluster.id=c0\n")
            return "c0"

        def await_ready(server: Server, *_: Any) -> None:
            began_with.append((server.data / "bootstrap.checkpoint").read_text())
            if began_with[-1] != "whole":
                raise BrokerStartFailed("the broker ended while starting")

        monkeypatch.setattr(launching, "check_java", lambda _: JAVA)
        monkeypatch.setattr(launching, "ensure_jars", lambda _: {"broker": [jar]})
        monkeypatch.setattr(launching, "archive_flags", lambda *_, **__: [])
        monkeypatch.setattr(launching, "_format", by_tool)
        monkeypatch.setattr(launching, "_await_ready", await_ready)
        return began_with

    def start(self, root: Path) -> None:
        class Ended:
            def is_alive(self) -> bool:
                return False

            def stop(self) -> None:
                """It has ended."""

        launch(lambda _: Ended(), root=root, log_file=root / "log", temporary=True)

    def test_the_tool_formats_it_anew(self, began_with: list[str], tmp_path: Path) -> None:
        self.start(tmp_path / "a")
        (kept,) = (tmp_path / "cache").rglob("bootstrap.checkpoint")
        kept.write_text("half")
        self.start(tmp_path / "b")
        self.start(tmp_path / "c")
        assert began_with == ["whole", "half", "whole", "whole"]

    def test_what_the_tool_has_formatted_is_not_tried_again(
        self, began_with: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(*_: Any) -> None:
            began_with.append("tried")
            raise BrokerStartFailed("no room")

        monkeypatch.setattr(launching, "_await_ready", fails)
        with pytest.raises(BrokerStartFailed, match="no room"):
            self.start(tmp_path / "a")
        assert began_with == ["tried"]


class TestClassArchive:
    @pytest.fixture(autouse=True)
    def _cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MILLRACE_CACHE", str(tmp_path / "cache"))

    @pytest.fixture
    def jar(self, tmp_path: Path) -> Path:
        path = tmp_path / "a.jar"
        path.write_bytes(b"1")
        return path

    def written(self, flags: list[str]) -> Path:
        (flag,) = flags
        path = Path(flag.removeprefix("-XX:ArchiveClassesAtExit="))
        path.write_bytes(b"classes")
        return path

    def test_the_first_broker_writes_it_and_the_second_uses_it(self, jar: Path, tmp_path: Path) -> None:
        path = self.written(archive_flags(JAVA, [jar], write_below=tmp_path))
        keep_archive(tmp_path, 143)
        (flag,) = archive_flags(JAVA, [jar], write_below=tmp_path)
        assert flag == f"-XX:SharedArchiveFile={tmp_path}/cache/classes/{path.name}"

    def test_one_that_others_can_have_written_is_not_run(self, jar: Path, tmp_path: Path) -> None:
        self.written(archive_flags(JAVA, [jar], write_below=tmp_path))
        keep_archive(tmp_path, 143)
        (tmp_path / "cache" / "classes").chmod(0o777)
        assert archive_flags(JAVA, [jar]) == []

    def test_it_is_not_written_unless_wanted(self, jar: Path) -> None:
        assert archive_flags(JAVA, [jar]) == []

    def test_what_a_killed_broker_wrote_is_not_used(self, jar: Path, tmp_path: Path) -> None:
        self.written(archive_flags(JAVA, [jar], write_below=tmp_path))
        keep_archive(tmp_path, -9)
        assert archive_flags(JAVA, [jar]) == []

    def test_another_java_or_a_changed_jar_has_another_one(self, jar: Path, tmp_path: Path) -> None:
        self.written(archive_flags(JAVA, [jar], write_below=tmp_path))
        keep_archive(tmp_path, 0)
        assert archive_flags(JAVA, [jar]) != []
        assert archive_flags(dataclasses.replace(JAVA, version="17.0.2"), [jar]) == []
        jar.write_bytes(b"22")
        assert archive_flags(JAVA, [jar]) == []

    def test_a_cache_that_cannot_be_written_does_no_harm(self, jar: Path, tmp_path: Path) -> None:
        (tmp_path / "cache").touch()
        self.written(archive_flags(JAVA, [jar], write_below=tmp_path))
        keep_archive(tmp_path, 143)


class TestDetached:
    @pytest.fixture
    def running(self, tmp_path: Path) -> DetachedBroker:
        """A broker whose process is this test's own."""
        me = DetachedProcess(os.getpid(), psutil.Process().create_time())
        return DetachedBroker("127.0.0.1:19092", me, tmp_path / "data", tmp_path / "log")

    def note(self, directory: Path, broker: DetachedBroker) -> None:
        detached._write(directory / "broker.json", broker)

    def test_a_broker_that_runs_is_found_again(self, tmp_path: Path, running: DetachedBroker) -> None:
        self.note(tmp_path, running)
        assert detached.find(tmp_path) == running

    def test_a_process_that_only_has_the_same_id_is_not_found_and_not_stopped(
        self, tmp_path: Path, running: DetachedBroker
    ) -> None:
        former = DetachedProcess(os.getpid(), running.process.started_at - 100)
        self.note(tmp_path, dataclasses.replace(running, process=former))
        assert detached.find(tmp_path) is None
        assert detached.stop(tmp_path) is None  # or this test would end here

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"bootstrap": 1, "process": {"a": 1}})])
    def test_a_damaged_note_means_that_none_runs(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "broker.json").write_text(text)
        assert detached.find(tmp_path) is None

    def test_stopping_where_none_ever_ran_makes_no_folder(self, tmp_path: Path) -> None:
        assert detached.stop(tmp_path / "none") is None
        assert not (tmp_path / "none").exists()

    def test_a_second_start_tells_of_the_first(self, tmp_path: Path, running: DetachedBroker) -> None:
        self.note(tmp_path, running)
        assert detached.start(directory=tmp_path) == (running, False)
        assert detached.start(directory=tmp_path, port=19092) == (running, False)

    def test_a_second_start_at_another_place_is_refused(
        self, tmp_path: Path, running: DetachedBroker
    ) -> None:
        self.note(tmp_path, running)
        for other in ({"port": 9092}, {"port": 2}, {"data_dir": tmp_path / "other"}):
            with pytest.raises(UserError, match=r"runs already at 127\.0\.0\.1:19092"):
                detached.start(directory=tmp_path, **other)

    def test_two_commands_at_once_wait_for_each_other(self, tmp_path: Path) -> None:
        with (
            detached._exclusive(tmp_path),
            (tmp_path / "lock").open("w") as second,
            pytest.raises(BlockingIOError),
        ):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_broker_that_was_not_started_has_no_address() -> None:
    with pytest.raises(RuntimeError, match="has not been started"):
        _ = EmbeddedBroker().bootstrap


def test_the_run_time_folder_is_the_projects_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert home({}) == tmp_path / ".millrace"
    assert home({"MILLRACE_HOME": "/srv/m"}) == Path("/srv/m")


def test_clients_and_controller_never_get_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = [5001, 5001, 5002]

    class Forgetful(socket.socket):
        """Binds nothing, and is given a port again that was let go."""

        def bind(self, address: object) -> None:
            assert address == ("127.0.0.1", 0)

        def getsockname(self) -> tuple[str, int]:
            return "127.0.0.1", offered.pop(0)

    monkeypatch.setattr(socket, "socket", Forgetful)
    client = free_port()
    assert (client, free_port(unlike=client)) == (5001, 5002)

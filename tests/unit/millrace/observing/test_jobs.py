"""Records of jobs: what runs is told from what was killed, and nobody else's process is taken for a job."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from millrace.observing.jobs import find_jobs, read_job, record_path, recorded_job, write_atomically
from tests.unit.millrace.observing.cases import another_process, record


def test_a_job_is_found_while_it_runs_and_gone_when_it_has_ended(tmp_path: Path) -> None:
    with recorded_job(record(), tmp_path):
        (found,) = find_jobs(tmp_path)
        assert (found.state, found.record) == ("running", record())
    assert find_jobs(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_two_roots_of_one_app_are_two_jobs(tmp_path: Path) -> None:
    one, other = record("/data/a"), record("/data/b")
    with recorded_job(one, tmp_path), recorded_job(other, tmp_path):
        assert {job.record for job in find_jobs(tmp_path)} == {one, other}


def test_a_killed_job_has_died(tmp_path: Path) -> None:
    with another_process() as (process, started):
        killed = record(pid=process.pid, process_started=started)
        path = record_path(tmp_path, "fraud", killed.root)
        write_atomically(path, msgspec.json.encode(killed))
        (found,) = find_jobs(tmp_path)
        assert found.state == "running"
        process.kill()
        process.wait()
        (found,) = find_jobs(tmp_path)
        assert (found.state, found.record) == ("died", killed)


def test_a_process_with_the_id_of_a_killed_job_is_not_taken_for_it(tmp_path: Path) -> None:
    reused = record(process_started=record().process_started - 3_600)
    write_atomically(tmp_path / "fraud-0.json", msgspec.json.encode(reused))
    assert [job.state for job in find_jobs(tmp_path)] == ["died"]


def test_a_job_of_another_machine_is_neither_running_nor_dead(tmp_path: Path) -> None:
    write_atomically(tmp_path / "fraud-0.json", msgspec.json.encode(record(host="elsewhere.example", pid=1)))
    assert [job.state for job in find_jobs(tmp_path)] == ["elsewhere"]


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b'{"app": 3}', b"[]", b"\xff\xfe", msgspec.json.encode(record(form=99)),
     msgspec.json.encode(record(pid=0)), msgspec.json.encode(record(pid=-5)),
     msgspec.json.encode(record(root="/a\0b"))],
)  # fmt: skip
def test_what_is_no_record_is_said_to_be_unreadable(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "fraud-0.json").write_bytes(data)
    (found,) = find_jobs(tmp_path)
    assert (found.state, found.record) == ("unreadable", None)


def test_a_folder_of_that_name_is_unreadable_and_others_are_no_records(tmp_path: Path) -> None:
    (tmp_path / "fraud-1.json").mkdir()
    (tmp_path / ".fraud-2.json.7.part").write_bytes(b"{")
    (tmp_path / "notes.txt").write_text("hello")
    assert [job.state for job in find_jobs(tmp_path)] == ["unreadable"]
    assert find_jobs(tmp_path / "nothing") == []
    assert read_job(tmp_path / "nothing.json") is None


def test_an_older_job_does_not_remove_the_record_of_a_newer_one(tmp_path: Path) -> None:
    with recorded_job(record(), tmp_path):
        newer = record(began_ms=5)
        write_atomically(record_path(tmp_path, "fraud", newer.root), msgspec.json.encode(newer))
    assert [job.record for job in find_jobs(tmp_path)] == [newer]


def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    write_atomically(path, b"at first")
    with path.open("rb") as reader:
        write_atomically(path, b"before")
        assert reader.read() == b"at first", "who reads meanwhile has all of what it was"
    assert path.read_bytes() == b"before"
    os.chmod(tmp_path, 0o500)
    try:
        if not os.access(tmp_path, os.W_OK):  # everybody but root
            with pytest.raises(OSError, match="denied"):
                write_atomically(path, b"after")
            assert path.read_bytes() == b"before"
    finally:
        os.chmod(tmp_path, 0o700)
    folder = tmp_path / "folder.json"
    folder.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(folder, b"after")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder.json", "one.json"]

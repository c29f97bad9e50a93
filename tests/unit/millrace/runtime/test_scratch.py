"""Temporary folders: removed at the end, and by the next owner where the last one was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from millrace.runtime.scratch import remove_orphans, scratch_folder

_HOLDER = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from millrace.runtime.scratch import scratch_folder
with scratch_folder("own-") as folder:
    (folder / "data").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_removed_also_after_an_error():
    made = []

    def fails():
        with scratch_folder("own-") as folder:
            made.append(folder)
            (folder / "data").write_text("x")
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fails()
    assert not made[0].exists()


def test_what_a_killed_process_left_is_removed_by_the_next_and_a_living_ones_is_not(temporary: Path):
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(temporary)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        left = Path(holder.stdout.readline().strip())
        try:
            assert (left / "data").exists()
            assert remove_orphans("own-") == []
        finally:
            holder.send_signal(signal.SIGKILL)
            holder.wait(10)

    assert left.exists()
    with scratch_folder("own-") as folder:
        assert not left.exists()
        assert folder.exists()


def test_folders_of_others_are_left_alone(temporary: Path):
    (temporary / "own-other").mkdir()
    (temporary / "else").mkdir()

    assert remove_orphans("own-") == []
    assert (temporary / "own-other").exists()


def test_a_link_with_such_a_name_leads_to_nothing_that_is_removed(temporary: Path):
    """As another user can put it there: to a folder of ours that happens to have a lock of this name."""
    precious = temporary / "precious"
    precious.mkdir()
    (precious / "owner.lock").touch()
    (precious / "data").write_text("x")
    (temporary / "own-link").symlink_to(precious)
    trap = temporary / "own-trap"
    trap.mkdir()
    (trap / "owner.lock").symlink_to(precious / "data")

    assert remove_orphans("own-") == []
    assert (precious / "data").read_text() == "x"
    assert trap.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_another_user_is_not_touched(temporary: Path):
    theirs = temporary / "own-theirs"
    theirs.mkdir()
    (theirs / "owner.lock").touch()
    os.chown(theirs, 65_534, 65_534)

    assert remove_orphans("own-") == []
    assert theirs.exists()


def test_only_its_owner_can_look_into_a_folder(temporary: Path):
    before = os.umask(0)
    try:
        with scratch_folder("own-") as folder:
            assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)

"""Children that are killed: at the moment that is asked for, with all that they started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from millrace.testing.killing import ChildFailed, killed_child

SCRIPT = """
import sys, time
from pathlib import Path
from millrace.testing.killing import killed_child

def hang(folder):
    (folder / "hangs").touch()
    time.sleep(60)

if __name__ == "__main__":
    here = Path(sys.argv[1])
    killed_child(hang, here, when=(here / "hangs").exists)
    print("killed")
"""


def test_what_a_script_defines_is_killed_when_the_moment_has_come(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, tmp_path], cwd="/", capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("killed\n", "")
    here = str(tmp_path)
    assert [p for p in psutil.process_iter(["cmdline"]) if here in " ".join(p.info["cmdline"] or ())] == []


def test_a_child_that_ends_before_it_is_killed_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match=r"ended or hangs before it was killed: .*Error"):
        killed_child(os.remove, tmp_path, when=lambda: False)  # a folder is not removed so

"""What a shell is told when it completes a command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from millrace.cli import build


def completed(line: str, word: int) -> list[str]:
    """Ask as bash does."""
    asks = {"_MILLRACE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(word)}
    command = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'millrace'; from millrace.cli import main; main()",
    ]
    done = subprocess.run(
        command, env=os.environ | asks, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_and_options_are_completed() -> None:
    assert {"state", "status", "stop"} <= set(completed("millrace st", 1))
    assert "demo" not in completed("millrace st", 1)
    assert completed("millrace demo --dura", 2) == ["--duration"]
    assert "fraud" in completed("millrace rules fr", 2)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_each_shell_has_a_script_that_asks(shell: str) -> None:
    done = CliRunner().invoke(build(), ["completion", shell])
    assert done.exit_code == 0, done.output
    assert "_MILLRACE_COMPLETE" in done.output
    assert f"complete_{shell}" in done.output

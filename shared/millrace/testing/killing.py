"""A child process that is killed, as a machine that fails would end it."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from millrace.errors import MillraceError
from millrace.local.processes import Child

_PATIENCE_S: Final = 180.0


class ChildFailed(MillraceError):
    """The child process did not come to the point where it is to be killed."""


def killed_child(job: Callable[[Path], None], folder: Path, when: Callable[[], bool]) -> None:
    """Run ``job(folder)`` in a process of its own, and kill it (SIGKILL, with all that it started).

    Args:
        job: A function of a module or of a script's file, told by its name.
        folder: What it is given; its output is in ``child.log`` there.
        when: Asked again and again: whether the moment has come.

    Raises:
        ChildFailed: It has ended by itself before, or the moment does not come.
    """
    name, paths = job.__module__, [os.environ.get("PYTHONPATH")]
    if name == "__main__":  # the file of a script, which both the child and Spark's workers import
        script = Path(sys.modules[name].__file__ or "").absolute()
        name, paths = script.stem, [str(script.parent), *paths]
    code = f"import pathlib, {name} as m; m.{job.__name__}(pathlib.Path({str(folder)!r}))"
    log = folder / "child.log"
    deadline = time.monotonic() + _PATIENCE_S
    # Paths of sockets are short by law, so its own temporary folder is not below the other one. What a
    # killed process leaves in it goes here.
    with tempfile.TemporaryDirectory(prefix="m-") as scratch:
        java = f"-Djava.io.tmpdir={scratch} -XX:-UsePerfData"
        env = {**os.environ, "TMPDIR": scratch, "JAVA_TOOL_OPTIONS": java}
        env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        with Child([sys.executable, "-c", code], log_file=log, env=env) as child:
            while not when():
                if not child.is_alive() or time.monotonic() > deadline:
                    last = log.read_text("utf-8", errors="replace").strip().splitlines()[-1:]
                    raise ChildFailed(f"the child ended or hangs before it was killed: {' '.join(last)}")
                time.sleep(0.01)
            child.kill()

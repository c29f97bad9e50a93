"""Tail of a log: its last lines, and those that come."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_BLOCK: Final = 64 << 10
_LOOK_S: Final = 0.2


def last_lines(path: Path, count: int) -> tuple[list[str], int]:
    """Return the last lines of a file, and how far was read; of a line without an end nothing.

    Args:
        path: The file.
        count: How many.
    """
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        data, at = b"", end
        while at > 0 and data.count(b"\n") <= count:
            step = min(_BLOCK, at)
            at -= step
            file.seek(at)
            data = file.read(step) + data
    whole = data[: data.rfind(b"\n") + 1]
    lines = whole.decode(errors="replace").split("\n")[:-1]
    return lines[len(lines) - min(count, len(lines)) :], end - (len(data) - len(whole))


def following(
    path: Path, at: int, goes_on: Callable[[], bool], sleep: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Yield the lines that are added to a file, also when a new one takes its place.

    Args:
        path: The file; it may not be there yet.
        at: From where on.
        goes_on: Whether more is to come; asked before each look, so that the last lines are not lost.
        sleep: Waits for some seconds.
    """
    file = None
    rest = b""
    try:
        while True:
            more = goes_on()
            if file is None:
                try:
                    file = path.open("rb")
                    file.seek(at)
                except FileNotFoundError:
                    pass
            if file is not None:
                rest += file.read()
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace")
                if _is_another(path, file.fileno()) and not file.peek(1):
                    file.close()
                    file, at = None, 0
                    continue
            if not more:
                return
            sleep(_LOOK_S)
    finally:
        if file is not None:
            file.close()


def _is_another(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino != os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False

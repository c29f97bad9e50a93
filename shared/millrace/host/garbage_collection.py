"""Python's garbage collector, put off while a batch is at work."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Put off the search for reference cycles.

    A batch's entries and emissions stay until its end. The collector, which is called for every 700
    objects more, would look at them again and again and find nothing: a quarter of all time. What
    cycles a process makes are found after the batch.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

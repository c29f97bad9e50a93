"""Ctrl-C and SIGTERM as a request to end, for commands that go on until they are told to."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def stop_signals(told: Callable[[str], None] = lambda name: None) -> Iterator[threading.Event]:
    """Give what is set when SIGINT or SIGTERM comes while the block runs; a second SIGINT interrupts at once.

    Outside of the main thread no signal is caught.

    Args:
        told: Called with the name of each signal, in its handler.
    """
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def handle(number: int, _frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        came.set()
        told(signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

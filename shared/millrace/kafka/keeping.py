"""Supervision of an embedded broker: started again, with its data and address, when it has ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from millrace.errors import MillraceError

if TYPE_CHECKING:
    from millrace.kafka.broker import EmbeddedBroker

log = logging.getLogger(__name__)

#: How often it is looked at, seconds.
_EVERY_S: Final = 0.5


class KeptBroker:
    """Watches over a broker while the block runs; it must run when the block begins.

    Args:
        broker: The broker.
        told: Told in a line of each start.
        every_s: How often it is looked at, seconds.
    """

    def __init__(
        self,
        broker: EmbeddedBroker,
        *,
        told: Callable[[str], None] = lambda text: log.warning("%s", text),
        every_s: float = _EVERY_S,
    ) -> None:
        self._broker, self._told, self._every_s = broker, told, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millrace-broker-kept", daemon=True)
        #: How often it was started again.
        self.restarts = 0
        #: Why it was given up; ``None``: it was not.
        self.error: MillraceError | None = None

    def check(self) -> None:
        """Raise why it was given up, if it was."""
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            if self._broker.is_alive():
                continue
            self._told("the broker has ended; it is started again")
            try:
                self._broker.restart()
                self.restarts += 1
            except MillraceError as error:
                # One with a folder of its own has deleted it: another would serve nothing.
                self.error = error
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

"""The committed state of a query, kept up with by a thread."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from millrace.errors import MillraceError
from millrace.inspect.checkpoint import Checkpoint
from millrace.inspect.committed import CommittedState

_log = logging.getLogger("millrace.serving")


class NotCommittedYet(MillraceError):
    """The query has committed nothing that could be read."""


class Following:
    """Goes along with a query.

    Args:
        find: Returns the checkpoint; it raises a :class:`MillraceError` as long as there is none.
        key_file: The file of keys, if state is encrypted.
        every_s: How often a new batch is looked for, seconds.
        then: Called after it has gone on, with the state; in the thread.

    Example:
        >>> with Following(lambda: locate("fraud")).at_work() as following:  # doctest: +SKIP
        ...     following.state.batch
    """

    def __init__(
        self,
        find: Callable[[], Checkpoint],
        *,
        key_file: str | None = None,
        every_s: float = 0.2,
        then: Callable[[CommittedState], None] = lambda _: None,
    ) -> None:
        self._find = find
        self._key_file = key_file
        self._every_s = every_s
        self._then = then
        self._state: CommittedState | None = None
        self._end = threading.Event()
        self._why = "the query has committed no batch yet"
        self._told = ""

    @property
    def state(self) -> CommittedState:
        """The state.

        Raises:
            NotCommittedYet: There is none.
        """
        if self._state is None:
            raise NotCommittedYet(self._why)
        return self._state

    def look(self) -> bool:
        """Go on to the last committed batch; return whether there is a new one."""
        try:
            if self._state is None:
                self._state = CommittedState(self._find(), key_file=self._key_file)
            else:
                before = self._state.batch
                if self._state.move_to() == before:
                    return False
            self._then(self._state)
        except (MillraceError, OSError, ValueError) as error:
            # Half a checkpoint is put in its place, a disk is away: what was read is still true of its batch.
            self._why = str(error)
            if self._why != self._told:
                _log.warning("cannot go on: %s", error)
            self._told = self._why
            return False
        self._told = ""
        return True

    @contextlib.contextmanager
    def at_work(self) -> Iterator[Following]:
        """Keep up while the block runs."""
        self.look()
        thread = threading.Thread(target=self._run, name="millrace-following", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._end.set()
            thread.join(10)

    def _run(self) -> None:
        while not self._end.wait(self._every_s):
            self.look()

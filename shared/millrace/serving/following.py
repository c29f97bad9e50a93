"""Committed state of a query, kept up with by a thread."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from millrace.checkpoints.checkpoint import Checkpoint
from millrace.checkpoints.committed import CommittedState
from millrace.errors import MillraceError

_log = logging.getLogger("millrace.serving")


class NotCommittedYet(MillraceError):
    """The query has committed nothing that could be read."""


class Following:
    """Goes along with a query.

    Args:
        find: Returns the checkpoint; it raises a :class:`MillraceError` as long as there is none.
        key_file: The file of keys, if state is encrypted.

    Example:
        >>> following = Following(lambda: locate("fraud"))  # doctest: +SKIP
        >>> with keeping_up(following.look):  # doctest: +SKIP
        ...     following.state.batch
    """

    def __init__(self, find: Callable[[], Checkpoint], *, key_file: str | None = None) -> None:
        self._find = find
        self._key_file = key_file
        self._state: CommittedState | None = None

    @property
    def state(self) -> CommittedState:
        """The state.

        Raises:
            NotCommittedYet: There is none.
        """
        if self._state is None:
            raise NotCommittedYet("the query has committed no batch yet")
        return self._state

    def look(self) -> None:
        """Go on to the last committed batch.

        Raises:
            MillraceError: It cannot be read.
        """
        if self._state is None:
            self._state = CommittedState(self._find(), key_file=self._key_file)
        else:
            self._state.move_to()


@contextlib.contextmanager
def keeping_up(look: Callable[[], object], every_s: float = 0.2) -> Iterator[None]:
    """Have something looked for again and again while the block runs; the first time before it begins.

    Args:
        look: Goes on to the last committed batch. What it raises is told once: half a checkpoint is put in
            its place, a disk is away, and what was read before is still true of its batch.
        every_s: How often, seconds.
    """
    end, told = threading.Event(), ""

    def once() -> None:
        nonlocal told
        try:
            look()
        except (MillraceError, OSError, ValueError) as error:
            if str(error) != told:
                _log.warning("cannot go on: %s", error)
            told = str(error)
        except Exception:  # a thread that ends would leave the answers old for ever
            _log.exception("cannot go on")
        else:
            told = ""

    def run() -> None:
        while not end.wait(every_s):
            once()

    once()
    thread = threading.Thread(target=run, name="millrace-following", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(10)

"""Supervision of a job: it is started again when it ends without being asked to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from millrace.errors import MillraceError
from millrace.runtime.monitor import QueryMonitor

if TYPE_CHECKING:
    from typing import Any

log = logging.getLogger(__name__)

#: A job that fails so often in a row without a batch between is given up.
MOST_FAILURES: Final = 6
#: How long it waits before it starts again, seconds: doubled each time, to so much at most.
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 15.0


class AJob(Protocol):
    """What is asked of a job: see :class:`millrace.runtime.job.Job`."""

    settings: Any
    session_ready: threading.Event
    started: threading.Event

    def run(self) -> None:
        """Run until the end, a stop or an error."""

    def stop(self) -> None:
        """Ask for a graceful stop."""

    def working(self) -> bool:
        """Return whether a batch runs or waits to be run."""

    def pass_time(self, to_ms: int) -> bool:
        """Tell the query that event time has come so far."""

    def wake(self) -> bool:
        """Have a batch run without events."""


class KeptJob:
    """Runs jobs of one checkpoint one after the other, until one ends as it was asked to.

    What a job has committed stands, and the next one goes on after it: nothing is lost and nothing comes
    twice, as after any restart.

    Args:
        name: What it is called in what is told.
        make: Makes a job; called for each start.
        monitor: Is fed with the progress of all of them: a batch between two failures begins the count anew.
        told: Told in a line of each start after the first.
        wait: Waits for so many seconds, or until the event is set; returns whether it is.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], AJob],
        monitor: QueryMonitor,
        *,
        told: Callable[[str], None] = lambda text: log.warning("%s", text),
        wait: Callable[[threading.Event, float], bool] = lambda event, seconds: event.wait(seconds),
    ) -> None:
        self.name = name
        self._make, self._monitor, self._told, self._wait = make, monitor, told, wait
        self._asked = threading.Event()
        self._job = make()
        self._thread = threading.Thread(target=self._run, name=f"millrace-job-{name}")
        self._error: BaseException | None = None
        #: How often it was started again.
        self.restarts = 0
        #: Set when its query runs for the first time, or nothing will ever run.
        self.started = threading.Event()

    @property
    def settings(self) -> Any:
        """The settings of the job that runs."""
        return self._job.settings

    @property
    def job(self) -> AJob:
        """The job that runs, or ran last."""
        return self._job

    def start(self) -> None:
        """Start it in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask for a graceful end."""
        self._asked.set()
        self._job.stop()

    def join(self) -> None:
        """Wait for its end; raises what ended it, unless it was asked to.

        Raises:
            MillraceError: It was given up.
        """
        if self._thread.ident is not None:
            self._thread.join()
        self.check()

    def check(self) -> None:
        """Raise what it was given up for, if it was."""
        if self._error is not None:
            raise self._error

    def is_alive(self) -> bool:
        """Return whether it runs, or will run again."""
        return self._thread.is_alive()

    def working(self) -> bool:
        """Return whether a batch runs, or will: between two starts there may be work."""
        return not self._job.started.is_set() or self._job.working()

    def pass_time(self, to_ms: int) -> bool:
        """Tell the query that event time has come so far."""
        return self._job.pass_time(to_ms)

    def wake(self) -> bool:
        """Have a batch run without events."""
        return self._job.wake()

    def _run(self) -> None:
        try:
            self._keep_running()
        except BaseException as error:
            self._error = error
        finally:
            self.started.set()

    def _keep_running(self) -> None:
        failures, batches = 0, self._monitor.snapshot().batches
        while True:
            job, why = self._job, "it ended without being asked to"
            starting = threading.Thread(target=self._note_start, args=(job,), daemon=True)
            starting.start()
            try:
                job.run()
            except MillraceError as error:
                if not batches and not job.started.is_set() and not self.restarts:
                    raise  # it never ran: that is for the user to put right
                why = str(error)
            if self._asked.is_set():
                return
            done = self._monitor.snapshot().batches
            failures, batches = (1 if done > batches else failures + 1), done
            if failures >= MOST_FAILURES:
                raise MillraceError(f"{self.name} failed {failures} times in a row: {why}")
            self._told(f"{self.name}: {why}; it is started again")
            if self._wait(self._asked, min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (failures - 1))):
                return
            self.restarts += 1
            self._job = self._make()
            if self._asked.is_set():  # asked while it was made: the old job has heard of it
                return

    def _note_start(self, job: AJob) -> None:
        while not job.started.wait(0.5):
            if self._asked.is_set() or not self._thread.is_alive():
                return
        self.started.set()

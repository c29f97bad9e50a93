"""One version of an app in place of another: stop, savepoint, start; what does not fit is told before.

One writer at a time. The old version ends after its running batch, at the offsets *X* of its last commit; the
savepoint has *X*, the state as of *X*, and where the tables stood; the new version's first batch begins at
*X*. So each record is before *X*, and the old version's, or from *X* on, and the new version's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from millrace.checkpoints import positions, savepoints
from millrace.checkpoints.checkpoint import Checkpoint
from millrace.dashboard.progress import Offsets, offsets_of
from millrace.errors import MillraceError, UserError
from millrace.observing.jobs import JobRecord, jobs_folder
from millrace.observing.stopping import stop_job
from millrace.upgrading.fitting import Fit, fit_of
from millrace.upgrading.started import Started
from millrace.upgrading.starting import OUTPUT_FILE, Begun, start_and_wait

if TYPE_CHECKING:
    from millrace.checkpoints.savepoints import Savepoint
    from millrace.runtime.apps import App
    from millrace.runtime.settings import AppSettings


class Upgraded(msgspec.Struct):
    """What became of an upgrade.

    Attributes:
        app: Name of the app.
        root: Its folder.
        did: ``checked``: it would go so; ``refused``: nothing was stopped; ``stopping``: the old version ends
            after its batch, later than it was waited for; ``upgraded``; ``prepared``: the old version is
            stopped, and the caller starts the new one; ``rolled back``: the old version runs again;
            ``failed``: none runs.
        fit: How the new version takes the checkpoint.
        stopped_pid: The job that was stopped.
        savepoint: Where the savepoint is.
        batch: The last batch of the old version.
        offsets: Topic → partition → offset at which the new version began.
        pid: The job that runs now.
        first_batch: Its first batch.
        log: What it prints.
        down_s: From the stop to the first batch of what runs now, seconds.
        why: Why it is not upgraded, in a line.
    """

    app: str
    root: str
    did: Literal["checked", "refused", "stopping", "upgraded", "prepared", "rolled back", "failed"]
    fit: Fit
    stopped_pid: int | None = None
    savepoint: str | None = None
    batch: int | None = None
    offsets: Offsets = {}
    pid: int | None = None
    first_batch: int | None = None
    log: str | None = None
    down_s: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Upgrade:
    """What an upgrade goes by.

    Attributes:
        app: The app, of the new version.
        settings: Its settings.
        root: The folder of the checkpoint.
        job: The job that runs; ``None``: none does.
        before: How that was started; ``None``: none runs.
        new: How the new version is started.
        stop_s: How long the old version may take to end, s.
        start_s: How long the new one may take to its first batch, s.
        roll_back: Whether to start the old one again where the new one fails.
        foreground: Whether the caller starts the new version itself.
        state: Gives a savepoint to begin the new version with, of the same offsets as that of the old version
            which has just ended; ``None``: it begins with that one. Told in a line what is done.
    """

    app: App
    settings: AppSettings
    root: Path
    job: JobRecord | None
    before: Started | None
    new: Started
    stop_s: float = 120.0
    start_s: float = 180.0
    roll_back: bool = True
    foreground: bool = False
    state: Callable[[Callable[[str], None]], Savepoint] | None = None

    def check(self) -> Upgraded:
        """Return what would happen; nothing is touched."""
        fit = fit_of(self.app, self.settings, self.root, self.new.env)
        did: Literal["refused", "checked"] = "refused" if fit.how == "refused" else "checked"
        return Upgraded(self.app.name, str(self.root), did, fit, why=fit.why)

    def run(self, say: Callable[[str], None]) -> Upgraded:
        """Upgrade, and return what became of it.

        Args:
            say: Told in a line what is done.

        Raises:
            UserError: The job cannot be stopped, or no broker is set.
        """
        if not self.settings.kafka.bootstrap:
            raise UserError(f"{self.app.name} needs a broker: give it with --set kafka.bootstrap=HOST:PORT")
        done = self.check()
        if done.did == "refused":
            return done
        say(f"the new version fits: it goes on {_how(done.fit)}")
        began = time.monotonic()
        if self.job is not None:
            stopped = stop_job(self.job, jobs_folder(), timeout_s=self.stop_s, say=say)
            if stopped.did == "still running":
                done.did = "stopping"
                done.why = (
                    f"the old version (pid {self.job.pid}) still runs its batch after {self.stop_s:.0f} s, "
                    "and ends after it; call this again then"
                )
                return done
            done.stopped_pid = self.job.pid
        try:
            kept = self._kept(done, say)
        except MillraceError as error:
            done.did, done.why = "refused" if self.job is None else "failed", str(error)
            return self._back(done, None, say, began)
        after = kept.batch
        if self.state is not None:
            try:
                own = self.state(say)
            except MillraceError as error:
                done.did, done.why = "failed", str(error)
                return self._back(done, None, say, began)
            after = self._take(own, say)
        if self.foreground:
            done.did = "prepared"
            return done
        begun = self._start(self.new, after, say)
        if begun.batch is None:
            done.did, done.why = "failed", begun.why
            if begun.process.is_alive():
                say(f"the new version is ended (pid {begun.process.pid}): {begun.why}")
                begun.process.stop(grace_s=60.0)
            return self._back(done, kept, say, began)
        done.did = "upgraded"
        return self._runs(done, begun, began)

    def _kept(self, done: Upgraded, say: Callable[[str], None]) -> Savepoint:
        """Make the savepoint, and put it in the checkpoint's place where only that fits the new code."""
        checkpoint = Checkpoint(self.root, self.root / "checkpoint")
        name = _free_name(self.root, f"upgrade-{checkpoint.last()}")
        kept = savepoints.create(checkpoint, name=name)
        done.savepoint, done.batch = str(kept.path), kept.batch
        done.offsets = offsets_of(tuple(kept.manifest["offsets"]))
        say(f"savepoint {kept.path}: batch {kept.batch}, {kept.bytes:,} bytes")
        moved = savepoints.written_since(kept)
        if moved:
            raise UserError(
                f"{moved[0]} has rows of a batch after {kept.batch} that was not committed: the job was "
                "ended in the middle of it. Start the old version once, so that it is done, and upgrade then"
            )
        if done.fit.how == "from a savepoint" and self.state is None:
            savepoints.restore(kept, self.root, replace=True)
            say("the checkpoint is made of the savepoint: another version may go on from it")
        return kept

    def _take(self, own: Savepoint, say: Callable[[str], None]) -> int:
        """Put a savepoint in the checkpoint's place, beside the tables as they are; return its batch."""
        known = {table: positions.read_ids(file) for table, file in positions.kept_ids(self.root).items()}
        savepoints.restore(own, self.root, tables="keep", replace=True)
        positions.keep_ids(self.root, known)
        say(f"the checkpoint is made of {own.path}, batch {own.batch}")
        return own.batch

    def _start(self, started: Started, after: int, say: Callable[[str], None]) -> Begun:
        return start_and_wait(
            started, self.root, after=after, wake=self.wake, timeout_s=self.start_s, say=say
        )

    def wake(self) -> bool:
        """Ask the job for a batch without events; return whether it can be asked."""
        from millrace.host.system import Wake
        from millrace.runtime.clocks import ControlTopic

        control = self.app.topics(self.settings).control
        if control is None:
            return False
        ControlTopic(self.settings.kafka.client_options(), control).send(Wake())
        return True

    def _back(
        self, done: Upgraded, kept: Savepoint | None, say: Callable[[str], None], began: float
    ) -> Upgraded:
        """Start the old version again, where that is wanted and there is one."""
        if self.before is None or not self.roll_back:
            return done
        if self.before.is_of_this_python() and self.before.arguments == self.new.arguments:
            done.why += (
                f"; {self.before.launcher[0]} has the new version by now, so the old one cannot be started "
                "again from here"
            )
            return done
        say(f"that failed: {done.why}. The old version is started again")
        try:
            if kept is not None:
                for line in savepoints.restore(kept, self.root, tables="rollback", replace=True).done:
                    say(line)
            last = kept.batch if kept is not None else Checkpoint(self.root, self.root / "checkpoint").last()
            begun = self._start(self.before, last, say)
        except MillraceError as error:
            done.why += f"; the old version was not started again: {error}"
            return done
        if begun.batch is None:
            with contextlib.suppress(OSError):
                begun.process.stop(grace_s=60.0)
            done.why += f"; the old version did not go on either: {begun.why}"
            return done
        done.did = "rolled back"
        return self._runs(done, begun, began)

    def _runs(self, done: Upgraded, begun: Begun, began: float) -> Upgraded:
        done.pid, done.first_batch = begun.process.pid, begun.batch
        done.log, done.down_s = str(self.root / OUTPUT_FILE), round(time.monotonic() - began, 1)
        return done


def _how(fit: Fit) -> str:
    return "from the checkpoint as it is" if fit.how == "as it is" else "from a savepoint"


def _free_name(root: Path, name: str) -> str:
    """Return the name, or with a number the first that no savepoint has."""
    folder, found, number = root / savepoints.SAVEPOINTS, name, 1
    while (folder / found).exists():
        number += 1
        found = f"{name}-{number}"
    return found

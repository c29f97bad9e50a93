"""Goes on with the state of the second version: brought to the very offsets at which the first one has ended.

The first version has ended after a batch, at offsets X. The second, which ended behind it, is planned a batch
from where it is to X, as the query itself plans one, and runs that batch alone. Both have read the same
records then. If both have come to the same time as well, and say the same in all tables and topics, then what
follows from records before X has been said by the first version, and what follows from those behind is in the
state of the second: it can take the first one's place as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.checkpoints import savepoints
from millrace.checkpoints.checkpoint import Checkpoint
from millrace.dashboard.progress import Offsets, offsets_of, read_progress
from millrace.errors import UserError
from millrace.local.waiting import wait_until
from millrace.runtime.clock_files import read_status
from millrace.upgrading.starting import start_and_wait
from millrace.upgrading.trial import compare, job_in

if TYPE_CHECKING:
    from millrace.checkpoints.savepoints import Savepoint
    from millrace.runtime.apps import App
    from millrace.runtime.settings import AppSettings
    from millrace.upgrading.started import Started
    from millrace.upgrading.trial import Compared


class StateNotTaken(UserError):
    """The state of the second version cannot take the place of the first one's."""


@dataclass(frozen=True)
class OwnState:
    """What the state of a second version is brought to the line by.

    Attributes:
        app: The app.
        settings: Settings of the second version.
        blue: The folder of the first.
        green: The folder of the second, whose job has ended.
        started: How the second is started.
        start_s: How long it may take to its batch, s.
        timeout_s: How long what is waited for may take, s.
    """

    app: App
    settings: AppSettings
    blue: Path
    green: Path
    started: Started
    start_s: float = 180.0
    timeout_s: float = 120.0

    def wait_for_blue(self, say: Callable[[str], None]) -> None:
        """Wait until the first version, which runs, has committed what the second had read when it ended.

        Raises:
            StateNotTaken: It does not within the time, or does not run.
        """
        read = _read_by(self.green)

        def is_there() -> bool:
            runs = job_in(self.blue) is not None  # before: what has ended may have come there
            progress = read_progress(self.blue)
            if progress is not None and not beyond(read, progress.done):
                return True
            if not runs:
                raise StateNotTaken("the running version does not run, and has not read what the second has")
            return False

        told = "the running version still reads what the second one has read"
        if not wait_until(
            is_there, self.timeout_s, every_s=0.1, told=lambda s: say(f"{s:.0f} s so far: {told}")
        ):
            raise StateNotTaken(
                f"{told} after {self.timeout_s:.0f} s: nothing was stopped but the second one"
            )

    def __call__(self, say: Callable[[str], None]) -> Savepoint:
        """Bring the second version to where the first has ended, and return its savepoint there.

        Args:
            say: Told in a line what is done.

        Raises:
            StateNotTaken: It cannot be brought there, has come to another time, or says something else.
        """
        blue, green = (Checkpoint(root, root / "checkpoint") for root in (self.blue, self.green))
        line = blue.position(blue.last()).sources
        ends, read = offsets_of(line), _read_by(self.green)
        if read.keys() != ends.keys():
            raise StateNotTaken(
                f"the second version reads {', '.join(sorted(read))}, "
                f"the running one {', '.join(sorted(ends))}"
            )
        if ahead := beyond(read, ends):
            raise StateNotTaken(f"the second version has read {ahead} further than the running one")
        if read != ends:
            self._run_to(green, line, say)
        self._check_time(blue, green)
        found = compare(self.app, self.settings, self.green, timeout_s=self.timeout_s, say=say, at_rest=True)
        of_blue = {path.parent.name for path in self.blue.glob("tables/*/_delta_log")}
        if differ := differences(found, of_blue):
            raise StateNotTaken(f"at the same offsets the versions differ in {', '.join(differ)}")
        if new := [name for name, one in sorted(found.tables.items()) if one.green and name not in of_blue]:
            say(f"what only the second version has said so far stays in {self.green}: {', '.join(new)}")
        say(f"both have read the same and say the same, at batch {blue.last()} and {green.last()}")
        return savepoints.create(green, name=f"switch-{green.last()}")

    def _run_to(self, green: Checkpoint, line: tuple[str | None, ...], say: Callable[[str], None]) -> None:
        """Run the batch from where the second version is to the line."""
        after = green.last()
        batch = green.plan(line)
        say(f"the second version reads up to where the running one has ended: batch {batch}")
        started = replace(self.started, arguments=(*self.started.arguments, f"--until-batch={batch}"))
        begun = start_and_wait(
            started, self.green, after=after, wake=lambda: True, timeout_s=self.start_s, say=say
        )
        if begun.batch is None:
            begun.process.stop(grace_s=60.0)
            raise StateNotTaken(f"the second version did not run its batch: {begun.why}")
        began = time.monotonic()
        if not wait_until(lambda: not begun.process.is_alive(), self.timeout_s, every_s=0.1):
            begun.process.stop(grace_s=60.0)
            raise StateNotTaken(f"the second version did not end within {time.monotonic() - began:.0f} s")
        if green.last() != batch or green.position(batch).sources != line:
            raise StateNotTaken(f"the second version is at batch {green.last()}, not where it was to be")

    def _check_time(self, blue: Checkpoint, green: Checkpoint) -> None:
        times = [read_status(one.root, one.last()) for one in (blue, green)]
        marks = [None if one is None else (one.watermark, one.furthest) for one in times]
        if marks[0] is None or marks[0] != marks[1]:
            raise StateNotTaken(
                f"at the same offsets the versions have come to other times ({marks[0]} and {marks[1]}, ms): "
                "one was reading a backlog, or heard of a silence; try again when nothing waits to be read"
            )


def _read_by(root: Path) -> Offsets:
    checkpoint = Checkpoint(root, root / "checkpoint")
    return offsets_of(checkpoint.position(checkpoint.last()).sources)


def beyond(read: Mapping[str, Mapping[int, int]], ends: Mapping[str, Mapping[int, int]]) -> str:
    """Return a partition in which more was read than some offsets say; empty: there is none.

    >>> beyond({"a": {0: 5, 1: 7}}, {"a": {0: 5, 1: 6}}), beyond({"a": {0: 5}}, {"a": {0: 9}})
    ('a:1', '')
    """
    for topic, partitions in read.items():
        for partition, offset in partitions.items():
            if offset > ends.get(topic, {}).get(partition, 0):
                return f"{topic}:{partition}"
    return ""


def differences(found: Compared, of_blue: Collection[str]) -> list[str]:
    """Return the tables and topics in which one version has said what the other has not.

    What only the second version says, in tables and columns that the first does not have, is no difference.

    Args:
        found: The comparison.
        of_blue: Tables that the first version has.
    """
    tables = [
        name
        for name, one in sorted(found.tables.items())
        if name in of_blue
        and (one.only_blue or one.only_green or one.differ or one.twice_green or one.columns_only_blue)
    ]
    topics = [name for name, one in sorted(found.sent.items()) if not one.is_same]
    return [*tables, *topics, *found.not_compared]

"""Runs mutants: each one in a scratch copy of the repository, never in the working tree."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Literal

from tests.cases import WHOLE_LISTS
from tests.mutants.mutant import DoesNotApply, Mutant
from tests.mutants.witness import REPORT

#: What has become of a mutant.
Outcome = Literal["killed", "SURVIVED", "survived as known", "KILLED AFTER ALL", "TIMED OUT", "DID NOT APPLY",
                  "WORTHLESS"]  # fmt: skip
#: Those with which the list is as it should be.
GOOD: Final = frozenset({"killed", "survived as known"})
#: How long the tests may take without a mutant, seconds: all of them in one run.
_UNCHANGED_LIMIT_S: Final = 900.0
#: What pytest says when some tests have failed, and when all have passed.
_FAILED, _PASSED = 1, 0


class CannotRun(Exception):
    """The tests say nothing about mutants, in one line why."""


@dataclass(frozen=True)
class Result:
    """What has become of a mutant.

    Attributes:
        mutant: The mutant.
        outcome: What.
        detail: Which test failed, or what was wrong.
        seconds: How long its tests took.
    """

    mutant: Mutant
    outcome: Outcome
    detail: str
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether the list says what is true."""
        return self.outcome in GOOD


@dataclass(frozen=True)
class Ran:
    """A run of tests.

    Attributes:
        code: Exit code of pytest; ``None``: it ran out of time.
        failed: Tests that failed.
        imported: Module → its file, of the repository's packages.
        said: The last that pytest wrote.
        seconds: How long it took.
    """

    code: int | None
    failed: tuple[str, ...]
    imported: dict[str, str]
    said: str
    seconds: float


def files_of(root: Path) -> Iterator[str]:
    """Iterate over the files that git tracks or would track, as far as they are there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, capture_output=True,
    )  # fmt: skip
    for name in dict.fromkeys(listed.stdout.decode().split("\0")):
        if name and ((root / name).is_file() or (root / name).is_symlink()):
            yield name


def copy_of(root: Path, to: Path) -> Path:
    """Copy the repository as it stands in the working tree; return the copy's resolved path."""
    for name in files_of(root):
        place = to / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, place, follow_symlinks=False)
    return to.resolve()


class Bench:
    """A copy of the repository in which one run of tests at a time is made.

    Args:
        root: The copy.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._running: subprocess.Popen[str] | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def judge(self, mutant: Mutant) -> Result:
        """Apply a mutant, run its tests, and take it back."""
        place = self.root / mutant.file
        try:
            before = place.read_bytes()
            changed = mutant.applied_to(before.decode())
        except (OSError, DoesNotApply) as error:
            return Result(mutant, "DID NOT APPLY", str(error), 0.0)
        stamp = place.stat()
        try:
            _forget_compiled(place)
            place.write_text(changed, encoding="utf-8")
            ran = self.run(mutant.tests, mutant.limit_s, remember=False)
        finally:
            place.write_bytes(before)
            os.utime(place, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        return verdict(mutant, ran, self.root)

    def run(self, tests: Iterable[str], limit_s: float, *, remember: bool) -> Ran:
        """Run tests in the copy.

        Args:
            tests: As pytest names them.
            limit_s: How long they may take, seconds.
            remember: Whether to leave compiled modules behind, for the runs after this one.
        """
        with tempfile.TemporaryDirectory(dir=self.root, prefix=".mutants-") as folder:
            scratch = Path(folder)
            report, said = scratch / "report.json", scratch / "said"
            (scratch / "tmp").mkdir()
            command = [
                sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "--tb=line",
                "-p", "no:cacheprovider", "-p", "tests.mutants.witness",
                "--basetemp", str(scratch / "pytest"), *dict.fromkeys(tests),
            ]  # fmt: skip
            started = time.monotonic()
            with said.open("w") as output:
                code = self._wait(command, self._environment(scratch, report, remember), output, limit_s)
            seconds = time.monotonic() - started
            told: dict[str, Any] = {}
            if report.exists():
                told = json.loads(report.read_text(encoding="utf-8"))
            lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = " | ".join(lines[-3:])
            return Ran(code, tuple(told.get("failed", ())), told.get("imported", {}), last, seconds)

    def stop(self) -> None:
        """End the run that is being made, and let none begin."""
        with self._lock:
            self._stopped = True
            if self._running is not None:
                _end(self._running)

    def _wait(
        self, command: Sequence[str], environment: dict[str, str], output: Any, limit_s: float
    ) -> int | None:
        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            # A session of its own: what the tests have started goes with them.
            process = self._running = subprocess.Popen(
                command, cwd=self.root, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )  # fmt: skip
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with self._lock:
                _end(process)
                self._running = None
        if self._stopped:
            raise KeyboardInterrupt
        return code

    def _environment(self, scratch: Path, report: Path, remember: bool) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))
        }
        return {
            **kept,
            "CI": "true",  # the same examples in every run
            WHOLE_LISTS: "1",  # the case that sees a mutant among them
            "PYTHONPATH": os.pathsep.join([str(self.root / "shared"), str(self.root)]),
            "PYTHONDONTWRITEBYTECODE": "" if remember else "1",
            "TMPDIR": str(scratch / "tmp"),
            REPORT: str(report),
        }


def verdict(mutant: Mutant, ran: Ran, root: Path) -> Result:
    """Return what a run of its tests says about a mutant.

    Args:
        mutant: The mutant.
        ran: The run.
        root: The copy that it was made in, resolved.
    """

    def result(outcome: Outcome, detail: str) -> Result:
        return Result(mutant, outcome, detail, ran.seconds)

    killed: Outcome = "KILLED AFTER ALL" if mutant.known_survivor else "killed"
    if ran.code is None:
        took = f"more than {mutant.limit_s:.0f} s"
        return result(killed, took) if mutant.hangs else result("TIMED OUT", took)
    there = ran.imported.get(mutant.module)
    if ran.code not in (_FAILED, _PASSED):
        return result("WORTHLESS", f"pytest did not run the tests: {ran.said}")
    if there != str(root / mutant.file):
        return result("WORTHLESS", f"its tests import {there or 'no ' + mutant.module}, not the copy's")
    if ran.code == _FAILED and ran.failed:
        return result(killed, ran.failed[0])
    if mutant.known_survivor:
        return result("survived as known", mutant.known_survivor)
    return result("SURVIVED", f"breaks {mutant.breaks}")


def check_unchanged(bench: Bench, mutants: Sequence[Mutant]) -> float:
    """Run the tests of some mutants as the code stands; return how long they took, seconds.

    Raises:
        CannotRun: They fail without a mutant, or do not import the copy.
    """
    tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
    ran = bench.run(tests, _UNCHANGED_LIMIT_S, remember=True)
    if ran.code is None:
        raise CannotRun(f"without a mutant the tests take more than {_UNCHANGED_LIMIT_S:.0f} s")
    if ran.code != _PASSED:
        what = ", ".join(ran.failed) or ran.said
        raise CannotRun(f"without a mutant the tests fail already: {what}")
    strange = sorted(f for f in ran.imported.values() if not Path(f).is_relative_to(bench.root))
    if strange or not ran.imported:
        raise CannotRun(f"the tests do not import the copy: {', '.join(strange[:3]) or 'nothing of ours'}")
    return ran.seconds


@contextmanager
def benches(root: Path, jobs: int) -> Iterator[list[Bench]]:
    """Make copies of the repository, and see that nothing is left of them.

    A signal to end does what Ctrl-C does.
    """
    before = signal.signal(signal.SIGTERM, _interrupt)
    made: list[Bench] = []
    try:
        with tempfile.TemporaryDirectory(prefix="millrace-mutants-", ignore_cleanup_errors=True) as folder:
            try:
                for number in range(jobs):
                    made.append(Bench(copy_of(root, Path(folder) / str(number))))
                yield made
            finally:
                for bench in made:
                    bench.stop()
    finally:
        signal.signal(signal.SIGTERM, before)


def run_all(root: Path, mutants: Sequence[Mutant], jobs: int, say: Callable[[str], None]) -> list[Result]:
    """Run mutants.

    Args:
        root: The repository.
        mutants: Which.
        jobs: How many at a time.
        say: Takes a line about what is going on.

    Returns:
        What has become of each, in their order.

    Raises:
        CannotRun: The tests say nothing.
    """
    with benches(root, jobs) as made:
        tests = {test for mutant in mutants for test in mutant.tests}
        seconds = check_unchanged(made[0], mutants)
        say(f"{len(tests)} tests pass without a mutant ({seconds:.0f} s)")
        free: SimpleQueue[Bench] = SimpleQueue()
        for bench in made:
            free.put(bench)
        done = 0
        lock = threading.Lock()

        def judge(mutant: Mutant) -> Result:
            nonlocal done
            bench = free.get()
            try:
                result = bench.judge(mutant)
            finally:
                free.put(bench)
            with lock:
                done += 1
                say(f"[{done}/{len(mutants)}] {result.outcome}: {mutant.name} ({result.seconds:.1f} s)"
                    + ("" if result.is_good else f": {result.detail}"))  # fmt: skip
            return result

        if jobs == 1:
            return [judge(mutant) for mutant in mutants]
        with ThreadPoolExecutor(jobs) as pool:
            try:
                return list(pool.map(judge, mutants))
            except BaseException:
                for bench in made:
                    bench.stop()
                pool.shutdown(cancel_futures=True)
                raise


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and all of its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _forget_compiled(source: Path) -> None:
    """Remove what was compiled of a source: a change of the same size and second would not be seen."""
    for compiled in (source.parent / "__pycache__").glob(f"{source.stem}.*.pyc"):
        compiled.unlink()

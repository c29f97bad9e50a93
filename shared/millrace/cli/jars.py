"""`millrace jars …`: fetch, verify and list the locked jars."""

from __future__ import annotations

import enum
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.options import Format, Shape, print_as

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from millrace.local.jar_lock import Artifact, JarGroup
    from millrace.local.jars import JarReport, Progress

app = typer.Typer(no_args_is_help=True, help="Fetch, verify and list the locked jars.")

_MEGABYTE = 1_000_000


class Group(enum.StrEnum):
    """What a jar is for."""

    SPARK = "spark"
    BROKER = "broker"


GroupOption = Annotated[
    Group | None, typer.Option("--group", help="Only these jars; by default both groups.")
]


def _groups(group: Group | None) -> list[JarGroup]:
    chosen: list[JarGroup] = ["spark", "broker"]
    return [name for name in chosen if group is None or name == group.value]


@app.command(epilog="Example: millrace jars fetch --group broker")
def fetch(group: GroupOption = None) -> None:
    """Bring the jars into the cache; asks no network when they are there."""
    from millrace.local.jars import ensure_jars

    with console_progress() as progress:
        paths = ensure_jars(_groups(group), progress)
    counts = ", ".join(f"{len(found)} {name}" for name, found in paths.items())
    typer.echo(f"jars ready: {counts}")


@app.command(epilog="Example: millrace jars verify")
def verify(group: GroupOption = None, shape: Shape = Format.table) -> None:
    """Hash every cached jar again; exit 1 when one is missing or damaged."""
    from millrace.local.jar_cache import JarState
    from millrace.local.jars import report_jars

    reports = report_jars(_groups(group), rehash=True)
    bad = [report for report in reports if report.state is not JarState.OK]
    lines = [f"{report.state.value}: {report.jar.coordinate} ({report.path})" for report in bad]
    if bad:
        lines.append(f"{len(bad)} of {len(reports)} jars are missing or damaged; run: millrace jars fetch")
    else:
        lines.append(f"{len(reports)} jars verified")
    found = {"jars": len(reports), "bad": [_as_data(report) for report in bad]}
    print_as(shape, found, lambda: "\n".join(lines))
    if bad:
        raise typer.Exit(1)


def _as_data(report: JarReport) -> dict[str, Any]:
    return {
        "group": report.jar.group,
        "coordinate": report.jar.coordinate,
        "size": report.jar.expected_size,
        "state": report.state.value,
        "used": None if report.used is None else report.used.coordinate,
        "path": report.path,
    }


@app.command("list", epilog="Example: millrace jars list")
def list_jars(group: GroupOption = None, shape: Shape = Format.table) -> None:
    """List the locked jars: group, coordinate, size, and what the cache has."""
    from rich.console import Console
    from rich.table import Table

    from millrace.local.jar_cache import cache_root
    from millrace.local.jars import report_jars

    if shape is Format.json:
        print_as(shape, [_as_data(report) for report in report_jars(_groups(group))], str)
        return
    table = Table(box=None, pad_edge=False)
    for name in ("group", "coordinate", "MB", "cache"):
        table.add_column(name, justify="right" if name == "MB" else "left", overflow="fold")
    for report in report_jars(_groups(group)):
        size = f"{report.jar.expected_size / _MEGABYTE:.1f}"
        table.add_row(report.jar.group, report.jar.coordinate, size, _in_cache(report))
    width = None if sys.stdout.isatty() else 200
    Console(width=width, highlight=False).print(table, f"cache: {cache_root()}", sep="\n", soft_wrap=True)


def _in_cache(report: JarReport) -> str:
    words = report.state.value
    if report.used and report.used is not report.jar:
        words = f"ok, alternate {report.used.coordinate.rpartition(':')[2]}"
    return f"{words} ({report.jar.note})" if report.jar.note else words


@contextmanager
def console_progress() -> Iterator[Progress]:
    """Yield a progress that shows a bar on a terminal, and a line for each tenth otherwise.

    Example:
        >>> with console_progress() as progress:
        ...     progress.start(jars=2, size=1_000_000)
        ...
        fetching 2 jars, 1.0 MB to download
    """
    if not sys.stdout.isatty():
        yield _Lines()
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, transient=True) as bars:
        yield _Bar(bars)


def _announcement(jars: int, size: int) -> str:
    return f"fetching {jars} jars, {size / _MEGABYTE:.1f} MB to download"


class _Bar:
    """A bar on the terminal."""

    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars
        self._task = bars.add_task("jars", total=None, visible=False)

    def start(self, jars: int, size: int) -> None:
        self._bars.console.print(_announcement(jars, size), highlight=False)
        self._bars.update(self._task, total=size, visible=True)

    def advance(self, size: int) -> None:
        self._bars.advance(self._task, size)

    def done(self, artifact: Artifact) -> None:
        self._bars.update(self._task, description=artifact.file_name)


class _Lines:
    """A line for each tenth of the bytes, for a pipe or a log."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._total = self._held = self._tenths = 0

    def start(self, jars: int, size: int) -> None:
        self._total = size
        print(_announcement(jars, size), flush=True)

    def advance(self, size: int) -> None:
        with self._guard:
            self._held += size
            tenths = min(10 * self._held // self._total, 10) if self._total else 0
            if tenths > self._tenths:
                self._tenths = tenths
                print(f"  {tenths * 10} % ({self._held / _MEGABYTE:.1f} MB)", flush=True)

    def done(self, artifact: Artifact) -> None:
        del artifact  # 52 lines would say no more than ten

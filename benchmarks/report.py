"""The report of a benchmark: what was measured, on what, as JSON and as a short table."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from millrace.local.python_build import is_optimised
from millrace.operations import report as files
from millrace.runtime.redaction import redact_text
from millrace_apps.benchmarks.machine import before, condition
from millrace_apps.benchmarks.names import name_in_reports


def machine() -> dict[str, Any]:
    """Return what the figures depend on beside the code: the machine, and how it was before and is now.

    Returns:
        Among others ``load_before`` and ``load_after`` (at the end the load is also the benchmark's own),
        ``speed`` and ``speed_after``: millions of additions per second in a plain Python loop, see
        :func:`millrace_apps.benchmarks.machine.speed`; ``python_optimised``: how Python was built, see
        :mod:`millrace.local.python_build`.
    """
    began, ended = before(), condition()
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "python_optimised": is_optimised(),
        "pyspark": version("pyspark"),
        "load_before": began.load,
        "load_after": ended.load,
        "speed": began.speed,
        "speed_after": ended.speed,
    }


def write(
    name: str,
    results: Mapping[str, Any],
    configuration: Mapping[str, Any],
    out: Path | None,
    markdown: Path | None = None,
) -> None:
    """Write the report to ``out`` and print it.

    Args:
        name: Name of the benchmark.
        results: Figures by name, units in the names.
        configuration: What it was run with.
        out: JSON file, or ``None``.
        markdown: File for its tables, or ``None``.
    """
    from millrace.console.report import print_table

    command = redact_text(shlex.join(["millrace", *sys.argv[1:]]))
    date, on = datetime.now(UTC).isoformat(timespec="seconds"), machine()
    report = {
        "benchmark": name_in_reports(name),
        "date": date,
        "command": command,
        "configuration": dict(configuration),
        "machine": on,
        **results,
    }
    made = tables(f"bench {name}", results)
    about = f"`{command}`, {date}; {', '.join(f'{k} {v}' for k, v in on.items())}\n"
    files.write(out, report, markdown=(markdown, "\n".join([*map(as_markdown, made), about])))
    for table in made:
        print_table(table.title, table.columns, table.rows, right=table.columns[1:])


class Table(NamedTuple):
    """A table of text: its title, its columns and its rows."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def tell(line: str) -> None:
    """Say on standard error how far a benchmark is that takes minutes.

    Args:
        line: What is said.
    """
    print(line, file=sys.stderr, flush=True)


def tables(title: str, results: Mapping[str, Any]) -> list[Table]:
    """Return the figures as tables: the systems side by side, then the others one per row.

    Args:
        title: Title of the first table.
        results: Figures by name; lists are left to the JSON.
    """
    made = []
    systems = results.get("systems")
    if systems:
        columns = ["rows_per_s", "cpu_s_per_million", "correct"]
        rows = [[name, *(_text(found.get(c)) for c in columns)] for name, found in systems.items()]
        made.append(Table(title, ["system", *columns], rows))
        title = "figures"
    figures = dict(flat({k: v for k, v in results.items() if k != "systems"}))
    if figures:
        made.append(Table(title, ["figure", "value"], [[k, _text(v)] for k, v in figures.items()]))
    return made


def flat(results: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the figures with their path, e.g. ``ratios.keys_1m_over_50k``."""
    for name, value in results.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        elif not isinstance(value, list):
            yield f"{prefix}{name}", value


def as_markdown(table: Table) -> str:
    """Return a table in Markdown.

    >>> print(as_markdown(Table("Speed", ["system", "rows_per_s"], [["ours", "5"]])))
    ### Speed
    <BLANKLINE>
    | system | rows_per_s |
    |---|---:|
    | ours | 5 |
    <BLANKLINE>
    """
    lines = [f"### {table.title}", "", f"| {' | '.join(table.columns)} |"]
    lines.append(f"|---|{'---:|' * (len(table.columns) - 1)}")
    lines += [f"| {' | '.join(row)} |" for row in table.rows]
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def percentiles(values: list[float]) -> dict[str, float]:
    """Return p50, p95, p99 and the largest of some values.

    >>> percentiles([1.0, 2.0, 3.0])["p50"]
    2.0
    """
    import numpy as np

    p50, p95, p99, top = np.percentile(values, [50, 95, 99, 100])
    return {
        "p50": round(float(p50), 1),
        "p95": round(float(p95), 1),
        "p99": round(float(p99), 1),
        "max": float(top),
    }

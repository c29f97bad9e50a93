"""The report of a benchmark: what was measured, on what, as JSON and as a short table."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil


def machine() -> dict[str, Any]:
    """Return what the figures depend on beside the code."""
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "load_before": round(os.getloadavg()[0], 2),
    }


def write(name: str, results: Mapping[str, Any], configuration: Mapping[str, Any], out: Path | None) -> None:
    """Write the report to ``out`` and print it.

    Args:
        name: Name of the benchmark.
        results: Figures by name, units in the names.
        configuration: What it was run with.
        out: JSON file, or ``None``.
    """
    from millrace.cli.report import print_table

    if out is not None:
        report = {
            "benchmark": name,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": " ".join(["millrace", *sys.argv[1:]]),
            "configuration": dict(configuration),
            "machine": machine(),
            **results,
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=2, default=str) + "\n")
    rows = [[key, _text(value)] for key, value in results.items() if not isinstance(value, list)]
    print_table(f"bench {name}", ["figure", "value"], rows, right=["value"])


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

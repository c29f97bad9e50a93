"""``millrace iot health …``: learn what is normal for machines from the readings of a normal period."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millrace.cli.options import Overrides, Root
from millrace.errors import UserError
from millrace_apps.iot_maintenance.state.assets import subject_of

if TYPE_CHECKING:
    from millrace.operators.control import Chart

app = typer.Typer(no_args_is_help=True, help="What is normal for machines: learn it.")


@app.command("train")
def train(
    out: Annotated[Path, typer.Option(help="Where what is normal goes, as JSON; for health.charts.")],
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Begin of the period (ms or ISO 8601).")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="End of the period.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only of machines of this kind.")] = None,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.999999, help="Share of what is normal that is within the limits.")
    ] = 0.999,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Learn from the table of readings what is normal, by kind and status.

    Example: millrace iot health train --from 2026-01-05 --until 2026-01-19 --out normal.json
    """
    from millrace.operations.report import write
    from millrace.time import ms
    from millrace.time.moments import to_time_ms
    from millrace_apps.iot_maintenance.operations.operating import read_table, settings_of

    settings = settings_of(None, root, overrides)
    low = 0 if since is None else to_time_ms(since)
    high = 2**62 if until is None else to_time_ms(until)
    rows = [
        row
        for row in read_table(settings, "readings")
        if low <= row["event_time_ms"] < high and (kind is None or row["kind"] == kind)
    ]
    charts, told = learn(rows, ms(settings.health.interval), confidence)
    write(out, msgspec.to_builtins(charts))
    for line in told:
        typer.echo(line)


def learn(
    rows: Iterable[Mapping[Any, Any]], interval_ms: int, confidence: float = 0.999
) -> tuple[dict[str, Chart], list[str]]:
    """Return what is normal by kind, and what was learned from.

    Args:
        rows: Rows of the table of readings, in any order.
        interval_ms: The means of so long are a row, ms.
        confidence: Which share of normal rows is within the limits.

    Raises:
        UserError: There is nothing to learn from, or an interval takes no time.
    """
    from millrace.operators import fit_chart

    if interval_ms < 1:
        raise UserError("an interval takes time, e.g. 1m: the means of so long are a row")
    sums, regimes = _summed(rows, interval_ms)
    charts, told = {}, []
    for kind in sorted({kind for kind, _, _ in sums if kind}):
        places = [place for place in sums if place[0] == kind and len(regimes[place]) == 1]
        seen: dict[str, int] = defaultdict(int)
        for place in places:
            for subject in sums[place]:
                seen[subject] += 1
        sensors = tuple(sorted(subject for subject, n in seen.items() if n >= 0.8 * len(places)))
        by_regime: dict[str, list[list[float]]] = defaultdict(list)
        for place in places:
            if all(subject in sums[place] for subject in sensors):
                values = [sums[place][subject] for subject in sensors]
                by_regime[next(iter(regimes[place]))].append([total / n for total, n in values])
        least = max(10 * len(sensors), 50)
        enough = {regime: found for regime, found in sorted(by_regime.items()) if len(found) >= least}
        if len(sensors) < 2 or not enough:
            told.append(f"{kind}: nothing learned: fewer than {least} rows of any status")
            continue
        charts[kind] = fit_chart(enough, sensors, confidence=confidence)
        for regime, found in enough.items():
            told.append(f"{kind}, {regime or 'no status'}: {len(found)} rows of {', '.join(sensors)}")
    if not charts:
        raise UserError("no kind of machine has enough readings in this period to learn what is normal")
    return charts, told


Place = tuple[str, str, int]


def intervals(
    rows: Iterable[Mapping[Any, Any]], interval_ms: int
) -> dict[Place, tuple[str, dict[str, float]]]:
    """Return the means of intervals in which a machine had one status.

    Args:
        rows: Rows of the table of readings, in any order.
        interval_ms: Length of an interval, ms.

    Returns:
        Kind, machine and number of the interval → its status, and the mean of each measuring point.
    """
    sums, regimes = _summed(rows, interval_ms)
    return {
        place: (next(iter(regimes[place])), {subject: total / n for subject, (total, n) in found.items()})
        for place, found in sums.items()
        if len(regimes[place]) == 1
    }


def _summed(
    rows: Iterable[Mapping[Any, Any]], interval_ms: int
) -> tuple[dict[Place, dict[str, tuple[float, int]]], dict[Place, set[str]]]:
    sums: dict[Place, dict[str, tuple[float, int]]] = defaultdict(dict)
    regimes: dict[Place, set[str]] = defaultdict(set)
    for row in rows:
        # A table that pandas has read says NaN where there is no value.
        if row["value"] is None or row["value"] != row["value"] or row["quality"] != "good":
            continue
        if row["revision"] or row["late"]:
            continue
        place = row["kind"], row["machine_id"], row["event_time_ms"] // interval_ms
        subject = _subject(row)
        total, count = sums[place].get(subject, (0.0, 0))
        sums[place][subject] = (total + row["value"], count + 1)
        regimes[place].add(row["status"] or "")
    return sums, regimes


def _subject(row: Mapping[Any, Any]) -> str:
    return subject_of(row["quantity"], row.get("point") or "")

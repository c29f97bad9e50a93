"""``millrace clickstream click-through``: what the arms of next items are worth, by the app's tables."""

from __future__ import annotations

from pathlib import Path

import msgspec
import typer

from millrace.errors import UserError
from millrace.experiments import Report
from millrace.operations.report import write
from millrace.time import ms
from millrace.time.durations import parse_duration
from millrace_apps.clickstream.operations.forget import app_settings, open_table
from millrace_apps.clickstream.recommend.clicked import LEARNED, UNLEARNED, arms_of, compared
from millrace_apps.clickstream.recommend.filters import POPULAR

_LISTS = ["surface", "arm", "person", "event_time_ms"]


class Beside(msgspec.Struct, frozen=True):
    """An arm beside another one, on a surface.

    Attributes:
        surface: The surface.
        arm: The arm.
        control: The other one.
        persons: Persons of the arm whose time is over.
        control_persons: Those of the other one.
        clicks: Clicks of a person of the arm, mean; ``None`` where there is nobody.
        control_clicks: Of the other one.
        difference: Difference of the means; ``None`` where an arm is empty.
        low: Lower end of its 95 % interval; ``None`` where an arm has fewer than 30 persons.
        high: Upper end.
        dealt: Whether persons were dealt to the arms as they should have been: if not, believe nothing.
        crossed: Persons who were seen in several arms; they are left out.
    """

    surface: str
    arm: str
    control: str
    persons: int
    control_persons: int
    clicks: float | None
    control_clicks: float | None
    difference: float | None
    low: float | None
    high: float | None
    dealt: bool
    crossed: int


def rows_of(surface: str, report: Report) -> list[Beside]:
    """Return a row per arm beside the control arm of a report, of those in which somebody was."""
    control = report.arms[report.control]
    return [
        Beside(
            surface=surface,
            arm=one.arm,
            control=report.control,
            persons=report.arms[one.arm].matured,
            control_persons=control.matured,
            clicks=report.arms[one.arm].mean,
            control_clicks=control.mean,
            difference=one.difference,
            low=one.low,
            high=one.high,
            dealt=report.sample_ratio.ok,
            crossed=report.crossed,
        )
        for one in report.comparisons
        if report.arms[one.arm].exposed
    ]


def run(*, sets: list[str], within: str, out: Path | None) -> list[Beside]:
    """Print what the arms are worth.

    Args:
        sets: Settings of the app.
        within: So long after a person's first list clicks count, e.g. ``1h``.
        out: Where the report goes.

    Raises:
        UserError: There are no such tables, or no control arm.
    """
    import pyarrow.compute as pc

    try:
        matures_ms = ms(parse_duration(within))
    except ValueError as error:
        raise UserError(f"--within: {error}") from None
    settings = app_settings(None, sets)
    told = settings.recommend
    tables = [open_table(settings, f"recommendation{name}") for name in ("s", "_clicks")]
    if tables[0] is None or tables[1] is None:
        raise UserError(
            f"there are no lists, or no clicks on them, under {settings.storage.root}: "
            "has the app run with recommend.on?"
        )
    lists = tables[0].to_pyarrow_table(columns=_LISTS)
    clicks = tables[1].to_pyarrow_table(columns=["surface", "person", "event_time_ms"])
    arms = arms_of(told.control, told.unlearned)
    controls = [name for name in (UNLEARNED, POPULAR) if arms.arms[name]]
    if not controls:
        raise UserError("no control arm: set recommend.unlearned or recommend.control, as the app runs with")
    until = max(pc.max(rows["event_time_ms"]).as_py() or 0 for rows in (lists, clicks))
    found: list[Beside] = []
    for control in controls:
        reports = compared(
            lists.to_pylist(), clicks.to_pylist(), arms, control, until_ms=until, matures_ms=matures_ms
        )
        for surface, report in reports.items():
            rows = rows_of(surface, report)
            # Two control arms are beside each other once.
            found += [row for row in rows if row.arm == LEARNED or control == UNLEARNED]
    for one in found:
        _say(one)
    if not found:
        typer.echo("nothing to compare: nobody was shown a list yet")
    write(out, found)
    return found


def _say(one: Beside) -> None:
    interval = (
        f"{one.difference:+.3f} [{one.low:+.3f}, {one.high:+.3f}]" if one.low is not None else "too few"
    )
    arms = ", ".join(
        f"{name} {'none' if mean is None else f'{mean:.3f}'} of {persons:,}"
        for name, mean, persons in (
            (one.arm, one.clicks, one.persons),
            (one.control, one.control_clicks, one.control_persons),
        )
    )
    odd = "" if one.dealt else "   THE ARMS ARE NOT WHAT WAS DEALT"
    typer.echo(f"{one.surface:<9} {one.arm} - {one.control:<10} {interval}   clicks a person: {arms}{odd}")

"""The report of a loop's arms, as plain figures, and the conditions on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from millrace.console.report import Check
from millrace_apps.fraud.loop.run import BASE, CONTROL, GENUINE, DayOfArm

#: Figures are told for stretches of so many days.
STRETCH: Final = 10


def report_of(days: Sequence[DayOfArm], counted: int) -> dict[str, Any]:
    """Return the figures of all arms, each led by the name of its arm.

    Args:
        days: Days of the arms that count.
        counted: How many these are of an arm.

    Example:
        >>> made = [DayOfArm("blocked", n, payments=9, frauds=2, stopped=1, cost=30.0) for n in range(3)]
        >>> found = report_of(made, 3)
        >>> found["blocked_recall"], found["blocked_precision"], found["blocked_cost"]
        (0.5, 1.0, 90.0)
    """
    found: dict[str, Any] = {}
    for arm in dict.fromkeys(day.arm for day in days):
        mine = [day for day in days if day.arm == arm]
        stretches = [[d for d in mine if n <= d.day < n + STRETCH] for n in range(0, counted, STRETCH)]
        named = {
            "payments": sum(d.payments for d in mine),
            "frauds": sum(d.frauds for d in mine),
            "recall": recall(mine),
            "recall_middle": recall(_third(mine, counted, 1)),
            "recall_last": recall(_third(mine, counted, 2)),
            "recall_by_10_days": [recall(part) for part in stretches],
            "precision": precision(mine),
            "precision_by_10_days": [precision(part) for part in stretches],
            "cost": cost(mine),
            "cost_by_10_days": [cost(part) for part in stretches],
            "lost": round(sum(d.lost for d in mine), 2),
            "blocked": sum(d.stopped + d.false_blocks for d in mine),
            "false_blocks": sum(d.false_blocks for d in mine),
            "control_group": sum(d.control for d in mine),
            "looks": sum(d.looks for d in mine),
            "trainings": sum(d.trained > 0 for d in mine),
        }
        found |= {f"{arm}_{name}": value for name, value in named.items()}
    return found


def checks_of(days: Sequence[DayOfArm], counted: int) -> list[Check]:
    """Return what must hold: who learns from what it blocks does not unlearn it, and pays less for it.

    Args:
        days: Days of the arms that count.
        counted: How many these are of an arm.
    """
    arms = {arm: [day for day in days if day.arm == arm] for arm in (BASE, CONTROL, GENUINE)}
    found = []
    for arm in (BASE, CONTROL):
        middle, last = (_third(arms[arm], counted, n) for n in (1, 2))
        found.append(
            Check(
                f"{arm}: recall of the last third",
                f"at least {recall(middle):.3f}, that of the middle one",
                f"{recall(last):.3f}",
                recall(last) >= recall(middle),
                compared=sum(d.frauds for d in (*middle, *last)),
            )
        )
    if arms[GENUINE]:
        most = cost(arms[GENUINE])
        found += [
            Check(
                f"{arm}: cost",
                f"below {most:,.0f}, with blocked payments counted as genuine",
                f"{cost(arms[arm]):,.0f}",
                cost(arms[arm]) < most,
                compared=sum(d.frauds for d in arms[arm]),
            )
            for arm in (BASE, CONTROL)
        ]
    return found


def recall(days: Sequence[DayOfArm]) -> float:
    """Return the share of the frauds tried that were blocked, or looked at; not a number without any."""
    return _share(sum(d.stopped + d.looked_at for d in days), sum(d.frauds for d in days))


def precision(days: Sequence[DayOfArm]) -> float:
    """Return the share of frauds among what was blocked, or passed and was looked at."""
    right = sum(d.stopped + d.looked_at for d in days)
    return _share(right, right + sum(d.false_blocks + d.wrong_looks for d in days))


def cost(days: Sequence[DayOfArm]) -> float:
    """Return the cost of days, currency units."""
    return round(sum(d.cost for d in days), 2)


def _third(days: Sequence[DayOfArm], counted: int, number: int) -> list[DayOfArm]:
    return [d for d in days if d.day * 3 // counted == number]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan

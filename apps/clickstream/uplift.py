"""What offers add: the share of buyers among those who got one, less that in the control arm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

#: The 97.5 % point of the normal distribution.
_Z: Final = 1.959963984540054


class Uplift(msgspec.Struct, frozen=True):
    """What an offer adds to the share of buyers.

    Attributes:
        rule: The rule.
        offered: Persons with an offer whose outcome is known.
        offered_bought: Those of them who bought.
        control: Persons of the control arm.
        control_bought: Those of them who bought.
        uplift: Difference of the shares; ``None`` where an arm is empty.
        low: Lower end of the 95 % interval.
        high: Upper end.
    """

    rule: str
    offered: int
    offered_bought: int
    control: int
    control_bought: int
    uplift: float | None
    low: float | None
    high: float | None


def wilson(bought: int, of: int) -> tuple[float, float]:
    """Return the 95 % score interval of a share (Wilson, JASA 22, 1927).

    >>> [round(x, 4) for x in wilson(10, 100)]
    [0.0552, 0.1744]
    """
    share, z2 = bought / of, _Z * _Z
    centre = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = _Z * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of)) / (1 + z2 / of)
    return centre - half, centre + half


def uplift_of(rule: str, offered: tuple[int, int], control: tuple[int, int]) -> Uplift:
    """Return the difference of two shares with its 95 % interval.

    Newcombe, Statistics in Medicine 17, 1998, method 10.

    Args:
        rule: The rule.
        offered: Buyers and persons with the offer.
        control: Buyers and persons without.

    Example:
        >>> found = uplift_of("r", (56, 70), (48, 80))          # Newcombe's own example
        >>> round(found.uplift, 4), round(found.low, 4), round(found.high, 4)
        (0.2, 0.0524, 0.3339)
    """
    (b1, n1), (b0, n0) = offered, control
    if not n1 or not n0:
        return Uplift(rule, n1, b1, n0, b0, None, None, None)
    p1, p0 = b1 / n1, b0 / n0
    (l1, u1), (l0, u0) = wilson(b1, n1), wilson(b0, n0)
    low = p1 - p0 - math.sqrt((p1 - l1) ** 2 + (u0 - p0) ** 2)
    high = p1 - p0 + math.sqrt((u1 - p1) ** 2 + (p0 - l0) ** 2)
    return Uplift(rule, n1, b1, n0, b0, p1 - p0, low, high)


def uplifts(outcomes: Iterable[Mapping[str, Any]]) -> list[Uplift]:
    """Return what every rule adds.

    Args:
        outcomes: Rows with ``rule``, ``arm`` and ``converted``.
    """
    counts: dict[str, dict[str, list[int]]] = {}
    for row in outcomes:
        arm = counts.setdefault(row["rule"], {}).setdefault(row["arm"], [0, 0])
        arm[0] += bool(row["converted"])
        arm[1] += 1
    found = []
    for rule, arms in sorted(counts.items()):
        offer, control = arms.get("offer", [0, 0]), arms.get("control", [0, 0])
        found.append(uplift_of(rule, (offer[0], offer[1]), (control[0], control[1])))
    return found


def run(*, sets: list[str], out: Path | None) -> list[Uplift]:
    """Print what every rule adds, by the app's table of outcomes.

    Args:
        sets: Settings of the app.
        out: Where the report goes.

    Raises:
        UserError: There is no such table.
    """
    import typer

    from apps.clickstream.forget import app_settings, open_table
    from millrace.errors import UserError

    settings = app_settings(None, sets)
    table = open_table(settings, "outcomes")
    if table is None:
        raise UserError(f"there is no table of outcomes under {settings.storage.root}: has the app run?")
    found = uplifts(table.to_pyarrow_table(columns=["rule", "arm", "converted"]).to_pylist())
    for one in found:
        interval = "too few" if one.uplift is None else f"{one.uplift:+.4f} [{one.low:+.4f}, {one.high:+.4f}]"
        arms = f"offer {one.offered_bought}/{one.offered}, control {one.control_bought}/{one.control}"
        typer.echo(f"{one.rule:<24} {interval}   {arms}")
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    return found

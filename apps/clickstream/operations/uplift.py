"""Uplift of offers: the share of buyers among those who got one, less that in the control arm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from millrace.experiments import ArmFigures, Exposure, Outcome, compare, difference_of_shares
from millrace.operations.report import write
from millrace_apps.clickstream.processes.offer_rules import OfferRule
from millrace_apps.clickstream.state.offers import OUTCOME_MS, experiment_of


class Uplift(msgspec.Struct, frozen=True):
    """What an offer adds to the share of buyers.

    Attributes:
        rule: The rule.
        offered: Persons with an offer.
        offered_bought: Those of them who have bought.
        control: Persons of the control arm.
        control_bought: Those of them who have bought.
        uplift: Difference of the shares; ``None`` where an arm is empty.
        low: Lower end of the 95 % interval; ``None`` where an arm has fewer than 30 persons.
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


def uplift_of(rule: str, offered: tuple[int, int], control: tuple[int, int]) -> Uplift:
    """Return the difference of two shares with its 95 % interval, which holds on whatever days one looks.

    Args:
        rule: The rule.
        offered: Buyers and persons with the offer.
        control: Buyers and persons without.

    Example:
        >>> found = uplift_of("r", (560, 700), (480, 800))
        >>> round(found.uplift, 2), round(found.low, 2), round(found.high, 2)
        (0.2, 0.13, 0.27)
    """
    (b1, n1), (b0, n0) = offered, control
    found = difference_of_shares(b1, n1, b0, n0)
    if found is None:
        return Uplift(rule, n1, b1, n0, b0, b1 / n1 - b0 / n0 if n1 and n0 else None, None, None)
    return Uplift(rule, n1, b1, n0, b0, *found)


class Added(Uplift, frozen=True):
    """The same of persons whose 7 days are over, by what they bought within them.

    Attributes:
        maturing: Persons whose 7 days are not over yet.
        dealt: Whether persons were dealt to the arms as they should have been: if not, believe nothing.
    """

    maturing: int
    dealt: bool


def uplifts(
    offers: Iterable[Mapping[str, Any]],
    outcomes: Iterable[Mapping[str, Any]],
    rules: Iterable[OfferRule],
    *,
    until_ms: int,
) -> list[Added]:
    """Return what every rule adds, by persons whose outcome time is over.

    Args:
        offers: Rows with ``offer_id``, ``rule``, ``arm``, ``person`` and ``at_ms``.
        outcomes: Rows with ``offer_id``, ``converted`` and ``decided_ms``.
        rules: The rules; of others nothing is told.
        until_ms: Up to when all is known, UTC ms.
    """
    made, persons = [], {}
    for row in offers:
        made.append(Exposure(row["rule"], row["person"], row["arm"], row["at_ms"]))
        persons[row["offer_id"]] = row["rule"], row["person"]
    bought: dict[str, list[Outcome]] = {}
    for row in outcomes:
        if row["converted"] and row["offer_id"] in persons:
            rule, person = persons[row["offer_id"]]
            bought.setdefault(rule, []).append(Outcome(person, row["decided_ms"]))
    found = []
    for rule in sorted(rules, key=lambda r: r.name):
        own = [one for one in made if one.experiment == rule.name]
        if not own:
            continue
        # What one buys again within the 7 days makes nobody two buyers.
        first = {o.subject: o for o in sorted(bought.get(rule.name, ()), key=lambda o: -o.at_ms)}
        report = compare(
            experiment_of(rule, 0.0), own, first.values(), until_ms=until_ms, matures_ms=OUTCOME_MS
        )
        offered, control = report.arms["offer"], report.arms["control"]
        (beside,) = report.comparisons
        found.append(
            Added(
                rule=rule.name,
                offered=offered.matured,
                offered_bought=_buyers(offered),
                control=control.matured,
                control_bought=_buyers(control),
                uplift=beside.difference,
                low=beside.low,
                high=beside.high,
                maturing=offered.exposed + control.exposed - offered.matured - control.matured,
                dealt=report.sample_ratio.ok,
            )
        )
    return found


def _buyers(arm: ArmFigures) -> int:
    return 0 if arm.mean is None else round(arm.mean * arm.matured)


def run(*, sets: list[str], out: Path | None) -> list[Added]:
    """Print what every rule adds, by the app's tables of offers and outcomes.

    Args:
        sets: Settings of the app.
        out: Where the report goes.

    Raises:
        UserError: There are no such tables.
    """
    import pyarrow.compute as pc
    import typer

    from millrace.errors import UserError
    from millrace_apps.clickstream.operations.forget import app_settings, open_table

    settings = app_settings(None, sets)
    tables = {name: open_table(settings, name) for name in ("offers", "outcomes", "boards")}
    if tables["offers"] is None or tables["outcomes"] is None:
        raise UserError(f"there is no table of outcomes under {settings.storage.root}: has the app run?")
    offers = tables["offers"].to_pyarrow_table(columns=["offer_id", "rule", "arm", "person", "at_ms"])
    outcomes = tables["outcomes"].to_pyarrow_table(columns=["offer_id", "converted", "decided_ms"])
    times = [offers["at_ms"], outcomes["decided_ms"]]
    if tables["boards"] is not None:
        # Boards are told as time goes on: up to the last one everything is known.
        times.append(tables["boards"].to_pyarrow_table(columns=["window_end_ms"])["window_end_ms"])
    until = max(pc.max(column).as_py() or 0 for column in times)
    found = uplifts(offers.to_pylist(), outcomes.to_pylist(), settings.offer_rules(), until_ms=until)
    for one in found:
        interval = "too few" if one.low is None else f"{one.uplift:+.4f} [{one.low:+.4f}, {one.high:+.4f}]"
        arms = f"offer {one.offered_bought}/{one.offered}, control {one.control_bought}/{one.control}"
        waits = f", {one.maturing} not yet over" if one.maturing else ""
        odd = "" if one.dealt else "   THE ARMS ARE NOT WHAT WAS DEALT"
        typer.echo(f"{one.rule:<24} {interval}   {arms}{waits}{odd}")
    if not found:
        typer.echo("nothing to compare: no rule has made an offer")
    write(out, found)
    return found

"""`millrace evaluate ridesharing …`: real requests and positions against the app's own processes."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.errors import UserError
from millrace.operations.report import write
from millrace.time.moments import to_time_ms

if TYPE_CHECKING:
    from millrace.experiments import Switchback

app = typer.Typer(help="Replay recorded requests and positions.", no_args_is_help=True, add_completion=False)

Trips = Annotated[Path, typer.Option(help="Parquet of recorded trips.")]
End = Annotated[str, typer.Option("--to", metavar="TIME", help="End of the requests.")]
Report = Annotated[Path, typer.Option(help="The report, as JSON.")]
Window = Annotated[str, typer.Option(help="Length of a window, 1 to 60 s.")]
Radius = Annotated[str, typer.Option(help="Largest straight line to a pick-up, e.g. 3km.")]


class PolicyName(StrEnum):
    """How a window is decided."""

    fifo = "fifo"
    nearest = "nearest"
    optimal = "optimal"


class Host(StrEnum):
    """Where the processes run."""

    memory = "memory"
    spark = "spark"


@app.command(
    epilog="Example: millrace evaluate ridesharing replay --trips trips.parquet --from "
    "2008-05-18T02:00Z --to 2008-05-18T08:00Z --fleet 450 --out report.json"
)
def replay(
    trips: Trips,
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="First request, e.g. 2008-05-18T02:00Z.")
    ],
    end: End,
    out: Report,
    fleet: Annotated[int, typer.Option(min=1, max=100_000, help="Number of cars.")] = 450,
    policy: Annotated[PolicyName, typer.Option(help="How windows are decided.")] = PolicyName.optimal,
    window: Window = "10s",
    radius: Radius = "3km",
    seed: Annotated[int, typer.Option(help="Where the cars start.")] = 1,
    host: Annotated[Host, typer.Option("--engine", help="Where the processes run.")] = Host.memory,
    regions: Annotated[int, typer.Option(help="Number of regions, each with a matcher of its own.")] = 1,
    assignments: Annotated[Path | None, typer.Option(help="Parquet: a row per served request.")] = None,
    duplicates: Annotated[float, typer.Option(min=0, max=0.5, help="Share of events that come twice.")] = 0.0,
    late: Annotated[float, typer.Option(min=0, max=0.5, help="Share that comes after the watermark.")] = 0.0,
    restarts: Annotated[int, typer.Option(min=0, help="How often the processes are stopped and go on.")] = 0,
    audit_topics: Annotated[
        bool, typer.Option("--audit-topics", help="Hold what was said against all that came in, too.")
    ] = False,
    arrival_times: Annotated[
        bool,
        typer.Option("--arrival-times", help="Go by learned arrival times, and say waits without them, too."),
    ] = False,
    traffic: Annotated[
        bool, typer.Option("--traffic", help="Cars are as slow as recorded trips were there, at that hour.")
    ] = False,
    declines: Annotated[
        bool, typer.Option("--declines", help="Drivers say no, or nothing, each as often as drawn.")
    ] = False,
    acceptance: Annotated[
        bool, typer.Option("--acceptance", help="Go by who is likely to say yes; waits without it, too.")
    ] = False,
    miss: Annotated[str, typer.Option(help="What an offer costs that is not taken, as a drive.")] = "30s",
    fairness: Annotated[
        str, typer.Option(help="So much longer a drive may be to who has been idle; and figures without.")
    ] = "0s",
    fairness_of_wait: Annotated[
        float, typer.Option(min=0, max=100, help="That is so many times what riders wait at most; 0: any.")
    ] = 0.0,
    hints: Annotated[
        bool,
        typer.Option("--hints", help="Free cars are told where they would be wanted; and waits without."),
    ] = False,
    follow: Annotated[float, typer.Option(min=0, max=1, help="Share of the drivers who go there.")] = 0.3,
    switchback: Annotated[
        str, typer.Option(help="Two policies that take turns, e.g. fifo,optimal, and their comparison.")
    ] = "",
    block: Annotated[str, typer.Option(help="How long each of them holds.")] = "30m",
    guard: Annotated[str, typer.Option(help="Who asks so early in a block is not judged.")] = "10m",
    beside_policy: Annotated[
        PolicyName | None, typer.Option("--beside", help="Replay by this policy, too, and compare by hour.")
    ] = None,
    car_value: Annotated[
        str, typer.Option(help="What a car is worth where more riders come than there are cars.")
    ] = "400s",
    drop_value: Annotated[
        str, typer.Option(help="What it costs that a ride ends where nobody asks.")
    ] = "300s",
    quiet: Annotated[bool, typer.Option(help="Show nothing but errors.")] = False,
) -> None:
    """Replay recorded requests in a closed loop with cars that accept at once and wait where they end."""
    from millrace.time.durations import to_ms
    from millrace_apps.ridesharing.evaluation.recorded import cut, read_requests
    from millrace_apps.ridesharing.evaluation.replay import Faults
    from millrace_apps.ridesharing.evaluation.replay_report import Plan, beside, carry_out

    start_ms, end_ms = to_time_ms(start), to_time_ms(end)
    if end_ms <= start_ms:
        raise UserError(f"--to {end} is not after --from {start}")
    requests = read_requests(trips, start_ms, end_ms)
    plan = Plan(
        start_ms=start_ms,
        end_ms=end_ms,
        fleet=fleet,
        policy=policy.value,
        window_ms=_window_ms(window),
        radius_m=parse_radius(radius),
        seed=seed,
        host=host.value,
        regions=cut(requests, regions),
        region_count=regions,
        faults=Faults(duplicates, late, restarts, seed),
        audit_topics=audit_topics,
        arrival_times=arrival_times,
        traffic=traffic,
        declines=declines,
        acceptance=acceptance,
        miss_ms=to_ms(miss),
        fairness_ms=to_ms(fairness),
        fairness_of_wait=fairness_of_wait,
        hints=hints,
        follow=follow,
        switchback=_turns(switchback, block, guard),
        beside=None if beside_policy is None else beside_policy.value,
        car_value_ms=to_ms(car_value),
        drop_value_ms=to_ms(drop_value),
    )
    report = carry_out(plan, requests, assignments, quiet=quiet)
    if arrival_times or acceptance or plan.fairness_ms or hints:
        usual = dataclasses.replace(plan, arrival_times=False, acceptance=False, fairness_ms=0, hints=False)
        beside(plan, report, carry_out(usual, requests, None, quiet=quiet))
    write(out, report)
    if not quiet:
        show(report, f"{len(requests):,} requests, {fleet} cars, {policy.value}")


@app.command(
    epilog="Example: millrace evaluate ridesharing hours --trips trips.parquet --from 2008-05-23T00:00Z "
    "--to 2008-05-25T00:00Z --fleet 400 --fleet 450 --out hours.json"
)
def hours(
    trips: Trips,
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="First request, e.g. 2008-05-23T00:00Z.")
    ],
    end: End,
    out: Report,
    fleet: Annotated[list[int] | None, typer.Option(help="Number of cars; may be given again.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Where the cars start; may be given again.")] = None,
    policy: Annotated[PolicyName, typer.Option(help="How windows are decided.")] = PolicyName.optimal,
    beside: Annotated[PolicyName, typer.Option(help="What it is compared with.")] = PolicyName.fifo,
    least: Annotated[int, typer.Option(min=1, help="Hours with fewer requests are not judged.")] = 200,
    window: Window = "10s",
    radius: Radius = "3km",
    fairness: Annotated[
        str, typer.Option(help="So much longer a drive may be to who has been idle; not so beside.")
    ] = "0s",
    fairness_of_wait: Annotated[
        float, typer.Option(min=0, max=100, help="That is so many times what riders wait at most; 0: any.")
    ] = 0.0,
    hints: Annotated[
        bool, typer.Option("--hints", help="Free cars are told where they would be wanted, by both.")
    ] = False,
    follow: Annotated[float, typer.Option(min=0, max=1, help="Share of the drivers who go there.")] = 0.3,
    car_value: Annotated[
        str, typer.Option(help="What a car is worth where more riders come than there are cars.")
    ] = "400s",
    drop_value: Annotated[
        str, typer.Option(help="What it costs that a ride ends where nobody asks.")
    ] = "300s",
    quiet: Annotated[bool, typer.Option(help="Show nothing but errors.")] = False,
) -> None:
    """Compare two policies hour by hour over days, fleets and seeds, by the matcher in a quick loop.

    Each UTC day is a run by itself. An hour is read twice: `own`, each policy has had the day to itself, and
    `same`, both go on from where the first one has left the cars at the hour's begin.
    """
    from millrace.time.durations import to_ms
    from millrace_apps.ridesharing.evaluation.hours import READINGS, Hours, carry_out
    from millrace_apps.ridesharing.evaluation.replay_report import Plan

    start_ms, end_ms = to_time_ms(start), to_time_ms(end)
    if end_ms <= start_ms:
        raise UserError(f"--to {end} is not after --from {start}")
    fleets, seeds = fleet or [400, 450], seed or [1, 2, 3]
    if min(fleets) < 1:
        raise UserError(f"--fleet is 1 or more, not {min(fleets)}")
    plan = Plan(
        start_ms=start_ms,
        end_ms=end_ms,
        fleet=fleets[0],
        policy=policy.value,
        window_ms=_window_ms(window),
        radius_m=parse_radius(radius),
        seed=seeds[0],
        fairness_ms=to_ms(fairness),
        fairness_of_wait=fairness_of_wait,
        hints=hints,
        car_value_ms=to_ms(car_value),
        drop_value_ms=to_ms(drop_value),
    )
    other = dataclasses.replace(plan, policy=beside.value, fairness_ms=0)
    asked = Hours(start_ms, end_ms, fleets, seeds, plan.config, other.config, least, follow)
    report = carry_out(trips, asked, quiet=quiet)
    write(out, report)
    if not quiet:
        for reading in READINGS:
            show(report[reading], f"{policy.value} beside {beside.value}: {reading}")


@app.command(epilog="Example: millrace evaluate ridesharing locations --gps gps.parquet --out report.json")
def locations(
    gps: Annotated[Path, typer.Option(help="CSV or Parquet of positions.")],
    out: Report,
    ttl: Annotated[str, typer.Option(help="A car silent for longer is stale.")] = "120s",
    quiet: Annotated[bool, typer.Option(help="Show nothing but errors.")] = False,
) -> None:
    """Run recorded positions through Spark: driver table, exclusions, counts per zone and minute."""
    from millrace.time.durations import to_ms
    from millrace_apps.ridesharing.evaluation.location_report import carry_out

    report = carry_out(gps, to_ms(ttl), quiet=quiet)
    write(out, report)
    if not quiet:
        show(report, f"{report['fixes']:,} positions of {report['drivers']:,} cars")


@app.command(
    epilog="Example: millrace evaluate ridesharing matcher --riders 300 --cars 1000 --out report.json"
)
def matcher(
    out: Report,
    riders: Annotated[int, typer.Option(min=1, max=5_000, help="Riders in a window.")] = 300,
    cars: Annotated[int, typer.Option(min=1, max=50_000, help="Free cars.")] = 1_000,
    windows: Annotated[int, typer.Option(min=1, max=10_000, help="Windows that are measured.")] = 100,
    seed: Annotated[int, typer.Option(help="Where everybody is.")] = 1,
    acceptance: Annotated[
        bool, typer.Option("--acceptance", help="It counts who is likely to say yes, too.")
    ] = False,
    quiet: Annotated[bool, typer.Option(help="Show nothing but errors.")] = False,
) -> None:
    """Measure how long the optimal policy takes for a window of scattered riders and cars."""
    from millrace_apps.ridesharing.evaluation.matcher_report import carry_out

    report = carry_out(riders, cars, windows, seed, acceptance=acceptance)
    write(out, report)
    if not quiet:
        show(report, f"{riders:,} riders, {cars:,} cars")


@app.command()
def eta(
    trips: Trips,
    train_until: Annotated[str, typer.Option(help="Trips that ended by then are learned from.")],
    test_from: Annotated[str, typer.Option(help="Trips from then on are judged, e.g. 2008-05-23T00:00Z.")],
    out: Report,
    test_until: Annotated[str | None, typer.Option(help="Trips before then; default: all.")] = None,
    zone: Annotated[str, typer.Option(help="Time zone of the city.")] = "America/Los_Angeles",
    scores: Annotated[Path | None, typer.Option(help="Parquet: a row per judged trip.")] = None,
    quiet: Annotated[bool, typer.Option(help="Show nothing but errors.")] = False,
) -> None:
    """Learn how long trips take from those that have ended, and judge estimates of later ones.

    Example: millrace evaluate ridesharing eta --trips trips.parquet --train-until 2008-05-23T00:00Z
    --test-from 2008-05-23T00:00Z --out eta.json --scores eta.parquet
    """
    from millrace_apps.ridesharing.eta.report import carry_out

    report = carry_out(
        trips,
        to_time_ms(train_until),
        to_time_ms(test_from),
        None if test_until is None else to_time_ms(test_until),
        zone=zone,
        scores=scores,
        say=lambda line: None if quiet else typer.echo(line, err=True),
    )
    write(out, report)
    if not quiet:
        show(report, f"{report['tested']:,} trips")


@app.command()
def demand(
    trips: Trips,
    train_until: Annotated[
        str, typer.Option(help="Quarters of an hour that ended by then are learned from.")
    ],
    test_from: Annotated[str, typer.Option(help="Those from then on are judged, e.g. 2008-05-23T00:00Z.")],
    out: Report,
    test_until: Annotated[str | None, typer.Option(help="Those before then; default: all.")] = None,
    zone: Annotated[str, typer.Option(help="Time zone of the city.")] = "America/Los_Angeles",
    resolution: Annotated[int, typer.Option(help="H3 resolution of the cells.")] = 8,
    scores: Annotated[Path | None, typer.Option(help="Parquet: a row per cell and quarter.")] = None,
    quiet: Annotated[bool, typer.Option(help="Show nothing but errors.")] = False,
) -> None:
    """Learn how many requests a cell has in a quarter of an hour, and judge forecasts of later ones.

    Example: millrace evaluate ridesharing demand --trips trips.parquet --train-until 2008-05-23T00:00Z
    --test-from 2008-05-23T00:00Z --out demand.json
    """
    from millrace_apps.ridesharing.demand.report import carry_out

    report = carry_out(
        trips,
        to_time_ms(train_until),
        to_time_ms(test_from),
        None if test_until is None else to_time_ms(test_until),
        zone=zone,
        resolution=resolution,
        scores=scores,
        say=lambda line: None if quiet else typer.echo(line, err=True),
    )
    write(out, report)
    if not quiet:
        show(report, f"{report['requests']:,} requests")


@app.command()
def reposition(
    trips: Trips,
    train_until: Annotated[str, typer.Option(help="Demand until then is learned from.")],
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="First request, e.g. 2008-05-24T02:00Z.")
    ],
    end: End,
    out: Report,
    fleet: Annotated[int, typer.Option(min=1, max=100_000, help="Number of cars.")] = 450,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="With the seeds from 1 to this.")] = 3,
    share: Annotated[float, typer.Option(min=0, max=1, help="Share of the drivers who follow hints.")] = 0.3,
    zone: Annotated[str, typer.Option(help="Time zone of the city.")] = "America/Los_Angeles",
    quiet: Annotated[bool, typer.Option(help="Show nothing but errors.")] = False,
) -> None:
    """Replay requests with cars that wait, and with cars of which some follow hints of the forecast.

    Example: millrace evaluate ridesharing reposition --trips trips.parquet --train-until 2008-05-23T00:00Z
    --from 2008-05-24T02:00Z --to 2008-05-24T05:00Z --out reposition.json
    """
    from millrace_apps.ridesharing.demand.loop import carry_out

    report = carry_out(
        trips,
        to_time_ms(train_until),
        to_time_ms(start),
        to_time_ms(end),
        cars=fleet,
        seeds=range(1, seeds + 1),
        share=share,
        zone=zone,
        say=lambda line: None if quiet else typer.echo(line, err=True),
    )
    write(out, report)
    if not quiet:
        show({name: value for name, value in report.items() if name != "runs"}, f"{fleet} cars")


@app.command()
def surge(
    out: Report,
    seed: Annotated[int, typer.Option(min=0, help="Where everybody is, and what they do.")] = 1,
    cars: Annotated[int, typer.Option(min=1, max=10_000, help="Cars on line, as usual.")] = 340,
    per_hour: Annotated[int, typer.Option(min=1, max=100_000, help="Requests in an hour, as usual.")] = 1_500,
    hours: Annotated[float, typer.Option(min=0.5, max=24, help="How long it goes.")] = 2.75,
    shock: Annotated[
        float, typer.Option(min=1, max=10, help="So many times the requests in the shock.")
    ] = 2.0,
    quiet: Annotated[bool, typer.Option(help="Show nothing but errors.")] = False,
) -> None:
    """Run a city through a shock of demand, without surge and with it, for six pairs of elasticities.

    Example: millrace evaluate ridesharing surge --seed 1 --out surge.json
    """
    from millrace_apps.ridesharing.surge.report import carry_out
    from millrace_apps.ridesharing.surge.world import World

    world = World(
        seed=seed, per_hour=per_hour, cars=cars, hours=hours, shock=shock, shock_from_h=hours * 3 / 11,
        shock_hours=hours * 5 / 11,
    )  # fmt: skip
    report = carry_out(world, say=lambda line: None if quiet else typer.echo(line, err=True))
    write(out, report)
    if not quiet:
        show({name: value for name, value in report.items() if name not in ("runs", "without")}, "surge")


@app.command()
def debs(
    trips: Annotated[Path, typer.Option(help="Parquet or CSV of trips with the challenge's columns.")],
    query: Annotated[int, typer.Option(min=1, max=2, help="1: frequent routes, 2: profitable areas.")],
    out: Report,
    expected: Annotated[
        Path | None, typer.Option(help="Results to be held to, too, as the challenge writes them.")
    ] = None,
    results: Annotated[Path | None, typer.Option(help="Parquet: a row per ranking that is told.")] = None,
    host: Annotated[Host, typer.Option("--engine", help="Where the query runs.")] = Host.memory,
    repeat: Annotated[int, typer.Option(min=1, max=10_000, help="Times that the trips come.")] = 1,
    quiet: Annotated[bool, typer.Option(help="Show nothing but errors.")] = False,
) -> None:
    """Run a query of the DEBS 2015 Grand Challenge over taxi trips, and hold it to an oracle.

    Example: millrace evaluate ridesharing debs --trips trips.parquet --query 1 --repeat 100 --out debs1.json
    """
    from millrace.errors import ChecksFailed
    from millrace_apps.ridesharing.debs.report import carry_out

    report = carry_out(
        trips,
        query,
        expected=expected,
        results=results,
        host=host.value,
        repeat=repeat,
        say=lambda line: None if quiet else typer.echo(line, err=True),
    )
    write(out, report)
    if not quiet:
        show(report, f"query {query} on {report['trips']:,} trips")
    if not report["equal"]:
        raise ChecksFailed(f"query {query} does not tell what it should: {out} has what differs")


def show(report: dict[str, Any], title: str) -> None:
    """Print the plain values of a report as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, show_header=False)
    for name, value in report.items():
        if isinstance(value, bool | int | float | str):
            table.add_row(name, f"{value:,.4g}" if isinstance(value, float) else str(value))
    Console().print(table)


def parse_radius(text: str) -> float:
    """Return a distance such as ``3km`` or ``800m`` in metres.

    Raises:
        UserError: It is none, or not between 100 m and 50 km.

    >>> parse_radius("3km"), parse_radius("800m")
    (3000.0, 800.0)
    """
    number, unit = (text[:-2], 1_000.0) if text.endswith("km") else (text.removesuffix("m"), 1.0)
    try:
        metres = float(number) * unit
    except ValueError:
        raise UserError(f"--radius is a distance such as 3km or 800m, not {text}") from None
    if not 100 <= metres <= 50_000:
        raise UserError(f"--radius is between 100m and 50km, not {text}")
    return metres


def _turns(arms: str, block: str, guard: str) -> Switchback | None:
    from millrace.experiments import Switchback
    from millrace.time.durations import to_ms

    if not arms:
        return None
    first, _, second = arms.partition(",")
    if not {first, second} <= {one.value for one in PolicyName}:
        raise UserError(f"--switchback names two of {', '.join(PolicyName)}, e.g. fifo,optimal; not {arms}")
    return Switchback("replay", (first, second), to_ms(block), to_ms(guard))


def _window_ms(text: str) -> int:
    from millrace.time.durations import to_ms

    length = to_ms(text)
    if not 1_000 <= length <= 60_000:
        raise UserError(f"--window is between 1s and 60s, not {text}")
    return length

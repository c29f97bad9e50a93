"""The report of a replay, and the same events through Spark."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from millrace.experiments import Switchback
from millrace.operations.report import write_parquet
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.evaluation.fleet import Fleet, Request, Traffic
from millrace_apps.ridesharing.evaluation.replay import Faults, Replay, run_replay
from millrace_apps.ridesharing.evaluation.willing import Willing
from millrace_apps.ridesharing.operations.audit import Findings, audit
from millrace_apps.ridesharing.operations.switchbacks import compare_trips
from millrace_apps.ridesharing.processes.acceptance import AcceptanceConfig
from millrace_apps.ridesharing.processes.arrivals import ArrivalConfig
from millrace_apps.ridesharing.processes.income import IncomeConfig
from millrace_apps.ridesharing.processes.matching import Policy, Rules
from millrace_apps.ridesharing.processes.regions import Regions
from millrace_apps.ridesharing.topic_audit.fairness import gini
from millrace_apps.ridesharing.topic_audit.report import audit_topics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millrace.runtime.replay import Record


#: What a replay without something is told of beside one with it.
WAITS: Final = (
    "served_share",
    "mean_wait_s",
    "p95_wait_s",
    "max_wait_s",
    "mean_pickup_km",
    "idle_gini",
    "attempts",
    "by_hour",
)


@dataclass(frozen=True)
class Plan:
    """What is replayed how; times in UTC ms."""

    start_ms: int
    end_ms: int
    fleet: int
    policy: Policy
    window_ms: int
    radius_m: float
    seed: int
    host: str = "memory"
    regions: Regions = field(default_factory=Regions)
    region_count: int = 1
    faults: Faults = field(default_factory=Faults)
    audit_topics: bool = False
    arrival_times: bool = False
    traffic: bool = False
    declines: bool = False
    acceptance: bool = False
    miss_ms: int = AcceptanceConfig().miss_ms
    fairness_ms: int = 0
    fairness_of_wait: float = IncomeConfig(worth_ms=0).of_wait
    hints: bool = False
    follow: float = 0.3
    switchback: Switchback | None = None
    beside: Policy | None = None
    car_value_ms: int = Rules().car_value_ms
    drop_value_ms: int = Rules().drop_value_ms

    @property
    def config(self) -> DispatchConfig:
        """What the processes are told."""
        return DispatchConfig(
            regions=self.regions,
            policy=self.policy,
            rules=Rules(
                radius_m=self.radius_m,
                car_value_ms=self.car_value_ms,
                drop_value_ms=self.drop_value_ms,
            ),
            window_ms=self.window_ms,
            patience_ms=300_000,
            refresh_ms=30_000,
            arrivals=ArrivalConfig() if self.arrival_times else None,
            acceptance=AcceptanceConfig(miss_ms=self.miss_ms) if self.acceptance else None,
            income=IncomeConfig(worth_ms=self.fairness_ms, of_wait=self.fairness_of_wait)
            if self.fairness_ms
            else None,
            switchback=self.switchback,
            standing_ms=60_000 if self.hints else 0,
        )


def carry_out(
    plan: Plan, requests: list[Request], assignments: Path | None, *, quiet: bool
) -> dict[str, Any]:
    """Replay, measure, and write the assignments if they are wanted.

    Args:
        plan: What to do.
        requests: What was asked for.
        assignments: Where the served requests go, a row each.
        quiet: Show no progress.

    Returns:
        The report.
    """
    done = _replayed(plan, requests, quiet=quiet)
    report = measure(plan, done)
    if plan.arrival_times:
        report["arrival_times"] = arrivals_of(done)
    if plan.acceptance:
        report["acceptance"] = acceptance_of(done)
    if plan.hints:
        report["hints"] = {"told": len(done.records.get("hints", [])), "followed": done.fleet.followed}
    if plan.beside is not None:
        other = _replayed(
            replace(plan, policy=plan.beside, host="memory", beside=None), requests, quiet=quiet
        )
        report["beside"] = {"policy": plan.beside, **paired(done, other)}
    if plan.switchback is not None:
        report["switchback"] = compare_trips(plan.switchback, done.records.get("trips", []))
    if done.evidence is not None:
        audited = audit_topics(done.evidence)
        report |= {"topic_violations": audited.count, "topic_audit": audited.to_json()}
    if plan.host == "spark":
        report |= through_spark(plan, done)
    if assignments is not None:
        write_parquet(assignments, served_table(done))
    return report


def _replayed(plan: Plan, requests: list[Request], *, quiet: bool) -> Replay:
    traffic = Traffic(requests) if plan.traffic else None
    willing = Willing(plan.seed) if plan.declines else None
    about = (requests, plan.fleet, plan.seed, plan.start_ms, plan.end_ms)
    follow = plan.follow if plan.hints else 0.0
    fleet = Fleet(*about, traffic=traffic, willing=willing, follow=follow)
    with _progress(quiet) as advance:
        return run_replay(
            fleet,
            plan.config,
            faults=plan.faults,
            keep_log=plan.host == "spark",
            keep_evidence=plan.audit_topics,
            progress=advance,
        )


def measure(plan: Plan, done: Replay) -> dict[str, Any]:
    """Return the figures of a replay."""
    fleet = done.fleet
    asked = {r.request_id: r.at_ms for r in fleet.requests}
    served = fleet.served
    waits = np.array([(s.pickup_ms - asked[name]) / 1_000 for name, s in served.items()])
    kilometres = np.array([s.pickup_km for s in served.values()])
    findings = audit_replay(plan, done)
    reasons = Counter(row["reason"] for row in done.records.get("Gate.dead_letters", []))
    last = {t["request_id"]: t["state"] for t in done.records.get("trips", [])}
    return {
        "requests": len(fleet.requests),
        "served_share": len(served) / len(fleet.requests),
        "mean_wait_s": float(waits.mean()) if len(waits) else 0.0,
        "p95_wait_s": float(np.percentile(waits, 95)) if len(waits) else 0.0,
        "max_wait_s": float(waits.max()) if len(waits) else 0.0,
        "mean_pickup_km": float(kilometres.mean()) if len(kilometres) else 0.0,
        "idle_gini": gini(fleet.idle_seconds()),
        "optimality_ratio": done.optimum.ratio,
        "worst_window_ratio": done.optimum.worst,
        "invariant_violations": findings.count + len(done.alarms),
        "violations": [*findings.examples, *map(str, done.alarms[:5])],
        "checked": findings.checked,
        "by_hour": by_hour(done),
        "windows": done.optimum.windows,
        "attempts": len({(a["request_id"], a["attempt"]) for a in done.records.get("attempts", [])}),
        "endings": dict(Counter(last.values())),
        "handovers": sum(d["change"] == "left" for d in done.records.get("drivers", [])),
        "late": len(done.records.get("Gate.late", [])),
        "dead_letters": dict(reasons),
        "state_left": done.state_left,
        "host": plan.host,
        "policy": plan.policy,
        "fleet": plan.fleet,
        "regions": plan.region_count,
        "window_s": plan.window_ms / 1_000,
        "radius_km": plan.radius_m / 1_000,
        "seed": plan.seed,
        "wall_s": done.wall_s,
    }


def arrivals_of(done: Replay) -> dict[str, dict[str, float]]:
    """Return how wrong it was what was told of ways that ended: to the pick-up and with the rider.

    Returns:
        ``pickup`` and ``trip`` → number of ways, mean errors in seconds of what was expected when they began,
        of the straight line, and of all that riders were told; share of ways within their interval.
    """
    rows = pd.DataFrame(done.records.get("drives", []))
    found = {}
    for way, of in rows.groupby("way") if len(rows) else ():
        found[str(way)] = {
            "ways": len(of),
            "mae_s": float((of["expected_s"] - of["took_s"]).abs().mean()),
            "straight_mae_s": float((of["straight_s"] - of["took_s"]).abs().mean()),
            "told_mae_s": float(np.average(of["told_wrong_s"], weights=of["told"])),
            "last_mae_s": float(of["last_wrong_s"].mean()),
            "coverage_90": float(of["held"].mean()),
        }
    return found


def acceptance_of(done: Replay) -> dict[str, float]:
    """Return how well it was foreseen who takes what.

    Returns:
        Number of offers that were answered or ignored, share of them taken, mean of what was expected, and
        Brier scores (mean square error of a probability) of that and of the share taken so far.
    """
    rows = pd.DataFrame(done.records.get("chances", []), columns=["expected", "answer"])
    said = (rows["answer"] == "accept").to_numpy(float)
    if not len(said):
        return {"offers": 0}
    before = np.concatenate([[0.9], (np.cumsum(said)[:-1] + 9.0) / (np.arange(1, len(said)) + 10.0)])
    return {
        "offers": len(said),
        "taken_share": float(said.mean()),
        "expected_share": float(rows["expected"].mean()),
        "brier": float(((rows["expected"] - said) ** 2).mean()),
        "brier_of_fleet": float(((before - said) ** 2).mean()),
    }


def beside(plan: Plan, report: dict[str, Any], before: dict[str, Any]) -> None:
    """Put the figures of a replay without what is tried beside those of one with it.

    Args:
        plan: What was tried.
        report: The report of the replay with it, which is written to.
        before: That of the replay without.
    """
    report["without"] = {name: before[name] for name in WAITS}
    if plan.hints:
        waited = before["mean_wait_s"]
        report["wait_lower"] = 1 - report["mean_wait_s"] / waited if waited else 0.0
    if plan.fairness_ms:
        report["gini_lower"] = 1 - report["idle_gini"] / before["idle_gini"] if before["idle_gini"] else 0.0
        report["wait_more"] = (
            report["mean_wait_s"] / before["mean_wait_s"] - 1 if before["mean_wait_s"] else 0.0
        )


def audit_replay(plan: Plan, done: Replay) -> Findings:
    """Check the records of a replay as the tables are checked."""
    names = {"assignments": "attempts", "trips": "trips", "offers": "offers", "windows": "windows"}
    tables = {table: pd.DataFrame(done.records.get(output, [])) for table, output in names.items()}
    return audit(tables, patience_ms=plan.config.patience_ms, rules=plan.config.rules)


def by_hour(done: Replay) -> dict[str, dict[str, float]]:
    """Return the figures of each hour (UTC) in which something was asked for, by the time of the request.

    Args:
        done: The replay.

    Returns:
        Hour, as ``2008-05-23T05``, → requests, share of them served, mean and 95th percentile of waits (s).
    """
    asked = pd.DataFrame([(r.request_id, r.at_ms) for r in done.fleet.requests], columns=["name", "at_ms"])
    pickups = asked["name"].map({name: s.pickup_ms for name, s in done.fleet.served.items()})
    waits = (pickups - asked["at_ms"]) / 1_000
    hours = pd.to_datetime(asked["at_ms"], unit="ms").dt.strftime("%Y-%m-%dT%H")
    found = {}
    for hour, of in waits.groupby(hours):
        got = of.dropna()
        found[str(hour)] = {
            "requests": len(of),
            "served_share": len(got) / len(of),
            "mean_wait_s": float(got.mean()) if len(got) else 0.0,
            "p95_wait_s": float(np.percentile(got, 95)) if len(got) else 0.0,
        }
    return found


def paired(done: Replay, other: Replay) -> dict[str, Any]:
    """Return two replays of the same requests side by side: shares served, and waits of whom both serve.

    Args:
        done: A replay.
        other: The other, by another policy.

    Returns:
        ``all``, and ``by_hour`` → hour (UTC) → requests, shares that each served, riders whom both did, and
        mean waits of those, seconds.
    """
    frame = pd.DataFrame([(r.request_id, r.at_ms) for r in done.fleet.requests], columns=["name", "at_ms"])
    for column, of in (("wait", done), ("other", other)):
        pickups = frame["name"].map({name: s.pickup_ms for name, s in of.fleet.served.items()})
        frame[column] = (pickups - frame["at_ms"]) / 1_000
    hours = pd.to_datetime(frame["at_ms"], unit="ms").dt.strftime("%Y-%m-%dT%H")

    def figures(rows: pd.DataFrame) -> dict[str, float]:
        both = rows.dropna()
        return {
            "requests": len(rows),
            "served_share": float(rows["wait"].notna().mean()),
            "other_served_share": float(rows["other"].notna().mean()),
            "both": len(both),
            "paired_wait_s": float(both["wait"].mean()) if len(both) else 0.0,
            "other_paired_wait_s": float(both["other"].mean()) if len(both) else 0.0,
        }

    return {
        "all": figures(frame),
        "by_hour": {str(hour): figures(rows) for hour, rows in frame.groupby(hours)},
    }


def served_table(done: Replay) -> pd.DataFrame:
    """Return a row per served request, by request."""
    rows = [
        {
            "request_id": name,
            "driver_id": s.driver_id,
            "attempt": s.attempt,
            "offered_time": pd.Timestamp(s.offered_ms, unit="ms", tz="UTC"),
            "accepted_time": pd.Timestamp(s.accepted_ms, unit="ms", tz="UTC"),
            "pickup_time": pd.Timestamp(s.pickup_ms, unit="ms", tz="UTC"),
            "pickup_km": s.pickup_km,
            "dropoff_time": pd.Timestamp(s.dropoff_ms, unit="ms", tz="UTC"),
        }
        for name, s in sorted(done.fleet.served.items(), key=lambda item: (item[1].offered_ms, item[0]))
    ]
    return pd.DataFrame(rows)


def through_spark(plan: Plan, done: Replay) -> dict[str, Any]:
    """Run the same events through the app's pipeline on Spark and compare the assignments.

    Args:
        plan: What was replayed.
        done: The replay in memory, with its log.
    """
    from millrace.runtime.replay import run_records
    from millrace.runtime.settings import load_settings
    from millrace_apps.ridesharing.app import app
    from millrace_apps.ridesharing.settings import RidesharingSettings
    from millrace_apps.ridesharing.topology import topology

    overrides = ["stream.out_of_orderness=0s", "stream.max_future_skew=36500d"]
    settings = load_settings(RidesharingSettings, app="ridesharing", overrides=overrides, env={})
    told = replace(app, topology=lambda given: topology(given, plan.config))
    with tempfile.TemporaryDirectory(prefix="millrace-rides-") as folder:
        ran = run_records(told, settings, Path(folder), _batches(done, settings.topics), drain=True)
        columns = ["request_id", "attempt", "driver_id", "state", "offered_ms", "accepted_ms", "closed_ms"]
        found = ran.table("assignments", columns).to_pandas()
        violations = ran.table("violations").num_rows
    key = ["request_id", "attempt"]
    wanted = pd.DataFrame(done.records.get("attempts", [])).sort_values("revision").groupby(key).tail(1)
    same = (
        found.sort_values(key)
        .reset_index(drop=True)
        .equals(wanted[columns].sort_values(key).reset_index(drop=True))
    )
    return {
        "spark_equal": same,
        "spark_assignments": len(found),
        "spark_violations": violations,
        "spark_rows": ran.rows,
        "spark_batches": ran.batches,
        "spark_wall_s": ran.seconds,
        "spark_events_per_s": ran.events_per_s,
    }


#: So many windows are one batch on Spark: what comes out does not hang on it.
_WINDOWS_A_BATCH = 30


def _batches(done: Replay, topics: Any) -> Iterator[list[Record]]:
    from millrace.runtime.replay import Record

    batch: list[Record] = []
    for number, events in enumerate(done.log, 1):
        batch += [Record(getattr(topics, name), value, key.encode(), at) for name, key, at, value in events]
        if number % (2 * _WINDOWS_A_BATCH) == 0:
            yield batch
            batch = []
    yield batch


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    if quiet:
        yield lambda done, of: None
        return
    from rich.progress import Progress

    with Progress(transient=True) as bar:
        task = bar.add_task("replaying", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)

"""Policies that took turns in each region, compared block by block by what riders had of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from millrace.experiments import Observation, Switchback, compare_blocks
from millrace_apps.ridesharing.state.lifecycle import TERMINAL


def compare_trips(
    plan: Switchback, trips: Iterable[Mapping[str, Any]], windows: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Compare the arms of an experiment by the waits of riders and by the share of those who were picked up.

    A request belongs to the block in which a driver was first searched for. What has not ended is not
    counted, nor is who was refused or called the ride off. A trip that was completed though nobody said
    that it had begun was served; how long its rider has waited is not known.

    Args:
        plan: The experiment.
        trips: Rows of the table ``trips``, in any order.
        windows: Rows of ``windows``: a block in which another policy held than its arm's is left out.

    Returns:
        ``wait_s`` and ``served_share`` → the comparison, as plain values; ``decided`` → which of the two are.
    """
    began: dict[str, tuple[int, str]] = {}
    waited: dict[str, float] = {}
    ended: dict[str, str] = {}
    for row in trips:
        name, state = row["request_id"], row["state"]
        if state == "processing" and row["at_ms"] < began.get(name, (1 << 62, ""))[0]:
            began[name] = (row["at_ms"], row["region"])
        elif state == "in_progress":
            waited[name] = row["wait_ms"] / 1_000
        elif state in TERMINAL:
            ended[name] = state
    waits, served = list[Observation](), list[Observation]()
    for name, (at, region) in sorted(began.items()):
        if name in waited:
            waits.append(Observation(region, at, waited[name]))
        was_served = name in waited or ended.get(name) == "completed"
        if was_served or ended.get(name) in ("no_drivers_available", "lost"):
            served.append(Observation(region, at, float(was_served)))
    broken = {
        (row["region"], plan.block(row["window_end_ms"] - 1))
        for row in windows
        if row["policy"] != plan.arm(row["region"], row["window_end_ms"] - 1)
    }
    found = {
        "wait_s": compare_blocks(plan, waits, broken=broken),
        "served_share": compare_blocks(plan, served, broken=broken),
    }
    told: dict[str, Any] = {name: msgspec.to_builtins(one) for name, one in found.items()}
    return {**told, "decided": [name for name, one in found.items() if one.is_decided]}

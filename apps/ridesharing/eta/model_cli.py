"""``millrace models ridesharing …``: train, list, compare, promote and roll back arrival times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from millrace.models.commands import Learned, Training, command_line, training

if TYPE_CHECKING:
    from millrace.models.learner import Learner


def _learning() -> Learner:
    from millrace_apps.ridesharing.eta.learner import LEARNER

    return LEARNER


def learn(
    of: Training,
    rounds: Annotated[int, typer.Option(min=1, max=5_000, help="Trees of each of the two models.")] = 900,
) -> Learned:
    """Learn how long ways take from those that have ended (arrivals.on), and let it challenge the champion.

    `--model eta` learns trips, `--model pickup` the ways to riders.

    Example: millrace models ridesharing train --model pickup
    """
    import msgspec
    import numpy as np

    from millrace.models.boosted import BOOSTED
    from millrace.models.candidate import Candidate
    from millrace_apps.ridesharing.eta.features import FEATURES_VERSION, NAMES
    from millrace_apps.ridesharing.eta.learner import kind_of, read_ways
    from millrace_apps.ridesharing.eta.training import train

    called = (of.model or "").partition(":")[0]
    kind = kind_of(of.shop.model.name if called not in ("eta", "pickup") else f"ridesharing-{called}")
    ways = read_ways(of.tables, kind)
    now = of.until(int(ways.ended_ms.max()))
    ways = ways.of(ways.ended_ms <= now)
    made = train(ways.features, ways.nothing_s, ways.took_s, now, rounds)
    candidate = Candidate(
        estimator=made.estimator,
        inputs=tuple(NAMES),
        since_ms=int(ways.ended_ms.min()),
        until_ms=int(ways.ended_ms.max()),
        rows=made.legs,
        features_version=FEATURES_VERSION,
        kind="regressor",
        metrics={"mae_s": made.mae_s, "straight_mae_s": made.straight_mae_s},
        tables=dict(of.tables.versions),
        facts={"drivers": len(np.unique(ways.drivers))},
        about={"spread": msgspec.to_builtins(made.spread), "legs": made.legs, "way": kind.name},
        trusted=BOOSTED,
    )
    return Learned(
        candidate,
        [
            f"{made.legs:,} ways; wrong by {made.mae_s:.1f} s on the newest fifth, "
            f"the straight line by {made.straight_mae_s:.1f} s"
        ],
    )


app = command_line("ridesharing", _learning, {"train": training(_learning, learn)})

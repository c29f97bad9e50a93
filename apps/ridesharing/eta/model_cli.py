"""``millrace models ridesharing …``: train, list, compare, promote and roll back arrival times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from millrace.models.commands import (
    AsOf,
    Root,
    TableVersion,
    To,
    Uri,
    Which,
    command_line,
    entered,
    opened,
    time_of,
)

if TYPE_CHECKING:
    from millrace.models.learner import Learner


def _learning() -> Learner:
    from millrace_apps.ridesharing.eta.learner import LEARNER

    return LEARNER


def train(
    root: Root = None,
    registry: Uri = None,
    exports: To = None,
    model: Which = None,
    as_of: AsOf = None,
    table_version: TableVersion = None,
    rounds: Annotated[int, typer.Option(min=1, max=5_000, help="Trees of each of the two models.")] = 900,
) -> None:
    """Learn how long ways take from those that have ended (arrivals.on), and let it challenge the champion.

    `--model eta` learns trips, `--model pickup` the ways to riders.

    Example: millrace models ridesharing train --model pickup
    """
    import msgspec
    import numpy as np

    from millrace.models.boosted import BOOSTED
    from millrace.models.candidate import Candidate
    from millrace.models.tables import parse_versions
    from millrace_apps.ridesharing.eta.features import FEATURES_VERSION, NAMES
    from millrace_apps.ridesharing.eta.learner import kind_of, read_ways
    from millrace_apps.ridesharing.eta.training import train as learn

    shop = opened(_learning, model, root, registry, exports)
    called = (model or "").partition(":")[0]
    kind = kind_of(shop.model.name if called not in ("eta", "pickup") else f"ridesharing-{called}")
    tables = shop.tables(parse_versions(table_version or ()))
    ways = read_ways(tables, kind)
    tables.check_wanted()
    now = time_of(as_of, int(ways.ended_ms.max()))
    ways = ways.of(ways.ended_ms <= now)
    made = learn(ways.features, ways.nothing_s, ways.took_s, now, rounds)
    version, champion = shop.enter(
        Candidate(
            estimator=made.estimator,
            inputs=tuple(NAMES),
            since_ms=int(ways.ended_ms.min()),
            until_ms=int(ways.ended_ms.max()),
            rows=made.legs,
            features_version=FEATURES_VERSION,
            kind="regressor",
            metrics={"mae_s": made.mae_s, "straight_mae_s": made.straight_mae_s},
            tables=dict(tables.versions),
            facts={"drivers": len(np.unique(ways.drivers))},
            about={"spread": msgspec.to_builtins(made.spread), "legs": made.legs, "way": kind.name},
            trusted=BOOSTED,
        )
    )
    typer.echo(
        f"version {version}: {made.legs:,} ways; wrong by {made.mae_s:.1f} s on the newest fifth, "
        f"the straight line by {made.straight_mae_s:.1f} s"
    )
    typer.echo(entered(shop, version, champion))


app = command_line("ridesharing", _learning, {"train": train})

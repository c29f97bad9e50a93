"""``millrace models clickstream …``: train, list, compare, promote and roll back the order of next items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from millrace.models.commands import Learned, Training, command_line, training

if TYPE_CHECKING:
    from millrace.models.learner import Learner


def _learning() -> Learner:
    from millrace_apps.clickstream.recommend.learner import LEARNER

    return LEARNER


def learn(of: Training, seed: Annotated[int, typer.Option(help="Seed of the trees.")] = 0) -> Learned:
    """Learn in which order candidates are clicked, from the lists that the app has kept (recommend.examples).

    What is learned from the first three quarters must win on the last one, or nothing is registered.

    Example: millrace models clickstream train --model next
    """
    from millrace.models.boosted import BOOSTED
    from millrace.models.candidate import Candidate
    from millrace.models.tables import CannotTrain
    from millrace_apps.clickstream.recommend.learned import FEATURES_VERSION, INPUTS
    from millrace_apps.clickstream.recommend.learner import learn as learn_from
    from millrace_apps.clickstream.recommend.learner import read_shown

    shown = read_shown(of.tables)
    now = of.until(max((one.at_ms for one in shown), default=0))
    part = [one for one in shown if one.at_ms <= now]
    if not part:
        raise CannotTrain("of no list is it known what was clicked next")
    estimator, proof = learn_from(part, seed)
    less = proof.less_unlearned
    gains = (f"{name} {at:+.4f} ({low:+.4f} to {high:+.4f})" for name, (at, low, high) in less.items())
    candidate = Candidate(
        estimator=estimator,
        inputs=INPUTS,
        since_ms=part[0].at_ms,
        until_ms=part[-1].at_ms,
        rows=len(part),
        features_version=FEATURES_VERSION,
        kind="recommender",
        metrics={f"{name}_gain": mean for name, (mean, _, _) in less.items()},
        tables=dict(of.tables.versions),
        facts={"judged_by": proof.judged_by},
        about={"less_unlearned": less},
        trusted=BOOSTED,
    )
    return Learned(
        candidate,
        [
            f"{len(part):,} lists; over the order of sessions alike on the newest {proof.judged_by:,}: "
            f"{', '.join(gains)}"
        ],
    )


app = command_line("clickstream", _learning, {"train": training(_learning, learn)})

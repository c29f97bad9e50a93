"""The fraud app's topology: what is done with transactions, labels and authorisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace.topology import Input, Topology, Upsert, read
from millrace_apps.fraud.model.prequential import PrequentialMetrics
from millrace_apps.fraud.processes.entity_stages import stages
from millrace_apps.fraud.processes.judging import WATCHED
from millrace_apps.fraud.settings import FraudSettings

if TYPE_CHECKING:
    from millrace_apps.fraud.processes.scorer import Scorer


def topology(settings: FraudSettings) -> Topology:
    """Return the app's topology.

    Args:
        settings: The app's settings; ``features.entities`` says which stages follow the card's,
            ``model.registry`` which models are asked.

    Returns:
        Tables ``transactions`` (one row per decision), ``alerts``, ``labels``, ``authorisations``, ``late``,
        ``corrections`` and ``dead_letters``; topics for alerts and dead letters.
    """
    measures, labels = settings.model.measure, settings.labels.rules()
    first, rest = stages(
        settings.features.stages,
        *_models(settings),
        labels,
        measures=measures,
        control_group=settings.decisions.control(),
        half_life=settings.features.half_life.days,
    )
    law = settings.governance.law()
    for stage in (first, *(stage for _, stage in rest)):
        stage.governance = law
    first.currency = settings.currency.billing
    names = settings.topics
    inputs = {
        "transactions": Input(names.transactions, "card_id"),
        # A label has the time of its transaction, long ago: it says nothing of how far time is.
        "labels": Input(names.labels, "card_id", "transaction_time_ms", clock=False),
        "authorisations": Input(names.authorisations, "card_id", "transaction_time_ms", clock=False),
        "erasures": Input(names.erasures, "card_id", "event_time_ms", clock=False),
    }
    made = read(inputs, control=names.control).process(first)
    for key, stage in rest:
        made = made.key_by(key).process(stage)
    if measures:
        metrics = PrequentialMetrics(labels.mature_ms, features=WATCHED)
        made = made.key_by("model", output="outcomes").process(metrics)
    tables = _tables([first.name, *(stage.name for _, stage in rest)], measures=measures)
    topics = {"alerts": names.alerts, "dead_letters": names.dead_letters}
    return made.write(
        tables=tables,
        topics={o: topics[t] for o, t in tables.items() if isinstance(t, str) and t in topics},
    )


def _tables(names: Sequence[str], *, measures: bool) -> dict[str, str | Upsert]:
    """Return output → table; an output is led by the name of its stage, unless that is the last of all.

    Late events, repeats and what cannot be read end in the first stage; a later one has dead letters only
    where its own code fails.
    """
    last = "" if measures else names[-1]

    def of(name: str, output: str) -> str:
        return output if name == last else f"{name}.{output}"

    first, decision = names[0], names[-1]
    tables: dict[str, str | Upsert] = {
        of(decision, "main"): "transactions",
        of(decision, "alerts"): "alerts",
        of(first, "labels"): "labels",
        of(first, "authorisations"): "authorisations",
        of(first, "erased"): "erasures",
        of(first, "late_transactions"): "late",
        of(first, "corrections"): "corrections",
        of(first, "dead_letters"): "dead_letters",
    }
    for name in names[1:]:
        stage = name.removesuffix("Monitor").removeprefix("Decision").lower()
        tables[of(name, "dead_letters")] = f"dead_letters_{stage}"
    if measures:
        tables |= {
            "main": Upsert("model_metrics", ("model", "day_ms"), "revision"),
            "late": "late_outcomes",
            "dead_letters": "dead_letters_metrics",
        }
    return tables


def _models(settings: FraudSettings) -> tuple[Scorer | None, Scorer | None]:
    """Return the champion's and the challenger's scorer; None without models: rules only."""
    model = settings.model
    if (folder := settings.exports) is None:
        return None, None
    from millrace.models.exports import CHALLENGER
    from millrace_apps.fraud.model.live import StreamScorer

    return StreamScorer(folder, name=model.name), StreamScorer(folder, CHALLENGER, model.name)

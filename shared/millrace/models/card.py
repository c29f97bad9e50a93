"""Model cards, in Markdown: what a version is, what it was made of, how good it was, what it is not good for.

After Mitchell and others, "Model Cards for Model Reporting", FAT* 2019, as far as a registry knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from millrace.models.gates import Gate
from millrace.models.learner import PROMOTION_TAG, AppModel, Learner, lineage
from millrace.models.manifest import Manifest
from millrace.models.registry import Entry

#: Facts that have a place of their own in a card.
_ELSEWHERE: Final = frozenset({"rows", "trained_until_ms", "tables", "sha256", PROMOTION_TAG})
_FEATURES_SHOWN: Final = 200


def card_of(learner: Learner, model: AppModel, entry: Entry, manifest: Manifest) -> str:
    """Return the card of a version, in Markdown.

    Args:
        learner: The app.
        model: Which of its models.
        entry: The version.
        manifest: Its manifest.
    """
    return "\n".join(
        [
            f"# {learner.app}: {manifest.name}, version {entry.version}",
            "",
            model.about or f"A {manifest.kind} of the app {learner.app}.",
            "",
            *_table(_what(entry, manifest)),
            "## Data",
            "",
            *_table(_data(entry, manifest)),
            f"Features ({len(manifest.inputs)}): {_features(manifest.inputs)}.",
            "",
            "## Measures",
            "",
            *_measures(manifest.metrics),
            "## Gates",
            "",
            *_gates(learner.gates, entry),
            "## Limits",
            "",
            *(f"- {limit}" for limit in _limits(learner, manifest)),
            "",
        ]
    )


def _what(entry: Entry, manifest: Manifest) -> dict[str, str]:
    curve = manifest.calibration
    calibrated = "none" if curve is None else f"slope {curve.slope:.4g}, intercept {curve.intercept:.4g}"
    facts = {
        "aliases": ", ".join(entry.aliases) or "none",
        "registered": instant(entry.created_ms),
        "kind": manifest.kind,
        "calibration": calibrated,
        "threshold": "none" if manifest.threshold is None else f"{manifest.threshold:g}",
        "file": f"{manifest.size:,} bytes, SHA-256 {manifest.sha256}",
        "made with": ", ".join(f"{p} {v}" for p, v in sorted(manifest.requirements.items())),
    }
    own = {k: v for k, v in sorted(entry.about.items()) if _is_fact(k, manifest)}
    return facts | {k.replace("_", " "): v for k, v in own.items()}


def _is_fact(name: str, manifest: Manifest) -> bool:
    return name not in _ELSEWHERE and name not in manifest.tables and name not in manifest.metrics


def _data(entry: Entry, manifest: Manifest) -> dict[str, str]:
    return {
        "tables": lineage(manifest.tables) or "not known",
        "rows": entry.about.get("rows", "not known"),
        "from": instant(manifest.trained_since_ms),
        "to": instant(manifest.trained_until_ms),
        "features, version": str(manifest.features_version),
    }


def _features(inputs: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in inputs[:_FEATURES_SHOWN])
    return shown if len(inputs) <= _FEATURES_SHOWN else f"{shown} and {len(inputs) - _FEATURES_SHOWN} more"


def _measures(metrics: Mapping[str, float]) -> Iterable[str]:
    if not metrics:
        return ("None: too little was held back to judge it.", "")
    return _table({name.replace("_", " "): f"{value:.4f}" for name, value in sorted(metrics.items())})


def _gates(gates: Sequence[Gate], entry: Entry) -> list[str]:
    asked = [
        f"- `{gate.metric}`, {gate.better} is better: by more than {gate.margin:g}"
        + ("" if gate.confidence is None else f", at {gate.confidence:.0%} confidence")
        + f"; at least {gate.min_rows:,} rows and {gate.min_groups:,} groups"
        for gate in gates
    ]
    told = entry.about.get(PROMOTION_TAG)
    if told is None:
        came = ["This version has not been promoted."]
    elif found := json.loads(told):
        came = ["Promoted on:", "", *(f"- {why}" for why in found)]
    else:
        came = ["Promoted without a champion to compare it with."]
    return ["A challenger must show, beside the champion on the same rows:", "", *asked, "", *came, ""]


def _limits(learner: Learner, manifest: Manifest) -> list[str]:
    seen = f"It has seen nothing after {instant(manifest.trained_until_ms)}."
    return [seen, "Its measures are of its own app's past, not of other streams.", *learner.limits]


def _table(rows: Mapping[str, Any]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in rows.items()), ""]


def _cell(value: Any) -> str:
    return " ".join(str(value).replace("|", "\\|").split())


def instant(at_ms: int) -> str:
    """Return a time as people write it.

    >>> instant(1_500_000)
    '1970-01-01 00:25 UTC'
    """
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"

"""Label fields of rules: ``card_labels`` and ``terminal_labels`` of a decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millrace.rules import Field
from millrace_apps.fraud.state.labels import LabelRisk, TerminalLabels


class NothingSaid:
    """Stands for labels where there are none: all that rules ask of them is missing."""

    __slots__ = ()

    def __getattr__(self, name: str) -> None:
        return None


NOTHING_SAID: Final = NothingSaid()

#: How the names of the terminal's begin: there are none where its stage is left out.
TERMINAL_LABELS: Final = "terminal_labels."
#: Labels that rules can ask for: column → what it is made of. Missing where nothing has been said.
_LABELS: Final[Mapping[str, type[LabelRisk]]] = {
    "card_labels": LabelRisk,
    "terminal_labels": TerminalLabels,
}
#: What their fields mean; of a run see :class:`millrace_apps.fraud.state.labels.LabelRisk`.
_SAID: Final = {
    "fraud_run": "known frauds since the last known genuine one",
    "run_first_days": "days since the first fraud of the run; 90: there is none",
    "run_last_days": "days since the last fraud of the run; 90: there is none",
    "run_open_days": "days since the genuine one before the run; 90: there is none",
    "run_first_midnights": "midnights since the first fraud of the run; 90: there is none",
    "run_open_midnights": "midnights since the genuine one before the run; 90: there is none",
    "frauds": "known frauds of usual amounts",
    "frauds_high": "known frauds of high amounts",
    "last_label": "of the newest one: 0 none, 1 genuine, 2 fraud, 3 fraud of a high amount",
    "last_label_days": "days since the newest one of which something is known; 90: there is none",
    "genuine_days": "days since the newest known genuine one; 90: there is none",
    "pending": "of which nothing is known",
    "known": "of which something is known",
    **{f"count_{n}d": f"in {n} d, which end the label delay ago" for n in (1, 7, 30)},
    **{f"risk_{n}d": f"share of known frauds in {n} d, which end the label delay ago" for n in (1, 7, 30)},
}


def label_fields() -> dict[str, Field]:
    """Return the fields by the names that rules use: ``card_labels.frauds``."""
    return {
        f"{column}.{name}": Field("number", nullable=True, about=_SAID[name])
        for column, of in _LABELS.items()
        for name in of.__struct_fields__
    }

"""Former names of benchmarks: commands take them for one version, reports keep them."""

from __future__ import annotations

from typing import Final

#: Former name of a benchmark → today's. Commands take the former one for one version; reports go on saying
#: it in ``benchmark``, so that those of before and after can be laid side by side.
FORMER: Final = {
    "kafka-w1": "kafka-running-zscore",
    "sealing": "state-encryption",
    "w1": "running-zscore",
    "w2": "tumbling-windows",
    "w3": "session-windows",
    "w4": "sliding-sums",
    "w5": "stream-joins",
    "w6": "deduplication",
    "w7": "pattern-matching",
    "w8": "absence-alerts",
}
_IN_REPORTS: Final = {today: former for former, today in FORMER.items()}


def name_in_reports(name: str) -> str:
    """Return what reports say in ``benchmark``.

    Example:
        >>> name_in_reports("running-zscore"), name_in_reports("savepoint")
        ('w1', 'savepoint')
    """
    return _IN_REPORTS.get(name, name)

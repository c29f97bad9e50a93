"""`millrace bench rules`: what a hundred active rules cost the fraud app, drained with them and without."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from millrace_apps.benchmarks.app_bench import bench_of
from millrace_apps.benchmarks.app_drain import drain, settings_of
from millrace_apps.benchmarks.app_run import BenchRun

if TYPE_CHECKING:
    from millrace.rules import PublishRule

_FUNCTIONS: Final = (
    "sum(amount, card, {})",
    "count(card, {})",
    "mean(amount, card, {})",
    "largest(amount, card, {})",
    "distinct(card, terminal, {})",
    "sum(amount, card_terminal, {})",
)
_WINDOWS: Final = ("1 min", "10 min", "1 h", "24 h", "30 d")
#: The thresholds of a rule: above what is usual, so that few hold, as it is with rules that are of use.
_ABOVE: Final = (5_000, 10_000, 20_000, 40_000)
_CONDITIONS: Final = ("amount > 20", "mcc in ('5732', '5944', '5999')", "zscore > 3 and amount > 50",
                      "country != 'DE' or kmh > 600")  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        events: Events of each run.
        rules: Active rules.
        repeats: Pairs of runs, with and without in turns; medians count.
    """

    events: int = 400_000
    rules: int = 100
    repeats: int = 1


def conditions(count: int) -> Iterator[str]:
    """Return the conditions of so many rules: over six functions of five windows, each with a plain one.

    >>> next(conditions(1))
    'amount > 20 and sum(amount, card, 1 min) > 5000'
    """
    shapes = list(itertools.product(_WINDOWS, _FUNCTIONS))
    for number in range(count):
        window, function = shapes[number % len(shapes)]
        plain = _CONDITIONS[number // len(shapes) % len(_CONDITIONS)]
        above = _ABOVE[number // len(shapes) % len(_ABOVE)]
        yield f"{_together(plain)} and {function.format(window)} > {above}"


def _together(condition: str) -> str:
    return f"({condition})" if " or " in condition else condition


def active_rules(count: int) -> list[PublishRule]:
    """Return so many rules, as they are published to be in force at once."""
    from millrace.rules import PublishRule, Rule

    rules = [
        Rule(f"bench-{number}", when, "review", "bench") for number, when in enumerate(conditions(count))
    ]
    return [PublishRule(rule, 1, "bench", 0, "active") for rule in rules]


def rules(sizes: Sizes, bootstrap: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Drain the fraud app with rules and without, and compare.

    Args:
        sizes: How much.
        bootstrap: A broker, or ``None`` for an embedded one.
        overrides: Settings of the app.

    Returns:
        Both runs' figures, and how much throughput and how much more CPU time the rules cost.
    """

    def publish(run: BenchRun) -> None:
        from millrace.operations.control_topic import ControlTopic
        from millrace_apps.fraud.operations.app_rules import RULES

        ControlTopic(RULES, run.settings).send(active_rules(sizes.rules))

    bench = bench_of("fraud")
    found: dict[str, list[dict[str, Any]]] = {"without": [], "with": []}
    for _ in range(sizes.repeats):
        found["without"].append(drain(bench, sizes.events, None, bootstrap, overrides))
        found["with"].append(drain(bench, sizes.events, None, bootstrap, overrides, first=publish))
    return compared(found["without"], found["with"])


def compared(without: Sequence[dict[str, Any]], ruled: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the rules cost, by the medians of the runs.

    Args:
        without: What :func:`millrace_apps.benchmarks.app_drain.drain` said of each run without rules.
        ruled: The same with rules.

    Raises:
        BenchmarkFailed: A run had one batch only.
    """
    from statistics import median

    from millrace_apps.benchmarks.streams import BenchmarkFailed

    def rate(runs: Sequence[dict[str, Any]]) -> float:
        if not all(run["rows_per_s_after_first_batch"] for run in runs):
            raise BenchmarkFailed("one batch took everything: give more events")
        return float(median(run["rows_per_s_after_first_batch"] for run in runs))

    def cpu_us(runs: Sequence[dict[str, Any]]) -> float:
        return float(median(sum(run["cpu_s_after_first_batch"].values()) / run["events_after_first_batch"]
                            for run in runs)) * 1e6  # fmt: skip

    plain, loaded = rate(without), rate(ruled)
    return {
        "rows_per_s_after_first_batch": {"without": plain, "with": loaded},
        "cpu_us_per_event_after_first_batch": {"without": cpu_us(without), "with": cpu_us(ruled)},
        "warm_batches": 1,
        "throughput_cost": 1 - loaded / plain,
        "cpu_cost": cpu_us(ruled) / cpu_us(without) - 1,
        "correct": all(run["correct"] for run in (*without, *ruled)),
    }


def configuration(sizes: Sizes, overrides: Sequence[str]) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    shapes = {"functions": len(_FUNCTIONS), "windows": len(_WINDOWS)}
    return {**asdict(sizes), **shapes, "settings": settings_of(bench_of("fraud"), overrides)}

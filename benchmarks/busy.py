"""`millrace bench busy`: what a payment at a busy terminal costs beside one at an ordinary one, in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from random import Random
from statistics import median
from typing import Any, Final

from millrace.host.memory_chain import MemoryChain
from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.fraud.processes.entity_stages import stages
from millrace_apps.fraud.settings import ENTITY_STAGES

_START_MS: Final = 1_767_369_600_000
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        events: Payments that are measured.
        before: Payments of the busy terminal before them.
        a_day: Payments a day of the busy terminal.
        batch: Payments per batch.
        cards: Cards that pay, a payment each before the next one.
        repeats: Runs of each kind, by turns; the figures are their medians.
    """

    events: int = 5_000
    before: int = 10_000
    a_day: int = 9_000
    batch: int = 500
    cards: int = 3_000
    repeats: int = 5


QUICK = Sizes(events=200, before=800, batch=100, cards=50, repeats=1)


def busy(sizes: Sizes) -> dict[str, Any]:
    """Measure all stages over payments of one busy terminal, and over as many of ordinary ones.

    Args:
        sizes: How much.

    Returns:
        CPU time per payment, µs, and how many times an ordinary payment the busy terminal's costs.
    """
    found: dict[str, list[float]] = {"ordinary": [], "busy": []}
    correct = True
    for _ in range(sizes.repeats):
        for kind, terminals in (("ordinary", sizes.a_day // 3), ("busy", 1)):
            us, counted = _measure(sizes, terminals)
            found[kind].append(us)
            # A window of a day reaches back to where a pane of 15 minutes begins.
            true = min(sizes.a_day, sizes.before + sizes.events)
            correct = correct and (kind != "busy" or true <= counted <= true * (1 + 1 / 96))
    middle = {kind: median(runs) for kind, runs in found.items()}
    return {
        "cpu_us_per_payment": middle,
        "busy_by_ordinary": middle["busy"] / middle["ordinary"],
        "correct": correct,
    }


def _payments(sizes: Sizes, terminals: int) -> Iterator[Transaction]:
    random = Random(1)
    for number in range(sizes.before + sizes.events):
        yield Transaction(
            f"tx-{number}",
            f"card-{number % sizes.cards}",
            f"terminal-{random.randrange(terminals)}",
            "5411",
            "DE",
            random.choice((5.0, 20.0, 33.0)),
            "EUR",
            "purchase",
            _START_MS + number * _DAY_MS // sizes.a_day,
            account_id=f"account-{number % sizes.cards}",
        )


def _measure(sizes: Sizes, terminals: int) -> tuple[float, int]:
    """Return µs per payment, and how many of a day the terminal of the last one has counted."""
    first, rest = stages(list(ENTITY_STAGES))
    chain = MemoryChain(first, *rest, records=True)
    payments = list(_payments(sizes, terminals))
    spent, count = 0.0, 0
    for at in range(0, len(payments), sizes.batch):
        rows = [(tx.card_id, tx.event_time_ms, tx) for tx in payments[at : at + sizes.batch]]
        cpu = time.process_time()
        emitted: list[Any] = list(chain.run_batch(rows))
        spent = spent + time.process_time() - cpu if at >= sizes.before else 0.0
        count = max(one.payload.terminal.count_24h for one in emitted if one.output == "main")
    return spent / sizes.events * 1e6, count


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return asdict(sizes)

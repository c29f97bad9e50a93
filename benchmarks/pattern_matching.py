"""`millrace bench pattern-matching`: `A B* C within 5 s`, strict, as in pattern queries of Nexmark.

A is a small purchase of a card, B* are medium ones directly after each other, C is a large one. Spark has no
pattern matching.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from millrace import Context, KeyedProcess, seconds
from millrace_apps.benchmarks.case import Case, Sizes, on_purchases
from millrace_apps.benchmarks.digest import digest
from millrace_apps.benchmarks.inputs import Events, Ints, card_name, make_events

if TYPE_CHECKING:
    from millrace.patterns import PatternProcess

WITHIN_MS: Final = seconds(5)
#: Cents below which a purchase is small, and from which it is large.
SMALL: Final = 1_000
LARGE: Final = 10_000
#: Events that the in-memory host gets.
_MEMORY_ROWS: Final = 200_000


class Run(msgspec.Struct, frozen=True):
    """A small purchase, medium ones, a large one.

    Attributes:
        card: The card.
        first: Id of the small purchase.
        last: Id of the large one.
        between: How many medium ones.
    """

    card: str
    first: int
    last: int
    between: int


class Runs(NamedTuple):
    """The same as columns: ids of the first and the last purchase, how many between."""

    first: Ints
    last: Ints
    between: Ints


def process_of() -> PatternProcess:
    """Return the process."""
    from millrace.patterns import begin, detect, skip_past_last
    from millrace_apps.benchmarks.w1_job import Purchase

    pattern = (
        begin("a").where(lambda e: e.cents < SMALL)
        .next("b").where(lambda e: SMALL <= e.cents < LARGE).one_or_more().optional().consecutive()
        .next("c").where(lambda e: e.cents >= LARGE)
        .within(WITHIN_MS)
    )  # fmt: skip
    return detect(
        Purchase, pattern, after_match=skip_past_last(), select=_run_of, output=Run, key="card", name="w7"
    )


def _run_of(match: Any) -> Run:
    matched = match.matched
    return Run(match.card, matched["a"][0].id, matched["c"][0].id, len(matched.get("b", ())))


def expected(events: Events) -> Runs:
    """Return what must come out: for each small purchase the card's next that is not medium, if it is large.

    There is one at most, and no purchase is in two, so that the after-match strategy changes nothing.
    """
    order = np.argsort(events.card, kind="stable")
    card, cents, at = events.card[order], events.cents[order], events.at[order]
    n = len(order)
    places = np.arange(n)
    not_medium = np.where((cents < SMALL) | (cents >= LARGE), places, n)
    # The first that is not medium at or after each place, then after each place.
    from_here = np.minimum.accumulate(not_medium[::-1])[::-1]
    after = np.append(from_here[1:], n)
    small = np.flatnonzero((cents < SMALL) & (after < n))
    end = after[small]
    fits = (card[end] == card[small]) & (cents[end] >= LARGE) & (at[end] - at[small] < WITHIN_MS)
    small, end = small[fits], end[fits]
    return Runs(order[small], order[end], end - small - 1)


def on_memory_host(events: Events) -> dict[str, Any]:
    """Return what an event costs without Spark, and how much of that a process costs that does nothing.

    Args:
        events: The events; they come in batches of 10,000, by key and in order of event time.
    """
    from millrace.host.memory import MemoryHost
    from millrace_apps.benchmarks.w1_job import Purchase

    class Nothing(KeyedProcess[Purchase, int]):
        order = "event_time"

        def process(self, event: Purchase, ctx: Context) -> None:
            pass

    columns = (events.card.tolist(), events.cents.tolist(), events.at.tolist())
    rows = [
        (card_name(card), at, Purchase(number, card_name(card), cents, at))
        for number, (card, cents, at) in enumerate(zip(*columns, strict=True))
    ]
    found: dict[str, Any] = {}
    for name, process in (("us_per_event", process_of()), ("us_per_event_of_nothing", Nothing())):
        host = MemoryHost(process, records=True)
        start, out = time.process_time(), 0
        for first in range(0, len(rows), 10_000):
            out += sum(e.output == "main" for e in host.run_batch(rows[first : first + 10_000]))
        out += sum(e.output == "main" for e in host.drain())
        found[name] = (time.process_time() - start) / len(rows) * 1e6
        if name == "us_per_event":
            found["correct"] = out == len(expected(events).first)
    return {**found, "events": len(rows)}


def _with_memory_host(sizes: Sizes, report: dict[str, Any]) -> dict[str, Any]:
    events = make_events(sizes.rows, sizes.keys)
    return {**report, "memory_host": on_memory_host(events.part(0, min(len(events), _MEMORY_ROWS)))}


CASE: Final = Case(
    Sizes(1_000_000),
    Sizes(60_000, keys=2_000, batches=3),
    on_purchases(
        {"process": process_of},
        lambda events: digest(*expected(events)),
        ("first", "last", "between"),
        {},
        lambda _: "true",
    ),
    {},
    lambda _: {"pattern": f"A B* C within {WITHIN_MS} ms, strict: small, medium, large purchases of a card"},
    finish=_with_memory_host,
)

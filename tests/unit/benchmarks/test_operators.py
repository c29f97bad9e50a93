"""What `bench deduplication` and `absence-alerts` run gives what their oracles say, on the in-memory host."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from millrace.host.memory import MemoryHost
from millrace.host.memory_chain import MemoryChain
from millrace_apps.benchmarks import absent, deduped
from millrace_apps.benchmarks.digest import digest
from millrace_apps.benchmarks.inputs import Events, card_name, closing_events, make_events
from millrace_apps.benchmarks.w1_job import Purchase


def test_sales_come_twice_within_the_bound_and_not_in_order() -> None:
    sales = deduped.make_sales(20_000, 500)
    once, n = np.unique(sales.id, return_counts=True)
    assert len(once) == 20_000
    assert (n == 2).mean() == pytest.approx(0.1, abs=0.01)
    behind = np.maximum.accumulate(sales.at) - sales.at
    assert 0 < behind.max() < deduped.BOUND_MS


def test_w6_gives_what_is_expected() -> None:
    sales = deduped.make_sales(4_000, 100)
    chain = MemoryChain(
        deduped.dedup_process(), ("shop", deduped.ranking_process()), out_of_orderness_ms=deduped.BOUND_MS
    )
    emitted: list[Any] = []
    passed: list[int] = []
    host = MemoryHost(deduped.dedup_process(), out_of_orderness_ms=deduped.BOUND_MS)
    events = [(str(e.id), e.at, e) for e in [*sales.rows(), *deduped.closing(sales).rows()]]
    for start in range(0, len(events), 500):
        emitted += chain.run_batch(events[start : start + 500])
        for e in host.run_batch(events[start : start + 500]):
            passed += [msgspec.json.decode(e.payload)["id"]] if e.output == "main" else []
    assert {e.output for e in emitted} == {"main", "dedup.repeats"}
    rows = [msgspec.json.decode(e.payload) for e in emitted if e.output == "main"]
    found = [
        [int(r["shop"][1:]), r["window_start_ms"], r["rank"], int(r["item"][1:]), r["value"]]
        for r in rows
        if r["shop"] != f"s{deduped.SHOPS}"
    ]
    assert digest(*np.array(found).T) == deduped.expected("dedup_top10", sales)
    ids = np.array([i for i in passed if i < 4_000])
    assert digest(ids) == deduped.expected("dedup", sales) == deduped.expected("spark_dedup", sales)


@pytest.mark.parametrize("system", ["process", "process_event_time"])
def test_w8_gives_what_is_expected(system: absent.System) -> None:
    made = make_events(3_000, 60)
    events = Events(made.card, made.cents, made.at[0] + np.arange(3_000) * 997)
    host = MemoryHost(absent.process_of(system))
    rows = []
    for part in (events, closing_events(events)):
        for card, at in zip(part.card.tolist(), part.at.tolist(), strict=True):
            rows.append((card_name(card), at, Purchase(0, card_name(card), 1, at)))
    emitted = []
    for start in range(0, len(rows), 300):
        emitted += host.run_batch(rows[start : start + 300])
    found = [msgspec.json.decode(e.payload) for e in emitted]
    found = [r for r in found if int(r["card"][1:]) <= events.card.max()]
    columns = [[int(r["card"][1:]), r["since_ms"], r["deadline_ms"]] for r in found]
    assert len(columns) > 200
    assert digest(*np.array(columns).T) == absent.expected(events)

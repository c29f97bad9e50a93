"""What the benchmarks run gives what their oracles say, on the in-memory host."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from millrace import KeyedProcess
from millrace.host.memory import MemoryHost
from millrace_apps.benchmarks import core_app, memory_host, oracles, state_encryption, timers, w1, windowed
from millrace_apps.benchmarks.digest import digest
from millrace_apps.benchmarks.inputs import START_MS, Events, card_name, closing_events, make_events
from millrace_apps.benchmarks.kafka_io import Pace, Results, results_of
from millrace_apps.benchmarks.w1_job import BatchZScore, Purchase, _scored


def run(process: KeyedProcess[Any, Any], events: Events, batch: int = 300) -> list[dict[str, Any]]:
    host = MemoryHost(process)
    columns = (events.card.tolist(), events.cents.tolist(), events.at.tolist())
    rows = [
        (card_name(card), at, Purchase(number, card_name(card), cents, at))
        for number, (card, cents, at) in enumerate(zip(*columns, strict=True))
    ]
    emitted = []
    for start in range(0, len(rows), batch):
        emitted += host.run_batch(rows[start : start + batch])
    assert {e.output for e in emitted} <= {"main"}
    return [msgspec.json.decode(e.payload) for e in emitted]


def columns(rows: list[dict[str, Any]], *names: str) -> list[Any]:
    return [np.array([row[name] for row in rows]) for name in names]


@pytest.mark.parametrize("job", ["w1", "w1_batch", "w1_timed", "w1_big"])
def test_every_w1_process_gives_the_oracles_scores(job: core_app.Job) -> None:
    events = make_events(2_000, 60)
    found = run(core_app.process_of(job), events)
    assert digest(*columns(found, "id", "n", "z")) == digest(*oracles.scores(events))


def test_vectorised_w1_does_not_fall_back_to_single_events() -> None:
    class OnlyTogether(BatchZScore):
        def process(self, event: Purchase, ctx: Any) -> None:
            raise AssertionError("an event was handled by itself")

    events = make_events(2_000, 60)
    assert digest(*columns(run(OnlyTogether(), events), "id", "n", "z")) == digest(*oracles.scores(events))


def test_sparks_stock_w1_gives_the_oracles_scores() -> None:
    events = make_events(500, 1)
    rows = list(zip(events.at.tolist(), range(500), events.cents.tolist(), strict=True))
    first, kept = _scored(None, rows[:200])
    second, _ = _scored(kept, rows[200:])
    assert digest(*zip(*(first + second), strict=True)) == digest(*oracles.scores(events))


@pytest.mark.parametrize("job", ["tumbling", "session", "sliding"])
def test_every_window_job_gives_what_is_expected_once_the_closing_events_are_there(job: windowed.Job) -> None:
    made = make_events(1_500, 40)
    events = Events(made.card, made.cents, made.at[0] + np.arange(1_500) * 997)
    last = closing_events(events)
    together = Events(*(np.append(a, b) for a, b in zip(_fields(events), _fields(last), strict=True)))
    found = run(windowed.process_of(job), together)
    if job == "sliding":
        ours = columns([r for r in found if r["id"] < 1_500], "id", "n", "total")
    else:
        of_cards = [r for r in found if int(r["card"][1:]) <= int(events.card.max())]
        for row in of_cards:
            row["card"] = int(row["card"][1:])
        ours = columns(of_cards, "card", "window_start_ms", "window_end_ms", "n", "total")
    ours[-1] = ours[-1].astype(float)
    assert digest(*ours) == windowed.expected(job, events)


def _fields(events: Events) -> tuple[Any, Any, Any]:
    return events.card, events.cents, events.at


def test_timers_fire_in_their_round_and_the_far_ones_do_not() -> None:
    sizes = timers.Sizes(pending=300, due=40, rounds=3, fill_batches=1)
    due = timers.due_times(sizes)
    host = MemoryHost(timers.Reminders())
    host.run_batch(
        (f"k{i}", START_MS, timers.Reminder(i, f"k{i}", START_MS, at)) for i, at in enumerate(due.tolist())
    )
    fired = []
    for number in range(3):
        emitted = host.advance_watermark(START_MS + (number + 1) * 3_600_000)
        assert len(emitted) == 40
        fired += [msgspec.json.decode(e.payload) for e in emitted]
    assert digest(*columns(fired, "id", "due")) == timers.expected(due)
    assert len(host.store.cells) == 300 - 120


def test_memory_host_benchmark_checks_every_sum() -> None:
    sizes = memory_host.Sizes(events=3_000, keys=100, batch=500, repeats=1)
    found = memory_host.memory_host(sizes)
    assert found["correct"] is True
    assert found["keys_in_state"] == len(np.unique(make_events(3_000, 100).card))


def test_memory_host_benchmark_sees_a_wrong_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(memory_host.RunningSum):
        def process(self, event: memory_host.Spent, ctx: Any) -> None:
            super().process(memory_host.Spent(event.id, event.cents + (event.id == 2_000)), ctx)

    monkeypatch.setattr(memory_host, "RunningSum", Wrong)
    assert memory_host.memory_host(memory_host.Sizes(3_000, 100, 500, 1))["correct"] is False


def test_sealing_changes_no_decision_of_the_fraud_process() -> None:
    found = state_encryption.state_encryption(
        state_encryption.Sizes(events=1_200, cards=60, batch=200, repeats=1)
    )["systems"]
    assert all(way["correct"] for way in found.values())
    assert (
        found["bare"]["stored_bytes"] < found["checked"]["stored_bytes"] < found["encrypted"]["stored_bytes"]
    )


def test_state_is_weighed_against_plain_msgpack() -> None:
    found = w1.state_size(make_events(5_000, 500))
    assert found["bytes_per_key"] > 25  # a key of 8 and two floats of 9 bytes
    assert 1.0 < found["over_msgpack"] < 3.0


def results(events: Events) -> Results:
    scores = oracles.scores(events)
    return Results(scores.id, scores.n, scores.z, scores.id, 0, 0)


def test_results_of_a_topic_are_correct_only_if_all_are_there_and_none_is_other() -> None:
    events = make_events(200, 9)
    good = results(events)
    assert good.is_correct(events)
    assert not good._replace(id=good.id[1:], n=good.n[1:], z=good.z[1:]).is_correct(events)
    assert not good._replace(z=good.z + 1e-12).is_correct(events)
    assert not good._replace(contradictions=1).is_correct(events)


def test_repeats_are_taken_once_at_their_first_time() -> None:
    one, two = b'{"id":1,"n":1,"z":0.5}', b'{"id":2,"n":1,"z":0.25}'
    found = results_of([(one, 100), (two, 110), (one, 300)])
    assert (found.id.tolist(), found.at.tolist()) == ([1, 2], [100, 110])
    assert (found.repeats, found.contradictions) == (1, 0)


def test_repeats_that_say_something_else_are_contradictions() -> None:
    found = results_of([(b'{"id":1,"n":1,"z":0.5}', 100), (b'{"id":1,"n":2,"z":0.5}', 100)])
    assert (found.repeats, found.contradictions) == (1, 1)


def test_paced_events_are_due_at_the_rate() -> None:
    pace = Pace("b:1", "t", rate=250, rows=1_000, keys=10, start_ms=5_000)
    at = pace.events().at
    assert (int(at[0]), int(at[250]), int(at[999])) == (5_000, 6_000, 8_996)

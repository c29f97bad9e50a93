"""Scores judged by the labels that come later, as a stream: outcomes of decisions, the metrics of a day."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from millrace.host.memory import MemoryHost
from millrace_apps.fraud.contracts.control_events import SetThreshold
from millrace_apps.fraud.contracts.events import Decision, Label, Transaction
from millrace_apps.fraud.model.outcomes import Day, Outcomes, add
from millrace_apps.fraud.model.prequential import DayMetrics, PrequentialMetrics
from millrace_apps.fraud.processes.decision_stage import DecisionStage
from millrace_apps.fraud.processes.judging import JUDGED_DAYS, MOST, WATCHED, Issued, TrainedUntil, bin_of
from millrace_apps.fraud.processes.scorer import Observed
from tests.unit.apps.fraud.cases import DAY, HOUR, START_MS, label, transaction
from tests.unit.apps.fraud.chain import Chain, a_life_with_labels, cut, time_of


class ByIdentity:
    """A model whose scores differ from payment to payment, and which knows how old it is."""

    def score(self, observed: Sequence[Observed]) -> list[tuple[float, str] | None]:
        return [(Random(o.tx.transaction_id).randrange(1_000) / 1_000, "m-7") for o in observed]

    def trained_until_ms(self) -> int:
        return START_MS - DAY


class Certain:
    """A model that is sure that everything is a fraud."""

    def score(self, observed: Sequence[Observed]) -> list[tuple[float, str] | None]:
        return [(0.99, "m-1") for _ in observed]


def by_champion(outcomes: Sequence[Outcomes]) -> list[Outcomes]:
    return [o for o in outcomes if o.model == "champion"]


def test_a_decision_is_counted_as_genuine_and_as_a_fraud_when_a_label_says_so() -> None:
    t0 = transaction(0, 10)
    chain = Chain(("terminal",), scorer=ByIdentity(), measures=True)
    chain.send(t0)
    said = label(t0, DAY)
    for event in (said, said, label(t0, DAY + 1), label(t0, 2 * DAY, fraud=False, source="correction")):
        chain.send(event)
    found = by_champion(chain.outcomes)
    scored = ByIdentity().score([Observed(t0, *[None] * 7)])[0]  # type: ignore[arg-type]
    assert scored is not None
    step = round(scored[0] * 1_000)
    score = str(step)
    assert [(o.genuine, o.fraud) for o in found] == [
        ({score: 1}, {}),
        ({score: -1}, {score: 1}),
        ({score: 1}, {score: -1}),
    ]
    assert [o.card_frauds for o in found] == [{}, {t0.card_id: 1}, {t0.card_id: -1}]
    assert {o.day_ms for o in found} == {t0.event_time_ms // DAY * DAY}
    assert (found[0].cards, found[0].versions) == ({t0.card_id: step}, {"m-7": 1})
    assert (found[0].trained_until_ms, len(found[0].bins)) == (START_MS - DAY, len(WATCHED))
    assert {o.model for o in chain.outcomes} == {"rules", "champion"}


def test_an_older_word_that_comes_after_a_newer_one_judges_nothing() -> None:
    t0 = transaction(0, 10)
    words = [label(t0, 2 * DAY, fraud=False, source="correction"), label(t0, DAY)]
    for bound in (0, 30 * DAY):  # the newer one in force already, or still to come
        chain = Chain((), scorer=ByIdentity(), measures=True, out_of_orderness_ms=bound)
        chain.send(t0)
        chain.send(transaction(3 * DAY, 10, card="card-9"))
        for word in words:
            chain.send(word)
        of_day = [o for o in by_champion(chain.outcomes) if o.day_ms == t0.event_time_ms // DAY * DAY]
        assert [(list(o.cards), o.fraud) for o in of_day] == [([t0.card_id], {})]


def test_a_payment_that_is_blocked_is_neither_until_a_label_says_what_it_is() -> None:
    """F2: it was counted as genuine, in the day's measures as in the drift of the share of frauds."""
    for fraud in (True, False):
        chain = Chain((), scorer=Certain(), measures=True)
        t0 = transaction(0, 10)
        chain.send(t0)
        (decision,) = chain.decisions
        assert decision.action == "block"
        assert [(o.genuine, o.fraud, o.alerts) for o in by_champion(chain.outcomes)] == [({}, {}, 0)]
        assert [(o.versions, o.cards) for o in by_champion(chain.outcomes)] == [({"m-1": 1}, {})]
        chain.send(label(t0, HOUR, fraud=fraud, source="feedback"))
        _, second = by_champion(chain.outcomes)
        assert (second.genuine, second.fraud) == (({}, {"990": 1}) if fraud else ({"990": 1}, {}))
        assert (second.alerts, second.right, second.cards) == (1, int(fraud), {t0.card_id: 990})
        assert (second.versions, second.bins) == ({}, [])
        chain.send(label(t0, 2 * HOUR, fraud=not fraud, source="correction"))
        third = by_champion(chain.outcomes)[2]
        assert (third.alerts, third.right) == (0, -1 if fraud else 1)


def test_a_label_before_its_payment_says_what_a_blocked_one_is() -> None:
    chain = Chain((), scorer=Certain(), measures=True)
    t0 = transaction(DAY, 10)
    chain.send(label(t0, 2 * DAY, fraud=False))
    chain.send(t0)
    assert [(o.genuine, o.fraud) for o in by_champion(chain.outcomes)] == [({"990": 1}, {})]


def test_cards_known_to_be_compromised_are_off_the_list_of_the_highest() -> None:
    """F9: as in the Handbook's metric; the oracle ranks by hand, by what was known at each payment's time."""
    random = Random(4)
    chain = Chain((), scorer=ByIdentity(), measures=True)
    life = a_life_with_labels(random)
    for event in life:
        chain.send(event)
    words = [e for e in life if isinstance(e, Label)]

    def known_fraud(card: str, at: int) -> bool:
        newest: dict[str, Label] = {}
        for word in sorted(words, key=lambda w: (w.event_time_ms, w.label_id)):
            if word.card_id == card and word.event_time_ms <= at and word.transaction_time_ms < at:
                newest[word.transaction_id] = word
        return any(word.is_fraud for word in newest.values())

    on_list: dict[int, set[str]] = {}
    answered = {word.transaction_id for word in words}
    for d in chain.decisions:
        known = d.action != "block" or d.transaction_id in answered
        if known and not known_fraud(d.card_id, d.event_time_ms):
            on_list.setdefault(d.event_time_ms // DAY, set()).add(d.card_id)
    totals: dict[int, Day] = {}
    for part in by_champion(chain.outcomes):
        add(totals.setdefault(part.day_ms // DAY, Day()), part)
    assert {number: set(day.cards) for number, day in totals.items() if day.cards} == on_list
    everywhere = {(d.event_time_ms // DAY, d.card_id) for d in chain.decisions}
    assert sum(map(len, on_list.values())) < len(everywhere), "no card was known to be compromised"


def test_only_purchases_are_judged_and_without_the_setting_nothing_is() -> None:
    for measures, expected in ((True, {"rules"}), (False, set())):
        chain = Chain(("device",), measures=measures)
        chain.send(transaction(0, 10), transaction(1, 10, kind="refund"), transaction(2, 10, kind="top_up"))
        assert {o.model for o in chain.outcomes} == expected
        assert len(chain.outcomes) == len(expected)


def test_a_batch_is_judged_as_its_events_one_by_one() -> None:
    def outcome(batched: bool) -> tuple[list[str], dict[tuple[str, int], Day]]:
        random = Random(3)
        chain = Chain(("terminal",), scorer=ByIdentity(), measures=True)
        chain.chain.hosts[-1].runner._batched = batched
        for batch in cut(random, a_life_with_labels(random)):
            chain.send(*batch)
            assert chain.chain.hosts[-1].runner.fallbacks == 0
        totals: dict[tuple[str, int], Day] = {}
        for part in chain.outcomes:
            add(totals.setdefault((part.model, part.day_ms), Day()), part)
        return sorted(repr(e) for e in chain.emissions if not e.output.endswith("outcomes")), totals

    assert outcome(True) == outcome(False)


def test_a_batch_leaves_as_one_part_per_model_and_day() -> None:
    chain = Chain((), scorer=ByIdentity(), measures=True)
    life = [transaction(n, 10, id=f"p-{n}", card=f"card-{n % 3}") for n in range(30)]
    chain.send(*life, transaction(DAY, 10, id="p-next"))
    assert len(chain.outcomes) == 4
    told = sum(decision.action != "block" for decision in chain.decisions)
    assert 0 < told < 31
    assert sum(sum(part.genuine.values()) for part in chain.outcomes) == 2 * told
    assert sum(sum(part.versions.values()) for part in chain.outcomes) == 31


def metrics_of(chain: Chain, *, bound: int, batches: Random) -> dict[tuple[str, int], DayMetrics]:
    """The last revision of every day, by the process of the metrics over what is told of decisions."""
    host = MemoryHost(PrequentialMetrics(7 * DAY, features=WATCHED), out_of_orderness_ms=bound)
    emitted = []
    for batch in cut(batches, chain.outcomes):
        emitted += host.run_batch([(o.model, o.day_ms, o) for o in batch])
    emitted += host.drain()
    assert not host.store.cells
    found: dict[tuple[str, int], DayMetrics] = {}
    for emission in emitted:
        day = msgspec.json.decode(emission.payload, type=DayMetrics)
        assert found.get((day.model, day.day_ms), day).revision <= day.revision
        found[day.model, day.day_ms] = day
    return found


def test_the_metrics_of_a_stream_in_any_cut_are_scikit_learns_over_the_last_words() -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score

    life = a_life_with_labels(Random(8))
    # Half of them are blocked: of those silence tells nothing.
    blocks = SetThreshold("model_block", 0.5)
    purchases = [e for e in life if isinstance(e, Transaction)]
    last: dict[str, bool] = {}
    for word in sorted(
        (e for e in life if isinstance(e, Label)), key=lambda w: (w.event_time_ms, w.label_id)
    ):
        last[word.transaction_id] = word.is_fraud
    ends = []
    for seed in range(3):
        random = Random(seed)
        events = sorted(life, key=lambda e: time_of(e) + random.randrange(HOUR)) if seed else life
        chain = Chain((), scorer=ByIdentity(), measures=True, out_of_orderness_ms=DAY)
        chain.control(blocks)
        for batch in cut(random, events):
            chain.send(*batch)
            if random.random() < 0.2:
                chain.restart()
        scores = {d.transaction_id: d.model_score for d in chain.decisions}
        found = metrics_of(chain, bound=40 * DAY, batches=random)
        ends.append(
            {k: msgspec.structs.replace(d, psi=None, drifted="", shifted=0) for k, d in found.items()}
        )
    assert ends[0] == ends[1] == ends[2]
    blocked = {d.transaction_id for d in chain.decisions if d.action == "block"}
    assert len(blocked - last.keys()) > 5
    judged = 0
    for (model, day_ms), day in found.items():
        of_day = [p for p in purchases if p.event_time_ms // DAY == day_ms // DAY]
        of_day = [p for p in of_day if p.transaction_id in last or p.transaction_id not in blocked]
        alerted = {d.transaction_id for d in chain.decisions if d.action != "approve"}
        told = [last.get(p.transaction_id, False) for p in of_day if p.transaction_id in alerted]
        assert day.alert_precision == (pytest.approx(sum(told) / len(told)) if told else None)
        fraud = [last.get(p.transaction_id, False) for p in of_day]
        assert (day.rows, day.frauds) == (len(of_day), sum(fraud))
        if model != "champion" or not 0 < sum(fraud) < len(fraud):
            continue
        judged += 1
        score = [scores[p.transaction_id] for p in of_day]
        assert day.auc == pytest.approx(roc_auc_score(fraud, score))
        assert day.ap == pytest.approx(average_precision_score(fraud, score))
        assert day.version == "m-7"
        assert day.age_days == (day_ms + DAY - (START_MS - DAY)) / DAY
    assert judged >= 3


def test_what_is_kept_of_a_card_is_bounded_in_number_and_time() -> None:
    issued = Issued()
    chain = Chain(())
    chain.send(transaction(0, 10))
    (decision,) = chain.decisions
    seen = _observed(decision)
    for n in range(MOST + 10):
        issued.issue(msgspec.structs.replace(decision, transaction_id=f"t{n}"), seen, TrainedUntil())
    assert len(issued.rows) == 15 * MOST
    later = msgspec.structs.replace(decision, event_time_ms=decision.event_time_ms + (JUDGED_DAYS + 1) * DAY)
    issued.issue(later, seen, TrainedUntil())
    assert len(issued.rows) == 15


def _observed(decision: Decision) -> Any:
    class Own:
        zscore, count_24h, sum_24h = None, 1, 10.0

    class Card:
        count_30d, gap_s = 1, None

    return type("Seen", (), {"tx": decision, "own": Own, "card": Card})


def test_scores_leave_no_state_when_all_is_over() -> None:
    chain = Chain((), measures=True)
    for event in a_life_with_labels(Random(1)):
        chain.send(event)
    chain.chain.advance_watermark(START_MS + 800 * DAY)
    assert chain.chain.is_empty()


def test_bins_grow_with_the_values() -> None:
    values = [-1.0, 0.0, 1.0, 2.0, 4.0, 1e9]
    assert [bin_of(v) for v in values] == sorted({bin_of(v) for v in values})
    assert DecisionStage.name == "DecisionDesk"

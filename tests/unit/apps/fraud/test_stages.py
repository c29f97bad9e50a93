from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.host.memory_chain import MemoryChain
from millrace.parts.lookback import Look
from millrace.rules import (
    ApproveRule,
    InForce,
    PublishRule,
    PutListEntry,
    RollbackRule,
    Rule,
    SetRuleState,
    Use,
)
from millrace_apps.fraud.contracts.control_events import SetThreshold
from millrace_apps.fraud.contracts.events import Decision
from millrace_apps.fraud.contracts.feature_types import EntityFeatures
from millrace_apps.fraud.processes import stages as deciding
from millrace_apps.fraud.processes.decision import decide
from millrace_apps.fraud.processes.entity_stages import stages
from millrace_apps.fraud.processes.rulebook import LANGUAGE, make_rules, text_of
from millrace_apps.fraud.processes.scorer import Observed
from millrace_apps.fraud.state.history import MAX_KEPT_OF_CARD, History
from tests.oracles import fraud_windows as oracle
from tests.unit.apps.fraud.cases import DAY, HOUR, MINUTE, SECOND, START_MS, transaction
from tests.unit.apps.fraud.chain import ALL, Chain, cut, some_life


def publish(
    when: str, *, id: str = "r", action: str = "review", version: int = 1, state: Any = "active"
) -> PublishRule:
    return PublishRule(Rule(id, when, action, owner="ann"), version, "ann", 0, state)


WINDOWS = [
    Use("count", ("card", 10 * MINUTE)),
    Use("sum", ("amount", "card", 3 * DAY)),
    Use("mean", ("amount", "account", DAY)),
    Use("largest", ("amount", "card", 2 * DAY)),
    Use("smallest", ("amount", "terminal", 30 * DAY)),
    Use("distinct", ("terminal", "card", 30 * DAY)),
    Use("distinct", ("device", "card", 2 * DAY)),
    Use("distinct", ("card", "device", 7 * DAY)),
    Use("count", ("ip", HOUR)),
    Use("count", ("card_terminal", 7 * DAY)),
    Use("sum", ("amount", "card_device", 30 * DAY)),
]


def written(use: Use) -> str:
    """A rule that asks for a window and always holds: a decision lists the windows of rules that hold."""
    *rest, window = use.arguments
    return f"{use.name}({', '.join(map(str, rest))}, {window} ms) > 1000000 or amount > 0"


@pytest.mark.parametrize("seed", range(4))
def test_every_feature_and_window_is_what_a_scan_over_all_transactions_says(seed: int) -> None:
    random = Random(seed)
    life = some_life(random, 60)
    chain = Chain()
    chain.control(*(publish(written(use), id=f"r{n}") for n, use in enumerate(WINDOWS)))
    for batch in cut(random, life):
        chain.send(*batch)
        if random.random() < 0.2:
            chain.restart()
    assert chain.dead == []
    decided = {d.transaction_id: d for d in chain.decisions}
    assert len(decided) == len(life)
    for place, tx in enumerate(life):
        decision, seen = decided[tx.transaction_id], life[:place]
        found = msgspec.structs.asdict(decision.card)
        wanted = oracle.card_features(seen, tx)
        assert {name: found[name] for name in wanted} == pytest.approx(wanted)
        for entity, field in (
            ("account", "account"),
            ("terminal", "terminal"),
            ("device", "device"),
            ("ip", "address"),
        ):
            features: EntityFeatures | None = getattr(decision, field)
            expected = oracle.entity_features(seen, tx, entity)
            assert (features is None) == (expected is None)
            if features is not None and expected is not None:
                assert {n: getattr(features, n) for n in expected} == pytest.approx(expected)
        for use in WINDOWS:
            entity = use.arguments[-2]
            if tx.kind != "purchase" or getattr(tx, oracle.FIELD.get(entity, "card_id")) is None:
                continue
            assert decision.windows.get(text_of(use)) == oracle.window(seen, tx, use.name, *use.arguments), (
                use
            )


def test_cuts_restarts_and_repeats_change_no_decision() -> None:
    life = some_life(Random(5), 80)
    rules = [
        publish("count(device, 1 d) >= 2 and amount > 5", id="a"),
        publish("sum(amount, card, 7 d) > 90", id="b"),
    ]

    def outcome(seed: int | None) -> list[Any]:
        random, chain = Random(seed), Chain()
        chain.control(*rules)
        batches = [[tx] for tx in life] if seed is None else cut(random, life)
        for batch in batches:
            chain.send(*batch, *(batch if seed is not None and random.random() < 0.3 else ()))
            if seed is not None and random.random() < 0.3:
                chain.restart()
        return sorted(chain.decisions, key=lambda d: d.transaction_id)

    expected = outcome(None)
    assert any(d.rules for d in expected)
    assert outcome(1) == outcome(2) == expected


def test_a_transaction_that_comes_out_of_order_has_its_true_windows() -> None:
    """Handled as b, a, c; b was decided on without a.

    ::

        a (5.00)   |
        b (7.00)       |
        c (9.00)           |
    """
    chain = Chain(("terminal",), out_of_orderness_ms=HOUR)
    a, b, c = (transaction(at * MINUTE, amount) for at, amount in ((1, 5.0), (2, 7.0), (3, 9.0)))
    for tx in (b, a, c):
        chain.send(tx)
    found = {d.transaction_id: (d.card.sum_10m, d.terminal.sum_1h) for d in chain.decisions if d.terminal}
    assert [found[tx.transaction_id] for tx in (a, b, c)] == [(5.0, 5.0), (7.0, 7.0), (21.0, 21.0)]


def test_the_accounts_balance_is_that_of_all_its_cards() -> None:
    chain = Chain(("account",))
    chain.send(transaction(0, 100, kind="top_up", card="c-1", account_id="a"))
    chain.send(transaction(1, 30, card="c-1", account_id="a"), transaction(2, 20, card="c-2", account_id="a"))
    chain.send(transaction(3, 5, kind="refund", card="c-2", account_id="a"))
    balances = [d.account.balance for d in chain.decisions if d.account]
    assert balances == [100.0, 70.0, 50.0, 55.0]


def test_a_device_that_strangers_share_is_a_reason() -> None:
    chain = Chain(("device",))
    for n in range(5):
        chain.send(transaction(n * HOUR, 40, card=f"c-{n}", device_id="ring", ip=f"10.0.0.{n}"))
    codes = [[r.code for r in d.reasons if r.weight] for d in chain.decisions]
    assert ["SHARED_DEVICE" in c for c in codes] == [False, False, False, True, True]
    assert chain.alerts[0].device_id == "ring"


BERLIN: dict[str, Any] = {"latitude": 52.52, "longitude": 13.405}
PARIS: dict[str, Any] = {"latitude": 48.8566, "longitude": 2.3522}


@pytest.mark.parametrize(
    ("gap", "impossible"), [(0, True), (30 * MINUTE, True), (2 * HOUR, False), (20 * DAY, False)]
)
def test_a_journey_that_nobody_makes_is_a_reason_also_in_no_time_at_all(gap: int, impossible: bool) -> None:
    chain = Chain((), out_of_orderness_ms=DAY)
    chain.send(transaction(0, 20, **BERLIN))
    chain.send(transaction(0, 20, device_id="d", ip="10.0.0.1"))  # online: no position
    chain.send(transaction(gap, 20, **PARIS))
    last = chain.decisions[-1]
    assert last.card.km == pytest.approx(877, abs=2)
    assert ("IMPOSSIBLE_TRAVEL" in [r.code for r in last.reasons]) is impossible


def test_positions_that_differ_by_less_than_they_are_exact_are_no_journey() -> None:
    chain = Chain(())
    chain.send(transaction(0, 20, **BERLIN), transaction(0, 20, latitude=52.6, longitude=13.5))
    assert chain.decisions[-1].card.kmh == 0.0


def test_small_then_large_is_caught_within_the_minute_and_not_after() -> None:
    for gap, caught in ((59 * SECOND, True), (60 * SECOND, False)):
        chain = Chain(())
        chain.send(transaction(0, 0.9), transaction(gap, 501))
        assert ("SMALL_THEN_LARGE" in [r.code for r in chain.decisions[-1].reasons]) is caught


def test_an_alert_has_three_reasons_and_their_baselines() -> None:
    chain = Chain(())
    chain.control(publish("amount > 10"))
    chain.send(*(transaction(n * HOUR, 5) for n in range(5)), transaction(6 * HOUR, 11))
    (alert,) = chain.alerts
    assert alert.reasons[0].code == "RULE:r"
    assert len(alert.reasons) >= 3
    usual = {r.code: (r.value, r.baseline) for r in alert.reasons}
    assert usual["AMOUNT"] == (11.0, 5.0)
    assert (alert.rules, alert.features_version, alert.model_version) == (["r@1"], "3", None)


def test_a_rule_is_in_force_from_the_batch_that_brings_it_and_no_event_sees_none() -> None:
    chain = Chain(("terminal",))
    versions = []
    for n in range(6):
        if n == 1:
            chain.control(publish("amount > 10"))
        if n == 3:
            chain.control(publish("amount > 10 and count(terminal, 1 h) > 0", version=2))
        if n == 5:
            chain.control(RollbackRule("r", 1, "bob", 0))
        chain.send(transaction(n * MINUTE, 20))
        chain.restart()
        versions.append(chain.decisions[-1].rules)
    assert versions == [[], ["r@1"], ["r@1"], ["r@2"], ["r@2"], ["r@1"]]
    told = [d.rules_version for d in chain.decisions]
    assert (told[0], told[1] == told[2], told[3] == told[4]) == ("", True, True)
    assert len(set(told)) == 4  # rolled back is another history than before


def test_a_rule_in_shadow_is_recorded_and_has_no_effect() -> None:
    chain = Chain(())
    chain.control(publish("amount > 10", state="shadow"))
    chain.send(transaction(0, 20))
    (decision,) = chain.decisions
    assert (decision.rules, decision.shadow_rules, decision.action) == ([], ["r@1"], "approve")


def test_a_rule_that_blocks_waits_for_a_second_person() -> None:
    chain = Chain(())
    chain.control(publish("amount > 10", action="block"))
    chain.send(transaction(0, 20))
    chain.control(ApproveRule("r", 1, "ann", 0))
    chain.send(transaction(1, 20))
    chain.control(ApproveRule("r", 1, "eve", 0))
    chain.send(transaction(2, 20))
    assert [(d.action, d.shadow_rules) for d in chain.decisions] == [
        ("approve", ["r@1"]),
        ("approve", ["r@1"]),
        ("block", []),
    ]
    assert "a second person must approve" in chain.dead[0]["error"]


def test_a_bad_rule_is_one_dead_letter_with_its_place_and_the_others_go_on() -> None:
    chain = Chain()
    chain.control(publish("amount > 10"), publish("amont > 10", id="bad"))
    chain.send(transaction(0, 20))
    (letter,) = chain.dead
    assert letter["error"].endswith(
        "rule 'bad': line 1, column 1: there is no field 'amont'; did you mean amount?"
    )
    assert chain.decisions[0].rules == ["r@1"]


def test_a_rule_that_approves_takes_back_built_in_reasons_only() -> None:
    chain = Chain(())
    burst = [transaction(n * SECOND, 1.0) for n in range(6)]
    chain.control(publish("card == 'card-1'", id="vip", action="approve"), ApproveRule("vip", 1, "eve", 0))
    chain.send(*burst)
    assert {d.action for d in chain.decisions} == {"approve"}
    assert chain.decisions[-1].score > 0.85
    chain.control(publish("amount > 10", id="large"))
    chain.send(transaction(MINUTE, 20))
    assert chain.decisions[-1].action == "review"


def test_lists_block_and_allow_until_their_end() -> None:
    chain = Chain(())
    until = START_MS + HOUR
    chain.control(PutListEntry("blocked", "device:d-1", until, "ann", 0))
    chain.control(
        publish("amount > 1", action="review"), PutListEntry("allowed", "card:card-1", until, "ann", 0)
    )
    for at in (0, HOUR):
        chain.send(transaction(at, 20), transaction(at, 20, device_id="d-1"))
    by_time = [(d.event_time_ms - START_MS, d.device_id, d.action) for d in chain.decisions]
    assert sorted(by_time, key=str) == sorted(
        [(0, None, "approve"), (0, "d-1", "block"), (HOUR, None, "review"), (HOUR, "d-1", "review")], key=str
    )
    assert next(r.code for d in chain.decisions if d.action == "block" for r in d.reasons) == "BLOCK_LIST"


class Fixed:
    """A model that says what it is told, and nothing for refunds."""

    def __init__(self, score: float) -> None:
        self.probability = score

    def score(self, observed: Any) -> list[tuple[float, str] | None]:
        assert all(isinstance(o, Observed) for o in observed)
        return [(self.probability, "m-7") if o.tx.amount < 100 else None for o in observed]


@pytest.mark.parametrize("entities", [(), ("device",)])
def test_a_models_score_counts_and_without_one_rules_go_on(entities: tuple[str, ...]) -> None:
    chain = Chain(entities, scorer=Fixed(0.96))
    chain.control(publish("model_score > 0.9"))
    chain.send(transaction(0, 20), transaction(1, 200))
    first, second = sorted(chain.decisions, key=lambda d: d.amount)
    assert (first.action, first.model_score, first.model_version, first.rules) == (
        "block",
        0.96,
        "m-7",
        ["r@1"],
    )
    assert "MODEL" in [r.code for r in first.reasons]
    assert (second.action, second.model_score, second.model_version, second.rules) == (
        "approve",
        None,
        None,
        [],
    )


def test_a_challenger_is_recorded_and_has_no_effect() -> None:
    first, rest = stages([], Fixed(0.1), Fixed(0.99))
    chain = MemoryChain(first, *rest)
    tx = transaction(0, 20)
    (emission,) = chain.run_batch([(tx.card_id, tx.event_time_ms, tx)])
    decision = msgspec.json.decode(emission.payload, type=Decision)
    assert (decision.action, decision.model_score, decision.challenger_score) == ("approve", 0.1, 0.99)
    assert decision.challenger_version == "m-7"


def test_a_late_transaction_is_a_marked_correction_and_changes_no_decision() -> None:
    """The late one is behind the watermark; three purchases of its day have been decided on without it.

    ::

        decided   |   |   |              |
        late    x
    """
    chain, undisturbed = Chain(()), Chain(())
    on_time = [transaction(at * HOUR, 20) for at in (2, 3, 4, 40)]
    for c in (chain, undisturbed):
        c.send(*on_time[:3])
    late = transaction(HOUR, 99, id="late")
    chain.send(late, late)
    chain.send(late)
    for c in (chain, undisturbed):
        c.send(on_time[3])
    assert chain.decisions == undisturbed.decisions
    (correction,) = chain.corrections
    assert (correction.transaction_id, correction.lateness_ms) == ("late", 3 * HOUR - 1)
    assert (correction.decided_after, correction.until_ms) == (3, on_time[2].event_time_ms)
    assert [d["reason"] for d in chain.dead] == ["duplicate"] * 2
    (emission,) = [e for e in chain.emissions if e.output.endswith("corrections")]
    assert not emission.on_time


def test_state_is_empty_when_all_is_over() -> None:
    chain = Chain()
    chain.send(*some_life(Random(3), 40))
    chain.chain.advance_watermark(START_MS + 400 * DAY)
    assert chain.chain.is_empty()


def test_two_purchases_a_day_keep_a_card_below_two_kilobytes_and_a_terminal_below_one() -> None:
    random, chain = Random(1), Chain(("terminal",))
    sizes = []
    for day in range(75):
        for n in range(2):
            more: dict[str, Any] = {
                "device_id": f"d-{random.randrange(2)}",
                "ip": f"10.0.0.{random.randrange(9)}",
            }
            chain.send(transaction(day * DAY + n * HOUR, 20, terminal=f"t-{n}", **more, **BERLIN))
        hosts = chain.chain.hosts[:2]
        sizes.append([max(len(cell.body) for cell in _packed(host)) for host in hosts])
    card, terminal = zip(*sizes, strict=True)
    assert max(card) <= 2_000
    assert max(terminal) <= 1_000
    assert max(card[37:]) <= max(card[31:37]) * 1.02  # flat


def _packed(host: Any) -> list[Any]:
    host.store.pack()
    return [cell for cell in host.store.cells.values() if cell.body]


def test_a_rule_on_a_busy_terminal_holds_where_it_is_true() -> None:
    """9,000 purchases in a day: of the newest 500 one by one, of all others in panes (F5)."""
    chain = Chain(("terminal",))
    chain.control(
        publish("count(terminal, 24 h) > 4500", id="busy"),
        publish("sum(amount, terminal, 24 h) > 50000 and largest(amount, terminal, 24 h) >= 99", id="sum"),
        publish("mean(amount, terminal, 24 h) > 10 and smallest(amount, terminal, 24 h) < 2", id="mean"),
        publish("distinct(card, terminal, 24 h) > 200", id="cards"),
    )
    life = [
        transaction(n * 9_600, 99.0 if n == 7 else 1.0 if n == 8 else 10.0, card=f"c-{n % 250}")
        for n in range(9_000)
    ]
    for place in range(0, len(life), 100):
        chain.send(*life[place : place + 100])
        if place % 3_000 == 0:
            chain.restart()
    found = sorted(chain.decisions, key=lambda d: d.event_time_ms)
    held = {
        rule: [n for n, d in enumerate(found) if f"{rule}@1" in d.rules] for rule in ("busy", "sum", "cards")
    }
    assert held["busy"] == list(range(4_500, 9_000))
    assert held["sum"] == list(range(4_992, 9_000))
    assert held["cards"] == list(range(200, 9_000))
    assert all("mean@1" in d.rules for d in found[9:])
    last = found[-1].terminal
    assert last is not None
    assert (last.count_24h, last.cards_24h, last.cards_30d, last.max_24h) == (9_000, 250, 250, 99.0)
    assert (last.pair_count_30d, last.truncated) == (36, False)


def test_a_busy_card_counts_older_purchases_in_panes_and_says_so() -> None:
    chain = Chain(())
    chain.control(publish("count(card, 30 d) > 1500 and distinct(terminal, card, 30 d) >= 7", id="busy"))
    for start in range(0, 1_600, 100):
        chain.send(
            *(transaction(n * 10 * MINUTE, 10, terminal=f"t-{n % 7}") for n in range(start, start + 100))
        )
        chain.restart()
    found = sorted(chain.decisions, key=lambda d: d.event_time_ms)
    assert [n for n, d in enumerate(found) if d.rules] == list(range(1_500, 1_600))
    assert [n for n, d in enumerate(found) if d.card.truncated][:1] == [MAX_KEPT_OF_CARD + 1]
    assert (found[-1].card.count_30d, found[-1].card.sum_30d, found[-1].card.terminals_30d) == (
        1_600,
        16_000.0,
        7,
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.sampled_from([1, 250, 2**32 - 1, 2**32, 10**11]), st.integers(0, 3)),
        max_size=25,
    ),
    st.integers(0, 60),
    st.integers(1, 60),
)
def test_a_history_in_any_order_and_with_any_amounts_is_a_list_of_purchases(
    purchases: list[tuple[int, int, int]], now: int, width: int
) -> None:
    history = History(since=0)
    for time, cents, link in purchases:
        history.add(time, cents, (link, link + 7))
    look = Look(history, now)
    inside = sorted((p for p in purchases if now - width < p[0] <= now), key=lambda p: p[0])
    start = look.start(width)
    assert look.count(width) == len(inside)
    assert look.total(width) == sum(cents for _, cents, _ in inside)
    assert look.amounts_from(start) == [cents for _, cents, _ in inside]
    assert look.links(start)[::2] == [link for *_, link in inside]
    assert look.links(start)[1::2] == [link + 7 for *_, link in inside]
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(history), type=History)
    assert kept == history


def test_a_batch_is_decided_as_its_transactions_one_by_one() -> None:
    chain = Chain(("device",), scorer=Fixed(0.6))
    life = some_life(Random(4), 40)
    chain.send(*life)
    decision = chain.chain.hosts[-1].runner
    assert decision.fallbacks == 0
    alone = Chain(("device",), scorer=Fixed(0.6))
    alone.chain.hosts[-1].runner._batched = False
    alone.send(*life)
    assert sorted(chain.emissions, key=repr) == sorted(alone.emissions, key=repr)


def test_thresholds_hold_for_the_stage_that_decides() -> None:
    chain = Chain(ALL)
    chain.control(
        SetThreshold("device_cards", 1), SetThreshold("review_score", 0.6), SetThreshold("nonsense", 1)
    )
    chain.send(transaction(0, 20, device_id="d", account_id="a", ip="10.0.0.1"))
    assert [r.code for r in chain.decisions[0].reasons if r.weight] == ["SHARED_DEVICE", "OVERDRAWN"]
    assert chain.decisions[0].action == "review"
    assert len(chain.dead) == 1


def test_what_is_large_is_a_threshold() -> None:
    """Two purchases of twice the median in five minutes are large from 1.5 times on, not from 2.5 (F8)."""
    found = []
    for ratio in (None, 1.5):
        chain = Chain(())
        if ratio is not None:
            chain.control(SetThreshold("large_ratio", ratio))
        chain.send(*(transaction(n * DAY, 20.0) for n in range(12)))
        chain.send(transaction(20 * DAY, 40.0), transaction(20 * DAY + MINUTE, 40.0))
        found.append([d.large_count_5m for d in chain.decisions][-2:])
    assert found == [[0, 0], [1, 2]]


def test_pausing_a_rule_ends_it() -> None:
    chain = Chain(())
    chain.control(publish("amount > 10"))
    chain.control(SetRuleState("r", 1, "paused", "ann", 0))
    chain.send(transaction(0, 20))
    assert chain.decisions[0].rules == []


def test_a_decision_does_not_hang_on_what_the_index_over_the_rules_has_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed, told = [0], [0]

    def beside_a_fresh_index(seen: Observed, thresholds: Any, rules: Any, *rest: Any) -> Any:
        entries = rules.in_force._entries
        fresh = make_rules(InForce(LANGUAGE, entries), entries)
        windows: Any = seen.windows
        untouched = type(windows)({}, windows._asked, windows._look, windows._tx, windows._cents)
        expected = decide(seen._replace(windows=untouched), thresholds, fresh, *rest)
        found = decide(seen, thresholds, rules, *rest)
        assert found == expected
        computed[0] += len(windows)
        told[0] += len(found[0].windows)
        return found

    monkeypatch.setattr(deciding, "decide", beside_a_fresh_index)
    chain = Chain([])
    chain.control(
        *(
            publish(f"sum(amount, card, {n} h) > {n * 20} and count(card, {n} d) > {n % 4}", id=f"r{n}")
            for n in range(1, 13)
        )
    )
    for tx in some_life(Random(11), 600):
        chain.send(tx)
    assert chain.dead == []
    assert computed[0] > told[0] > 0

"""Labels as a stream: in force from when they are known, once, in any order, and never backwards."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pandas as pd
import pytest

from millrace.errors import MillraceError
from millrace.runtime.contract import ContractMismatch, check_contract
from millrace_apps.fraud.contracts.events import Decision, Label, Transaction
from millrace_apps.fraud.evaluation.oracle import handbook_features
from millrace_apps.fraud.handbook.habits import is_high
from millrace_apps.fraud.handbook.process import TerminalHistory
from millrace_apps.fraud.settings import FraudSettings
from millrace_apps.fraud.state.known_labels import (
    MOST_OF_CARD,
    MOST_OF_TERMINAL,
    CardWords,
    LabelRules,
    TerminalLog,
    Word,
)
from millrace_apps.fraud.state.labels import LONG_AGO_DAYS
from millrace_apps.fraud.topology import topology
from tests.unit.apps.fraud.cases import DAY, HOUR, MINUTE, SECOND, START_MS, driver, label, send, transaction
from tests.unit.apps.fraud.chain import Chain, a_life_with_labels, cut, time_of

LOUD = LabelRules(unlabelled_is_genuine=False)


def decided(chain: Chain) -> dict[str, Decision]:
    return {d.transaction_id: d for d in chain.decisions}


def frauds_seen(chain: Chain, *transactions: Transaction) -> list[tuple[int, int]]:
    """Return the known frauds of card and of terminal that transactions were decided with."""
    found = decided(chain)
    return [
        (d.card_labels.frauds if d.card_labels else 0, d.terminal_labels.frauds if d.terminal_labels else 0)
        for d in (found[tx.transaction_id] for tx in transactions)
    ]


def test_a_label_counts_for_what_comes_after_it_was_known() -> None:
    """t0 ──── t1 ── L(t0 fraud) ── t2: t1 does not know, t2 does; another card knows of the terminal."""
    t0, t1, t2 = (transaction(at * DAY, 10) for at in range(3))
    other = transaction(2 * DAY + 1, 10, card="card-2")
    chain = Chain(("terminal",))
    for event in (t0, t1, label(t0, DAY + HOUR), t2, other):
        chain.send(event)
    assert frauds_seen(chain, t0, t1, t2, other) == [(0, 0), (0, 0), (1, 1), (0, 1)]
    known = decided(chain)[t2.transaction_id].terminal_labels
    assert known is not None
    assert (known.fraud_run, known.run_first_days, known.known, known.pending) == (1, 2.0, 1, 1)
    assert decided(chain)[other.transaction_id].card_labels is None


def test_the_card_alone_learns_from_labels() -> None:
    t0, t1 = transaction(0, 10), transaction(2 * DAY, 10)
    target = driver()
    send(target, t0)
    said = label(t0, DAY)
    target.send(t0.card_id, said, at=said.transaction_time_ms)
    send(target, t1)
    (_, decision) = target.values()
    assert (decision.card_labels.frauds, decision.card_labels.run_last_days) == (1, 2.0)
    assert decision.terminal_labels is None
    assert target.values("labels") == [said]


def test_a_label_that_comes_early_waits_for_its_time() -> None:
    """The topic of labels is read ahead: t1 is of before the label was known, t2 of after."""
    t0, t1, t2 = (transaction(at * DAY, 10) for at in range(3))
    chain = Chain(("terminal",))
    for event in (t0, label(t0, DAY + HOUR), t1, t2):
        chain.send(event)
    assert frauds_seen(chain, t1, t2) == [(0, 0), (1, 1)]
    early = Chain(("terminal",), out_of_orderness_ms=3 * DAY)  # even before its transaction
    for event in (label(t0, DAY + HOUR), t0, t1, t2):
        early.send(event)
    assert frauds_seen(early, t1, t2) == [(0, 0), (1, 1)]


def test_labels_do_not_move_the_clock() -> None:
    t0, t1 = transaction(0, 10), transaction(MINUTE, 10)
    chain = Chain(("terminal",))
    chain.send(t0, label(t0, 30 * DAY))
    before = [host.watermark for host in chain.chain.hosts]
    assert max(before) < t0.event_time_ms
    chain.send(t1)
    assert len(chain.decisions) == 2


def test_a_late_label_changes_features_from_then_on_and_no_decision() -> None:
    """Known at day 1, but it comes after t2 of day 2 was decided on."""
    t0, t2, t3 = (transaction(at * DAY, 10) for at in (0, 2, 3))
    chain = Chain(("terminal",))
    chain.send(t0, t2)
    before = chain.decisions
    chain.send(label(t0, DAY))
    assert chain.decisions == before
    chain.send(t3)
    assert frauds_seen(chain, t2, t3) == [(0, 0), (1, 1)]


def test_a_correction_takes_a_label_back_from_when_it_is_known() -> None:
    t0, t2, t4 = (transaction(at * DAY, 10) for at in (0, 2, 4))
    chain = Chain(("terminal",))
    wrong = label(t0, DAY)
    right = label(t0, 3 * DAY, fraud=False, source="correction")
    for event in (t0, wrong, t2, right, t4):
        chain.send(event)
    assert frauds_seen(chain, t2, t4) == [(1, 1), (0, 0)]
    last = decided(chain)[t4.transaction_id]
    assert last.card_labels is not None
    assert last.terminal_labels is not None
    assert (last.card_labels.last_label, last.terminal_labels.last_label) == (1, 1)
    assert chain.labels == [wrong, right]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_the_newest_word_holds_in_whichever_order_the_words_come(swapped: bool, late: bool) -> None:
    t0, t5 = transaction(0, 10), transaction(5 * DAY, 10)
    words = [label(t0, DAY), label(t0, 3 * DAY, fraud=False, source="correction")]
    chain = Chain(("terminal",))
    chain.send(t0)
    if late:
        chain.send(transaction(4 * DAY, 10, card="card-9", terminal="other"))
    for word in reversed(words) if swapped else words:
        chain.send(word)
    chain.send(t5)
    assert frauds_seen(chain, t5) == [(0, 0)]
    assert len(chain.labels) == 2


def test_a_repeated_label_is_a_dead_letter_and_counts_once() -> None:
    t0, t1, t2 = transaction(0, 10), transaction(0, 11, terminal="terminal-1"), transaction(2 * DAY, 10)
    said = label(t0, DAY)
    chain = Chain(("terminal",))
    chain.send(t0, t1)
    chain.send(said, said)
    chain.restart()
    chain.send(said)
    chain.send(t2)
    assert frauds_seen(chain, t2) == [(1, 1)]
    assert [d["reason"] for d in chain.dead] == ["duplicate"] * 2
    assert chain.labels == [said]


def test_another_label_under_a_known_id_is_told_from_a_repeat() -> None:
    t0 = transaction(0, 10)
    said = label(t0, DAY)
    other = msgspec.structs.replace(said, is_fraud=not said.is_fraud)
    chain = Chain(("terminal",))
    chain.send(t0)
    for word in (said, other):
        chain.send(word)
    chain.restart()
    for word in (said, msgspec.structs.replace(said, source="correction")):
        chain.send(word)
    assert [d["reason"] for d in chain.dead] == ["conflict", "duplicate", "conflict"]
    assert chain.labels == [said]


def test_a_label_of_an_earlier_version_is_a_repeat_whatever_it_said() -> None:
    words = CardWords([Word(20, "b", 5, "t", False)])
    assert words.take(Word(21, "b", 5, "t", True, 7), 30) == "repeat"


def test_a_label_on_a_transaction_that_nobody_has_seen_changes_no_terminal() -> None:
    unseen, t2 = transaction(0, 10), transaction(2 * DAY, 10)
    chain = Chain(("terminal",))
    chain.send(label(unseen, DAY))
    chain.send(t2)
    assert decided(chain)[t2.transaction_id].terminal_labels == TerminalLog().counts(t2.event_time_ms, LOUD)


def test_a_label_before_its_transaction_is_refused() -> None:
    fields = msgspec.to_builtins(label(transaction(DAY, 10), DAY))
    raw = msgspec.json.encode(fields | {"event_time_ms": START_MS + DAY - 1})
    with pytest.raises(msgspec.ValidationError, match="cannot become known before its transaction"):
        msgspec.json.decode(raw, type=Label)


def test_silence_is_taken_for_genuine_after_the_delay() -> None:
    t0, t9 = transaction(0, 10), transaction(9 * DAY, 10)
    for rules, last in ((LabelRules(), 1), (LOUD, 0)):
        chain = Chain(("terminal",), labels=rules)
        chain.send(t0, t9)
        known = decided(chain)[t9.transaction_id].terminal_labels
        assert known is not None
        assert known.last_label == last


def test_silence_says_nothing_before_the_holders_have_had_the_time() -> None:
    """The windows of known frauds end where they did; only what silence says waits for chargebacks."""
    given = {"labels": {"delay": "7d", "maturity_chargeback": "21d"}, "model": {"measure": True}}
    settings = FraudSettings.model_validate(given)
    rules = settings.labels.rules()
    assert (rules.delay_ms, rules.mature_ms) == (7 * DAY, 21 * DAY)
    assert FraudSettings().labels.rules().mature_ms == 7 * DAY
    metrics = topology(settings).links[-1].process
    assert metrics.describe()["label_delay_ms"] == 21 * DAY
    for day, last in ((9, 0), (20, 0), (22, 1)):
        t0, later = transaction(0, 10), transaction(day * DAY, 10)
        chain = Chain(("terminal",), labels=rules)
        chain.send(t0, later)
        known = decided(chain)[later.transaction_id].terminal_labels
        assert known is not None
        assert (known.last_label, known.count_30d) == (last, 1)
    with pytest.raises(ValueError, match="at most 45 days"):
        FraudSettings.model_validate({"labels": {"maturity_chargeback": "46d"}})


@pytest.mark.parametrize(
    ("usual", "rules", "run"),
    [
        (600.0, LabelRules(), 3),
        (20.0, LabelRules(), 0),
        (600.0, LabelRules(high_amount=220.0), 0),
        (20.0, LabelRules(high_ratio=40.0), 3),
    ],
    ids=["a jeweller's", "a grocer's", "as the Handbook has it", "by the setting"],
)
def test_frauds_of_amounts_that_are_usual_at_the_terminal_are_a_run_of_it(
    usual: float, rules: LabelRules, run: int
) -> None:
    """Three frauds of 600 on cards of 20: what they say of the terminal hangs on its other purchases (F8)."""
    chain = Chain(("terminal",), labels=rules)
    cards = [f"card-{n}" for n in range(3)]
    for n in range(24):
        chain.send(transaction(n * HOUR, 20.0, card=cards[n % 3], terminal="elsewhere"))
        chain.send(transaction(n * HOUR + 1, usual, card=f"other-{n}"))
    for n, card in enumerate(cards):
        stolen = transaction(DAY + n * HOUR, 600.0, card=card)
        chain.send(stolen)
        chain.send(label(stolen, DAY + n * HOUR + MINUTE))
    last = transaction(2 * DAY, 20.0)
    chain.send(last)
    known = decided(chain)[last.transaction_id].terminal_labels
    assert known is not None
    assert (known.fraud_run, known.frauds, known.frauds_high) == (run, run, 3 - run)


def test_labels_pass_the_stages_that_do_not_want_them() -> None:
    t0, t2 = (transaction(at * DAY, 10, account_id="a", device_id="d", ip="10.0.0.1") for at in (0, 2))
    for entities in (("account", "terminal", "device", "ip"), ("device", "terminal"), ("account", "device")):
        chain = Chain(entities)
        for event in (t0, label(t0, DAY), t2):
            chain.send(event)
        wanted = 1 if "terminal" in entities else 0
        assert frauds_seen(chain, t2) == [(1, wanted)]
        assert chain.dead == []


# -- oracles ---------------------------------------------------------------------------------------------


def some_table(random: Random, rows: int) -> pd.DataFrame:
    """Purchases in the Handbook's columns, no two at one instant."""
    at, found = START_MS, []
    for number in range(rows):
        at += random.choice([SECOND, MINUTE, HOUR, 5 * HOUR, DAY, 6 * DAY])
        found.append((number, at, random.randrange(3), random.randrange(3), random.randint(1, 9_000) / 100))
    frame = pd.DataFrame(found, columns=["TRANSACTION_ID", "at", "CUSTOMER_ID", "TERMINAL_ID", "TX_AMOUNT"])
    frame["TX_DATETIME"] = pd.to_datetime(frame["at"], unit="ms")
    frame["TX_FRAUD"] = [int(random.random() < 0.4) for _ in range(rows)]
    return frame


def as_stream(frame: pd.DataFrame, delay: int) -> list[Transaction | Label]:
    """Purchases, and the label of each the delay after it, in the order in which they come about."""
    found: list[tuple[int, int, Transaction | Label]] = []
    for row in frame.to_dict("records"):
        at = row["at"] - START_MS
        tx = transaction(
            at,
            row["TX_AMOUNT"],
            id=f"{row['TRANSACTION_ID']:06}",
            card=f"c-{row['CUSTOMER_ID']}",
            terminal=f"t-{row['TERMINAL_ID']}",
        )
        said = label(tx, at + delay, bool(row["TX_FRAUD"]), id=f"l-{tx.transaction_id}")
        found += [(at, 1, tx), (at + delay, 0, said)]
    return [event for _, _, event in sorted(found, key=lambda f: f[:2])]


WINDOWS = tuple(f"{what}_{days}d" for days in (1, 7, 30) for what in ("count", "risk"))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("days", [1, 7])
def test_the_live_windows_are_those_that_pandas_computes_of_the_handbook(seed: int, days: int) -> None:
    random = Random(seed)
    frame = some_table(random, 70)
    chain = Chain(("terminal",), labels=LabelRules(days * DAY))
    for batch in cut(random, as_stream(frame, days * DAY)):
        chain.send(*batch)
        if random.random() < 0.2:
            chain.restart()
    expected = handbook_features(frame, days * DAY)
    found = decided(chain)
    for number, row in zip(frame["TRANSACTION_ID"], expected.to_dict("records"), strict=True):
        known = found[f"{number:06}"].terminal_labels
        assert {n: getattr(known, n) for n in WINDOWS} == {n: row[f"terminal_{n}"] for n in WINDOWS}
    assert sum(row["terminal_risk_30d"] > 0 for row in expected.to_dict("records")) > 10


def known_by_looking_through_all(
    past: list[Transaction], said: list[Label], tx: Transaction, of_card: bool
) -> dict[str, Any]:
    """What was known at a transaction, by going through everything that was ever said."""
    at = tx.event_time_ms
    mine = [
        p
        for p in past
        if (p.card_id == tx.card_id if of_card else p.terminal_id == tx.terminal_id) and p.event_time_ms < at
    ]
    latest: dict[str, bool] = {}
    for word in sorted(said, key=lambda w: (w.event_time_ms, w.label_id)):
        if word.event_time_ms <= at:
            latest[word.transaction_id] = word.is_fraud
    labelled = [(p.event_time_ms, latest[p.transaction_id]) for p in mine if p.transaction_id in latest]
    genuine = [t for t, fraud in labelled if not fraud]
    frauds = [t for t, fraud in labelled if fraud]
    run = [t for t in frauds if not genuine or t > genuine[-1]]
    return {
        "known": len(labelled),
        "frauds": len(frauds),
        "fraud_run": len(run),
        "run_first_days": (at - run[0]) / DAY if run else LONG_AGO_DAYS,
        "genuine_days": (at - genuine[-1]) / DAY if genuine else LONG_AGO_DAYS,
        "last_label": 0 if not labelled else 2 if labelled[-1][1] else 1,
    }


@pytest.mark.parametrize("seed", range(6))
def test_any_cut_and_any_restart_give_what_a_search_through_all_that_was_said_gives(seed: int) -> None:
    random = Random(seed)
    life = a_life_with_labels(random)
    past = [e for e in life if isinstance(e, Transaction)]
    said = [e for e in life if isinstance(e, Label)]
    chain = Chain(("terminal",), labels=LOUD, out_of_orderness_ms=random.choice([0, HOUR, 5 * DAY]))
    for batch in cut(random, life):
        random.shuffle(batch)
        chain.send(*batch)
        if random.random() < 0.3:
            chain.restart()
    found = decided(chain)
    assert (len(found), chain.dead) == (len(past), [])
    for tx in past:
        decision = found[tx.transaction_id]
        for known, of_card in ((decision.terminal_labels, False), (decision.card_labels, True)):
            expected = known_by_looking_through_all(past, said, tx, of_card)
            if known is None:
                assert expected["known"] == 0
                continue
            assert {n: getattr(known, n) for n in expected} == expected, (tx.transaction_id, of_card)


@pytest.mark.parametrize("seed", range(4))
def test_labels_and_transactions_out_of_order_within_the_bound_end_in_the_same_state(seed: int) -> None:
    """What comes after all of it sees the same, and the table of labels has the same rows."""
    random = Random(seed)
    life = a_life_with_labels(random)
    last = [transaction(35 * DAY + n, 10, id=f"last-{n}", card=f"c-{n}", terminal=f"m-{n}") for n in range(3)]
    ends = []
    for shaken in (False, True, True):
        events = sorted(life, key=lambda e: time_of(e) + random.randrange(DAY)) if shaken else life
        chain = Chain(("terminal",), labels=LOUD, out_of_orderness_ms=60 * DAY)
        for batch in cut(random, events):
            repeats = [e for e in batch if isinstance(e, Label) and shaken and random.random() < 0.3]
            chain.send(*batch, *repeats)
        chain.send(*last)
        found = decided(chain)
        ends.append(
            (
                [
                    (found[t.transaction_id].card_labels, found[t.transaction_id].terminal_labels)
                    for t in last
                ],
                sorted((msgspec.structs.astuple(w) for w in chain.labels), key=str),
            )
        )
    assert ends[0] == ends[1] == ends[2]
    assert any(known is not None and known.known for known, _ in ends[0][0])


def test_live_and_recorded_history_look_through_the_same_code() -> None:
    """A high amount makes no run, live as in recorded history: by the same rule."""
    usual = [transaction(n * HOUR, 10) for n in range(8)]
    stolen, later = transaction(DAY, 90), transaction(9 * DAY, 10, card="card-2")
    chain = Chain(("terminal",))
    chain.send(*usual, stolen)
    chain.send(label(stolen, 2 * DAY))
    chain.send(later)
    known = decided(chain)[later.transaction_id].terminal_labels
    assert known is not None
    assert (known.frauds, known.frauds_high, known.fraud_run) == (0, 1, 0)
    assert is_high(90, 9.0)
    assert TerminalHistory().describe()["label_delay_ms"] == LabelRules().delay_ms


# -- bounds, leaks, older checkpoints ----------------------------------------------------------------------


def test_what_is_kept_of_labels_is_bounded() -> None:
    words, log = CardWords(), TerminalLog()
    for n in range(MOST_OF_CARD + 50):
        words.take(Word(n, f"l{n}", n, f"t{n}", True), 0)
    assert len(words.words) == MOST_OF_CARD
    for n in range(MOST_OF_TERMINAL + 300):
        log.add(n, high=False)
    assert MOST_OF_TERMINAL - 300 < len(log.log.times) <= MOST_OF_TERMINAL


def test_labels_leave_no_state_when_all_is_over() -> None:
    chain = Chain(("terminal",))
    for event in a_life_with_labels(Random(1)):
        chain.send(event)
    chain.chain.advance_watermark(START_MS + 800 * DAY)
    assert chain.chain.is_empty()


def test_a_terminal_of_a_purchase_a_day_stays_below_a_kilobyte() -> None:
    chain = Chain(("terminal",))
    sizes = []
    for day in range(130):
        tx = transaction(day * DAY, 20, card=f"card-{day % 3}")
        chain.send(tx)
        if day % 10 == 0:
            chain.send(label(tx, day * DAY + 2 * HOUR))
        host = chain.chain.hosts[1]
        host.store.pack()
        sizes.append(max(len(cell.body) for cell in host.store.cells.values()))
    assert max(sizes) <= 1_000
    assert max(sizes[90:]) <= max(sizes[50:90]) * 1.05  # flat, but for how short the times are


def test_a_checkpoint_from_before_labels_is_refused_in_one_line(tmp_path: Any) -> None:
    states = {"account": {"kind": "value"}}
    check_contract(tmp_path, {"process": "CardMonitor", "key": ["card_id"], "states": states})
    now = {
        "process": "CardMonitor",
        "key": ["card_id"],
        "inputs": ["transactions", "labels"],
        "states": states,
    }
    with pytest.raises(ContractMismatch, match="inputs is new") as refused:
        check_contract(tmp_path, now)
    assert isinstance(refused.value, MillraceError)
    assert "start anew with another storage.root" in str(refused.value)

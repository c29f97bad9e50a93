"""What rules can ask for beside plain windows: chosen purchases, kinds, places, hours, declined payments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from millrace.rules import PublishRule, Rule, RuleError
from millrace_apps.fraud.contracts.events import Authorisation, Transaction
from millrace_apps.fraud.operations.backtest import backtest, read_declined
from millrace_apps.fraud.processes import cards as process
from millrace_apps.fraud.processes import entity_stages
from millrace_apps.fraud.processes.rulebook import LANGUAGE, check_reach, text_of
from millrace_apps.fraud.processes.window_functions import asked
from millrace_apps.fraud.state.card_history import CardLook
from millrace_apps.fraud.state.history import MAX_KINDS, History
from millrace_apps.fraud.state.kinds import kind_of, purchase_of
from tests.oracles import fraud_windows as oracle
from tests.unit.apps.fraud.cases import DAY, HOUR, MINUTE, START_MS, authorisation, transaction
from tests.unit.apps.fraud.chain import ALL, Chain, cut, some_life

ENTITIES = (*ALL, "customer", "merchant")

#: A function as rules write it, and what it is by the oracle: name, arguments, who is chosen.
Asked = tuple[str, tuple[Any, ...], Callable[[Any], bool] | None]
FUNCTIONS: dict[str, Asked] = {
    "count(card, 3 d, mcc == '5732')": ("count", ("card", 3 * DAY), lambda o: o.mcc == "5732"),
    "sum(amount, card, 24 h, channel == 'online')": (
        "sum", ("amount", "card", DAY), lambda o: o.channel == "online"),
    "mean(amount, card, 30 d, country != 'DE' and amount < 100)": (
        "mean", ("amount", "card", 30 * DAY), lambda o: o.country != "DE" and o.amount < 100),
    "largest(amount, card, 7 d, not (mcc in ('5411', '5999')))": (
        "largest", ("amount", "card", 7 * DAY), lambda o: o.mcc not in ("5411", "5999")),
    "smallest(amount, card, 2 d, amount >= 7.5)": (
        "smallest", ("amount", "card", 2 * DAY), lambda o: o.amount >= 7.5),
    "count(card, 30 d, channel is missing or amount > 500)": (
        "count", ("card", 30 * DAY), lambda o: o.channel is None or o.amount > 500),
    "distinct(mcc, card, 7 d)": ("distinct", ("mcc", "card", 7 * DAY), None),
    "distinct(country, card, 30 d)": ("distinct", ("country", "card", 30 * DAY), None),
    "distinct(merchant, card, 24 h)": ("distinct", ("merchant", "card", DAY), None),
    "count(customer, 24 h)": ("count", ("customer", DAY), None),
    "sum(amount, merchant, 7 d)": ("sum", ("amount", "merchant", 7 * DAY), None),
    "distinct(card, merchant, 30 d)": ("distinct", ("card", "merchant", 30 * DAY), None),
}  # fmt: skip


def a_life(random: Random, number: int) -> list[Transaction]:
    """Transactions of some kinds, with customers and merchants, local times and homes."""
    found = []
    for tx in some_life(random, number):
        card = int(tx.card_id[2:])
        found.append(
            msgspec.structs.replace(
                tx,
                mcc=random.choice(["5411", "5732", "5999", "0742"]),
                country=random.choice(["DE", "DE", "FR", "US"]),
                channel=None if random.random() < 0.1 else tx.channel,
                merchant_id=None if random.random() < 0.1 else f"m-{random.randrange(4)}",
                customer_id=f"k-{card // 2}" if card else None,
                utc_offset_min=random.choice([None, 0, 60, -480, 330, 840, -720]),
                home_country=random.choice([None, None, "DE", "US"]),
            )
        )
    return found


def rules() -> list[Rule]:
    """A rule for each function, that always holds: a decision tells the windows of rules that hold."""
    found = [Rule(f"r{n}", f"{text} > 1000000 or amount > 0", "review") for n, text in enumerate(FUNCTIONS)]
    found.append(Rule("declined", "declined(card, 2 d) >= 1", "review"))
    found += [Rule(f"hour-{n}", f"hour >= {n}", "review") for n in (1, 6, 12, 20)]
    found += [Rule(f"day-{n}", f"weekday == {n}", "review") for n in (1, 4, 7)]
    found.append(Rule("abroad", "country != home_country", "review"))
    return found


def published() -> list[PublishRule]:
    return [PublishRule(rule, 1, "ann", 0, "active") for rule in rules()]


def with_responses(random: Random, life: list[Transaction]) -> list[Transaction | Authorisation]:
    """The transactions, and of some the response that they were declined, when it comes."""
    found: list[tuple[int, int, Transaction | Authorisation]] = []
    for n, tx in enumerate(life):
        found.append((tx.event_time_ms, 2 * n, tx))
        if tx.kind == "purchase" and random.random() < 0.3:
            known = tx.event_time_ms - START_MS + random.choice([0, 1, MINUTE, 5 * HOUR])
            response = authorisation(tx, known, random.choice(["declined", "declined", "captured"]))
            found.append((response.event_time_ms, 2 * n + 1, response))
    return [event for *_, event in sorted(found, key=lambda f: f[:2])]


def decided(seed: int, number: int) -> tuple[Chain, list[Transaction], list[Authorisation]]:
    random = Random(seed)
    life = a_life(random, number)
    events = with_responses(random, life)
    chain = Chain(ENTITIES)
    chain.control(*published())
    batches = cut(random, events) if seed % 2 else [[event] for event in events]
    for batch in batches:
        chain.send(*batch)  # type: ignore[arg-type]
        if random.random() < 0.1:
            chain.restart()
    assert chain.dead == []
    return chain, life, [e for e in events if isinstance(e, Authorisation)]


@pytest.mark.parametrize("seed", range(0, 24, 2))
def test_every_function_is_what_a_scan_over_all_transactions_says(seed: int) -> None:
    """A dozen lives of 70 payments, of each 12 windows, the hour, the weekday, the home and the declined."""
    chain, life, responses = decided(seed, 70)
    by_id = {d.transaction_id: d for d in chain.decisions}
    uses = {text: next(iter(LANGUAGE.condition(f"{text} > 1").uses)) for text in FUNCTIONS}
    held = set()
    for place, tx in enumerate(life):
        decision, seen = by_id[tx.transaction_id], life[:place]
        for text, (name, arguments, chosen) in FUNCTIONS.items():
            entity = arguments[-2]
            if tx.kind != "purchase" or getattr(tx, oracle.FIELD[entity]) is None:
                continue
            wanted = oracle.window(seen, tx, name, *arguments, chosen=chosen)
            assert decision.windows.get(text_of(uses[text])) == pytest.approx(wanted), text
        hour, day = oracle.local_time(tx)
        home = oracle.home_country(seen, tx)
        expected = {f"hour-{n}" for n in (1, 6, 12, 20) if hour >= n} | {
            f"day-{n}" for n in (1, 4, 7) if day == n
        }
        if home is not None and tx.country != home:
            expected.add("abroad")
        if oracle.declined([r for r in responses if r.event_time_ms <= tx.event_time_ms], tx, 2 * DAY):
            expected.add("declined")
        found = {name.removesuffix("@1") for name in decision.rules}
        assert {name for name in found if not name.startswith("r")} == expected
        held |= expected
        for name in ("customer", "merchant"):
            features, wanted_ones = getattr(decision, name), oracle.entity_features(seen, tx, name)
            assert (features is None) == (wanted_ones is None)
            if features is not None and wanted_ones is not None:
                assert {n: getattr(features, n) for n in wanted_ones} == pytest.approx(wanted_ones)
    assert {"declined", "abroad", "day-4"} <= held


@pytest.mark.parametrize("seed", range(1, 9, 2))
def test_a_back_test_finds_what_the_stream_found(seed: int) -> None:
    _, life, responses = decided(seed - 1, 80)
    some = [r for r in rules() if not r.id.startswith("r")]
    some += [Rule(f"r{n}", f"{text} > {limit}", "review") for n, (text, limit) in enumerate(
        zip(FUNCTIONS, (0, 20, 10, 30, 8, 1, 2, 1, 1, 2, 100, 1), strict=True))]  # fmt: skip
    stream = Chain(ENTITIES)
    stream.control(*(PublishRule(rule, 1, "ann", 0, "active") for rule in some))
    for event in sorted([*life, *responses], key=lambda e: (e.event_time_ms, isinstance(e, Authorisation))):
        stream.send(event)  # type: ignore[arg-type]
    found = sorted(stream.decisions, key=lambda d: (d.event_time_ms, d.transaction_id))
    rows = [{k: v for k, v in msgspec.to_builtins(d).items() if k != "windows"} for d in found]
    declined: dict[str, list[tuple[int, str]]] = {}
    for response in responses:
        if response.status == "declined":
            declined.setdefault(response.card_id, []).append(
                (response.event_time_ms, response.transaction_id)
            )
    report = backtest(some, pa.Table.from_pylist(rows), declined=declined)
    for outcome in report.rules:
        hits = [d for d in found if f"{outcome.rule}@1" in d.rules]
        assert outcome.alerts == len(hits), outcome.rule
    assert sum(outcome.alerts > 0 for outcome in report.rules) > 15


def test_a_back_test_reads_what_was_declined_from_its_table(tmp_path: Path) -> None:
    tx, later = transaction(0, 20.0), transaction(HOUR, 20.0)
    rule, other = Rule("r", "declined(card, 1 d) >= 1", "review"), Rule("o", "amount > 1", "review")
    assert read_declined(tmp_path / "authorisations", [rule]) == {}, "there is none"
    rows = [msgspec.to_builtins(authorisation(tx, MINUTE, status)) for status in ("declined", "captured")]
    write_deltalake(str(tmp_path / "authorisations"), pa.Table.from_pylist(rows, schema=pa.schema(
        [("card_id", pa.string()), ("event_time_ms", pa.int64()), ("transaction_id", pa.string()),
         ("status", pa.string())])))  # fmt: skip
    declined = read_declined(tmp_path / "authorisations", [rule, other])
    assert declined == {tx.card_id: [(START_MS + MINUTE, tx.transaction_id)]}
    assert read_declined(tmp_path / "authorisations", [other]) == {}, "nobody asks"
    table = pa.Table.from_pylist([msgspec.to_builtins(t) for t in (tx, later)])
    assert [o.alerts for o in backtest([rule, other], table, declined=declined).rules] == [1, 2]


def test_what_cannot_be_chosen_is_refused_with_its_place() -> None:
    for text, said in {
        "count(terminal, 1 h, mcc == '5411') > 1": "line 1, column 1: a condition can choose among",
        "count(card, 1 h, mc == '5411') > 1": "line 1, column 18: there is no field 'mc'; did you mean mcc?",
        "count(card, 1 h, amount) > 1": "line 1, column 18: this condition is true or false",
        "count(card, 1 h, count(card, 1 h) > 1) > 1": "there is no function 'count'",
        "count(card, 1 h, mcc == '5411', 5) > 1": "count takes (",
        "distinct(customer, card, 1 h) > 1": "'customer' is none of",
    }.items():
        with pytest.raises(RuleError) as refused:
            LANGUAGE.condition(text)
        assert said in str(refused.value)


def test_one_condition_is_one_window_however_it_is_written() -> None:
    (one,) = LANGUAGE.condition("count(card, 1 h, mcc=='5411') > 1").uses
    (other,) = LANGUAGE.condition('count(card, 60 min, (mcc == "5411")) > 7').uses
    assert one == other
    assert text_of(one) == "count(card, 3600000, (mcc == '5411'))"


def test_without_its_stage_a_window_of_customers_or_merchants_is_told() -> None:
    rule = Rule("r", "count(customer, 1 h) > 5 and distinct(card, merchant, 1 d) > 3", "review")
    assert check_reach(rule, ENTITIES) == []
    assert [problem.split(":")[0] for problem in check_reach(rule, ALL)] == [
        "the stage 'customer' does not run", "the stage 'merchant' does not run"]  # fmt: skip


def test_kinds_are_of_a_byte_each_and_of_too_many_the_card_says_so() -> None:
    history, random = History(since=0), Random(3)
    kept: list[tuple[str, str]] = []
    for n in range(3_000):
        tx = transaction(n, 5.0)
        tx = msgspec.structs.replace(tx, mcc=f"{random.randrange(90 + n // 20):04}", merchant_id=f"m-{n % 2}")
        history.add_of_kind(tx.event_time_ms, 500, (1, 0, 0), kind_of(tx))
        kept.append((tx.mcc, tx.country))
        history.forget(tx.event_time_ms, 100)
        if n % 500 == 0:
            history = msgspec.msgpack.decode(msgspec.msgpack.encode(history), type=History)
    found = [purchase_of(history.known[number]) for number in history.numbers]
    assert [(p.mcc, p.country) for p in found] == kept[-100:]
    assert (len(history.kinds), history.dropped) == (100, 0)
    alike = History(since=0)
    for n in range(3):
        alike.add_of_kind(n, 500, (1, 0, 0), 7)
    assert (alike.kinds, alike.numbers) == (b"", bytes(3)), "one kind takes no room"
    alike.add_of_kind(1, 500, (1, 0, 0), 9)
    assert [alike.known[number] for number in alike.numbers] == [7, 7, 9, 7]
    assert len(history.known) <= 2 * 100 + 6
    for n in range(MAX_KINDS + 10):
        other = msgspec.structs.replace(transaction(n, 5.0), mcc=f"{n:04}")
        history.add_of_kind(START_MS + 10**6 + n, 500, (1, 0, 0), kind_of(other))
    assert history.dropped > 0, "a card of more kinds says that not all are told apart"


def test_a_history_of_before_kinds_and_panes_goes_on() -> None:
    """As an earlier version packed it: seven fields, without a tail, kinds or their table."""
    before = History(since=0)
    before.add(START_MS, 500, (1, 0, 0))
    packed = msgspec.msgpack.encode(msgspec.msgpack.decode(msgspec.msgpack.encode(before))[:7])
    history = msgspec.msgpack.decode(packed, type=History)
    assert (len(history), history.tail, history.kinds, history.known) == (1, None, b"", [])
    tx = transaction(HOUR, 20.0)
    history.add_of_kind(tx.event_time_ms, 2_000, (2, 0, 0), kind_of(tx))
    assert [purchase_of(history.known[number]).mcc for number in history.numbers] == [None, "5411"]
    look = CardLook(history, tx.event_time_ms)
    for text, wanted in {
        "count(card, 1 d, mcc == '5411')": 1,
        "count(card, 1 d, mcc is missing)": 1,
        "distinct(mcc, card, 1 d)": 1,
        "sum(amount, card, 1 d, amount < 10)": 5.0,
    }.items():
        (use,) = LANGUAGE.condition(f"{text} > 0").uses
        assert asked(use)(look, tx, 0) == wanted
    history.forget(tx.event_time_ms, 1)
    assert (len(history), len(history.numbers), CardLook(history, tx.event_time_ms).count(DAY)) == (1, 1, 2)


@pytest.mark.parametrize("seed", range(6))
def test_busy_entities_are_the_same_however_batches_are_cut_and_never_too_little(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if five purchases were many: of each terminal, card and so on the others are in panes."""
    monkeypatch.setattr(process, "MAX_KEPT_OF_CARD", 5)
    monkeypatch.setattr(entity_stages, "MAX_KEPT", 5)
    life = a_life(Random(seed), 120)

    def outcome(batches: list[list[Transaction]], restarts: float) -> dict[str, Any]:
        random, chain = Random(seed), Chain(ENTITIES)
        chain.control(*published())
        for batch in batches:
            chain.send(*batch)
            if random.random() < restarts:
                chain.restart()
        assert chain.dead == []
        return {d.transaction_id: d for d in chain.decisions}

    found = outcome([[tx] for tx in life], 0.0)
    assert outcome(cut(Random(seed), life), 0.3) == found == outcome([life], 0.0)
    more = 0
    for place, tx in enumerate(life):
        decision = found[tx.transaction_id]
        for name, field in (("terminal", "terminal"), ("merchant", "merchant"), ("account", "account")):
            features, exact = getattr(decision, field), oracle.entity_features(life[:place], tx, name)
            assert (features is None) == (exact is None)
            if features is None or exact is None:
                continue
            for of in ("count_1h", "count_24h", "count_30d", "sum_24h", "max_24h"):
                assert getattr(features, of) >= exact[of] - 1e-9
            assert [features.cards_1h, features.cards_24h, features.cards_30d] == [
                exact["cards_1h"], exact["cards_24h"], exact["cards_30d"]]  # fmt: skip
            more += features.count_30d > exact["count_30d"]
            if not features.truncated:
                assert features.pair_count_30d == exact["pair_count_30d"]
        exact = oracle.card_features(life[:place], tx)
        assert decision.card.count_30d >= exact["count_30d"]
        assert (decision.card.terminals_30d, decision.card.devices_30d) == (
            exact["terminals_30d"], exact["devices_30d"])  # fmt: skip
    assert more < len(life), "few windows reach back further than they should"

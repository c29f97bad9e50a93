"""Decisions while the customer waits are those of the stream, as far as it can be known by then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from millrace.chaos.hostile import Message
from millrace.runtime.settings import load_settings
from millrace.serving.ahead import AheadOfQuery
from millrace.serving.following import NotCommittedYet
from millrace.serving.handing import HandingOn, NotHandedOn, Place
from millrace.serving.journal import read_journal
from millrace_apps.fraud.app import app
from millrace_apps.fraud.contracts.events import Label, Transaction
from millrace_apps.fraud.operations.served import JOURNAL, compared
from millrace_apps.fraud.operations.serving import Decider
from millrace_apps.fraud.operations.serving_app import decider_of
from millrace_apps.fraud.settings import FraudSettings
from tests.cases import case_count
from tests.unit.apps.fraud.cases import label, transaction
from tests.unit.millrace.serving.memory_query import MemoryQuery

CASES = case_count(6)
SECOND = 1_000


class Topic(HandingOn):
    """The topics of the app in memory; a broker that can be away."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.is_down = self.is_slow = False
        self.late: list[tuple[Future[Place], Place]] = []
        self._count = 0

    def send(self, key: bytes, value: bytes) -> Future[Place]:
        done: Future[Place] = Future()
        if self.is_down:
            done.set_exception(NotHandedOn("nobody is there"))
            return done
        self.messages.append(Message("fraud.transactions", key, value, 0))
        place = 0, self._count
        self._count += 1
        if self.is_slow:
            self.late.append((done, place))
        else:
            done.set_result(place)
        return done

    def say(self, label: Label) -> None:
        self.messages.append(Message("fraud.labels", label.card_id.encode(), msgspec.json.encode(label), 0))

    def close(self) -> int:
        return 0


class World:
    """An app, its query, and its server."""

    def __init__(self, root: Path, stack: ExitStack, safe: Any = "broker", **how: Any) -> None:
        overrides = (f"storage.root={root}", "spark.key_groups=8", "stream.out_of_orderness=5s")
        self.settings = load_settings(FraudSettings, app="fraud", overrides=overrides)
        self.settings = app.settle(self.settings, "station", None) if app.settle else self.settings
        self.root, self.topic = root, Topic()
        self.query = MemoryQuery(root, app.topology(self.settings), self.settings, "fraud.transactions")
        self.decided: list[dict[str, Any]] = []
        self.decider: Decider
        self.ahead: AheadOfQuery
        self._server = stack.enter_context(ExitStack())
        self._how = {"ack_s": 0.05, "safe": safe, **how}
        self.restart()

    def restart(self) -> None:
        """End the server, with all that it knows, and start the next one."""
        self._server.close()
        self.topic.late.clear()
        made = decider_of(self.settings, handing=lambda: self.topic, **self._how)
        self.decider, self.ahead = self._server.enter_context(made)

    def ask(self, tx: Transaction) -> tuple[int, dict[str, Any]]:
        answer = self.decider.decide(msgspec.json.encode(tx))
        return answer.status, answer.body

    def batch(self, count: int | None = None, *, commits: bool = True) -> None:
        """Let the query read so many messages."""
        taken = self.topic.messages[: len(self.topic.messages) if count is None else count]
        del self.topic.messages[: len(taken)]
        for output, record in self.query.run(taken, commits=commits):
            if output == "main":
                self.decided.append(record)

    def journal(self) -> list[dict[str, Any]]:
        return list(read_journal(self.root / JOURNAL))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def some_payments(rng: Random) -> list[Transaction | Label]:
    """Payments of few cards in bursts, of all sizes, so that each hangs on those before it; some labels."""
    found: list[Transaction | Label] = []
    at = 0
    for number in range(60):
        at += rng.choice((SECOND, SECOND, 5 * SECOND, 60 * SECOND, 3_600 * SECOND))
        card, terminal = f"c-{rng.randrange(2)}", f"m-{rng.randrange(3)}"
        tx = transaction(at, rng.choice((1, 1.5, 20, 30, 900)), id=f"t{number}", card=card, terminal=terminal)
        found.append(tx)
        if rng.random() < 0.2:
            found.append(label(tx, at, id=f"l{number}"))
    return found


@pytest.mark.parametrize("seed", range(CASES))
def test_what_is_answered_is_what_the_stream_decides_wherever_batches_are_cut(
    seed: int, tmp_path: Path, stack: ExitStack
) -> None:
    """All payments are asked here; batches are cut anywhere, planned and not committed, followed or not.

    A label says what is usual for its card, and the server knows of it when it is committed: the query goes
    on that far before the next payment.
    """
    rng, world = Random(seed), World(tmp_path, stack)
    world.batch()
    assert world.ahead.follow()
    planned = False
    for event in some_payments(rng):
        if isinstance(event, Label):
            if planned:
                world.query.settle()
                planned = False
            world.topic.say(event)
            world.batch()
            world.ahead.follow()
        else:
            world.topic.is_slow = rng.random() < 0.1
            status, told = world.ask(event)
            assert status == (503 if world.topic.is_slow else 200), told
            if rng.random() < 0.5:
                for done, place in world.topic.late:
                    done.set_result(place)
                world.topic.late.clear()
        if planned and rng.random() < 0.5:
            world.query.settle()
            planned = False
        elif not planned and rng.random() < 0.3:
            planned = rng.random() < 0.3
            world.batch(rng.randrange(len(world.topic.messages) + 1), commits=not planned)
            if planned:
                world.ahead.follow()  # what is not committed does not count
        if rng.random() < 0.4:
            world.ahead.follow()
        if rng.random() < 0.1:
            world.query.writer.partition.snapshot()
    if planned:
        world.query.settle()
    world.batch()
    found = compared([{**line, "refused": False} for line in world.journal()], world.decided)
    assert found.answered == found.decided == found.alike == 60, found.differences
    assert sum(bool(row["score"]) for row in world.decided) > 5
    for done, place in world.topic.late:
        done.set_result(place)
    world.ahead.follow()
    assert world.ahead.waiting == 0


@pytest.mark.parametrize("seed", range(CASES))
def test_with_an_outbox_a_server_that_begins_anew_decides_as_if_it_had_not_ended(
    seed: int, tmp_path: Path, stack: ExitStack
) -> None:
    """The broker is away at times, and the server is restarted between any two payments.

    What is answered is what the stream decides in the end, though it has none of it for a long time.
    """
    rng = Random(seed)
    # A disk on which others write, too, takes its time: what is written in the end is handed on.
    world = World(tmp_path, stack, safe="outbox", when_down="answer", ack_s=10.0)
    world.batch()
    world.ahead.follow()
    payments = [event for event in some_payments(rng) if isinstance(event, Transaction)]
    told: dict[str, dict[str, Any]] = {}
    for tx in payments:
        if rng.random() < 0.2:
            world.topic.is_down = rng.random() < 0.4
        if rng.random() < 0.2:
            world.restart()
            world.ahead.follow()
        status, told[tx.transaction_id] = world.ask(tx)
        assert (status, told[tx.transaction_id]["handed_on"]) == (200, True)
        if told and rng.random() < 0.2:
            again = rng.choice(payments[: len(told)])
            assert world.ask(again) == (200, told[again.transaction_id] | {"repeated": True})
        if not world.topic.is_down and rng.random() < 0.3:
            _until(lambda: world.decider.health()["waiting_for_broker"] == 0)
            world.batch(rng.randrange(len(world.topic.messages) + 1))
            if rng.random() < 0.7:
                world.ahead.follow()
    world.topic.is_down = False
    _until(lambda: world.decider.health()["waiting_for_broker"] == 0)
    world.batch()
    alike = [row for row in world.decided if row["transaction_id"] in told]
    found = compared(world.journal(), alike)
    assert found.answered == found.decided == found.alike == len(payments), found.differences
    world.ahead.follow()
    assert world.ahead.waiting == 0


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_with_an_outbox_a_broker_that_is_away_for_long_refuses_payments_until_it_is_back(
    tmp_path: Path, stack: ExitStack
) -> None:
    world = World(tmp_path, stack, safe="outbox", ack_s=0.5)  # also how long the broker may take nothing
    world.batch()
    world.ahead.follow()
    world.topic.is_down = True
    first = world.ask(transaction(5 * SECOND, 10, id="t1"))
    time.sleep(0.6)
    second = world.ask(transaction(6 * SECOND, 10, id="t2"))
    assert (first[0], second[0]) == (200, 503)
    assert "taken nothing for" in second[1]["error"]
    world.topic.is_down = False
    _until(lambda: world.decider.health()["waiting_for_broker"] == 0)
    assert world.ask(transaction(6 * SECOND, 10, id="t2"))[0] == 200
    _until(lambda: world.decider.health()["waiting_for_broker"] == 0)
    assert len(world.topic.messages) == 2


def test_a_payment_that_came_by_another_way_is_known_once_it_is_committed(
    tmp_path: Path, stack: ExitStack
) -> None:
    world = World(tmp_path, stack)
    world.batch()
    world.ahead.follow()
    for n in range(6):  # a spree that the server does not see
        tx = transaction(n * SECOND, 1, id=f"t{n}")
        world.topic.send(b"card-1", msgspec.json.encode(tx))
    blind = world.ask(transaction(10 * SECOND, 900, id="blind"))[1]
    world.batch()
    world.ahead.follow()
    sees = world.ask(transaction(11 * SECOND, 900, id="sees"))[1]
    world.batch()
    found = compared(world.journal(), world.decided)
    assert found.decided == 2
    assert {one["transaction_id"] for one in found.differences} <= {"blind"}
    assert sees["score"] != blind["score"]
    assert found.fields["score"] == 1


def test_what_is_wrong_is_refused_with_the_reason_and_leaves_nothing(
    tmp_path: Path, stack: ExitStack
) -> None:
    world = World(tmp_path, stack)
    world.batch()
    world.ahead.follow()
    whole = msgspec.to_builtins(transaction(5 * SECOND, 10, id="t1"))
    for wrong, reason in (
        ({"amount": -1}, "amount"), ({"mcc": "12"}, "mcc"), ({"card_id": ""}, "card_id"),
        ({"amount": 1.234}, "two decimals"), ({"event_time_ms": 4_000_000_000_000}, "future"),
        ({"kind": "gift"}, "kind"),
    ):  # fmt: skip
        answer = world.decider.decide(msgspec.json.encode(whole | wrong))
        assert answer.status == 400
        assert reason in answer.body["error"]
    assert world.decider.decide(b'{"amount": NaN').status == 400
    assert world.decider.decide(b"\xff\xfe").status == 400
    assert (world.topic.messages, world.ahead.waiting, world.journal()) == ([], 0, [])


def test_a_payment_that_is_asked_again_gets_the_same_answer_and_goes_on_once(
    tmp_path: Path, stack: ExitStack
) -> None:
    world = World(tmp_path, stack)
    world.batch()
    world.ahead.follow()
    tx = transaction(5 * SECOND, 10, id="t1")
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: world.ask(tx), range(16)))
    assert {status for status, _ in answers} == {200}
    assert len({told["score"] for _, told in answers}) == 1
    assert sum("repeated" not in told for _, told in answers) == 1
    assert len(world.topic.messages) == 1
    other = msgspec.structs.replace(tx, amount=11.0)
    assert world.ask(other)[0] == 409
    world.batch()
    world.ahead.follow()
    with ExitStack() as anew:  # a server that was started anew has not seen it, and the state has
        restarted, ahead = anew.enter_context(decider_of(world.settings, handing=lambda: world.topic))
        ahead.follow()
        answer = restarted.decide(msgspec.json.encode(tx))
    assert (answer.status, answer.body["status"]) == (409, "duplicate")
    assert world.topic.messages == []


@pytest.mark.parametrize(("when_down", "status"), [("refuse", 503), ("answer", 200)])
def test_where_the_broker_is_away_nothing_is_taken_for_handed_on(
    when_down: Any, status: int, tmp_path: Path, stack: ExitStack
) -> None:
    world = World(tmp_path, stack, when_down=when_down)
    world.batch()
    world.ahead.follow()
    world.topic.is_down = True
    tx = transaction(5 * SECOND, 10, id="t1")
    answer = world.decider.decide(msgspec.json.encode(tx))
    assert answer.status == status
    if status == 503:
        assert dict(answer.headers)["retry-after"]
        assert "action" not in answer.body
    else:
        assert answer.body["handed_on"] is False
    world.topic.is_down = False
    again = world.ask(tx)
    assert again[0] == 200
    assert again[1]["handed_on"] is True
    assert len(world.topic.messages) == 1
    world.batch()
    found = compared(world.journal(), world.decided)
    assert (found.answered, found.alike) == (1, 1)


def test_before_anything_is_committed_it_says_so(tmp_path: Path, stack: ExitStack) -> None:
    world = World(tmp_path, stack)
    with pytest.raises(NotCommittedYet):
        world.ask(transaction(5 * SECOND, 10, id="t1"))
    world.batch()
    world.ahead.follow()
    assert world.ask(transaction(5 * SECOND, 10, id="t1"))[0] == 200


def test_a_late_payment_is_answered_as_such(tmp_path: Path, stack: ExitStack) -> None:
    world = World(tmp_path, stack)
    world.topic.send(b"card-1", msgspec.json.encode(transaction(100 * SECOND, 10, id="new")))
    world.batch()
    world.batch()
    world.ahead.follow()
    status, told = world.ask(transaction(5 * SECOND, 10, id="old"))
    assert (status, told["status"], told["action"]) == (200, "late", "approve")


def test_a_card_number_is_the_token_that_the_stream_makes_of_it(tmp_path: Path, stack: ExitStack) -> None:
    world = World(tmp_path, stack)
    number = "4111 1111 1111 1111"
    world.batch()
    world.ahead.follow()
    tx = transaction(0, 20, id="t", card=number)
    masking = app.masking(world.settings) if app.masking else None
    assert masking is not None
    token = msgspec.json.decode(masking.open().message(msgspec.json.encode(tx)))["card_id"]
    status, told = world.ask(tx)
    assert (status, told["card_id"], token[:5]) == (200, token, "card-")
    (message,) = world.topic.messages
    for kept in (message.value, message.key or b"", repr(world.journal()).encode()):
        assert told["card_id"].encode() in kept
        assert b"1111" not in kept

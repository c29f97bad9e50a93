"""`millrace rules APP …` against a broker in this process: old names, proposals, races, audit, what-if."""

from __future__ import annotations

import getpass
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from millrace.cli import build
from millrace.errors import UserError
from millrace.kafka import detached
from millrace.operations import sending
from millrace.operations.control_topic import ControlState, ControlTopic
from millrace.operations.sending import NoBroker
from millrace.rules import ApproveRule, PublishRule, RollbackRule, Rule, RuleError, SetRuleState
from millrace_apps.fraud.contracts.events import Control
from millrace_apps.fraud.operations.app_rules import RULES as FRAUD
from millrace_apps.fraud.processes.rulebook import LANGUAGE
from millrace_apps.fraud.settings import FraudSettings
from tests.unit.millrace.operations.cases import MockBroker, messages_of

NOW = 1_700_000_000_000
RULES = """\
- {id: big, when: amount > 500, action: review, owner: ann}
- {id: tested, when: amount > 50, action: block, owner: ann}
"""
ALARMS = "- {id: hot, title: oil is hot, quantities: [oil_temperature], levels: [{above: 80}]}\n"


class Desk:
    """An app's operators: a topic, a folder, and what their commands say."""

    def __init__(self, broker: MockBroker, root: Path, app: str, *settings: str) -> None:
        self.bootstrap, self.topic, self.root, self.app = broker.bootstrap, broker.topic(), root, app
        self._sets = [f"--set=topics.control={self.topic}", *(f"--set={one}" for one in settings)]

    def __call__(self, *command: str, alias: bool = False) -> str:
        """Run a command over the app's rules; return what it says, or why it is refused."""
        named = [self.app, "rules"] if alias else ["rules", self.app]
        where = [f"--root={self.root}", f"--bootstrap={self.bootstrap}"]
        where = where[: {"validate": 0, "audit": 1}.get(command[0], 2)]
        done = CliRunner().invoke(build(), [*named, *command, *where, *self._sets])
        if isinstance(done.exception, UserError):
            assert "\n" not in str(done.exception)
            return f"refused: {done.exception}"
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    def sent(self) -> list[bytes]:
        return messages_of(self.bootstrap, self.topic)

    def audited(self) -> list[dict[str, Any]]:
        table = DeltaTable(str(self.root / "tables" / "rule_audit")).to_pyarrow_table()
        rows: list[dict[str, Any]] = table.to_pylist()
        return sorted(rows, key=lambda row: row["at_ms"])


@pytest.fixture(scope="module")
def broker() -> Iterator[MockBroker]:
    mock = MockBroker()
    yield mock
    mock.stop()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time goes on with every command."""
    ticks = itertools.count(NOW)
    monkeypatch.setattr(sending, "now_ms", lambda: next(ticks))
    monkeypatch.setattr(getpass, "getuser", lambda: "eva")


@pytest.fixture
def stopped(clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is always the same moment."""
    monkeypatch.setattr(sending, "now_ms", lambda: NOW)


@pytest.fixture
def fraud(broker: MockBroker, tmp_path: Path) -> Desk:
    return Desk(broker, tmp_path / "fraud", "fraud")


@pytest.fixture
def iot(broker: MockBroker, tmp_path: Path) -> Desk:
    return Desk(broker, tmp_path / "iot", "iot", "monitor.two_person=true")


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return str(path)


@pytest.fixture
def alarms(tmp_path: Path) -> str:
    path = tmp_path / "alarms.yaml"
    path.write_text(ALARMS)
    return str(path)


@pytest.mark.usefixtures("stopped")
def test_old_names_send_the_bytes_that_the_new_ones_send(
    broker: MockBroker, tmp_path: Path, rules: str
) -> None:
    first = ["publish", rules, "--state", "active", "--by", "ann"]
    pairs: list[tuple[Sequence[str], Sequence[str]]] = [
        (first, first),
        (["approve", "tested", "--by", "bob"], ["approve", "tested", "--by", "bob"]),
        (["pause", "big", "--by", "bob"], ["set", "big", "paused", "--by", "bob"]),
        (["activate", "big", "--from", "2026-12-01"], ["set", "big", "active", "--from", "2026-12-01"]),
        (["activate", "big", "--state", "shadow"], ["set", "big", "shadow"]),
        (["activate", "big", "--version", "1"], ["set", "big", "active", "--version", "1"]),
        (["delete", "tested", "--by", "cid"], ["set", "tested", "deleted", "--by", "cid"]),
    ]
    old, new = (Desk(broker, tmp_path / name, "fraud") for name in ("old", "new"))
    for before, after in pairs:
        assert old(*before, alias=True).replace("/old/", "/new/") == new(*after)
    assert old.sent() == new.sent()
    assert [b'"by":"eva"' in value for value in new.sent()] == [False] * 4 + [True] * 3 + [False]
    assert new.sent()[3:5] == [
        b'{"kind":"set_rule_state","id":"big","version":1,"state":"paused","by":"bob","at_ms":1700000000000,'
        b'"from_ms":0,"reason":""}',
        b'{"kind":"set_rule_state","id":"big","version":1,"state":"active","by":"eva","at_ms":1700000000000,'
        b'"from_ms":1796083200000,"reason":""}',
    ]
    assert old.audited() == new.audited()


@pytest.mark.usefixtures("stopped")
def test_the_alias_of_iot_is_the_same_command(broker: MockBroker, tmp_path: Path, alarms: str) -> None:
    old, new = (Desk(broker, tmp_path / name, "iot") for name in ("old", "new"))
    for command in (
        ["publish", alarms, "--state", "active", "--by", "ann"],
        ["set", "hot", "paused", "--by", "bob"],
        ["list", "hot"],
        ["list", "--format", "json"],
    ):
        assert old(*command, alias=True) == new(*command)
    assert old.sent() == new.sent()
    written = msgspec.json.decode(new.sent()[0])
    assert (written["by"], written["rule"]["owner"], written["state"]) == ("ann", "ann", "active")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (
            ["ridesharing", "list"],
            "has no rules that change while it runs; clickstream, fraud, iot have",
        ),
        (["ridesharing", "publish", "x.yaml"], "ridesharing has no rules that change while it runs"),
        (["frod", "list"], "there is no app 'frod'; did you mean fraud?"),
    ],
)
def test_an_app_without_rules_is_one_line(command: list[str], why: str) -> None:
    with pytest.raises(UserError, match=why) as told:
        CliRunner().invoke(build(), ["rules", *command], catch_exceptions=False)
    assert "\n" not in str(told.value)


def test_help_names_the_apps_that_have_rules_and_every_command() -> None:
    shown = CliRunner().invoke(build(), ["rules", "--help"]).output
    assert "fraud" in shown
    assert "iot" in shown
    assert "clickstream" in shown
    assert "ridesharing" not in shown
    of_fraud = CliRunner().invoke(build(), ["rules", "fraud", "--help"]).output
    for name in (
        "validate",
        "publish",
        "approve",
        "set",
        "backtest",
        "rollback",
        "audit",
        "list",
        "language",
    ):
        assert f" {name} " in of_fraud
    assert "activate" not in of_fraud


def test_a_proposal_has_author_and_reason_and_a_second_person_approves_it(fraud: Desk, rules: str) -> None:
    told = fraud("publish", rules, "--state", "active", "--by", "ann", "--reason", "card testing")
    assert "tested: version 1 shadow, waits for approval (asked by ann)" in told
    assert "millrace rules fraud approve tested --version 1" in told
    sent = len(fraud.sent())
    for proposer in ("ann", " ann "):
        said = fraud("approve", "tested", "--by", proposer)
        assert said == "refused: rule 'tested': ann asked for it or owns it: a second person must approve"
    assert len(fraud.sent()) == sent
    said = fraud("approve", "tested", "--by", "bob", "--reason", "seen")
    assert "proposed: v1 block amount > 50" in said
    assert "asked for by ann: card testing" in said
    assert "what it would have done is not known: there is no table of transactions" in said
    assert "tested: version 1 active" in said
    events = [msgspec.json.decode(value) for value in fraud.sent()]
    assert [(e["kind"], e["by"], e["reason"]) for e in events] == [
        ("publish_rule", "ann", "card testing"),
        ("publish_rule", "ann", "card testing"),
        ("approve_rule", "bob", "seen"),
    ]


def test_who_sets_a_rule_active_is_its_proposer(fraud: Desk, rules: str) -> None:
    fraud("publish", rules, "--by", "ann")
    assert "waits for approval (asked by cid)" in fraud("set", "tested", "active", "--by", "cid")
    for one in ("cid", "ann"):  # who asked for it, and who owns it
        assert "a second person must approve" in fraud("approve", "tested", "--by", one)
    assert "tested: version 1 active" in fraud("approve", "tested", "--by", "bob")


def test_alarm_rules_have_a_second_person_where_a_setting_asks_for_it(
    broker: MockBroker, tmp_path: Path, iot: Desk, alarms: str
) -> None:
    alone = Desk(broker, tmp_path / "alone", "iot")
    assert "hot: version 1 active" in alone("publish", alarms, "--state", "active", "--by", "ann")
    said = iot("publish", alarms, "--state", "active", "--by", "ann", "--reason", "seal")
    assert "hot: version 1 shadow, waits for approval (asked by ann)" in said
    assert "a second person must approve" in iot("approve", "hot", "--by", "ann")
    said = iot("approve", "hot", "--by", "bob")
    assert "proposed: v1  oil is hot" in said
    assert "asked for by ann: seal" in said
    assert "hot: version 1 active" in said
    Path(alarms).write_text(ALARMS.replace("80", "85"))
    iot("publish", alarms, "--state", "active", "--by", "bob")
    assert "hot: version 2 active" in iot("approve", "hot", "--by", "ann")
    assert "hot: version 1 active" in iot("rollback", "hot", "--by", "ann", "--reason", "too late")
    assert "hot: unchanged, version 2" in iot("publish", alarms, "--by", "cid")
    listed = json.loads(iot("list", "hot", "--format", "json"))["rules"][0]
    assert [v["state"] for v in listed["versions"]] == ["active", "paused"]
    lines = iot("audit").splitlines()
    assert [line.partition("  ")[2] for line in lines[:-1]] == [
        "publish_rule hot v1 active by ann: seal",
        "approve_rule hot v1 by bob",
        "publish_rule hot v2 active by bob",
        "approve_rule hot v2 by ann",
        "rollback_rule hot v1 by ann: too late",
    ]
    assert lines[-1] == "5 changes"


def test_the_audit_is_the_table_of_what_was_sent(fraud: Desk, rules: str) -> None:
    assert "nothing has been sent" in fraud("audit")
    fraud("publish", rules, "--by", "ann", "--reason", "first")
    fraud("set", "big", "paused")
    assert len(fraud.audited()) == len(fraud.sent()) == 3
    assert [row["event"].encode() for row in fraud.audited()] == fraud.sent()
    found = json.loads(fraud("audit", "big", "--format", "json"))
    assert [(r["what"], r["by"], r["reason"]) for r in found] == [
        ("publish_rule", "ann", "first"),
        ("set_rule_state", "eva", ""),
    ]
    assert fraud("audit", "--last", "1").splitlines()[-1] == "1 changes"


def test_what_was_sent_and_not_written_down_is_told(fraud: Desk, rules: str) -> None:
    fraud.root.mkdir()
    (fraud.root / "tables").write_text("no folder")
    said = fraud("publish", rules, "--only", "big")
    assert said.startswith(f"refused: {fraud.topic} has taken it, and it could not be written into ")
    assert len(fraud.sent()) == 1


def test_what_does_not_keep_the_contract_is_not_sent(fraud: Desk, rules: str, tmp_path: Path) -> None:
    said = fraud("publish", rules, "--reason", "x" * 2_001)
    assert said.startswith("refused: nothing was sent, since the app would not take it")
    long = tmp_path / "long.yaml"
    long.write_text(json.dumps([{"id": "long", "when": "amount > 5", "description": "x" * 2_001}]))
    assert "there is no action ''" in fraud("publish", str(long))
    long.write_text(
        json.dumps([{"id": "long", "when": "amount > 5", "action": "review", "reason": "y" * 2_001}])
    )
    for command in ("validate", "publish"):
        assert "refused: rule 'long': a text of the rule is out of range" in fraud(command, str(long))
    assert "nobody is named" in fraud("publish", rules, "--by", " ")
    assert fraud.sent() == []
    assert "nothing has been sent" in fraud("audit")


def test_what_somebody_else_was_faster_with_is_told(
    fraud: Desk, rules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between what a command has read and what it sends, another event comes."""
    send = ControlTopic.send

    def late(self: ControlTopic, events: Sequence[Any]) -> Any:
        monkeypatch.setattr(ControlTopic, "send", send)
        send(self, [PublishRule(Rule("big", "amount > 9", "review"), 1, "bob", NOW, "active")])
        return send(self, events)

    monkeypatch.setattr(ControlTopic, "send", late)
    said = fraud("publish", rules, "--by", "ann", "--only", "big")
    assert said.startswith("refused: it was sent and changed nothing, since somebody was faster")
    assert "somebody published before you" in said
    assert "big: version 2 shadow" in fraud("publish", rules, "--by", "ann", "--only", "big")


def test_rules_of_a_topic_that_is_not_there_yet_are_none(broker: MockBroker, tmp_path: Path) -> None:
    desk = Desk(broker, tmp_path, "fraud", "topics.control=not-made-yet")
    assert desk("list") == "0 rules; 0 control events were refused\n"


def test_the_rules_of_the_fleets_file_are_listed_beside_published_ones(iot: Desk, alarms: str) -> None:
    iot("publish", alarms, "--by", "ann")
    lines = iot("list").splitlines()
    assert sum(" file " in line for line in lines) > 5
    assert any(line.startswith("hot ") and "v1   shadow" in line for line in lines)
    assert lines[-1] == "1 rules; 0 control events were refused"


def test_without_a_broker_the_rules_of_the_file_are_listed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, alarms: str
) -> None:
    monkeypatch.setattr(detached, "find", lambda: None)
    command = ["rules", "iot", "list", "--set", f"monitor.fleet_file={alarms}"]
    done = CliRunner().invoke(build(), command)
    assert done.exit_code == 0, done.output
    assert "published rules are not shown: no broker is named" in done.output
    assert done.stdout.splitlines() == [
        "hot                      file active              oil is hot",
        "0 rules; 0 control events were refused",
    ]
    for arguments in (["fraud", "list"], ["iot", "list", "hot"], ["iot", "publish", alarms]):
        with pytest.raises(NoBroker):
            CliRunner().invoke(build(), ["rules", *arguments], catch_exceptions=False)


def test_a_rule_of_the_file_is_replaced_by_a_published_one_that_has_been_active(
    broker: MockBroker, tmp_path: Path, alarms: str
) -> None:
    desk = Desk(broker, tmp_path / "plant", "iot", f"monitor.fleet_file={alarms}")
    desk("publish", alarms, "--state", "shadow")
    assert "hot                      file active " in desk("list")
    desk("set", "hot", "active")
    assert "hot                      file replaced " in desk("list")


def test_words_are_those_of_the_language() -> None:
    def said(*command: str) -> str:
        done = CliRunner().invoke(build(), ["rules", *command])
        return str(done.exception) if isinstance(done.exception, UserError) else done.output

    assert "small_then_large" in said("fraud", "language")
    assert "none about 'cards'" in said("fraud", "language", "cards")
    assert "zscore" in said("iot", "language")
    assert "pressure" in said("iot", "language", "machine", "flow", "pressure")
    assert "there is no source 'cars'" in said("iot", "language", "cars")


def transactions(root: Path) -> None:
    """A transaction a day, of 10, 20, … 200 EUR."""
    rows = [
        {
            "transaction_id": f"t{n}",
            "card_id": f"c{n % 3}",
            "terminal_id": "t",
            "mcc": "5411",
            "country": "DE",
            "amount": 10.0 * n,
            "currency": "EUR",
            "kind": "purchase",
            "event_time_ms": NOW + n * 86_400_000,
        }
        for n in range(1, 21)
    ]
    write_deltalake(str(root / "tables" / "transactions"), pa.Table.from_pylist(rows))


def test_a_proposal_is_shown_with_what_it_would_have_done(
    fraud: Desk, rules: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions(fraud.root)
    out = tmp_path / "reports" / "r.json"
    said = fraud("publish", rules, "--state", "active", "--by", "ann", "--what-if", "20d")
    assert "20 transactions" in said
    fraud("backtest", "tested", "--out", str(out))
    fraud("backtest", rules, "--last", "3d", "--out", str(tmp_path / "last.json"))
    (found,) = json.loads(out.read_text())["rules"]
    assert (found["rule"], found["alerts"]) == ("tested", 15)  # 60, 70, … 200
    last = json.loads((tmp_path / "last.json").read_text())
    assert [(r["rule"], r["alerts"]) for r in last["rules"]] == [("big", 0), ("tested", 3)]
    said = fraud("approve", "tested", "--by", "bob")
    assert said.index("7 transactions") < said.index("tested: version 1 active")
    fraud("set", "tested", "active", "--by", "ann")
    sent = len(fraud.sent())
    assert "is not a duration" in fraud("approve", "tested", "--by", "bob", "--what-if", "soon")
    assert len(fraud.sent()) == sent
    assert "transactions" not in fraud("approve", "tested", "--by", "bob", "--what-if", "0")
    monkeypatch.setattr("millrace.cli.rules._MOST", 19)
    fraud("set", "tested", "active", "--by", "ann")
    said = fraud("approve", "tested", "--by", "bob")
    assert "is not known: the past has 20 rows, which takes long: try it with `backtest`" in said
    assert "tested: version 1 active" in said
    assert "there is no version 3" in fraud("backtest", "tested", "--version", "3")
    assert "cannot be read" in fraud("backtest", "none.yaml")


def test_random_lives_of_rules_have_no_active_block_without_a_second_person() -> None:
    """10,000 random histories; who has approved what is looked up in the events themselves."""
    random = Random(3)
    people = ("ann", "bob", "cid")
    refused = approved = 0
    for _ in range(10_000):
        book = ControlState(LANGUAGE, Control)
        done: list[Any] = []
        for at in range(random.randrange(2, 9)):
            by, number = random.choice(people), random.randrange(1, 3)
            kind = random.randrange(5)
            if kind == 0 or not done:
                action = random.choice(("block", "review"))
                rule = Rule("r", f"amount > {at}", action, owner=random.choice(("", *people)))
                event: Any = PublishRule(
                    rule, book.next_version("r"), by, at, random.choice(("draft", "shadow", "active"))
                )
            elif kind == 1:
                event = SetRuleState(
                    "r", number, random.choice(("draft", "shadow", "active", "paused")), by, at
                )
            elif kind == 2:
                event = RollbackRule("r", number, by, at)
            else:
                event = ApproveRule("r", number, by, at)
            value = msgspec.json.encode(event)
            before = len(book.refused)
            book.take(value)
            if len(book.refused) == before:
                done.append(event)
            else:
                refused += 1
        for version in book.rules["r"].versions:
            if version.rule.action == "block" and (version.was_active or version.state_at(0) == "active"):
                approved += 1
                assert seconded(version.number, done), done
    assert refused > 1_000
    assert approved > 500


def seconded(number: int, done: Sequence[Any]) -> bool:
    """Whether somebody approved a version who neither owns it nor asked for it last."""
    owner = asked = None
    for event in done:
        if isinstance(event, PublishRule) and event.version == number:
            owner, asked = event.rule.owner, event.by if event.state == "active" else None
        elif isinstance(event, SetRuleState) and event.version == number and event.state == "active":
            asked = event.by
        elif isinstance(event, ApproveRule) and event.version == number and event.by not in (owner, asked):
            return asked is not None
    return False


def test_a_topic_takes_no_event_that_the_stream_would_refuse(fraud: Desk, rules: str) -> None:
    assert "there is no such rule; there are: none" in fraud("set", "bigg", "paused")
    fraud("publish", rules)
    assert "there is no version 7; there are 1" in fraud("set", "big", "paused", "--version", "7")
    assert "waits for nobody's approval" in fraud("approve", "big")
    assert "no other version has been active" in fraud("rollback", "big")
    assert len(fraud.sent()) == 2
    with pytest.raises(RuleError):
        ControlState(FRAUD.language(FraudSettings()), Control).entry("big")

"""Thresholds and proposals on the page, beside loops over the decisions and on a broker in this process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.dashboard.broker import BrokerAway
from millrace.dashboard.data import AppData
from millrace.dashboard.live import LivePage
from millrace.dashboard.page import ActionRefused
from millrace.dashboard.views import Table, TimeSeries
from millrace.errors import UserError
from millrace.operations.control_topic import append_audit
from millrace.privacy.keys import make_key_file
from millrace.runtime.settings import load_settings
from millrace_apps.fraud.app import app as fraud
from millrace_apps.fraud.contracts.control_events import Propose, SetThreshold
from millrace_apps.fraud.dashboard import page as dashboard
from tests.unit.apps.fraud.tables import fraud_folder
from tests.unit.apps.fraud.test_rules_cli import Topic
from tests.unit.millrace.dashboard.cases import Clock, panel_of
from tests.unit.millrace.operations.cases import MockBroker

Rows = list[dict[str, Any]]
TWO = "governance.two_person=thresholds"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    root = tmp_path_factory.mktemp("made")
    return root, fraud_folder(root, number=1_200)


def data_of(made: tuple[Path, Rows], *overrides: str) -> AppData:
    root, rows = made
    settings = load_settings(fraud.settings, app="fraud", overrides=list(overrides), env={})
    return AppData(fraud, settings, root, Clock(rows[-1]["event_time_ms"] + 60_000), dashboard.page.folders)


def look(data: AppData, action: str, **values: str) -> dict[str, list[Any]]:
    """What an action would do: what it is → now, then, difference."""
    view = LivePage(data, dashboard.page).look(values, action)
    assert isinstance(view, Table)
    return {str(row[0]): list(row[1:]) for row in view.rows}


def do(data: AppData, action: str, **values: str) -> str:
    return LivePage(data, dashboard.page).act({"reason": "", **values}, action)


# -- what thresholds would block -------------------------------------------------------------------


def frauds_of(data: AppData) -> set[str]:
    labels = data.table("labels")
    assert labels is not None
    return {r["transaction_id"] for r in labels.all().to_pylist() if r["is_fraud"]}


def test_the_curve_counts_payments_and_frauds_at_or_above_each_score(made: tuple[Path, Rows]) -> None:
    data, rows = data_of(made), made[1]
    frauds = frauds_of(data)
    view = panel_of(dashboard.page, data, "thresholds")
    assert isinstance(view, TimeSeries)
    lines = {line.name: dict(line.points) for line in view.series}
    assert set(lines) == {f"{a}: {b}" for a in ("reasons", "model") for b in ("payments", "known frauds")}
    assert list(lines["reasons: payments"]) == [n / 50 for n in range(10, 51)]
    for n in range(10, 51):
        chosen = [r for r in rows if r["score"] >= n / 50]
        assert lines["reasons: payments"][n / 50] == len(chosen)
        assert lines["model: known frauds"][n / 50] == sum(r["transaction_id"] in frauds for r in chosen)


def counts(
    rows: Rows, frauds: set[str], block: float, review: float, model: tuple[float, float]
) -> list[Any]:
    done = []
    for r in rows:
        blocks = r["score"] >= block or r["model_score"] >= model[1]
        looks = r["score"] >= review or r["model_score"] >= model[0]
        done.append("block" if blocks else "review" if looks else "approve")
    found: list[Any] = [done.count("block"), done.count("review")]
    for action in ("block", "review"):
        found.append(round(sum(r["amount"] for r, a in zip(rows, done, strict=True) if a == action), 2))
    for action in ("block", "review", "approve"):
        found.append(
            sum(r["transaction_id"] in frauds for r, a in zip(rows, done, strict=True) if a == action)
        )
    return found


_COMPARED = (
    "blocked", "looked at", "amount blocked", "amount looked at", "known frauds blocked",
    "known frauds looked at", "known frauds passed",
)  # fmt: skip


@pytest.mark.parametrize(
    ("values", "then"),
    [
        ({"block_score": "0.6"}, (0.6, 0.5, (0.5, 0.95))),
        ({"review_score": "0.1", "block_score": "0.99", "model_block": "0.7"}, (0.99, 0.1, (0.5, 0.7))),
        ({"others": "block_score=0.7 model_review=0.05"}, (0.7, 0.5, (0.05, 0.95))),
        ({"block_score": "default"}, (0.85, 0.5, (0.5, 0.95))),
    ],
)
def test_a_look_ahead_is_what_loops_over_the_decisions_give(
    made: tuple[Path, Rows], values: dict[str, str], then: tuple[float, float, tuple[float, float]]
) -> None:
    data, rows = data_of(made), made[1]
    frauds = frauds_of(data)
    # The folder's audit has a proposal of block_score 0.8 that holds, since it lets nothing more pass.
    before, after = counts(rows, frauds, 0.8, 0.5, (0.5, 0.95)), counts(rows, frauds, *then)
    found = look(data, "propose", **values, period="all")
    assert found["decisions"][:2] == [len(rows)] * 2
    for name, a, b in zip(_COMPARED, before, after, strict=True):
        assert found[name] == [
            pytest.approx(a, abs=0.01),
            pytest.approx(b, abs=0.01),
            pytest.approx(b - a, abs=0.02),
        ]
    if "block_score" in values:
        assert found["block_score"][:2] == [0.8, then[0]]


def test_a_look_ahead_is_of_the_time_that_was_asked_for(made: tuple[Path, Rows]) -> None:
    data, rows = data_of(made), made[1]
    newest = rows[-1]["event_time_ms"]
    assert newest - rows[0]["event_time_ms"] > 3_600_000
    found = look(data, "propose", block_score="0.6", period="1d")
    assert found["decisions"][0] == sum(r["event_time_ms"] > newest - 86_400_000 for r in rows)


def test_what_cannot_be_looked_at_or_sent_is_told(made: tuple[Path, Rows]) -> None:
    data = data_of(made)
    for values, said in (
        ({}, "nothing is changed"), ({"block_score": "much"}, "with a number"),
        ({"others": "no=1"}, "no threshold"),
        ({"period": "1y"}, "Over is one of"), ({"colour": "red"}, "has no field"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=said):
            look(data, "propose", **values)
    with pytest.raises(UserError, match="cannot be shown before"):
        look(data, "undo", proposal="c-1")
    with pytest.raises(UserError, match="does not wait"):
        look(data, "approve", proposal="c-1")
    for action in ("approve", "reject", "undo"):
        with pytest.raises(ActionRefused, match="no broker is named"):
            do(data, action, proposal="c-1", by="ann")
    with pytest.raises(ActionRefused, match="no broker is named"):
        do(data, "propose", block_score="0.9", by="ann")
    with pytest.raises(ActionRefused, match="Your name is missing"):
        do(data, "propose", block_score="0.9", by=" ")


# -- proposals -------------------------------------------------------------------------------------


def test_without_a_broker_proposals_are_those_that_were_sent_from_here(
    tmp_path: Path, made: tuple[Path, Rows]
) -> None:
    data = data_of((tmp_path, made[1]), TWO)
    assert panel_of(dashboard.page, data, "changes") is None
    asked = [
        Propose(f"c-{n}", [SetThreshold("block_score", 0.9 + n / 100)], "ann", n, "<b>why</b>")
        for n in range(3)
    ]
    append_audit(tmp_path / "tables" / "rule_audit", asked)
    view = panel_of(dashboard.page, data, "changes")
    assert [row[0] for row in view.rows] == ["c-2", "c-1", "c-0"]
    assert view.rows[0][1:4] == ["waits for a second person", "block_score: 0.85 now, 0.92 proposed", "ann"]
    assert view.rows[0][6] == "<b>why</b>"
    assert [[o.action for o in offers] for offers in view.actions] == [["approve", "reject"]] * 3
    assert view.tones == ["warn"] * 3


@pytest.fixture(scope="module")
def broker() -> Iterator[MockBroker]:
    mock = MockBroker()
    yield mock
    mock.stop()


@pytest.fixture
def own(made: tuple[Path, Rows], tmp_path: Path) -> tuple[Path, Rows]:
    """A folder of the test alone: what is sent is written down in it."""
    return shutil.copytree(made[0], tmp_path / "own"), made[1]


def test_a_threshold_is_proposed_agreed_with_and_undone_from_the_page(
    own: tuple[Path, Rows], broker: MockBroker
) -> None:
    topic = Topic(broker)
    data = data_of(own, f"kafka.bootstrap={topic.bootstrap}", f"topics.control={topic.name}", TWO)
    clock = data.now_ms
    assert isinstance(clock, Clock)
    said = do(data, "propose", block_score="0.97", by="ann", reason="wrong blocks")
    assert "waits for a second person" in said
    name = said.split()[0]
    clock.later()
    view = panel_of(dashboard.page, data, "changes")
    assert view.rows[0][:4] == [
        name,
        "waits for a second person",
        "block_score: 0.85 now, 0.97 proposed",
        "ann",
    ]
    assert look(data, "approve", proposal=name, period="all")["block_score"][:2] == [0.85, 0.97]
    with pytest.raises(UserError, match="a second person must agree"):
        do(data, "approve", proposal=name, by="ann")
    assert do(data, "approve", proposal=name, by="bob") == f"{name} is applied"
    clock.later()
    view = panel_of(dashboard.page, data, "changes")
    assert (view.rows[0][1], view.rows[0][5]) == ("is applied", "agreed by bob")
    assert view.rows[0][2] == "block_score: 0.85 before, 0.97 then"
    assert [o.action for o in view.actions[0]] == ["undo"]
    assert do(data, "undo", proposal=name, by="cat") == f"{name} is undone"
    second = do(data, "propose", block_score="0.99", by="ann").split()[0]
    assert do(data, "reject", proposal=second, by="ann") == f"{second} is rejected"
    clock.later()
    rows = {row[0]: row[1] for row in panel_of(dashboard.page, data, "changes").rows}
    assert rows == {name: "is undone", second: "is rejected"}
    assert len(topic.values) == 5


def test_card_numbers_in_reasons_are_tokens(
    own: tuple[Path, Rows], broker: MockBroker, tmp_path: Path
) -> None:
    topic, key = Topic(broker), tmp_path / "key"
    make_key_file(key)
    data = data_of(own, f"kafka.bootstrap={topic.bootstrap}", f"topics.control={topic.name}", TWO,
                   f"privacy.token_key_file={key}")  # fmt: skip
    said = do(data, "propose", block_score="0.98", by="ann", reason="as for 4111 1111 1111 1111")
    do(data, "reject", proposal=said.split()[0], by="bob", reason="4111-1111-1111-1111 is another")
    assert len(topic.values) == 2
    assert not [value for value in topic.values if b"1111" in value]


def test_a_broker_that_is_away_is_told_on_the_panel(made: tuple[Path, Rows]) -> None:
    data = data_of(made, "kafka.bootstrap=127.0.0.1:9")
    with pytest.raises(BrokerAway, match="no broker answers"):
        panel_of(dashboard.page, data, "changes")

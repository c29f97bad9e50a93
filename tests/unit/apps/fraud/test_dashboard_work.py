"""Case work by people and time beside what the stream of the case work counts; acts by the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from millrace.dashboard.data import AppData
from millrace.dashboard.page import ActionRefused
from millrace.dashboard.views import Table, TimeSeries
from millrace.host.memory_chain import MemoryChain
from millrace.runtime.settings import load_settings
from millrace_apps.fraud.app import app as fraud
from millrace_apps.fraud.cases.app import CaseTopics, processes
from millrace_apps.fraud.cases.book import CaseBook
from millrace_apps.fraud.cases.events import AlertSeen, Case, CaseAct, ServiceDay
from millrace_apps.fraud.cases.live import Ranked
from millrace_apps.fraud.cases.queue import ReviewQueue
from millrace_apps.fraud.cases.rules import CaseRules, QueueRule
from millrace_apps.fraud.cases.store import CaseView, acts, case_view
from millrace_apps.fraud.dashboard import page as dashboard
from millrace_apps.fraud.dashboard import work as dashboard_work
from millrace_apps.fraud.dashboard.work import Served, Work, work_of
from tests.unit.apps.fraud.case_book_cases import DAY, HOUR, RULES, START_MS, alert, event
from tests.unit.apps.fraud.tables import fraud_folder
from tests.unit.apps.fraud.test_cases_acting import some_life
from tests.unit.millrace.dashboard.cases import Clock, panel_of, put_records

TWO_QUEUES = msgspec.structs.replace(
    RULES, quiet_ms=2 * DAY, claim_ms=3 * HOUR, queues=(QueueRule("big", "amount > 15"),)
)


def lived(seed: int, rules: CaseRules, cards: int) -> tuple[list[Case], Work]:
    """Cases after a random life of cards, and what the queues have told of people.

    Without repeats of alerts: one that comes once its case is forgotten opens a case of the same name. And
    with cases that nobody decides, so that no queue is empty at midnight: it forgets what was closed then,
    and counts a verdict that is replaced once more.
    """
    random = Random(seed)
    events: list[tuple[str, int, Any, str]] = []
    alerted: set[str] = set()
    for n in range(cards):
        for one in some_life(random, f"c{n}", random.randrange(3, 14)):
            if isinstance(one, AlertSeen):
                if one.transaction_id in alerted:
                    continue
                alerted.add(one.transaction_id)
            stream = (
                "alerts"
                if isinstance(one, AlertSeen)
                else "acts"
                if isinstance(one, CaseAct)
                else "dispositions"
            )
            events.append((*event(one), stream))
    for half_day in range(200):
        for card, amount in (("open-1", 10.0), ("open-2", 20.0)):
            standing = alert(half_day * 12 * HOUR, f"{card}-{half_day}", card=card, amount=amount)
            events.append((*event(standing), "alerts"))
    events.sort(key=lambda e: e[1])
    chain = MemoryChain(processes(CaseBook(rules), ReviewQueue(), CaseTopics()))
    emissions = chain.run_batch(events) + chain.advance_watermark(START_MS + 120 * DAY)
    cases = {}
    told: Work = {}
    for e in emissions:
        if e.output == "CaseBook.book":
            case = msgspec.json.decode(e.payload, type=Case)
            cases[case.case_id] = case
        elif e.output == "service":
            queue, day, person, *figures = msgspec.structs.astuple(
                msgspec.json.decode(e.payload, type=ServiceDay)
            )
            told[(day, queue, person)] = Served(*figures)
    return list(cases.values()), told


@pytest.mark.parametrize("seed", range(20))
def test_what_cases_say_of_people_is_what_the_queues_count(seed: int) -> None:
    cases, told = lived(seed, TWO_QUEUES, 60)
    assert len(told) > 20
    assert {queue for _, queue, _ in told} == {"big", "cards"}
    assert work_of(cases) == told


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AppData]:
    """Data whose cases are those of a life, as a stream or in memory."""

    def make(cases: list[Case], *, streamed: bool) -> AppData:
        ranked = [Ranked(None, "done", case) for case in cases]
        view = CaseView(ranked, [], START_MS + 40 * DAY, streamed)
        monkeypatch.setattr(dashboard_work, "case_view", lambda data, settings: view)
        settings = load_settings(fraud.settings, app="fraud", env={})
        return AppData(fraud, settings, tmp_path, Clock(START_MS + 40 * DAY), dashboard.page.folders)

    return make


def test_days_that_are_over_are_those_of_the_stream_and_others_of_the_cases(
    shown: Callable[..., AppData], tmp_path: Path
) -> None:
    cases, told = lived(3, RULES, 40)
    data = shown(cases, streamed=True)
    over = sorted({day for day, _, _ in told})[:-3]
    # Of a day with two persons the stream has told of one: the other is not added from the cases.
    left_out = next(key for key in told if key[0] in over and sum(k[:2] == key[:2] for k in told) > 1)
    put_records(
        tmp_path / "cases",
        "service_days",
        [
            ServiceDay(q, d, who, *[v + 1 for v in vars(s).values()])
            for (d, q, who), s in told.items()
            if d in over and (d, q, who) != left_out
        ],
    )
    found = dashboard_work.work(data)
    assert found.keys() == told.keys() - {left_out}
    for key, served in found.items():
        assert vars(served) == {n: v + (key[0] in over) for n, v in vars(told[key]).items()}
    in_memory = shown(cases, streamed=False)
    assert dashboard_work.work(in_memory) == told


def test_people_and_days_are_shown(shown: Callable[..., AppData]) -> None:
    cases, told = lived(5, TWO_QUEUES, 60)
    data = shown(cases, streamed=False)
    table = panel_of(dashboard.page, data, "people")
    assert isinstance(table, Table)
    assert len(table.rows) + table.more == len(told)
    for row in table.rows:
        served = told[(row[0], row[1], row[2])]  # type: ignore[index]
        looked, decided = served.looked, served.decided
        assert row[3:] == [
            looked, served.look_ms / looked if looked else None, served.look_most_ms if looked else None,
            decided, served.confirmed, served.decide_ms / decided if decided else None,
            served.decide_most_ms if decided else None,
        ]  # fmt: skip
    lines = panel_of(dashboard.page, data, "decided")
    assert isinstance(lines, TimeSeries)
    for line, name in zip(lines.series, ("decided", "looked"), strict=True):
        days = dict(line.points)
        assert len(days) <= 30
        assert max(days) == max(day for day, _, _ in told)
        for day, value in days.items():
            assert value == sum(getattr(s, name) for (d, _, _), s in told.items() if d == day)


# -- what is done from the page --------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> AppData:
    rows = fraud_folder(tmp_path, number=800)
    settings = load_settings(fraud.settings, app="fraud", env={})
    return AppData(
        fraud, settings, tmp_path, Clock(rows[-1]["event_time_ms"] + 60_000), dashboard.page.folders
    )


def do(data: AppData, action: str, **values: str) -> str:
    assert isinstance(data.now_ms, Clock)
    data.now_ms.later()
    chosen = dashboard.page.action(action)
    return chosen.run(data, chosen.checked({"note": "", **values}))


def panel(data: AppData, name: str) -> Any:
    assert isinstance(data.now_ms, Clock)
    data.now_ms.later()
    return panel_of(dashboard.page, data, name)


def test_cases_are_claimed_noted_and_given_back(data: AppData) -> None:
    table = panel(data, "queue")
    case_id = table.actions[0][0].values["case_id"]
    assert f"{case_id}: claim, by ann" in do(data, "claim", case_id=case_id, by="ann")
    after = panel(data, "queue")
    (row,) = [
        r
        for r, offers in zip(after.rows, after.actions, strict=True)
        if offers[0].values["case_id"] == case_id
    ]
    assert row[-1] == "ann"
    assert [o.action for o in after.actions[after.rows.index(row)]] == ["dispose", "release", "act"]
    with pytest.raises(ActionRefused, match="claimed by ann"):
        do(data, "dispose", case_id=case_id, by="bob", verdict="fraud")
    do(data, "act", case_id=case_id, by="bob", what="contacted", note="no answer")
    assert "no list is changed" in do(data, "act", case_id=case_id, by="ann", what="verified")
    assert f"{case_id}: release, by ann" in do(data, "release", case_id=case_id, by="ann")
    data.now_ms.later()  # type: ignore[attr-defined]
    assert [(a.what, a.by, a.note) for a in acts(data)] == [
        ("claim", "ann", ""), ("contacted", "bob", "no answer"), ("verified", "ann", ""),
        ("release", "ann", ""),
    ]  # fmt: skip
    with pytest.raises(ActionRefused, match="What is one of"):
        do(data, "act", case_id=case_id, by="ann", what="claim")
    assert "is genuine, by eva" in do(data, "dispose", case_id=case_id, by="eva", verdict="genuine")
    data.now_ms.later()  # type: ignore[attr-defined]
    view = case_view(data, dashboard.case_settings())
    assert view is not None
    assert view.find(case_id).case.status == "genuine"
    people = {row[2]: row for row in panel(data, "people").rows}
    assert (people["ann"][3], people["eva"][6]) == (1, 1)

"""Rings as people see them: commands and tables, with and without a stream; checkpoints of before."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from millrace.dashboard.data import AppData
from millrace.dashboard.page import Action, ActionRefused
from millrace.dashboard.views import Table
from millrace.errors import UserError
from millrace.runtime.contract import check_contract
from millrace.runtime.settings import AppSettings
from millrace.topology import Input, read
from millrace.topology.contract import contract_of
from millrace_apps.fraud.app import app as fraud
from millrace_apps.fraud.cases.app import CaseTopics, FraudCasesSettings, topology
from millrace_apps.fraud.cases.book import CaseBook, case_id_of
from millrace_apps.fraud.cases.cli import app as commands
from millrace_apps.fraud.cases.events import AlertSeen, CardBlock, Disposition
from millrace_apps.fraud.cases.queue import ReviewQueue
from millrace_apps.fraud.cases.store import TABLES, acts, case_view, dispose, journal
from millrace_apps.fraud.dashboard import page as dashboard
from millrace_apps.fraud.dashboard.work import queue
from millrace_apps.fraud.operations.forgetting import CASES, stores
from millrace_apps.fraud.settings import FraudSettings
from tests.unit.apps.fraud.case_book_cases import DAY, HOUR, MINUTE, START_MS, alert
from tests.unit.millrace.dashboard.cases import Clock, put

RING = "device:d-7"
CASE = case_id_of(RING, "r0")
OWN = case_id_of("card-1", "own")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A ring of three cards by one device; one of them has a case of its own."""
    ring = [
        alert(n * MINUTE, f"r{n}", card=f"card-{n}", codes=("SHARED_DEVICE",), ring=RING) for n in range(3)
    ]
    put_alerts(tmp_path, [*ring, alert(HOUR, "own", card="card-1")])
    return tmp_path


def put_alerts(root: Path, alerts: list[AlertSeen]) -> None:
    rows = [msgspec.to_builtins(one) for one in alerts]
    for row in rows:
        for name in ("customer_id", "model_score", "country", "billing_amount", "billing_currency"):
            row.pop(name)
        for reason in row["reasons"]:
            reason |= {"limit": 4.0, "weight": 0.7}
    put(root, "alerts", rows)


def data_of(root: Path, at: int = 2 * HOUR) -> AppData:
    return AppData(fraud, AppSettings(), root, Clock(START_MS + at), (TABLES,))


def say(root: Path, *words: str) -> str:
    return CliRunner().invoke(commands, [*words, "--root", str(root)]).output


def test_the_queue_says_what_a_ring_is_of(root: Path) -> None:
    said = say(root, "list")
    assert "ring of 3 cards via device d-7" in said
    shown = say(root, "show", CASE)
    assert f"{CASE}  ring of 3 cards via device d-7  open" in shown
    assert [f"card-{n} " in shown for n in range(3)] == [True] * 3
    assert f"related: {OWN}  card-1  open" in shown
    assert f"related: {CASE}  ring of 3 cards via device d-7  open" in say(root, "show", OWN)
    told = json.loads(say(root, "show", CASE, "--format", "json"))
    assert (told["subject"], len(told["cards"])) == (RING, 3)


def test_without_rings_each_card_has_its_case(root: Path) -> None:
    said = say(root, "list", "-s", "cases.rings=off")
    assert "ring of" not in said
    assert "3 queued of 3 open" in said


def test_one_card_of_a_ring_is_verified_and_a_ring_is_decided_on(root: Path) -> None:
    at = str(START_MS + 2 * HOUR)
    assert "say with --card" in str(run_fails(root, "verified", CASE, "--by", "ann"))
    assert "has no card card-9" in str(run_fails(root, "verified", CASE, "--by", "ann", "--card", "card-9"))
    done = say(root, "verified", CASE, "--by", "ann", "--card", "card-2", "--at", at)
    assert f"{CASE}: verified of card-2, by ann" in done
    said = say(root, "dispose", CASE, "--verdict", "fraud", "--by", "ann", "--block-ring", "--at", at)
    assert f"{CASE}: fraud" in said
    shown = say(root, "show", CASE)
    assert shown.count("blocked until") == 3  # two cards and the device
    assert "verified of card-2 by ann" in shown
    (line,) = [line for line in shown.splitlines() if line.strip().startswith("card-2 ")]
    assert "verified until" in line
    assert "blocked" not in line
    labels = [json.loads(line) for line in say(root, "labels").splitlines()]
    assert {x["card_id"]: x["is_fraud"] for x in labels} == {"card-0": True, "card-1": True, "card-2": False}


def test_the_page_does_with_a_ring_what_the_commands_do(root: Path) -> None:
    data = data_of(root, 2 * HOUR)
    verify, decide = (dashboard.page.action(name) for name in ("act", "dispose"))

    def said(action: Action, **values: str) -> str:
        return action.run(data, action.checked({"case_id": CASE, "by": "ann", **values}))

    with pytest.raises(ActionRefused, match="say with --card"):
        said(verify, what="verified")
    assert "verified, by ann" in said(verify, what="verified", card="card-2")
    assert f"{CASE} is fraud" in said(decide, verdict="fraud", ring="block")
    shown = say(root, "show", CASE)
    assert shown.count("blocked until") == 3  # two cards and the device
    assert "verified of card-2 by ann" in shown


def run_fails(root: Path, *words: str) -> BaseException | None:
    result = CliRunner().invoke(commands, [*words, "--root", str(root)])
    assert isinstance(result.exception, UserError), result.output
    return result.exception


def test_only_a_ring_that_is_fraud_is_blocked_as_a_ring(root: Path) -> None:
    for case, verdict in ((CASE, "genuine"), (OWN, "fraud")):
        said = run_fails(root, "dispose", case, "--verdict", verdict, "--by", "ann", "--block-ring")
        assert "only rings have a device" in str(said)


def test_taking_a_verdict_back_tells_which_cards_other_cases_block(root: Path) -> None:
    data = data_of(root)
    own = dispose(data, FraudCasesSettings(), OWN, "fraud", by="ann", at_ms=START_MS + 3 * HOUR)
    data.now_ms.later()  # type: ignore[attr-defined] # tables are looked at anew
    ring = dispose(data, FraudCasesSettings(), CASE, "fraud", by="ann", at_ms=START_MS + 4 * HOUR)
    data.now_ms.later()  # type: ignore[attr-defined]
    back = dispose(data, FraudCasesSettings(), CASE, "genuine", by="ann", at_ms=START_MS + 5 * HOUR)
    assert (own.elsewhere, ring.elsewhere) == ([], [])
    assert back.elsewhere == [CardBlock("card-1", START_MS + 3 * HOUR + 30 * DAY)]
    data.now_ms.later()  # type: ignore[attr-defined]
    assert journal(data) == [own, ring, back]
    view = case_view(data, FraudCasesSettings())
    assert view is not None
    assert {r.case.case_id: r.case.status for r in view.ranked} == {OWN: "fraud", CASE: "genuine"}
    assert {r.case.case_id for r in view.of_card("card-1")} == {OWN, CASE}
    assert [r.case.case_id for r in view.of_card("card-2")] == [CASE]


def test_what_was_written_before_there_were_rings_is_read_and_added_to(root: Path) -> None:
    old = {"disposition_id": "d", "case_id": OWN, "card_id": "card-1", "verdict": "fraud", "by": "eva",
           "at_ms": START_MS + 2 * HOUR, "note": ""}  # fmt: skip
    done = {"act_id": "a", "case_id": OWN, "card_id": "card-1", "what": "contacted", "by": "eva",
            "at_ms": START_MS + HOUR + 1, "note": ""}  # fmt: skip
    for name, row in (("dispositions", old), ("case_acts", done)):
        write_deltalake(str(root / TABLES / name), pa.Table.from_pylist([row]))
    say(root, "dispose", CASE, "--verdict", "fraud", "--by", "ann", "--at", str(START_MS + 3 * HOUR))
    say(root, "contacted", CASE, "--by", "ann", "--card", "card-1", "--at", str(START_MS + 3 * HOUR))
    first, second = journal(data_of(root))
    assert first == msgspec.convert(old, Disposition)
    assert (second.ring, second.case_id) == (RING, CASE)
    assert [(one.ring, one.about) for one in acts(data_of(root))] == [("", ""), (RING, "card-1")]
    assert f"{OWN}  card card-1  fraud" in say(root, "show", OWN)


def test_the_page_says_of_a_row_that_it_is_a_ring(root: Path) -> None:
    found = queue(data_of(root))
    assert isinstance(found, Table)
    why = [column.name for column in found.columns].index("why")
    whys = {str(row[why]) for row in found.rows}
    assert "ring of 3 cards via device d-7: SHARED_DEVICE ×3" in whys


def test_a_card_number_in_a_note_is_written_as_its_token(root: Path) -> None:
    from millrace.privacy.keys import make_key_file

    make_key_file(root / "privacy" / "token.keys")
    say(
        root,
        "contacted",
        OWN,
        "--by",
        "ann",
        "--note",
        "has 4111 1111 1111 1111 too",
        "--at",
        str(START_MS + 2 * HOUR),
    )
    say(root, "dispose", OWN, "--verdict", "fraud", "--by", "ann", "--note", "4111111111111111")
    notes = [one.note for one in (*acts(data_of(root)), *journal(data_of(root)))]
    assert len(notes) == 2
    assert not any("4111" in note for note in notes)


def test_forgetting_a_card_says_that_cases_name_it_too(root: Path) -> None:
    settings = FraudSettings(storage={"root": str(root)})
    assert not any(one.name == CASES for one in stores(settings, 0))
    say(root, "contacted", OWN, "--by", "ann", "--at", str(START_MS + 2 * HOUR))
    assert any(one.name == CASES for one in stores(settings, 0))


# -- checkpoints of before ---------------------------------------------------------------------------


class BeforeRings(CaseBook):
    """The case book as it was: keyed by card, without acts."""

    name = stored_as = "CaseBook"
    inputs = {"alerts": AlertSeen, "dispositions": Disposition}  # noqa: RUF012


def test_a_checkpoint_of_before_there_were_rings_is_gone_on_from(tmp_path: Path) -> None:
    names = CaseTopics()
    decided = Input(names.dispositions, "card_id", "at_ms")
    inputs = {"alerts": Input(names.alerts, "card_id"), "dispositions": decided}
    before = read(inputs, control=names.control).process(BeforeRings()).key_by("queue").process(ReviewQueue())
    first = check_contract(tmp_path, contract_of(before, [64, 64]))
    assert check_contract(tmp_path, contract_of(topology(FraudCasesSettings()), [64, 64])) == first


def test_rings_are_switched_on_and_off_without_another_checkpoint() -> None:
    on, off = (topology(FraudCasesSettings(cases={"rings": rings})) for rings in (True, False))
    assert contract_of(on, [64, 64]) == contract_of(off, [64, 64])

"""What was blocked is told as declined, once, however often it is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace.runtime.settings import load_settings
from millrace_apps.fraud.contracts.events import Authorisation
from millrace_apps.fraud.operations.cli import app
from millrace_apps.fraud.operations.responding import declines, respond
from millrace_apps.fraud.settings import FraudSettings
from tests.unit.apps.fraud.cases import DAY, driver, transaction
from tests.unit.apps.fraud.test_authorisations import bring

#: What is read of an alert beside its action.
OF_ALERT = ("transaction_id", "card_id", "terminal_id", "event_time_ms", "amount")


def settings_of(root: Path) -> FraudSettings:
    return load_settings(FraudSettings, app="fraud", overrides=[f"storage.root={root}"], env={})


def written(root: Path, name: str, rows: list[dict[str, Any]]) -> None:
    write_deltalake(str(root / "tables" / name), pa.Table.from_pylist(rows), mode="append")


def test_what_was_blocked_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, list[Authorisation]]] = []
    monkeypatch.setattr(
        "millrace.operations.sending.send",
        lambda kafka, topic, contract, events: sent.append((topic, [event for _, event in events])),
    )
    bought = [transaction(n * DAY, 900, id=f"t{n}") for n in range(3)]
    written(
        tmp_path,
        "alerts",
        [
            {name: getattr(tx, name) for name in OF_ALERT} | {"action": action}
            for tx, action in zip(bought, ("block", "review", "block"), strict=True)
        ],
    )
    assert respond(settings_of(tmp_path)) == 2
    topic, told = sent[0]
    assert (topic, [a.transaction_id for a in told]) == ("fraud.authorisations", ["t0", "t2"])
    written(tmp_path, "authorisations", [{"authorisation_id": told[0].authorisation_id}])
    assert respond(settings_of(tmp_path)) == 1
    assert sent[1][1] == told[1:]
    # The job takes them once, and gives the money back.
    target = driver()
    bring(target, bought[0])
    bring(target, told[0])
    bring(target, told[0])
    bring(target, bought[1])
    assert target.values()[-1].balance == -900.0
    assert [d["reason"] for d in target.values("dead_letters")] == ["duplicate"]


def test_a_decline_tells_what_was_billed_as_far_as_that_is_known() -> None:
    alert = {"card_id": "c", "terminal_id": "m", "event_time_ms": 7, "amount": 900.0, "action": "block"}
    rows = [
        {**alert, "transaction_id": str(n), "billing_amount": billed} for n, billed in enumerate((5.5, None))
    ]
    assert [told.amount for told in declines([*rows, {**alert, "transaction_id": "2"}], set())] == [
        5.5, 900.0, 900.0,
    ]  # fmt: skip


def test_a_folder_without_a_job_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no table of alerts yet"):
        respond(settings_of(tmp_path))
    done = CliRunner().invoke(app, ["respond", "--help"])
    assert done.exit_code == 0
    assert "Example" in done.output

"""The demo: one command, everything real, checked against the truth, nothing left behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.demo import DemoRun
from millrace.runtime.demo_settings import published_settings
from millrace.runtime.plans import kept_links, kept_plan
from millrace.testing.world_ledger import read_world_ledger
from millrace_apps.fraud.demo import checks
from millrace_apps.fraud.settings import FraudSettings
from tests.e2e.fraud_runs import MILLRACE, Command, table


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and the output of a demo without a terminal, long enough for events that come late."""
    home = tmp_path_factory.mktemp("home")
    arguments = ["demo", "fraud", "--duration", "45s", "--rate", "1000", "-s", "spark.master=local[2]"]
    with Command([*MILLRACE, *arguments], home, env={"MILLRACE_HOME": str(home)}) as command:
        assert command.wait() == 0, f"{command.out}\n{command.err}"
        command.check_nothing_left()
        assert command.err == ""
        return home / "demo" / "fraud", command.out


def test_it_ends_by_itself_with_all_checks_held_and_says_so(demo: tuple[Path, str]) -> None:
    _, said = demo
    assert "all checks hold" in said
    assert "first alert" in said
    assert "\x1b" not in said, "no terminal, no colours"
    assert read_world_ledger(demo[0] / "ledger.jsonl").summary.sent > 5_000 * 0.9
    assert published_settings(demo[0]) == (), "its broker is gone"
    assert kept_plan(demo[0]) == "station"
    stages = ["AccountMonitor", "TerminalMonitor", "DeviceMonitor", "AddressMonitor"]
    assert kept_links(demo[0]) == ["CardMonitor", *stages, "DecisionDesk"], "all entities decide"


Change = Callable[[pa.Table], pa.Table]


def without_one(rows: pa.Table) -> pa.Table:
    return rows.slice(1)


def with_one_twice(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(0, 1)])


def with_a_cent_more(rows: pa.Table) -> pa.Table:
    name = "billing_amount"
    amounts = rows[name].to_pylist()
    amounts[0] = round(amounts[0] + 0.01, 2)
    return rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), [amounts])


def without_reasons(rows: pa.Table) -> pa.Table:
    place = rows.schema.get_field_index("reasons")
    none = pa.array([[]] * rows.num_rows, rows.schema.field(place).type)
    return rows.set_column(place, rows.schema.field(place), none)


def none(rows: pa.Table) -> pa.Table:
    return rows.slice(0, 0)


@pytest.mark.parametrize(
    ("name", "change", "fails"),
    [
        ("transactions", without_one, "events sent = rows"),
        ("transactions", with_one_twice, "no transaction twice"),
        ("transactions", with_a_cent_more, "sum of"),
        ("dead_letters", without_one, "no other dead letters"),
        ("alerts", with_one_twice, "no alert twice"),
        ("labels", without_one, "labels sent = rows"),
        ("authorisations", without_one, "authorisations sent = rows"),
        ("alerts", none, "caught"),
        ("alerts", without_reasons, "told by IMPOSSIBLE_TRAVEL"),
    ],
)
def test_its_checks_see_a_table_that_is_wrong(
    demo: tuple[Path, str], tmp_path: Path, name: str, change: Change, fails: str
) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(demo[0], folder)
    run = DemoRun("", folder, FraudSettings(), 10, 500, 7)
    ledger = read_world_ledger(run.ledger)
    seen = {row["_event_id"] for row in table(folder, "alerts")}
    assert all(check.ok for check in checks(run, ledger, seen))

    path = folder / "tables" / name
    rows = change(DeltaTable(str(path)).to_pyarrow_table())
    write_deltalake(str(path), rows, mode="overwrite")
    failed = [check.name for check in checks(run, ledger, seen) if not check.ok]
    assert any(name.startswith(fails) for name in failed), failed

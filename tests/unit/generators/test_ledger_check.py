"""`millrace ledger check`: an app's tables against the ledger, with every way in which they can differ."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from millrace.console.report import Check
from millrace.errors import ChecksFailed, UserError
from millrace.testing.world_ledger import WorldRun
from millrace_apps.generators.engine.disturb import Disturbances
from millrace_apps.generators.engine.world import deliver_domain
from millrace_apps.generators.ledger_check import Outputs, Truths, compare, read_truths
from millrace_apps.generators.ledger_cli import app, ids
from millrace_apps.generators.world_ledger import WorldLedger
from tests.broken import (
    Break,
    Change,
    Tables,
    added,
    breaks,
    check_listed,
    doubled,
    dropped,
    renamed,
    stuck,
    where,
)
from tests.unit.generators.world import METERS, MeterProfile

PROFILE = MeterProfile(seed=8, events=800, late=0.05, lateness_ms=1_000, duplicates=0.05, malformed=0.05)
WRONG = Disturbances(loss=0.05, drift=0.05, unknown_version=0.05, clock_skew=0.1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    topics = {name: spec.topic for name, spec in METERS.streams.items()}
    with WorldLedger(path, WorldRun("meters", 8, topics, {}, {})) as ledger:
        for message in deliver_domain(METERS, PROFILE, WRONG):
            ledger.add(message)
        ledger.finish()
    return path


@pytest.fixture(scope="module")
def truths(path: Path) -> Truths:
    return read_truths(path)


@lru_cache
def right() -> Outputs:
    """What an app without a mistake writes, from the messages themselves and not from the ledger."""
    events: dict[str, list[str]] = {name: [] for name in METERS.streams}
    late, letters, alerts = [], [], []
    for message in deliver_domain(METERS, PROFILE, WRONG):
        kind = message.fault.kind if message.fault else None
        if message.dropped:
            continue
        if message.truths:
            alerts.append(message.transaction_id)
        if kind == "late":
            late.append(message.transaction_id)
        elif kind == "duplicate":
            letters.append((message.transaction_id, "duplicate"))
        elif message.is_event:
            events[message.stream].append(message.transaction_id)
        else:
            assert message.fault is not None
            letters.append((message.transaction_id, message.fault.reason))
    return Outputs(events=events, late=late, dead_letters=letters, found={"leak": alerts})


def failed(truths: Truths, outputs: Outputs) -> list[str]:
    return [check.name for check in compare(truths, outputs) if not check.ok]


def test_the_right_outputs_hold(truths: Truths) -> None:
    checks = compare(truths, right())
    assert [check for check in checks if not check.ok] == []
    names = {check.name for check in checks}
    assert {"dead letters: malformed", "dead letters: schema", "dead letters: unknown_version"} <= names
    assert "leak: found" in names


def test_without_a_late_table_missing_late_events_are_no_mistake(truths: Truths) -> None:
    assert failed(truths, replace(right(), late=None)) == []


def of(truths: Truths, kind: str) -> str:
    return next(f.event_id for f in truths.faults if f.kind == kind and f.stream == "reports")


def as_rows(outputs: Outputs) -> Tables:
    """The outputs as tables, to be broken."""
    return {
        "reports": [{"id": name} for name in outputs.events["reports"]],
        "late": [{"id": name} for name in outputs.late or ()],
        "dead_letters": [{"id": name, "reason": reason} for name, reason in outputs.dead_letters or ()],
        "found": [{"id": name} for name in outputs.found["leak"]],
    }


def as_outputs(tables: Tables) -> Outputs:
    return Outputs(
        events={**right().events, "reports": [row["id"] for row in tables["reports"]]},
        late=[row["id"] for row in tables["late"]],
        dead_letters=[(row["id"], row["reason"]) for row in tables["dead_letters"]],
        found={"leak": [row["id"] for row in tables["found"]]},
    )


#: Filled with identities of the run's events: one that nothing was done to, and one of each kind of fault.
IDS: dict[str, str] = {}


@pytest.fixture(scope="module", autouse=True)
def _ids(truths: Truths) -> None:
    faulty = {fault.event_id for fault in truths.faults}
    IDS["clean"] = next(name for name in right().events["reports"] if name not in faulty)
    IDS["accepted"] = next(
        f.event_id for f in truths.faults if f.expected == "accepted" and f.stream == "reports"
    )
    IDS.update({kind: of(truths, kind) for kind in ("duplicate", "lost", "malformed")})


def one(kind: str, change: Change) -> Change:
    return where(lambda row: row["id"] == IDS[kind], change)


def with_one(kind: str) -> Change:
    return lambda rows: [*rows, {**rows[-1], "id": IDS[kind], "reason": "process_error"}]


BREAKS = (
    *breaks(
        "STREAM: valid events = rows + late",
        dropped={"reports": one("clean", dropped)},
        all_dropped={"reports": dropped},
        one_that_was_never_sent={"reports": added({"id": "no-such-event"})},
    ),
    *breaks(
        "STREAM: no event twice", doubled={"reports": one("clean", doubled)}, stuck={"reports": stuck("id")}
    ),
    *breaks("STREAM: no lost message among the rows", one_that_was_lost={"reports": with_one("lost")}),
    *breaks(
        "STREAM: no broken message among the rows", one_that_was_broken={"reports": with_one("malformed")}
    ),
    *breaks(
        "STREAM: events with a field more, or repeated, are there",
        repeated_ones_dropped={"reports": one("duplicate", dropped)},
        with_a_field_more_dropped={"reports": one("accepted", dropped)},
    ),
    *breaks(
        "no event set aside that was on time",
        one_set_aside={"late": with_one("clean")},
        all_set_aside={"late": lambda rows: [{"id": name} for name in right().events["reports"]]},
    ),
    *(
        broken
        for reason in ("malformed", "schema", "unknown_version")
        for broken in breaks(
            f"dead letters: {reason}",
            dropped={"dead_letters": where(lambda row, reason=reason: row["reason"] == reason, dropped)},  # type: ignore[misc]
            another_reason={"dead_letters": stuck("reason", "another")},
        )
    ),
    *breaks(
        "dead letters: none that the ledger does not explain",
        one_that_failed={"dead_letters": with_one("clean")},
        others={"dead_letters": renamed("id")},
    ),
    *breaks("KIND: found", dropped={"found": dropped}, others={"found": renamed("id")}),
)


def general(name: str) -> str:
    """The name of a check as the page has it, for streams and kinds of any ledger."""
    return name.replace("reports:", "STREAM:").replace("leak:", "KIND:")


@pytest.mark.parametrize("broken", BREAKS, ids=str)
def test_every_mistake_is_found(truths: Truths, broken: Break) -> None:
    outputs = as_outputs(broken.applied(as_rows(right())))
    assert broken.check in map(general, failed(truths, outputs))


def test_every_check_is_listed_with_what_breaks_it(truths: Truths) -> None:
    names = {general(check.name) for check in compare(truths, right()) if "openings:" not in check.name}
    reasons = {f"dead letters: {reason}" for reason in ("malformed", "schema", "unknown_version")}
    others = {name for name in names if name.startswith("dead letters: ") and "explain" not in name} - reasons
    check_listed("`millrace ledger check`", names - others, BREAKS)


def test_what_the_ledger_does_not_have_is_named(truths: Truths) -> None:
    with pytest.raises(UserError, match="no stream doors, but reports, openings"):
        compare(truths, Outputs(events={"doors": []}))
    with pytest.raises(UserError, match="no truth of kind flood, but leak"):
        compare(truths, Outputs(found={"flood": []}))


def delta(path: Path, columns: dict[str, list[object]]) -> str:
    from deltalake import write_deltalake

    write_deltalake(str(path), pa.table(columns))
    return str(path)


def test_the_command_reads_delta_tables_and_says_what_does_not_hold(path: Path, tmp_path: Path) -> None:
    outputs = right()
    flags = [str(path)]
    for stream, names in outputs.events.items():
        table = delta(tmp_path / stream, {"id": list(names), "other": [1] * len(names)})
        flags += ["--events", f"{stream}={table}:id"]
    inside = [json.dumps({"report": {"id": name}}) for name in outputs.late or ()]
    flags += ["--late", delta(tmp_path / "late", {"event": list(inside)}) + ":event.report.id"]
    letters = outputs.dead_letters or ()
    columns: dict[str, list[object]] = {
        "headers": [json.dumps({"ce_id": name}) for name, _ in letters],
        "reason": [reason for _, reason in letters],
    }
    flags += ["--dead-letters", delta(tmp_path / "dead", columns)]
    done = CliRunner().invoke(app, ["check", *flags])
    assert done.exit_code == 0, done.output
    assert "FAIL" not in done.output
    assert "ok    reports: no event twice" in done.output
    twice = delta(tmp_path / "twice", {"id": [*outputs.events["openings"]] * 2})
    done = CliRunner().invoke(app, ["check", str(path), "--events", f"openings={twice}:id"])
    assert isinstance(done.exception, ChecksFailed)
    assert "FAIL  openings: no event twice" in done.output


def test_show_counts_what_a_ledger_says(path: Path) -> None:
    shown = CliRunner().invoke(app, ["show", str(path)]).output
    assert shown.startswith("meters: ")
    for text in ("stream openings: ", "fault lost, expected absent: ", "truth leak: "):
        assert text in shown


def test_a_table_or_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no Delta table at"):
        ids(f"{tmp_path}/nothing:id")
    table = delta(tmp_path / "table", {"id": ["a"]})
    with pytest.raises(UserError, match="has no column name; it has id"):
        ids(f"{table}:name")
    with pytest.raises(UserError, match="TABLE:COLUMN"):
        ids("table")


def test_nothing_to_compare_is_said(path: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["check", str(path)])
    assert isinstance(done.exception, UserError)
    nothing = delta(tmp_path / "late", {"id": [""]})
    from deltalake import write_deltalake

    write_deltalake(nothing, pa.table({"id": pa.array([], pa.string())}), mode="overwrite")
    done = CliRunner().invoke(app, ["check", str(path), "--late", f"{nothing}:id"])
    assert isinstance(done.exception, ChecksFailed)
    assert "nothing to compare" in done.output


def test_a_check_names_a_few_of_what_does_not_fit(truths: Truths) -> None:
    extra = [f"x{number}" for number in range(5)]
    checks = compare(truths, replace(right(), late=[*(right().late or ()), *extra]))
    bad = next(check for check in checks if not check.ok)
    late = len({*(right().late or ()), *extra})
    name = "no event set aside that was on time"
    assert bad == Check(name, "0", "5", False, "x0, x1, x2, …", compared=late)

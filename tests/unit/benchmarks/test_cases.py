"""The table of cases and the benchmarks by name: each finds its module, and is asked for what it takes."""

from __future__ import annotations

import inspect
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace_apps.benchmarks import report
from millrace_apps.benchmarks.case import Case, Sizes, over
from millrace_apps.benchmarks.cli import app, options
from millrace_apps.benchmarks.cli.cases import CASES
from millrace_apps.benchmarks.names import FORMER, name_in_reports

PLACES = {"running-zscore": "w1:CASE", **{name: listed.place for name, listed in CASES.items()}}
#: Benchmark → options, and the sizes that they must give; all of those that are carried out by name.
ASKED: dict[str, tuple[list[str], dict[str, Any]]] = {
    "big-state": (["--keys", "7", "--rate", "3"], {"keys": 7, "rate": 3}),
    "busy": (["--quick"], {}),
    "clock": (["--machines", "5"], {"machines": 5}),
    "kafka-running-zscore": (["--messages", "5000", "--batch", "100"], {"messages": 5_000, "batch": 100}),
    "memory-host": (["--events", "2000", "--repeats", "1"], {"events": 2_000, "repeats": 1}),
    "next-items": (["--sessions", "2000"], {"sessions": 2_000}),
    "paged-state": (["--entries", "3000"], {"entries": 3_000}),
    "parts": (["--quick"], {}),
    "region": (["--drivers", "300", "--riders", "0"], {"drivers": 300, "riders": 0}),
    "rules": (["--rules", "9", "--events", "10"], {"rules": 9, "events": 10}),
    "savepoint": (["--keys", "10", "--text", "4"], {"keys": 10, "text": 4}),
    "serve": (["--duration", "4", "--safe-in", "broker"], {"duration_s": 4, "safe_in": "broker"}),
    "serve-items": (["--rate", "9", "--warm-batches", "2"], {"rate": 9, "warm_batches": 2}),
    "serve-beside": (["--pairs", "3", "--rate", "5"], {"pairs": 3, "rate": 5}),
    "silence": (["--devices", "44"], {"devices": 44}),
    "state-encryption": (["--keys", "10", "--events", "1000"], {"cards": 10, "events": 1_000}),
    "stations": (["--stations", "3", "--rows", "8"], {"stations": 3, "rows": 8}),
    "timers": (["--due", "11"], {"due": 11}),
}


def case_of(place: str) -> Case[Any]:
    module, _, attribute = place.partition(":")
    found: Case[Any] = getattr(import_module(f"millrace_apps.benchmarks.{module}"), attribute)
    return found


@pytest.mark.parametrize("name", PLACES)
def test_every_case_has_its_systems_an_oracle_and_only_ratios_between_systems_of_its_own(
    name: str, tmp_path: Path
) -> None:
    case = case_of(PLACES[name])
    sizes = replace(case.quick, rows=4_000, keys=200, batches=2)
    systems = case.systems(sizes, tmp_path / "in")
    named = {system for pair in case.ratios.values() for system in pair}
    assert named <= set(systems)
    assert named or name in ("sliding-sums", "pattern-matching"), "a rival that nothing is compared with"
    for system in systems.values():
        assert system.expected.rows > 0
        assert len(system.cuts) == 3
        assert all(len(list(folder.glob("*.parquet"))) >= 4 for folder in system.folders)
    assert (
        case.ratios_of({n: {"rows_per_s": 2.0 + i} for i, n in enumerate(systems)}).keys()
        == case.ratios.keys()
    )


def test_a_ratio_divides_the_first_by_the_second() -> None:
    case = replace(case_of("windowed:TUMBLING_WINDOWS"), ratios=over(("ours", "theirs")))
    assert case.ratios_of({"ours": {"rows_per_s": 6.0}, "theirs": {"rows_per_s": 2.0}}) == {
        "ours_over_theirs": 3.0
    }


@pytest.mark.parametrize("name", PLACES)
def test_the_command_runs_its_case_with_the_sizes_that_are_given(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(Case, "run", lambda self, sizes: ran.append((self, sizes)) or {})
    written: list[Any] = []
    monkeypatch.setattr(report, "write", lambda *args: written.append(args))
    done = CliRunner().invoke(app, [name, "--quick", "--keys", "77", "--out", "R.json"])
    assert done.exception is None
    case = case_of(PLACES[name])
    assert ran == [(case, replace(case.quick, keys=77))]
    assert written[0][0] == name
    assert written[0][2]["keys"] == 77
    assert {"exponent", "settings", "rows", "input"} <= written[0][2].keys()
    assert written[0][3:] == (Path("R.json"), None)


#: What reports have been called ever since, by what commands were called.
REPORTS = ("w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "kafka-w1", "sealing")


def test_former_names_are_those_of_reports() -> None:
    assert set(FORMER) == set(REPORTS)
    assert len(set(FORMER.values())) == len(REPORTS)
    assert {*PLACES, *ASKED} >= set(FORMER.values())
    assert not set(FORMER) & {*PLACES, *ASKED}


@pytest.mark.parametrize("former", REPORTS)
def test_a_former_name_runs_the_same_benchmark_and_is_told_to_be_old(
    former: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Case, "run", lambda self, sizes: asked.append((self, sizes)) or {})
    stand_in = SimpleNamespace(
        QUICK=Sizes(rows=1),
        configuration=lambda *_: {},
        **{
            name: lambda *args, name=name: asked.append((name, args)) or {}
            for name in ("kafka_running_zscore", "state_encryption")
        },
    )
    monkeypatch.setattr(options, "import_module", lambda _: stand_in)
    monkeypatch.setattr(report, "write", lambda *args: asked.append(args))
    today = FORMER[former]
    calls = [CliRunner().invoke(app, [name, "--quick", "--out", "R.json"]) for name in (former, today)]
    assert [done.exception for done in calls] == [None, None]
    assert asked[:2] == asked[2:], "it runs something else, or writes another report"
    assert name_in_reports(asked[1][0]) == former
    told = f"{former} is the former name of the benchmark {today}: use that\n"
    assert [done.stderr for done in calls] == [told, ""]
    assert [done.stdout for done in calls] == ["", ""]


@pytest.mark.parametrize("name", ASKED)
def test_a_benchmark_by_name_is_asked_for_what_it_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, wanted = ASKED[name]
    asked: list[Any] = []

    def found(place: str) -> SimpleNamespace:
        real = import_module(place)
        function = name.replace("-", "_")
        signature = inspect.signature(getattr(real, function))
        stand_in = {function: lambda *args: asked.append(signature.bind(*args)) or {}}
        return SimpleNamespace(**{**vars(real), **stand_in})

    monkeypatch.setattr(options, "import_module", found)
    monkeypatch.setattr(report, "write", lambda *args: asked.append(args))
    done = CliRunner().invoke(app, [name, *given])
    assert done.exception is None, done.exception
    sizes = asked[0].args[0]
    assert {field: getattr(sizes, field) for field in wanted} == wanted
    assert asked[1][0] == name


def test_all_benchmarks_that_are_carried_out_by_name_are_asked() -> None:
    folder = Path(options.__file__).parent
    texts = "".join(path.read_text() for path in folder.glob("*.py") if path.stem != "options")
    assert texts.count(" carry_out(") == len(ASKED)

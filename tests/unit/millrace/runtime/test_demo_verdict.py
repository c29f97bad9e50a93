"""What the checks of a demo come to, in a whole run and in a small one, and how long it waits."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace import demo
from millrace.cli.demo import _give, _tell
from millrace.console.report import Check, equal
from millrace.demo import DemoOptions, verdict_of
from millrace.errors import ChecksFailed

WHOLE, SMALL = DemoOptions(), DemoOptions(rate=200)
HOLDS, WRONG = equal("rows", 5, 5), equal("rows", 5, 4)
NONE_OFTEN, NONE_SELDOM = equal("rows", 0, 0), equal("wonders", 0, 0)
WRONG_SELDOM = equal("wonders", 0, 1)


@pytest.mark.parametrize(
    ("checks", "whole", "small"),
    [
        ([HOLDS], True, True),
        ([HOLDS, NONE_SELDOM], False, True),
        ([HOLDS, NONE_OFTEN], False, False),
        ([HOLDS, WRONG_SELDOM], False, False),
        ([WRONG, NONE_SELDOM], False, False),
        ([NONE_SELDOM], False, True),
        ([], False, False),
    ],
)
def test_what_is_seldom_may_be_missing_from_a_small_run_alone(
    checks: list[Check], whole: bool, small: bool
) -> None:
    assert verdict_of(checks, WHOLE, {"wonders"}).holds is whole
    assert verdict_of(checks, SMALL, {"wonders"}).holds is small
    assert verdict_of(checks, SMALL).holds is (checks == [HOLDS])


def test_what_was_not_compared_is_named() -> None:
    found = verdict_of([NONE_SELDOM, NONE_OFTEN, WRONG], SMALL, {"wonders"})
    assert found == (["rows"], ["rows"], ["wonders"])
    assert verdict_of([NONE_SELDOM], WHOLE, {"wonders"}) == ([], ["wonders"], [])


class Clock:
    """Time that goes on by itself, a second a look."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _: float) -> None:
        self.now += 1.0


@pytest.mark.parametrize(
    ("steps", "ends_at", "says"),
    [
        ([], 300, "0 of 90 events were read, and nothing done for 300 s"),
        ([(290, 30)], 410, "30 of 90 events were read, and nothing done for 120 s"),
        ([(290, 30), (400, 60), (515, 80)], 635, "80 of 90 events were read, and nothing done for 120 s"),
        ([(290, 30), (400, 60), (515, 90)], 515, ""),
    ],
)
def test_a_demo_waits_while_it_goes_on_and_long_for_its_first_batch(
    steps: list[tuple[int, int]], ends_at: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    time: Any = Clock()
    monkeypatch.setattr(demo, "time", time)
    monkeypatch.setattr(demo, "sent_by", lambda *_: 90)
    monkeypatch.setattr(demo, "_model", lambda *_: None)
    nobody = SimpleNamespace(update=lambda _: None, first_at=None, is_alive=lambda: True)

    def snapshot() -> Any:
        return SimpleNamespace(input_rows=max((n for at, n in steps if at <= time.now), default=0), batches=0)

    def watch() -> None:
        settling = SimpleNamespace(done=lambda found, sent: found.input_rows == sent)
        monitor = SimpleNamespace(snapshot=snapshot)
        given: list[Any] = [nobody, nobody, nobody, monitor, nobody, nobody, nobody, 0.0, settling]
        demo._watch(*given)

    if says:
        with pytest.raises(ChecksFailed, match=says):
            watch()
        assert time.now == ends_at + 1  # the first look after it
    else:
        watch()
        assert time.now == ends_at


SPEC = SimpleNamespace(seldom={"wonders"})


@pytest.mark.parametrize(
    ("checks", "options", "said"),
    [
        ({"fraud": [HOLDS], "iot": [HOLDS]}, WHOLE, ""),
        ({"fraud": [WRONG], "iot": [HOLDS]}, WHOLE, "what was written is not what was sent: fraud: rows"),
        (
            {"fraud": [HOLDS], "iot": [NONE_OFTEN]},
            SMALL,
            "a longer run is wanted, nothing to compare: iot: rows",
        ),
        (
            {"fraud": [WRONG, NONE_SELDOM], "iot": [WRONG]},
            WHOLE,
            "what was written is not what was sent: fraud: rows; iot: rows",
        ),
        ({"fraud": [WRONG]}, WHOLE, "what was written is not what was sent: rows"),
        ({"fraud": [HOLDS, NONE_SELDOM]}, SMALL, ""),
        ({"fraud": []}, WHOLE, "a longer run is wanted, nothing to compare: all checks"),
    ],
)
def test_one_demo_and_several_tell_the_same_of_their_checks(
    checks: dict[str, list[Check]], options: DemoOptions, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checked: Any = {name: (SPEC, found) for name, found in checks.items()}
    failed = ""
    try:
        _tell(checked, options, time.monotonic(), Path("/there"), ["and more"])
    except ChecksFailed as error:
        failed = str(error)
    assert failed == said
    out = capsys.readouterr().out
    for name in checks:
        assert f"{name}: what was written against what was sent" in out
    assert out.splitlines()[-3:] == [
        "and more", "tables, ledger and logs: /there",
        "CHECKS FAILED after 0 s" if said else "all checks hold after 0 s",
    ]  # fmt: skip
    seldom = "so small a run has nothing to compare for: wonders"
    assert (seldom in out) == (options is SMALL and NONE_SELDOM in checks["fraud"])


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(
    ("checks", "options", "holds"),
    [([HOLDS], WHOLE, True), ([WRONG], WHOLE, False), ([NONE_OFTEN], SMALL, False), ([], WHOLE, False),
     ([HOLDS, NONE_SELDOM], SMALL, True), ([HOLDS, NONE_SELDOM], WHOLE, False)],
)  # fmt: skip
def test_as_json_the_same_is_said(
    checks: list[Check],
    options: DemoOptions,
    holds: bool,
    several: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 102.34)
    checked: Any = {"fraud": (SPEC, checks)} | ({"iot": (SPEC, [HOLDS])} if several else {})
    with nullcontext() if holds else pytest.raises(ChecksFailed):
        _give(checked, options, 100.0, Path("/there"), {"restarts": {"iot": 1}} if several else {})
    told = json.loads(capsys.readouterr().out)
    assert (told["holds"], told["folder"], told["seconds"]) == (holds, "/there", 2.3)
    assert told.get("restarts") == ({"iot": 1} if several else None)
    found = told["apps"]["fraud"]
    assert (found["holds"], list(told["apps"])) == (holds, ["fraud", "iot"] if several else ["fraud"])
    assert [(one["name"], one["ok"], one["compared"]) for one in found["checks"]] == [
        (check.name, check.ok, check.compared) for check in checks
    ]
    verdict = verdict_of(checks, options, SPEC.seldom)
    assert [found[name] for name in ("wrong", "empty", "seldom")] == [*verdict]

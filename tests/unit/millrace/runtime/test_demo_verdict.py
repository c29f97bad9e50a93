"""What the checks of a demo come to, in a whole run and in a small one."""

from __future__ import annotations

import pytest

from millrace.console.report import Check, equal
from millrace.demo import DemoOptions, verdict_of

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

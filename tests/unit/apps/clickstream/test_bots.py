"""Where a person ends and a bot begins, to the millisecond."""

from __future__ import annotations

import pytest

from apps.clickstream.known import VisitorRules
from apps.clickstream.visitor import visitors
from millrace.testing import TestDriver
from tests.unit.apps.clickstream.app_cases import SECOND, click, send


@pytest.mark.parametrize(("span", "bot"), [(10 * SECOND - 1, "rate"), (10 * SECOND, "")])
def test_fifteen_events_in_less_than_ten_seconds_are_a_bots_and_in_ten_a_persons(span: int, bot: str) -> None:
    target = TestDriver(visitors(VisitorRules()))
    for n in range(15):
        send(target, click(n * span // 14, item_id=f"i{n}"))
    target.drain()
    assert {row.bot for row in target.values("sessions") if row.is_final} == {bot}

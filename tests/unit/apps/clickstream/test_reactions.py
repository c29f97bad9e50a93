"""What comes of it: boards over all shards, and offers only where consent stands."""

from __future__ import annotations

import msgspec
import pytest

from millrace.testing import TestDriver
from millrace_apps.clickstream.contracts.messages import MarketingConsent, Shopping
from millrace_apps.clickstream.processes.boards import Board
from millrace_apps.clickstream.processes.offer_rules import DEFAULT_RULES
from millrace_apps.clickstream.processes.offering import Offers
from tests.unit.apps.clickstream.app_cases import MINUTE, START

CART_LEFT = tuple(
    msgspec.structs.replace(rule, control=0.0) for rule in DEFAULT_RULES if rule.name == "cart-left"
)


def test_of_equals_the_lesser_name_is_first_whichever_shard_it_comes_from() -> None:
    shards = {"s:1": {"tea": 2, "mug": 1}, "s:2": {"cup": 2}, "s:3": {"jar": 1, "mug": 1}}
    assert Board("views/5m", 0, 5 * MINUTE, shards).ranking() == [
        ("cup", 2), ("mug", 2), ("tea", 2), ("jar", 1)]  # fmt: skip


@pytest.mark.parametrize(
    ("granted", "browser", "offered"),
    [(False, "v1", 0), (False, "v2", 1), (True, "v1", 1)],
)
def test_what_comes_of_a_browser_after_its_consent_was_withdrawn_makes_no_offer(
    granted: bool, browser: str, offered: int
) -> None:
    """The cart was left while marketing was allowed, and is told after the withdrawal."""
    target = TestDriver(Offers(CART_LEFT, 0.0))
    said = MarketingConsent("u:u1", START + MINUTE, browser, granted)
    left = Shopping("u:u1", "abandoned", START + 2 * MINUTE, "cart", "v1", "c1", stage="cart", cents=1_000)
    target.send_batch([("u:u1", said.at_ms, said, "persons"), ("u:u1", left.at_ms, left, "carts")])
    target.drain()
    assert len(target.values()) == offered

"""What comes of acts: boards over all shards, and offers only where consent stands."""

from __future__ import annotations

import msgspec
import pytest

from apps.clickstream.offer_rules import DEFAULT_RULES
from apps.clickstream.reactions import Board, Reactions
from millrace.testing import TestDriver
from tests.unit.apps.clickstream.app_cases import MINUTE, act

CART_LEFT = tuple(
    msgspec.structs.replace(rule, control=0.0) for rule in DEFAULT_RULES if rule.name == "cart-left"
)


def test_of_equals_the_lesser_name_is_first_whichever_shard_it_comes_from() -> None:
    shards = {"s:1": {"tea": 2, "mug": 1}, "s:2": {"cup": 2}, "s:3": {"jar": 1, "mug": 1}}
    assert Board("views/5m", 0, 5 * MINUTE, shards).ranking() == [
        ("cup", 2), ("mug", 2), ("tea", 2), ("jar", 1)]  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "browser", "offered"),
    [("withdrawn", "v1", 0), ("withdrawn", "v2", 1), ("granted", "v1", 1)],
)
def test_what_comes_of_a_browser_after_its_consent_was_withdrawn_makes_no_offer(
    stage: str, browser: str, offered: int
) -> None:
    """The cart was left while marketing was allowed, and is told after the withdrawal."""
    target = TestDriver(Reactions(CART_LEFT))
    said = act("p:u:u1", "consent", MINUTE, visitor=browser, person="u:u1", stage=stage, cause="w")
    left = act("p:u:u1", "abandoned", 2 * MINUTE, subject="c1", visitor="v1", person="u:u1", marketing=True,
               cents=1_000, stage="cart", cause="cart")  # fmt: skip
    for one in (said, left):
        target.send(one.key, one, at=one.at_ms)
    target.drain()
    assert len(target.values()) == offered

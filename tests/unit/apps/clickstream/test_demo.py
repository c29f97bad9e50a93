"""The demo's own parts, and the evaluation of a generated shop without Spark."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from millrace.demo import DemoRun
from millrace.runtime.clock_files import write_status
from millrace.time.clock import ClockStatus
from millrace_apps.clickstream import demo
from millrace_apps.clickstream.evaluation.shop import read_shop
from millrace_apps.clickstream.evaluation.snowplow_files import BadFile
from millrace_apps.clickstream.settings import ClickstreamSettings
from millrace_apps.clickstream.state.offers import Offer
from millrace_apps.generators.cli import app as generate
from tests.unit.apps.clickstream.test_checks import DEMO, LEDGER
from tests.unit.apps.clickstream.test_outcomes_by_time import BROKEN


def test_the_demo_sends_every_stream_to_the_apps_own_topics(tmp_path: Path) -> None:
    run = DemoRun("broker:1", tmp_path, ClickstreamSettings(), 60.0, 500, 7)
    arguments = demo.generate(run)
    topics = [arguments[n + 1] for n, part in enumerate(arguments) if part == "--topic"]
    assert topics == [f"{name}=clickstream.{name}" for name in demo.STREAMS]
    (tmp_path / "out").mkdir()
    dry = [*arguments, "--dry-run", "--to", "jsonl", "--out", str(tmp_path / "out")]
    # A loop is with an app: what is said of the options can be seen without.
    result = CliRunner().invoke(generate, [part for part in dry if part not in ("--quiet", "--loop")])
    assert result.exit_code == 0, result.output
    assert "--loop" in arguments
    assert "--loop-suffix" not in arguments


def test_shoppers_of_a_demo_on_a_shared_broker_listen_to_its_own_offers(tmp_path: Path) -> None:
    settings = ClickstreamSettings.model_validate({"topics": {"offers": "clickstream.offers.demo-abc"}})
    arguments = demo.generate(DemoRun("broker:1", tmp_path, settings, 60.0, 500, 7))
    assert arguments[arguments.index("--loop-suffix") + 1] == ".demo-abc"


def test_on_a_shared_broker_the_demo_has_topics_of_its_own() -> None:
    own = [text for text in demo.settings("abc") if text.startswith("topics.")]
    assert len(own) == len(ClickstreamSettings().topics.__class__.model_fields) - 1
    assert all(text.endswith(".demo-abc") for text in own)
    assert not any(text.startswith("topics.") for text in demo.settings(""))


def test_an_offer_is_shown_with_its_rule_and_arm() -> None:
    offer = Offer("id", "cart-left", "ten-percent", "control", "u:ann", "v1", None, 0, {})
    line = demo.offer_line(msgspec.json.encode(offer))
    assert (line.at, line.key, line.reasons) == ("00:00:00", "u:ann", "cart-left: ten-percent (control)")


def test_a_shops_files_are_read_in_the_order_of_sending(tmp_path: Path) -> None:
    clicks = [{"visitor_id": "v1", "event_time_ms": at} for at in (5, 30, 20, 40)]
    (tmp_path / "clicks.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, clicks)) + b"\n{broken\n")
    consents = [{"visitor_id": "v2", "user_id": "u", "event_time_ms": 25}]
    (tmp_path / "consents.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, consents)) + b"\n")
    found = [(at, stream, key) for at, stream, key, _ in read_shop(tmp_path)]
    assert found == [
        (5, "clicks", "v1"),
        (25, "consents", "v2"),
        (30, "clicks", "v1"),
        (20, "clicks", "v1"),
        (40, "clicks", "v1"),
        (40, "clicks", "unreadable"),
    ]
    with pytest.raises(BadFile, match="no clicks"):
        list(read_shop(tmp_path / "nowhere"))


def test_what_has_been_said_is_what_the_last_committed_batch_came_to(tmp_path: Path) -> None:
    """A batch says all that is complete at its own end; the engine knows no watermark."""
    checkpoint = tmp_path / "checkpoint"
    for folder in ("commits", "offsets"):
        (checkpoint / folder).mkdir(parents=True)
    assert demo.said_until(checkpoint) == 0
    for batch, watermark in ((0, 5), (9, 500), (10, 900), (11, 2_000)):
        (checkpoint / "offsets" / str(batch)).write_text('v1\n{"batchWatermarkMs":0,"conf":{}}\n{}')
        write_status(tmp_path, batch, ClockStatus(watermark - 1, watermark))
    for batch in (0, 9, 10):
        (checkpoint / "commits" / str(batch)).touch()
    assert demo.said_until(checkpoint) == 900


def test_what_is_seldom_is_compared_with_what_must_be_and_fails_where_it_is_wrong() -> None:
    """Of a small run it may be missing, so each is broken in the tests as all others are."""
    assert {one.check for one in (*LEDGER, *DEMO, *BROKEN)} >= demo.SELDOM == demo.spec.seldom
    # Whether an offer is due, what is nobody's matter of luck says: it may not be missing.
    assert "offers for carts that were left" not in demo.SELDOM

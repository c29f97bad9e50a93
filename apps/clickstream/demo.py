"""The clickstream app's demo: what is sent, what is shown, and what must come out of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from millrace.console.live_panels import AlertLine
from millrace.console.report import Check, equal, same
from millrace.demo import DemoRun, DemoSpec
from millrace.runtime.clock_files import read_status
from millrace.runtime.commands import app_rows
from millrace.testing.world_ledger import ReadLedger, read_world_ledger
from millrace.time import ms
from millrace_apps.clickstream.evaluation.ledger_checks import check_ledger
from millrace_apps.clickstream.evaluation.offer_checks import Consents
from millrace_apps.clickstream.recommend.checks import (
    check_clicks,
    check_read,
    check_recommendations,
    check_stock,
)
from millrace_apps.clickstream.settings import ClickstreamSettings
from millrace_apps.clickstream.state.offers import Offer

#: What the generator sends.
STREAMS: Final = ("clicks", "customers", "consents", "refunds", "erasures", "items")
#: What the generator's currencies are worth.
RATES: Final = Path(__file__).with_name("demo_rates.yaml")
_MINUTE_MS: Final = 60_000
_CART_TIMEOUT_MS: Final = 15 * _MINUTE_MS
_decode_offer = msgspec.json.Decoder(Offer).decode


def settings(run_id: str) -> list[str]:
    """Return settings for the run: topics of its own on a broker that others use."""
    names = ClickstreamSettings().topics
    topics = [name for name in type(names).model_fields if name != "partitions"]
    own = [f"topics.{t}={getattr(names, t)}.demo-{run_id}" for t in topics] if run_id else []
    # Two hours of event time pass in a minute: four minutes are two seconds between topics.
    return [
        *own,
        "stream.out_of_orderness=4m",
        "cart_timeout=15m",
        "recommend.on=true",
        "recommend.control=0.2",
        # Lists reach shoppers minutes of event time after their click.
        "recommend.clicked_within=20m",
        'funnels=[{"name": "purchase"}, {"name": "persons", "of": "persons", "within": "7d"}]',
        f"orders.rates={RATES}",
    ]


def generate(run: DemoRun) -> Sequence[str]:
    """Return the generator's arguments: a minute of clock time is two hours of event time."""
    topics = run.settings.topics
    suffix = topics.offers.removeprefix(ClickstreamSettings().topics.offers)
    arguments: dict[str, object] = {
        "--rate": run.rate,
        "--duration": f"{run.duration_s:g}s",
        "--seed": run.seed,
        "--speed": 120,
        "--people": 2_000,
        "--items": 1_000,
        # Within two hours orders come back and are cancelled, accounts erased, left carts bought.
        "--refunds": 0.3,
        "--refund-after-h": 0.5,
        "--cancellations": 0.2,
        "--foreign": 0.3,
        "--erasures": 40,
        "--bots": 0.08,
        # Some items are sold out at a time, and are not recommended then.
        "--sold-out": 0.1,
        "--recovery": 0.3,
        # Shoppers answer offers; of the two hours there must be time for it.
        "--offer-uplift": 0.3,
        "--offer-answer-min": 10,
        "--list-clicks": 0.3,
        "--list-patience-min": 20,
        "--duplicates": 0.01,
        "--malformed": 0.002,
        "--bootstrap": run.bootstrap,
        "--partitions": topics.partitions,
        "--ledger": run.ledger,
    }
    streams = [part for name in STREAMS for part in ("--topic", f"{name}={getattr(topics, name)}")]
    # On a slow machine shoppers wait for lists: what comes when nobody reads it any more shows nothing.
    loop = ["--loop", "--loop-ahead-min", "8", *(["--loop-suffix", suffix] if suffix else [])]
    return [
        "clickstream",
        "--quiet",
        *loop,
        *(str(part) for pair in arguments.items() for part in pair),
        *streams,
    ]


def offer_line(value: bytes) -> AlertLine:
    """Return what is shown of an offer."""
    offer = _decode_offer(value)
    at = datetime.fromtimestamp(offer.at_ms / 1000, UTC)
    return AlertLine(f"{at:%H:%M:%S}", offer.person, f"{offer.rule}: {offer.offer} ({offer.arm})")


def said_until(checkpoint: Path) -> int:
    """Return up to when everything has been said, UTC ms: the watermark at the end of the last batch."""
    batches = [int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdigit()]
    status = read_status(checkpoint.parent, max(batches)) if batches else None
    return 0 if status is None else status.watermark


def checks(run: DemoRun, ledger: ReadLedger, offer_ids: set[str]) -> list[Check]:
    """Compare the tables with the ledger.

    Args:
        run: The run.
        ledger: What the generator did.
        offer_ids: Identities of the offers seen on the topic.
    """
    rows = partial(app_rows, run.folder)
    end = said_until(run.folder / "checkpoint")
    sent = {row["_event_id"] for row in rows("offers")}
    return [
        *check_ledger(
            rows,
            ledger,
            end_ms=end,
            cart_timeout_ms=_CART_TIMEOUT_MS,
            rules=run.settings.offer_rules(),
            holdout=run.settings.offers.control,
            merges_caps=run.settings.offers.merge_caps,
            listening=True,
        ),
        *check_recommendations(
            rows("recommendations"),
            rows("recommendation_quality"),
            Consents(rows("consents")),
            most=run.settings.recommend.most,
            until_ms=end,
        ),
        *check_clicks(
            rows("recommendations"),
            rows("recommendation_clicks"),
            rows("recommendation_click_through"),
            within_ms=ms(run.settings.recommend.clicked_within),
            until_ms=end,
        ),
        *check_read(
            rows("recommendations"),
            rows("recommendation_clicks"),
            [t for t in ledger.truths if t.kind == "list"],
            Consents(rows("consents")),
            within_ms=ms(run.settings.recommend.clicked_within),
            until_ms=end,
        ),
        *check_stock(rows("recommendations"), [t for t in ledger.truths if t.kind == "item"]),
        equal("nothing that was late", 0, len(rows("late")), of=ledger.summary.sent),
        same("offers on the topic = rows in offers", sent, offer_ids),
    ]


#: What few do: are offered something above a cap, buy because of an offer, read lists, or are slow and no
#: people. Where the app is slower than the shoppers, none of them hears anything.
SELDOM: Final = frozenset(
    {
        "offers above caps and cool-downs",
        "purchases after an offer",
        "purchases after a login",
        "outcomes of another offer, order or time",
        "purchases by who was shown nothing",
        "purchases that offers brought about",
        "slow bots",
        "offers that shoppers have heard of",
        "clicks that shoppers made on lists",
        "click-through of lists that were read",
        "clicks that recommending adds: discover",
        "clicks that recommending adds: resume",
    }
)

spec = DemoSpec(
    seldom=SELDOM,
    simulated=True,
    # Shoppers hear offers and lists: they begin when somebody makes these, also where that takes minutes.
    answers=True,
    settings=settings,
    generate=generate,
    alert_topic=lambda settings: settings.topics.offers,
    alert_line=offer_line,
    checks=checks,
    read_ledger=read_world_ledger,
    sent=lambda ledger: ledger.summary.sent,
)

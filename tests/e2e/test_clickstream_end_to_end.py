"""The clickstream app on a real broker and Delta, compared with the same processes in memory."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.checkpoints.checkpoint import Checkpoint
from millrace.checkpoints.committed import CommittedState
from millrace.runtime.settings import load_settings
from millrace.testing.kafka import Record, TopicFactory, consume_all, produce
from millrace_apps.clickstream.operations.forget import (
    Subject,
    delete_rows,
    left_rows,
    requests,
    subject_of,
    wait_for_audit,
)
from millrace_apps.clickstream.processes.funnels import PURCHASE, Funnel
from millrace_apps.clickstream.recommend.process import Recommending
from millrace_apps.clickstream.settings import ClickstreamSettings
from millrace_apps.clickstream.state.browser_state import VisitorRules
from millrace_apps.generators.engine.simulated import Simulated
from tests.e2e.fraud_runs import MILLRACE, Command, committed_batches, table
from tests.unit.apps.clickstream.app_cases import HOUR, START, Run, as_read, click, run_app, world

EVENTS = 1_500
STREAMS = ("clicks", "customers", "consents", "refunds", "erasures")
#: Table → the output in memory, and the key of its rows where they replace each other.
TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "sessions": ("VisitorsInOrder.sessions", ("session_id",)),
    "funnels": ("VisitorsInOrder.funnels", ("funnel", "session_id")),
    "identities": ("VisitorsInOrder.identities", ("visitor_id",)),
    "owner_changes": ("VisitorsInOrder.owner_changes", ("visitor_id", "from_ms")),
    "consents": ("VisitorsInOrder.consents", ("visitor_id", "consent_id")),
    "abandonments": ("Entities.abandonments", ()),
    "profiles": ("Entities.profiles", ("person",)),
    "person_funnels": ("Entities.person_funnels", ("funnel", "person", "way")),
    "items": ("Entities.items", ("item_id",)),
    "offers": ("offers", ()),
    "outcomes": ("outcomes", ()),
    "boards": ("boards", ("board", "window_end_ms", "rank")),
    "attributions": ("orders", ("order_id",)),
    "orders": ("Entities.order_rows", ("order_id",)),
    "revenue": ("revenue", ("day", "currency")),
    "recommendations": ("Recommender.main", ()),
    "recommendation_quality": ("Recommender.quality", ()),
    "recommendation_clicks": ("Recommender.clicks", ()),
    "recommendation_click_through": ("Recommender.click_through", ()),
}


class Shop:
    """A run of the app with topics of its own.

    Args:
        bootstrap: The broker.
        make: Makes topics.
        folder: An empty folder.
        more: Further settings, which win over those of before.
    """

    def __init__(self, bootstrap: str, make: TopicFactory, folder: Path, more: Sequence[str] = ()) -> None:
        self.more = more
        self.bootstrap = bootstrap
        self.root = folder / "app"
        names = ClickstreamSettings().topics
        self.topics = {
            name: make(1, prefix=f"click-{name}", config={"retention.ms": "-1"})
            for name in type(names).model_fields
            if name != "partitions"
        }
        self.sent: tuple[Simulated, ...] = ()

    def send(self, simulated: tuple[Simulated, ...]) -> None:
        """Send events, every 50th click twice, and two records that nobody can read."""
        by_topic: dict[str, list[Record]] = defaultdict(list)
        for n, one in enumerate(simulated):
            raw = msgspec.json.encode(one.event)
            record = Record(raw, one.key.encode(), timestamp_ms=one.event_time_ms)
            by_topic[one.stream] += [record] * (2 if n % 50 == 0 and one.stream == "clicks" else 1)
        by_topic["clicks"] += [Record(b'{"event_id":', b"v", timestamp_ms=simulated[-1].event_time_ms)]
        by_topic["refunds"] += [Record(b"{}", b"v", timestamp_ms=simulated[-1].event_time_ms)]
        for stream, records in by_topic.items():
            produce(self.bootstrap, self.topics[stream], records)
        self.sent = simulated

    @property
    def sets(self) -> list[str]:
        return [
            f"storage.root={self.root}",
            f"kafka.bootstrap={self.bootstrap}",
            "spark.quick_start=true",
            "spark.key_groups=8",
            "stream.out_of_orderness=30 days",
            "stream.max_offsets_per_trigger=700",
            "visitors.in_order=true",
            "recommend.on=true",
            'funnels=[{"name": "purchase"}, {"name": "persons", "of": "persons", "within": "7d"}]',
            *(f"topics.{name}={topic}" for name, topic in self.topics.items()),
            *self.more,
        ]

    @property
    def arguments(self) -> list[str]:
        return ["clickstream", "--master", "local[2]", *(f"--set={item}" for item in self.sets)]

    def run(self, *options: str) -> None:
        with Command(
            [*MILLRACE, "run", "--until-end", *options, *self.arguments], self.root.parent
        ) as command:
            assert command.wait() == 0, f"{command.out}\n{command.err}"
            command.check_nothing_left()


def bare(row: dict[str, Any]) -> bytes:
    """A row without what says how it was written."""
    kept = {}
    for name, value in row.items():
        if name != "revision" and not name.startswith("_"):
            is_map = name == "why" and "surface" not in row and not isinstance(value, str)
            kept[name] = dict(value) if is_map else value
    return msgspec.json.encode(kept, order="deterministic")


def check_tables(shop: Shop, expected: Run) -> None:
    for name, (output, key) in TABLES.items():
        rows = expected.table(output, *key) if key else expected.rows(output)
        found, wanted = Counter(map(bare, table(shop.root, name))), Counter(map(bare, rows))
        assert wanted, name
        assert (name, found - wanted, wanted - found) == (name, Counter(), Counter())


def reference() -> Run:
    ways = (Funnel("persons", PURCHASE.steps, 7 * 86_400_000),)
    rules = VisitorRules(in_order=True, recommends=True, ways=ways)
    return run_app(
        as_read(world(EVENTS)), bound_ms=30 * 86_400_000, visitor_rules=rules, recommending=Recommending()
    )


def test_the_tables_are_those_of_the_processes_in_memory_and_bad_records_are_put_aside(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    shop = Shop(kafka_bootstrap, topic_factory, tmp_path)
    shop.send(world(EVENTS))
    shop.run()
    check_tables(shop, reference())
    letters = table(shop.root, "dead_letters")
    repeats = sum(n % 50 == 0 and one.stream == "clicks" for n, one in enumerate(shop.sent))
    reasons = Counter(row["reason"] for row in letters)
    assert reasons.pop("duplicate") == repeats
    assert reasons.total() == 2
    assert reasons.keys() <= {"malformed", "schema"}
    lists = consume_all(kafka_bootstrap, shop.topics["recommendations"])
    assert len(lists) == len(table(shop.root, "recommendations"))
    offers = consume_all(kafka_bootstrap, shop.topics["offers"])
    ids = [row["offer_id"] for row in table(shop.root, "offers")]
    assert Counter(msgspec.json.decode(m.value() or b"{}")["offer_id"] for m in offers) == Counter(ids)


@pytest.mark.matrix
@pytest.mark.parametrize(("point", "batch"), [("state", 1), ("topics", 2), ("table", 2), ("tables", 1)])
def test_a_run_that_is_killed_goes_on_to_the_same_tables(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path, point: str, batch: int
) -> None:
    shop = Shop(kafka_bootstrap, topic_factory, tmp_path)
    shop.send(world(EVENTS))
    script = [sys.executable, "-m", "tests.crash.killed_run", point, str(batch), *shop.arguments]
    with Command(script, shop.root.parent) as command:
        assert command.wait() == -9, f"{command.out}\n{command.err}"
        command.until_gone()
    assert committed_batches(shop.root)[-1:] == [batch - 1]
    shop.run()
    check_tables(shop, reference())


def entries_naming(shop: Shop, subject: Subject) -> Counter[str]:
    """How many keys of each process keep one of the names of somebody, but as the key itself."""
    state = CommittedState(Checkpoint(shop.root, shop.root / "checkpoint"))
    names = [name.encode() for _, name in subject.asked()]
    found: Counter[str] = Counter()
    for stage in state.stages:
        for _, _, group in state.groups(stage.process):
            for _, cells, _ in group.cells():
                bodies = (bytes(cell.body) for cell in cells.values())
                found[stage.process] += sum(any(name in body for name in names) for body in bodies)
    return +found


@pytest.mark.matrix
def test_a_person_who_asks_to_be_forgotten_is_in_no_state_and_no_table(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    # What waits for its time has names: so time is at most a minute behind.
    more = ("visitors.in_order=false", "stream.out_of_orderness=1 min")
    shop = Shop(kafka_bootstrap, topic_factory, tmp_path, more)
    shop.send(world(EVENTS))
    shop.run("--no-drain")
    settings = load_settings(ClickstreamSettings, app="clickstream", overrides=shop.sets)
    people = sorted({s.event.user_id for s in shop.sent if s.stream == "customers"})
    # Somebody of whom there is something to forget.
    subject = max((subject_of(settings, one) for one in people), key=lambda s: (bool(s.carts), s.visitors))
    assert subject.visitors
    assert sum(left_rows(settings, subject).values()) > 3
    assert {"Entities", "Visitors"} <= set(entries_naming(shop, subject))
    asked = requests(subject, "request-1", shop.sent[-1].event_time_ms)
    records = [Record(msgspec.json.encode(one), one.subject.encode()) for one in asked]
    produce(kafka_bootstrap, shop.topics["forget"], records)
    # Somebody else goes on, and time with them.
    later = click(asked[0].event_time_ms - START + HOUR, visitor="somebody-else")
    record = Record(msgspec.json.encode(later), b"somebody-else", timestamp_ms=later.event_time_ms)
    produce(kafka_bootstrap, shop.topics["clicks"], [record])
    shop.run("--no-drain")
    assert wait_for_audit(settings, "request-1", subject) == []
    assert entries_naming(shop, subject) == Counter()
    delete_rows(settings, subject)
    assert not any(left_rows(settings, subject).values())

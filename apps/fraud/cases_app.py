"""The case work as a streaming app of its own: alerts and dispositions in, cases, queue and labels out.

It is a query beside the decisions, not a part of them: analysts may be slow, decisions may not, and
either can be stopped, upgraded and restored without the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from pydantic import Field

from apps.fraud.cases import CaseBook, CaseRules
from apps.fraud.cases_events import AlertSeen, Case, CaseLabel, Disposition
from apps.fraud.cases_queue import ReviewQueue
from millrace.runtime.apps import App, Topic, Topics
from millrace.runtime.settings import AppSettings, Duration, Section
from millrace.time.durations import to_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.connectors.router import Outputs
    from millrace.host.spark import KeyedStream, ProcessedStream

#: Name of the app: its section of the settings file, and its default folder.
NAME = "fraud-cases"


class CaseTopics(Section):
    """Names of the topics of the case work."""

    alerts: str = "fraud.alerts"
    dispositions: str = "fraud.dispositions"
    control: str = "fraud.cases.control"
    labels: str = "fraud.labels"
    dead_letters: str = "fraud.cases.dead-letters"
    partitions: int = Field(default=2, ge=1, le=10_000, description="of topics that do not exist yet")


class CaseSettings(Section):
    """How alerts become cases, and how many can be looked at."""

    capacity: int = Field(default=100, ge=1, le=100_000, description="cases that can be looked at on a day")
    most_waiting: int = Field(default=5_000, ge=1, le=100_000, description="most open cases")
    gap: Duration = Field(default=timedelta(hours=24), description="alerts closer than this are one case")
    open_for: Duration = Field(default=timedelta(days=7), description="a case that nobody took expires")
    followed: Duration = Field(
        default=timedelta(days=7), description="alerts go to a case found to be fraud for this long"
    )
    kept: Duration = Field(default=timedelta(days=30), description="a verdict can be replaced for this long")
    exposure: float = Field(
        default=250.0,
        ge=0,
        description="what a card in foreign hands is still going to lose",
    )

    def rules(self) -> CaseRules:
        """Return these settings as the case book takes them."""
        return CaseRules(
            gap_ms=to_ms(self.gap),
            open_for_ms=to_ms(self.open_for),
            followed_ms=to_ms(self.followed),
            kept_ms=to_ms(self.kept),
            exposure=self.exposure,
        )


class FraudCasesSettings(AppSettings):
    """What the case work can be told."""

    topics: CaseTopics = CaseTopics()
    cases: CaseSettings = CaseSettings()


def topics(settings: FraudCasesSettings) -> Topics:
    """Return the topics that the case work reads and writes."""
    names, partitions = settings.topics, settings.topics.partitions
    return Topics(
        reads=(
            Topic(names.alerts, partitions, event_time="event_time_ms"),
            Topic(names.dispositions, partitions, event_time="at_ms"),
            Topic(names.control, 1),
        ),
        writes=(Topic(names.labels, partitions), Topic(names.dead_letters, 1)),
        control=names.control,
    )


def build(streams: Mapping[str, DataFrame], settings: FraudCasesSettings) -> Outputs:
    """Wire the case work; nothing starts here.

    Args:
        streams: ``events``: Kafka records of the alerts, dispositions and control topics.
        settings: The settings.

    Returns:
        Tables ``cases`` and ``queue`` (a row per case), ``case_labels``, ``queue_days``,
        ``dead_letters`` and ``queue_dead_letters``; topics for labels and dead letters.
    """
    from pyspark.sql import functions as F

    from millrace import connect, keyed

    events, stream, names = streams["events"], settings.stream, settings.topics
    topic = F.col("topic")
    is_disposition = topic == names.dispositions

    def of(rows: DataFrame, event_time: str) -> KeyedStream:
        return keyed(
            rows,
            value="value",
            by="card_id",
            event_time=event_time,
            out_of_orderness=stream.out_of_orderness,
            source_id="source_id",
            control=topic == names.control,
            arrived_at="timestamp",
            max_future_skew=stream.max_future_skew,
            key_groups=settings.spark.key_groups,
        )

    cases = connect(
        alerts=of(events.filter(~is_disposition), "event_time_ms"),
        dispositions=of(events.filter(is_disposition), "at_ms"),
    ).process(CaseBook(settings.cases.rules()))
    queue = cases.key_by("queue").process(
        ReviewQueue(settings.cases.capacity, most_waiting=settings.cases.most_waiting)
    )
    return outputs(queue, settings)


def outputs(stream: ProcessedStream, settings: FraudCasesSettings) -> Outputs:
    """Return where the outputs of the chain go.

    Args:
        stream: The processed stream.
        settings: The settings.
    """
    from millrace.connectors.router import Outputs, Upsert

    names = settings.topics
    return Outputs(
        stream=stream,
        tables={
            "main": Upsert("queue", key=("case_id",), newest="revision"),
            "days": "queue_days",
            "CaseBook.book": Upsert("cases", key=("case_id",), newest="revision"),
            "CaseBook.labels": "case_labels",
            "CaseBook.dead_letters": "dead_letters",
            "dead_letters": "queue_dead_letters",
        },
        topics={"CaseBook.labels": names.labels, "CaseBook.dead_letters": names.dead_letters},
    )


app = App(
    name=NAME,
    summary="Alerts of a card become a case; the day's queue ranks them; dispositions become labels.",
    settings=FraudCasesSettings,
    build=build,
    topics=topics,
    contracts={"alert.v1": AlertSeen, "disposition.v1": Disposition, "case.v1": Case, "label.v1": CaseLabel},
)

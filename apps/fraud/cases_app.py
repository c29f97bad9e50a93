"""The case work as a streaming app of its own: alerts and dispositions in, cases, queue and labels out.

It is a query beside the decisions, not a part of them: analysts may be slow, decisions may not, and
either can be stopped, upgraded and restored without the other.
"""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from apps.fraud.cases import CaseBook, CaseRules
from apps.fraud.cases_events import AlertSeen, Case, CaseLabel, Disposition
from apps.fraud.cases_queue import ReviewQueue
from millrace.runtime.apps import App, Topic, Topics
from millrace.runtime.settings import AppSettings, Duration, Section
from millrace.time.durations import to_ms
from millrace.topology import Input, Topology, Upsert, read

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


def processes(book: CaseBook, queue: ReviewQueue, topics: CaseTopics) -> Topology:
    """Return the processes of the case work as they are wired, without what is written.

    Args:
        book: Makes cases of alerts.
        queue: Ranks them.
        topics: Names of the topics.
    """
    inputs = {
        "alerts": Input(topics.alerts, "card_id"),
        "dispositions": Input(topics.dispositions, "card_id", "at_ms"),
    }
    return read(inputs, control=topics.control).process(book).key_by("queue").process(queue)


def topology(settings: FraudCasesSettings) -> Topology:
    """Return the topology of the case work.

    Args:
        settings: The settings.

    Returns:
        Tables ``cases`` and ``queue`` (a row per case), ``case_labels``, ``queue_days``,
        ``dead_letters`` and ``queue_dead_letters``; topics for labels and dead letters.
    """
    names, rules = settings.topics, settings.cases.rules()
    queue = ReviewQueue(settings.cases.capacity, most_waiting=settings.cases.most_waiting)
    return processes(CaseBook(rules), queue, names).write(
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
    topology=topology,
    topics=topics,
    contracts={"alert.v1": AlertSeen, "disposition.v1": Disposition, "case.v1": Case, "label.v1": CaseLabel},
)

"""The case work as a streaming app of its own: alerts and what people say in, cases and what follows out.

It is a query beside the decisions, not a part of them: analysts may be slow, decisions may not, and
either can be stopped, upgraded and restored without the other.
"""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from pydantic import Field, model_validator

from millrace.errors import UserError
from millrace.runtime.apps import App, Topic, Topics
from millrace.runtime.settings import AppSettings, Duration, Section
from millrace.time.durations import to_ms
from millrace.topology import FirstOf, Input, Topology, Upsert, read
from millrace_apps.fraud.cases.book import CaseBook
from millrace_apps.fraud.cases.events import AlertSeen, Case, CaseAct, CaseLabel, Disposition
from millrace_apps.fraud.cases.queue import ReviewQueue
from millrace_apps.fraud.cases.rules import CaseRules, QueueRule
from millrace_apps.fraud.contracts.events import Control

#: Name of the app: its section of the settings file, and its default folder.
NAME = "fraud-cases"
#: Its folder below that of the decisions.
FOLDER = "cases"


class CaseTopics(Section):
    """Names of the topics of the case work."""

    alerts: str = "fraud.alerts"
    dispositions: str = "fraud.dispositions"
    acts: str = "fraud.case-acts"
    control: str = "fraud.cases.control"
    labels: str = "fraud.labels"
    decisions: str = Field(
        default="fraud.control", description="control topic of the decisions: cards are blocked by it"
    )
    dead_letters: str = "fraud.cases.dead-letters"
    partitions: int = Field(default=2, ge=1, le=10_000, description="of topics that do not exist yet")


class QueueSettings(Section):
    """A queue beside the one for all."""

    name: str = Field(description="its name")
    when: str = Field(
        description="which cases it takes, by the alert that opens them: amount, score, action, country, "
        "customer, ring, reason('CODE'), e.g. country in ('FR', 'IT') and amount > 500"
    )
    capacity: int = Field(default=100, ge=1, le=100_000, description="cases that can be looked at on a day")


class CaseSettings(Section):
    """How alerts become cases, and how many can be looked at."""

    capacity: int = Field(default=100, ge=1, le=100_000, description="cases that can be looked at on a day")
    most_waiting: int = Field(default=5_000, ge=1, le=100_000, description="most open cases")
    gap: Duration = Field(default=timedelta(hours=24), description="alerts closer than this are one case")
    open_for: Duration = Field(default=timedelta(days=7), description="a case that nobody took expires")
    followed: Duration = Field(
        default=timedelta(days=7),
        description="an alert so long after its card was found to be in foreign hands follows that case",
    )
    kept: Duration = Field(default=timedelta(days=30), description="a verdict can be replaced for this long")
    exposure: float = Field(
        default=250.0,
        ge=0,
        description="what a card in foreign hands is still going to lose",
    )
    queues: list[QueueSettings] = Field(
        default_factory=list,
        description="queues beside the one for all; a case is in the first that takes it",
    )
    quiet: Duration = Field(
        default=timedelta(days=3),
        description="after genuine, alerts of the same pattern (no other reason, no larger amount) open no "
        "case for so long; 0 s: they do",
    )
    block: bool = Field(default=True, description="whether fraud blocks the card")
    block_for: Duration = Field(default=timedelta(days=30), description="how long it is blocked")
    rings: bool = Field(
        default=True,
        description="whether alerts that say that several cards are used together are one case of all of "
        "them; else each goes to its card's",
    )
    most_ring_alerts: int = Field(
        default=200, ge=1, le=1_000, description="alerts of one case of a ring; the next opens another"
    )
    block_rings: bool = Field(
        default=False,
        description="whether fraud blocks what the cards of a ring have in common, too: its device, terminal",
    )
    verified_for: Duration = Field(
        default=timedelta(hours=24), description="how long payments pass that the holder stands by"
    )
    claim_for: Duration = Field(
        default=timedelta(hours=4), description="how long a case belongs to who claimed it"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> CaseSettings:
        try:
            self.rules()
        except UserError as error:
            raise ValueError(str(error)) from None
        return self

    def rules(self) -> CaseRules:
        """Return these settings as the case book takes them."""
        return CaseRules(
            gap_ms=to_ms(self.gap),
            open_for_ms=to_ms(self.open_for),
            followed_ms=to_ms(self.followed),
            kept_ms=to_ms(self.kept),
            exposure=self.exposure,
            quiet_ms=to_ms(self.quiet),
            block_ms=to_ms(self.block_for) if self.block else 0,
            verified_ms=to_ms(self.verified_for),
            claim_ms=to_ms(self.claim_for),
            rings=self.rings,
            most_ring_alerts=self.most_ring_alerts,
            block_rings=self.block_rings,
            queues=tuple(QueueRule(q.name, q.when, q.capacity) for q in self.queues),
        )


class FraudCasesSettings(AppSettings):
    """What the case work can be told."""

    #: Below the folder of the decisions: `millrace fraud cases` and the page look there.
    DEFAULT_ROOT: ClassVar[str] = f".millrace/fraud/{FOLDER}"

    topics: CaseTopics = CaseTopics()
    cases: CaseSettings = CaseSettings()


def topics(settings: FraudCasesSettings) -> Topics:
    """Return the topics that the case work reads and writes."""
    names, partitions = settings.topics, settings.topics.partitions
    return Topics(
        reads=(
            Topic(names.alerts, partitions, event_time="event_time_ms"),
            Topic(names.dispositions, partitions, event_time="at_ms"),
            Topic(names.acts, partitions, event_time="at_ms"),
            Topic(names.control, 1),
        ),
        writes=(Topic(names.labels, partitions), Topic(names.decisions, 1), Topic(names.dead_letters, 1)),
        control=names.control,
    )


def processes(book: CaseBook, queue: ReviewQueue, topics: CaseTopics) -> Topology:
    """Return the processes of the case work as they are wired, without what is written.

    Args:
        book: Makes cases of alerts.
        queue: Ranks them.
        topics: Names of the topics.
    """
    subject = FirstOf(("ring", "card_id"))
    inputs = {
        "alerts": Input(topics.alerts, subject if book.rules.rings else "card_id"),
        "dispositions": Input(topics.dispositions, subject, "at_ms"),
        "acts": Input(topics.acts, subject, "at_ms"),
    }
    return read(inputs, control=topics.control).process(book).key_by("queue").process(queue)


def topology(settings: FraudCasesSettings) -> Topology:
    """Return the topology of the case work.

    Args:
        settings: The settings.

    Returns:
        Tables ``cases`` and ``queue`` (a row per case), ``case_labels``, ``queue_days``, ``service_days``,
        ``dead_letters`` and ``queue_dead_letters``; topics for labels, control events of the decisions and
        dead letters.
    """
    names, rules = settings.topics, settings.cases.rules()
    queue = ReviewQueue(
        settings.cases.capacity,
        capacities=rules.capacities(),
        most_waiting=settings.cases.most_waiting,
        kept_ms=rules.kept_ms,
    )
    return processes(CaseBook(rules), queue, names).write(
        tables={
            "main": Upsert("queue", key=("case_id",), newest="revision"),
            "days": "queue_days",
            "service": "service_days",
            "CaseBook.book": Upsert("cases", key=("case_id",), newest="revision"),
            "CaseBook.labels": "case_labels",
            "CaseBook.dead_letters": "dead_letters",
            "dead_letters": "queue_dead_letters",
        },
        topics={
            "CaseBook.labels": names.labels,
            "CaseBook.control": names.decisions,
            "CaseBook.dead_letters": names.dead_letters,
        },
    )


app = App(
    name=NAME,
    summary="Alerts of a card, or of a ring, become a case; the day's queue ranks them; verdicts are labels.",
    settings=FraudCasesSettings,
    topology=topology,
    topics=topics,
    contracts={
        "alert.v2": AlertSeen,
        "disposition.v1": Disposition,
        "case-act.v1": CaseAct,
        "case.v1": Case,
        "label.v1": CaseLabel,
        "control.v4": Control,
    },
)

"""Settings of the aggregates app beside those that every app has."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from millrace.runtime.settings import AppSettings, Duration, Section


class AggregateTopics(Section):
    """Names of the topics."""

    control: str = "aggregates.control"
    results: str = "aggregates.results"
    dead_letters: str = "aggregates.dead-letters"
    partitions: int = Field(default=2, ge=1, le=10_000, description="of topics that do not exist yet")


class AggregateSettings(AppSettings):
    """What the app can be told."""

    sources: str = Field(
        default="fraud.transactions",
        description="topics whose events may be aggregated, of any installed app, with commas. Part of the "
        "checkpoint",
    )
    identities: str = Field(
        default="event_id,label_id,authorisation_id,refund_id,consent_id,change_id,error_id,maintenance_id,"
        "status_id,heartbeat_id,action_id,count_id,reading_id,transaction_id",
        description="fields that say which event one is, with commas; of each topic the first that its "
        "events have",
    )
    repeats_within: Duration = Field(
        default=timedelta(minutes=15),
        description="for how long (event time) an event that comes again counts once. Part of the checkpoint",
    )
    topics: AggregateTopics = AggregateTopics()

"""Settings of the fraud app beside those that every app has."""

from __future__ import annotations

from pydantic import Field

from millrace.runtime.settings import AppSettings, Section


class FraudTopics(Section):
    """Names of the app's Kafka topics, and their partitions where the app creates them."""

    transactions: str = "fraud.transactions"
    control: str = "fraud.control"
    alerts: str = "fraud.alerts"
    dead_letters: str = "fraud.dead-letters"
    partitions: int = Field(default=2, ge=1, le=10_000, description="of topics that do not exist yet")


class FraudSettings(AppSettings):
    """What the fraud app can be told."""

    topics: FraudTopics = FraudTopics()

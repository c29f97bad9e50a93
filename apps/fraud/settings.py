"""Settings of the fraud app beside those that every app has."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from pydantic import Field, field_validator

from apps.fraud.known_labels import LabelRules
from millrace.runtime.settings import AppSettings, Duration, Section
from millrace.time.durations import to_ms


class FraudTopics(Section):
    """Names of the app's Kafka topics, and their partitions where the app creates them."""

    transactions: str = "fraud.transactions"
    labels: str = "fraud.labels"
    control: str = "fraud.control"
    alerts: str = "fraud.alerts"
    dead_letters: str = "fraud.dead-letters"
    partitions: int = Field(default=2, ge=1, le=10_000, description="of topics that do not exist yet")


class FeatureSettings(Section):
    """What is kept of whom."""

    entities: str = Field(
        default="",
        description="entities with a stage of their own beside the card's, with commas, in this order: "
        "account, terminal, device, ip; part of the checkpoint. Each adds a shuffle",
    )

    @field_validator("entities")
    @classmethod
    def _known(cls, value: str) -> str:
        named = names_of(value)
        known = ("account", "terminal", "device", "ip")
        if set(named) - set(known) or len(set(named)) < len(named):
            raise ValueError(f"name each of {', '.join(known)} at most once")
        return ",".join(named)

    @property
    def stages(self) -> list[str]:
        """The entities with a stage of their own."""
        return names_of(self.entities)


class LabelSettings(Section):
    """How the terminal's stage reads labels."""

    delay: Duration = Field(
        default=timedelta(days=7),
        description="how far behind the present the windows of known frauds end",
    )
    silence_is_genuine: bool = Field(
        default=True,
        description="what nobody has spoken of within that time is taken for genuine, since only frauds and "
        "disputes are reported",
    )

    @field_validator("delay")
    @classmethod
    def _bounded(cls, value: timedelta) -> timedelta:
        if not timedelta(0) < value <= timedelta(days=45):
            raise ValueError("more than 0 and at most 45 days")
        return value

    def rules(self) -> LabelRules:
        """Return these settings as the stages take them."""
        return LabelRules(to_ms(self.delay), self.silence_is_genuine)


class ModelSettings(Section):
    """Which models are asked."""

    registry: str = Field(
        default="",
        description="MLflow registry, e.g. sqlite:///models/registry.db: its champion decides along with the "
        "rules, its challenger is recorded; part of the checkpoint. Without it: rules only",
    )
    name: str = Field(default="fraud", description="name of the registered model")
    measure: bool = Field(
        default=False,
        description="judge the scores by the labels that come later: the table model_metrics; part of the "
        "checkpoint. Adds a shuffle",
    )


class PrivacySettings(Section):
    """How card numbers are kept out of tables, topics, dead letters and logs."""

    token_key_file: Path | None = Field(
        default=None,
        description="file with the key (32 bytes or more) by which card numbers become tokens before "
        "anything is kept; without it identifiers are taken to be tokens already",
    )


def names_of(value: str) -> list[str]:
    """Return the names in a text with commas.

    >>> names_of(" terminal, device,")
    ['terminal', 'device']
    """
    return [name.strip() for name in value.split(",") if name.strip()]


class FraudSettings(AppSettings):
    """What the fraud app can be told."""

    topics: FraudTopics = FraudTopics()
    features: FeatureSettings = FeatureSettings()
    labels: LabelSettings = LabelSettings()
    model: ModelSettings = ModelSettings()
    privacy: PrivacySettings = PrivacySettings()

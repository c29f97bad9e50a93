"""Settings of the fraud app beside those that every app has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Final, Literal

from pydantic import Field, field_validator, model_validator

from millrace.runtime.settings import AppSettings, Duration, Section
from millrace.time.durations import to_ms
from millrace_apps.fraud.operations.governance import BY_DEFAULT, COVERED, Governance
from millrace_apps.fraud.processes.control_group import ControlGroup
from millrace_apps.fraud.state.known_labels import LabelRules


class FraudTopics(Section):
    """Names of the app's Kafka topics, and their partitions where the app creates them."""

    transactions: str = "fraud.transactions"
    labels: str = "fraud.labels"
    authorisations: str = "fraud.authorisations"
    control: str = "fraud.control"
    erasures: str = "fraud.erasures"
    alerts: str = "fraud.alerts"
    dead_letters: str = "fraud.dead-letters"
    partitions: int = Field(default=2, ge=1, le=10_000, description="of topics that do not exist yet")


#: Entities → the name of their stage.
ENTITY_STAGES: Final = {
    "account": "AccountMonitor",
    "terminal": "TerminalMonitor",
    "device": "DeviceMonitor",
    "ip": "AddressMonitor",
    "customer": "CustomerMonitor",
    "merchant": "MerchantMonitor",
}
#: Those that a new checkpoint of a station has unless it is told.
USUAL_ENTITIES: Final = ("account", "terminal", "device", "ip")


class FeatureSettings(Section):
    """What is kept of whom."""

    entities: str = Field(
        default="auto",
        description="entities with a stage of their own beside the card's, with commas, in this order: "
        "account, terminal, device, ip, customer, merchant; none. auto: those of the checkpoint; a new one "
        "has the first four as a station, and none as a chain, where each adds a shuffle. Part of the "
        "checkpoint",
    )

    half_life: Duration = Field(
        default=timedelta(days=30),
        description="whole days after which a purchase counts half as much in what is usual for its card; "
        "it counts for three to four of them. Another one makes what was bought before one lot of that day",
    )

    @field_validator("half_life")
    @classmethod
    def _whole_days(cls, value: timedelta) -> timedelta:
        if value % timedelta(days=1) or not timedelta(0) < value <= timedelta(days=60):
            raise ValueError("whole days, 1 to 60")
        return value

    @field_validator("entities")
    @classmethod
    def _known(cls, value: str) -> str:
        named = names_of(value)
        if named in (["auto"], ["none"]):
            return named[0]
        if set(named) - set(ENTITY_STAGES) or len(set(named)) < len(named):
            raise ValueError(f"name each of {', '.join(ENTITY_STAGES)} at most once, or auto, or none")
        return ",".join(named) or "none"

    @property
    def stages(self) -> list[str]:
        """The entities with a stage of their own; none as long as it is not settled."""
        return [] if self.entities in ("auto", "none") else names_of(self.entities)

    def settled(self, plan: Literal["station", "chain"], links: Sequence[str] | None) -> FeatureSettings:
        """Return these settings with the entities named.

        Args:
            plan: How the topology runs.
            links: The links of the checkpoint; ``None``: there is none.

        >>> FeatureSettings().settled("station", None).entities
        'account,terminal,device,ip'
        >>> FeatureSettings().settled("station", ["CardMonitor", "DeviceMonitor", "DecisionDesk"]).entities
        'device'
        """
        if self.entities != "auto":
            return self
        if links is None:
            named = list(USUAL_ENTITIES) if plan == "station" else []
        else:
            named = [entity for link in links for entity, stage in ENTITY_STAGES.items() if stage == link]
        return self.model_copy(update={"entities": ",".join(named) or "none"})


class LabelSettings(Section):
    """How the terminal's stage reads labels."""

    FORMER: ClassVar[Mapping[str, str]] = {"silence_is_genuine": "unlabelled_is_genuine"}

    delay: Duration = Field(
        default=timedelta(days=7),
        description="how far behind the present the windows of known frauds end",
    )
    unlabelled_is_genuine: bool = Field(
        default=True,
        description="what passed and nobody has spoken of is taken for genuine, since only frauds and "
        "disputes are reported",
    )
    maturity_chargeback: Duration | None = Field(
        default=None,
        description="how long the holders of cards take to complain: silence says nothing before, and the "
        "scores of a day are judged after it; default: labels.delay",
    )

    high_ratio: float = Field(
        default=2.5,
        ge=1,
        le=1_000,
        description="a purchase is high from above so many medians of its card on, unless it is usual at its "
        "terminal: a known fraud of a high amount says that a card was stolen, and makes no run there",
    )
    high_amount: float | None = Field(
        default=None,
        gt=0,
        description="from above this amount on a purchase is high in any case; in the Handbook's world 220",
    )

    @field_validator("delay", "maturity_chargeback")
    @classmethod
    def _bounded(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and not timedelta(0) < value <= timedelta(days=45):
            raise ValueError("more than 0 and at most 45 days")
        return value

    def rules(self) -> LabelRules:
        """Return these settings as the stages take them."""
        mature = self.maturity_chargeback
        return LabelRules(
            to_ms(self.delay),
            self.unlabelled_is_genuine,
            0 if mature is None else to_ms(mature),
            self.high_ratio,
            self.high_amount,
        )


class DecisionSettings(Section):
    """What is done with decisions."""

    control_share: float = Field(
        default=0.0,
        ge=0,
        le=0.2,
        description="share of the payments that would be blocked which are let through by chance, so that it "
        "comes out what they were: column control_group. Never for what the list blocked blocks",
    )
    control_action: Literal["approve", "review"] = Field(
        default="approve",
        description="what is done with them: approve, without an alert; review, with one",
    )

    def control(self) -> ControlGroup | None:
        """Return the control group; None: there is none."""
        return ControlGroup(self.control_share, self.control_action) if self.control_share else None


class ModelSettings(Section):
    """Which models are asked."""

    registry: str = Field(
        default="",
        description="MLflow registry, e.g. sqlite:///models/registry.db: its champion decides along with the "
        "rules, its challenger is recorded; part of the checkpoint. Without it and model.exports: rules only",
    )
    exports: str = Field(
        default="",
        description="folder of the exported models, which all workers must see under this path; default: the "
        "folder exported beside a registry in SQLite, or models/exported under storage.root",
    )
    name: str = Field(default="fraud", description="name of the registered model")
    measure: bool = Field(
        default=False,
        description="judge the scores by the labels that come later: the table model_metrics; part of the "
        "checkpoint. Adds a shuffle",
    )


class GovernanceSettings(Section):
    """Who must agree with what."""

    two_person: str = Field(
        default=",".join(BY_DEFAULT),
        description="what a second person must agree with, with commas: block_rules, approve_rules, "
        "thresholds (to where more passes), allowed (entries on it), unblock (off the list blocked, or "
        "earlier), blocked (entries on it); none. The stream refuses what lacks one",
    )

    @field_validator("two_person")
    @classmethod
    def _covered(cls, value: str) -> str:
        named = names_of(value)
        if named == ["none"]:
            return "none"
        if set(named) - set(COVERED) or len(set(named)) < len(named):
            raise ValueError(f"name each of {', '.join(COVERED)} at most once, or none")
        return ",".join(named) or "none"

    def law(self) -> Governance:
        """Return these settings as the stages take them."""
        named = [] if self.two_person == "none" else names_of(self.two_person)
        return Governance(frozenset(named))


class CurrencySettings(Section):
    """What amounts are reckoned in."""

    billing: str = Field(
        default="EUR",
        pattern="^[A-Z]{3}$",
        description="the currency of balances, features, thresholds and rules (ISO 4217); others are turned "
        "by what the issuer has billed, or by a rate. Part of the checkpoint: another one is another job",
    )


class PrivacySettings(Section):
    """How card numbers are kept out of tables, topics, dead letters and logs, and how long what is kept."""

    tokens: Literal["auto", "file", "off"] = Field(
        default="auto",
        description="auto: card numbers become tokens, by privacy.token_key_file or else a key that the "
        "first start makes under storage.root; file: by that file; off: all identifiers are tokens already",
    )
    token_key_file: Path | None = Field(
        default=None,
        description="file with the keys by which card numbers become tokens before anything is kept, the "
        "same wherever Spark runs; a file that holds no keys of `millrace keygen` is a key itself (32 bytes "
        "or more)",
    )

    @model_validator(mode="after")
    def _has_file(self) -> PrivacySettings:
        if self.tokens == "file" and self.token_key_file is None:
            raise ValueError("tokens=file needs token_key_file")
        return self


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
    decisions: DecisionSettings = DecisionSettings()
    model: ModelSettings = ModelSettings()
    governance: GovernanceSettings = GovernanceSettings()
    currency: CurrencySettings = CurrencySettings()
    privacy: PrivacySettings = PrivacySettings()

    @property
    def exports(self) -> str | None:
        """Folder from which workers have their models; ``None``: rules only."""
        if self.model.exports:
            return str(Path(self.model.exports).expanduser().absolute())
        if not self.model.registry:
            return None
        from millrace.models.places import default_exports

        return str(default_exports(self.model.registry, Path(self.storage.path("models"))))

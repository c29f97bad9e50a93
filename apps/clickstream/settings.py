"""Settings of the clickstream app beside those that every app has."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from millrace.runtime.settings import AppSettings, Duration, Section, StreamSettings
from millrace.time import ms
from millrace_apps.clickstream.contracts.messages import SHARDS
from millrace_apps.clickstream.processes.bots import BotRules, Pace
from millrace_apps.clickstream.processes.channels import TABLE, Channels, read_channels
from millrace_apps.clickstream.processes.funnels import PURCHASE, Funnel
from millrace_apps.clickstream.processes.money import Rates, read_rates
from millrace_apps.clickstream.processes.offer_rules import DEFAULT_RULES, OfferRule, read_rules
from millrace_apps.clickstream.processes.orders import Orders
from millrace_apps.clickstream.processes.persons import Persons
from millrace_apps.clickstream.processes.rules import rules_named, zone_named
from millrace_apps.clickstream.recommend.learned import MODEL_NAME, NextModel
from millrace_apps.clickstream.recommend.process import Recommending
from millrace_apps.clickstream.state.activity_counts import HOUR_MS
from millrace_apps.clickstream.state.browser_state import HOLDOUT, VisitorRules
from millrace_apps.clickstream.state.profiles import LOOK_BACK_MS


class ClickstreamTopics(Section):
    """Names of the app's Kafka topics, and their partitions where the app creates them."""

    clicks: str = "clickstream.clicks"
    customers: str = "clickstream.customers"
    consents: str = "clickstream.consents"
    refunds: str = "clickstream.refunds"
    erasures: str = "clickstream.erasures"
    forget: str = Field(default="clickstream.forget", description="cookies and carts to be forgotten")
    items: str = Field(default="clickstream.items", description="what is true of items: the catalogue")
    control: str = "clickstream.control"
    offers: str = Field(default="clickstream.offers", description="out: offers, for a page to listen to")
    recommendations: str = Field(default="clickstream.recommendations", description="out: next items")
    dead_letters: str = "clickstream.dead-letters"
    partitions: int = Field(default=2, ge=1, le=10_000, description="of topics that do not exist yet")


class SessionSettings(Section):
    """When a session ends."""

    rules: Literal["ga4", "universal", "snowplow"] = "ga4"
    gap: Duration = Field(default=timedelta(minutes=30), description="a longer pause begins a new session")
    zone: str = Field(default="UTC", description="whose midnight ends a session, by the rules 'universal'")
    lateness: Duration = Field(default=timedelta(hours=1), description="how long late events may change one")
    most_events: int = Field(
        default=2_000, ge=10, le=100_000, description="by the rules 'snowplow': so many of one are kept"
    )
    provisional: Duration = Field(default=timedelta(minutes=1), description="between rows of an open one")


class PaceSettings(Section):
    """So many clicks in so much time are a bot's."""

    events: int = Field(ge=2, le=1_000_000)
    within: Duration

    @field_validator("within")
    @classmethod
    def _whole(cls, value: timedelta) -> timedelta:
        if not timedelta(minutes=1) <= value <= timedelta(days=1):
            raise ValueError("a pace is within 1 minute to 1 day: for less there is visitors.rate_within")
        return value


class BotSettings(Section):
    """What gives a bot away, beside its name and very many events at once."""

    paces: tuple[PaceSettings, ...] = Field(
        default=(
            PaceSettings(events=300, within=timedelta(minutes=10)),
            PaceSettings(events=1_000, within=timedelta(hours=1)),
        ),
        max_length=5,
        description="so many clicks within so long",
    )
    regular: int = Field(
        default=30, ge=0, le=200, description="so many pauses that are nearly alike; 0: they say nothing"
    )
    spread: float = Field(default=0.05, ge=0, le=0.5, description="alike: by so much of their mean")
    views_alone: int = Field(
        default=150, ge=0, description="so many views within an hour, and nothing else; 0: they say nothing"
    )

    def rules(self) -> BotRules:
        """Return them as the process of visitors is told them."""
        paces = tuple(Pace(one.events, ms(one.within)) for one in self.paces)
        return BotRules(paces, self.regular, self.spread, self.views_alone)


class VisitorSettings(Section):
    """What is a repeat, what is a bot, and in which order events are handled."""

    repeats: Duration = Field(default=timedelta(hours=1), description="how long an event's id is known")
    in_order: bool = Field(
        default=False, description="wait for the watermark: exact also where consents come by a slower topic"
    )
    rate_events: int = Field(default=15, ge=2, description="so many events …")
    shared: Literal["split", "last"] = Field(
        default="split",
        description="used by several: each event is of whoever was there, until a logout; or all of the last",
    )
    rate_within: Duration = Field(default=timedelta(seconds=10), description="… in less are a bot's")
    bots: BotSettings = BotSettings()


class FunnelSettings(Section):
    """A funnel; see :class:`millrace_apps.clickstream.processes.funnels.Funnel`."""

    name: str = PURCHASE.name
    steps: tuple[str, ...] = PURCHASE.steps
    within: Duration = timedelta(hours=1)
    strict: bool = False
    of: Literal["sessions", "persons"] = Field(
        default="sessions", description="whose ways: of each session, or of persons over all their browsers"
    )


class ChannelSettings(Section):
    """Where visits come from, and which of them an order came by."""

    table: Path | None = Field(default=None, description="file, JSON or YAML; without it the app's own")
    own: tuple[str, ...] = Field(
        default=(), description="further hosts of the shop: who comes from there was in it"
    )
    look_back: Duration = Field(
        default=timedelta(milliseconds=LOOK_BACK_MS), description="an older touch has not brought an order"
    )


class OfferSettings(Section):
    """Which offers are made."""

    rules: Path | None = Field(default=None, description="file, JSON or YAML; without it the built-in")
    control: float = Field(
        default=HOLDOUT, ge=0, le=1, description="share of persons who are offered nothing by any rule"
    )
    merge_caps: bool = Field(
        default=False, description="what was offered in a browser before a login counts for the account"
    )


class BoardSettings(Section):
    """How what boards rank is counted."""

    shards: int = Field(
        default=SHARDS, ge=1, le=1_000, description="so many keys count items: more than there are busy tasks"
    )
    by_device: bool = Field(
        default=False, description="what is looked at, sold and searched for is ranked by kind of device, too"
    )
    by_channel: bool = Field(
        default=False, description="so by the channel that brought the visit, when time has passed the click"
    )


class OrderSettings(Section):
    """What orders are worth."""

    currency: str = Field(default="EUR", pattern="^[A-Z]{3}$", description="the shop's own, ISO 4217")
    rates: Path | None = Field(
        default=None, description="file of what others are worth: JSON, YAML or the ECB's CSV"
    )
    tax_included: bool = Field(default=True, description="whether prices have tax in them")
    zone: str = Field(default="UTC", description="whose days orders are booked by")


class RecommendSettings(Section):
    """Next items for each click."""

    on: bool = Field(default=False, description="whether next items are recommended while the shop is open")
    surfaces: tuple[Literal["resume", "discover"], ...] = ("resume", "discover")
    most: int = Field(default=10, ge=1, le=100, description="length of a list")
    newest: int = Field(default=1_000, ge=1, le=100_000, description="newest sessions that an item keeps")
    keep: int = Field(default=200_000, ge=1_000, le=5_000_000, description="newest sessions that are kept")
    control: float = Field(
        default=0.0, ge=0, le=1, description="share of persons to whom only what is popular is shown"
    )
    unlearned: float = Field(
        default=0.0, ge=0, le=1, description="share of persons whose candidates no model orders"
    )
    window: Duration = Field(default=timedelta(hours=1), description="quality is told of so long")
    clicked_within: Duration = Field(
        default=timedelta(minutes=10),
        description="a look at an item so soon after a list was shown is a click on it",
    )
    examples: float = Field(
        default=0.0, ge=0, le=1, description="share of browsers whose lists are kept to learn an order from"
    )
    learned: bool = Field(default=False, description="the champion of the models orders the candidates")
    model: str = Field(default=MODEL_NAME, description="name of the registered model of the order")
    registry: str = Field(default="", description="MLflow registry of it; default: under storage.root")
    exports: str = Field(
        default="",
        description="folder of the exported models, which all workers must see under this path; default: the "
        "folder exported beside a registry in SQLite, or models/exported under storage.root",
    )

    @model_validator(mode="after")
    def _arms(self) -> Self:
        if self.control + self.unlearned > 1:
            raise ValueError(
                f"the shares control ({self.control:g}) and unlearned ({self.unlearned:g}) are more than 1"
            )
        return self

    def order(self, models: Path) -> NextModel | None:
        """Return what asks the model; ``None``: candidates are not ordered.

        Args:
            models: Folder of the app's models.
        """
        if not self.learned:
            return None
        if self.exports:
            return NextModel(str(Path(self.exports).expanduser().absolute()), self.model)
        from millrace.models.places import default_exports, default_uri

        folder = default_exports(self.registry or default_uri(models), models)
        return NextModel(str(folder.absolute()), self.model)


class ClickstreamSettings(AppSettings):
    """What the clickstream app can be told."""

    # Offers wait for the watermark: the bound is most of their latency. What comes later still corrects
    # sessions, counts and orders.
    stream: StreamSettings = StreamSettings(out_of_orderness=timedelta(milliseconds=500))
    topics: ClickstreamTopics = ClickstreamTopics()
    sessions: SessionSettings = SessionSettings()
    visitors: VisitorSettings = VisitorSettings()
    funnels: tuple[FunnelSettings, ...] = (FunnelSettings(),)
    channels: ChannelSettings = ChannelSettings()
    boards: BoardSettings = BoardSettings()
    offers: OfferSettings = OfferSettings()
    orders: OrderSettings = OrderSettings()
    recommend: RecommendSettings = RecommendSettings()
    cart_timeout: Duration = Field(default=timedelta(minutes=30), description="a cart idle longer is left")

    @field_validator("funnels")
    @classmethod
    def _named_once(cls, value: tuple[FunnelSettings, ...]) -> tuple[FunnelSettings, ...]:
        # Rows and what is kept are by name: of two with one name each would write over the other's.
        for (name, of), number in Counter((one.name, one.of) for one in value).items():
            if number > 1:
                raise ValueError(f"two funnels of {of} are called '{name}': each needs a name of its own")
        return value

    def visitor_rules(self) -> VisitorRules:
        """Return what the process of visitors is told."""
        sessions, own = self.sessions, self.visitors
        return VisitorRules(
            sessions=rules_named(sessions.rules, gap_ms=ms(sessions.gap), zone=sessions.zone),
            session_lateness_ms=ms(sessions.lateness),
            provisional_ms=ms(sessions.provisional),
            repeats_ms=ms(own.repeats),
            rate_events=own.rate_events,
            rate_ms=ms(own.rate_within),
            bots=own.bots.rules(),
            funnels=self._funnels("sessions"),
            ways=self._funnels("persons"),
            holdout=self.offers.control,
            most_events=sessions.most_events,
            in_order=own.in_order,
            recommends=self.recommend.on,
            shared=own.shared,
            shards=self.boards.shards,
            by_device=self.boards.by_device,
            by_channel=self.boards.by_channel,
            rates=self.rates(),
            channels=self.channels_table(),
        )

    def _funnels(self, of: str) -> tuple[Funnel, ...]:
        told = [f for f in self.funnels if f.of == of]
        return tuple(Funnel(f.name, f.steps, ms(f.within), f.strict) for f in told)

    def persons_process(self) -> Persons:
        """Return the process of persons."""
        return Persons(
            look_back_ms=ms(self.channels.look_back),
            merges_caps=self.offers.merge_caps,
            funnels=self._funnels("persons"),
            holdout=self.offers.control,
            # Later than a repeat is told nothing is a step any more; an hour more for the links between.
            lateness_ms=ms(self.visitors.repeats) + HOUR_MS,
        )

    def channels_table(self) -> Channels:
        """Return what tells where visits come from."""
        told = self.channels
        return read_channels(told.table or TABLE, told.own)

    def rates(self) -> Rates:
        """Return what currencies are worth in the shop's own."""
        told = self.orders
        return Rates(told.currency) if told.rates is None else read_rates(told.rates, told.currency)

    def orders_process(self) -> Orders:
        """Return the process of orders."""
        told = self.orders
        return Orders(self.rates(), tax_included=told.tax_included, zone=zone_named(told.zone))

    def recommending(self) -> Recommending:
        """Return what the process of next items is told."""
        told = self.recommend
        return Recommending(
            surfaces=told.surfaces,
            most=told.most,
            gap_ms=ms(self.sessions.gap),
            newest=told.newest,
            keep=told.keep,
            control=told.control,
            unlearned=told.unlearned,
            window_ms=ms(told.window),
            horizon_ms=ms(told.clicked_within),
            model=told.order(Path(self.storage.path("models"))),
            examples=told.examples,
        )

    def offer_rules(self) -> tuple[OfferRule, ...]:
        """Return the rules of offers."""
        return DEFAULT_RULES if self.offers.rules is None else read_rules(self.offers.rules)

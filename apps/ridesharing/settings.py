"""Settings of the ridesharing app beside those that every app has."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal, Self, get_args
from zoneinfo import available_timezones

from pydantic import Field, field_validator, model_validator

from millrace.experiments import ExperimentError, Switchback
from millrace.runtime.settings import AppSettings, Duration, Section, StreamSettings
from millrace.time import ms
from millrace.time.durations import to_ms
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import MOST_ATTEMPTS, VehicleClass
from millrace_apps.ridesharing.demand.config import HintConfig
from millrace_apps.ridesharing.eta.times import MODEL_NAME, PICKUP_NAME
from millrace_apps.ridesharing.processes.acceptance import AcceptanceConfig
from millrace_apps.ridesharing.processes.arrivals import ArrivalConfig
from millrace_apps.ridesharing.processes.income import IncomeConfig
from millrace_apps.ridesharing.processes.matching import Rules, Serves
from millrace_apps.ridesharing.processes.regions import Regions
from millrace_apps.ridesharing.surge.config import REMEMBER_MS, SurgeConfig


class RidesTopics(Section):
    """Names of the app's Kafka topics, and their partitions where the app creates them."""

    locations: str = "ridesharing.locations"
    status: str = "ridesharing.status"
    requests: str = "ridesharing.requests"
    answers: str = "ridesharing.answers"
    cancellations: str = "ridesharing.cancellations"
    progress: str = "ridesharing.progress"
    commands: str = "ridesharing.commands"
    handovers: str = "ridesharing.handovers"
    quote_requests: str = "ridesharing.quote-requests"
    control: str = "ridesharing.control"
    offers: str = "ridesharing.offers"
    assignments: str = "ridesharing.assignments"
    releases: str = "ridesharing.releases"
    trips: str = "ridesharing.trips"
    pickups: str = "ridesharing.pickups"
    lines: str = "ridesharing.lines"
    tickets: str = "ridesharing.tickets"
    quotes: str = "ridesharing.quotes"
    fares: str = "ridesharing.fares"
    surge: str = "ridesharing.surge"
    arrivals: str = "ridesharing.arrivals"
    hints: str = "ridesharing.hints"
    violations: str = "ridesharing.violations"
    dead_letters: str = "ridesharing.dead-letters"
    partitions: int = Field(default=2, ge=1, le=10_000, description="of topics that do not exist yet")


class DispatchSettings(Section):
    """How rides are dispatched; all times are event time."""

    policy: Literal["fifo", "nearest", "optimal"] = "optimal"
    shadows: tuple[Literal["fifo", "nearest", "optimal"], ...] = Field(
        default=("fifo",), description="policies that are computed beside it, to be compared"
    )
    window: Duration = Field(
        default=timedelta(seconds=2), description="length of a dispatch window, 1 to 30 s"
    )
    radius_km: float = Field(default=5.0, gt=0, le=50, description="largest straight line to a pick-up")
    location_ttl: Duration = Field(
        default=timedelta(seconds=120), description="drivers silent for longer are stale"
    )
    offer_timeout: Duration = Field(
        default=timedelta(seconds=15), description="how long a driver has to answer"
    )
    attempts: int = Field(
        default=8, ge=1, le=MOST_ATTEMPTS, description="offers of a request before it is given up"
    )
    cool_down: Duration = Field(
        default=timedelta(minutes=10), description="how long a driver who refused is not asked again"
    )
    patience: Duration = Field(default=timedelta(minutes=5), description="how long a driver is searched for")
    no_show: Duration = Field(
        default=timedelta(minutes=5), description="how long a driver waits at the pick-up"
    )
    approach: Duration = Field(
        default=timedelta(minutes=2), description="in each such time a driver must have come nearer"
    )
    ahead: Duration = Field(
        default=timedelta(minutes=10), description="booked rides are searched for from so long before"
    )
    most_riders: int = Field(default=1_000, ge=1, le=10_000, description="riders decided on in one window")
    unmatched: Duration = Field(
        default=timedelta(minutes=15), description="what it costs to leave a rider unmatched, as a drive"
    )
    age_weight: float = Field(
        default=0.5, ge=0, le=10, description="what each second of waiting adds to that"
    )
    car_value: Duration = Field(
        default=timedelta(seconds=400),
        description="what a car is worth where more riders are expected than cars",
    )
    drop_value: Duration = Field(
        default=timedelta(seconds=300), description="what it costs that a ride ends where nobody asks"
    )
    serves: tuple[str, ...] = Field(
        default=(),
        description="which classes serve which others and what that costs, e.g. xl:standard:60s; "
        "default: each its own alone",
    )
    favourite: Duration = Field(
        default=timedelta(minutes=2), description="so much longer a drive may be to have a favourite"
    )
    fairness: Duration = Field(
        default=timedelta(0),
        description="so much longer a drive may be to a driver who has been idle twice as long as others; "
        "0: nobody's turn counts",
    )
    fairness_of_wait: float = Field(
        default=IncomeConfig(worth_ms=0).of_wait,
        ge=0,
        le=100,
        description="that counts no more than so many times what riders wait of late; 0: whatever that is",
    )
    region_resolution: int = Field(
        default=-1, ge=-1, le=7, description="H3 cells of this resolution are the regions; -1: one region"
    )
    refresh: Duration = Field(
        default=timedelta(seconds=10),
        description="how often a driver who does not move is reported to the region",
    )
    one_open: bool = Field(default=True, description="a second open request of a rider is refused")
    one_open_everywhere: bool = Field(
        default=True, description="so it is across regions, which takes a link more; off: within each region"
    )
    reconcile: Duration = Field(
        default=timedelta(seconds=90), description="after so long the book follows a phone that differs"
    )
    geofence_m: float = Field(
        default=400.0, ge=0, le=10_000, description="what drivers report counts so near, metres; 0: anywhere"
    )
    least_wait: Duration = Field(
        default=timedelta(minutes=2), description="a driver waits so long before nobody came"
    )
    most_kmh: float = Field(default=252.0, ge=0, le=2_000, description="no car is faster; 0: any speed")
    believe: Duration = Field(
        default=timedelta(minutes=5), description="positions too far off are believed after so long"
    )
    overdue: Duration = Field(
        default=timedelta(minutes=30), description="a silent trip is lost so long after 3 times its drive"
    )
    places: Duration = Field(
        default=timedelta(seconds=30), description="it is written so often where each car is; 0: never"
    )
    pen_grace: Duration = Field(
        default=timedelta(minutes=1),
        description="so long a driver out of a venue's pen keeps the place",
    )
    decline_costs_place: bool = Field(
        default=True, description="who lets an offer from a venue's line go has to join it anew"
    )
    line_elsewhere: bool = Field(
        default=False, description="drivers in a venue's line are given requests from elsewhere, too"
    )

    @field_validator("serves")
    @classmethod
    def _are_classes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        serving(value)
        return value


def serving(texts: tuple[str, ...]) -> tuple[Serves, ...]:
    """Return which classes serve which others.

    Args:
        texts: Each the class of the car, the class that is asked for, and what that costs, as a drive.

    Raises:
        ValueError: It is none of that; or others would serve who needs an accessible car.

    >>> serving(("xl:standard:60s",))
    (Serves(vehicle_class='xl', wanted='standard', cost_ms=60000),)
    """
    classes, found = get_args(VehicleClass), dict[tuple[str, str], Serves]()
    for text in texts:
        car, _, rest = text.partition(":")
        wanted, _, cost = rest.partition(":")
        if car not in classes or wanted not in classes or car == wanted:
            raise ValueError(f"{text} names no two of the classes {', '.join(classes)}; e.g. xl:standard:60s")
        if wanted == "accessible":
            raise ValueError(f"{text}: who needs an accessible car is served by no other")
        if (car, wanted) in found:
            raise ValueError(f"{text}: {car} for {wanted} is there twice")
        cost_ms = to_ms(cost)
        if not 0 <= cost_ms <= 3_600_000:
            raise ValueError(f"{text}: it costs 0s to 1h")
        found[car, wanted] = Serves(car, wanted, cost_ms)
    return tuple(found[pair] for pair in sorted(found))


class SurgeSettings(Section):
    """How prices follow scarcity; all times are event time."""

    on: bool = Field(default=False, description="whether riders are quoted; a checkpoint is bound to it")
    cap: float = Field(default=5.0, ge=1, le=10, description="the largest multiplier, in hundredths")
    step: float = Field(
        default=0.2,
        ge=0.02,
        le=9,
        description="by how much it moves in half a minute at most",
    )
    balance: float = Field(
        default=2.0,
        gt=0,
        le=1_000,
        description="demand (asked in 5 min, waiting, reserve) per car taken in them, up to which the "
        "price is usual",
    )
    power: float = Field(
        default=3.0, gt=0, le=4, description="the multiplier is the ratio over balance to the power of this"
    )
    queue: float = Field(
        default=0.5, ge=0, le=10, description="share with which a rider counts who waits, beside having asked"
    )
    reserve: float = Field(
        default=8.0, ge=0, le=100, description="so many times the square root of demand counts beside it"
    )
    gone: float = Field(
        default=0.6, gt=0, le=1, description="it falls where no more ask than this share of those who did"
    )
    slack: float = Field(
        default=0.9,
        ge=0,
        le=4,
        description="it rises where the ratio asks for more by this share, and so far",
    )
    stock: float = Field(
        default=0.33, ge=0, le=1, description="share with which a free car counts beside those taken in 5 min"
    )
    neighbours: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="share of the cells beside it; of those a ring farther its square",
    )
    hold: Duration = Field(
        default=timedelta(minutes=45),
        description="so long after it began to rise a multiplier does not fall; after it began to fall "
        "it does not rise for the rest of an hour",
    )
    near_km: float = Field(
        default=1.0,
        ge=0,
        le=50,
        description="where many ask, who has not waited for near_for is given cars so near alone; 0: any",
    )
    near_for: Duration = Field(
        default=timedelta(seconds=150), description="how long that is, half of dispatch.patience at most"
    )
    valid: Duration = Field(default=timedelta(minutes=5), description="how long a quote holds, 1 s to 1 h")


class ArrivalSettings(Section):
    """How it is learned and told when cars arrive; all times are event time."""

    on: bool = Field(
        default=False, description="matcher, offers and riders go by what ways took; off: by one speed"
    )
    every: Duration = Field(
        default=timedelta(seconds=15), description="riders are told anew so often while their car moves"
    )
    zone: str = Field(default="UTC", description="time zone of the city, for hours of the week")
    learned: bool = Field(
        default=False, description="offers and riders are told what the champions of the models say"
    )
    pickup: str = Field(default=PICKUP_NAME, description="name of the model of ways to the pick-up")
    trip: str = Field(default=MODEL_NAME, description="name of the model of trips")
    registry: str = Field(default="", description="MLflow registry of both; default: under storage.root")
    exports: str = Field(
        default="",
        description="folder of the exported models, which all workers must see under this path; default: the "
        "folder exported beside a registry in SQLite, or models/exported under storage.root",
    )

    @field_validator("zone")
    @classmethod
    def _is_a_zone(cls, value: str) -> str:
        if value not in available_timezones():
            raise ValueError(f"{value} is no time zone; write for example America/Los_Angeles")
        return value

    def folder(self, models: Path) -> str:
        """Return the folder of the exported models; empty: no model is asked.

        Args:
            models: Folder of the app's models.
        """
        if not self.learned:
            return ""
        if self.exports:
            return str(Path(self.exports).expanduser().absolute())
        from millrace.models.places import default_exports, default_uri

        return str(default_exports(self.registry or default_uri(models), models).absolute())


class HintSettings(Section):
    """How drivers of free cars are told where they would be wanted; all times are event time."""

    on: bool = Field(default=False, description="whether they are told: a link more behind the dispatcher")
    every: Duration = Field(
        default=timedelta(minutes=1), description="how often it is looked, 10 s to 15 min"
    )
    zone: str = Field(default="UTC", description="time zone of the city, for what is usual at an hour")
    rings: int = Field(default=3, ge=1, le=10, description="how far a car is sent, in cells of 0.9 km")
    horizon: Duration = Field(
        default=timedelta(minutes=10), description="requests of so long are held against the free cars"
    )
    stood: Duration = Field(default=timedelta(minutes=1), description="who has been free for so long is sent")
    rest: Duration = Field(
        default=timedelta(minutes=10), description="who was told is told nothing for so long"
    )

    @field_validator("zone")
    @classmethod
    def _is_a_zone(cls, value: str) -> str:
        if value not in available_timezones():
            raise ValueError(f"{value} is no time zone; write for example America/Los_Angeles")
        return value


class AcceptanceSettings(Section):
    """How it is learned which drivers take what; all times are event time."""

    on: bool = Field(default=False, description="the matcher goes by how likely a driver is to say yes")
    miss: Duration = Field(
        default=timedelta(seconds=30), description="what an offer costs that is not taken, as a drive"
    )
    half_life: Duration = Field(default=timedelta(days=7), description="answers of so long ago count half")
    shrink: float = Field(
        default=3.0, ge=0.1, le=1_000, description="so many yeses count as much as what is usual in the fleet"
    )


class ExperimentSettings(Section):
    """Two policies that take turns in each region, by blocks of event time."""

    name: str = Field(default="", description="its name, which deals the blocks; empty: there is none")
    arms: tuple[Literal["fifo", "nearest", "optimal"], Literal["fifo", "nearest", "optimal"]] = Field(
        default=("fifo", "optimal"), description="the policy that the other is compared with, and the other"
    )
    block: Duration = Field(default=timedelta(minutes=30), description="how long an arm holds")
    guard: Duration = Field(
        default=timedelta(minutes=10), description="who asks so early in a block is not judged"
    )
    salt: str = Field(default="", description="deals the blocks anew")

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        try:
            self.plan()
        except ExperimentError as error:
            raise ValueError(str(error)) from None
        return self

    def plan(self) -> Switchback | None:
        """Return the experiment; ``None``: there is none."""
        if not self.name:
            return None
        return Switchback(self.name, self.arms, ms(self.block), ms(self.guard), self.salt)


class RidesharingSettings(AppSettings):
    """What the ridesharing app can be told."""

    # Most positions of drivers come to nothing, and a repeat of one is a dead letter: among the records of a
    # batch dead letters may be most, with nothing wrong.
    stream: StreamSettings = StreamSettings(
        out_of_orderness=timedelta(milliseconds=500),
        idle_after=timedelta(seconds=2),
        max_dead_letter_ratio=1.0,
    )
    topics: RidesTopics = RidesTopics()
    dispatch: DispatchSettings = DispatchSettings()
    surge: SurgeSettings = SurgeSettings()
    arrivals: ArrivalSettings = ArrivalSettings()
    hints: HintSettings = HintSettings()
    acceptance: AcceptanceSettings = AcceptanceSettings()
    experiment: ExperimentSettings = ExperimentSettings()

    def dispatch_config(self) -> DispatchConfig:
        """Return what the processes are told."""
        d = self.dispatch
        return DispatchConfig(
            regions=Regions(parent=d.region_resolution),
            policy=d.policy,
            shadows=d.shadows,
            rules=Rules(
                radius_m=d.radius_km * 1_000,
                unmatched_ms=ms(d.unmatched),
                age_weight=d.age_weight,
                car_value_ms=ms(d.car_value),
                drop_value_ms=ms(d.drop_value),
                serves=serving(d.serves),
                favourite_ms=ms(d.favourite),
                near_m=self.surge.near_km * 1_000 if self.surge.on else 0.0,
                near_ms=min(ms(self.surge.near_for), ms(d.patience) // 2),
            ),
            window_ms=max(1_000, ms(d.window)),
            most_riders=d.most_riders,
            ttl_ms=ms(d.location_ttl),
            offer_ms=ms(d.offer_timeout),
            attempts=d.attempts,
            cool_down_ms=ms(d.cool_down),
            patience_ms=ms(d.patience),
            ahead_ms=ms(d.ahead),
            no_show_ms=ms(d.no_show),
            approach_ms=ms(d.approach),
            refresh_ms=ms(d.refresh),
            one_open=d.one_open,
            one_open_everywhere=d.one_open_everywhere,
            reconcile_ms=ms(d.reconcile),
            geofence_m=d.geofence_m,
            least_wait_ms=ms(d.least_wait),
            most_m_per_s=d.most_kmh / 3.6,
            believe_ms=ms(d.believe),
            overdue_ms=ms(d.overdue),
            places_ms=max(1_000, ms(d.places)) if d.places else 0,
            pen_grace_ms=ms(d.pen_grace),
            decline_costs_place=d.decline_costs_place,
            line_elsewhere=d.line_elsewhere,
            free_ms=SurgeConfig().epoch_ms if self.surge.on else 0,
            standing_ms=min(max(ms(self.hints.every), 10_000), 900_000) if self.hints.on else 0,
            arrivals=self.arrival_config(),
            acceptance=self.acceptance_config(),
            income=IncomeConfig(worth_ms=ms(d.fairness), of_wait=d.fairness_of_wait) if d.fairness else None,
            switchback=self.experiment.plan(),
        )

    def acceptance_config(self) -> AcceptanceConfig | None:
        """Return how it is learned which drivers take what; ``None``: it is not."""
        told = self.acceptance
        if not told.on:
            return None
        return AcceptanceConfig(
            miss_ms=ms(told.miss), half_life_ms=max(60_000, ms(told.half_life)), shrink=told.shrink
        )

    def hint_config(self) -> HintConfig:
        """Return when and how far free cars are sent."""
        told = self.hints
        return HintConfig(
            zone=told.zone,
            rings=told.rings,
            horizon_ms=ms(told.horizon),
            stood_ms=ms(told.stood),
            rest_ms=ms(told.rest),
            ahead_ms=ms(self.dispatch.ahead),
        )

    def arrival_config(self) -> ArrivalConfig | None:
        """Return how arrival times are learned and told; ``None``: they are not."""
        told = self.arrivals
        if not told.on:
            return None
        return ArrivalConfig(
            every_ms=max(1_000, ms(told.every)),
            zone=told.zone,
            exports=told.folder(Path(self.storage.path("models"))),
            pickup=told.pickup,
            trip=told.trip,
        )

    def surge_config(self) -> SurgeConfig:
        """Return how prices follow scarcity."""
        s = self.surge
        return SurgeConfig(
            cap=s.cap,
            step=s.step,
            balance=s.balance,
            power=s.power,
            queue=s.queue,
            reserve=s.reserve,
            gone=s.gone,
            slack=s.slack,
            stock=s.stock,
            neighbours=s.neighbours,
            hold_ms=ms(s.hold),
            valid_ms=min(max(ms(s.valid), 1_000), REMEMBER_MS),
            ahead_ms=ms(self.dispatch.ahead),
            regions=Regions(parent=self.dispatch.region_resolution),
        )

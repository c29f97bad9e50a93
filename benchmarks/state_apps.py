"""The apps' processes over paged state in memory, filled by their generators, and what of it is whose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import msgspec

from millrace.host.memory import Event
from millrace.runtime.settings import load_settings
from millrace.state.paged import owner_of
from millrace_apps.benchmarks.paged import PagedChain, PagedHost

#: A Friday, 16:00 UTC.
_START_MS: Final = 1_767_369_600_000
#: A device sends so many readings and heartbeats a second: 25,000 of 100,000 devices, ...
_PER_DEVICE_S: Final = 0.25
#: ... and so long, s: readings of the grace, a minute, are most of its state. They are swept every minute, so
#: that these are as many as it has on average.
_WATCHED_S: Final = 90
#: How long the shop is open, s, so that visits begin, go on and end, and clicks of a visit on average.
_OPEN_S: Final = 7_200
_CLICKS: Final = 3
#: Seconds between two positions of a driver, for how long, s, and drivers on line of all.
_POSITION_S: Final = 4
_DRIVEN_S: Final = 120
_ON_LINE: Final = 0.25
#: Days of purchases, as many as the card's history goes back, and purchases of a card.
_DAYS: Final = 30
_PURCHASES: Final = 50
#: As many as the generator has by default.
_CARDS_PER_TERMINAL: Final = 4
#: The Handbook's table: customers, days that fill all windows and the label delay before them, its radius.
_HANDBOOK_CUSTOMERS: Final = 5_000
_HANDBOOK_DAYS: Final = 60
_HANDBOOK_RADIUS: Final = 5.0
_DAY_MS: Final = 86_400_000
#: Each sensor of the devices whose growth is followed has a reading in so many seconds.
_SLOW_S: Final = 1_800
#: Events of a batch of theirs: a batch's length is part of how long what is over is kept.
_SLOW_BATCH: Final = 64


@dataclass(frozen=True)
class Entries:
    """The entries of some keys.

    Attributes:
        count: How many.
        total: Their bytes in their pages, keys included.
        largest: Bytes of the largest.
    """

    count: int
    total: int
    largest: int

    @property
    def mean(self) -> float:
        """Bytes of one."""
        return self.total / self.count if self.count else 0.0


def entries_of(host: PagedHost, of: Callable[[str], bool] = lambda _: True) -> Entries:
    """Return the entries of a process whose key's text is wanted."""
    sizes = [size for key, size in host.entries() if of(key)]
    return Entries(len(sizes), sum(sizes), max(sizes, default=0))


@dataclass(frozen=True)
class Growing:
    """Entities whose state is followed from day to day.

    Attributes:
        usual: Days and entities by default.
        quick: The same of a quick run.
        make: Entities and days → the processes.
        by_day: The same → the events of each day.
        batch: Events per batch.
    """

    usual: tuple[int, int]
    quick: tuple[int, int]
    make: Callable[[int, int], PagedChain]
    by_day: Callable[[int, int], Iterator[list[Event]]]
    batch: int


@dataclass(frozen=True)
class StateBench:
    """What is measured of an app.

    Attributes:
        shape: What is sent, in one line.
        usual: Entities by default.
        quick: Entities of a quick run.
        make: Entities → the processes.
        events: Entities → the events.
        measure: The processes, filled, → entity → how many are kept, and bytes of all that is theirs.
        targets: Entity → most bytes of one that are wanted.
        growing: How its growth is followed, where it is.
    """

    shape: str
    usual: int
    quick: int
    make: Callable[[int], PagedChain]
    events: Callable[[int], Iterator[Event]]
    measure: Callable[[PagedChain], dict[str, tuple[int, float]]]
    targets: dict[str, int]
    growing: Growing | None = None


def days_of(events: Iterator[Event], start_ms: int, days: int) -> Iterator[list[Event]]:
    """Yield the events of so many days, which are in order of time, a list for each."""
    day: list[Event] = []
    end, left = start_ms + _DAY_MS, days
    for event in events:
        while event[1] >= end:
            yield day
            day, end, left = [], end + _DAY_MS, left - 1
            if not left:
                return
        day.append(event)
    if day:
        yield day


# -- iot ---------------------------------------------------------------------------------------------


def machines(profile: Any) -> PagedChain:
    """Return the monitor of the machines of a profile; what is kept of a plant is left out.

    A device that beats once in ten intervals of its sensors is silent after three of those.
    """
    from millrace_apps.generators.iot.profile import HEARTBEAT_TICKS
    from millrace_apps.iot_maintenance.processes.monitor import MachineMonitor
    from millrace_apps.iot_maintenance.settings import IotSettings, monitoring

    timeout = f"monitor.device_timeout={int(3 * HEARTBEAT_TICKS * profile.tick_ms)}"
    settings = load_settings(IotSettings, app="iot", overrides=[timeout], env={})
    return PagedChain(MachineMonitor(monitoring(settings)), out_of_orderness_ms=500)


def fleet_profile(devices: int) -> Any:
    """Return a fleet's profile at the rate of the targets."""
    from millrace_apps.generators.iot import IotProfile

    rate = devices * _PER_DEVICE_S
    return IotProfile(
        seed=5, start_ms=_START_MS, machines=devices, event_rate=rate, events=int(rate * _WATCHED_S)
    )


def slow_profile(devices: int) -> Any:
    """Return the profile of a small fleet at its own pace, with no end."""
    from millrace_apps.generators.iot.models import MODELS

    per_tick = sum(model.samples_per_tick for model in MODELS) / len(MODELS)
    return replace(
        fleet_profile(devices), event_rate=devices * per_tick / _SLOW_S, acceleration=1.0, events=None
    )


def fleet_days(devices: int, days: int) -> Iterator[list[Event]]:
    """Yield the days of a small fleet."""
    profile = slow_profile(devices)
    return days_of(fleet_events(profile), profile.start_ms, days)


def fleet_events(profile: Any) -> Iterator[Event]:
    """Yield the events of a fleet as the monitor takes them."""
    from millrace_apps.generators.iot import simulate
    from millrace_apps.iot_maintenance.contracts.signals import INPUTS, KEYS

    for made in simulate(profile):
        event = msgspec.convert(made.event, INPUTS[made.stream], from_attributes=True)
        yield getattr(event, KEYS[made.stream]), event.event_time_ms, event


def measure_devices(chain: PagedChain) -> dict[str, tuple[int, float]]:
    """Return what is kept of machines; their gateways' entries are shared among them."""
    of_all = entries_of(chain.paged[0])
    gateways = entries_of(chain.paged[0], lambda key: key.endswith("-gw"))
    return {"device": (of_all.count - gateways.count, of_all.total)}


# -- clickstream -------------------------------------------------------------------------------------


def shop(_visitors: int) -> PagedChain:
    """Return the processes of visitors, of persons and carts, and of offers."""
    from millrace_apps.clickstream.settings import ClickstreamSettings
    from millrace_apps.clickstream.topology import topology

    settings = load_settings(ClickstreamSettings, app="clickstream", env={})
    return PagedChain(topology(settings), out_of_orderness_ms=5_000)


def clicks(visitors: int) -> Iterator[Event]:
    """Yield what happens in the shop until so many visitors have been there."""
    from millrace_apps.clickstream.contracts.events import INPUTS
    from millrace_apps.generators.clickstream import ClickstreamProfile, simulate

    profile = ClickstreamProfile(
        seed=5, start_ms=_START_MS, event_rate=visitors * _CLICKS / _OPEN_S, people=max(2, visitors // 5)
    )
    seen: set[str] = set()
    for made in simulate(profile):
        if made.stream == "clicks":
            seen.add(made.key)
        if len(seen) > visitors:
            return
        event = msgspec.json.decode(msgspec.json.encode(made.event), type=INPUTS[made.stream])
        yield made.key, made.event_time_ms, event


def measure_visitors(chain: PagedChain) -> dict[str, tuple[int, float]]:
    """Return what is kept of visitors: all that any process keeps, carts, persons and boards included."""
    first = entries_of(chain.paged[0], lambda key: "visitor-" in key)
    return {"visitor": (first.count, sum(entries_of(host).total for host in chain.paged))}


# -- ridesharing -------------------------------------------------------------------------------------


def city(_drivers: int) -> PagedChain:
    """Return gate, dispatcher of one region, and auditor."""
    from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
    from millrace_apps.ridesharing.settings import RidesharingSettings
    from millrace_apps.ridesharing.topology import processes

    told = load_settings(RidesharingSettings, app="ridesharing", env={})
    return PagedChain(processes(Dispatcher(told.dispatch_config()), told), out_of_orderness_ms=500)


def rides(drivers: int) -> Iterator[Event]:
    """Yield what drivers and riders send, dispatched by the generator's own dispatcher."""
    from millrace_apps.generators.ridesharing import RidesProfile, simulate
    from millrace_apps.ridesharing.contracts.events import INPUTS

    rate = drivers * _ON_LINE / _POSITION_S
    profile = RidesProfile(
        seed=5,
        start_ms=_START_MS,
        drivers=drivers,
        event_rate=rate,
        location_interval_ms=_POSITION_S * 1_000,
        events=int(rate * _DRIVEN_S),
    )
    for made in simulate(profile):
        event = msgspec.json.decode(msgspec.json.encode(made.event), type=INPUTS[made.stream])
        yield made.key, made.event_time_ms, event, made.stream


def measure_drivers(chain: PagedChain) -> dict[str, tuple[int, float]]:
    """Return what is kept of drivers: at the gate, in the region's book, at the auditor."""
    gate, dispatcher, auditor = chain.paged
    at_gate = entries_of(gate, _is_driver)
    audited = entries_of(auditor, _is_driver)
    parts = [(owner_of(key)[1], size) for key, size in dispatcher.entries()]
    in_book = sum(size for part, size in parts if part is not None and part[0].startswith(_OF_DRIVERS))
    return {"driver": (at_gate.count, at_gate.total + in_book + audited.total)}


#: Parts of a region's book that are of its drivers: their cars, what is noted of them, their far deadlines.
_OF_DRIVERS: Final = ("cars", "notes", "far")


def _is_driver(key: str) -> bool:
    return "driver-" in key


# -- fraud, recorded payments ------------------------------------------------------------------------


def histories(_customers: int, _days: int = 0) -> PagedChain:
    """Return the histories of customers and terminals, as recorded payments go through them."""
    from millrace_apps.fraud.handbook.process import CustomerHistory, TerminalHistory

    return PagedChain(CustomerHistory(), ("terminal_id", TerminalHistory()), out_of_orderness_ms=1_000)


def recorded(customers: int, days: int = _HANDBOOK_DAYS) -> Iterator[Event]:
    """Yield the Handbook's payments, with as many terminals a customer, and within reach, as there."""
    from millrace_apps.fraud.evaluation.recorded import payments
    from millrace_apps.generators.handbook import HandbookProfile, simulate_handbook

    profile = HandbookProfile(
        seed=5,
        customers=customers,
        terminals=2 * customers,
        days=days,
        radius=min(140.0, _HANDBOOK_RADIUS * (_HANDBOOK_CUSTOMERS / customers) ** 0.5),
    )
    table = simulate_handbook(profile).transactions.to_pandas()
    at = table["TX_DATETIME"].astype("datetime64[ms]").astype("int64")
    for payment in payments(table.assign(at=at)):
        yield payment.customer_id, payment.event_time_ms, payment


def recorded_days(customers: int, days: int) -> Iterator[list[Event]]:
    """Yield the Handbook's days."""
    events = recorded(customers, days)
    first = next(events)
    return days_of(chain([first], events), first[1] // _DAY_MS * _DAY_MS, days)


def measure_histories(chain: PagedChain) -> dict[str, tuple[int, float]]:
    """Return what is kept of customers and of terminals."""
    customer, terminal = map(entries_of, chain.paged)
    return {"customer": (customer.count, customer.total), "terminal": (terminal.count, terminal.total)}


# -- fraud, live -------------------------------------------------------------------------------------


def payments(_cards: int) -> PagedChain:
    """Return the stages of card and terminal, and decision."""
    from millrace_apps.fraud.processes.entity_stages import stages

    first, rest = stages(["terminal"])
    return PagedChain(first, *rest, out_of_orderness_ms=5_000)


def purchases(cards: int) -> Iterator[Event]:
    """Yield a month of transactions."""
    from millrace_apps.generators.fraud import FraudProfile, simulate

    events = cards * _PURCHASES
    profile = FraudProfile(
        seed=5,
        start_ms=_START_MS,
        cards=cards,
        terminals=max(10, cards // _CARDS_PER_TERMINAL),
        event_rate=events / (_DAYS * 86_400),
        label_scale=0.0,
        events=events,
    )
    for made in simulate(profile):
        yield made.key, made.event_time_ms, made.event


def measure_cards(chain: PagedChain) -> dict[str, tuple[int, float]]:
    """Return what is kept of customers, who have a card each, and of terminals."""
    card, terminal, decision = map(entries_of, chain.paged)
    return {
        "customer": (card.count, card.total + decision.total),
        "terminal": (terminal.count, terminal.total),
    }


BENCHES: Final[dict[str, StateBench]] = {
    "iot": StateBench(
        shape=f"{_PER_DEVICE_S} readings and heartbeats a device and second, for {_WATCHED_S} s",
        usual=100_000,
        quick=200,
        make=lambda devices: machines(fleet_profile(devices)),
        events=lambda devices: fleet_events(fleet_profile(devices)),
        measure=measure_devices,
        targets={"device": 2_048},
        growing=Growing(
            (30, 20),
            (3, 4),
            lambda devices, _days: machines(slow_profile(devices)),
            fleet_days,
            _SLOW_BATCH,
        ),
    ),
    "clickstream": StateBench(
        shape=f"about {_OPEN_S} s of a shop, a fifth as many people with an account",
        usual=1_000_000,
        quick=500,
        make=shop,
        events=clicks,
        measure=measure_visitors,
        targets={"visitor": 1_000},
    ),
    "ridesharing": StateBench(
        shape=f"a position every {_POSITION_S} s, for about {_DRIVEN_S} s; one region",
        usual=16_000,
        quick=400,
        make=city,
        events=rides,
        measure=measure_drivers,
        targets={"driver": 300},
    ),
    "fraud": StateBench(
        shape=f"the Handbook's payments: {_HANDBOOK_DAYS} days, two terminals a customer",
        usual=_HANDBOOK_CUSTOMERS,
        quick=100,
        make=histories,
        events=recorded,
        measure=measure_histories,
        targets={"customer": 2_000, "terminal": 1_000},
        # Every window, and the label delay before it, is full from the 37th day on: by thirds of 111 days
        # all of what is compared is behind that.
        growing=Growing((111, 500), (3, 50), histories, recorded_days, 500),
    ),
    "fraud-live": StateBench(
        shape=f"{_PURCHASES} purchases a card in {_DAYS} days, {_CARDS_PER_TERMINAL} cards a terminal",
        usual=20_000,
        quick=100,
        make=payments,
        events=purchases,
        measure=measure_cards,
        targets={"customer": 2_000},
    ),
}

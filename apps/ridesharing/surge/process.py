"""Who asks and which cars are free, by cell, in the last five minutes; the multiplier that follows from it.

Per cell, the requests of the last five minutes over the cars that were free on average, each with a share of
the neighbours'. The multiplier moves towards what that ratio asks for, by a step at most, and only if it is
off by more than a band; after it has begun to fall it does not rise again for an hour.
"""

from __future__ import annotations

from typing import Final, Literal

import h3
import msgspec

from millrace import Context, KeyedProcess, Timer, event_time, map_state, side_output, value_state

_EPOCH: Final = "epoch"
#: A multiplier is told in hundredths.
_DIGITS: Final = 2


class SurgeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How prices follow scarcity. All times are ms of event time.

    Attributes:
        resolution: H3 resolution of the cells.
        epoch_ms: How often multipliers are decided.
        epochs: Over so many of these what is counted slides: ten of half a minute are five minutes.
        neighbours: Share with which each neighbouring cell counts.
        balance: Requests per free car, in the time that is counted, up to which the price is the usual one.
        power: How steeply the multiplier follows the ratio over ``balance``.
        prior_cars: So many cars in balance count in every cell, so that few requests are no scarcity.
        band: The multiplier stays unless it is off by more than this.
        step: By how much it moves in an epoch at most.
        cap: Its largest value.
        turn_band: The same for a first step the other way.
        hold_ms: So long it stays after a rise before it falls.
        rise_again_ms: So long after it began to fall it does not rise: it turns twice in that time at most.
        ttl_ms: A car that was not heard of for so long is not free.
    """

    resolution: int = 8
    epoch_ms: int = 30_000
    epochs: int = 10
    neighbours: float = 0.3
    balance: float = 2.2
    power: float = 0.6
    prior_cars: float = 1.0
    band: float = 0.15
    step: float = 0.2
    cap: float = 3.0
    turn_band: float = 0.5
    hold_ms: int = 900_000
    rise_again_ms: int = 3_600_000
    ttl_ms: int = 150_000

    def target(self, asked: float, free: float) -> float:
        """Return the multiplier that requests and free cars of a cell and its neighbours ask for.

        >>> SurgeConfig().target(asked=0.0, free=10.0), SurgeConfig().target(asked=1e9, free=0.0)
        (1.0, 3.0)
        """
        ratio = (asked + self.prior_cars * self.balance) / (free + self.prior_cars)
        return float(min(max((ratio / self.balance) ** self.power, 1.0), self.cap))


class Seen(msgspec.Struct, frozen=True, gc=False):
    """Somebody asks what a ride costs, or a car is free, or is not any more.

    Attributes:
        what: ``asks``, ``free``, ``busy``.
        subject: The quote or the driver.
        region: The region.
        at_ms: When, UTC ms.
        lat: Where, degrees.
        lon: Where, degrees.
    """

    what: Literal["asks", "free", "busy"]
    subject: str
    region: str
    at_ms: int
    lat: float
    lon: float


class Quote(msgspec.Struct, frozen=True, gc=False):
    """The multiplier that somebody was told; it holds for their request, whatever comes after.

    Attributes:
        quote_id: Whose.
        cell: Their cell.
        at_ms: When, UTC ms.
        multiplier: The multiplier in force there.
        why: What it follows from.
    """

    quote_id: str
    cell: str
    at_ms: int
    multiplier: float
    why: str


class Priced(msgspec.Struct, frozen=True, gc=False):
    """A cell has another multiplier.

    Attributes:
        region: The region.
        cell: The cell.
        at_ms: From when on, UTC ms.
        multiplier: The multiplier.
        target: What the ratio asks for.
        asked: Requests in the time that is counted, with the neighbours' share.
        free: Cars free on average in that time, with the neighbours' share.
    """

    region: str
    cell: str
    at_ms: int
    multiplier: float
    target: float
    asked: float
    free: float


class Cell(msgspec.Struct, array_like=True):
    """What is known of a cell.

    Attributes:
        asks: Requests by epoch.
        free: Free cars at the end of each epoch.
        multiplier: The multiplier.
        rising: 1 if it rose last, -1 if it fell.
        moved_ms: When it rose last, or began to fall, UTC ms.
        asked_near: Requests that it follows from, of the last epoch.
        free_near: Cars that it follows from.
    """

    asks: list[int]
    free: list[int]
    multiplier: float = 1.0
    rising: int = 0
    moved_ms: int = 0
    asked_near: float = 0.0
    free_near: float = 0.0


class Car(msgspec.Struct, array_like=True):
    """A free car.

    Attributes:
        cell: Where.
        at_ms: When it was heard of, UTC ms.
    """

    cell: str
    at_ms: int


class Surge(KeyedProcess[Seen, Quote]):
    """Tells quotes (``main``), and multipliers when they change (``priced``); its key is the region.

    Args:
        config: How prices follow scarcity.
    """

    order = event_time()
    priced = side_output(Priced)
    cells = map_state(str, Cell, paged=True)
    cars = map_state(str, Car, paged=True)
    epoch = value_state(int, default=-1)

    def __init__(self, config: SurgeConfig | None = None) -> None:
        self.config = config or SurgeConfig()

    def process(self, event: Seen, ctx: Context) -> None:
        """Count a request and quote it, or note a car."""
        config = self.config
        self._close(event.at_ms // config.epoch_ms, event.region, ctx)
        if event.what == "busy":
            self.cars.remove(event.subject)
            return
        name = h3.latlng_to_cell(event.lat, event.lon, config.resolution)
        if event.what == "free":
            self.cars.put(event.subject, Car(name, event.at_ms))
        else:
            cell = self.cells.get(name) or self._empty()
            ctx.emit(Quote(event.subject, name, event.at_ms, cell.multiplier, _why(cell, config)))
            cell.asks[self.epoch.value % config.epochs] += 1
            self.cells.put(name, cell)
        ctx.timers.at((self.epoch.value + 1) * config.epoch_ms, _EPOCH)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """End an epoch."""
        self._close(timer.at // self.config.epoch_ms, str(ctx.key), ctx)
        if len(self.cells) or len(self.cars):
            ctx.timers.at((self.epoch.value + 1) * self.config.epoch_ms, _EPOCH)

    def _empty(self) -> Cell:
        return Cell([0] * self.config.epochs, [0] * self.config.epochs)

    def _close(self, until: int, region: str, ctx: Context) -> None:
        """End the epochs before one; with no car and no cell left there is nothing to decide."""
        epoch = self.epoch.value
        while 0 <= epoch < until and (len(self.cells) or len(self.cars)):
            self._end(epoch, region, ctx)
            epoch += 1
        self.epoch.value = until

    def _end(self, epoch: int, region: str, ctx: Context) -> None:
        config, place = self.config, epoch % self.config.epochs
        end_ms = (epoch + 1) * config.epoch_ms
        free: dict[str, int] = {}
        for driver, car in list(self.cars.items()):
            if end_ms - car.at_ms > config.ttl_ms:
                self.cars.remove(driver)
            else:
                free[car.cell] = free.get(car.cell, 0) + 1
        cells = dict(self.cells.items())
        for name in free.keys() - cells.keys():
            cells[name] = self._empty()
        if config.neighbours:  # a cell that nobody has asked in yet is as scarce as those around it
            for name in [name for name, cell in cells.items() if any(cell.asks)]:
                for other in h3.grid_ring(name, 1):
                    cells.setdefault(other, self._empty())
        for name, cell in cells.items():
            cell.free[place] = free.get(name, 0)
        asked = {name: float(sum(cell.asks)) for name, cell in cells.items()}
        cars = {name: sum(cell.free) / config.epochs for name, cell in cells.items()}
        for name, cell in sorted(cells.items()):
            near = [other for other in h3.grid_ring(name, 1) if other in cells]
            cell.asked_near = asked[name] + config.neighbours * sum(asked[other] for other in sorted(near))
            cell.free_near = cars[name] + config.neighbours * sum(cars[other] for other in sorted(near))
            target = config.target(cell.asked_near, cell.free_near)
            if move(cell, target, end_ms, config):
                ctx.output(
                    self.priced,
                    Priced(region, name, end_ms, cell.multiplier, target, cell.asked_near, cell.free_near),
                )
            cell.asks[(epoch + 1) % config.epochs] = 0
            turned = cell.rising and end_ms - cell.moved_ms < config.rise_again_ms
            if turned or cell.multiplier > 1.0 or any(cell.asks) or any(cell.free):
                self.cells.put(name, cell)
            else:
                self.cells.remove(name)


def move(cell: Cell, target: float, now_ms: int, config: SurgeConfig) -> bool:
    """Move a cell's multiplier towards a target; return whether it is another one.

    Args:
        cell: The cell, which is changed.
        target: What the ratio asks for.
        now_ms: The end of the epoch, UTC ms.
        config: Band, step and hold.
    """
    off = target - cell.multiplier
    rising = 1 if off > 0 else -1
    turns = cell.rising not in (0, rising)
    home = target == 1.0 and cell.multiplier > 1.0
    if not home and abs(off) <= (config.turn_band if turns and cell.multiplier > 1.0 else config.band):
        return False
    if turns and now_ms - cell.moved_ms < (config.hold_ms if rising < 0 else config.rise_again_ms):
        return False
    moved = round(cell.multiplier + min(max(off, -config.step), config.step), _DIGITS)
    if moved == cell.multiplier:
        return False
    cell.multiplier = moved
    if rising > 0 or turns:
        cell.moved_ms = now_ms
    cell.rising = rising
    return True


def _why(cell: Cell, config: SurgeConfig) -> str:
    minutes = config.epochs * config.epoch_ms / 60_000
    return (
        f"{cell.asked_near:.1f} asked in {minutes:g} min, {cell.free_near:.1f} cars free, cell and neighbours"
    )

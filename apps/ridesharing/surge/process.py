"""Who asks and waits, and which cars there are, by cell, in the last five minutes; the multiplier from that.

Per cell, the riders who asked in the last five minutes, each once, and those who wait for a car, over the
cars that were taken in that time and a share of those that stand free, each with a share of the neighbours'.
The multiplier follows what that ratio asks for, by a step at most: up where it has asked for much more for
some epochs, down where the crowd is gone and it has asked for less for some minutes. After it began to rise
it does not fall for a while, and after it began to fall it does not rise for the rest of an hour: it turns
twice an hour at most. A quote has the multiplier in force, and whoever takes it in time keeps it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import h3
import msgspec

from millrace import (
    BroadcastContext,
    Context,
    KeyedProcess,
    Timer,
    broadcast_state,
    hours,
    map_state,
    side_output,
    value_state,
)
from millrace_apps.ridesharing.contracts.events import Control, SetSurgeCap
from millrace_apps.ridesharing.surge.config import REMEMBER_MS, SurgeConfig
from millrace_apps.ridesharing.surge.records import (
    Asked,
    Fare,
    FreeCars,
    Multiplier,
    Outcome,
    Quote,
    SurgeCount,
)

_EPOCH: Final = "epoch"
#: A multiplier is told in hundredths.
_DIGITS: Final = 2
#: So many caps are remembered: the one in force, and those that are to come.
_MOST_CAPS: Final = 50
_HOUR_MS: Final = 3_600_000


class Cell(msgspec.Struct, array_like=True):
    """What is known of a cell.

    Attributes:
        asks: Requests by epoch.
        free: Free cars at the end of each epoch.
        multiplier: The multiplier.
        rising: 1 if it rose last, -1 if it fell.
        moved_ms: When it began to rise, or to fall, UTC ms.
        demand: Demand that it follows from, of the last epoch.
        supply: Supply that it follows from.
        taken: Cars that were taken in each epoch.
        waiting: Riders who waited at the end of each epoch.
        targets: What the ratio asked for at the ends of the last epochs, the newest last.
        crowd: The most who asked, with the neighbours' share, when it rose last.
    """

    asks: list[int]
    free: list[int]
    multiplier: float = 1.0
    rising: int = 0
    moved_ms: int = 0
    demand: float = 0.0
    supply: float = 0.0
    taken: list[int] = msgspec.field(default_factory=list)
    waiting: list[int] = msgspec.field(default_factory=list)
    targets: list[float] = msgspec.field(default_factory=list)
    crowd: float = 0.0


class Held(msgspec.Struct, array_like=True):
    """A quote that may be taken.

    Attributes:
        rider_id: Whose.
        cell: For a pick-up in this cell or one beside it.
        at_ms: When it was made, UTC ms.
        multiplier: The multiplier.
        booked: Whether it is for a ride that is booked ahead.
        why: What it follows from.
        request_id: The request that has taken it.
    """

    rider_id: str
    cell: str
    at_ms: int
    multiplier: float
    booked: bool
    why: str
    request_id: str = ""


class Surge(KeyedProcess[FreeCars | Asked, Quote]):
    """Tells quotes (``main``), what requests are charged by (``fares``), multipliers; keyed by region.

    What is asked in the millisecond in which an epoch ends has the multiplier of the next one; which cars
    are free then is known before, since that input is handled first.

    Args:
        config: How prices follow scarcity.
    """

    order = "event_time"
    inputs: ClassVar = {"free": FreeCars, "asks": Asked}
    control_type: ClassVar[object] = Control

    cells = map_state(str, Cell, paged=True)
    held = map_state(str, Held, paged=True, ttl=hours(2))
    #: Rider → when they last counted as demand, UTC ms.
    counted = map_state(str, int, paged=True, ttl=hours(2))
    epoch = value_state(int, default=-1)
    #: The newest cap that the cells are held to, by its name in ``caps``.
    lowered = value_state(str, default="")
    #: From when on and by which command → cap.
    caps = broadcast_state(str, float)

    fares = side_output(Fare)
    multipliers = side_output(Multiplier)
    counts = side_output(SurgeCount)

    def __init__(self, config: SurgeConfig | None = None) -> None:
        config = config or SurgeConfig()
        self.config = msgspec.structs.replace(config, cap=in_hundredths(config.cap))

    def process(self, event: FreeCars | Asked, ctx: Context) -> None:
        """Take free cars down, or quote and charge."""
        self._take(event, ctx.event_time, ctx)

    def on_late(self, event: FreeCars | Asked, ctx: Context) -> None:
        """Whoever asks late asks now."""
        self._take(event, max(ctx.event_time, ctx.watermark), ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """End an epoch."""
        self._go_on(timer.at // self.config.epoch_ms, ctx)
        self._lower(timer.at, ctx)
        if self.cells:
            ctx.timers.at((self.epoch.value + 1) * self.config.epoch_ms, _EPOCH)
        else:
            self.epoch.clear()
            self.lowered.clear()

    def process_broadcast(self, control: Control, ctx: BroadcastContext) -> None:
        """Take another cap, from an event time on; nothing else concerns prices."""
        if isinstance(control, SetSurgeCap):
            from_ms = max(control.from_ms, ctx.watermark + 1, 0)
            same = [name for name, start, _ in self.caps.view(_in_order) if start == from_ms]
            for name in same:  # of one moment what is said last holds, whatever it is called
                self.caps.remove(name)
            self.caps.put(f"{from_ms:020d} {control.command_id}", in_hundredths(control.cap))
            names = sorted(name for name, _ in self.caps.items())
            if len(names) > _MOST_CAPS:
                # What has been in force is forgotten first, the oldest of it; else what holds last.
                over = [name for name in names if int(name.partition(" ")[0]) <= ctx.watermark][:-1]
                self.caps.remove(over[0] if over else names[-1])

    # -- what comes ------------------------------------------------------------------------------

    def _take(self, event: FreeCars | Asked, now: int, ctx: Context) -> None:
        config = self.config
        if isinstance(event, FreeCars):
            # It is of the epoch that ends now.
            self._go_on(now // config.epoch_ms - 1, ctx)
            place = self.epoch.value % config.epochs
            for name in {*event.cells, *event.taken, *event.waiting}:
                cell = self._cell(name)
                cell.free[place] += event.cells.get(name, 0)
                cell.taken[place] += event.taken.get(name, 0)
                cell.waiting[place] += event.waiting.get(name, 0)
                self.cells.put(name, cell)
        else:
            self._go_on(now // config.epoch_ms, ctx)
            self._lower(now, ctx)
            self._ask(event, now, ctx)
        if self.cells:
            ctx.timers.at((self.epoch.value + 1) * config.epoch_ms, _EPOCH)

    def _ask(self, event: Asked, now: int, ctx: Context) -> None:
        config, name = self.config, event.cell
        cell = self._cell(name)
        booked = event.ahead_ms > config.ahead_ms
        now_is = 1.0 if booked else cell.multiplier
        why = "booked ahead: the usual price" if booked else self._why(cell, now)
        if event.what == "quote":
            self.held.put(event.subject, Held(event.rider_id, name, now, now_is, booked, why))
            until = now + config.valid_ms
            ctx.emit(Quote(event.subject, event.rider_id, event.region, name, now, now_is, until, why))
        else:
            outcome, held = self._redeem(event, booked, now)
            if held is not None:
                now_is, why = held.multiplier, held.why
            elif event.quote_id:
                why = f"quote {outcome}; {why}"
            whose = event.subject, event.rider_id, event.quote_id
            ctx.output(self.fares, Fare(*whose, event.region, name, now, now_is, outcome, why))
            if held is not None:
                return  # who takes a quote has been counted when asking for it
        last = self.counted.get(event.rider_id)
        if not booked and (last is None or now - last >= config.epochs * config.epoch_ms):
            self.counted.put(event.rider_id, now)
            cell.asks[self.epoch.value % config.epochs] += 1
            self.cells.put(name, cell)

    def _redeem(self, event: Asked, booked: bool, now: int) -> tuple[Outcome, Held | None]:
        """Return what becomes of the quote that a request carries, and the quote if the request keeps it."""
        if not event.quote_id:
            return "booked" if booked else "none", None
        held = self.held.get(event.quote_id)
        if held is None or now - held.at_ms > REMEMBER_MS:
            return "unknown", None
        if held.rider_id != event.rider_id:
            return "foreign", None
        if held.request_id:
            return "used", None
        if held.booked != booked or not _is_beside(held.cell, event.cell):
            return "elsewhere", None
        if now > held.at_ms + self.config.valid_ms:
            return "expired", None
        held.request_id = event.subject
        self.held.put(event.quote_id, held)
        return "locked", held

    def _why(self, cell: Cell, now: int) -> str:
        config = self.config
        minutes = config.epochs * config.epoch_ms / 60_000
        cap = self._cap(now)
        return (
            f"{cell.demand:.1f} asked in {minutes:g} min or wait, {cell.supply:.1f} cars, cell and neighbours"
            + (f"; {cap:g} is the most" if cell.multiplier >= cap else "")
        )

    # -- time ------------------------------------------------------------------------------------

    def _empty(self) -> Cell:
        none = [0] * self.config.epochs
        return Cell(none, none[:], taken=none[:], waiting=none[:])

    def _cell(self, name: str) -> Cell:
        """Return what is known of a cell; one that is kept from before may lack what was not counted then."""
        cell = self.cells.get(name)
        return self._empty() if cell is None else self._whole(cell)

    def _whole(self, cell: Cell) -> Cell:
        for counts in (cell.taken, cell.waiting):
            counts += [0] * (self.config.epochs - len(counts))
        return cell

    def _go_on(self, until: int, ctx: Context) -> None:
        """End the epochs before one; without a cell there is nothing to decide."""
        epoch = self.epoch.value
        while 0 <= epoch < until and self.cells:
            self._lower((epoch + 1) * self.config.epoch_ms, ctx)
            self._end(epoch, ctx)
            epoch += 1
        self.epoch.value = max(epoch, until)

    def _end(self, epoch: int, ctx: Context) -> None:
        config, place = self.config, epoch % self.config.epochs
        end_ms = (epoch + 1) * config.epoch_ms
        cap = self._cap(end_ms)
        cells = {name: self._whole(cell) for name, cell in self.cells.items()}
        asked = {name: sum(cell.asks) for name, cell in cells.items()}
        waits = {name: cell.waiting[place] for name, cell in cells.items()}
        if config.neighbours:  # a cell that nobody has asked in yet is as scarce as those around it
            some = [name for name in cells if asked[name] or waits[name]]
            beside = {other for name in some for ring in around(name, config.rings) for other in ring}
            for other in beside.difference(cells):
                if config.regions.is_one or config.regions.of_zone(other) == ctx.key:
                    cells[other] = self._empty()
        taken = {name: sum(cell.taken) for name, cell in cells.items()}
        stands = {name: cell.free[place] for name, cell in cells.items()}
        for name, cell in sorted(cells.items()):
            near = around(name, config.rings)
            crowd = config.with_neighbours(near, asked)
            cell.demand = crowd + config.queue * config.with_neighbours(near, waits)
            stood = config.with_neighbours(near, stands)
            cell.supply = config.with_neighbours(near, taken) + config.stock * stood
            before, target = cell.multiplier, config.target(cell.demand, cell.supply)
            if move(cell, target, crowd, cap, end_ms, config):
                self._emit_price(name, cell, before, min(target, cap), end_ms, self._why(cell, end_ms), ctx)
            now = cell.asks[place], cell.free[place], cell.multiplier, cell.taken[place], cell.waiting[place]
            if cell.asks[place] or cell.free[place] or cell.taken[place] or cell.waiting[place]:
                ctx.output(self.counts, SurgeCount(str(ctx.key), name, end_ms, *now))
            after = (epoch + 1) % config.epochs
            counts = cell.asks, cell.free, cell.taken, cell.waiting
            for told in counts:
                told[after] = 0
            turned = cell.rising and end_ms - cell.moved_ms < _HOUR_MS
            if turned or cell.multiplier > 1.0 or max(cell.targets) > 1.0 or any(map(any, counts)):
                self.cells.put(name, cell)
            else:
                self.cells.remove(name)

    def _emit_price(
        self,
        name: str,
        cell: Cell,
        before: float,
        target: float,
        at: int,
        why: str,
        ctx: Context,
    ) -> None:
        about = (str(ctx.key), name, at, cell.multiplier, before, round(target, 4))
        near = round(cell.demand, 4), round(cell.supply, 4)
        ctx.output(self.multipliers, Multiplier(*about, *near, self._cap(at), why))

    # -- the cap ---------------------------------------------------------------------------------

    def _cap(self, at: int) -> float:
        """Return the largest multiplier at a time, UTC ms."""
        return next(
            (cap for _, start, cap in reversed(self.caps.view(_in_order)) if start <= at), self.config.cap
        )

    def _lower(self, until: int, ctx: Context) -> None:
        """Hold the cells to each cap that came into force by a time, from that moment on."""
        for name, start, cap in self._new_caps(until):
            self.lowered.value = name
            for of, cell in sorted(self.cells.items()):
                if cell.multiplier > cap:
                    before = cell.multiplier
                    cell.multiplier = cap
                    if cell.rising >= 0:  # it rises again when it would if it had fallen when it might
                        cell.rising, cell.moved_ms = -1, max(start, cell.moved_ms + self.config.hold_ms)
                    self.cells.put(of, cell)
                    self._emit_price(of, cell, before, cap, start, f"the cap was set to {cap:g}", ctx)

    def _new_caps(self, until: int) -> Iterator[tuple[str, int, float]]:
        lowered = self.lowered.value
        for name, start, cap in self.caps.view(_in_order):
            if name > lowered and start <= until:
                yield name, start, cap


def in_hundredths(cap: float) -> float:
    """Return a cap as multipliers are told: in hundredths, no larger than it is.

    >>> in_hundredths(1.999), in_hundredths(1.1)
    (1.99, 1.1)
    """
    near = round(cap, _DIGITS)
    return near if near <= cap else round(near - 0.01, _DIGITS)


def _in_order(entries: list[tuple[str, Any]]) -> list[tuple[str, int, float]]:
    return [(name, int(name.partition(" ")[0]), cap) for name, cap in sorted(entries)]


def _is_beside(one: str, other: str) -> bool:
    """Return whether a cell is another, or touches it."""
    return one == other or other in h3.grid_ring(one, 1)


@functools.lru_cache(maxsize=65_536)
def around(cell: str, rings: int) -> tuple[tuple[str, ...], ...]:
    """Return a cell and its neighbours, ring by ring."""
    return tuple(tuple(sorted(h3.grid_ring(cell, ring))) for ring in range(rings + 1))


def move(cell: Cell, target: float, crowd: float, cap: float, now_ms: int, config: SurgeConfig) -> bool:
    """Move a cell's multiplier towards what the ratio asks for; return whether it is another one.

    Args:
        cell: The cell, which is changed.
        target: What the ratio asks for now.
        crowd: Who asked in the time that is counted, with the neighbours' share.
        cap: The largest multiplier.
        now_ms: The end of the epoch, UTC ms.
        config: Slack, band, step and hold.
    """
    cell.targets = [*cell.targets, target][-config.fall_epochs :]
    lately = cell.targets[-config.rise_epochs :]
    least = min(lately) if len(lately) == config.rise_epochs else 1.0
    up_to = min(max(least / (1.0 + config.slack), 1.0), cap)
    down_to = min(max(cell.targets), cap)
    now = cell.multiplier
    if up_to >= now + config.band:
        goal, way = up_to, 1
    elif (down_to <= now - config.band or down_to == 1.0 < now) and (
        not cell.crowd or crowd <= config.gone * cell.crowd
    ):
        goal, way = down_to, -1
    else:
        return False
    turns = cell.rising not in (0, way)
    if turns and now_ms - cell.moved_ms < (config.hold_ms if way < 0 else config.rise_again_ms):
        return False
    moved = round(now + min(max(goal - now, -config.step), config.step), _DIGITS)
    if moved == now:
        return False
    if way > 0:
        cell.crowd = max(crowd, cell.crowd if cell.rising > 0 else 0.0)
    if cell.rising != way:
        cell.rising, cell.moved_ms = way, now_ms
    cell.multiplier = moved
    return True

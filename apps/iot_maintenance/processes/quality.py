"""Quality of a reading: good, uncertain or bad, and why.

Judged by what the sensor has measured before: a value that is not there, out of the physical range, in
another unit, the same again and again, noisier than the sensor is, or a jump. A jump is *uncertain* until
the next reading: if that stays there, the level has moved; if it is back, the one between was a spike.

A sensor that shows whole degrees says the same for long: how often it usually does is learned, and its step
is never taken for smaller than the smallest that it has shown. What stands still because it is switched off
is not stuck. Where more is known of a quantity, its limits say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Final, Literal, NamedTuple

import msgspec

Quality = Literal["good", "uncertain", "bad"]
#: Why a reading is not good; of ``spike`` it is the reading before that was.
Fault = Literal["", "missing", "range", "unit", "stuck", "noise", "rate", "spike", "gap"]

#: So many equal values in a row are a stuck sensor, and so many times as many as it usually shows.
STUCK: Final = 6
OFTEN: Final = 4
#: Usual numbers of equal values are kept in sixteenths, and forgotten by a fiftieth at a time.
_PARTS: Final = 16
_FADES: Final = 50
#: A sensor that usually shows so many equal values in a row shows steps.
_STEPPED: Final = 3 * _PARTS
#: A step of so many times the sensor's usual one is a jump.
JUMP: Final = 12.0
#: The last steps so many times as large as usual are noise.
LOUD: Final = 5.0
#: So many steps are looked at for noise; the sensor's own measure is believed from ``LEARN`` values on.
STEPS: Final = 6
LEARN: Final = 30
#: An interval so many times the usual one is a gap.
GAP: Final = 3.0
#: Nothing that is measured is larger; squares and sums of what is smaller stay finite.
_HUGE: Final = 1e15
#: Weight of the newest step, and interval, in the usual one.
_ALPHA: Final = 0.05

#: Unit → other units it is mistaken for: factor and offset that make the right value of the wrong one.
_OTHER: Final[Mapping[str, tuple[tuple[str, float, float], ...]]] = {
    "degC": (("degF", 5 / 9, -160 / 9), ("K", 1.0, -273.15)),
    "bar": (("psi", 1 / 14.5038, 0.0), ("kPa", 0.01, 0.0)),
    "mm/s": (("in/s", 25.4, 0.0),),
    "A": (("mA", 0.001, 0.0),),
    "kW": (("W", 0.001, 0.0),),
    "rpm": (("Hz", 60.0, 0.0),),
    "m3/h": (("l/min", 0.06, 0.0),),
}


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a quantity before anything is measured.

    Attributes:
        unit: Its unit; empty: that of a sensor's first reading.
        low: Nothing less is physically possible.
        high: Nothing more is.
        resolution: The smallest step that the sensor shows; 0: learned.
        stuck: So many equal values are a stuck sensor; 0: learned.
        stuck_ms: Or the same for so long, ms; 0: by number.
        rest: What it shows, or less, while its machine is off: that is not stuck.
        by_exception: It speaks only when its value changes: it has no interval, and is not stuck by number.
        silent_ms: It is silent after so long, ms; 0: by its interval.
        window_ms: Length of its moving mean by time, and of its trend, ms; 0: as all have it.
        values: Length of its moving mean by number; 0: as all have it.
    """

    unit: str = ""
    low: float | None = None
    high: float | None = None
    resolution: float = 0.0
    stuck: int = 0
    stuck_ms: int = 0
    rest: float | None = None
    by_exception: bool = False
    silent_ms: int = 0
    window_ms: int = 0
    values: int = 0


class Judged(NamedTuple):
    """What a reading is worth.

    Attributes:
        quality: Whether it is to be believed.
        fault: Why not.
        value: The value in the sensor's unit that statistics and process alarms may use, ``None`` for none.
    """

    quality: Quality
    fault: Fault
    value: float | None


class Sensor(msgspec.Struct, array_like=True, gc=False):
    """What a sensor has been like so far.

    Attributes:
        at: Time of its last reading, ms; -1 before the first.
        value: Its last believed value.
        raw: Its last value as it came.
        unit: Its unit.
        count: Values judged.
        step: Its usual step from value to value.
        interval: Its usual interval, ms.
        same: How often the last value has come in a row.
        suspect: A jump that waits for the next reading.
        wrong_unit: Place of the unit that its values seem to be in, from 1; 0: the right one.
        loud: The last steps in tenths of the usual one, newest last; whole numbers are kept in less space.
        name: Its name, where it is known by that alone and by no measuring point.
        longest: How many equal values in a row it usually shows at most, in sixteenths.
        quantum: The smallest step that it has shown.
        same_since: Since when its value is the same, ms, where that is asked for; -1: it is not.
    """

    at: int = -1
    value: float = 0.0
    raw: float | None = None
    unit: str = ""
    count: int = 0
    step: float = 0.0
    interval: float = 0.0
    same: int = 1
    suspect: float | None = None
    wrong_unit: int = 0
    loud: tuple[int, ...] = ()
    name: str = ""
    longest: int = _PARTS
    quantum: float = 0.0
    same_since: int = -1

    def judge(
        self,
        at: int,
        value: float | None,
        unit: str,
        limits: Limits,
        follow: bool = True,
        works: bool = False,
    ) -> Judged:
        """Judge a reading and remember it.

        Args:
            at: Its time, ms; not before the one before.
            value: Its value.
            unit: The unit it says it is in.
            limits: What is known of the quantity.
            follow: Whether to judge it by those before it, too.
            works: Whether it is known that the machine works: then nothing is off.

        Example:
            >>> sensor = Sensor()
            >>> sensor.judge(0, 21.0, "degC", Limits(high=150.0))
            Judged(quality='good', fault='', value=21.0)
            >>> sensor.judge(1000, 70.7, "degF", Limits(high=150.0))
            Judged(quality='uncertain', fault='unit', value=21.5)
            >>> sensor.judge(2000, None, "degC", Limits()).fault
            'missing'
            >>> sensor.judge(3000, 500.0, "degC", Limits(high=150.0)).fault
            'range'
        """
        late = self._keep_time(at)
        if value is None:
            return _MISSING
        if not self.unit:
            self.unit = limits.unit or unit
        converted = False
        if unit != self.unit:
            right = _convert(value, unit, self.unit)
            if right is None:
                return Judged("bad", "unit", None)
            value, converted = right, True
        low, high = limits.low, limits.high
        if abs(value) > _HUGE or (high is not None and value > high) or (low is not None and value < low):
            self.raw = value
            return _IMPOSSIBLE
        if not follow:
            self.count, self.value = self.count + 1, value
            return Judged("uncertain", "unit", value) if converted else Judged("good", "", value)
        found = self._follow(value, at, limits, works)
        if converted and found.value is not None:
            return Judged("uncertain", "unit", found.value)
        if late and found.quality == "good" and not found.fault and not limits.by_exception:
            return Judged("uncertain", "gap", found.value)
        return found

    def _keep_time(self, at: int) -> bool:
        """Remember when the reading came; return whether there was a gap before it."""
        if self.at < 0:
            self.at = at
            return False
        took = at - self.at
        self.at = at
        usual = self.interval
        if not usual:
            self.interval = float(took)
            return False
        late = took > GAP * usual and self.count >= STEPS
        # A gap counts as a long interval, not as what it is: else the sensor would be forgiven the next.
        long = 2.0 * usual
        self.interval = usual + _ALPHA * ((took if took < long else long) - usual)
        return late

    def _follow(self, value: float, at: int, limits: Limits, works: bool) -> Judged:
        """Judge a value by those before it."""
        before, self.raw = self.raw, value
        count, usual = self.count, self.step
        if not count or before is None:
            self.count, self.value = count + 1, value
            return Judged("good", "", value)
        learned = count >= LEARN and usual > 0.0
        step = value - before
        size = abs(step)
        if size:
            if self.same > 1 or self.longest > _PARTS or size < self.quantum or not self.quantum:
                self._changed(size, learned)
            if limits.stuck_ms:
                self.same_since = at
        else:
            self.same += 1
            if not works and (value == 0.0 or (limits.rest is not None and value <= limits.rest)):
                self.count, self.value, self.suspect = count + 1, value, None
                return Judged("good", "", value)  # it is off: that says nothing of what is usual
            if learned and self._is_stuck(at, limits):
                return Judged("bad", "stuck", None)
            if learned and self.same >= STUCK:
                self.count, self.value = count + 1, value
                return Judged("good", "", value)
        if limits.resolution > usual:
            usual = limits.resolution
        elif self.longest >= _STEPPED and self.quantum > usual:
            usual = self.quantum
        if learned:
            self.loud = loud = (*self.loud[1 - STEPS :], _tenths(step / usual))
            if size > LOUD * usual and _is_noise(loud):
                self.suspect, self.value = None, value
                return Judged("bad", "noise", None)
            away = abs(value - self.value)
            if self.wrong_unit:
                return self._in_wrong_unit(value)
            if away > JUMP * usual:
                return self._jumped(value, away)
            if self.suspect is not None:
                first, before, self.suspect, self.value = self.suspect, self.value, None, value
                if abs(value - before) < abs(value - first):
                    return Judged("good", "spike", value)  # back where it was: the one between was no level
                return Judged("good", "", value)
        self.count = count = count + 1
        kept = self.step
        if count <= LEARN:
            self.step = kept + (size - kept) / (count - 1)
        else:
            most = 4.0 * usual
            self.step = kept + _ALPHA * ((size if size < most else most) - kept)
        self.value = value
        return _judged(("good", "", value))

    def _changed(self, size: float, learned: bool) -> None:
        """Take that the value is another: learn how often it was the same, unless it was stuck."""
        if not self.quantum or size < self.quantum:
            self.quantum = size
        run, self.same = _PARTS * self.same, 1
        more = run - self.longest
        if more <= 0:
            self.longest += more // _FADES
        elif not learned or size <= 1.5 * self.quantum or run < OFTEN * self.longest:
            self.longest = run

    def _is_stuck(self, at: int, limits: Limits) -> bool:
        """Return whether so many equal values, or for so long, are too many."""
        if limits.stuck_ms:
            if self.same_since < 0:
                self.same_since = at
            return at - self.same_since >= limits.stuck_ms
        if limits.by_exception:
            return False
        often = OFTEN if self.longest < _STEPPED else 2 * OFTEN
        return self.same >= (limits.stuck or max(STUCK, often * self.longest // _PARTS))

    def _jumped(self, value: float, away: float) -> Judged:
        """Judge a value that is far from the last believed one."""
        first, self.suspect = self.suspect, value
        seems = self._seems(value)
        if first is None or abs(value - first) > max(0.5 * away, JUMP * self.step):
            return Judged("uncertain", "rate", None)
        self.suspect = None
        if seems and seems == self._seems(first):
            self.wrong_unit = seems
            return self._in_wrong_unit(value)
        self.value = value
        return Judged("good", "", value)

    def _in_wrong_unit(self, value: float) -> Judged:
        """Judge a value of a sensor that seems to measure in another unit than it says."""
        _, factor, offset = _OTHER[self.unit][self.wrong_unit - 1]
        right = value * factor + offset
        if abs(right - self.value) <= self._near(self.value):
            self.value = right
            return Judged("bad", "unit", None)
        self.wrong_unit = 0
        self.value = value
        return Judged("good", "", value)

    def _seems(self, value: float) -> int:
        """Return the place of the unit in which the value would be what was before, from 1; 0 for none."""
        if abs(self.value) <= 2.0 * JUMP * self.step:
            return 0  # near nothing every unit says the same
        for place, (_, factor, offset) in enumerate(_OTHER.get(self.unit, ()), start=1):
            if abs(value * factor + offset - self.value) <= self._near(self.value):
                return place
        return 0

    def _near(self, value: float) -> float:
        return max(0.05 * abs(value), 0.25 * JUMP * self.step)


def _is_noise(steps: tuple[int, ...]) -> bool:
    """Return whether steps are large, and to and fro: a ramp is none."""
    if len(steps) < STEPS or median(map(abs, steps)) <= 10 * LOUD:
        return False
    return abs(sum(steps)) < 0.5 * sum(map(abs, steps))


def _tenths(step: float) -> int:
    if -3200.0 < step < 3200.0:
        return int(step * 10.0)
    return 32_000 if step > 0.0 else -32_000


# As Judged(...), which goes through a function in Python: one is made for every reading.
_judged: Final[Callable[[tuple[Quality, Fault, float | None]], Judged]] = partial(tuple.__new__, Judged)
_IMPOSSIBLE: Final = Judged("bad", "range", None)
_MISSING: Final = Judged("bad", "missing", None)


def _convert(value: float, unit: str, wanted: str) -> float | None:
    """Return a value in the unit that is wanted, ``None`` where nobody knows how."""
    for name, factor, offset in _OTHER.get(wanted, ()):
        if name == unit:
            return value * factor + offset
    return None

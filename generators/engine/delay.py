"""Delay laws of messages, as tables of quantiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from millrace.errors import UserError
from millrace_apps.generators.engine.randomness import NORMAL
from millrace_apps.generators.engine.terms import parse_term

#: One uniform draw gives one of so many delays.
_STEPS: Final = 4096
_LAWS: Final = {
    "none": (),
    "uniform": ("max",),
    "exponential": ("mean", "max"),
    "lognormal": ("median", "sigma", "max"),
}


@dataclass(frozen=True, slots=True)
class Delay:
    """A law of delay.

    Attributes:
        quantiles_ms: Equally likely delays in rising order, ms.
    """

    quantiles_ms: tuple[int, ...]

    @property
    def max_ms(self) -> int:
        """The longest delay, ms: what bounds the messages that are held."""
        return self.quantiles_ms[-1]


def parse_delay(text: str) -> Delay:
    """Return the law that a text writes.

    Args:
        text: ``none``, ``uniform(max=500ms)``, ``exponential(mean=200ms, max=5s)`` or
            ``lognormal(median=100ms, sigma=1, max=30s)``. Without ``max`` an exponential delay ends at
            10 means and a lognormal one at 50 medians: longer ones are cut to it.

    Raises:
        UserError: If it is no such law.

    >>> parse_delay("uniform(max=1s)").max_ms
    1000
    """
    term = parse_term(text, _LAWS, "--delay")
    if term.name == "none":
        return Delay((0,))
    points = [(step + 0.5) / _STEPS for step in range(_STEPS)]
    if term.name == "uniform":
        bound = term.duration_ms("max")
        return _cut([p * (bound + 1) for p in points], bound)
    if term.name == "exponential":
        mean = term.duration_ms("mean")
        return _cut([-mean * math.log1p(-p) for p in points], term.duration_ms("max", 10 * mean))
    median, sigma = term.duration_ms("median"), term.number("sigma", 1.0, low=0.01, high=5)
    return _cut([median * math.exp(sigma * z) for z in NORMAL], term.duration_ms("max", 50 * median))


def _cut(delays: list[float], bound: float) -> Delay:
    if bound > 86_400_000:
        raise UserError(f"--delay is a day at most, got up to {bound / 1000:.0f} s")
    return Delay(tuple(int(min(delay, bound)) for delay in delays))

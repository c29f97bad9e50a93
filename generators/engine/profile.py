"""The parameters that decide a stream's bytes; rate and sink are not among them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final

from millrace.errors import UserError

#: 2026-01-01T00:00:00Z, where a stream starts unless told otherwise: the same on every day and machine.
DEFAULT_START_MS: Final = 1_767_225_600_000
#: 3000-01-01: later is a unit mistake (microseconds), and no datetime is needed to say so.
_LAST_START_MS: Final = 32_503_680_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What every domain's stream is made from; equal profiles give equal bytes.

    Attributes:
        seed: Seed of all random numbers.
        events: How many distinct valid events (None: no end). Duplicates and malformed messages come on top.
        event_rate: Events per second of event time.
        start_ms: First event time, ms since the epoch, UTC.
        disorder_ms: Every event arrives 0 to this many ms of event time after it happened.
        late: Share of events that arrive too late, 0 to 1.
        lateness_ms: How far a late event is behind the newest one sent, at least, ms.
        duplicates: Share of events sent twice, 0 to 1.
        malformed: Broken extra messages per valid event, 0 to 1.
    """

    seed: int = 0
    events: int | None = None
    event_rate: float = 1000.0
    start_ms: int = DEFAULT_START_MS
    disorder_ms: int = 500
    late: float = 0.0
    lateness_ms: int = 60_000
    duplicates: float = 0.0
    malformed: float = 0.0

    def __post_init__(self) -> None:
        for name in ("late", "duplicates", "malformed"):
            check(0 <= getattr(self, name) <= 1, f"{name} is a share between 0 and 1", getattr(self, name))
        check(self.events is None or self.events >= 0, "events is a count", self.events)
        rate = self.event_rate
        check(math.isfinite(rate) and rate > 0, "the event rate is above 0 per second", rate)
        check(0 <= self.start_ms < _LAST_START_MS, "start is in ms since 1970-01-01 UTC", self.start_ms)
        check(0 <= self.disorder_ms <= 86_400_000, "disorder is 0 to one day in ms", self.disorder_ms)
        if self.late:
            check(
                self.lateness_ms > self.disorder_ms,
                f"lateness must be more than the natural disorder of {self.disorder_ms} ms",
                self.lateness_ms,
            )

    @property
    def last_ms(self) -> int | None:
        """Event time of the last event, ms; None for a stream without end."""
        return None if self.events is None else self.slot_ms(max(self.events - 1, 0))

    def slot_ms(self, sequence: int) -> int:
        """Return the event time of the event with this number (0 is the first), ms."""
        return self.start_ms + int(sequence * 1000.0 / self.event_rate)

    def parameters(self) -> dict[str, Any]:
        """Return all parameters by name, for the ledger."""
        return asdict(self)


def check(holds: bool, rule: str, value: object) -> None:
    """Raise a one-line error that names the rule and the value, unless it holds."""
    if not holds:
        raise UserError(f"{rule}, got {value}")

"""The state of a person's offers: what was offered, in this browser and before a login in others."""

from __future__ import annotations

import msgspec

from millrace_apps.clickstream.state.offers import Waiting


class KeptCaps(msgspec.Struct, gc=False):
    """What is kept of a person's offers.

    Attributes:
        made: Rule → times of its offers within the time of its cap, UTC ms.
        brought: Browser → the same, of what was offered there before a login.
        waiting: Offers whose outcome is not known.
    """

    made: dict[str, list[int]] = msgspec.field(default_factory=dict)
    brought: dict[str, dict[str, list[int]]] = msgspec.field(default_factory=dict)
    waiting: list[Waiting] = msgspec.field(default_factory=list)

    def times(self, rule: str) -> list[int]:
        """Return when offers of a rule were made, by whichever browser."""
        return [*self.made.get(rule, ()), *(t for made in self.brought.values() for t in made.get(rule, ()))]

    def last_ms(self, at_ms: int) -> int:
        """Return when any offer was last made, up to a moment, UTC ms; 0: none was."""
        all_ = (made for made in (self.made, *self.brought.values()))
        return max((t for made in all_ for times in made.values() for t in times if t <= at_ms), default=0)

"""Switches of all regions at once: policy, shadows, surge cap, pairs, each with author and reason."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from millrace_apps.ridesharing.contracts.events import (
    Control,
    DropVenue,
    SetPair,
    SetPolicy,
    SetSurgeCap,
    SetVenue,
)
from millrace_apps.ridesharing.contracts.records import Operation
from millrace_apps.ridesharing.state.pairs import MOST_PAIRS

if TYPE_CHECKING:
    from millrace_apps.ridesharing.processes.dispatch_region import DispatchRegion

#: So many are remembered: as many as there are pairs, whoever brings all of them at once, and some more.
_MOST: Final = MOST_PAIRS + 200
#: Digits of the time that names begin with.
_DIGITS: Final = 20
#: What holds from longer ago is not told any more, ms.
TELL_MS: Final = 7 * 86_400_000


class Switch(msgspec.Struct, frozen=True, array_like=True):
    """Something that holds in all regions from a time on.

    Attributes:
        command_id: Its identity.
        action: What is switched.
        value: To what.
        operator: Who wants it.
        reason: Why.
        from_ms: From when on it holds, UTC ms.
        driver_id: The driver whom it is about; empty: nobody.
        refused: Why it does not hold; empty: it does.
    """

    command_id: str
    action: Literal["policy", "surge_cap", "pair", "venue"]
    value: str
    operator: str
    reason: str
    from_ms: int
    driver_id: str = ""
    refused: str = ""


def switch_of(control: Control, watermark: int, kept: Any, refused: str = "") -> None:
    """Keep what a control event switches, if somebody stands for it.

    Args:
        control: The event.
        watermark: How far the region is, UTC ms: nothing holds from before.
        kept: Name → switch, which is written to: broadcast state.
        refused: Why it is not done; empty: it is.
    """
    driver_id = ""
    if isinstance(control, SetPolicy):
        action, value = "policy", str(control.policy)
    elif isinstance(control, SetSurgeCap):
        action, value = "surge_cap", f"{control.cap:g}"
    elif isinstance(control, SetPair):
        action, value, driver_id = "pair", f"{control.stands}: rider {control.rider_id}", control.driver_id
    elif isinstance(control, SetVenue):
        cells = f"{len(control.zone)} cells, {len(control.pen)} of pen, {len(control.points)} points"
        cells += ", short trips" if control.short_trip is not None else ""
        action, value = "venue", f"{control.name}: {cells}"
    elif isinstance(control, DropVenue):
        action, value = "venue", f"{control.name}: removed"
    else:
        return
    if not control.command_id:
        return
    from_ms = max(control.from_ms, watermark + 1, 0)
    about: Any = control.command_id, action, value, control.operator, control.reason, from_ms
    besides: Any = driver_id, refused
    kept.put(f"{from_ms:0{_DIGITS}d} {control.command_id}", Switch(*about, *besides))
    if len(kept) > _MOST:
        names = [name for name, _ in kept.items()]
        # What has come into force is forgotten first, the oldest of it; else what holds last.
        in_force = [name for name in names if int(name[:_DIGITS]) <= watermark]
        kept.remove(min(in_force) if in_force else max(names))


def by_time(entries: Iterable[tuple[str, Switch]]) -> list[tuple[str, Switch]]:
    """Return what is kept by when it comes into force."""
    return sorted(entries, key=itemgetter(0))


def tell_switches(region: DispatchRegion, kept: Sequence[tuple[str, Switch]], told: str) -> str:
    """Tell what has come into force in a region since it was last told, each once; return the newest of it.

    A region that was empty for so long that it has forgotten what it told tells nothing of that time.

    Args:
        region: The region.
        kept: Name → switch, by time.
        told: The newest that has been told, by its name.
    """
    newest = ""
    first = bisect_right(kept, max(told, f"{max(region.now - TELL_MS, 0):0{_DIGITS}d}~"), key=itemgetter(0))
    for name, switch in islice(kept, first, None):
        if switch.from_ms > region.now:
            break
        if region.now - TELL_MS < switch.from_ms:
            has_prices = region.config.free_ms > 0
            refused = switch.refused
            if switch.action == "surge_cap" and not has_prices:
                refused = "surge.on is not set"
            about = switch.command_id, region.name, switch.action, switch.operator, switch.reason
            outcome: Literal["done", "refused"] = "refused" if refused else "done"
            detail = refused or switch.value
            region.emit(
                "operations", Operation(*about, "", switch.driver_id, "", 0, outcome, detail, region.now)
            )
            newest = name
    return newest

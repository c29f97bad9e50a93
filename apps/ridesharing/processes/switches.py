"""What operators switch in all regions at once: who wanted it and why, told by each region when it holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from millrace_apps.ridesharing.contracts.events import Control, SetPair, SetPolicy, SetSurgeCap
from millrace_apps.ridesharing.contracts.records import Operation

if TYPE_CHECKING:
    from millrace_apps.ridesharing.processes.desk import Desk

#: So many are remembered, the newest.
_MOST: Final = 200
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
    action: Literal["policy", "surge_cap", "pair"]
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
    else:
        return
    if not control.command_id:
        return
    from_ms = max(control.from_ms, watermark + 1, 0)
    about: Any = control.command_id, action, value, control.operator, control.reason, from_ms
    besides: Any = driver_id, refused
    kept.put(f"{from_ms:020d} {control.command_id}", Switch(*about, *besides))
    for name in sorted(name for name, _ in kept.items())[:-_MOST]:
        kept.remove(name)


def tell_switches(desk: Desk, kept: Iterable[tuple[str, Switch]], told: str) -> str:
    """Tell what has come into force in a region since it was last told, each once; return the newest of it.

    A region that was empty for so long that it has forgotten what it told tells nothing of that time.

    Args:
        desk: The region's desk.
        kept: Name → switch.
        told: The newest that has been told, by its name.
    """
    newest = ""
    for name, switch in sorted(kept):
        if name > told and desk.now - TELL_MS < switch.from_ms <= desk.now:
            has_prices = desk.config.free_ms > 0
            refused = switch.refused
            if switch.action == "surge_cap" and not has_prices:
                refused = "surge.on is not set"
            about = switch.command_id, desk.region, switch.action, switch.operator, switch.reason
            outcome: Literal["done", "refused"] = "refused" if refused else "done"
            detail = refused or switch.value
            desk.say("operations", Operation(*about, "", switch.driver_id, "", 0, outcome, detail, desk.now))
            newest = name
    return newest

"""What operators switch in all regions at once: who wanted it and why, told by each region when it holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from apps.ridesharing.events import Control, SetPolicy, SetSurgeCap
from apps.ridesharing.records import Operation

if TYPE_CHECKING:
    from apps.ridesharing.desk import Desk

#: So many are remembered, the newest.
_MOST: Final = 50
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
    """

    command_id: str
    action: Literal["policy", "surge_cap"]
    value: str
    operator: str
    reason: str
    from_ms: int


def switch_of(control: Control, watermark: int, kept: Any) -> None:
    """Keep what a control event switches, if somebody stands for it.

    Args:
        control: The event.
        watermark: How far the region is, UTC ms: nothing holds from before.
        kept: Name → switch, which is written to: broadcast state.
    """
    if isinstance(control, SetPolicy):
        action, value = "policy", str(control.policy)
    elif isinstance(control, SetSurgeCap):
        action, value = "surge_cap", f"{control.cap:g}"
    else:
        return
    if not control.command_id:
        return
    from_ms = max(control.from_ms, watermark + 1, 0)
    about: Any = control.command_id, action, value, control.operator, control.reason, from_ms
    kept.put(f"{from_ms:020d} {control.command_id}", Switch(*about))
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
            done = has_prices or switch.action != "surge_cap"
            about = switch.command_id, desk.region, switch.action, switch.operator, switch.reason
            detail = switch.value if done else "surge.on is not set"
            outcome: Literal["done", "refused"] = "done" if done else "refused"
            desk.say("operations", Operation(*about, "", "", "", 0, outcome, detail, desk.now))
            newest = name
    return newest

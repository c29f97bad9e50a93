"""Liveness: gateways and machines by their heartbeats, and who has fallen silent.

All devices of a gateway stand in one entry with it, so that a dead gateway is one alarm and not one for every
machine behind it. A heartbeat at the very instant of the deadline is in time: events of one instant go
before timers. There is one timer per gateway, for the earliest deadline; a heartbeat does not move it, it is
looked at again when it fires.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from millrace.time import NEVER, NO_WATERMARK
from millrace_apps.iot_maintenance.contracts.records import Liveness
from millrace_apps.iot_maintenance.state.assets import UNREGISTERED

Cause = Literal["own", "gateway"]
#: A gateway that has not been heard for this share of the timeout is overdue: who falls silent with it is
#: silent because of it.
_OVERDUE: Final = 0.5
_NOWHERE: Final = (UNREGISTERED, UNREGISTERED)


class Device(msgspec.Struct, array_like=True, gc=False):
    """One device of a gateway.

    Attributes:
        last: When it was last heard, ms.
        judge: When it is looked at next, ms; ``NEVER`` once it is told silent.
        silent: ``""``, or the cause of its silence.
        machine: Whether it is a machine, not a gateway.
        told: When its last row was, ms: the next one is not before it, though what ends a silence may be.
        never: It is in the registry, ``last`` is since when, and has not been heard.
    """

    last: int
    judge: int
    silent: str = ""
    machine: bool = True
    told: int = NO_WATERMARK
    never: bool = False


class Gateway(msgspec.Struct, array_like=True):
    """The devices that come through one gateway, it among them.

    Attributes:
        devices: By name.

    Example:
        >>> gateway = Gateway()
        >>> _ = gateway.heard("gw", "gw", False, 0, 100), gateway.heard("m1", "gw", True, 10, 100)
        >>> _ = gateway.heard("gw", "gw", False, 60, 100)
        >>> [(row.device_id, row.state, row.cause) for row in gateway.silent("gw", 110, (100, 100))]
        [('m1', 'silent', 'own')]
        >>> [row.state for row in gateway.heard("m1", "gw", True, 150, 100)]
        ['online']
    """

    devices: dict[str, Device] = {}

    def expect(self, names: Sequence[str], gateway: str, at: int, wait: int) -> list[str]:
        """Take which devices the registry has.

        Args:
            names: All of them; none: the registry does not say.
            gateway: The gateway.
            at: Since when, ms.
            wait: How long to wait for a device that has never been heard, ms.

        Returns:
            Those that were silent and are in the registry no more.
        """
        if not names:
            return []
        wanted = frozenset(names)
        gone = [
            n for n, device in self.devices.items() if n not in wanted and (device.silent or device.never)
        ]
        silent = [name for name in gone if self.devices.pop(name).silent]
        for name in names:
            if name not in self.devices:
                self.devices[name] = Device(at, at + wait, "", name != gateway, never=True)
        return sorted(silent)

    def heard(
        self,
        name: str,
        gateway: str,
        machine: bool,
        at: int,
        timeout: int,
        *,
        is_over: bool = False,
        place: tuple[str, str] = _NOWHERE,
    ) -> list[Liveness]:
        """Take a heartbeat.

        Args:
            name: The device.
            gateway: The gateway.
            machine: Whether it is a machine.
            at: When, ms.
            timeout: How long a device may be silent, ms.
            is_over: Whether so long has passed since: then a silent device stays silent.
            place: Site and line of the gateway.

        Returns:
            That it is heard again, if it was silent.
        """
        device = self.devices.get(name)
        if device is None:
            self.devices[name] = Device(at, at + timeout, "", machine)
            return []
        before, device.last = device.last, max(at, device.last)
        if device.never:
            device.never, device.machine, device.judge = False, machine, min(device.judge, at + timeout)
        if not device.silent or is_over:
            return []
        cause, device.silent, device.judge = device.silent, "", at + timeout
        if not machine:
            # Who was silent because of it gets its time anew.
            for other in self.devices.values():
                if other.silent == "gateway":
                    other.judge = at + timeout
        return [_row(name, device, gateway, "online", cause, at, before, place)]

    def silent(
        self, gateway: str, at: int, timeouts: tuple[int, int], *, place: tuple[str, str] = _NOWHERE
    ) -> list[Liveness]:
        """Return who is found silent at ``at`` (ms), the gateway first.

        Args:
            gateway: The gateway.
            at: When, ms.
            timeouts: How long a machine, and the gateway, may be silent, ms.
            place: Site and line of the gateway.
        """
        own = self.devices.get(gateway)
        overdue = own is not None and (bool(own.silent) or at - own.last > _OVERDUE * timeouts[1])
        rows = []
        for name, device in self._due(at, gateway):
            timeout = timeouts[0 if device.machine else 1]
            if at - device.last < timeout and not device.never:
                device.judge = device.last + timeout
                continue
            cause: Cause = "gateway" if overdue and device is not own else "own"
            device.judge = NEVER
            if device.silent != cause:
                device.silent = cause
                rows.append(_row(name, device, gateway, "silent", cause, at, device.last, place))
        return rows

    def next_ms(self) -> int:
        """Return when the first device is to be looked at, ms."""
        return min((device.judge for device in self.devices.values()), default=NEVER)

    def forget(self, before: int) -> None:
        """Forget devices that were last heard at or before ``before`` (ms)."""
        self.devices = {name: device for name, device in self.devices.items() if device.last > before}

    def _due(self, at: int, gateway: str) -> Iterator[tuple[str, Device]]:
        due = [(name != gateway, name) for name, device in self.devices.items() if device.judge <= at]
        return ((name, self.devices[name]) for _, name in sorted(due))


def _row(
    name: str,
    device: Device,
    gateway: str,
    state: Literal["silent", "online"],
    cause: str,
    at: int,
    last: int,
    place: tuple[str, str],
) -> Liveness:
    kind: Literal["machine", "gateway"] = "machine" if device.machine else "gateway"
    of: Cause = "gateway" if cause == "gateway" else "own"
    device.told = max(at, device.told)
    return Liveness(name, kind, gateway, state, of, device.told, last, *place, device.never)

"""The registry entry of an asset: its place, its measuring points, the devices that are to be heard.

The tree (site, line, machine, measuring point) is data. Only where a plant says so (``monitor.tree: names``),
for data from before there was a registry, it is taken from names such as ``p01-l02-m003``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal

import msgspec

from millrace_apps.iot_maintenance.contracts.events import Equipment

#: Between the levels of a name: ``p01-l02-m003`` is a machine of line ``p01-l02`` in plant ``p01``.
SEPARATOR: Final = "-"
#: The site, and the line, of what nobody has registered.
UNREGISTERED: Final = "unregistered"
#: Between a quantity and its measuring point.
_AT: Final = "@"

What = Literal["unknown_asset", "unknown_point", "unknown_device", "unknown_status"]


@lru_cache(maxsize=200_000)
def place_by_name(entity: str) -> tuple[str, str]:
    """Return the plant and the line that a name has in it; what has no levels in its name is its own.

    >>> place_by_name("p01-l02-m003"), place_by_name("pump7")
    (('p01', 'p01-l02'), ('pump7', 'pump7'))
    """
    parts = entity.split(SEPARATOR)
    if len(parts) < 3:
        return parts[0], entity if len(parts) < 2 else SEPARATOR.join(parts[:2])
    return parts[0], SEPARATOR.join(parts[:2])


def subject_of(quantity: str, point: str) -> str:
    """Return what a quantity at a measuring point is called on its machine.

    ``@`` stands between the two, so it does in no name of a point.

    >>> subject_of("vibration", ""), subject_of("vibration", "drive end"), quantity_of("vibration@drive end")
    ('vibration', 'vibration@drive end', 'vibration')
    """
    return f"{quantity}{_AT}{point.replace(_AT, '_')}" if point or _AT in quantity else quantity


@lru_cache(maxsize=10_000)
def quantity_of(subject: str) -> str:
    """Return the quantity of what :func:`subject_of` has named."""
    return subject.rpartition(_AT)[0] if _AT in subject else subject


def point_of(subject: str) -> str:
    """Return the measuring point of what :func:`subject_of` has named."""
    return subject.rpartition(_AT)[2] if _AT in subject else ""


class Standing(msgspec.Struct, frozen=True, gc=False):
    """Where a machine is, told to those who look ahead.

    Attributes:
        machine_id: The machine.
        event_time_ms: As of when.
        plant_id: Its plant.
        line_id: Its line.
    """

    machine_id: str
    event_time_ms: int
    plant_id: str
    line_id: str


class Notice(msgspec.Struct, frozen=True, gc=False):
    """What is found of a plant's data, not of its machines: told when it is found, and when it is over.

    Attributes:
        asset_id: The machine or gateway.
        what: ``unknown_asset``: it is in no registry; ``unknown_point``, ``unknown_device``: it is, and this
            of it is not; ``unknown_status``: no mapping has this word.
        subject: The measuring point, the device, the word.
        state: ``open`` or ``over``.
        event_time_ms: When that was found.
        plant_id: The site of the asset.
        line_id: Its line.
    """

    asset_id: str
    what: What
    subject: str
    state: Literal["open", "over"]
    event_time_ms: int
    plant_id: str
    line_id: str


class Expected(msgspec.Struct, array_like=True, gc=False):
    """A measuring point that the registry has.

    Attributes:
        sensor_id: Its sensor.
        interval_ms: How often it is to be heard, ms; 0: nobody has said.
        attributes: What else is known of it.
        judge: When it is looked for that has never been heard, ms; 0: no more.
        silent: Whether it is told that it has never been heard.
    """

    sensor_id: str = ""
    interval_ms: int = 0
    attributes: dict[str, str] = {}
    judge: int = 0
    silent: bool = False


class Asset(msgspec.Struct, array_like=True):
    """What the registry says of a machine or gateway, and what was found to be missing in it.

    Attributes:
        at: Since when that holds, ms; -1: it is in no registry.
        site: Its site.
        line: Its line.
        points: Its measuring points, by quantity and name.
        told: What of it was told to be in no registry before that was doubted first.
        has_devices: Whether the registry says which devices are heard through it.
        words: Statuses of it that no mapping has, told before then.
    """

    at: int = -1
    site: str = ""
    line: str = ""
    points: dict[str, Expected] = {}
    told: list[str] = []
    has_devices: bool = False
    words: list[str] = []

    def register(self, event: Equipment) -> list[str]:
        """Take master data; return which of the things that were in no registry are in one now."""
        self.at, self.site, self.line = event.event_time_ms, event.site, event.line
        points = {}
        for point in event.points:
            name = subject_of(point.quantity, point.point)
            before = self.points.get(name)
            points[name] = Expected(point.sensor_id, point.interval_ms, point.attributes)
            if before is not None:
                points[name].judge, points[name].silent = before.judge, before.silent
        self.points, self.has_devices = points, bool(event.devices)
        over = [name for name in self.told if not points or name in points]
        self.told = [name for name in self.told if name not in over]
        return over

    def subject(self, sensor_id: str, quantity: str) -> str | None:
        """Return which measuring point a sensor is at, ``None`` if the registry does not say."""
        for name, point in self.points.items():
            if point.sensor_id == sensor_id and quantity_of(name) == quantity:
                return name
        return None

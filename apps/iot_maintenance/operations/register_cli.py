"""`millrace iot register`: machines and gateways are put into the asset registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millrace.cli.options import Bootstrap, Overrides, Root
from millrace.errors import UserError

if TYPE_CHECKING:
    from millrace_apps.iot_maintenance.contracts.events import Equipment


def read_assets(path: Path, now: int) -> list[Equipment]:
    """Return the assets of a YAML or JSON file: a list; without a time of their own they hold from now on.

    Args:
        path: The file.
        now: Now, on the clock of the events, ms.

    Raises:
        UserError: It cannot be read, or one of them is none; says which and why.
    """
    from millrace.local.documents import read_yaml
    from millrace_apps.iot_maintenance.contracts.events import Equipment, MeasuringPoint
    from millrace_apps.iot_maintenance.state.assets import subject_of

    found = read_yaml(path)
    if not isinstance(found, list):
        raise UserError(f"{path} is no list of assets")
    assets = []
    for number, item in enumerate(found, start=1):
        points = item.get("points") if isinstance(item, dict) else None
        for said, kind in ((item, Equipment), *((point, MeasuringPoint) for point in _listed(points))):
            known = kind.__struct_fields__
            if isinstance(said, dict) and (other := [name for name in said if name not in known]):
                there = ", ".join(known)
                raise UserError(f"{path}: asset {number}: there is no '{other[0]}'; there are {there}")
        try:
            asset = msgspec.convert(
                {"event_time_ms": now, **item} if isinstance(item, dict) else item, Equipment
            )
        except msgspec.ValidationError as error:
            raise UserError(f"{path}: asset {number}: {error}") from None
        subjects = [subject_of(point.quantity, point.point) for point in asset.points]
        if twice := [name for place, name in enumerate(subjects) if name in subjects[:place]]:
            raise UserError(f"{path}: asset {number}: {twice[0]} is measured twice: name the points")
        assets.append(asset)
    return assets


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def register(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON file: a list of assets.")],
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Put machines and gateways into the asset registry: site, line, measuring points, devices to be heard.

    What holds from a time on says `event_time_ms`; unless given, it holds from now on.

    Example: millrace iot register plant.yaml --bootstrap 127.0.0.1:9092
    """
    from millrace.operations.sending import send
    from millrace_apps.iot_maintenance.contracts.events import Equipment
    from millrace_apps.iot_maintenance.operations.operating import events_now_ms, settings_of

    settings = settings_of(bootstrap, root, overrides)
    assets = read_assets(file, events_now_ms(settings))
    send(settings.kafka, settings.topics.equipment, Equipment, [(a.machine_id, a) for a in assets])
    typer.echo(f"{len(assets)} assets sent to {settings.topics.equipment}")

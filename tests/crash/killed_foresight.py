"""A replay of machines that kills its own process at one point of one batch.

``python -m tests.crash.killed_foresight POINT BATCH FOLDER`` streams what is in ``FOLDER/records`` through
the iot app, which looks ahead by the models in ``FOLDER/exported``; with the point ``never`` to its end.
"""

from __future__ import annotations

import sys
from pathlib import Path

from millrace.runtime.replay import run_records
from millrace.runtime.settings import load_settings
from millrace_apps.iot_maintenance.app import app
from millrace_apps.iot_maintenance.settings import IotSettings
from tests.crash.killed_run import Bomb, plant

#: The app's settings beside folders.
OVERRIDES = (
    "monitor.judge=false", "monitor.sensor_least=30d", "foresight.on=true", "foresight.judged_by=interval",
    "spark.quick_start=true",
)  # fmt: skip
#: What is normal comes of the registry, too.
NORMAL = ("health.registered=true", "health.interval=1h")


def settings_in(folder: Path) -> IotSettings:
    """The app's settings over a folder."""
    models = folder / "exported"
    places = (f"storage.root={folder}", f"foresight.exports={models}", f"health.exports={models}")
    return load_settings(IotSettings, app=app.name, overrides=[*OVERRIDES, *NORMAL, *places], env={})


def main(point: str, batch: int, folder: Path) -> None:
    """Run."""
    if point != "never":
        plant(Bomb(point, batch))
    run_records(app, settings_in(folder), folder, folder / "records")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))

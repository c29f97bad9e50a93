"""A replay of recorded payments that kills its own process at one point of one batch.

``python -m tests.crash.killed_history POINT BATCH FOLDER`` streams the records in ``FOLDER/records`` through
the features' pipeline; with the point ``never`` to its end.
"""

from __future__ import annotations

import sys
from pathlib import Path

from millrace.runtime.replay import run_records
from millrace.runtime.settings import load_settings
from millrace_apps.fraud.evaluation.history_app import HistorySettings, app
from tests.crash.killed_run import Bomb, plant


def main(point: str, batch: int, folder: Path) -> None:
    """Run."""
    if point != "never":
        plant(Bomb(point, batch))
    overrides = [f"storage.root={folder}", "spark.quick_start=true"]
    settings = load_settings(HistorySettings, app=app.name, overrides=overrides, env={})
    run_records(app, settings, folder, folder / "records")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))

"""Runs in a process of its own: state with snapshots is made in one session and read in another one.

Only a session that never had a stream shows what reading needs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from millrace.checkpoints.checkpoint import Checkpoint
from millrace.checkpoints.figures import figures_of
from millrace.checkpoints.reading import view_of
from millrace.runtime.session import spark_session
from tests.spark.savepoint_jobs import Balances, Payments

_STORE = "spark.sql.streaming.stateStore"
_SNAPSHOTS = {f"{_STORE}.minDeltasForSnapshot": "1", f"{_STORE}.maintenanceInterval": "200ms"}


def main(folder: Path) -> None:
    """Print the state of a user and the number of users, read from snapshots."""
    root = folder / "query"
    with spark_session(
        "makes", master="local[2]", shuffle_partitions=2, quick_start=True,
        log_file=folder / "makes.log", conf=_SNAPSHOTS,
    ) as spark:  # fmt: skip
        payments = Payments(spark, folder / "input")
        payments.add_some(range(3))
        payments.run(payments.stream(Balances()), {"main": folder / "t"}, root, "parquet")
        deadline = time.monotonic() + 60
        while len(list(root.glob("checkpoint/state/0/*/*.zip"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
    snapshots = len(list(root.glob("checkpoint/state/0/*/*.zip")))
    with (
        spark_session("reads", master="local[2]", quick_start=True, log_file=folder / "reads.log") as spark,
        view_of(spark, Checkpoint(root, root / "checkpoint")) as view,
    ):
        found = view.entry(("u3",))
        entries = figures_of(view, top=1).entries
    total = None if found is None else found[0].as_data()["states"]["total"]
    print(msgspec.json.encode({"snapshots": snapshots, "total": total, "entries": entries}).decode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))

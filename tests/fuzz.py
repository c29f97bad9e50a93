"""Differential fuzzing of the two hosts for as long as one likes: ``make fuzz MINUTES=10 SEED=1``.

Random processes on random input run in memory and on Spark, which must agree; see ``tests/spark/fuzzing.py``.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from millrace.local.jars import ensure_jars
from millrace.runtime.session import spark_session
from tests.spark.conftest import Stream
from tests.spark.fuzzing import check, random_case


def main(arguments: list[str] | None = None) -> int:
    """Fuzz until the time is over; the exit code is 1 where the hosts differ."""
    parser = argparse.ArgumentParser(description="Run random processes on both hosts and compare.")
    parser.add_argument("--minutes", type=float, default=5.0, help="for how long (default 5)")
    parser.add_argument("--seed", type=int, default=None, help="the first seed; the next ones follow it")
    parser.add_argument("--cases", type=int, default=None, help="at most so many cases")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    ensure_jars(("spark",))
    until, failed, done = time.monotonic() + options.minutes * 60, 0, 0
    with tempfile.TemporaryDirectory(prefix="millrace-fuzz-") as folder:
        root = Path(folder)
        how = {
            "master": "local[2]",
            "shuffle_partitions": 2,
            "quick_start": True,
            "log_file": root / "spark.log",
        }
        with spark_session("fuzz", **how) as spark:  # type: ignore[arg-type]
            while time.monotonic() < until and (options.cases is None or done < options.cases):
                place = root / str(seed)

                def make(*arguments: Any, to: Path = place) -> Stream:
                    return Stream(spark, to, *arguments)

                started = time.monotonic()
                try:
                    kinds = check(random_case(seed), make)
                    print(f"seed {seed}: same, {dict(kinds)}, {time.monotonic() - started:.1f} s", flush=True)
                except AssertionError as error:
                    failed += 1
                    print(error, flush=True)
                seed, done = seed + 1, done + 1
    print(f"{done} cases, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

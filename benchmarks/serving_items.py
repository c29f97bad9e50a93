"""`millrace bench serve-items`: next items over HTTP beside the running clickstream job."""

from __future__ import annotations

import json
import os
import random
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import quote
from urllib.request import Request, urlopen

from millrace_apps.benchmarks.app_bench import bench_of
from millrace_apps.benchmarks.app_run import bench_run, run_beside
from millrace_apps.benchmarks.serving import TOKEN, asked, await_that, figures, server_beside
from millrace_apps.benchmarks.serving_load import Load

_PATH: Final = "/v1/ask/next_items"
#: Visits of then have ended when the first click of now is read.
_LONG_AGO: Final = "2026-01-01T00:00:00Z"
#: So many of the newest clicks say who is asked for, and so many answers are read at the end.
_SAMPLE: Final = 2_000
_READ: Final = 50


@dataclass(frozen=True)
class Sizes:
    """What is asked, and beside what.

    Attributes:
        rate: Requests a second.
        duration_s: Seconds measured.
        warm_up_s: Seconds asked before that, not counted.
        beside: Clicks a second that the generator sends to the job.
        warm_batches: Batches of the job before anything is asked.
        history: Clicks of long ago that the job reads first: there are sessions to go by.
    """

    rate: int = 50
    duration_s: int = 60
    warm_up_s: int = 10
    beside: int = 200
    warm_batches: int = 40
    history: int = 20_000


QUICK = Sizes(duration_s=8, warm_up_s=3, beside=50, warm_batches=5, history=2_000)


def serve_items(sizes: Sizes, bootstrap: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Measure answers from when they are due.

    Args:
        sizes: What is asked, and beside what.
        bootstrap: A broker, or ``None`` for an embedded one.
        overrides: Settings of the app.
    """
    batches = 0
    found: dict[str, Any] = {}
    sets = ("recommend.on=true", *overrides)

    def note(batch: int, _counts: dict[str, int]) -> None:
        nonlocal batches
        batches = batch

    with bench_run(bench_of("clickstream"), bootstrap, sets, on_batch=note) as run:

        def act(ended: threading.Event) -> None:
            await_that(run.job.started.is_set, ended, "the job has begun")
            with run.generating({"rate": sizes.beside, "timestamps": "append"}, run.bench.live):
                await_that(lambda: batches >= sizes.warm_batches, ended, "the job is warm")
                lately = deque(run.sent("clicks"), _SAMPLE)
                visitors = list(dict.fromkeys(click["visitor_id"] for click in lately))
                told_to = [part for one in sets for part in ("-s", one)]
                with server_beside(run, ("serve", "clickstream", *told_to)) as (address, _):
                    chance = random.Random(7)
                    count = sizes.rate * (sizes.warm_up_s + sizes.duration_s)
                    queries = [f"?visitor={quote(chance.choice(visitors), safe='')}" for _ in range(count)]
                    warm = sizes.rate * sizes.warm_up_s
                    before = batches
                    found.update(
                        figures(asked(Load(address, TOKEN, _PATH, sizes.rate, queries, warm, "GET")))
                    )
                    found["batches_beside"] = batches - before
                    found["answers"] = _read(address, queries[-_READ:])
                    found["load_average"] = round(os.getloadavg()[0], 1)

        past = {"rate": "max", "events": sizes.history, "timestamps": "arrival", "start": _LONG_AGO}
        run.generate(past, run.bench.preload)
        run_beside(run, act)
    answers = found["answers"]
    found["correct"] = set(found["statuses"]) == {"200"} and answers["with_items"] == answers["read"] > 0
    return found


def _read(address: str, queries: Sequence[str]) -> dict[str, int]:
    """Ask some once more and look at what is answered."""
    told = []
    for query in queries:
        request = Request(f"{address}{_PATH}{query}", headers={"Authorization": f"Bearer {TOKEN}"})  # noqa: S310
        with urlopen(request, timeout=10) as answer:  # noqa: S310 - a server of this run
            told.append(json.loads(answer.read()))
    return {
        "read": len(told),
        "with_items": sum(bool(one["items"]) for one in told),
        "in_a_visit": sum(one["visit"] > 0 for one in told),
        "sessions": max(one["sessions"] for one in told),
    }


def configuration(sizes: Sizes, overrides: Sequence[str]) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return {**asdict(sizes), "settings": list(overrides)}

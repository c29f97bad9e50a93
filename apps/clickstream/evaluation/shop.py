"""A generated shop through the whole app on Spark: how fast it is, and whether the ledger comes out."""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from millrace.console.report import Check
from millrace.time import ms
from millrace_apps.clickstream.app import app
from millrace_apps.clickstream.evaluation.ledger_checks import check_ledger
from millrace_apps.clickstream.evaluation.snowplow_files import BadFile
from millrace_apps.clickstream.settings import ClickstreamSettings

_STREAMS: Final = ("clicks", "customers", "consents", "refunds", "erasures")


class _Glance(msgspec.Struct, gc=False):
    """What must be known of an event to send it."""

    event_time_ms: int
    visitor_id: str | None = None
    user_id: str | None = None


_glance = msgspec.json.Decoder(_Glance).decode


def read_shop(folder: Path) -> Iterator[tuple[int, str, str, bytes]]:
    """Yield the messages of a shop in the order in which they were sent: time, stream, key, value.

    The order between the streams' files is that of the newest event time that each has come to.

    Args:
        folder: What ``millrace generate clickstream --to jsonl --out FOLDER`` has written.

    Raises:
        BadFile: There are no clicks.
    """
    if not (folder / "clicks.jsonl").is_file():
        raise BadFile(f"{folder} has no clicks.jsonl: make it by millrace generate clickstream --to jsonl")
    files = [_read(folder / f"{stream}.jsonl", stream) for stream in _STREAMS]
    for _, _, at, stream, key, value in heapq.merge(*files, key=lambda m: (m[0], m[1])):
        yield at, stream, key, value


def _read(path: Path, stream: str) -> Iterator[tuple[int, int, int, str, str, bytes]]:
    if not path.is_file():
        return
    newest = 0
    rank = _STREAMS.index(stream)
    with path.open("rb") as lines:
        for line in lines:
            value = line.rstrip(b"\n")
            try:
                seen = _glance(value)
                at, key = seen.event_time_ms, seen.visitor_id or seen.user_id or ""
            except msgspec.DecodeError:
                at, key = newest, "unreadable"
            newest = max(newest, at)
            yield newest, rank, at, stream, key, value


def evaluate_shop(
    folder: Path, *, ledger: Path | None = None, batch: int = 50_000, bound: str = "2m",
    sets: tuple[str, ...] = (), say: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Any], list[Check]]:  # fmt: skip
    """Run a shop's events through the app and compare with the ledger.

    Args:
        folder: The events, see :func:`read_shop`.
        ledger: The generator's ledger.
        batch: Messages per batch.
        bound: ``stream.out_of_orderness``.
        sets: Further settings.
        say: Told what goes on.

    Returns:
        The report, and the checks.

    Raises:
        BadFile: There are no events.
    """
    from millrace.runtime.replay import Record, run_records
    from millrace.runtime.settings import load_settings
    from millrace.testing.world_ledger import read_world_ledger

    overrides = ["spark.quick_start=true", f"stream.out_of_orderness={bound}"]
    settings = load_settings(ClickstreamSettings, app=app.name, overrides=[*overrides, *sets])
    names = settings.topics

    def batches() -> Iterator[list[Record]]:
        held: list[Record] = []
        for at, stream, key, value in read_shop(folder):
            held.append(Record(getattr(names, stream), value, key.encode(), at))
            if len(held) == batch:
                yield held
                held = []
        yield held

    with tempfile.TemporaryDirectory(prefix="millrace-") as place:
        say("starting Spark")
        done = run_records(app, settings, Path(place), batches())
        checks: list[Check] = []
        if ledger is not None:
            truth = read_world_ledger(ledger)
            checks = check_ledger(
                lambda name: done.table(name).to_pylist(),
                truth,
                # The input is drained: all that was sent has been said.
                end_ms=truth.summary.last_event_time_ms or 0,
                cart_timeout_ms=ms(settings.cart_timeout),
                rules=settings.offer_rules(),
                holdout=settings.offers.control,
                merges_caps=settings.offers.merge_caps,
            )
        report = {
            "messages": done.rows,
            "batches": done.batches,
            "seconds": round(done.seconds, 2),
            "first_batch_s": round(done.first_batch_s, 2),
            "events_per_s": round(done.events_per_s),
            "warm_events_per_s": round(done.warm_events_per_s),
            "outputs": dict(sorted(done.outputs.items())),
            "checks": [
                {"name": c.name, "expected": c.expected, "found": c.found, "ok": c.ok} for c in checks
            ],
            "checks_failed": sum(not c.ok for c in checks),
            "nothing_to_compare": [c.name for c in checks if c.is_empty],
        }
    return report, checks

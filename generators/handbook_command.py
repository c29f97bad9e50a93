"""`millrace generate handbook`, run from the values of its options."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from millrace.errors import UserError
from millrace.testing.world_ledger import WorldRun
from millrace_apps.generators.command import Job, carry_out, found_bookmark
from millrace_apps.generators.handbook import HandbookProfile, write_parquet
from millrace_apps.generators.handbook_stream import (
    DOMAIN,
    SCHEMA_VERSION,
    STREAM,
    TOPIC,
    handbook_events,
    parameters_of,
    start_ms,
)
from millrace_apps.generators.options import Target
from millrace_apps.generators.timing import Timing, parse_pace, parse_start
from millrace_apps.generators.world_ledger import WorldLedger


def generate(values: dict[str, Any]) -> None:
    """Run the command.

    Args:
        values: Option → value.
    """
    start = datetime.fromtimestamp(parse_start(values["start"]) / 1000, UTC)
    same = ("seed", "customers", "terminals", "days", "radius")
    profile = HandbookProfile(start=start, **{name: values[name] for name in same})
    bookmark = found_bookmark(values["ledger"], values["to"].value, resume=values["resume"])
    if values["to"] is Target.parquet and values["sample"] is None and not values["dry_run"]:
        _write_table(profile, values)
        return
    speed, rate = values["speed"], values["rate"]
    # Unless a pace is asked for, half a year is sent as fast as possible.
    fastest = "max" if rate is None and speed is None else rate
    pace = parse_pace(fastest, 1.0 if speed is None else speed)
    topic = values["topic"] or TOPIC
    parameters = {**parameters_of(profile), "events": values["events"], "rate": pace[1]}
    run = WorldRun(DOMAIN, profile.seed, {STREAM: topic}, {STREAM: SCHEMA_VERSION}, parameters)
    job = Job(
        domain=DOMAIN,
        stream=handbook_events(profile, topic, events=values["events"], rate=pace[1]),
        parameters=parameters,
        events=values["events"],
        open_ledger=lambda path, again: WorldLedger(path, run, resume=again),
    )
    timing = Timing(
        event_rate=1.0, speed=pace[0], events=values["events"], start_ms=start_ms(profile), live=False
    )
    carry_out(job, {**values, "shape": "constant"}, timing, {STREAM: topic}, bookmark)


def _write_table(profile: HandbookProfile, values: Mapping[str, Any]) -> None:
    """Write the table as it was published, labels included."""
    out: Path | None = values["out"]
    if out is None:
        raise UserError("--to parquet needs a file: add --out FILE, or use --to stdout")
    for name in ("ledger", "events", "rate", "speed"):
        if values[name] is not None:
            raise UserError(
                f"--{name} is for a stream; --to parquet writes the whole table with its labels: leave it out"
            )
    began = time.monotonic()
    made = write_parquet(profile, out)
    if not values["quiet"]:
        rows, seconds = made.transactions.num_rows, time.monotonic() - began
        print(
            f"wrote {rows:,} transactions → {out} in {seconds:.1f} s\n"
            f"  {made.frauds:,} frauds ({made.frauds / max(rows, 1):.2%}), column TX_FRAUD; "
            f"{len(made.compromises):,} terminals and customers compromised",
            file=sys.stderr,
        )

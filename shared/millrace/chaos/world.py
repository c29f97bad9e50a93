"""The generated world of an app, as records: what its demo sends."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millrace.chaos.hostile import Message
from millrace.errors import UserError

if TYPE_CHECKING:
    from millrace.runtime.apps import App

#: The generator sends so many events a second, and what it makes of that in event time.
_RATE: Final = 1_000
#: The world begins at one and the same time, so that a seed says it all: a Friday afternoon.
_START: Final = "2026-01-02T16:30Z"
_ROWS: Final = 5_000


def generated(app: App, settings: Any, *, events: int, seed: int, folder: Path) -> Iterator[Message]:
    """Yield the records of an app's generated world, in order of sending.

    Args:
        app: The app; its demo says how its world is generated.
        settings: Its settings.
        events: How many.
        seed: The generator's seed.
        folder: Where the file of them goes.

    Raises:
        UserError: The app has no demo, or the generator fails.
    """
    if app.demo is None:
        raise UserError(
            f"{app.name} has no demo, which would say how its world is generated: give --world FILE"
        )
    from millrace.demo import DemoRun

    module, _, attribute = app.demo.partition(":")
    spec = getattr(importlib.import_module(module), attribute)
    path = folder / "world.parquet"
    run = DemoRun("", folder, settings, max(10.0, 4 * events / _RATE), _RATE, seed)
    told = alone(spec.generate(run))
    rate = float(_value(told, "--rate", str(_RATE))) / float(_value(told, "--speed", "1"))
    command = [
        sys.executable,
        "-m",
        "millrace",
        "generate",
        *told,
        "--rate",
        "max",
        "--event-rate",
        f"{rate:g}",
    ]
    command += ["--events", str(events), "--start", _START, "--to", "parquet", "--out", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"the generator of {app.name} failed: {done.stderr.strip()[-500:]}")
    yield from read_records(path)


def alone(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a generator without those by which it answers the app, which does not run.

    >>> alone(["ridesharing", "--loop", "--loop-suffix", ".x", "--rate", "5"])
    ['ridesharing', '--rate', '5']
    """
    left, found = list(arguments), []
    while left:
        one = left.pop(0)
        if one == "--loop-suffix":
            left.pop(0)
        elif one != "--loop":
            found.append(one)
    return found


def read_records(path: Path) -> Iterator[Message]:
    """Yield the records of a file as ``millrace generate --to parquet`` writes it.

    Raises:
        UserError: It cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_ROWS):
                for row in batch.to_pylist():
                    headers = tuple((h["key"], h["value"] or b"") for h in row.get("headers") or ())
                    at = int(row["timestamp"].timestamp() * 1000)
                    yield Message(row["topic"], row["key"], row["value"] or b"", at, headers)
    except (OSError, pa.ArrowInvalid, KeyError, AttributeError) as error:
        raise UserError(
            f"{path} has no records as `millrace generate --to parquet` writes: {error}"
        ) from error


def _value(arguments: Sequence[str], option: str, default: str) -> str:
    places = [place for place, one in enumerate(arguments) if one == option]
    return arguments[places[-1] + 1] if places else default

"""`millrace size`: what a workload will ask for, by arithmetic and a small measured model."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from millrace.cli.options import Format, Shape

app = typer.Typer(help="Cores, disks and memory that a workload asks for.")

_UNITS: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def number(text: str) -> float:
    """Return a number with a unit.

    Raises:
        UserError: It is none.

    >>> number("1M"), number("10 TB"), number("250")
    (1000000.0, 10000000000000.0, 250.0)
    """
    from millrace.errors import UserError

    found = re.fullmatch(r"\s*([0-9.]+)\s*([kMGT]?)B?\s*", text)
    try:
        if found is None:
            raise ValueError
        return float(found[1]) * _UNITS[found[2]]
    except ValueError:
        raise UserError(f"'{text}' is no number such as 250, 20k, 1M or 10TB") from None


@app.command(epilog="Example: millrace size --rate 1M --state 10TB --every 10s")
def size(
    rate: Annotated[str, typer.Option("--rate", metavar="N", help="Events per second.")],
    state: Annotated[
        str | None, typer.Option("--state", metavar="BYTES", help="State of a process; says how many keys.")
    ] = None,
    keys: Annotated[
        str | None, typer.Option("--keys", metavar="N", help="Keys that have state; instead of --state.")
    ] = None,
    entry: Annotated[str, typer.Option("--entry", metavar="BYTES", help="State of a key.")] = "200",
    event: Annotated[str, typer.Option("--event", metavar="BYTES", help="An event as JSON.")] = "300",
    batch: Annotated[str, typer.Option("--every", help="Time between two batches, e.g. 10s.")] = "1s",
    processes: Annotated[int, typer.Option(min=1, help="Links of the topology.")] = 1,
    zipf: Annotated[float, typer.Option(min=0, max=3, help="How uneven keys are; 0: all alike.")] = 0.0,
    cores: Annotated[int, typer.Option(min=1, help="Cores of a node.")] = 16,
    disk: Annotated[str, typer.Option(metavar="BYTES", help="What a node's disk writes a second.")] = "1GB",
    network: Annotated[str, typer.Option(metavar="BYTES", help="What a node sends a second.")] = "1.25GB",
    shape: Shape = Format.table,
) -> None:
    """Say what a workload will ask for: cores, nodes, memory, disks, network, partitions, time of a start.

    The arithmetic is in docs/sizing.md; what a batch, a row and a page cost was measured by
    `millrace bench sizing`, on one machine: measure your own process there before you buy.
    """
    from dataclasses import asdict

    from millrace.errors import UserError
    from millrace.sizing.answer import Machine, lines
    from millrace.sizing.answer import size as sized
    from millrace.sizing.model import KEY_BYTES, Workload
    from millrace.time.durations import to_ms

    if (state is None) == (keys is None):
        raise UserError("say how much state there is by --state or by --keys")
    entry_bytes = number(entry)
    many = number(keys) if keys is not None else number(state or "") / (entry_bytes + KEY_BYTES)
    load = Workload(number(rate), many, entry_bytes, number(event), to_ms(batch) / 1_000, processes, zipf)
    found = sized(load, Machine(cores, number(disk), number(network)))
    if shape is Format.json:
        import json

        typer.echo(json.dumps({"workload": asdict(load), "sizing": asdict(found)}))
        return
    for what, value, how in lines(load, found):
        typer.echo(f"{what:<26} {value:>12}   {how}")

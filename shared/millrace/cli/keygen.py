"""`millrace keygen`: keys for the encryption of state, and their replacement."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Make keys that state is encrypted with.")


@app.command(epilog="Example: millrace keygen --out state.key")
def keygen(
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the key to a new file, for its owner only."),
    ] = None,
    rotate: Annotated[
        Path | None,
        typer.Option(
            "--rotate",
            metavar="FILE",
            help="Put a new key before those of FILE: it encrypts from the next start.",
        ),
    ] = None,
    ids: Annotated[
        Path | None, typer.Option("--ids", metavar="FILE", help="List the ids of FILE's keys; makes none.")
    ] = None,
) -> None:
    """Make a random 256-bit key and print it, or write it to a file.

    A file holds a key per line; the first one encrypts, all of them decrypt. Ids are hashes of the
    keys: they may be shown, and stand in messages, in the contract beside a checkpoint, and in its state.
    """
    from millrace.errors import UserError
    from millrace.state import keyring

    if sum(option is not None for option in (out, rotate, ids)) > 1:
        raise UserError("give one of --out, --rotate and --ids")
    if ids is not None:
        _list(keyring.read_ring(ids).ids)
    elif out is not None:
        made = keyring.write_key_file(out)
        typer.echo(f"{out}: key {made}. Keep a copy: without it the state is lost")
    elif rotate is not None:
        keyring.rotate_key_file(rotate)
        typer.echo(f"{rotate}:")
        _list(keyring.read_ring(rotate).ids)
    else:
        typer.echo(keyring.generate_key())


def _list(ids: tuple[str, ...]) -> None:
    for number, one in enumerate(ids):
        typer.echo(f"{one}  {'decrypts' if number else 'encrypts'}")

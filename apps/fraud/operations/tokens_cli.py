"""`millrace fraud tokens rotate|list|show`: the keys by which card numbers become tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.options import Format, Overrides, Root, Shape, print_as

if TYPE_CHECKING:
    from millrace_apps.fraud.settings import FraudSettings

app = typer.Typer(no_args_is_help=True, help="Tokens of card numbers, and their keys.")


@app.command()
def rotate(root: Root = None, overrides: Overrides = None) -> None:
    """Make a new key for cards that have not been seen; those that have keep their tokens, and their history.

    The job must be stopped. For example: millrace fraud tokens rotate
    """
    from millrace.privacy import keys
    from millrace.runtime.contract import owned

    settings, path = _where(root, overrides)
    folder = Path(settings.storage.path())
    with owned(folder):
        _check_committed(folder)
        made, kept = keys.rotate(path, _tokens_in_tables(settings))
        ring = keys.read_ring(path)
    old = ring.keys[1]
    typer.echo(f"{path}: key {made} makes tokens from the next start on; keep a copy")
    typer.echo(f"{kept:,} cards keep their tokens: {keys.known_file(path, old)}; keep it beside the keys")


@app.command("list", epilog="Example: millrace fraud tokens list")
def list_(root: Root = None, overrides: Overrides = None, shape: Shape = Format.table) -> None:
    """The keys, the one that makes tokens first, and how many cards keep the tokens of the others."""
    from millrace.privacy import keys

    _, path = _where(root, overrides)
    ring = keys.read_ring(path)
    found: list[dict[str, Any]] = []
    lines = []
    for number, key in enumerate(ring.keys):
        kept = ring.known[number - 1] if number else None
        found.append({"key": key.id, "makes_tokens": not number, "cards": kept})
        what = "makes tokens" if kept is None else f"{kept:,} cards keep its tokens"
        lines.append(f"{key.id or 'without id':<10}  {what}")
    print_as(shape, found, lambda: "\n".join(lines))


@app.command()
def show(
    number: Annotated[str, typer.Argument(help="A card number.")],
    key_file: Annotated[
        Path | None, typer.Option(help="The keys; default those of the app's settings.")
    ] = None,
    root: Root = None,
    overrides: Overrides = None,
    shape: Shape = Format.table,
) -> None:
    """Print the token under which a card number stands in tables, lists and cases.

    For example: millrace fraud tokens show "4111 1111 1111 1111"
    """
    from millrace.privacy.keys import read_ring
    from millrace.privacy.masking import Masker

    path = key_file if key_file is not None else _where(root, overrides)[1]
    token = Masker(read_ring(path).token).text(number)
    print_as(shape, {"token": token}, lambda: token)


def _where(root: Path | None, overrides: list[str] | None) -> tuple[FraudSettings, Path]:
    from millrace.errors import UserError
    from millrace.runtime.commands import command_settings
    from millrace_apps.fraud.operations.tokens import key_file
    from millrace_apps.fraud.settings import FraudSettings

    settings = command_settings(FraudSettings, "fraud", root=root, overrides=overrides)
    path = key_file(settings)
    if path is None:
        raise UserError("privacy.tokens is off: card numbers do not become tokens")
    return settings, path


def _check_committed(folder: Path) -> None:
    """Refuse a checkpoint whose last batch has not ended: it is done again, and must have the same tokens."""
    from millrace.checkpoints.checkpoint import Checkpoint
    from millrace.errors import UserError

    if not (folder / "checkpoint" / "offsets").is_dir():
        return
    if Checkpoint(folder, folder / "checkpoint").planned():
        raise UserError(
            f"the last batch of {folder} was not finished: start the job, stop it with Ctrl-C, and try again"
        )


def _tokens_in_tables(settings: FraudSettings) -> Iterator[str]:
    """Yield every card that a table names, as the stream has written it."""
    from deltalake import DeltaTable

    tables = Path(settings.storage.path("tables"))
    for place in sorted(tables.iterdir()) if tables.is_dir() else ():
        if DeltaTable.is_deltatable(str(place)):
            rows = DeltaTable(str(place)).to_pyarrow_dataset()
            for column in ("card_id", "event"):
                if column in rows.schema.names:
                    for batch in rows.to_batches(columns=[column]):
                        found = batch[column].unique() if column == "card_id" else batch[column]
                        for value in found.to_pylist():
                            card = value.get("card_id") if isinstance(value, dict) else value
                            if card is not None:
                                yield card

"""`millrace fraud forget`: remove a card from state and tables, and show what is left and where."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millrace.cli.options import Bootstrap, Overrides, Root

if TYPE_CHECKING:
    from millrace.privacy.erasure import Names
    from millrace_apps.fraud.settings import FraudSettings

#: How long the app may take to confirm, seconds.
_PATIENCE_S: Final = 120.0


def forget(
    card: Annotated[str, typer.Option("--card", help="Its token, or its number.")],
    check: Annotated[bool, typer.Option("--check", help="Delete nothing: only look what is left.")] = False,
    tables_only: Annotated[
        bool, typer.Option("--tables-only", help="Send no request: the app has forgotten the card already.")
    ] = False,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Remove the files of earlier versions of the tables, too.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", dir_okay=False, help="The proof, JSON.")] = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Forget a card: its state, its rows, its dead letters. Exit code 1 if something is left.

    For example: millrace fraud forget --card "4111 1111 1111 1111" --vacuum
    """
    from dataclasses import asdict

    from millrace.operations.acting import acting
    from millrace.operations.report import write
    from millrace.operations.roster import Role
    from millrace.operations.sending import now_ms
    from millrace.runtime.commands import command_settings
    from millrace_apps.fraud.operations import forgetting
    from millrace_apps.fraud.settings import FraudSettings

    settings = command_settings(FraudSettings, "fraud", bootstrap=bootstrap, root=root, overrides=overrides)
    if not check:
        acting(settings, Role.approve)
    names = forgetting.names_of(settings, card)
    ids: list[str] = []
    confirmed: bool | None = None
    if not check and not tables_only:
        ids, confirmed = _ask(settings, names)
    if ids:
        forgetting.settle(settings, _PATIENCE_S)
    deleted = {} if check else forgetting.delete(settings, names)
    if vacuum and not check:
        typer.echo(f"{forgetting.vacuum(settings):,} files of earlier versions removed")
    proof = forgetting.Proof(ids, confirmed, forgetting.find_traces(settings, names, deleted))
    proof.stores = forgetting.stores(settings, now_ms())
    for one in proof.tables:
        kept = "  (kept: who did what)" if one.kept and one.left else ""
        typer.echo(f"{one.table:<24} deleted {one.deleted:>8,}   left {one.left:,}{kept}")
    for store in proof.stores:
        typer.echo(f"not looked into: {store.line()}")
    if confirmed is False:
        typer.echo(f"not confirmed by the app within {_PATIENCE_S:.0f} s; does it run?")
    typer.echo("nothing is left" if proof.is_clean else "SOMETHING IS LEFT")
    write(out, {**asdict(proof), "clean": proof.is_clean})
    raise typer.Exit(0 if proof.is_clean else 1)


def _ask(settings: FraudSettings, names: Names) -> tuple[list[str], bool]:
    """Ask the running app to forget a card; return the requests, and whether it has done so."""
    from uuid import uuid4

    from millrace.operations.sending import now_ms, send
    from millrace.privacy.erasure import wait_for_rows
    from millrace_apps.fraud.contracts.events import CardErasure

    at = now_ms()
    asked = [CardErasure(f"erasure-{uuid4().hex}", at, name) for name in names.values]
    send(settings.kafka, settings.topics.erasures, CardErasure, [(one.card_id, one) for one in asked])
    typer.echo("asked the app to forget the card; waiting for it")
    ids = [one.erasure_id for one in asked]
    table = Path(settings.storage.path("tables", "erasures"))
    return ids, not wait_for_rows(table, "erasure_id", ids, patience_s=_PATIENCE_S)

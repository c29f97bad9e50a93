"""`millrace dashboard [APP]`: what the apps do, live in a browser."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Live pages of the apps in a browser.")


@app.command(epilog="Example: millrace dashboard fraud --port 8080")
def dashboard(
    name: Annotated[
        str | None, typer.Argument(metavar="[APP]", help="Name of an app; all that are installed by default.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; others than loopback need MILLRACE_DASHBOARD_TOKEN.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 takes a free one.")] = 8600,
    root: Annotated[
        Path | None,
        typer.Option(help="Folder with the app's tables; default its storage.root, else its last demo."),
    ] = None,
    bootstrap: Annotated[
        str | None, typer.Option(help="Kafka broker (host:port), for lag and dispositions.")
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Looking takes the token too, for other users of this machine.")
    ] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="The apps' last demos, whatever else there is of them.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="Settings file (default ./millrace.yaml).")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="A setting, e.g. -s storage.root=/data/fraud.")
    ] = None,
) -> None:
    """Serve the pages until Ctrl-C. They read tables, checkpoints and topics, and disturb no query.

    On this machine everybody may look, unless --private; what changes something takes the token: the one in
    the printed address, or in MILLRACE_DASHBOARD_TOKEN.
    """
    from millrace.dashboard.access import TOKEN_VARIABLE, Access
    from millrace.dashboard.serve import (
        address_of,
        configured_token,
        listening_socket,
        make_server,
        open_page,
        open_pages,
        operators_of,
    )
    from millrace.errors import UserError
    from millrace.local.home import demo_path
    from millrace.runtime.installed import list_apps
    from millrace.runtime.settings_sources import FromOption

    if root is not None and name is None:
        raise UserError("--root is the folder of one app: say which, e.g. millrace dashboard fraud --root …")
    if root is not None and demo:
        raise UserError("--root and --demo are two folders: give one of them")
    token = configured_token()
    Access(host, token)  # refuses before anything is opened
    sets = list(overrides or ())
    if bootstrap:
        sets.append(FromOption("--bootstrap", "kafka.bootstrap", bootstrap))
    if name is None:
        names = [one for one in list_apps() if not demo or demo_path(one).is_dir()]
        roots = {one: demo_path(one) for one in names} if demo else {}
        pages, broken = open_pages(names, roots=roots, config=config, overrides=sets)
    else:
        root = demo_path(name) if demo else root
        pages, broken = {name: open_page(name, root=root, config=config, overrides=sets)}, {}
    if not pages:
        raise UserError("no app can be shown: " + "; ".join(f"{n}: {why}" for n, why in broken.items()))
    access = Access(host, token, private=private, operators=operators_of(pages))
    server = make_server(pages, broken, access)
    listening = listening_socket(host, port)
    if access.is_generated:
        typer.echo(f"dashboard: {address_of(listening)}/?token={access.token}  (Ctrl-C ends it)")
    else:  # what is printed lands in logs, and who has given the token knows it
        typer.echo(f"dashboard: {address_of(listening)}/  (?token= as in {TOKEN_VARIABLE}; Ctrl-C ends it)")
    if access.is_operated():
        typer.echo("  there are operators: the address lets look, who wants to act logs in")
    for app_name, page in pages.items():
        typer.echo(f"  {app_name}: {page.data.root}")
    for app_name, why in broken.items():
        typer.echo(f"  {app_name} cannot be shown: {why}")
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        server.run(sockets=[listening])

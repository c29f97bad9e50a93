"""`millrace serve APP`: what an app has committed, over HTTP."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from millrace.cli.options import ConfigFile, Overrides, Root
from millrace.cli.serve_options import Host, KeyFile, Limit, Port, TokenFile

app = typer.Typer(help="What an app has committed, over HTTP.")


@app.command()
def serve(
    name: str = typer.Argument(metavar="APP", help="Name of the app."),
    root: Root = None,
    host: Host = "127.0.0.1",
    port: Port = 8700,
    token_file: TokenFile = None,
    rate_limit: Limit = 200,
    key_file: KeyFile = None,
    nice: Annotated[
        int,
        typer.Option(min=0, max=19, help="How much it gives way to the job on its machine; 0: not at all."),
    ] = 10,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Answer what is kept of a key, from the newest committed batch, until Ctrl-C. The app may run or stand.

    Example: millrace serve fraud --token-file token; curl -H "Authorization: Bearer $(cat token)"
    localhost:8700/v1/state/CardMonitor/card-7
    """
    os.nice(nice)  # before there are threads: each keeps what it began with
    from millrace.runtime.apps import load_app
    from millrace.serving.following import Following, keeping_up
    from millrace.serving.gate import RateLimit
    from millrace.serving.questions import questions_of
    from millrace.serving.running import checkpoint_of, log_to_stderr, run, settings_of, token_of
    from millrace.serving.server import Server

    found = load_app(name)
    settings = settings_of(found, config, overrides or (), root)
    token = token_of(token_file)
    following = Following(checkpoint_of(settings), key_file=None if key_file is None else str(key_file))
    log_to_stderr()
    with keeping_up(following.look):
        server = Server(
            lambda: following.state,
            token=token,
            questions=questions_of(found, settings),
            limit=RateLimit(rate_limit),
        )
        run(server, token, host, port, typer.echo)

"""Starts a server of questions and ends it."""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.checkpoints.checkpoint import Checkpoint, CheckpointError, locate
from millrace.dashboard.serve import address_of, listening_socket
from millrace.errors import UserError
from millrace.local.waiting import wait_until
from millrace.serving.gate import Token, read_token
from millrace.serving.server import MOST_AT_ONCE, Server

if TYPE_CHECKING:
    from millrace.runtime.apps import App
    from millrace.runtime.settings import AppSettings

#: How long a thread computes before another one may, seconds.
_SWITCH_S = 0.0005


def settings_of(app: App, config: Path | None, overrides: Sequence[str], root: Path | None = None) -> Any:
    """Return the settings of an app, with the folder of its checkpoint.

    Args:
        app: The app.
        config: Settings file.
        overrides: Settings, ``key=value``.
        root: Its ``storage.root``.
    """
    from millrace.runtime.settings import load_settings

    told = [*overrides, *([] if root is None else [f"storage.root={root}"])]
    return load_settings(app.settings, app=app.name, config=config, overrides=told)


def checkpoint_of(settings: AppSettings) -> Callable[[], Checkpoint]:
    """Return what finds the checkpoint of an app.

    Raises:
        UserError: It is in no folder.
    """
    root = settings.storage.local_root
    if root is None:
        raise UserError(f"storage.root is {settings.storage.root}: serving reads a local or mounted folder")

    def find() -> Checkpoint:
        if not (root / "checkpoint" / "offsets").is_dir():
            raise CheckpointError(f"there is no checkpoint in {root} yet: run the app")
        return locate(str(root))

    return find


def token_of(path: Path | None) -> Token:
    """Return the token in a file; without one, a new token."""
    return Token() if path is None else Token(read_token(path))


def log_to_stderr() -> None:
    """Let what the server says be seen: a line for each request."""
    log = logging.getLogger("millrace.serving")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)


def uvicorn_of(server: Server) -> Any:
    """Return a uvicorn server; its ``run(sockets=[…])`` serves until it is told to end.

    Raises:
        UserError: What it needs is not installed.
    """
    try:
        import uvicorn

        from millrace.dashboard.connections import Waiting, patient_protocol
    except ImportError as error:
        raise UserError("serving needs the extra dashboard: pip install 'millrace[dashboard]'") from error
    config = uvicorn.Config(
        server,
        http=patient_protocol(Waiting(of_address=MOST_AT_ONCE, of_all=MOST_AT_ONCE)),
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
        limit_concurrency=2 * MOST_AT_ONCE,
    )
    return uvicorn.Server(config)


def run(server: Server, token: Token, host: str, port: int, echo: Callable[[str], None]) -> None:
    """Serve until it is told to end.

    Args:
        server: What answers.
        token: Its token: one that was made is printed.
        host: Where to listen.
        port: Port; 0: a free one.
        echo: Prints a line.
    """
    at_work = uvicorn_of(server)
    # A question changes threads several times, and must not wait each time for one that computes.
    sys.setswitchinterval(_SWITCH_S)
    # What was loaded by now stays: a collection that goes through all of it holds every answer up (80 ms).
    gc.collect()
    gc.freeze()
    with contextlib.closing(listening_socket(host, port)) as listening:
        echo(f"serving at {address_of(listening)}  (Ctrl-C ends it)")
        if token.is_made:
            echo(f"  Authorization: Bearer {token.text}")
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
            at_work.run(sockets=[listening])
    server.close()


@contextlib.contextmanager
def serving(server: Server, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve in a thread while the block runs; give the address."""
    import threading

    at_work = uvicorn_of(server)
    with contextlib.closing(listening_socket(host, port)) as listening:
        thread = threading.Thread(target=at_work.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        wait_until(lambda: at_work.started or not thread.is_alive(), 10, every_s=0.01)
        try:
            yield address_of(listening)
        finally:
            at_work.should_exit = True
            thread.join(10)
            server.close()

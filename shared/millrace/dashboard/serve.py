"""Start and end the dashboard's server."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.dashboard.access import TOKEN_VARIABLE, Access
from millrace.dashboard.data import AppData, find_root
from millrace.dashboard.live import LivePage
from millrace.dashboard.page import load_page
from millrace.errors import UserError
from millrace.local.waiting import wait_until
from millrace.operations.roster import Roster, roster_file

if TYPE_CHECKING:
    from millrace.runtime.settings import AppSettings

DEFAULT_PORT = 8600


def wall_clock_ms() -> int:
    """Return now, UTC milliseconds."""
    return time.time_ns() // 1_000_000


def open_page(
    name: str,
    *,
    root: Path | None = None,
    config: Path | None = None,
    overrides: Sequence[str] = (),
    interval_ms: int = 2_000,
    clock: Callable[[], int] = wall_clock_ms,
) -> LivePage:
    """Return the page of an app.

    Args:
        name: Name of the app.
        root: The folder with its tables; default see :func:`millrace.dashboard.data.find_root`.
        config: Settings file.
        overrides: Settings, ``key=value``.
        interval_ms: How often panels are made anew, ms.
        clock: Now, UTC milliseconds.

    Raises:
        UserError: There is no such app, its settings or its page cannot be used.
    """
    from millrace.runtime.apps import load_app
    from millrace.runtime.settings import load_settings

    app = load_app(name)

    def settings_with(told: Sequence[str]) -> AppSettings:
        # What the user says comes last, and wins.
        return load_settings(app.settings, app=name, config=config, overrides=[*told, *overrides])

    settings = settings_with(())
    page = load_page(app)
    data = AppData(app, settings, find_root(name, settings, root), clock, page.folders, settings_with)
    return LivePage(data, page, interval_ms=interval_ms)


def open_pages(
    names: Iterable[str],
    *,
    roots: Mapping[str, Path] | None = None,
    config: Path | None = None,
    overrides: Sequence[str] = (),
) -> tuple[dict[str, LivePage], dict[str, str]]:
    """Return the pages of several apps, and why the others cannot be shown.

    Args:
        names: The apps.
        roots: App → the folder with its tables; of others see :func:`open_page`.
        config: Settings file.
        overrides: Settings, ``key=value``.
    """
    pages, broken = {}, {}
    for name in names:
        try:
            root = (roots or {}).get(name)
            pages[name] = open_page(name, root=root, config=config, overrides=overrides)
        except (UserError, ImportError, AttributeError) as error:
            broken[name] = str(error)
    return pages, broken


def operators_of(pages: Mapping[str, LivePage]) -> Callable[[], Roster | None]:
    """Return what gives the operators who may act on pages, as they are now.

    Args:
        pages: Name of an app → its page.

    Raises:
        UserError: The apps have operators of their own.
    """
    files = {(found := roster_file(page.data.settings)).path: found for page in pages.values()}
    if len(files) > 1:
        where = ", ".join(sorted(map(str, files)))
        raise UserError(f"the apps' operators are in {where}: show one app alone, e.g. `dashboard fraud`")
    return next(iter(files.values())).read if files else (lambda: None)


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        UserError: The address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By its name, or asyncio leaves Nagle's algorithm on: an answer of two parts then takes 40 ms.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(128)  # who comes before the server has begun waits, and is not refused
    except (OSError, OverflowError) as error:
        found.close()
        raise UserError(f"cannot listen on {host}:{port} ({error}): choose another with --port") from error
    return found


def make_server(pages: dict[str, LivePage], broken: dict[str, str], access: Access) -> Any:
    """Return a uvicorn server of these pages; its ``run(sockets=[…])`` serves until it is told to end."""
    try:
        import uvicorn

        from millrace.dashboard.connections import Waiting, patient_protocol
        from millrace.dashboard.server import Site, make_app
    except ImportError as error:
        raise UserError("the dashboard needs its extra: pip install 'millrace[dashboard]'") from error

    site = Site(pages, access, broken=broken, is_ending=lambda: bool(server.should_exit))
    config = uvicorn.Config(
        make_app(site),
        http=patient_protocol(Waiting()),
        ws="none",
        log_level="warning",
        access_log=False,  # addresses may carry the token
        server_header=False,
        timeout_graceful_shutdown=3,
        limit_concurrency=200,
    )
    server = uvicorn.Server(config)
    return server


@contextlib.contextmanager
def serving(
    pages: dict[str, LivePage],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    private: bool = False,
) -> Iterator[tuple[str, Access]]:
    """Serve pages in a thread while the block runs; give their address and the rules of access.

    Args:
        pages: Name of an app → its page.
        host: Where to listen.
        port: Port; 0: a free one.
        token: The token; see :class:`~millrace.dashboard.access.Access`.
        private: Whether looking takes the token on the loopback interface too.
    """
    import threading

    access = Access(host, token, private=private, operators=operators_of(pages))
    server = make_server(pages, {}, access)
    with contextlib.closing(listening_socket(host, port)) as listening:
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listening]}, name="millrace-dashboard", daemon=True
        )
        thread.start()
        wait_until(lambda: server.started or not thread.is_alive(), 10, every_s=0.01)
        try:
            yield address_of(listening), access
        finally:
            server.should_exit = True
            thread.join(10)


def address_of(listening: socket.socket) -> str:
    """Return the address of a socket that listens, as a browser takes it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def configured_token() -> str | None:
    """Return the token of the environment, if there is one."""
    return os.environ.get(TOKEN_VARIABLE) or None

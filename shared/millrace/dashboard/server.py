"""The dashboard's server: the page, the panels as server-sent events, details, and what may be done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    StreamingResponse,
)
from starlette.concurrency import run_in_threadpool

from millrace.dashboard.access import COOKIE, Access
from millrace.dashboard.guard import Guard
from millrace.dashboard.live import LivePage
from millrace.errors import MillraceError, UserError
from millrace.runtime.redaction import redact_text

STATIC = Path(__file__).parent / "static"
#: Most who may look at the same time: each holds a connection.
MOST_LISTENERS = 64
#: Of these, so many without the token: they must not keep out those who have it.
MOST_UNKNOWN_LISTENERS = 48
_LARGEST_BODY = 16_384
_FILES = {"style.css": "text/css", "app.js": "text/javascript", "charts.js": "text/javascript",
          "icon.svg": "image/svg+xml"}  # fmt: skip


class Site:
    """The pages of a server.

    Args:
        pages: Name of an app → its page.
        broken: Name of an app that cannot be shown → why.
        access: Who may do what.
        is_ending: Says whether the server is to end, so that nobody keeps it waiting.
    """

    def __init__(
        self,
        pages: Mapping[str, LivePage],
        access: Access,
        *,
        broken: Mapping[str, str] | None = None,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self.pages = dict(pages)
        self.broken = dict(broken or {})
        self.access = access
        self.is_ending = is_ending
        self.listeners = 0

    async def events(self, page: LivePage, *, once: bool = False) -> AsyncIterator[bytes]:
        """Yield the panels that changed, as server-sent events, until the listener or the server goes."""
        seen: dict[str, int] = {}
        self.listeners += 1
        try:
            while not self.is_ending():
                await run_in_threadpool(page.refresh)
                bodies = page.changed(seen)
                for body in bodies:
                    yield b"event: panel\ndata: " + body + b"\n\n"
                # Something must be sent now and then, or nobody notices a connection that is gone.
                yield b"event: beat\ndata: %d\n\n" % page.data.now_ms()
                if once:
                    return
                for _ in range(max(1, page.interval_ms // 200)):
                    if self.is_ending():
                        return
                    await asyncio.sleep(0.2)
        finally:
            self.listeners -= 1


def make_app(site: Site) -> Guard:
    """Return the web application of a site."""
    app = FastAPI(title="Millrace", docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(MillraceError)
    async def explain(_: Request, error: Exception) -> Response:
        return JSONResponse({"error": redact_text(str(error))}, status_code=409)

    _add_page(app, site)
    _add_data(app, site)
    return Guard(app, site.access)


def _add_page(app: FastAPI, site: Site) -> None:
    @app.get("/")
    def index() -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        if name not in _FILES:
            return PlainTextResponse("no such file\n", status_code=404)
        return FileResponse(STATIC / name, media_type=_FILES[name])

    @app.get("/api/session")
    def session(request: Request) -> dict[str, bool]:
        """Say what the reader may do; nothing of the session itself is ever told again."""
        asked = request.state.asked
        return {"is_known": site.access.is_known(asked), "may_act": site.access.may_act(asked)}

    @app.post("/api/leave")
    def leave(request: Request) -> Response:
        site.access.leave(request.state.asked.cookie)
        answer = _json({"said": "the session has ended"})
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer


def _add_data(app: FastAPI, site: Site) -> None:
    @app.get("/api/apps")
    def apps() -> Response:
        found = [
            {"app": name, "summary": page.data.app.summary, "root": str(page.data.root),
             "tables": len(page.data.table_names()), "error": None}
            for name, page in site.pages.items()
        ]  # fmt: skip
        found += [
            {"app": n, "summary": "", "root": "", "tables": 0, "error": e} for n, e in site.broken.items()
        ]
        return _json(found)

    @app.get("/api/apps/{name}")
    def describe(name: str) -> Response:
        return _json(_page(site, name).describe())

    @app.get("/api/apps/{name}/events")
    async def events(request: Request, name: str, once: bool = False) -> Response:
        page = _page(site, name)
        known = site.access.is_known(request.state.asked)
        if site.listeners >= (MOST_LISTENERS if known else MOST_UNKNOWN_LISTENERS):
            return PlainTextResponse("too many are looking\n", status_code=503)
        return StreamingResponse(site.events(page, once=once), media_type="text/event-stream")

    @app.get("/api/apps/{name}/detail")
    def detail(name: str, key: str = Query(min_length=1, max_length=200)) -> Response:
        return _json(_page(site, name).detail(key))

    @app.get("/api/apps/{name}/tables/{table}")
    def rows(name: str, table: str, rows: int = Query(default=20, ge=1, le=100)) -> Response:
        found = _page(site, name).rows(table, rows)
        return _json({"error": "no such table"}, 404) if found is None else _json(found)

    @app.post("/api/apps/{name}/action")
    async def act(name: str, request: Request, action: str = "", look: bool = False) -> Response:
        page = _page(site, name)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _LARGEST_BODY:
                return _json({"error": "that is too long"}, 413)
        try:
            values = msgspec.json.decode(bytes(body), type=dict[str, str])
        except msgspec.DecodeError as error:
            raise UserError(f"not what was expected: {error}") from error
        if look:
            return _json({"view": await run_in_threadpool(page.look, values, action)})
        return _json({"said": await run_in_threadpool(page.act, values, action)})


def _page(site: Site, name: str) -> LivePage:
    try:
        return site.pages[name]
    except KeyError:
        raise UserError(f"there is no page of '{name[:40]}'") from None


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")

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

from millrace.dashboard.access import COOKIE, LOG_IN, Access
from millrace.dashboard.guard import Guard, give_session
from millrace.dashboard.live import LivePage
from millrace.dashboard.overview import Overview
from millrace.errors import MillraceError, UserError
from millrace.operations.acting import NotAllowed
from millrace.runtime.redaction import redact_text

STATIC = Path(__file__).parent / "static"
#: Most who may look at the same time: each holds a connection.
MOST_LISTENERS = 64
#: Of these, so many without the token: they must not keep out those who have it.
MOST_UNKNOWN_LISTENERS = 48
_LARGEST_BODY = 16_384
#: No moment is later than this, UTC milliseconds: the end of the year 9999.
_LAST_MS = 253_402_300_799_999
_FILES = {"style.css": "text/css", "app.js": "text/javascript", "charts.js": "text/javascript",
          "maps.js": "text/javascript", "operators.js": "text/javascript",
          "icon.svg": "image/svg+xml"}  # fmt: skip


class _TooLong(UserError):
    """More was sent than anybody needs."""


class Site:
    """The pages of a server.

    Args:
        pages: Name of an app → its page.
        broken: Name of an app that cannot be shown → why.
        access: Who may do what.
        is_ending: Says whether the server is to end, so that nobody keeps it waiting.
        overview: The page of all apps; default of these.
    """

    def __init__(
        self,
        pages: Mapping[str, LivePage],
        access: Access,
        *,
        broken: Mapping[str, str] | None = None,
        is_ending: Callable[[], bool] = lambda: False,
        overview: Overview | None = None,
    ) -> None:
        self.overview = overview or Overview(pages, broken)
        self.pages = dict(pages)
        self.broken = dict(broken or {})
        self.access = access
        self.is_ending = is_ending
        self.listeners = 0

    async def events(self, page: LivePage | Overview, *, once: bool = False) -> AsyncIterator[bytes]:
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
                yield b"event: beat\ndata: %d\n\n" % page.now_ms()
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
        status = 413 if isinstance(error, _TooLong) else 403 if isinstance(error, NotAllowed) else 409
        return JSONResponse({"error": redact_text(str(error))}, status_code=status)

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
    def session(request: Request) -> dict[str, bool | str | None]:
        """Say what the reader may do; nothing of the session itself is ever told again."""
        asked, access = request.state.asked, site.access
        found: dict[str, bool | str | None] = {
            "is_known": access.is_known(asked), "may_act": access.may_act(asked),
        }  # fmt: skip
        if access.is_operated():
            one = access.operator(asked)
            found |= {
                "operators": True,
                "operator": one.name if one else None,
                "role": one.role.value if one else None,
            }
        return found

    @app.post(LOG_IN)
    async def enter(request: Request) -> Response:
        """Exchange an operator's token for a session."""
        asked, access = request.state.asked, site.access
        token = (await _values(request)).get("token", "")
        if wait_s := access.wait_s(asked.address):
            answer = _json({"error": f"too many tries to log in: wait {wait_s} s"}, 429)
            answer.headers["retry-after"] = str(wait_s)
            return answer
        operator = await run_in_threadpool(access.recognised, token)
        made = access.begin(operator)
        answer = _json({"act": made.csrf})
        give_session(answer, made, secure=asked.scheme == "https")
        return answer

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

    @app.get("/api/overview")
    def overview() -> Response:
        return _json(site.overview.describe())

    @app.get("/api/overview/events")
    async def overview_events(request: Request, once: bool = False) -> Response:
        return _listening(site, request, site.overview, once=once)

    @app.get("/api/apps/{name}")
    def describe(name: str) -> Response:
        return _json(_page(site, name).describe())

    @app.get("/api/apps/{name}/events")
    async def events(request: Request, name: str, once: bool = False) -> Response:
        return _listening(site, request, _page(site, name), once=once)

    @app.get("/api/apps/{name}/detail")
    def detail(name: str, key: str = Query(min_length=1, max_length=200)) -> Response:
        return _json(_page(site, name).detail(key))

    @app.get("/api/apps/{name}/at")
    def at(name: str, ms: int = Query(ge=0, le=_LAST_MS)) -> Response:
        return _json(_page(site, name).at(ms))

    @app.get("/api/apps/{name}/chosen")
    def chosen(name: str, value: str = Query(default="", max_length=200)) -> Response:
        return _json(_page(site, name).chosen(value))

    @app.get("/api/apps/{name}/tables/{table}")
    def rows(name: str, table: str, rows: int = Query(default=20, ge=1, le=100)) -> Response:
        found = _page(site, name).rows(table, rows)
        return _json({"error": "no such table"}, 404) if found is None else _json(found)

    @app.post("/api/apps/{name}/action")
    async def act(name: str, request: Request, action: str = "", look: bool = False) -> Response:
        page, operator = _page(site, name), site.access.acting(request.state.asked)
        values = await _values(request)
        if look:
            return _json({"view": await run_in_threadpool(page.look, values, action)})
        return _json({"said": await run_in_threadpool(page.act, values, action, operator)})


def _listening(site: Site, request: Request, page: LivePage | Overview, *, once: bool) -> Response:
    """Return the stream of a page, unless too many listen."""
    known = site.access.is_known(request.state.asked)
    if site.listeners >= (MOST_LISTENERS if known else MOST_UNKNOWN_LISTENERS):
        return PlainTextResponse("too many are looking\n", status_code=503)
    return StreamingResponse(site.events(page, once=once), media_type="text/event-stream")


async def _values(request: Request) -> dict[str, str]:
    """Return the texts that were sent, by name.

    Raises:
        _TooLong: There is too much of it.
        UserError: It is something else.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST_BODY:
            raise _TooLong("that is too long")
    try:
        return msgspec.json.decode(bytes(body), type=dict[str, str])
    except msgspec.DecodeError as error:
        raise UserError(f"not what was expected: {error}") from error


def _page(site: Site, name: str) -> LivePage:
    try:
        return site.pages[name]
    except KeyError:
        raise UserError(f"there is no page of '{name[:40]}'") from None


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")

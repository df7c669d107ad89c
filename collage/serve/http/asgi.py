"""Parts of servers around their routes: errors, bodies, ids of requests, and clients that leave."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from collage.serve.http.bodies import ApiError

if TYPE_CHECKING:
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger(__name__)

Value = TypeVar("Value")
Receive = Callable[[], Awaitable[Any]]

GONE = 499
"""The status of answers that nobody reads."""

HEADER = "x-request-id"
_LONGEST = 256


class IdsAndLog:
    """Gives each answer of an application the id that the client has given, or a new one, and logs its request.

    A line of the log, "127.0.0.1 POST /v1/completions 200 31.4 ms 5f0c…", is written when the answer, or its stream,
    is over.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == HEADER.encode()), b"")
        id = given if 0 < len(given) <= _LONGEST else uuid.uuid4().hex.encode()
        scope[HEADER] = id.decode("latin-1")
        status, begin = 500, time.perf_counter()

        async def named(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (HEADER.encode(), id)]}
            await send(message)

        try:
            await self._app(scope, receive, named)
        finally:
            ms = (time.perf_counter() - begin) * 1e3
            client = scope["client"][0] if scope.get("client") else "-"
            path = scope.get("raw_path", b"").decode("latin-1")  # as sent: its line breaks are escaped
            logger.info("%s %s %s %d %.1f ms %s", client, scope["method"], path, status, ms, scope[HEADER])


def middleware(allow_origins: Sequence[str], *exposed: str) -> list[Middleware]:
    """The middleware of all routes. Pages of ``allow_origins`` can use the routes and read the headers ``exposed``."""
    from starlette.middleware import Middleware
    from starlette.middleware.cors import CORSMiddleware

    cross_origin = Middleware(
        CORSMiddleware,
        allow_origins=allow_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=[HEADER, "Retry-After", *exposed],
    )
    return [*([cross_origin] if allow_origins else []), Middleware(IdsAndLog)]


def error_handlers(answer: Callable[[ApiError], Response]) -> dict[Any, Any]:
    """The handlers of an application for ApiError, for paths without a route, and for faults of the server."""
    from starlette.exceptions import HTTPException

    async def failed(request: Request, error: ApiError) -> Response:
        return answer(error)

    async def no_route(request: Request, error: HTTPException) -> Response:
        text = f"{request.method} {request.url.path}: {error.detail.lower()}."
        response = answer(ApiError(error.status_code, text))
        response.headers.update(error.headers or {})  # the methods that there are
        return response

    async def broken(request: Request, error: Exception) -> Response:
        id = request.scope[HEADER]
        logger.error("the request %s has failed", id, exc_info=error)
        response = answer(ApiError(500, f"a fault in the server: {type(error).__name__}.", "fault"))
        response.headers[HEADER] = id  # as nothing that adds it is around this
        return response

    return {ApiError: failed, HTTPException: no_route, Exception: broken}


async def read_body(request: Request, most: int) -> bytes:
    """The body of a request, of at most ``most`` bytes. Raises ApiError when it is too large or does not come."""
    from starlette.requests import ClientDisconnect

    data = bytearray()
    try:
        async for chunk in request.stream():
            data += chunk
            if len(data) > most:
                raise ApiError(413, f"the body has more than {most} bytes.", "too_large")
    except ClientDisconnect as error:
        raise ApiError(GONE, "the client has left.") from error
    return bytes(data)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Value]) -> Value:
    """Do the work unless the client leaves before it is done; it is cancelled then, and ApiError is raised."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(GONE, "the client has left.")
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

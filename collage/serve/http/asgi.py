"""Parts of servers below their routes: bodies, ids of requests, and clients that leave."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from collage.serve.http.bodies import ApiError

if TYPE_CHECKING:
    from starlette.requests import Request

Value = TypeVar("Value")
Receive = Callable[[], Awaitable[Any]]

GONE = 499
"""The status of answers that nobody reads."""

HEADER = "x-request-id"
_LONGEST = 256


class RequestIds:
    """Gives each answer of an application the id that the client has given, or a new one."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == HEADER.encode()), b"")
        id = given if 0 < len(given) <= _LONGEST else uuid.uuid4().hex.encode()
        scope[HEADER] = id.decode("latin-1")

        async def named(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (HEADER.encode(), id)]}
            await send(message)

        await self._app(scope, receive, named)


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

"""The header by which a client and the server's log know a request."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

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

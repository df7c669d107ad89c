"""The routes of the server."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from collage.serve.http.asgi import Receive, error_handlers, middleware, read_body, unless_gone
from collage.serve.http.bodies import ApiError, ChatBody, CommonBody, CompletionBody, parse
from collage.serve.http.objects import AnswerShape, ChatShape, CompletionShape
from collage.serve.http.service import HttpJob, Service
from collage.serve.text import Output

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_MAX_BODY = 4 << 20
"""The most bytes of a body: more than half a million token ids.

All streams wait while a body is read, and one of 16 MiB took seconds.
"""


def make_app(service: Service, allow_origins: Sequence[str] = ()) -> Starlette:
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    def failed(error: ApiError) -> Response:
        service.metrics.refused(error.status)
        return JSONResponse(error.body(), error.status, error.headers())

    async def health(request: Request) -> Response:
        if service.draining:
            return JSONResponse({"status": "draining"}, 503)
        return JSONResponse({"status": "ok"} if service.link.up else {"status": "starting"}, _status(service))

    async def metrics(request: Request) -> Response:
        return Response(service.metrics.text(service.link.up), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_model(service)]})

    async def model(request: Request) -> Response:
        service.check_model(request.path_params["name"])
        return JSONResponse(_model(service))

    async def completions(request: Request) -> Response | _EventStream:
        body = parse(CompletionBody, await read_body(request, _MAX_BODY))
        service.check_model(body.model)
        job = await service.job(body, body.prompts, body.max_tokens, body.logprobs)
        return await _answer(service, request, job, CompletionShape(service), body)

    async def chat(request: Request) -> Response | _EventStream:
        body = parse(ChatBody, await read_body(request, _MAX_BODY))
        service.check_model(body.model)
        text = await service.chat_prompt(body.given_messages)
        job = await service.job(body, [text], body.most_tokens, body.most_logprobs, special=False)
        return await _answer(service, request, job, ChatShape(service), body)

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
        ],
        middleware=middleware(allow_origins),
        exception_handlers=error_handlers(failed),
    )


def _status(service: Service) -> int:
    return 200 if service.link.up else 503


def _model(service: Service) -> dict[str, Any]:
    return {
        "id": service.name,
        "object": "model",
        "created": service.started,
        "owned_by": "collage",
        "max_model_len": service.max_length,
    }


async def _answer(
    service: Service, request: Request, job: HttpJob, shape: AnswerShape, body: CommonBody
) -> Response | _EventStream:
    from starlette.responses import JSONResponse

    usage = body.wants_usage
    if body.stream:
        deltas = job.deltas()
        # The first delta comes before the head of the answer, so that what is refused has a status of its own.
        first = await unless_gone(request.receive, _first(deltas))
        return _EventStream(_events(service, job, shape, first, deltas, usage), deltas)
    whole = await unless_gone(request.receive, _collected(job))
    return JSONResponse(shape.whole(job, whole))


async def _first(deltas: AsyncIterator[tuple[int, Output]]) -> tuple[int, Output]:
    return await anext(deltas)


async def _collected(job: HttpJob) -> list[list[Output]]:
    found: list[list[Output]] = [[] for _ in job.answers]
    async with aclosing(job.deltas()) as deltas:
        async for number, delta in deltas:
            found[number].append(delta)
    return found


async def _events(
    service: Service,
    job: HttpJob,
    shape: AnswerShape,
    first: tuple[int, Output],
    deltas: AsyncGenerator[tuple[int, Output], None],
    usage: bool,
) -> AsyncGenerator[bytes, None]:
    """The events of a stream; one that fails ends with an error. With ``usage``, each has it, and one more tells it."""
    rest: dict[str, Any] = {"usage": None} if usage else {}
    try:
        yield _event(shape.chunk(job, *first) | rest)
        async for number, delta in deltas:
            yield _event(shape.chunk(job, number, delta) | rest)
    except ApiError as error:
        service.metrics.refused(error.status)
        yield _event(error.body())
        return
    if usage:
        yield _event(shape.last(job))
    yield b"data: [DONE]\n\n"


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class _EventStream:
    """A stream that ends with its client. Starlette's own would leave its generator to the garbage collector."""

    _HEADERS = (
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),  # nginx would collect events
    )

    def __init__(self, events: AsyncGenerator[bytes, None], deltas: AsyncGenerator[tuple[int, Output], None]) -> None:
        """``deltas`` are what the events are made of. They have begun, so they are closed even if no event was sent."""
        self._events = events
        self._deltas = deltas

    async def __call__(self, scope: Any, receive: Receive, send: Callable[[Any], Awaitable[None]]) -> None:
        try:
            await unless_gone(receive, self._run(send))
        except (ApiError, OSError):
            pass  # the client has left
        finally:
            await self._events.aclose()
            await self._deltas.aclose()

    async def _run(self, send: Callable[[Any], Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._HEADERS})
        async for each in self._events:
            await send({"type": "http.response.body", "body": each, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

"""The routes of a module's server."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage._version import __version__
from collage.serve.http.asgi import error_handlers, middleware, read_body, unless_gone
from collage.serve.http.bodies import ApiError, bad_request
from collage.serve.kserve.messages import VERSION
from collage.serve.kserve.service import ModuleService

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_LENGTH = "Inference-Header-Content-Length"
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""How zlib reads bodies by their encoding."""


def make_module_app(service: ModuleService, allow_origins: Sequence[str] = ()) -> Starlette:
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    def failed(error: ApiError) -> Response:
        service.metrics.refused(error.status)
        return JSONResponse({"error": error.message}, error.status, error.headers())

    async def server(request: Request) -> Response:
        return JSONResponse({"name": "collage", "version": __version__, "extensions": ["binary_tensor_data"]})

    async def live(request: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(request: Request) -> Response:
        _check_model(service, request)
        return JSONResponse({"ready": not service.draining}, 503 if service.draining else 200)

    async def model(request: Request) -> Response:
        _check_model(service, request)
        return JSONResponse(service.metadata())

    async def index(request: Request) -> Response:
        return JSONResponse([{"name": service.name, "version": VERSION, "state": "READY", "reason": ""}])

    async def infer(request: Request) -> Response:
        _check_model(service, request)
        with service.admitted():
            length = _header_length(request)
            body = _unpacked(await read_body(request, service.max_body), request, service.max_body)
            data, json_bytes, is_binary = await unless_gone(request.receive, service.infer(body, length))
        if not is_binary:
            return Response(data, media_type="application/json")
        return Response(data, headers={_LENGTH: str(json_bytes)}, media_type="application/octet-stream")

    async def metrics(request: Request) -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    of_model = [
        route
        for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
        for route in (
            Route(path, model),
            Route(f"{path}/ready", ready),
            Route(f"{path}/infer", infer, methods=["POST"]),
        )
    ]
    return Starlette(
        routes=[
            Route("/v2", server),
            Route("/v2/health/live", live),
            Route("/v2/health/ready", ready),
            Route("/v2/repository/index", index, methods=["POST"]),
            Route("/metrics", metrics),
            *of_model,
        ],
        middleware=middleware(allow_origins, _LENGTH),
        exception_handlers=error_handlers(failed),
    )


def _check_model(service: ModuleService, request: Request) -> None:
    """Raise ApiError if the path names another model or version than there is."""
    names = request.path_params
    service.check_model(names.get("name", service.name), names.get("version"))


def _header_length(request: Request) -> int | None:
    text = request.headers.get(_LENGTH)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise bad_request(f"the header {_LENGTH} is no number of bytes.")
    return int(text)


def _unpacked(body: bytes, request: Request, most: int) -> bytes:
    """The body without its encoding. Raises ApiError for an unknown one, and for more than ``most`` bytes."""
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding == "identity":
        return body
    if encoding not in _WINDOWS:
        raise ApiError(415, f"unknown content encoding: {encoding}. Valid: {', '.join(_WINDOWS)}.")
    unpacking = zlib.decompressobj(_WINDOWS[encoding])
    try:
        found = unpacking.decompress(body, most)
    except zlib.error as error:
        raise bad_request(f"the body is not in {encoding}: {error}") from error
    if unpacking.unconsumed_tail:
        raise ApiError(413, f"the body has more than {most} bytes.", "too_large")
    if not unpacking.eof:
        raise bad_request(f"the body in {encoding} is cut short.")
    return found

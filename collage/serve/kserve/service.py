"""The state of a module's server: the module, its limits, and the requests that are open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from collage.errors import CollageError, InputError
from collage.module.batched import Batched
from collage.module.module import CompiledModule
from collage.module.shaped import ShapedModule
from collage.serve.http.asgi import GONE
from collage.serve.http.bodies import ApiError, bad_request, unavailable
from collage.serve.kserve.messages import VERSION, InferRequest, answer, parse_request
from collage.serve.kserve.metrics import ModuleMetrics
from collage.serve.kserve.tensors import Signature

_LARGE = 1 << 16
"""Larger bodies are read and written in a thread, so that other requests go on meanwhile."""
_MOST_JSON = 16 << 20
"""The most bytes of JSON in a request. Python does nothing else while it parses them, and 50 MiB took four seconds."""


@dataclass
class ModuleService:
    """The server's state. ``draining`` says that it takes no more requests. ``batched`` are those that join them."""

    name: str
    module: CompiledModule | ShapedModule
    signature: Signature
    max_waiting: int
    max_body: int
    metrics: ModuleMetrics
    batched: Batched | None = None
    draining: bool = False
    open: int = 0
    running: set[asyncio.Future[Any]] = field(default_factory=set)
    is_cut: bool = False

    @property
    def up(self) -> bool:
        """Whether the module is loaded, which it is before there is a service."""
        return True

    def drain(self) -> None:
        """Take no more requests; those that are open do not wait for others any more."""
        self.draining = True
        if self.batched is not None:
            self.batched.hurry()

    def cut_off(self) -> None:
        """Tell all open requests that there will be no answer."""
        self.is_cut = True
        for each in self.running:
            each.cancel()

    def check_model(self, name: str, version: str | None) -> None:
        """Raise ApiError unless this is the model that is served, in a version that there is."""
        if name != self.name:
            raise ApiError(404, f"unknown model: {name}. This server has {self.name}.")
        if version not in (None, VERSION):
            raise ApiError(404, f"unknown version of {name}: {version}. There is {VERSION}.")

    def metadata(self) -> dict[str, Any]:
        """The metadata of the model."""
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": "collage",
            "inputs": [each.metadata() for each in self.signature.inputs],
            "outputs": [each.metadata() for each in self.signature.outputs],
        }

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request while it is open. Raises ApiError if there are too many, and for what goes wrong inside."""
        if self.draining:
            raise unavailable("the server is shutting down.")
        if self.open >= self.max_waiting:
            raise ApiError(429, f"{self.open} requests are open, and no more are taken.", retry_after_s=1)
        begin_s, status = time.monotonic(), 500
        self.open += 1
        self.metrics.begun()
        try:
            yield
            status = 200
        except ApiError as error:
            status = error.status
            raise
        except asyncio.CancelledError:
            status = GONE
            raise
        finally:
            self.open -= 1
            self.metrics.ended(status, time.monotonic() - begin_s)

    async def infer(self, body: bytes, header_length: int | None) -> tuple[bytes, int, bool]:
        """The body of the answer, how many bytes of it are JSON, and whether others follow. Raises ApiError."""
        is_large = len(body) > _LARGE
        if (len(body) if header_length is None else min(header_length, len(body))) > _MOST_JSON:
            raise ApiError(413, f"the request has more than {_MOST_JSON} bytes of JSON: send its tensors in binary.")
        try:
            request: InferRequest = await _in_thread(is_large, parse_request, body, header_length, self.signature)
            outputs = await self._outputs(request.inputs)
            is_large = sum(getattr(outputs[name], "nbytes", 0) for name in request.outputs) > _LARGE
            data, length = await _in_thread(is_large, answer, self.name, request, outputs, self.signature)
        except InputError as error:
            raise bad_request(str(error)) from error
        except CollageError as error:
            raise ApiError(500, str(error)) from error
        return data, length, any(request.outputs.values())

    async def _outputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        running = asyncio.ensure_future((self.batched or self.module).run_async(inputs))
        self.running.add(running)
        try:
            if self.is_cut:
                raise unavailable("the server is shutting down.")
            return await running
        except asyncio.CancelledError as error:
            if self.is_cut:
                raise unavailable("the server is shutting down.") from error
            raise
        finally:
            running.cancel()
            self.running.discard(running)


async def _in_thread(wanted: bool, function: Any, *args: Any) -> Any:
    return await asyncio.to_thread(function, *args) if wanted else function(*args)

"""Starting and running a server of a module."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable
from typing import NoReturn

from collage.core.temporary import remove_all
from collage.errors import UsageError
from collage.serve.http.front import check_libraries
from collage.serve.http.listening import bound, draining, listening, server_of
from collage.serve.kserve.app import make_module_app
from collage.serve.kserve.metrics import ModuleMetrics
from collage.serve.kserve.options import ModuleServerOptions
from collage.serve.kserve.service import ModuleService
from collage.serve.kserve.tensors import signature_of

log = logging.getLogger(__name__)

LIBRARIES = ("prometheus_client", "starlette", "uvicorn")


def run_module_server(options: ModuleServerOptions, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish what there is. Raises CollageError if it cannot start.

    If a request is not finished in time, or a second signal comes, this process ends with status 0.
    """
    from collage.api import load

    check_libraries(LIBRARIES)
    if "/" in options.shown_name:
        raise UsageError(f"the name {options.shown_name} cannot be part of a path. Give another one with --name.")
    with bound(options.host, options.port) as listener:
        module = load(options.module)
        any_batch = options.max_batch is not None or bool(module.report.for_one)
        signature = signature_of(module, any_batch=any_batch)
        if signature.left_out:
            log.warning("outputs that are no tensors are not served: %s", ", ".join(signature.left_out))
        batched = None if options.max_batch is None else module.batched(options.max_batch, options.max_wait_ms)
        service = ModuleService(
            options.shown_name,
            module,
            signature,
            options.max_waiting,
            options.max_body,
            ModuleMetrics(),
            batched,
        )
        asyncio.run(_serve(service, options, listener, say))
        if service.is_cut:
            _end()
        if batched is not None:
            batched.close()


def _end() -> NoReturn:
    """End the process, although a call of the module may still run, which nothing else ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    remove_all()
    os._exit(0)


async def _serve(
    service: ModuleService, options: ModuleServerOptions, listener: socket.socket, say: Callable[[str], None]
) -> None:
    server = server_of(make_module_app(service, options.allow_origins), options.drain_s)
    with draining(service, server, options.drain_s):
        say(f"serving {service.name} at http://{listening(listener)}/v2")
        await server.serve(sockets=[listener])

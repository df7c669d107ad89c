"""Starting and running a server of a decoder."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from collage.serve.http.front import Front, check_libraries
from collage.serve.http.listening import bound, draining, listening, server_of
from collage.serve.http.messages import ModelReady
from collage.serve.http.options import ServerOptions


def run_server(options: ServerOptions, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish what there is. Raises CollageError if it cannot start."""
    check_libraries()
    with bound(options.host, options.port) as listener:
        asyncio.run(_serve(options, listener, say))


async def _serve(options: ServerOptions, listener: socket.socket, say: Callable[[str], None]) -> None:
    front = Front(options)
    server = server_of(front.app, options.drain_s)
    with draining(front.service, server, options.drain_s):
        try:
            ready = await front.start()
            if not server.should_exit:
                say(_listen(options, listener, ready))
                await server.serve(sockets=[listener])
        finally:
            await front.stop()


def _listen(options: ServerOptions, listener: socket.socket, ready: ModelReady) -> str:
    """Listen, and give the address. Raises CollageError if another server does that by now."""
    return (
        f"serving {options.shown_name} at http://{listening(listener)}/v1 ({ready.block_count} blocks of "
        f"{ready.block_tokens} tokens, at most {ready.most_tokens} tokens a request)"
    )

"""Starting, running and draining a server."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from collage.errors import CollageError, UsageError
from collage.serve.http.front import Front, check_libraries
from collage.serve.http.messages import ModelReady
from collage.serve.http.options import ServerOptions
from collage.serve.http.service import Service
from collage.serve.request import Finish

_GRACE_S = 5
"""After the time to drain, requests are told that there will be no answer, and get this long to take that in."""
_LAST_WORDS_S = 0.2
"""After a second signal, connections get this long to be told the same."""


def run_server(options: ServerOptions, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish what there is. Raises CollageError if it cannot start."""
    check_libraries()
    with bound(options.host, options.port) as listener:
        asyncio.run(_serve(options, listener, say))


def bound(host: str, port: int) -> socket.socket:
    """A socket that has the address and takes no connections yet: loading the model may take long.

    Raises UsageError for an address that this machine does not have or that is none, and CollageError for one that is
    in use.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "this is no name of a host"
        raise UsageError(f"there is no address {host}: {reason}. Give another one with --host.") from error
    family, kind, protocol, _, address = found[0]
    # Event loops set TCP_NODELAY only on sockets that name their protocol; small answers wait for an ACK without it.
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _taken(host, port, error) from error
    return listener


def _taken(host: str, port: int, error: OSError) -> CollageError:
    return CollageError(f"cannot listen on {host}:{port}: {error.strerror}. Give another port with --port.")


async def _serve(options: ServerOptions, listener: socket.socket, say: Callable[[str], None]) -> None:
    import uvicorn

    front = Front(options)
    config = uvicorn.Config(
        front.app,
        log_config=None,
        lifespan="off",
        ws="none",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(options.drain_s) + _GRACE_S,
    )
    server = _quiet(uvicorn.Server(config))
    with _draining(front.service, server, options.drain_s):
        try:
            ready = await front.start()
            if not server.should_exit:
                say(_listen(options, listener, ready))
                await server.serve(sockets=[listener])
        finally:
            await front.stop()


def _listen(options: ServerOptions, listener: socket.socket, ready: ModelReady) -> str:
    """Listen, and give the address. Raises CollageError if another server does that by now."""
    try:
        listener.listen()
    except OSError as error:  # two servers can have bound a port that neither listens on
        raise _taken(options.host, options.port, error) from error
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return (
        f"serving {options.shown_name} at http://{shown}:{port}/v1 ({ready.block_count} blocks of "
        f"{ready.block_tokens} tokens, at most {ready.most_tokens} tokens a request)"
    )


def _quiet(server: Any) -> Any:
    """The server without handlers of its own for signals: it would raise them again at its end."""

    @contextmanager
    def nothing() -> Iterator[None]:
        yield

    server.capture_signals = nothing
    return server


@contextmanager
def _draining(service: Service, server: Any, drain_s: float) -> Iterator[None]:
    """Finish open requests and take no more on SIGTERM or SIGINT. A second signal ends at once."""
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()

    def end() -> None:
        service.link.fail_all(Finish.CANCELLED, "the server is shutting down.")

    def cut() -> None:
        """Leave clients that do not read to the end: from Python 3.12 on a server is closed only when all are gone."""
        for each in list(server.server_state.connections):
            each.transport.abort()

    def drain() -> None:
        if service.draining:
            end()
            server.force_exit = True
            loop.call_later(_LAST_WORDS_S, cut)
            return
        service.draining = server.should_exit = True
        loop.call_later(drain_s, end)
        if not server.started and main is not None and not service.link.up:
            main.cancel()  # the model is still being loaded

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, drain)
    try:
        yield
    except asyncio.CancelledError:
        if not service.draining:
            raise
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

"""Listening on an address, and draining: what there is ends, and nothing new begins."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from collage.errors import CollageError, UsageError

GRACE_S = 5
"""After the time to drain, requests are told that there will be no answer, and get this long to take that in."""
_LAST_WORDS_S = 0.2
"""After a second signal, connections get this long to be told the same."""


class Drains(Protocol):
    """A server's state."""

    @property
    def draining(self) -> bool:
        """Whether it takes no more requests."""

    @property
    def up(self) -> bool:
        """Whether the model is loaded."""

    def drain(self) -> None:
        """Take no more requests."""

    def cut_off(self) -> None:
        """Tell all open requests that there will be no answer."""


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


def listening(listener: socket.socket) -> str:
    """Listen, and return the address as part of a URL. Raises CollageError if another server listens by now."""
    host, port = listener.getsockname()[:2]
    try:
        listener.listen()
    except OSError as error:  # two servers can have bound a port that neither listens on
        raise _taken(host, port, error) from error
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port}"


def server_of(app: Any, drain_s: float) -> Any:
    """A ``uvicorn.Server`` without logs, and without handlers for signals, which it would raise again at its end."""
    import uvicorn

    @contextmanager
    def nothing() -> Iterator[None]:
        yield

    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            lifespan="off",
            ws="none",
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(drain_s) + GRACE_S,
        )
    )
    server.capture_signals = nothing
    return server


@contextmanager
def draining(drains: Drains, server: Any, drain_s: float) -> Iterator[None]:
    """Finish open requests and take no more on SIGTERM or SIGINT. A second signal ends at once."""
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()

    def cut() -> None:
        """Leave clients that do not read to the end: from Python 3.12 on a server is closed only when all are gone."""
        for each in list(server.server_state.connections):
            each.transport.abort()

    def drain() -> None:
        if drains.draining:
            drains.cut_off()
            server.force_exit = True
            loop.call_later(_LAST_WORDS_S, cut)
            return
        drains.drain()
        server.should_exit = True
        loop.call_later(drain_s, drains.cut_off)
        if not server.started and main is not None and not drains.up:
            main.cancel()  # the model is still being loaded

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, drain)
    try:
        yield
    except asyncio.CancelledError:
        if not drains.draining:
            raise
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

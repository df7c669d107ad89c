"""Starting, running and draining a server."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from collage.errors import CollageError, UsageError
from collage.serve.http.app import make_app
from collage.serve.http.chat_template import open_chat_template
from collage.serve.http.link import Link
from collage.serve.http.messages import Setup
from collage.serve.http.metrics import Metrics
from collage.serve.http.service import Service
from collage.serve.model import folder_of
from collage.serve.options import EngineOptions
from collage.serve.parallel.options import Parallelism
from collage.serve.request import Finish
from collage.serve.tokenizer import EXTRA, FileTokenizer, open_tokenizer

_LIBRARIES = ("jinja2", "prometheus_client", "pydantic", "starlette", "tokenizers", "uvicorn")
_GRACE_S = 5
"""After the time to drain, requests are told that there will be no answer, and get this long to take that in."""


@dataclass(frozen=True)
class ServerOptions:
    """What a server is started with. ``port`` 0 takes any free one.

    ``drain_s`` bounds the time from SIGTERM on, and ``stall_s`` that in which an engine with requests does nothing.
    """

    model: Path
    engine: EngineOptions
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    tokenizer: Path | None = None
    block_count: int | None = None
    trusted_key: Path | None = None
    cache: str = "float32"
    drain_s: float = 30.0
    stall_s: float = 300.0
    trace: Path | None = None
    parallelism: Parallelism | None = None


def run_server(options: ServerOptions, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish what there is. Raises CollageError when it cannot start."""
    missing = [each for each in _LIBRARIES if not _installed(each)]
    if missing:
        raise CollageError(f"the server needs {', '.join(missing)}: {EXTRA}.")
    with _bound(options.host, options.port) as listener:
        asyncio.run(_serve(options, listener, say))


def _installed(library: str) -> bool:
    try:
        import_module(library)
    except ImportError:
        return False
    return True


def _bound(host: str, port: int) -> socket.socket:
    """A socket at the address, before the model is loaded, which may take long. Raises UsageError."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(
            f"there is no address {host}: {error.strerror}. Give another one with --host."
        ) from error
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise CollageError(
            f"cannot listen on {host}:{port}: {error.strerror}. Give another port with --port."
        ) from error
    return listener


async def _serve(options: ServerOptions, listener: socket.socket, say: Callable[[str], None]) -> None:
    import uvicorn

    folder = options.tokenizer or folder_of(options.model)
    tokenizer = open_tokenizer(folder)
    metrics = Metrics()
    setup = Setup(
        options.model,
        options.engine,
        tokenizer.end_tokens,
        options.block_count,
        options.trusted_key,
        options.cache,
        options.trace,
        options.parallelism,
    )
    link = Link(setup, metrics.batch, metrics.died, options.stall_s)
    service = Service(_name(options), tokenizer, open_chat_template(folder), link, metrics)
    config = uvicorn.Config(
        make_app(service),
        log_config=None,
        lifespan="off",
        ws="none",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(options.drain_s) + _GRACE_S,
    )
    server = _quiet(uvicorn.Server(config))
    with _draining(service, server, options.drain_s):
        try:
            ready = await link.start()
            if server.should_exit:
                return
            if isinstance(tokenizer, FileTokenizer) and tokenizer.vocabulary > ready.vocabulary:
                raise CollageError(
                    f"the tokenizer in {folder} has {tokenizer.vocabulary} tokens and {options.model} has "
                    f"{ready.vocabulary}; give the right folder with --tokenizer."
                )
            metrics.sizes(ready.block_count)
            host, port = listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            say(
                f"serving {service.name} at http://{shown}:{port}/v1 ({ready.block_count} blocks of "
                f"{ready.block_tokens} tokens, at most {ready.max_length} tokens a request)"
            )
            await server.serve(sockets=[listener])
        finally:
            await link.stop()


def _name(options: ServerOptions) -> str:
    return options.name or options.model.resolve().name.removesuffix(".collage")


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

    def drain() -> None:
        if service.draining:
            end()
            server.force_exit = True
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

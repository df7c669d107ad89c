"""All of a server but its sockets: the tokenizer, the engine's process, and the routes."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from collage.errors import CollageError
from collage.serve.http.app import make_app
from collage.serve.http.chat_template import open_chat_template
from collage.serve.http.link import Link
from collage.serve.http.messages import EngineSetup, ModelReady
from collage.serve.http.metrics import Metrics
from collage.serve.http.options import ServerOptions
from collage.serve.http.service import Service
from collage.serve.model import folder_of
from collage.serve.tokenizer import EXTRA, FileTokenizer, open_tokenizer, refuse_without_tokenizer

if TYPE_CHECKING:
    from starlette.applications import Starlette

_LIBRARIES = ("jinja2", "prometheus_client", "pydantic", "starlette", "tokenizers", "uvicorn")


def check_libraries(libraries: Sequence[str] = _LIBRARIES) -> None:
    """Raise CollageError if libraries are missing that a server needs."""
    missing = [each for each in libraries if not _installed(each)]
    if missing:
        raise CollageError(f"the server needs {', '.join(missing)}: {EXTRA}.")


def _installed(library: str) -> bool:
    try:
        import_module(library)
    except ImportError:
        return False
    return True


class Front:
    """The server's side of one engine. It belongs to one event loop.

    With ``cpus``, the engine's process runs on these only, and with ``share_weights`` it maps the model's file.
    """

    def __init__(self, options: ServerOptions, cpus: tuple[int, ...] = (), *, share_weights: bool = False) -> None:
        """Open the tokenizer and the chat template. Raises CollageError."""
        if options.tokenizer is not None:
            refuse_without_tokenizer(options.tokenizer)
        self._options = options
        self._folder = options.tokenizer or folder_of(options.model)
        self._tokenizer = open_tokenizer(self._folder)
        metrics = Metrics()
        setup = EngineSetup(
            options.model,
            options.engine,
            self._folder,
            options.block_count,
            options.cache,
            options.parallelism,
            cpus,
            share_weights,
        )
        link = Link(setup, metrics.batch, metrics.died)
        template = open_chat_template(self._folder)
        self.service = Service(options.shown_name, self._tokenizer, template, link, metrics)

    @property
    def app(self) -> Starlette:
        return make_app(self.service, self._options.allow_origins)

    async def start(self) -> ModelReady:
        """Start the engine, and wait until the model is loaded. Raises CollageError."""
        ready = await self.service.link.start()
        known = self._tokenizer.vocabulary if isinstance(self._tokenizer, FileTokenizer) else 0
        if known > ready.vocabulary:
            raise CollageError(
                f"the tokenizer in {self._folder} has {known} tokens and {self._options.model} has "
                f"{ready.vocabulary}; give the right folder with --tokenizer."
            )
        self.service.metrics.sizes(ready.block_count)
        return ready

    async def stop(self) -> None:
        await self.service.link.stop()

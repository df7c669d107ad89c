"""What a server is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collage.serve.options import EngineOptions
from collage.serve.parallel.options import Parallelism


@dataclass(frozen=True)
class ServerOptions:
    """The options of a server. ``port`` 0 takes any free one.

    ``drain_s`` bounds the seconds from SIGTERM on. Browsers let pages of ``allow_origins`` use the server, of all
    origins if "*" is one of them.
    """

    model: Path
    engine: EngineOptions
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    tokenizer: Path | None = None
    block_count: int | None = None
    cache: str = "float32"
    drain_s: float = 30.0
    parallelism: Parallelism | None = None
    allow_origins: tuple[str, ...] = ()

    @property
    def shown_name(self) -> str:
        return self.name or self.model.resolve().name.removesuffix(".collage")

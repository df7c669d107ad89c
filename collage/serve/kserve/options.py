"""The options of a module's server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ModuleServerOptions:
    """The options of a server. ``port`` 0 takes any free one.

    With ``max_batch``, requests are joined to calls of at most so many rows, which wait for at most ``max_wait_ms``.
    ``max_waiting`` requests are open at a time, each with a body of at most ``max_body`` bytes. ``drain_s`` bounds the
    seconds from SIGTERM on. Browsers let pages of ``allow_origins`` use the server, of all origins if "*" is one.
    """

    module: Path
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    max_batch: int | None = None
    max_wait_ms: float = 2.0
    max_waiting: int = 256
    max_body: int = 64 << 20
    drain_s: float = 30.0
    allow_origins: tuple[str, ...] = ()

    @property
    def shown_name(self) -> str:
        return self.name or self.module.resolve().name.removesuffix(".collage")

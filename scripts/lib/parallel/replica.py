"""A replica of data parallelism: a process with a whole decoder, a cache of its own, and some of the sequences."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collage.core.child_process import Failure, read_message, take_over_pipes, write_message
from collage.errors import CollageError
from scripts.lib.parallel.iterations import blocks_for, decode, times_ms


@dataclass(frozen=True)
class Load:
    """Load a decoder for so many sequences with so many cached tokens."""

    path: Path
    batch: int
    cached: int


@dataclass(frozen=True)
class Run:
    """Run so many iterations; the reply is their times in milliseconds."""

    rounds: int


def main() -> None:
    """Do what the parent asks for, until it is gone."""
    from collage.api import default_registry
    from collage.serve.decoder.file import load_decoder
    from collage.serve.decoder.runner import DecoderRunner
    from collage.serve.parallel.ranks import Held, fill_caches

    source, sink = take_over_pipes()
    registry = default_registry()
    runner, load = None, None
    while True:
        try:
            message = read_message(source)
        except EOFError:
            return
        try:
            if isinstance(message, Load):
                load = message
                compiled = load_decoder(load.path, registry)
                runner = DecoderRunner(compiled, registry, blocks_for(load.batch, load.cached))
                fill_caches(runner.caches, 0, Held())
                write_message(sink, None)
            else:
                assert isinstance(message, Run) and runner is not None and load is not None
                write_message(sink, times_ms(runner, [decode(load.batch, load.cached)], message.rounds))
        except CollageError as error:
            write_message(sink, Failure(str(error)))

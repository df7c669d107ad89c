"""Small decoders, compiled once for all tests of several processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from collage.api import default_registry
from collage.serve.decoder.build import compile_decoder
from collage.serve.decoder.compile import DecoderOptions
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.decoder.file import load_decoder, save_decoder
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import NAMED, small

BUCKETS = (8,)
_SHAPES = {name: small(NAMED[name], 4) for name in ("gpt2_124m", "qwen2_like")}
_SHAPES["latent"] = replace(_SHAPES["qwen2_like"], kv_heads=4, values=12, latent=32, rotary=8, pairs=True)


@dataclass(frozen=True)
class Ready:
    """A compiled decoder and its file."""

    path: Path
    compiled: CompiledDecoder


Make = Callable[[str], Ready]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Compiles GPT-2, a decoder like Qwen2, or one with latent attention, of four layers, once."""
    folder = tmp_path_factory.mktemp("parallel")

    @cache
    def compiled(name: str) -> Ready:
        options = DecoderOptions(BUCKETS, threads=1, db=folder / "db.sqlite", quick=True, max_length=200)
        made = compile_decoder(decoder(_SHAPES[name]), options, default_registry(), lambda progress: None)
        path = folder / f"{name}.collage"
        save_decoder(made, path)
        return Ready(path, load_decoder(path, default_registry()))

    return compiled


@pytest.fixture(scope="session", params=list(_SHAPES))
def ready(request: pytest.FixtureRequest, make: Make) -> Ready:
    return make(request.param)


@pytest.fixture(scope="session")
def qwen(make: Make) -> Ready:
    return make("qwen2_like")

"""Decoders with mixtures of experts whose weights are stored in 8 bits, within an error of the logits."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collage.api import default_registry
from collage.backends.native_kernels import algorithms
from collage.backends.native_kernels.experts import Experts
from collage.compiler import task as compiler_task
from collage.graph.storage import INT8
from collage.serve.decoder.build import compile_decoder, compile_divided
from collage.serve.decoder.check import OriginalDecoder
from collage.serve.decoder.compile import DecoderOptions
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.decoder.file import load_decoder, save_decoder
from collage.serve.decoder.runner import DecoderRunner
from collage.serve.runner import Slice
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import NAMED, small
from tests.helpers.backends.native_checks import needs_native

pytestmark = needs_native

TOLERANCE = 1e-1
SHAPE = replace(small(NAMED["moe_like"], 1), width=128, inner=768, experts=8, chosen=8)
"""Every token chooses all experts. Where it chooses some, rounding may change which: that is an error of its own, which
depends on the random weights, and a compile goes back to float32 where it is too large."""
OPTIONS = DecoderOptions((1,), 200, threads=1, tolerance=TOLERANCE)


@pytest.fixture(autouse=True)
def _only_8_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of so few experts are in a cache, where those in bfloat16 are faster, and in float32 hardly slower."""
    monkeypatch.setattr(compiler_task, "REDUCED", frozenset({INT8}))
    others = tuple(each for each in algorithms.ALGORITHMS if type(each) is not Experts)
    monkeypatch.setattr(algorithms, "ALGORITHMS", others)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experts") / "db.sqlite"


def experts_of(compiled: CompiledDecoder) -> list[tuple[str, str]]:
    """The backends and precisions of products of experts."""
    segments = [parts for each in compiled.segments.values() for parts in each]
    launches = [launch for each in (*segments, *compiled.ends.values()) for launch in each.program.launches]
    return [(each.backend, each.precision) for each in launches if "onnx.Scan" in each.ops]


def test_logits_are_within_the_tolerance(database: Path, tmp_path: Path) -> None:
    model, registry = decoder(SHAPE), default_registry()
    found = compile_decoder(model, replace(OPTIONS, db=database), registry, lambda _: None)
    assert experts_of(found) == [("native", INT8)] * 3
    assert 1e-4 < found.error <= TOLERANCE
    path = tmp_path / "it.collage"
    save_decoder(found, path)
    tokens = np.random.default_rng(5).integers(0, SHAPE.vocabulary, 12).tolist()
    wanted = OriginalDecoder(model, 1).logits(tokens)
    with closing(DecoderRunner(load_decoder(path, registry), registry, 8)) as runner:
        for at, token in enumerate(tokens):
            (row,) = runner.step([Slice((token,), at, (3,), True)])
            assert np.abs(row - wanted[at]).max() <= TOLERANCE * np.abs(wanted[at]).max()


def test_experts_are_divided_among_processes(database: Path) -> None:
    """Each process has half of every expert's columns, or of its rows, with factors of its own."""
    options = replace(OPTIONS, db=database, processes=2)
    parts = compile_divided(decoder(SHAPE), options, default_registry(), lambda _: None)
    assert [part.processes for part in parts] == [2, 2]
    for part in parts:
        assert ("native", INT8) in experts_of(part)  # a busy machine may make ONNX Runtime the faster one for some
        assert 1e-4 < part.error <= TOLERANCE

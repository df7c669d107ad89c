"""Running a subgraph's oneDNN kernels in all variants, against float64 numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from collage.backends.base import UnsupportedError
from collage.backends.onednn import OneDnn
from collage.backends.onednn_kernels.kernel import OneDnnKernel
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import CHANNELS_LAST, PLAIN, STORAGES
from collage.kernel.options import BuildOptions, Variant
from collage.kernel.target import flags, has_exact_int8_sums
from collage.patterns.context import MatchContext
from collage.testing.buffers import results_of
from tests.helpers.reference import evaluate

BACKEND = OneDnn()
needs_onednn = pytest.mark.skipif(not BACKEND.available(), reason=f"oneDNN: {BACKEND.available().reason}")

needs_exact_sums = pytest.mark.skipif(not has_exact_int8_sums(), reason="sums of 8-bit products saturate here")
LAYOUTS = frozenset(STORAGES if "avx512f" in flags() else (PLAIN, CHANNELS_LAST))
"""The layouts that oneDNN has kernels for: its blocks of channels are as wide as the processor's vectors."""


def subgraph_of(proto: onnx.ModelProto) -> Subgraph:
    """The longest chain that the backend is offered in the model."""
    return chains_of(proto)[-1]


def chains_of(proto: onnx.ModelProto) -> list[Subgraph]:
    """All chains that the backend is offered in the model, the longest last."""
    model = import_model(proto)
    found = [f for s in BACKEND.sources(BuildOptions()) for f in s.find(MatchContext(model)) if not f.reason]
    return [Subgraph(model, each.nodes) for each in sorted(found, key=lambda each: len(each.nodes))]


def variants_of(subgraph: Subgraph, threads: int) -> Sequence[Variant]:
    """What the backend offers, each once."""
    found = BACKEND.variants(subgraph, BuildOptions(threads=threads))
    assert len(set(found)) == len(found)
    assert threads > 1 or all(each.split == "" for each in found)
    return found


def run_variant(
    subgraph: Subgraph, variant: Variant, threads: int, inputs: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], OneDnnKernel]:
    """Plain outputs of one variant, the same in two runs between guards and in place, and the kernel."""
    options = BuildOptions(threads=threads, variant=variant)
    kernel: Any = BACKEND.load(BACKEND.codegen(subgraph, options), options)
    return results_of(kernel, subgraph, variant, inputs, BACKEND.in_place(subgraph)), kernel


def check_all_variants(subgraph: Subgraph, threads: int, seed: int = 0, *, least: int = 1) -> list[Variant]:
    """Every variant that can be built computes the right thing; those that can, at least ``least``."""
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal(kind.shape).astype(np.float32) for kind in subgraph.input_types]
    wanted = evaluate(subgraph, inputs)
    built = []
    for variant in variants_of(subgraph, threads):
        try:
            found, _ = run_variant(subgraph, variant, threads, inputs)
        except UnsupportedError:
            continue
        for mine, exact in zip(found, wanted, strict=True):
            # Sums of terms of size 1 are rounded by some 1e-7, also where next to nothing is left of them.
            scale = np.abs(exact).max() + 0.1
            np.testing.assert_allclose(mine / scale, exact / scale, atol=2e-5, err_msg=str(variant))
        built.append(variant)
    assert len(built) >= least, variants_of(subgraph, threads)
    return built

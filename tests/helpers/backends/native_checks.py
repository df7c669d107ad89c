"""Running a subgraph with a library's kernels (Collage's own, unless told) in all variants, against float64 numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

from collage.backends.base import Backend
from collage.backends.native import Native
from collage.backends.native_kernels.gemm import IN_ORDER
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import STORAGES
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel
from collage.patterns.context import MatchContext
from collage.testing.buffers import results_of
from tests.helpers.reference import evaluate

BACKEND: Backend = Native()
needs_native = pytest.mark.skipif(not BACKEND.available(), reason=BACKEND.available().reason)


def subgraphs_of(proto: onnx.ModelProto, backend: Backend = BACKEND) -> list[Subgraph]:
    """What the backend is offered in the model, the longest last."""
    model = import_model(proto)
    found = [f for s in backend.sources(BuildOptions()) for f in s.find(MatchContext(model)) if not f.reason]
    return [Subgraph(model, each.nodes) for each in sorted(found, key=lambda each: len(each.nodes))]


def refusals_of(proto: onnx.ModelProto, backend: Backend = BACKEND) -> list[str]:
    """Why the backend is not offered what it is not offered."""
    model = import_model(proto)
    found = [f for s in backend.sources(BuildOptions()) for f in s.find(MatchContext(model))]
    return [each.reason for each in found if each.reason]


def kernel_of(
    subgraph: Subgraph, variant: Variant, threads: int, backend: Backend = BACKEND, *, direct: bool = False
) -> NativeKernel:
    """Compiled and loaded."""
    options = BuildOptions(threads=threads, variant=variant, reassociate=not direct)
    kernel = backend.load(backend.codegen(subgraph, options), options)
    assert isinstance(kernel, NativeKernel)
    return kernel


def run_variant(
    subgraph: Subgraph,
    variant: Variant,
    threads: int,
    inputs: Sequence[np.ndarray],
    backend: Backend = BACKEND,
    *,
    direct: bool = False,
) -> list[np.ndarray]:
    """Plain outputs of one variant, the same in two runs between guards."""
    kernel = kernel_of(subgraph, variant, threads, backend, direct=direct)
    return results_of(kernel, subgraph, variant, inputs, backend.in_place(subgraph))


def check_all_variants(subgraph: Subgraph, threads: int, seed: int = 0, backend: Backend = BACKEND) -> list[Variant]:
    """Every variant computes the right thing; returns them, at least one."""
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal(kind.shape).astype(np.float32) for kind in subgraph.input_types]
    wanted = evaluate(subgraph, inputs)
    variants = list(backend.variants(subgraph, BuildOptions(threads=threads)))
    assert variants
    assert len(set(variants)) == len(variants)
    assert all({*each.inputs, *each.outputs} <= set(STORAGES) for each in variants)
    assert threads > 1 or {each.split for each in variants} <= {"", "packed", IN_ORDER}
    for variant in variants:
        for mine, exact in zip(run_variant(subgraph, variant, threads, inputs, backend), wanted, strict=True):
            scale = np.abs(exact).max() + 1e-3
            np.testing.assert_allclose(mine / scale, exact / scale, atol=2e-5, err_msg=str(variant))
    return variants

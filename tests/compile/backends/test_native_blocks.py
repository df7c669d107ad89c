"""Kernels that work on more or less of their operands at a time give the same results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from collage.backends.native_kernels import gemm, narrow_transposed, shallow, winograd
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel
from tests.compile.backends.test_native_winograd import conv_model
from tests.helpers.backends.native_checks import BACKEND, needs_native, subgraphs_of
from tests.helpers.models import make_model
from tests.helpers.reference import evaluate

pytestmark = needs_native

BLOCKS = {
    shallow: "_CHUNK_BYTES",
    narrow_transposed: "_CHUNK_BYTES",
    winograd: "_CHUNK_BYTES",
    gemm: "_MOST_DEPTH",
}


def product(rows: int, depth: int, columns: int) -> Subgraph:
    weights = np.random.default_rng(0).standard_normal((depth, columns)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return subgraphs_of(make_model([node], {"x": [rows, depth]}, {"y": [rows, columns]}, {"w": weights}))[-1]


def transposed() -> Subgraph:
    weights = np.random.default_rng(0).standard_normal((32, 3, 4, 4)).astype(np.float32)
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], pads=[1] * 4)
    return subgraphs_of(make_model([node], {"x": [1, 32, 9, 9]}, {"y": [1, 3, 18, 18]}, {"w": weights}))[-1]


def cases() -> dict[str, Subgraph]:
    square = {"pads": [1] * 4}
    return {
        "winograd": subgraphs_of(conv_model((64, 64), [13, 13], [3, 3], **square))[-1],
        "shallow": subgraphs_of(conv_model((3, 32), [31, 31], [7, 7], pads=[3] * 4, strides=[2, 2]))[-1],
        "grouped": subgraphs_of(conv_model((64, 64), [9, 9], [3, 3], group=8, **square))[-1],
        "narrow": transposed(),
        "product": product(128, 256, 512),
    }


def result(subgraph: Subgraph, variant: Variant, build: BuildOptions, data: np.ndarray) -> np.ndarray:
    from tests.helpers.backends import native_checks

    def kernel_of(*_: object, **__: object) -> NativeKernel:
        options = replace(build, variant=variant)
        kernel = BACKEND.load(BACKEND.codegen(subgraph, options), options)
        assert isinstance(kernel, NativeKernel)
        return kernel

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_checks, "kernel_of", kernel_of)
        (found,) = native_checks.run_variant(subgraph, variant, build.threads, [data])
    return found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [1, 1 << 40])
def test_blocks_of_any_size_give_right_results(size: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, constant in BLOCKS.items():
        monkeypatch.setattr(module, constant, size)
    build = BuildOptions(threads=threads)
    for name, subgraph in cases().items():
        (kind,) = subgraph.input_types
        data = np.random.default_rng(1).standard_normal(kind.shape).astype(np.float32)
        (exact,) = evaluate(subgraph, [data])
        variants = BACKEND.variants(subgraph, build)
        assert variants, name
        for variant in variants:
            mine, scale = result(subgraph, variant, build, data), np.abs(exact).max()
            np.testing.assert_allclose(mine / scale, exact / scale, atol=2e-5, err_msg=f"{name}: {variant}")

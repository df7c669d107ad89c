"""Kernels planned with other speeds: wrong ones change the plans, and never the results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from collage.frontend.subgraph import Subgraph
from collage.kernel.machine_speeds import WRITTEN_DOWN, Blocking, MachineSpeeds
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel
from tests.compile.backends.test_native_winograd import conv_model
from tests.helpers.backends.native_checks import BACKEND, needs_native, subgraphs_of
from tests.helpers.models import make_model
from tests.helpers.reference import evaluate

pytestmark = needs_native

WRONG = {
    "slow arithmetic": replace(WRITTEN_DOWN, gemm_gflops=0.01, team_gemm_gflops=0.01),
    "fast arithmetic": replace(WRITTEN_DOWN, gemm_gflops=1e6, team_gemm_gflops=1e6),
    "slow memory": replace(WRITTEN_DOWN, memory_gbs=0.01, team_memory_gbs=0.01),
    "fast memory": replace(WRITTEN_DOWN, memory_gbs=1e6, team_memory_gbs=1e6),
    "slow transforms": replace(WRITTEN_DOWN, winograd_ns=1e4),
    "free transforms": replace(WRITTEN_DOWN, winograd_ns=1e-6),
    "small blocks": replace(WRITTEN_DOWN, blocking=Blocking(1, 1, 1, 1, 1)),
    "large blocks": replace(WRITTEN_DOWN, blocking=Blocking(*[1 << 40] * 5)),
    "one small cache": replace(WRITTEN_DOWN, own_cache_bytes=1, last_cache_gbs=1.0),
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
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_speeds_give_right_results(wrong: str, threads: int) -> None:
    build = BuildOptions(threads=threads, speeds=WRONG[wrong])
    for name, subgraph in cases().items():
        (kind,) = subgraph.input_types
        data = np.random.default_rng(1).standard_normal(kind.shape).astype(np.float32)
        (exact,) = evaluate(subgraph, [data])
        variants = BACKEND.variants(subgraph, build)
        assert variants, name
        for variant in variants:
            mine, scale = result(subgraph, variant, build, data), np.abs(exact).max()
            np.testing.assert_allclose(mine / scale, exact / scale, atol=2e-5, err_msg=f"{name}: {variant}")


def plan(subgraph: Subgraph, speeds: MachineSpeeds) -> dict[Variant, bytes]:
    """The kernels that are offered on two threads."""
    build = BuildOptions(threads=2, speeds=speeds)
    variants = BACKEND.variants(subgraph, build)
    return {each: BACKEND.codegen(subgraph, replace(build, variant=each)) for each in variants}


def test_wrong_speeds_change_plans() -> None:
    found = cases()
    winograd = {name: plan(found["winograd"], speeds) for name, speeds in WRONG.items()}
    usual = plan(found["winograd"], WRITTEN_DOWN)
    assert {name for name, each in winograd.items() if each != usual} >= {
        *("fast arithmetic", "slow transforms", "small blocks"),
    }


def test_measurements_of_other_blocks_are_kept_apart() -> None:
    keys = {name: BACKEND.settings(BuildOptions(speeds=speeds)) for name, speeds in WRONG.items()}
    assert BACKEND.settings(BuildOptions()) == ""
    old = replace(WRITTEN_DOWN, blocking=Blocking(strassen_bytes=900))
    assert BACKEND.settings(BuildOptions(speeds=old)) == "strassen_bytes=900", "a key of earlier measurements"
    assert {name for name, key in keys.items() if key} == {"small blocks", "large blocks"}
    for subgraph in cases().values():
        usual = plan(subgraph, WRITTEN_DOWN)
        for name, speeds in WRONG.items():
            for variant, artifact in plan(subgraph, speeds).items() if not keys[name] else ():
                assert usual.get(variant, artifact) == artifact

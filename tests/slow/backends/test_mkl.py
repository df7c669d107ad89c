"""MKL's products in all variants against float64 numpy, on random shapes; and the backend around them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from collage.backends.mkl import Mkl
from collage.backends.mkl_kernels import library
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import BF16, CHANNELS_LAST, PLAIN
from collage.kernel.options import BuildOptions
from collage.kernel.target import reduced_precisions
from tests.helpers.backends import native_checks
from tests.helpers.backends.bf16_checks import check_all as check_all_bf16
from tests.helpers.backends.bf16_checks import convolution
from tests.helpers.backends.product_models import (
    EPILOGUES,
    any_products,
    product_model,
    transposed_products,
    weighted_products,
)
from tests.helpers.models import make_model

BACKEND = Mkl()
needs_mkl = pytest.mark.skipif(not BACKEND.available(), reason=f"MKL: {BACKEND.available().reason}")


def chains_of(proto: onnx.ModelProto) -> list[Subgraph]:
    return native_checks.subgraphs_of(proto, BACKEND)


def check(chain: Subgraph, threads: int) -> set[str]:
    """All variants are right; returns their splits."""
    return {each.split for each in native_checks.check_all_variants(chain, threads, backend=BACKEND)}


@needs_mkl
@settings(max_examples=60, deadline=None)
@given(any_products(), st.sampled_from([1, 2, 3]))
def test_products(proto: onnx.ModelProto, threads: int) -> None:
    chains = chains_of(proto)
    assert ("matmul",) in {chain.ops for chain in chains}
    for chain in chains:
        check(chain, threads)


@needs_mkl
@settings(max_examples=60, deadline=None)
@given(weighted_products(), st.sampled_from([1, 2, 3]))
def test_products_with_endings(proto: onnx.ModelProto, threads: int) -> None:
    check(chains_of(proto)[-1], threads)


@needs_mkl
@settings(max_examples=40, deadline=None)
@given(transposed_products(), st.sampled_from([1, 2, 3]))
def test_transposed_operands_and_results(proto: onnx.ModelProto, threads: int) -> None:
    for chain in chains_of(proto):
        check(chain, threads)


@needs_mkl
@pytest.mark.parametrize("then", EPILOGUES)
def test_every_ending_is_one_kernel(then: tuple[str, ...]) -> None:
    (whole,) = [c for c in chains_of(product_model([1, 150, 64], 1030, then=then)) if len(c.outputs) == 1][-1:]
    assert whole.outputs == tuple(whole.model.graph.outputs)
    assert check(whole, 2) == {"columns", "columns, packed", "rows", "rows, packed", "", "packed"}


@needs_mkl
@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([(1, 5, 9), (2, 16, 4, 7), (1, 33, 3, 4, 2)]),
    st.integers(1, 70),
    st.booleans(),
    st.sampled_from([(), ("Relu",), ("Add",), ("Add", "Relu")]),
    st.sampled_from([1, 2, 3]),
)
def test_pointwise_convolutions(
    shape: tuple[int, ...], outputs: int, bias: bool, then: tuple[str, ...], threads: int
) -> None:
    rng = np.random.default_rng(0)
    rank = len(shape) - 2
    numbers = {"w": rng.standard_normal((outputs, shape[1], *[1] * rank)).astype(np.float32)}
    if bias:
        numbers["b"] = rng.standard_normal(outputs).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w", *(["b"] if bias else [])], ["y0"], kernel_shape=[1] * rank)]
    for i, op in enumerate(then):
        nodes.append(helper.make_node(op, [f"y{i}", *(["r"] if op == "Add" else [])], [f"y{i + 1}"]))
    result = [shape[0], outputs, *shape[2:]]
    inputs = {"x": list(shape), **({"r": result} if "Add" in then else {})}
    chain = chains_of(make_model(nodes, inputs, {f"y{len(then)}": result}, numbers))[-1]
    assert len(chain.operators) == 1 + bias + len(then)
    check(chain, threads)
    (first, *_) = BACKEND.variants(chain, BuildOptions(threads=threads))
    assert {*first.inputs, *first.outputs} == {CHANNELS_LAST}


@needs_mkl
def test_mkl_that_somebody_else_set_up_keeps_its_threads() -> None:
    """In a process whose MKL runs on threads already, Collage's calls are single-threaded and leave that be."""
    code = f"""
import ctypes, numpy as np
mkl = ctypes.CDLL({library.library().c._name!r})
mkl.MKL_Set_Num_Threads(2)
before = mkl.MKL_Get_Max_Threads()
from tests.slow.backends.test_mkl import BACKEND, chains_of, check
from tests.helpers.backends.product_models import product_model
from collage.backends.mkl_kernels.library import library
assert library().blas.set_threads
check(chains_of(product_model([150, 64], 200, then=("Gelu",)))[-1], 2)
assert mkl.MKL_Get_Max_Threads() == before, (before, mkl.MKL_Get_Max_Threads())
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parents[3])


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The search for the library, done anew."""
    yield library._find.__wrapped__
    monkeypatch.undo()


def test_a_path_that_is_wrong_is_said(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.PATH_VARIABLE, "/nowhere/libmkl_rt.so.2")
    assert "COLLAGE_MKL=/nowhere" in search()
    assert "no such file" in search().lower()
    monkeypatch.setenv(library.PATH_VARIABLE, "libm.so.6")
    assert "no MKL, or too old" in search()


@needs_mkl
def test_an_incomplete_installation_does_not_end_the_process(tmp_path: Path) -> None:
    """MKL exits when a part of it is missing; Collage must see that before the first call."""
    loaded = next(
        line.split(maxsplit=5)[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "libmkl_rt.so" in line
    )
    alone = shutil.copy(loaded, tmp_path)
    code = "from collage.backends.mkl import Mkl; print(Mkl().available().reason)"
    environment = {"COLLAGE_MKL": str(alone), "LD_LIBRARY_PATH": "", "PATH": ""}
    found = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).resolve().parents[3],
    )
    assert "libmkl_core" in found.stdout
    assert "is missing: pip install 'collage-compiler[mkl]'" in found.stdout


needs_bf16 = pytest.mark.skipif(
    not (BACKEND.available() and library.library().has_bf16 and BF16 in reduced_precisions()),
    reason="this MKL or this processor has no bfloat16",
)


@needs_bf16
@settings(max_examples=40, deadline=None)
@given(weighted_products(), st.sampled_from([1, 2, 3]))
def test_products_in_bf16(proto: onnx.ModelProto, threads: int) -> None:
    chain = chains_of(proto)[-1]
    built = check_all_bf16(BACKEND, chain, threads)
    assert {each.precision for each in built} == {BF16}
    assert all(each.split.endswith("packed") and each.outputs == (PLAIN,) for each in built)


@needs_bf16
def test_pixels_in_bf16() -> None:
    for then in ((), ("Add", "Relu")):
        chain = chains_of(convolution((1, 33, 9, 7), (48, 33, 1, 1), *then))[-1]
        built = check_all_bf16(BACKEND, chain, 2)
        assert {each.outputs[0] for each in built} == {CHANNELS_LAST}

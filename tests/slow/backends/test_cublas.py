"""Products for cuBLASLt, without a GPU: a numpy model computes what is described, as the library documents it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from collage.backends.base import UnsupportedError
from collage.backends.chains.strided import Strided, dense, ordered
from collage.backends.cublas import Cublas
from collage.backends.cublas_kernels.artifact import CublasArtifact, ProductOperands, pack, unpack
from collage.backends.cublas_kernels.description import Description, Matrix, describe
from collage.backends.cublas_kernels.task import task_of
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import Storage
from collage.kernel.options import BuildOptions, Variant
from scripts.lib.gpu.half import in_half
from tests.compile.frontend.test_to_onnx import Net
from tests.helpers.cuda_processes import Gpu

Floats = npt.NDArray[Any]


def cublas(d: Description, a: Floats, b: Floats) -> Floats:
    """What cublasLtMatmul writes for a bare product, in float64; elements that it leaves alone are NaN."""
    made = np.full(d.needs()[2], np.nan)

    def matrix(whole: Floats, about: Matrix, start: int, number: int) -> Floats:
        begin = start + number * about.batch_stride
        steps = (whole.strides[0], about.leading * whole.strides[0])
        return np.lib.stride_tricks.as_strided(whole[begin:], (about.rows, about.columns), steps)

    for at_a, at_b, at_d in d.starts:
        for number in range(d.batch):
            left, right = matrix(a, d.a, at_a, number), matrix(b, d.b, at_b, number)
            found = (left.T if d.transposed_a else left) @ (right.T if d.transposed_b else right)
            matrix(made, d.d, at_d, number)[...] = d.alpha * found
    return made


def memory(view: Strided, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Random memory of a tensor, and the tensor in it, whose axes of one element repeat along the batch."""
    size = 1 + sum((extent - 1) * stride for extent, stride in zip(view.dims, view.strides, strict=True))
    whole = rng.normal(size=size)
    seen = np.lib.stride_tricks.as_strided(whole, view.dims, [8 * each for each in view.strides])
    return whole, seen


@pytest.mark.parametrize(
    ("left", "right", "dst", "calls"),
    [
        (dense((5, 7)), dense((7, 3)), dense((5, 3)), 1),
        (dense((1, 7)), dense((7, 3)), dense((1, 3)), 1),
        (dense((5, 1)), dense((1, 3)), dense((5, 3)), 1),
        (dense((5, 7)), dense((7, 1)), dense((5, 1)), 1),
        (dense((1, 1)), dense((1, 1)), dense((1, 1)), 1),
        (ordered((5, 7), (1, 0)), dense((7, 3)), dense((5, 3)), 1),
        (dense((5, 7)), ordered((7, 3), (1, 0)), dense((5, 3)), 1),
        (ordered((5, 7), (1, 0)), ordered((7, 3), (1, 0)), dense((5, 3)), 1),
        (dense((4, 5, 7)), dense((4, 7, 3)), dense((4, 5, 3)), 1),
        (dense((4, 5, 7)), dense((1, 7, 3)), dense((4, 5, 3)), 1),
        (dense((1, 5, 7)), dense((4, 7, 3)), dense((4, 5, 3)), 1),
        (dense((2, 4, 5, 7)), dense((2, 4, 7, 3)), dense((2, 4, 5, 3)), 1),
        # Heads of attention: batch, head, row, column, of which rows lie outside of heads.
        (ordered((2, 4, 5, 7), (0, 2, 1, 3)), ordered((2, 4, 7, 3), (0, 2, 1, 3)), dense((2, 4, 5, 3)), 2),
        (ordered((2, 4, 5, 7), (0, 2, 1, 3)), ordered((2, 4, 7, 3), (0, 3, 1, 2)), dense((2, 4, 5, 3)), 2),
        (ordered((1, 4, 5, 7), (0, 2, 1, 3)), ordered((1, 4, 7, 3), (0, 2, 1, 3)), dense((1, 4, 5, 3)), 1),
        (dense((2, 4, 5, 7)), dense((2, 4, 7, 3)), ordered((2, 4, 5, 3), (0, 2, 1, 3)), 2),
        (dense((2, 1, 5, 7)), dense((1, 4, 7, 3)), dense((2, 4, 5, 3)), 2),
        (dense((2, 4, 5, 7)), dense((1, 1, 7, 3)), dense((2, 4, 5, 3)), 1),
        (dense((2, 3, 4, 5, 7)), dense((2, 1, 4, 7, 3)), dense((2, 3, 4, 5, 3)), 6),
    ],
)
def test_descriptions(left: Strided, right: Strided, dst: Strided, calls: int) -> None:
    rng = np.random.default_rng(3)
    described = describe(left, right, dst, "float32")
    assert not described.problem()
    assert len(described.starts) == calls
    (left_memory, left_seen), (right_memory, right_seen) = memory(left, rng), memory(right, rng)
    assert described.needs()[:2] == (right_memory.size, left_memory.size)
    made = cublas(described, right_memory, left_memory)
    seen = np.lib.stride_tricks.as_strided(made, dst.dims, [8 * each for each in dst.strides])
    np.testing.assert_allclose(seen, left_seen @ right_seen, rtol=1e-12)


@pytest.mark.parametrize(
    ("left", "right", "dst", "words"),
    [
        (Strided((5, 7), (14, 2)), dense((7, 3)), dense((5, 3)), "neither rows nor columns"),
        (dense((5, 7)), dense((7, 3)), ordered((5, 3), (1, 0)), "rows of the result"),
        (
            ordered((40, 41, 5, 7), (1, 0, 2, 3)),
            dense((40, 41, 7, 3)),
            dense((40, 41, 5, 3)),
            "takes many calls",
        ),
    ],
)
def test_what_no_call_describes(left: Strided, right: Strided, dst: Strided, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        describe(left, right, dst, "float32")


def linear(net: Net, *shape: int, after: Sequence[str] = ()) -> str:
    value = net.op("MatMul", net.input(*shape), net.random(8, 6))
    for op in after:
        if op == "bias":
            value = net.op("Add", value, net.weight(np.linspace(-2, 2, 6), "float32"))
        elif op == "residual":
            value = net.op("Add", value, net.input(*shape[:-1], 6))
        elif op == "scale":
            value = net.op("Mul", value, net.weight(np.linspace(0.5, 2, 6), "float32"))
        elif op == "gelu":
            value = net.op("Gelu", value, approximate="tanh")
        else:
            value = net.op(op, value)
    return value


MODELS = {
    "plain": lambda net: linear(net, 4, 8),
    "rows": lambda net: linear(net, 2, 3, 8),
    "bias": lambda net: linear(net, 4, 8, after=["bias"]),
    "relu": lambda net: linear(net, 4, 8, after=["Relu"]),
    "bias and gelu": lambda net: linear(net, 4, 8, after=["bias", "gelu"]),
    "scale, bias, relu": lambda net: linear(net, 4, 8, after=["scale", "bias", "Relu"]),
    "residual and relu": lambda net: linear(net, 4, 8, after=["bias", "residual", "Relu"]),
}


PRECISIONS = """
import json
from scripts.lib.gpu.checks import one_kernel
from scripts.lib.gpu.half import in_half
from tests.slow.backends.test_cublas import MODELS
from tests.compile.frontend.test_to_onnx import Net
found = {}
for name, make in MODELS.items():
    net = Net(20)
    model = net.build(make(net))
    found[name] = one_kernel("cublas", model, "tf32", "fp16", "bf16")
    found[name + " in float16"] = one_kernel("cublas", in_half(model), "tf32", "fp16", "bf16")
print(json.dumps(found))
"""
LARGEST = {"": 1e-6, "tf32": 2e-3, "fp16": 3e-3, "bf16": 2e-2}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Any]]:
    """What each variant of each model computes, against ONNX Runtime, on the stand-in for the library."""
    gpu = Gpu.build(tmp_path_factory.mktemp("cublas"), "libcublasLt.so.13")
    found: Mapping[str, Mapping[str, Any]] = json.loads(gpu.run(PRECISIONS).splitlines()[-1])
    return found


@pytest.mark.parametrize("name", MODELS)
def test_precisions(name: str, kernels: Mapping[str, Mapping[str, Any]]) -> None:
    right = set()
    for variant, result in kernels[name].items():
        precision = next((each for each in LARGEST if each and variant.endswith(each)), "")
        if "failed" in result:
            assert "cuBLASLt offers 2 algorithms" in result["failed"], (variant, result)
            continue
        assert result["error"] < LARGEST[precision], (variant, result)
        assert precision == "" or result["error"] > 1e-5, "factors are rounded"
        right.add(precision)
    assert right == LARGEST.keys()


@pytest.mark.parametrize("name", MODELS)
def test_models_in_float16(name: str, kernels: Mapping[str, Mapping[str, Any]]) -> None:
    """They are computed in float16 as they are, plain and by each algorithm, and in no other precision."""
    found = kernels[f"{name} in float16"]
    assert found.keys() == {str(each) for each in _plain(_half_model(name))}
    right = [each for each in found.values() if "failed" not in each]
    assert len(right) == 2, found
    assert all(each["error"] < 1e-3 for each in right), found


SUMS = """
import json
import numpy as np
from scripts.lib.gpu.checks import one_kernel
from tests.compile.frontend.test_to_onnx import Net
net = Net(20)
model = net.build(net.op("MatMul", net.input(2, 4096), net.random(4096, 3)))
print(json.dumps(one_kernel("cublas", model, "fp16", "bf16")))
"""


def test_sums_of_many_parts_are_float32(tmp_path: Path) -> None:
    """cuBLASLt's heuristic offers algorithms that add up in 16 bits, too, as long as nobody forbids that."""
    found = json.loads(Gpu.build(tmp_path, "libcublasLt.so.13").run(SUMS).splitlines()[-1])
    narrow = {name: each["error"] for name, each in found.items() if "wide sums" in name and "failed" not in each}
    assert len(narrow) == 4, found
    assert all(error < LARGEST["fp16" if "fp16" in name else "bf16"] for name, error in narrow.items()), narrow


def _half_model(name: str) -> Subgraph:
    net = Net(20)
    model = import_model(in_half(net.build(MODELS[name](net))), halves=True)
    return Subgraph(model, tuple(range(len(model.graph.nodes))))


def _plain(subgraph: Subgraph) -> Sequence[Variant]:
    """The variants of a model in its own dtype, whatever else is allowed."""
    variants = Cublas().variants(subgraph, BuildOptions(precisions=frozenset({"tf32", "fp16", "bf16"})))
    ends = {storage for each in variants for storage in (*each.inputs, *each.outputs)}
    assert ends == {Storage("cuda")} and {each.precision for each in variants} == {""}
    return variants


def test_artifacts() -> None:
    net = Net(20)
    model = import_model(net.build(linear(net, 4, 8, after=["bias", "Relu"])))
    subgraph = Subgraph(model, tuple(range(len(model.graph.nodes))))
    task = task_of(subgraph)
    artifact = CublasArtifact(
        "sm_90",
        task.description,
        bytes(range(64)),
        1 << 20,
        ProductOperands(1, task.left, task.right, task.residual),
        task.weights,
        task.bias,
    )
    packed = pack(artifact)
    found = unpack(packed)
    assert pack(found) == packed
    assert found.description == task.description
    for old, new, words in (
        (b'"rows":6', b'"rows":9', "is not 6 x 8"),
        (b'"left":0', b'"left":7', "operands"),
        (b'"residual":false', b'"residual":true ', "residual"),
        (b'"leading":6', b'"leading":1', "column to column"),
        (b'"dtype":"float32"', b'"dtype":"float99"', "products of"),
    ):
        assert old in packed
        with pytest.raises((ValueError, TypeError), match=words):
            unpack(packed.replace(old, new, 1))

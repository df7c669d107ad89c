"""Graphs for cuDNN: what is matched and described, and what they compute on a stand-in for the library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from collage.backends.cudnn import Cudnn
from collage.backends.cudnn_kernels.artifact import pack, unpack
from collage.backends.cudnn_kernels.graph import CudnnGraph
from collage.backends.cudnn_kernels.task import task_of
from collage.frontend.model import Model, import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import CHANNELS_LAST, PLAIN
from collage.kernel.options import BuildOptions
from collage.patterns.context import MatchContext
from collage.patterns.match import find_matches
from scripts.lib.gpu.half import in_half
from tests.compile.frontend.test_to_onnx import Net
from tests.helpers.cuda_processes import Gpu

REDUCED = ("tf32", "fp16", "bf16")
LARGEST = {"": 1e-6, "tf32": 2e-3, "fp16": 3e-3, "bf16": 2e-2}
"""The errors that kernels of a precision may have, as shares of the largest number."""

KERNELS = """
import json, sys
from scripts.lib.gpu.checks import one_kernel
from scripts.lib.gpu.half import in_half
from tests.slow.backends.test_cudnn import CASES, IN_FLOAT16, OPSETS, REDUCED, ROUNDED
from tests.compile.frontend.test_to_onnx import Net
found = {}
for name, make in CASES.items():
    net = Net(OPSETS.get(name, 18))
    model = net.build(make(net))
    found[name] = one_kernel("cudnn", model, *(REDUCED if name in ROUNDED else ()))
    if name in IN_FLOAT16:
        found[name + " in float16"] = one_kernel("cudnn", in_half(model), *REDUCED)
net = Net(18)
found["exact"] = one_kernel("cudnn", net.build(CASES["3x3"](net)), exact=True)
print(json.dumps(found))
"""


def conv(net: Net, source: Sequence[int], weights: Sequence[int], after: str = "bias", **attrs: Any) -> str:
    op = "ConvTranspose" if attrs.pop("transposed", False) else "Conv"
    bias = [net.random(weights[0])] if "bias" in after else []  # of a convolution, not of a transposed one
    value = net.op(op, net.input(*source), net.random(*weights), *bias, **attrs)
    if "residual" in after:
        value = net.op("Add", value, net.input(*_shape(net, value)))
    for name in ("Relu", "Sigmoid", "Tanh"):
        value = net.op(name, value) if name in after else value
    if "Clip" in after:
        value = net.op("Clip", value, net.weight(-0.25, "float32"), net.weight(1.5, "float32"))
    if "late" in after:
        value = net.op("Add", value, net.input(*_shape(net, value)))
    return value


def attention(net: Net, mask: Sequence[int] = (), *, known: bool = False, split: bool = False, columns: int = 4) -> str:
    """Two items and three heads, whose rows are five. ``split`` takes the heads beside each other."""
    if split:
        orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        q, k, v = (net.op("Transpose", net.input(2, 5, 3, columns), perm=order) for order in orders)
    else:
        q, k, v = (net.input(2, 3, 5, columns) for _ in range(3))
        k = net.op("Transpose", k, perm=[0, 1, 3, 2])
    scores = net.op("MatMul", q, k)
    scores = net.op("Mul", scores, net.weight(0.5, "float32"))
    if mask:
        scores = net.op("Add", scores, net.random(*mask) if known else net.input(*mask))
    value = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    return net.op("Transpose", value, perm=[0, 2, 1, 3]) if split else value


def _shape(net: Net, value: str) -> Sequence[int]:
    model = import_model(net.build(value))
    return model.graph.type_of(model.graph.outputs[0]).shape


CASES: dict[str, Callable[[Net], str]] = {
    "3x3": lambda net: conv(net, (2, 4, 7, 6), (5, 4, 3, 3), pads=[1, 1, 1, 1]),
    "no bias": lambda net: conv(net, (2, 4, 7, 6), (5, 4, 3, 3), ""),
    "relu": lambda net: conv(net, (1, 4, 7, 6), (5, 4, 3, 3), "bias Relu", pads=[1, 1, 1, 1]),
    "clip": lambda net: conv(net, (1, 4, 5, 4), (5, 4, 1, 1), "bias Clip"),
    "sigmoid": lambda net: conv(net, (1, 4, 5, 4), (5, 4, 1, 1), "bias Sigmoid"),
    "residual": lambda net: conv(net, (1, 4, 7, 6), (5, 4, 3, 3), "bias residual Relu", pads=[1, 1, 1, 1]),
    "residual after": lambda net: conv(net, (1, 4, 5, 4), (5, 4, 1, 1), "bias Tanh late"),
    "strides": lambda net: conv(net, (1, 3, 9, 9), (4, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]),
    "odd sizes": lambda net: conv(net, (1, 3, 8, 8), (4, 3, 3, 3), strides=[2, 2], pads=[1, 1, 0, 0]),
    "unequal paddings": lambda net: conv(net, (1, 3, 8, 8), (4, 3, 3, 3), strides=[2, 2], pads=[0, 0, 1, 1]),
    "dilation": lambda net: conv(net, (1, 3, 9, 9), (4, 3, 3, 3), dilations=[2, 2]),
    "groups": lambda net: conv(net, (1, 6, 5, 5), (8, 3, 3, 3), "bias Relu", group=2),
    "depthwise": lambda net: conv(net, (1, 6, 5, 5), (6, 1, 3, 3), group=6, pads=[1, 1, 1, 1]),
    "1x1": lambda net: conv(net, (2, 6, 5, 5), (7, 6, 1, 1), "bias Relu"),
    "1d": lambda net: conv(net, (2, 6, 9), (7, 6, 3), "bias Relu", strides=[2], pads=[1, 1]),
    "3d": lambda net: conv(net, (1, 3, 4, 5, 6), (4, 3, 2, 3, 3), "bias Relu", pads=[0, 1, 1, 0, 1, 1]),
    "transposed": lambda net: conv(
        net, (2, 4, 3, 3), (4, 5, 4, 4), "", transposed=True, strides=[2, 2], pads=[1, 1, 1, 1]
    ),
    "transposed groups": lambda net: conv(
        net, (1, 4, 3, 3), (4, 3, 3, 3), "", transposed=True, group=2, strides=[2, 2], output_padding=[1, 1]
    ),
    "transposed from a pixel": lambda net: conv(net, (1, 6, 1, 1), (6, 5, 4, 4), "", transposed=True),
    "maxima": lambda net: net.op(
        "MaxPool", net.input(2, 3, 7, 6), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
    ),
    "maxima at the end": lambda net: net.op(
        "MaxPool", net.input(1, 3, 7, 7), kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1
    ),
    "means": lambda net: net.op(
        "AveragePool", net.input(1, 3, 7, 6), kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]
    ),
    "means with padding": lambda net: net.op(
        *("AveragePool", net.input(1, 3, 7, 6)),
        **{"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    ),
    "maxima 1d": lambda net: net.op("MaxPool", net.input(1, 3, 8), kernel_shape=[2], strides=[2]),
    "means 3d": lambda net: net.op("AveragePool", net.input(1, 3, 4, 4, 6), kernel_shape=[2, 2, 2], strides=[2, 2, 2]),
    "mean of all": lambda net: net.op("GlobalAveragePool", net.input(2, 5, 4, 3)),
    "mean without axes": lambda net: net.op("ReduceMean", net.input(2, 5, 4, 3), net.ints(2, 3), keepdims=0),
    "layer norm": lambda net: net.op("LayerNormalization", net.input(2, 5, 8), net.random(8), net.random(8), axis=-1),
    "rms norm": lambda net: net.op("RMSNormalization", net.input(2, 5, 8), net.random(8), axis=-1),
    "attention": lambda net: attention(net),
    "attention with a mask": lambda net: attention(net, (2, 1, 1, 5)),
    "attention with a known mask": lambda net: attention(net, (5, 5), known=True),
    "split heads": lambda net: attention(net, split=True),
}

OPSETS = {"rms norm": 23}
"""The operator sets of models that need a later one than 18."""
ROUNDED = (
    *("no bias", "residual", "transposed", "3d", "maxima", "means", "layer norm"),
    *("attention", "attention with a mask", "attention with a known mask", "split heads"),
)
"""Those that are tried in reduced precisions, too."""
IN_FLOAT16 = [*CASES]
"""Those that are one kernel of a model in float16. TVM's importer puts RMS normalisation between casts."""


def matched(model: Model) -> Subgraph:
    matches, _ = find_matches(MatchContext(model), "cudnn", Cudnn().sources(BuildOptions()))
    return Subgraph(model, max((each.nodes for each in matches), key=len))


def model_of(name: str) -> Model:
    net = Net(OPSETS.get(name, 18))
    return import_model(net.build(CASES[name](net)))


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Gpu:
    return Gpu.build(tmp_path_factory.mktemp("cudnn"), "libcudnn.so.9")


@pytest.fixture(scope="module")
def kernels(gpu: Gpu) -> Mapping[str, Mapping[str, Any]]:
    """What each variant of each case computes, against ONNX Runtime, in a process that finds the stand-in."""
    found: Mapping[str, Mapping[str, Any]] = json.loads(gpu.run(KERNELS).splitlines()[-1])
    return found


@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, kernels: Mapping[str, Mapping[str, Any]]) -> None:
    """A match covers the whole model, and each of its plans computes what the model does."""
    model = model_of(name)
    assert set(matched(model).outputs) == set(model.graph.outputs)
    found, offered = kernels[name], set()
    for variant, result in found.items():
        precision = next((each for each in REDUCED if variant.endswith(each)), "")
        if "failed" in result:
            assert "plans for this graph" in result["failed"], (variant, result)
            continue
        assert result["error"] < LARGEST[precision], (variant, result)
        assert precision != "tf32" or result["error"] > 1e-6, "tensor cores round the factors"
        offered.add(precision)
    task = task_of(matched(model))
    assert offered == {*([""] if task.exact else []), *(task.precisions if name in ROUNDED else ())}


@pytest.mark.parametrize("name", IN_FLOAT16)
def test_models_in_float16(name: str, kernels: Mapping[str, Mapping[str, Any]]) -> None:
    """They are computed in float16 as they are, in each format, and in no other precision."""
    net = Net(OPSETS.get(name, 18))
    model = import_model(in_half(net.build(CASES[name](net))), halves=True)
    assert set(matched(model).outputs) == set(model.graph.outputs)
    found, right = kernels[f"{name} in float16"], set()
    for variant, result in found.items():
        stored, _, plan = variant.partition("; ")
        assert plan in [f"plan {n}" for n in (1, 2, 3, 4)] and "fp16" not in stored, variant
        if "failed" in result:
            assert "plans for this graph" in result["failed"], (variant, result)
            continue
        assert result["error"] < 3e-3, (variant, result)
        right.add(stored.partition(" -> ")[0])
    assert right == {f"cuda:{each.name}" for each in task_of(matched(model)).formats}


def test_plans(kernels: Mapping[str, Mapping[str, Any]]) -> None:
    """Float32 has no plan with tensor cores, TF32 has no other, and an exact compile has none that transforms."""
    found = {name: "error" in result for name, result in kernels["no bias"].items()}
    for stored in ("cuda:plain", "cuda:channels-last"):
        assert [found[f"{stored}; plan {n}"] for n in (1, 2, 3, 4)] == [True] * 4
        assert [found[f"{stored}; plan {n}; tf32"] for n in (1, 2, 3)] == [True, False, False]
        assert [found[f"{stored}-fp16; plan {n}; fp16"] for n in (1, 2, 3)] == [True] * 3
    exact = kernels["exact"]
    assert all(": direct plan " in name.replace("; ", ": ") for name in exact)
    assert ["error" in exact[f"cuda:plain; direct plan {n}"] for n in (1, 2, 3, 4)] == [True] * 3 + [False]
    assert "cuDNN offers 3 plans for this graph" in exact["cuda:plain; direct plan 4"]["failed"]


def test_artifacts() -> None:
    (lowered,) = task_of(matched(model_of("residual"))).lower(CHANNELS_LAST.format, "")
    packed = pack("sm_90", lowered, (b"plan", 4096), 2)
    found = unpack(packed)
    assert (found.graph, found.plan, found.workspace_bytes, found.inputs) == (lowered.graph, b"plan", 4096, 2)
    for read, written in zip(found.constants, lowered.constants, strict=True):
        assert (read.dtype, read.tobytes()) == (written.dtype, written.tobytes())
    for old, new, words in (
        (b'"place":1', b'"place":7', "operands of 2 inputs"),
        (b'"role":"input"', b'"role":"inwut"', "inwut"),
        (b'"inputs":[0,1]', b'"inputs":[0,9]', "not known before"),
        (b'"begin":[1,1]', b'"begin":[3,1]', "do not make"),
        (b'"strides":[168,1,24', b'"strides":[168,9,24', "not dense"),
        (b'"workspace_bytes":4096', b'"workspace_bytes":-409', "workspace"),
    ):
        assert old in packed, old
        with pytest.raises((ValueError, TypeError), match=words):
            unpack(packed.replace(old, new, 1))


def test_graphs_that_would_leave_a_buffer() -> None:
    """A graph from a file is checked before its numbers reach the library."""
    (lowered,) = task_of(matched(model_of("relu"))).lower(PLAIN.format, "")
    graph: CudnnGraph = lowered.graph
    assert not graph.problem()
    tensors = graph.tensors
    for wrong in (
        replace(graph, tensors=(replace(tensors[0], shape=(1, 4, 70, 6)), *tensors[1:])),
        replace(graph, tensors=(*tensors, tensors[0])[1:]),
        replace(graph, operations=graph.operations[1:]),
        replace(graph, operations=(*graph.operations, graph.operations[0])),
        replace(graph, tensors=tuple(replace(each, dtype="int8") for each in tensors)),
    ):
        assert wrong.problem()

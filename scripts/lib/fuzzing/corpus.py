"""Good module files to change: one for each kind of kernel and layout, several shapes, streams, views, a suffix.

They are put together by hand, without measuring, so that each kind is there whatever is fast here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from collage.api import default_registry
from collage.backends.base import BUILT_IN, LAYOUT, VIEW, Backend, UnsupportedError
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import TensorType
from collage.graph.storage import INT8, PLAIN, Storage, is_narrow, stored_type
from collage.graph.value_type import TENSOR, ValueType
from collage.kernel.frames import Artifact
from collage.kernel.options import BuildOptions, Variant
from collage.kernel.target import host
from collage.kernel.transform import LayoutTransform, transform_artifact
from collage.module.module import CompiledModule
from collage.module.shaped import ShapedModule
from collage.native.kernel_library import rounding_problem
from collage.patterns.context import MatchContext
from collage.report.report import CandidateReport, NodeReport, Report
from collage.runtime.parts import Parts, load_parts
from collage.schedule.program import Port, Program, make_program
from collage.schedule.region import Region
from collage.schedule.suffix import Suffix, ValuePort

THREADS = 2
_MOST_VARIANTS = 3


def write_corpus(folder: Path) -> list[Path]:
    """The files in a fixed order, without those of backends that are not there, and of 8 bits if those are not."""
    found = []
    for number, (name, module) in enumerate(_modules()):
        found.append(folder / f"{number:02d}_{name}.collage")
        module.save(found[-1])
    return found


def _modules() -> Iterator[tuple[str, CompiledModule | ShapedModule]]:
    there = default_registry().availability()
    for backend, name, proto in _kernels():
        if there[backend]:
            for module in _alone(proto, default_registry()[backend], THREADS):
                yield f"{backend}_{name}", module
    if there["onednn"]:
        yield "streams", _side_by_side()
        yield "suffix", _with_suffix()
        onednn = default_registry()["onednn"]
        yield (
            "shapes",
            ShapedModule([next(_alone(_relu([1, 32, size]), onednn, 1)) for size in (8, 24)], None),
        )
        for items in () if rounding_problem() else (1, 3):
            conv = _conv([items, 32, 9, 9], 32, 3, then=("Relu",), residual=True)
            for module in _alone(conv, onednn, THREADS, INT8):
                yield "onednn_int8", module


def _kernels() -> Iterator[tuple[str, str, onnx.ModelProto]]:
    """For each file a backend, a name, and a model that the backend takes as a whole."""
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    yield "native", "direct", _conv([1, 32, 9, 9], 32, 3, group=8, then=("Relu",))
    yield "native", "depthwise", _conv([1, 24, 9, 9], 24, 3, group=24, residual=True)
    yield "native", "winograd", _conv([1, 32, 12, 12], 48, 3, then=("Relu",))
    yield "native", "transposed", _conv([1, 32, 6, 6], 32, 4, transposed=True)
    yield "native", "narrow", _conv([1, 32, 6, 6], 3, 4, transposed=True, then=("Tanh",))
    yield "native", "shallow", _conv([1, 3, 20, 20], 32, 7, strides=[2, 2])
    yield "native", "shallow_planes", _conv([1, 3, 6, 10, 10], 32, 3)
    yield "native", "gemm", _product([48, 64], 80, then=("Gelu",))
    yield "mkl", "product", _product([48, 64], 80, then=("Relu",))
    yield "mkl", "batched", _node("MatMul", [[3, 8, 20], [3, 20, 12]], [3, 8, 12])
    yield "onednn", "conv", _conv([1, 32, 9, 9], 32, 3, then=("Relu",), residual=True)
    yield "onednn", "product", _product([48, 64], 80)
    yield "onednn", "pool", _node("MaxPool", [[1, 32, 9, 9]], [1, 32, 5, 5], **window)
    yield "onednn", "softmax", _node("Softmax", [[6, 33]], [6, 33], axis=-1)
    yield "tvm", "elementwise", _relu([4, 40])
    yield "onnxruntime", "conv", _conv([1, 3, 9, 9], 4, 3)
    yield "openvino", "conv", _conv([1, 3, 9, 9], 4, 3)


def _alone(proto: onnx.ModelProto, backend: Backend, threads: int, precision: str = "") -> Iterator[CompiledModule]:
    """Modules of the backend's longest match, in some of its variants, with layout transforms around it.

    With a reduced ``precision`` they are those in it whose values are stored as they are.
    """
    model = import_model(proto)
    found = [f for s in backend.sources(BuildOptions()) for f in s.find(MatchContext(model)) if not f.reason]
    subgraph = Subgraph(model, max(found, key=lambda each: len(each.nodes)).nodes)
    build = BuildOptions(threads=threads, precisions=frozenset(filter(None, [precision])))
    variants = [
        each
        for each in backend.variants(subgraph, build)
        if each.precision == precision and not any(map(is_narrow, (*each.inputs, *each.outputs)))
    ]
    for variant in _spread(variants):
        made = _Made(threads)
        given = [made.value(kind, f"x{i}") for i, kind in enumerate(subgraph.input_types)]
        taken = variant.inputs or (PLAIN,) * len(given)
        left = variant.outputs or (PLAIN,) * len(subgraph.outputs)
        inputs = [made.to(v, layout) for v, layout in zip(given, taken, strict=True)]
        options = BuildOptions(threads=threads, variant=variant)
        try:
            artifact = backend.codegen(subgraph, options)
        except UnsupportedError:
            continue  # the library has no such kernel for this processor
        kinds = [stored_type(k, layout) for k, layout in zip(subgraph.output_types, left, strict=True)]
        outputs = made.region(backend.name, artifact, inputs, kinds, threads=threads, **_of(variant))
        plain = [
            made.back(v, kind, layout) for v, kind, layout in zip(outputs, subgraph.output_types, left, strict=True)
        ]
        yield made.module(plain)


def _spread(variants: Sequence[Variant]) -> list[Variant]:
    """The first variant of each layout, and of each way to split the work."""
    kinds: dict[Any, Variant] = {}
    for each in variants:
        kinds.setdefault((each.layout, ""), each)
        kinds.setdefault(("", each.split), each)
    return list(dict.fromkeys(kinds.values()))[:_MOST_VARIANTS]


class _Made:
    """A program that is built step by step, with its artifacts."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._ids = itertools.count()
        self._types: dict[int, TensorType] = {}
        self._inputs: list[Port] = []
        self._regions: list[Region] = []
        self._artifacts: list[Artifact] = []

    def value(self, kind: TensorType, name: str = "") -> int:
        value = next(self._ids)
        self._types[value] = kind
        if name:
            self._inputs.append(Port(name, value, kind))
        return value

    def region(
        self, backend: str, artifact: bytes, inputs: Sequence[int], kinds: Sequence[TensorType], **more: Any
    ) -> list[int]:
        outputs = [self.value(kind) for kind in kinds]
        number = len(self._regions)
        more = {"threads": self._threads, "cost_us": 2.0, **more}
        names = (f"{backend} op",), (number,), (f"node {number}",)
        self._regions.append(Region(backend, *names, tuple(inputs), tuple(outputs), **more))
        self._artifacts.append(artifact)
        return outputs

    def to(self, value: int, layout: Storage) -> int:
        """The buffer of the value in this storage."""
        if layout == PLAIN:
            return value
        kind = self._types[value]
        artifact = transform_artifact(LayoutTransform(kind, PLAIN, layout))
        return self.region(LAYOUT, artifact, [value], [stored_type(kind, layout)])[0]

    def back(self, value: int, kind: TensorType, layout: Storage) -> int:
        """The plain value of a buffer in this storage."""
        if layout == PLAIN:
            return value
        artifact = transform_artifact(LayoutTransform(kind, layout, PLAIN))
        return self.region(LAYOUT, artifact, [value], [kind])[0]

    def module(self, outputs: Sequence[int], suffix: tuple[Suffix, bytes] | None = None) -> CompiledModule:
        ports = [Port(f"y{i}", value, self._types[value]) for i, value in enumerate(outputs)]
        program: Program = make_program(self._regions, self._inputs, ports, self._types, self._threads)
        artifacts = [a for r, a in zip(self._regions, self._artifacts, strict=True) if r in program.launches]
        if suffix is not None:
            program, artifacts = program.followed_by(suffix[0]), [*artifacts, suffix[1]]
        registry = default_registry()
        used = {region.backend for region in program.executed} - BUILT_IN
        versions = {name: registry.availability()[name].version for name in sorted(used)}
        parts = Parts(program, artifacts, {}, host(self._threads), versions)
        return CompiledModule(parts, _report(program, versions), load_parts(parts, registry))


def _report(program: Program, versions: dict[str, str]) -> Report:
    nodes = tuple(NodeReport("op", f"node {i}", "Op") for i in range(len(program.regions) + 1))
    candidates = tuple(
        CandidateReport(r.nodes, r.backend, "pattern", r.layout, r.split, 2.0, 0.1, threads=r.threads)
        for r in program.regions
    )
    refused = CandidateReport((0,), "mkl", "pattern", reason="inaccurate: by 1")
    return Report(
        "made", "here", program.threads, 5.0, 6.0, 1e-6, 1e-6, 3, 0.1, 1.0, 0.5, versions,
        {"mix": {"median_us": 6.0, "noise_us": 0.1, "min_us": 5.0}}, {"n": "Op: no conversion"}, ("a note",),
        nodes, (*candidates, refused), program.memory.nbytes, program.memory.lower_bound, program.value_bytes,
    )  # fmt: skip


def _of(variant: Variant) -> dict[str, Any]:
    """The parts of a variant that a region shows."""
    return {"layout": variant.layout, "split": variant.split, "precision": variant.precision}


def _side_by_side() -> CompiledModule:
    """A module of two kernels, on a stream each, joined without a copy, and a third kernel on both threads."""
    made, parts, kind = _Made(THREADS), [], TensorType((1, 32, 8), "float32")
    x = made.value(kind, "x")
    artifact, variant = _plain_relu([1, 32, 8], 1)
    for stream in range(THREADS):
        first = made.region("onednn", artifact, [x], [kind], threads=1, stream=stream, **_of(variant))
        more = {"threads": 1, "stream": 1 - stream, **_of(variant)}
        parts += made.region("onednn", artifact, first, [kind], **more)
    both = [TensorType((1, 64, 8), "float32")]
    whole = made.region(VIEW, b"", parts, both)
    artifact, variant = _plain_relu([1, 64, 8], THREADS)
    y = made.region("onednn", artifact, whole, both, **_of(variant))
    return made.module([*y, *made.region(VIEW, b"", y, [TensorType((64, 8), "float32")])])


def _plain_relu(shape: list[int], threads: int) -> tuple[bytes, Variant]:
    model = import_model(_relu(shape))
    subgraph, backend = Subgraph(model, (0,)), default_registry()["onednn"]
    variants = backend.variants(subgraph, BuildOptions(threads=threads))
    variant = next(each for each in variants if each.layout == "plain")
    return backend.codegen(subgraph, BuildOptions(threads=threads, variant=variant)), variant


def _with_suffix() -> CompiledModule:
    """A module of a kernel, followed by ONNX Runtime on its result and on another input."""
    made = _Made(THREADS)
    kind = TensorType((1, 32, 8), "float32")
    x = made.value(kind, "x")
    artifact, variant = _plain_relu([1, 32, 8], THREADS)
    (y,) = made.region("onednn", artifact, [x], [kind], **_of(variant))
    node = helper.make_node("Add", ["y0", "b"], ["z"])
    model = _model([node], {"y0": [1, 32, 8], "b": [1, 32, 8]}, {"z": [1, 32, 8]}, {})
    region = Region("onnxruntime", ("Add",), (1,), ("add",), (), (), threads=THREADS, cost_us=1.0)
    typed = ValueType(TENSOR, "float32", (1, 32, 8))
    ports = ValuePort("x", typed), ValuePort("b", typed)
    gives = ValuePort("z", typed), ValuePort("y0", typed)
    suffix = Suffix(region, ports, gives, ("y0", "b"), ("z",))
    return made.module([y], (suffix, model.SerializeToString()))


def _conv(
    shape: list[int],
    outputs: int,
    window: int,
    *,
    group: int = 1,
    strides: Sequence[int] = (),
    transposed: bool = False,
    then: Sequence[str] = (),
    residual: bool = False,
) -> onnx.ModelProto:
    rng, rank = np.random.default_rng(0), len(shape) - 2
    channels = (shape[1], outputs // group) if transposed else (outputs, shape[1] // group)
    strides = [2] * rank if transposed else list(strides) or [1] * rank
    pad = 1 if transposed else window // 2
    weights = {
        "w": rng.standard_normal((*channels, *[window] * rank)).astype(np.float32) * 0.1,
        "b": rng.standard_normal(outputs).astype(np.float32),
    }
    op = "ConvTranspose" if transposed else "Conv"
    pads = [pad] * 2 * rank
    nodes = [helper.make_node(op, ["x", "w", "b"], ["c"], "conv", pads=pads, strides=strides, group=group)]
    size = [
        (e - 1) * 2 + window - 2 * pad if transposed else (e + 2 * pad - window) // s + 1
        for e, s in zip(shape[2:], strides, strict=True)
    ]
    result = [shape[0], outputs, *size]
    inputs = {"x": shape}
    if residual:
        nodes.append(helper.make_node("Add", ["c", "r"], ["a"], "add"))
        inputs["r"] = result
    return _model(_ending(nodes, then), inputs, {"y": result}, weights)


def _product(left: list[int], columns: int, *, then: Sequence[str] = ()) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((left[-1], columns)).astype(np.float32) * 0.1,
        "b": rng.standard_normal(columns).astype(np.float32),
    }
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["a"])]
    return _model(_ending(nodes, then), {"x": left}, {"y": [*left[:-1], columns]}, weights)


def _relu(shape: list[int]) -> onnx.ModelProto:
    return _node("Relu", [shape], shape)


def _node(op: str, inputs: list[list[int]], output: list[int], **attributes: Any) -> onnx.ModelProto:
    """A model of one node."""
    given = dict(zip("xz", inputs, strict=False))
    return _model([helper.make_node(op, [*given], ["y"], **attributes)], given, {"y": output}, {})


def _ending(nodes: list[onnx.NodeProto], then: Sequence[str]) -> list[onnx.NodeProto]:
    for number, op in enumerate(then):
        nodes.append(helper.make_node(op, [nodes[-1].output[0]], [f"e{number}"], op.lower()))
    nodes[-1].output[0] = "y"
    return nodes


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int]],
    outputs: dict[str, list[int]],
    weights: dict[str, np.ndarray],
) -> onnx.ModelProto:
    def infos(ports: dict[str, list[int]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in ports.items()]

    arrays = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "made", infos(inputs), infos(outputs), arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)

"""The kernels that measure a machine: our own, on shapes of real networks, made on the way that all kernels are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from collage.backends.native import Native
from collage.frontend.model import from_simplified
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import CHANNELS_LAST, PLAIN, stored_type
from collage.kernel.buffers import aligned_array
from collage.kernel.kernel import Call
from collage.kernel.machine_speeds import WRITTEN_DOWN, Blocking
from collage.kernel.options import BuildOptions, Variant
from collage.native.speed import Sampled


@dataclass(frozen=True)
class _Layer:
    """An operator on data of some shape, with weights, in the variant whose words for the split begin with ``way``."""

    op: str
    data: tuple[int, ...]
    weights: tuple[int, ...]
    way: str
    stride: int = 1

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes of the ONNX node. A convolution has as many rows as its data, or the stride's part of them."""
        if len(self.data) != 4:
            return {}
        return {"pads": [(self.weights[-1] - 1) // 2] * 4, "strides": [self.stride] * 2}


_GEMM = _Layer("MatMul", (128, 512), (512, 768), "columns")
_WINOGRAD = _Layer("Conv", (1, 64, 56, 56), (64, 64, 3, 3), "winograd 4x4")
"""With few channels the transforms take a large part of the time."""

BLOCKS: Mapping[str, Sequence[_Layer]] = {
    "winograd_bytes": (
        _Layer("Conv", (1, 64, 56, 56), (64, 64, 3, 3), "winograd 4x4"),
        _Layer("Conv", (1, 256, 14, 14), (256, 256, 3, 3), "winograd 4x4"),
    ),
    "shallow_bytes": (_Layer("Conv", (1, 3, 224, 224), (64, 3, 7, 7), "rows", 2),),
    "narrow_bytes": (_Layer("ConvTranspose", (1, 64, 32, 32), (64, 3, 4, 4), "rows", 2),),
    "gemm_depth": (_Layer("MatMul", (64, 3072), (3072, 768), "columns"),),
}
"""The layers that decide a size of blocks: of ResNet-50, ResNeXt50, DCGAN and BERT."""

_FACTORS = (0.5, 1.0, 2.0)


class SpeedKernels:
    """Bound kernels by what is learnt from them.

    ``products`` are by the number of threads, and ``blocks`` by the field of ``Blocking`` and its value. ``winograd``
    is on one thread; it multiplies ``winograd_flop`` and transforms ``winograd_points`` points of tiles of 16 channels.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        layers = [_GEMM, _WINOGRAD, *(each for some in BLOCKS.values() for each in some)]
        self._subgraphs = _subgraphs(layers)
        flop = 2.0 * _GEMM.data[0] * _GEMM.weights[0] * _GEMM.weights[1]
        usual = Blocking()
        self.products = {
            count: _warm(self._call(_GEMM, count, usual), flop) for count in dict.fromkeys((1, threads))
        }
        self.winograd = _warm(self._call(_WINOGRAD, 1, usual))
        _, channels, rows, columns = _WINOGRAD.data
        points = 36 * (rows // 4) * (columns // 4)
        self.winograd_flop = 2.0 * points * channels**2
        self.winograd_points = points * 2 * channels // 16
        self.blocks = {name: self._sizes(name, some) for name, some in BLOCKS.items()}

    @property
    def all(self) -> Iterator[Sampled]:
        """All that has to be sampled."""
        yield from self.products.values()
        yield self.winograd
        for sizes in self.blocks.values():
            yield from sizes.values()

    def _sizes(self, name: str, layers: Sequence[_Layer]) -> dict[int, Sampled]:
        usual = getattr(Blocking(), name)
        found = {}
        for factor in _FACTORS:
            blocking = replace(Blocking(), **{name: int(factor * usual)})
            calls = [self._call(layer, self._threads, blocking) for layer in layers]
            found[int(factor * usual)] = Sampled(_one_after_another(calls))
        return found

    def _call(self, layer: _Layer, threads: int, blocking: Blocking) -> Call:
        backend, subgraph = Native(), self._subgraphs[layer]
        build = BuildOptions(threads, speeds=replace(WRITTEN_DOWN, blocking=blocking))
        build = replace(build, variant=_variant(backend.variants(subgraph, build), layer.way))
        kernel = backend.load(backend.codegen(subgraph, build), build)
        sides = (
            (subgraph.input_types, build.variant.inputs),
            (subgraph.output_types, build.variant.outputs),
        )
        inputs, outputs = (
            [
                aligned_array(stored_type(kind, storage))
                for kind, storage in zip(kinds, storages or (PLAIN,) * len(kinds), strict=True)
            ]
            for kinds, storages in sides
        )
        for each in inputs:
            each.fill(0.5)
        call = kernel.bind(inputs, outputs)
        call()
        return call


def _variant(variants: Sequence[Variant], way: str) -> Variant:
    """The variant of that algorithm and split, with channels last if it has the choice; one thread splits nothing."""
    alike = [each for each in variants if each.split.startswith(way)] or [*variants]
    last = [each for each in alike if CHANNELS_LAST in (*each.inputs, *each.outputs)]
    return (last or alike)[0]


def _warm(call: Call, work: float = 1.0) -> Sampled:
    """Samples with everything in the caches; block sizes are sampled with what the others have left there."""
    return Sampled(call, work, before=call)


def _one_after_another(calls: Sequence[Call]) -> Callable[[], None]:
    def run() -> None:
        for call in calls:
            call()

    return run


def _subgraphs(layers: Sequence[_Layer]) -> dict[_Layer, Subgraph]:
    """Each layer as the only operator of its subgraph, all of one model, since importing one takes its time."""
    rng = np.random.default_rng(0)
    nodes, inputs, outputs, weights = [], [], [], []
    for number, layer in enumerate(layers):
        x, w, y = (f"{letter}{number}" for letter in "xwy")
        nodes.append(helper.make_node(layer.op, [x, w], [y], y, **layer.attrs))
        inputs.append(helper.make_tensor_value_info(x, TensorProto.FLOAT, layer.data))
        outputs.append(helper.make_tensor_value_info(y, TensorProto.FLOAT, None))
        weights.append(numpy_helper.from_array(rng.random(layer.weights, np.float32) - 0.5, w))
    graph = helper.make_graph(nodes, "speeds", inputs, outputs, weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    model = from_simplified(proto, "speeds")
    return {layer: Subgraph(model, (number,)) for number, layer in enumerate(layers)}

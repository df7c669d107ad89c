"""Convolutions on Collage's own kernels and on oneDNN's, both on Collage's team of threads, in all their variants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from collage.backends.base import Backend, UnsupportedError
from collage.backends.native import Native
from collage.backends.onednn import OneDnn
from collage.errors import CollageError
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import PLAIN, from_layout, stored_type, to_layout
from collage.kernel.buffers import aligned_bytes
from collage.kernel.options import BuildOptions, Variant
from collage.patterns.context import MatchContext
from scripts.lib.kernels.turns import Turn, in_turns

TURN = Turn(timed=5, untimed=3)


@dataclass(frozen=True)
class Conv:
    """A square convolution of one image."""

    network: str
    channels: tuple[int, int]
    size: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1

    @property
    def name(self) -> str:
        """The name of the case in tables."""
        ins, outs = self.channels
        return f"{self.network} {ins}->{outs} {self.size}x{self.size} k{self.kernel} s{self.stride} g{self.groups}"

    def model(self) -> Any:
        """The convolution with bias and relu, as an ONNX model."""
        rng = np.random.default_rng(0)
        ins, outs = self.channels
        shape = (outs, ins // self.groups, self.kernel, self.kernel)
        weights = {
            "w": rng.standard_normal(shape) / math.sqrt(math.prod(shape[1:])),
            "b": rng.standard_normal(outs),
        }
        attrs: dict[str, Any] = {
            "group": self.groups,
            "strides": [self.stride] * 2,
            "pads": [self.kernel // 2] * 4,
        }
        nodes = [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], **attrs),
            helper.make_node("Relu", ["c"], ["y"]),
        ]
        graph = helper.make_graph(
            nodes,
            "case",
            [helper.make_tensor_value_info("x", 1, [1, ins, self.size, self.size])],
            [helper.make_tensor_value_info("y", 1, [None] * 4)],
            [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)

    @property
    def flop(self) -> int:
        """The number of multiplications and additions in the direct algorithm."""
        out = (self.size - 1) // self.stride + 1
        return 2 * out**2 * self.channels[0] * self.channels[1] // self.groups * self.kernel**2


def resnext() -> list[Conv]:
    found = []
    for i, width in enumerate((128, 256, 512, 1024)):
        if i:
            found.append(Conv("resnext", (width, width), 112 >> i, 3, 2, 32))
        found.append(Conv("resnext", (width, width), 56 >> i, 3, 1, 32))
    return found


def depthwise(network: str, *cases: tuple[int, int, int, int]) -> list[Conv]:
    return [Conv(network, (c, c), size, k, stride, c) for c, size, k, stride in cases]


CASES = (
    *resnext(),
    Conv("regnet", (120, 120), 28, 3, 1, 5),
    Conv("regnet", (336, 336), 14, 3, 1, 14),
    Conv("shufflenet", (240, 240), 28, 3, 1, 20),
    *depthwise("nasnet", (44, 28, 3, 1), (44, 28, 5, 1), (88, 14, 5, 1), (176, 7, 5, 1), (32, 56, 7, 2)),
    *depthwise("nasnet", (44, 56, 5, 2), (88, 28, 7, 2), (176, 14, 5, 2), (264, 7, 3, 1)),
    *depthwise(
        "mobilenet", (32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (192, 28, 3, 1), (576, 14, 3, 1)
    ),
)


def subgraph_of(proto: Any, backend: Backend) -> Subgraph:
    """The longest chain that the backend takes."""
    context = MatchContext(import_model(proto))
    found = [f.nodes for s in backend.sources(BuildOptions()) for f in s.find(context) if not f.reason]
    return Subgraph(context.model, max(found, key=len))


def bound(
    backend: Backend, subgraph: Subgraph, variant: Variant, threads: int, inputs: list[Any]
) -> tuple[Callable[[], None], Callable[[], Any]]:
    """The call, and a function that returns its result in the plain layout."""
    options = BuildOptions(threads=threads, variant=variant)
    kernel = backend.load(backend.codegen(subgraph, options), options)

    def filled(content: Any) -> Any:
        array = aligned_bytes(content.nbytes).view(np.float32).reshape(content.shape)
        array[...] = content
        return array

    layouts = variant.inputs or (PLAIN,) * len(inputs)
    sources = [filled(to_layout(x, layout)) for x, layout in zip(inputs, layouts, strict=True)]
    (kind,), layout = subgraph.output_types, (variant.outputs or (PLAIN,))[0]
    target = filled(np.full(stored_type(kind, layout).shape, np.nan, np.float32))
    return kernel.bind(sources, [target]), lambda: from_layout(target, layout, kind)


def race(case: Conv, threads: int, seconds: float) -> dict[str, Any]:
    """The microseconds of each variant that runs the case. Raises CollageError when results differ."""
    subgraph = subgraph_of(case.model(), Native())
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(kind.shape).astype(np.float32) for kind in subgraph.input_types]
    runs: dict[str, Callable[[], None]] = {}
    first = None
    for backend in (Native(), OneDnn()):
        if not backend.available():
            continue
        for variant in backend.variants(subgraph, BuildOptions(threads=threads)):
            try:
                call, result = bound(backend, subgraph, variant, threads, inputs)
            except UnsupportedError:
                continue
            call()
            first = result() if first is None else first
            error = float(np.abs(result() - first).max())
            if not error <= 1e-4:
                raise CollageError(f"{case.name}: {backend.name} {variant} differs by {error}")
            runs[f"{backend.name}: {variant}"] = call
    return {
        "case": case.name,
        "flop": case.flop,
        "us": {name: float(np.median(times)) * 1e6 for name, times in in_turns(runs, seconds, TURN).items()},
    }

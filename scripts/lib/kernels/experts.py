"""Products of rows that choose one of many matrices, by our own kernels in each precision of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from collage.backends.native import Native
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import BF16, INT8
from collage.kernel.buffers import aligned_array
from collage.kernel.options import BuildOptions
from collage.serve.decoder.experts.product import in_operators, product
from scripts.lib.kernels.turns import Turn, in_turns

WEIGHT_BYTES = {"": 4, BF16: 2, INT8: 1}
"""Bytes of a weight in each precision."""
LEAST_ROUNDS = 7


@dataclass(frozen=True)
class Mixture:
    """``experts`` matrices (depth, columns), of which each of some tokens chooses ``chosen``."""

    experts: int
    chosen: int
    depth: int
    columns: int
    tokens: int

    @property
    def rows(self) -> int:
        """Rows that are multiplied."""
        return self.tokens * self.chosen

    def subgraph(self) -> Subgraph:
        """The product, with random weights of about the size that trained ones have."""
        rng = np.random.default_rng(0)
        weights = rng.standard_normal((self.experts, self.depth, self.columns), np.float32)
        weights /= np.float32(math.sqrt(self.depth))
        graph = helper.make_graph(
            in_operators([product("x", "w", "choice", "y")]),
            "experts",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, [self.rows, self.depth]),
                helper.make_tensor_value_info("choice", TensorProto.INT64, [self.rows]),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [self.rows, self.columns])],
            [numpy_helper.from_array(weights, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        return Subgraph(import_model(model), (0,))

    def choice(self, rng: np.random.Generator) -> Any:
        """Different experts for each token."""
        return np.concatenate([rng.permutation(self.experts)[: self.chosen] for _ in range(self.tokens)])


@dataclass(frozen=True)
class Found:
    """The fastest kernel of a precision, and how many times as fast as float32's fastest one it is."""

    precision: str
    variant: str
    us: float
    ratio: float
    gbs: float
    """The pace at which it reads the weights of the experts that are chosen, in GB/s."""
    error: float
    """Its largest error as a share of the largest result."""


def race(mixture: Mixture, threads: int, seconds: float) -> list[Found]:
    """The fastest kernel of each precision, float32 first; all variants of all take turns, one call each.

    Each round has a choice of its own. So weights come from memory, where a round reads more than the last cache holds.
    Ratios are medians over the rounds, and so are times.
    """
    backend, subgraph = Native(), mixture.subgraph()
    rng, inputs = np.random.default_rng(1), [aligned_array(kind) for kind in subgraph.input_types]
    inputs[0][...] = rng.standard_normal(inputs[0].shape, np.float32)
    inputs[1][...] = mixture.choice(rng)
    calls: dict[tuple[str, str], Callable[[], None]] = {}
    results = {}
    for variant in backend.variants(
        subgraph, BuildOptions(threads=threads, precisions=frozenset(WEIGHT_BYTES))
    ):
        options = BuildOptions(threads=threads, variant=variant)
        kernel = backend.load(backend.codegen(subgraph, options), options)
        outputs = [aligned_array(kind) for kind in subgraph.output_types]
        name = variant.precision, variant.split
        calls[name] = kernel.bind(inputs, outputs)
        calls[name]()
        results[name] = outputs[0].copy()
    weights = subgraph.model.graph.constants[subgraph.constants[0]]
    exact = np.stack([x @ weights[c] for x, c in zip(inputs[0].astype(float), inputs[1], strict=True)])
    matrices: list[int] = []

    def choose() -> None:
        inputs[1][...] = mixture.choice(rng)
        matrices.append(len(np.unique(inputs[1])))

    names = {str(number): name for number, name in enumerate(calls)}
    runs: dict[str, Callable[[], object]] = {"choose": choose}
    runs.update({number: calls[name] for number, name in names.items()})
    times = {
        names[each]: found
        for each, found in in_turns(runs, seconds, Turn(), rounds=LEAST_ROUNDS).items()
        if each in names
    }
    read = float(np.mean(matrices)) * mixture.depth * mixture.columns
    best = {
        precision: min((median(found), name) for name, found in times.items() if name[0] == precision)[1]
        for precision in WEIGHT_BYTES
    }
    plain = times[best[""]]
    return [
        Found(
            precision or "float32",
            name[1],
            1e6 * median(times[name]),
            median(a / b for a, b in zip(plain, times[name], strict=True)),
            WEIGHT_BYTES[precision] * read / median(times[name]) / 1e9,
            float(np.abs(results[name] - exact).max() / np.abs(exact).max()),
        )
        for precision, name in best.items()
    ]

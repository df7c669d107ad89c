"""How fast the machine would be at best: its memory and its products, and what a trace needs of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scripts.lib.decoders.shape import DecoderShape
from scripts.lib.serving.contender import BFLOAT16, FLOAT32, INT8, cache_precision
from scripts.lib.serving.trace import Arrival

if TYPE_CHECKING:
    from onnx import ModelProto

_BYTES = {FLOAT32: 4, BFLOAT16: 2, INT8: 1}
_PRODUCT = (512, 1024, 1024)
"""Rows, depth and columns of the product that tells the machine's speed in fewer bits."""


@dataclass(frozen=True)
class Machine:
    """GB/s of reading memory and GFLOP/s of large products in the run's precision, with all threads, measured in it."""

    gbytes_per_s: float
    gflops: float


def measure_machine(threads: int, precision: str = FLOAT32, seconds: float = 3.0) -> Machine:
    """Measure the machine with loops for so many seconds.

    Where there are no instructions for a precision, products of weights in it are computed in float32.
    """
    from collage.graph import storage
    from collage.kernel.target import reduced_precisions
    from collage.measure.machine.measure_speeds import measure_speeds

    found = measure_speeds(threads, seconds).speeds
    wanted = {
        FLOAT32: frozenset(),
        BFLOAT16: frozenset({storage.BF16}),
        INT8: frozenset({storage.BF16, storage.INT8}),
    }[precision]
    there = wanted & reduced_precisions()
    gflops = _narrow_gflops(there, threads, seconds) if there else found.team_gemm_gflops
    return Machine(found.memory.team_read_gbs, gflops)


def _narrow_gflops(precisions: frozenset[str], threads: int, seconds: float) -> float:
    """GFLOP/s of the fastest kernel of a large product in these precisions or float32, of our own and oneDNN's."""
    from collage.frontend.model import import_model
    from scripts.lib.kernels.layers import layers, race

    rows, depth, columns = _PRODUCT
    (layer,) = layers(import_model(_product(rows, depth, columns)), precisions)
    us = race(layer, threads, seconds, cold=False, precisions=precisions)
    return 2e-3 * rows * depth * columns / min(us.values())


def _product(rows: int, depth: int, columns: int) -> ModelProto:
    """A product with a constant matrix."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).standard_normal((depth, columns)).astype(np.float32)
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [rows, depth]), ("y", [rows, columns]))
    )
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", [x], [y], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@dataclass(frozen=True)
class Needs:
    """What a decoder needs: bytes of weights that an iteration reads, FLOP a token and a row of logits, cache bytes."""

    weight_bytes: int
    token_flop: int
    row_flop: int
    cache_bytes: int

    @classmethod
    def of(cls, shape: DecoderShape, precision: str = FLOAT32) -> Needs:
        """The needs of a decoder whose weights are of that precision, and its cache as in such a run."""
        size = _BYTES[precision]
        cached = _BYTES[cache_precision(precision)]
        attention = 2 * shape.width * shape.width + 2 * shape.width * shape.kv_heads * shape.head
        gates = 2 if shape.family == "gpt2" else 3
        layers = shape.layers * (attention + gates * shape.width * shape.inner)
        head = shape.vocabulary * shape.width
        return cls(
            size * (layers + head),
            2 * layers,
            2 * head,
            cached * 2 * shape.layers * shape.kv_heads * shape.head,
        )


def trace_bound_s(arrivals: Sequence[Arrival], running: int, needs: Needs, machine: Machine) -> float:
    """The least time of requests that are all there at once, with at most so many in an iteration.

    Products cannot be faster than the machine's. There cannot be fewer iterations than the tokens of all answers
    divided by ``running``, nor than those of the longest answer. Each reads all weights, and for each stream the keys
    and values so far. One of the two takes at least this long; arithmetic of attention is left out.
    """
    inputs = sum(len(each.prompt) for each in arrivals)
    outputs = sum(each.tokens for each in arrivals)
    flop = (inputs + outputs - len(arrivals)) * needs.token_flop + outputs * needs.row_flop
    iterations = max(-(-outputs // running), max(each.tokens for each in arrivals))
    cached = sum(
        (each.tokens - 1) * len(each.prompt) + (each.tokens - 1) * each.tokens // 2 for each in arrivals
    )
    moved = iterations * needs.weight_bytes + cached * needs.cache_bytes
    return max(flop / (machine.gflops * 1e9), moved / (machine.gbytes_per_s * 1e9))


def batch_bound_s(batch: int, inputs: int, outputs: int, needs: Needs, machine: Machine) -> float:
    """The least time of a static batch: prompts first, then iterations with a token of each request."""
    prompts_s = batch * (inputs * needs.token_flop + needs.row_flop) / (machine.gflops * 1e9)
    total = max(prompts_s, needs.weight_bytes / (machine.gbytes_per_s * 1e9))
    flop_s = batch * (needs.token_flop + needs.row_flop) / (machine.gflops * 1e9)
    for position in range(inputs + 1, inputs + outputs):
        moved = needs.weight_bytes + batch * position * needs.cache_bytes
        total += max(flop_s, moved / (machine.gbytes_per_s * 1e9))
    return total


def token_bound_s(length: int, needs: Needs, machine: Machine) -> float:
    """The least time of a token of one request alone, with so many tokens before it."""
    return (needs.weight_bytes + length * needs.cache_bytes) / (machine.gbytes_per_s * 1e9)

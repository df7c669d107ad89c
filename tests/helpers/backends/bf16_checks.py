"""Running kernels of reduced precision against a float64 model of bfloat16's rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from collage.backends.base import Backend, UnsupportedError
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import TensorType
from collage.graph.storage import BF16, PLAIN, PLAIN_BF16, from_layout, is_narrow, to_layout
from collage.kernel.options import BuildOptions, Variant
from collage.testing.buffers import results_of
from tests.helpers.models import make_model
from tests.helpers.reference import evaluate

ALLOWED = frozenset({BF16})
UNIT = 2.0**-8
"""The largest relative error of one rounding to the nearest number of 8 bits."""
OF_SUMS = 3e-5
"""The error of float32 sums, and of approximations in epilogues, as a part of the largest result."""

Rounds = Callable[[Variant, int], bool]
"""Whether a variant rounds the input of that position to bfloat16, wherever that happens."""


def rounded(array: Any) -> Any:
    """The array with every number rounded to bfloat16. `test_storage.py` checks the rounding itself."""
    with np.errstate(all="ignore"):
        single = np.asarray(array, np.float32)
    return from_layout(to_layout(single, PLAIN_BF16), PLAIN_BF16, TensorType(single.shape, "float32"))


def stored_narrow(variant: Variant, position: int) -> bool:
    """What rounds where a kernel multiplies numbers as they are stored."""
    return is_narrow(variant.inputs[position])


def convolution(shape: tuple[int, ...], weights: tuple[int, ...], *then: str, **attrs: Any) -> onnx.ModelProto:
    """A convolution with a bias, and with a residual and a relu where they are asked for."""
    rng = np.random.default_rng(0)
    fan = weights[1] * int(np.prod(weights[2:]))
    numbers = {
        "w": (rng.standard_normal(weights) / np.sqrt(fan)).astype(np.float32),
        "b": rng.standard_normal(weights[0]).astype(np.float32),
    }
    pads = [(k - 1) // 2 for k in weights[2:]] * 2
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=pads, **attrs)]
    inputs: dict[str, Any] = {"x": list(shape)}
    strides = attrs.get("strides", [1] * (len(shape) - 2))
    out = [shape[0], weights[0], *(-(-n // s) for n, s in zip(shape[2:], strides, strict=True))]
    value = "y"
    for op in then:
        operands = [value]
        if op == "Add":
            inputs["r"] = out
            operands.append("r")
        nodes.append(helper.make_node(op, operands, [f"y{len(nodes)}"]))
        value = nodes[-1].output[0]
    return make_model(nodes, inputs, {value: out}, numbers)


def reduced_variants(backend: Backend, subgraph: Subgraph, threads: int) -> list[Variant]:
    """What the backend offers in a reduced precision, each once; without one it offers all others as before."""
    exact = backend.variants(subgraph, BuildOptions(threads=threads))
    found = backend.variants(subgraph, BuildOptions(threads=threads, precisions=ALLOWED))
    assert [each for each in found if not each.precision] == list(exact)
    assert len({*found}) == len(found)
    return [each for each in found if each.precision]


def run(
    backend: Backend, subgraph: Subgraph, variant: Variant, threads: int, inputs: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The plain outputs, the same in each run and in place."""
    options = BuildOptions(threads=threads, variant=variant)
    kernel = backend.load(backend.codegen(subgraph, options), options)
    return results_of(kernel, subgraph, variant, inputs, backend.in_place(subgraph))


def model(
    subgraph: Subgraph,
    variant: Variant,
    inputs: Sequence[np.ndarray],
    rounds: Rounds = stored_narrow,
    *,
    of_weights: bool = True,
) -> list[np.ndarray]:
    """Exact products and sums of rounded inputs, and of rounded weights unless these stay wide, in float64."""
    taken = [rounded(a) if rounds(variant, i) else a for i, a in enumerate(inputs)]
    weights = {
        value: rounded(subgraph.model.graph.constants[value])
        for node in subgraph.operators
        if of_weights and (node.op == "matmul" or node.op.startswith("nn.conv"))
        for value in node.inputs[1:]
        if subgraph.model.graph.is_constant(value)
    }
    return evaluate(subgraph, taken, weights)


def check(variant: Variant, found: Sequence[np.ndarray], wanted: Sequence[np.ndarray], roundings: int = 1) -> None:
    """Results are those of the model, but for float32 sums, and for ``roundings`` where they are stored narrow."""
    outputs = variant.outputs or (PLAIN,) * len(found)
    for mine, exact, storage in zip(found, wanted, outputs, strict=True):
        allowed = OF_SUMS * (np.abs(exact).max(initial=0) + 1e-3)
        if is_narrow(storage):
            allowed = allowed + 1.01 * roundings * UNIT * np.abs(exact)
        off = np.abs(mine.astype(np.float64) - exact) - allowed
        assert off.max(initial=-1) <= 0, (str(variant), float(off.max()), float(np.abs(exact).max()))


def check_all(
    backend: Backend,
    subgraph: Subgraph,
    threads: int,
    *,
    rounds: Rounds = stored_narrow,
    roundings: int = 1,
    of_weights: bool = True,
    least: int = 1,
) -> list[Variant]:
    """Every reduced variant that can be built computes what the model says; those that can, at least ``least``."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(kind.shape).astype(np.float32) for kind in subgraph.input_types]
    built = []
    for variant in reduced_variants(backend, subgraph, threads):
        try:
            found = run(backend, subgraph, variant, threads, inputs)
        except UnsupportedError:
            continue
        wanted = model(subgraph, variant, inputs, rounds, of_weights=of_weights)
        check(variant, found, wanted, roundings)
        built.append(variant)
    assert len(built) >= least, reduced_variants(backend, subgraph, threads)
    return built


def check_special_values(backend: Backend, subgraph: Subgraph, *, of_weights: bool = True, least: int = 1) -> None:
    """NaN and infinities in the data come out where the model has them, and denormals change nothing else."""
    x = np.random.default_rng(0).standard_normal(subgraph.input_types[0].shape).astype(np.float32)
    flat = x.reshape(-1)
    flat[len(flat) // 7], flat[len(flat) // 3], flat[::11] = np.nan, np.inf, 1e-40
    built = 0
    for variant in reduced_variants(backend, subgraph, 1):
        with np.errstate(all="ignore"):
            try:
                (found,) = run(backend, subgraph, variant, 1, [x])
            except UnsupportedError:
                continue
            (exact,) = model(subgraph, variant, [x], of_weights=of_weights)
        odd = ~np.isfinite(exact)
        assert 0 < odd.sum() < odd.size
        np.testing.assert_array_equal(found[odd], exact[odd], err_msg=str(variant))
        check(variant, [np.where(odd, 0, found)], [np.where(odd, 0, exact)])
        built += 1
    assert built >= least

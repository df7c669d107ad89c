"""Kernels for values that come quantised, against exact sums of the model's integers and against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.backends.base import UnsupportedError
from collage.backends.onednn_kernels.rule import QuantisedRule
from collage.frontend.model import import_model
from collage.frontend.session import reference_run
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import CHANNELS_LAST, PLAIN
from collage.kernel.options import BuildOptions, Variant
from collage.patterns.context import MatchContext
from tests.helpers.backends.bf16_checks import run
from tests.helpers.backends.onednn_checks import BACKEND, needs_exact_sums, needs_onednn
from tests.helpers.models import make_model
from tests.helpers.reference import evaluate

pytestmark = needs_onednn
KINDS = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}


@dataclass(frozen=True)
class Steps:
    dtype: str
    scale: float
    zero: int = 0

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        zero = np.array(self.zero, self.dtype)
        return {f"{name}_s": np.array(self.scale, np.float32), f"{name}_z": zero}


@dataclass(frozen=True)
class Case:
    """A convolution of quantised values; ``then`` are functions before the result is quantised to ``result``."""

    shape: tuple[int, ...]
    weights: tuple[int, ...]
    data: Steps
    result: Steps | None
    then: tuple[str, ...] = ()
    one_scale: bool = False
    shifted: bool = False
    attrs: dict[str, Any] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        rng = np.random.default_rng(0)
        outputs, rank = self.weights[0], len(self.shape) - 2
        numbers: dict[str, Any] = self.data.arrays("x")
        whole = rng.integers(-127, 127, self.weights, endpoint=True)
        numbers["w"] = (whole + 128).astype(np.uint8) if self.shifted else whole.astype(np.int8)
        scales = rng.uniform(0.5, 1.5, outputs) / (127 * np.sqrt(np.prod(self.weights[1:])))
        zero = 128 if self.shifted else 0
        numbers["w_s"] = np.float32(scales[0]) if self.one_scale else scales.astype(np.float32)
        numbers["w_z"] = np.full([] if self.one_scale else outputs, zero, numbers["w"].dtype)
        numbers["b"] = rng.standard_normal(outputs).astype(np.float32)
        axis = {} if self.one_scale else {"axis": 0}
        nodes = [
            helper.make_node("DequantizeLinear", ["x", "x_s", "x_z"], ["xf"]),
            helper.make_node("DequantizeLinear", ["w", "w_s", "w_z"], ["wf"], **axis),
            helper.make_node("Conv", ["xf", "wf", "b"], ["y0"], **self.attrs),
        ]
        for op in self.then:
            nodes.append(helper.make_node(op, [f"y{len(nodes) - 3}"], [f"y{len(nodes) - 2}"]))
        last = nodes[-1].output[0]
        types = {"x": KINDS[self.data.dtype]}
        if self.result is not None:
            numbers |= self.result.arrays("q")
            nodes.append(helper.make_node("QuantizeLinear", [last, "q_s", "q_z"], ["q"]))
            last, types["q"] = "q", KINDS[self.result.dtype]
        return make_model(nodes, {"x": list(self.shape)}, {last: [None] * (rank + 2)}, numbers, types=types)


RELU = ("Relu",)
U8, S8 = Steps("uint8", 0.02), Steps("int8", 0.02)
PADDED = {"pads": [1, 1, 1, 1]}
CASES = {
    "3x3": Case((1, 32, 9, 7), (48, 32, 3, 3), U8, Steps("uint8", 0.03), RELU, attrs=PADDED),
    "7x7 of a picture": Case(
        (1, 3, 32, 32),
        (16, 3, 7, 7),
        S8,
        Steps("uint8", 0.03),
        RELU,
        attrs={"pads": [3, 3, 3, 3], "strides": [2, 2]},
    ),
    "1x1, zero points": Case((1, 40, 6, 5), (33, 40, 1, 1), Steps("uint8", 0.02, 117), Steps("uint8", 0.03, 120)),
    "3x3, zero points and padding": Case(
        (1, 16, 9, 8),
        (24, 16, 3, 2),
        Steps("uint8", 0.02, 99),
        Steps("uint8", 0.03, 120),
        RELU,
        attrs={"pads": [2, 0, 1, 1], "strides": [2, 1]},
    ),
    "dilated, zero points and padding": Case(
        (1, 32, 12, 12),
        (32, 16, 3, 3),
        Steps("int8", 0.02, -9),
        S8,
        attrs={"pads": [2, 2, 2, 2], "dilations": [2, 2], "group": 2},
    ),
    "one scale": Case((1, 16, 8, 8), (16, 16, 3, 3), U8, Steps("uint8", 0.03, 3), ("Sigmoid",), one_scale=True),
    "unsigned weights": Case((1, 16, 8, 8), (16, 16, 3, 3), U8, Steps("uint8", 0.05, 128), shifted=True),
    "single channels": Case((1, 32, 8, 8), (32, 1, 3, 3), U8, U8, RELU, attrs={**PADDED, "group": 32}),
}


def longest(proto: onnx.ModelProto) -> Subgraph:
    """The longest chain that oneDNN is offered, which has to be the whole model."""
    model = import_model(proto)
    found = [f for s in BACKEND.sources(BuildOptions()) for f in s.find(MatchContext(model))]
    chains = [Subgraph(model, f.nodes) for f in found if not f.reason]
    assert chains, [f.reason for f in found]
    chain = max(chains, key=lambda each: len(each.nodes))
    assert chain.nodes == tuple(range(len(model.graph.nodes)))
    return chain


def draw(subgraph: Subgraph) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(*LIMITS[kind.dtype], kind.shape, kind.dtype, endpoint=True) for kind in subgraph.input_types]


def check(found: np.ndarray, exact: np.ndarray, steps: Steps | None) -> None:
    """``exact`` are real numbers. Where they are quantised, only those between two steps may be either of them."""
    if steps is None:
        np.testing.assert_allclose(found, exact, atol=1e-5 * np.abs(exact).max())
        return
    low, high = LIMITS[steps.dtype]
    place = exact / np.float64(np.float32(steps.scale))
    wanted = np.clip(np.rint(place) + steps.zero, low, high)
    between = np.abs(np.abs(place - np.floor(place)) - 0.5) < 1e-3
    off = np.abs(found.astype(int) - wanted)
    assert not off[~between].any(), (off.max(), int((off[~between] > 0).sum()))
    assert off.max() <= 1
    assert np.mean((wanted > low) & (wanted < high)) > 0.2  # the test could see other numbers


def check_all(proto: onnx.ModelProto, steps: Steps | None, threads: int) -> list[Variant]:
    chain = longest(proto)
    inputs = draw(chain)
    *nodes, last = chain.operators
    (exact,) = evaluate(Subgraph(chain.model, tuple(n.id for n in (nodes if steps else [*nodes, last]))), inputs)
    names = [proto.graph.input[chain.model.graph.inputs.index(value)].name for value in chain.inputs]
    (reference,) = reference_run(proto, dict(zip(names, inputs, strict=True)))
    variants = BACKEND.variants(chain, BuildOptions(threads=threads))
    built = []
    for variant in variants:
        plain = Variant((PLAIN,) * len(inputs), (PLAIN,), variant.split)
        try:
            (found,) = run(BACKEND, chain, variant if variant.inputs else plain, threads, inputs)
        except UnsupportedError:
            continue
        built.append(variant)
        check(found, exact, steps)
        if steps is not None:
            different = found != reference
            assert different.mean() < 0.01
            assert np.abs(found.astype(int) - reference.astype(int)).max() <= 1
    assert built
    return built


@needs_exact_sums
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str, threads: int) -> None:
    case = CASES[name]
    variants = check_all(case.model(), case.result, threads)
    assert {*variants[0].inputs, *variants[0].outputs} == {CHANNELS_LAST}
    assert not any(each.precision for each in variants)


def sum_model(left: Steps, right: Steps, result: Steps, then: Sequence[str] = RELU) -> onnx.ModelProto:
    shape = [1, 24, 10, 9]
    numbers = {**left.arrays("x"), **right.arrays("z"), **result.arrays("q")}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_s", "x_z"], ["xf"]),
        helper.make_node("DequantizeLinear", ["z", "z_s", "z_z"], ["zf"]),
        helper.make_node("Add", ["xf", "zf"], ["y0"]),
        *(helper.make_node(op, [f"y{i}"], [f"y{i + 1}"]) for i, op in enumerate(then)),
        helper.make_node("QuantizeLinear", [f"y{len(then)}", "q_s", "q_z"], ["q"]),
    ]
    types = {"x": KINDS[left.dtype], "z": KINDS[right.dtype], "q": KINDS[result.dtype]}
    return make_model(nodes, {"x": shape, "z": shape}, {"q": [None] * 4}, numbers, types=types)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("left", "right", "result", "then"),
    [
        (S8, Steps("uint8", 0.01317), Steps("uint8", 0.03), RELU),
        (Steps("uint8", 0.02, 100), Steps("uint8", 0.05111, 30), Steps("uint8", 0.06, 77), ()),
        (Steps("int8", 0.02, -5), Steps("int8", 0.01231, 7), Steps("int8", 0.03, 2), RELU),
    ],
)
def test_sums(left: Steps, right: Steps, result: Steps, then: Sequence[str], threads: int) -> None:
    variants = check_all(sum_model(left, right, result, then), result, threads)
    assert {each.outputs[0] for each in variants} == {PLAIN, CHANNELS_LAST}


def product_model(
    left: list[int],
    columns: int,
    data: Steps,
    result: Steps | None,
    *,
    turned: bool = False,
    then: Sequence[str] = (),
) -> onnx.ModelProto:
    """A product with a bias; ``turned`` is as in a Gemm whose weights lie transposed."""
    rng = np.random.default_rng(0)
    shape = (columns, left[-1]) if turned else (left[-1], columns)
    numbers: dict[str, Any] = {
        "w": rng.integers(-127, 127, shape, np.int8, endpoint=True),
        **data.arrays("x"),
    }
    scale = rng.uniform(0.5, 1.5, columns) / (127 * np.sqrt(left[-1]))
    numbers |= {"w_s": scale.astype(np.float32), "w_z": np.zeros(columns, np.int8)}
    numbers["b"] = rng.standard_normal(columns).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_s", "x_z"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "w_s", "w_z"], ["wf"], axis=0 if turned else 1),
    ]
    if turned:
        nodes.append(helper.make_node("Gemm", ["xf", "wf", "b"], ["y0"], transB=1))
    else:
        nodes += [
            helper.make_node("MatMul", ["xf", "wf"], ["m"]),
            helper.make_node("Add", ["m", "b"], ["y0"]),
        ]
    nodes += [helper.make_node(op, [f"y{i}"], [f"y{i + 1}"]) for i, op in enumerate(then)]
    last, types = f"y{len(then)}", {"x": KINDS[data.dtype]}
    if result is not None:
        numbers |= result.arrays("q")
        nodes.append(helper.make_node("QuantizeLinear", [last, "q_s", "q_z"], ["q"]))
        last, types["q"] = "q", KINDS[result.dtype]
    return make_model(nodes, {"x": left}, {last: [None] * len(left)}, numbers, types=types)


ZERO = Steps("uint8", 0.02, 131)
PRODUCTS: dict[str, tuple[onnx.ModelProto, Steps | None]] = {
    "few rows": (product_model([3, 64], 96, U8, Steps("uint8", 0.03), then=RELU), Steps("uint8", 0.03)),
    "signed": (product_model([40, 70], 50, S8, S8), S8),
    "with zero points": (
        product_model([17, 128], 200, ZERO, Steps("uint8", 0.03, 120)),
        Steps("uint8", 0.03, 120),
    ),
    "to float": (product_model([33, 64], 48, ZERO, None, then=("Tanh",)), None),
    "one row": (product_model([1, 64], 300, ZERO, S8), S8),
    "transposed": (product_model([9, 64], 40, U8, S8, turned=True), S8),
}


@needs_exact_sums
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, threads: int) -> None:
    proto, steps = PRODUCTS[name]
    check_all(proto, steps, threads)


PADDED_ZERO = Case((1, 16, 9, 8), (24, 16, 3, 2), ZERO, None, attrs={"pads": [2, 0, 1, 1], "strides": [2, 1]})
SHIFTED: dict[str, onnx.ModelProto] = {
    "product, signed": product_model([17, 128], 200, Steps("int8", 0.02, -7), None),
    "product, transposed": product_model([5, 512], 40, ZERO, None, turned=True),
    "3x3, padding": PADDED_ZERO.model(),
    "groups": Case((1, 32, 12, 12), (32, 16, 3, 3), ZERO, None, attrs={"group": 2}).model(),
    "single channels": Case((1, 32, 8, 8), (32, 1, 3, 3), ZERO, None, attrs={**PADDED, "group": 32}).model(),
}


@needs_exact_sums
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", SHIFTED)
def test_data_at_its_zero_point_is_zero(name: str, threads: int) -> None:
    """Nothing but the bias is left then, to the bit, and one step away nothing is lost of what it adds."""
    chain = longest(SHIFTED[name])
    numbers = {tensor.name: numpy_helper.to_array(tensor) for tensor in SHIFTED[name].graph.initializer}
    (kind,) = chain.input_types
    data = np.full(kind.shape, numbers["x_z"], kind.dtype)
    (wanted,) = evaluate(chain, [data])
    step = data.copy()
    step[(slice(None), 0) if len(kind.shape) > 2 else (slice(None), slice(None, 1))] += np.array(1, kind.dtype)
    (one,) = evaluate(chain, [step])
    built = 0
    for variant in BACKEND.variants(chain, BuildOptions(threads=threads)):
        plain = variant if variant.inputs else Variant((PLAIN,), (PLAIN,), variant.split)
        try:
            (found,) = run(BACKEND, chain, plain, threads, [data])
            (near,) = run(BACKEND, chain, plain, threads, [step])
        except UnsupportedError:
            continue
        np.testing.assert_array_equal(found, wanted.astype(np.float32))
        np.testing.assert_allclose(near, one, rtol=1e-6, atol=1e-6 * np.abs(one - wanted).max())
        built += 1
    assert built


def pool_model(data: Steps, result: Steps) -> onnx.ModelProto:
    numbers = {**data.arrays("x"), **result.arrays("q")}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_s", "x_z"], ["xf"]),
        helper.make_node("MaxPool", ["xf"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["y", "q_s", "q_z"], ["q"]),
    ]
    types = {"x": KINDS[data.dtype], "q": KINDS[result.dtype]}
    return make_model(nodes, {"x": [1, 24, 11, 9]}, {"q": [None] * 4}, numbers, types=types)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("steps", [Steps("uint8", 0.0217, 3), Steps("int8", 0.0217)])
def test_maxima(steps: Steps, threads: int) -> None:
    chain = longest(pool_model(steps, steps))
    (x,) = draw(chain)
    (wanted,) = reference_run(pool_model(steps, steps), {"x": x})
    built = set()
    for variant in BACKEND.variants(chain, BuildOptions(threads=threads)):
        try:
            (found,) = run(BACKEND, chain, variant, threads, [x])
        except UnsupportedError:
            continue
        np.testing.assert_array_equal(found, wanted)
        built.add(variant.outputs[0])
    assert CHANNELS_LAST in built


def test_sums_that_would_saturate_are_refused() -> None:
    for proto in (CASES["3x3"].model(), PRODUCTS["signed"][0]):
        found = list(QuantisedRule(exact_sums=False).find(MatchContext(import_model(proto))))
        assert found
        assert all("saturate" in each.reason for each in found)


@needs_exact_sums
def test_sums_that_32_bits_do_not_hold_are_refused() -> None:
    """All weights are 127, and data may be 255: 70,000 products are more than 2 ** 31."""
    for depth, refused in ((64, False), (70_000, True)):
        proto = product_model([2, depth], 16, U8, None, then=("Tanh",))
        for tensor in proto.graph.initializer:
            if tensor.name == "w":
                tensor.raw_data = np.full((depth, 16), 127, np.int8).tobytes()
        model = import_model(proto)
        found = [f for s in BACKEND.sources(BuildOptions()) for f in s.find(MatchContext(model))]
        assert any({0, 1, 2} <= set(each.nodes) and not each.reason for each in found) != refused

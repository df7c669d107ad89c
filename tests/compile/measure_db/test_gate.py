"""Planted kernels that are wrong on few kinds of numbers: each is rejected, or marked as right on ordinary ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.backends.onnxruntime import OnnxRuntime
from collage.check.bound_kernel import KernelSource
from collage.check.input_kinds import KINDS, WHOLE_KINDS, integers
from collage.check.reference import evaluate
from collage.check.samples import Samples
from collage.check.store import ValueStore
from collage.frontend.model import Model, import_model
from collage.frontend.random_inputs import free_integers, random_inputs
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array, TensorType
from collage.graph.magnitudes import INTEGER_LIMIT
from collage.graph.storage import BF16, PLAIN_BF16, from_layout, to_layout
from collage.kernel.kernel import Call, Kernel
from collage.kernel.options import ALL_PLAIN, DYNAMIC_INT8, BuildOptions, Variant
from collage.measure_db.results import Measurement, Outcome, Rejection, RejectionKind
from tests.helpers.measure_db.measured import measured_here
from tests.helpers.models import make_model

Spoil = Callable[[Sequence[Any], Any, int], None]
"""Changes the output, given the inputs and how often the kernel has been called before."""


class Planted(OnnxRuntime):
    """ONNX Runtime, but for what ``spoil`` does to the output."""

    def __init__(self, spoil: Spoil) -> None:
        self.spoil = spoil

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        return _Planted(super().load(artifact, options), self.spoil)


class _Planted(Kernel):
    def __init__(self, kernel: Kernel, spoil: Spoil) -> None:
        self.kernel, self.spoil, self.calls = kernel, spoil, 0

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        call = self.kernel.bind(inputs, outputs)

        def spoiled() -> None:
            call()
            self.spoil(inputs, outputs[0], self.calls)
            self.calls += 1

        return spoiled


def measured(model: onnx.ModelProto | Model, spoil: Spoil, folder: Path, variant: Variant = ALL_PLAIN) -> Outcome:
    imported = model if isinstance(model, Model) else import_model(model)
    folder.mkdir(parents=True, exist_ok=True)
    store = ValueStore(folder / "values")
    evaluate(imported, random_inputs(imported, np.random.default_rng(0)), store)
    subgraph = Subgraph(imported, tuple(range(len(imported.graph.nodes))))
    return measured_here(KernelSource(subgraph, Planted(spoil), BuildOptions(variant=variant)), Samples(store))


def right(inputs: Sequence[Any], output: Any, calls: int) -> None:
    pass


def product(rows: int = 4, columns: int = 32) -> onnx.ModelProto:
    weights = {"w": np.random.default_rng(0).standard_normal((16, columns)).astype(np.float32)}
    return make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [rows, 16]}, {"y": [rows, columns]}, weights
    )


def convolution(batch: int = 1) -> onnx.ModelProto:
    """One of its output channels is a thousandth of the others."""
    w = np.random.default_rng(0).standard_normal((8, 4, 3, 3)).astype(np.float32)
    w[5] /= 1000
    return make_model(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        {"x": [batch, 4, 8, 8]},
        {"y": [batch, 8, 8, 8]},
        {"w": w},
    )


def whole_numbers() -> onnx.ModelProto:
    types = {"x": TensorProto.INT64, "y": TensorProto.INT64}
    nodes = [helper.make_node("Mul", ["x", "k"], ["a"]), helper.make_node("Add", ["a", "b"], ["y"])]
    weights = {"k": np.array(31, np.int64), "b": np.array(7, np.int64)}
    return make_model(nodes, {"x": [4, 64]}, {"y": [4, 64]}, weights, types=types)


def maximum() -> onnx.ModelProto:
    return make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [4, 64]}, {"y": [4, 64]})


@pytest.mark.parametrize("model", [product, convolution, whole_numbers, maximum])
def test_what_is_right_passes(model: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    outcome = measured(model(), right, tmp_path)
    assert isinstance(outcome, Measurement)
    assert not outcome.finite_only
    assert outcome.max_error < 1e-5


def in_32_bits(inputs: Sequence[Any], output: Any, calls: int) -> None:
    output[...] = output.astype(np.int32)


def in_24_bits(inputs: Sequence[Any], output: Any, calls: int) -> None:
    output[...] = output.astype(np.float32)


def small_channel(inputs: Sequence[Any], output: Any, calls: int) -> None:
    output[:, 5] *= 1.01  # 1e-5 of the largest value of the tensor


def without_nan(inputs: Sequence[Any], output: Any, calls: int) -> None:
    np.nan_to_num(output, copy=False, nan=0.0, posinf=np.inf, neginf=-np.inf)


def without_infinity(inputs: Sequence[Any], output: Any, calls: int) -> None:
    np.clip(output, -3e38, 3e38, out=output)


def one_row_in_a_thousand(inputs: Sequence[Any], output: Any, calls: int) -> None:
    output[777] *= 1.001


def third_call(inputs: Sequence[Any], output: Any, calls: int) -> None:
    if calls >= 2:
        output[0] = 1


def odd_batch(inputs: Sequence[Any], output: Any, calls: int) -> None:
    if len(output) % 2:
        output[-1] = output[0]


def neighbours_of_outliers(inputs: Sequence[Any], output: Any, calls: int) -> None:
    """As an algorithm does that adds rows to each other: an error that comes from the largest row is in all rows."""
    output += np.float32(1e-6) * np.abs(inputs[0][np.isfinite(inputs[0])]).max(initial=0)


def loses_small_numbers(inputs: Sequence[Any], output: Any, calls: int) -> None:
    """As fixed-point arithmetic does: with an outlier every other value is zero."""
    largest = np.abs(output[np.isfinite(output)]).max(initial=0)
    output[np.abs(output) < largest * 1e-3] = 0


def rounding() -> onnx.ModelProto:
    return make_model([helper.make_node("Round", ["x"], ["y"])], {"x": [4, 64]}, {"y": [4, 64]})


def halves_up(inputs: Sequence[Any], output: Any, calls: int) -> None:
    """ONNX rounds halves to even numbers."""
    with np.errstate(invalid="ignore"):
        np.floor(inputs[0] + 0.5, out=output)


@pytest.mark.parametrize(
    ("model", "spoil", "says"),
    [
        (rounding, halves_up, "with equal numbers in its inputs"),
        (convolution, small_channel, "of its scale"),
        (lambda: product(rows=1000), one_row_in_a_thousand, "of its scale"),
        (product, third_call, "with NaN in its inputs|with outliers|later"),
        (lambda: convolution(batch=3), odd_batch, "of its scale"),
        (product, neighbours_of_outliers, "with outliers in its inputs"),
        (maximum, loses_small_numbers, "with outliers|of its scale"),
        (whole_numbers, in_24_bits, "with integers of many sizes"),
    ],
)
def test_what_is_wrong_is_rejected(
    model: Callable[[], onnx.ModelProto], spoil: Spoil, says: str, tmp_path: Path
) -> None:
    outcome = measured(model(), spoil, tmp_path)
    assert isinstance(outcome, Rejection), outcome
    assert outcome.kind is RejectionKind.INACCURATE
    assert any(each in outcome.message for each in says.split("|")), outcome.message


@pytest.mark.parametrize(
    ("model", "spoil"),
    [
        (maximum, without_nan),
        (product, without_nan),
        (maximum, without_infinity),
        (whole_numbers, in_32_bits),
    ],
)
def test_what_is_wrong_on_extraordinary_numbers_only_is_marked(
    model: Callable[[], onnx.ModelProto], spoil: Spoil, tmp_path: Path
) -> None:
    outcome = measured(model(), spoil, tmp_path)
    assert isinstance(outcome, Measurement), outcome
    assert outcome.finite_only


@pytest.mark.parametrize("shape", [(8, 1), (1, 1), (1,), (), (2, 1, 1), (3, 2)])
def test_both_infinities_are_tried_where_an_item_has_one_number(shape: tuple[int, ...]) -> None:
    array, found = np.ones(shape, np.float32), set()
    for kind in KINDS:
        changed = None if kind.ordinary else kind.inputs((array,), (False,), np.random.default_rng(0))
        for each in changed or ():
            found.update(each[np.isinf(each)].tolist())
    assert found == {np.inf, -np.inf}


def test_float64_decides_where_the_reference_cancels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """x - mean(x) of values that are all about 1000: ONNX Runtime's float32 is off by as much as the kernel."""
    nodes = [
        helper.make_node("Add", ["x", "k"], ["a"]),
        helper.make_node("ReduceMean", ["a"], ["m"], keepdims=1, axes=[1]),
        helper.make_node("Sub", ["a", "m"], ["s"]),
        helper.make_node("Mul", ["s", "s"], ["y"]),
    ]
    model = make_model(nodes, {"x": [4, 512]}, {"y": [4, 512]}, {"k": np.array(3000, np.float32)}, opset=13)

    def precisely(inputs: Sequence[Any], output: Any, calls: int) -> None:
        shifted = (inputs[0] + np.float32(3000)).astype(np.float64)
        output[...] = (shifted - shifted.mean(1, keepdims=True)) ** 2

    def wrong(inputs: Sequence[Any], output: Any, calls: int) -> None:
        output *= np.float32(1.01)

    assert isinstance(measured(model, precisely, tmp_path / "a"), Measurement)
    assert isinstance(measured(model, wrong, tmp_path / "b"), Rejection)
    monkeypatch.setattr("collage.check.samples.Samples.tolerates", lambda *_: False)
    assert isinstance(measured(model, precisely, tmp_path / "c"), Rejection)


@pytest.mark.parametrize("shape", [[], [1], [4, 1], [64], [4, 64]])
@pytest.mark.parametrize("lost", [0, 1])
def test_nan_of_an_operand_is_not_hidden_by_that_of_another(lost: int, shape: list[int], tmp_path: Path) -> None:
    """Maxima of libraries give the second one of two numbers where one of them is NaN."""
    node = helper.make_node("Max", ["x", "c"], ["y"])
    model = make_model([node], {"x": [4, 64], "c": shape}, {"y": [4, 64]})

    def other_one(inputs: Sequence[Any], output: Any, calls: int) -> None:
        output[...] = np.where(np.isnan(inputs[lost]), inputs[1 - lost], output)

    outcome = measured(model, other_one, tmp_path / "a")
    assert isinstance(outcome, Measurement) and outcome.finite_only
    outcome = measured(model, right, tmp_path / "b")
    assert isinstance(outcome, Measurement) and not outcome.finite_only


def in_bf16(array: Any) -> Any:
    """The array, rounded."""
    return from_layout(to_layout(array, PLAIN_BF16), PLAIN_BF16, TensorType(array.shape, "float32"))


def rounded_product(inputs: Sequence[Any], output: Any, calls: int) -> None:
    """The product of rounded factors."""
    weights = np.random.default_rng(0).standard_normal((16, output.shape[1])).astype(np.float32)
    with np.errstate(all="ignore"):
        output[...] = in_bf16(inputs[0]) @ in_bf16(weights)


def a_tenth_more(inputs: Sequence[Any], output: Any, calls: int) -> None:
    output *= np.float32(1.1)


def test_a_reduced_precision_has_a_bound_of_its_own(tmp_path: Path) -> None:
    reduced = Variant(precision=BF16)
    outcome = measured(product(), rounded_product, tmp_path / "a", reduced)
    assert isinstance(outcome, Measurement), outcome
    assert 1e-4 < outcome.max_error < 2e-2
    assert not outcome.finite_only
    assert isinstance(measured(product(), rounded_product, tmp_path / "b"), Rejection)
    assert isinstance(measured(product(), a_tenth_more, tmp_path / "c", reduced), Rejection)


def far_off_beside_large_numbers(inputs: Sequence[Any], output: Any, calls: int) -> None:
    if np.abs(inputs[0]).max() > 1e3:
        output *= 2


def nan_beside_large_numbers(inputs: Sequence[Any], output: Any, calls: int) -> None:
    if np.abs(inputs[0]).max() > 1e3:
        output[...] = np.nan


def test_an_engine_in_bfloat16_may_decide_otherwise_on_inputs_that_a_network_is_not_made_for(
    tmp_path: Path,
) -> None:
    reduced = Variant(precision=BF16)
    off, nan = far_off_beside_large_numbers, nan_beside_large_numbers
    assert isinstance(measured(product(), off, tmp_path / "a", reduced), Measurement)
    assert isinstance(measured(product(), nan, tmp_path / "b", reduced), Rejection)
    assert isinstance(measured(product(), off, tmp_path / "c", Variant(precision=DYNAMIC_INT8)), Rejection)
    assert isinstance(measured(product(), off, tmp_path / "d"), Rejection)


def test_what_rounding_of_inputs_changes_much_may_be_off(tmp_path: Path) -> None:
    """The cosine of thirty times a rounded number is off by up to 0.2, and by no more."""
    nodes = [helper.make_node("Mul", ["x", "k"], ["a"]), helper.make_node("Cos", ["a"], ["y"])]
    model = make_model(nodes, {"x": [4, 64]}, {"y": [4, 64]}, {"k": np.array(30, np.float32)})

    def of_rounded(inputs: Sequence[Any], output: Any, calls: int) -> None:
        with np.errstate(all="ignore"):
            output[...] = np.cos(np.float32(30) * in_bf16(inputs[0]))

    def of_others(inputs: Sequence[Any], output: Any, calls: int) -> None:
        output *= -1

    reduced = Variant(precision=BF16)
    outcome = measured(model, of_rounded, tmp_path / "a", reduced)
    assert isinstance(outcome, Measurement), outcome
    assert isinstance(measured(model, of_others, tmp_path / "b", reduced), Rejection)


def test_a_division_of_integers_is_checked(tmp_path: Path) -> None:
    """Random divisors are not zero, which would end the process."""
    types = dict.fromkeys("abcy", TensorProto.INT32)
    nodes = [helper.make_node("Add", ["b", "c"], ["s"]), helper.make_node("Div", ["a", "s"], ["y"])]
    shapes = {name: [4, 64] for name in "abc"}
    model = import_model(make_model(nodes, shapes, {"y": [4, 64]}, types=types))
    for seed in range(5):
        _, *divisors = random_inputs(model, np.random.default_rng(seed))
        assert (sum(divisors) > 0).all()
    assert free_integers(model.graph, model.graph.inputs, (0, 1), [False] * 3) == [True, False, False]
    assert isinstance(measured(model, right, tmp_path), Measurement)


def choosing() -> onnx.ModelProto:
    """Rows that choose one of two matrices each, in a loop."""
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["w", "one"], ["matrix"], axis=0),
            helper.make_node("MatMul", ["row", "matrix"], ["made"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("row", TensorProto.FLOAT, [16]),
            helper.make_tensor_value_info("one", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("made", TensorProto.FLOAT, [8])],
    )
    weights = {"w": np.random.default_rng(0).standard_normal((2, 16, 8)).astype(np.float32)}
    nodes = [helper.make_node("Scan", ["x", "c"], ["y"], num_scan_inputs=2, body=body)]
    return make_model(nodes, {"x": [4, 16], "c": [4]}, {"y": [4, 8]}, weights, types={"c": TensorProto.INT64})


def test_a_loop_of_known_length_is_tried_on_nan(tmp_path: Path) -> None:
    """What its body does with integers is not known, so that these stay."""

    def of_finite(inputs: Sequence[Any], output: Any, calls: int) -> None:
        output[...] = np.nan_to_num(output)

    outcome = measured(choosing(), right, tmp_path / "a")
    assert isinstance(outcome, Measurement) and not outcome.finite_only
    outcome = measured(choosing(), of_finite, tmp_path / "b")
    assert isinstance(outcome, Measurement) and outcome.finite_only
    model = import_model(choosing())
    assert free_integers(model.graph, model.graph.inputs, (0,), [False] * 2) == [False, False]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_have_all_sizes_and_signs(dtype: str) -> None:
    rng, info = np.random.default_rng(0), np.iinfo(dtype)
    found = integers((10_000,), dtype, rng)
    assert found.dtype == dtype
    assert found.max() > info.max * 0.97
    if info.min:
        assert info.min < 0 > info.min * 0.97 > found.min()
    if info.bits > 16:
        assert (np.abs(found.astype(np.float64)) < 2**16).mean() > 0.2
        few = integers((10_000,), dtype, rng, INTEGER_LIMIT)
        assert few.max() <= INTEGER_LIMIT
        assert few.max() > INTEGER_LIMIT * 0.97


def test_pictures_of_bytes_use_the_whole_range() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Relu", ["f"], ["y"]),
    ]
    model = make_model(nodes, {"x": [1, 3, 16, 16]}, {"y": [1, 3, 16, 16]}, types={"x": TensorProto.UINT8})
    (picture,) = random_inputs(import_model(model), np.random.default_rng(0))
    assert picture.min() < 5
    assert picture.max() > 250


@pytest.mark.parametrize("kind", WHOLE_KINDS, ids=lambda kind: kind.name)
def test_kinds_of_inputs_change_one_item_and_leave_shapes_alone(kind: Any) -> None:
    rng = np.random.default_rng(0)
    floats = rng.standard_normal((3, 4, 5, 5)).astype(np.float32)
    whole = rng.integers(0, 2, (3, 8))
    if kind.smaller:
        assert kind.inputs((floats, floats, whole), (True, True, True), rng) is None
        _, *changed = kind.inputs((np.ones(999, np.float32), floats, whole, whole), (True, True, True, False), rng)
    else:
        changed = kind.inputs((floats, whole, whole), (True, True, False), rng)
    for before, after in zip((floats, whole, whole), changed, strict=True):
        assert (before.shape, before.dtype) == (after.shape, after.dtype)
    assert np.array_equal(changed[2], whole)
    assert np.array_equal(changed[0], floats) == kind.of_integers
    assert np.array_equal(changed[1], whole) == (not kind.of_integers)
    if not kind.of_integers:
        assert np.isfinite(changed[0]).all() == kind.ordinary
    if kind.name in ("NaN", "infinities", "outliers") or kind.smaller:
        assert np.array_equal(changed[0][1:], floats[1:])
    if kind.name == "equal numbers":
        assert set(np.unique(changed[0] * 2 % 2)) == {0, 1}
        small = kind.inputs((floats * np.float32(1e-4),), (False,), rng)[0]
        assert 4 < len(np.unique(small)) < 40
    assert kind.inputs((whole,), (False,), rng) is None

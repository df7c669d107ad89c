"""Experts whose weights are stored in fewer bits: what the kernels round, what is offered, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from collage.backends.base import UnsupportedError
from collage.backends.chains.int8_weights import quantised
from collage.backends.native_kernels.gemm import COLUMNS, orders_of, words
from collage.backends.native_kernels.streamed import WIDENED
from collage.backends.native_kernels.widened_experts import Bf16Experts, Int8Experts
from collage.core.typed import MalformedError
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import BF16, INT8
from collage.kernel.buffers import aligned_array
from collage.kernel.options import BuildOptions, Variant
from collage.native import TaskError
from tests.backends.native_checks import BACKEND, filled, kernel_of, needs_native, run_variant, untouched
from tests.compile.backends.test_native_int8 import rounded_weights
from tests.slow.backends.test_native_experts import data, matrices, mixture, only

pytestmark = needs_native

KINDS = {BF16: Bf16Experts(), INT8: Int8Experts()}
SPLIT = {each: Variant(split=words(COLUMNS, WIDENED), precision=each) for each in KINDS}


def with_weights(weights: np.ndarray, rows: int) -> Subgraph:
    """Products of so many rows with these matrices."""
    count, depth, columns = weights.shape
    model = mixture(count, rows, depth, columns)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights, "w"))
    return only(model)


def of(weights: np.ndarray, x: np.ndarray, choice: Sequence[int], threads: int = 2) -> np.ndarray:
    """The products in 8 bits."""
    inputs = [x, np.array(choice, np.int64)]
    variant = SPLIT[INT8] if threads > 1 else Variant(split=WIDENED, precision=INT8)
    (found,) = run_variant(with_weights(weights, len(x)), variant, threads, inputs)
    return found


def test_they_are_offered_where_their_precision_is_allowed() -> None:
    subgraph = only(mixture(4, 3))
    for threads, splits in ((1, {""}), (2, {COLUMNS, ""})):
        plain = BACKEND.variants(subgraph, BuildOptions(threads=threads))
        assert not any(each.precision for each in plain)
        for precision in KINDS:
            build = BuildOptions(threads=threads, precisions=frozenset({precision}))
            found = BACKEND.variants(subgraph, build)
            assert [each for each in found if not each.precision] == list(plain)
            reduced = {each for each in found if each.precision}
            assert reduced == {
                Variant(split=words(split, WIDENED, order), precision=precision)
                for split in splits
                for order in orders_of(1)
            }


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 37, 770])
def test_each_weight_is_off_by_half_a_step_at_most(depth: int) -> None:
    """The error of a sum is that of its weights, whose steps are a 127th of the largest one of their column."""
    choice = [2, 0, 2, 1, 1, 2]
    x, weights = data(6, depth), matrices(3, depth, 50)
    exact = np.stack([row.astype(np.float64) @ weights[c] for row, c in zip(x, choice, strict=True)])
    steps = np.abs(weights).max(1)[choice] / 127
    allowed = np.abs(x).sum(1, keepdims=True) * steps / 2
    off = np.abs(of(weights, x, choice) - exact)
    assert (off <= allowed + 1e-5 * depth).all()
    assert depth == 1 or off.max() > 1e-3  # so they were rounded


def test_every_column_of_every_expert_has_a_factor() -> None:
    """Columns of very different magnitudes are as exact as they would be alone."""
    sizes = 10.0 ** np.random.default_rng(3).integers(-20, 10, (3, 1, 45))
    weights = (matrices(3, 64, 45) * sizes).astype(np.float32)
    choice, x = [1, 0, 2, 1], data(4, 64)
    wanted = np.stack(
        [row @ rounded_weights(weights[c]) for row, c in zip(x.astype(float), choice, strict=True)]
    )
    scale = np.abs(weights).max(1)[choice]
    np.testing.assert_allclose(of(weights, x, choice) / scale, wanted / scale, rtol=0, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_columns_of_zeros_are_zeros(threads: int) -> None:
    weights = matrices(3, 38, 70)
    weights[1, :, ::3] = 0
    weights[2] = 0
    found = of(weights, data(4, 38), [1, 2, 0, -2], threads)
    assert not found[[0, 3]][:, ::3].any()
    assert found[[0, 3]][:, 1::3].all()
    assert not found[1].any()
    assert found[2].all()


@pytest.mark.parametrize("precision", KINDS)
@pytest.mark.parametrize("depth", [36, 37])
def test_odd_rows_keep_to_themselves(precision: str, depth: int) -> None:
    """A row with NaN has only that, one with infinity no number. Row 1, which is filled up, does not see the next."""
    x = data(6, depth)
    x[2, 0], x[4, 5] = np.nan, np.inf
    choice = np.array([0, 2, 0, 1, 1, 0], np.int64)
    (found,) = run_variant(only(mixture(3, 6, depth)), SPLIT[precision], 2, [x, choice])
    assert np.isnan(found[2]).all()
    assert not np.isfinite(found[4]).any()
    assert np.isfinite(found[[0, 1, 3, 5]]).all()


@pytest.mark.parametrize("precision", KINDS)
def test_experts_that_nobody_chooses_are_left_alone(precision: str) -> None:
    """NaN in the place of their weights and factors would show in the results."""
    subgraph, algorithm = only(mixture(6, 5)), KINDS[precision]
    build = BuildOptions(threads=2, variant=SPLIT[precision])
    packed = algorithm.pack(algorithm.task(subgraph), build)
    left = [0, 2, 3, 5]
    x, choice = filled(data(5)), filled(np.array([4, 1, 1, -2, 4], np.int64))
    made = []
    for spoilt in (False, True):
        if spoilt:
            for array in packed.arrays.values():
                array[left] = np.nan
        arrays = {name: filled(array) for name, array in packed.arrays.items()}
        result = filled(np.full((5, 90), np.nan, np.float32))
        algorithm.load(replace(packed, arrays=arrays), 2).bind([x, choice], [result])()
        assert untouched(result)
        made.append(result)
    assert np.isfinite(made[0]).all()
    np.testing.assert_array_equal(*made)


@pytest.mark.parametrize("precision", KINDS)
@pytest.mark.parametrize(("depth", "columns"), [(2100, 96), (2102, 100), (2099, 37)])
def test_a_row_is_the_same_however_many_there_are(precision: str, depth: int, columns: int) -> None:
    x, found = data(100, depth), {}
    for rows in (1, 2, 3, 5, 9, 70, 100):
        choice = np.arange(rows) * 7 % 10 % 3
        inputs = [x[:rows], choice.astype(np.int64)]
        (found[rows],) = run_variant(only(mixture(3, rows, depth, columns)), SPLIT[precision], 2, inputs)
    for rows, y in found.items():
        np.testing.assert_array_equal(y, found[100][:rows])


@pytest.mark.parametrize("precision", KINDS)
@pytest.mark.parametrize("wrong", [4, -5, 1 << 40, -(1 << 63)])
def test_an_expert_that_is_not_there_is_an_error(precision: str, wrong: int) -> None:
    """Nothing is written then."""
    subgraph = only(mixture(4, 20))
    inputs = [aligned_array(kind) for kind in subgraph.input_types]
    outputs = [aligned_array(kind) for kind in subgraph.output_types]
    inputs[0][...], inputs[1][...], outputs[0][...] = data(20), 1, np.nan
    inputs[1][13] = wrong
    with pytest.raises(TaskError, match="an index is out of range"):
        kernel_of(subgraph, SPLIT[precision], 2).bind(inputs, outputs)()
    assert np.isnan(outputs[0]).all()


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_odd_weights_are_refused(odd: float) -> None:
    """Even those of an expert whom nobody may choose: which one that is tells only a run."""
    weights = matrices(3, 20, 40)
    weights[2, 7, 11] = odd
    with pytest.raises(UnsupportedError, match="NaN or infinities among the weights"):
        BACKEND.codegen(with_weights(weights, 2), BuildOptions(threads=2, variant=SPLIT[INT8]))


def test_columns_that_processes_divide_are_the_same() -> None:
    """A column's factor is its own, so a process that has a half of each expert's columns computes that half."""
    choice, x, weights = [1, 3, 3, 0], data(4, 128), matrices(4, 128, 192)
    halves = [of(np.ascontiguousarray(each), x, choice) for each in np.split(weights, 2, axis=2)]
    np.testing.assert_array_equal(np.concatenate(halves, axis=1), of(weights, x, choice))


def test_weights_are_packed_for_any_number_of_rows_in_the_same_way() -> None:
    """So the buckets of a decoder share them."""
    for precision, algorithm in KINDS.items():
        build = BuildOptions(threads=2, variant=SPLIT[precision])
        few, many = (algorithm.pack(algorithm.task(only(mixture(4, rows))), build) for rows in (1, 300))
        for name, array in few.arrays.items():
            np.testing.assert_array_equal(array.view(np.uint32), many.arrays[name].view(np.uint32))


def test_weights_lie_as_they_are_read() -> None:
    task = Int8Experts().task(only(mixture(3, 2, 6, 20)))
    packed = Int8Experts().pack(task, BuildOptions(variant=Variant(split=WIDENED, precision=INT8)))
    assert packed.arrays["weights"].shape == (3, 2 * 32)
    lines = packed.arrays["weights"][2].view(np.int8).reshape(2, 32, 4)
    steps, scales = quantised(task.weights[2])
    np.testing.assert_array_equal(lines[0, :20, 3], steps[3])
    np.testing.assert_array_equal(lines[1, :20, 1], steps[5])
    assert not lines[1, :, 2:].any()
    assert not lines[:, 20:].any()
    np.testing.assert_array_equal(packed.arrays["scales"][2], np.pad(scales, (0, 12)))


def test_a_quarter_and_a_half_of_the_bytes() -> None:
    subgraph = only(mixture(4, 3, 256, 256))
    variants = (Variant(split=COLUMNS), SPLIT[BF16], SPLIT[INT8])
    sizes = [len(BACKEND.codegen(subgraph, BuildOptions(threads=2, variant=each))) for each in variants]
    assert 0.5 * sizes[0] < sizes[1] < 0.51 * sizes[0]
    assert 0.25 * sizes[0] < sizes[2] < 0.26 * sizes[0]


def test_numbers_that_do_not_fit_are_refused() -> None:
    for precision, algorithm in KINDS.items():
        build = BuildOptions(threads=2, variant=SPLIT[precision])
        packed = algorithm.pack(algorithm.task(only(mixture(4, 20))), build)
        wrongs: list[dict[str, Any]] = [
            *({name: 0} for name in ("rows", "depth", "columns", "experts", "row_chunk", "shares")),
            *({"experts": 5}, {"depth": 41}, {"columns": 97}, {"in_order": 2}, {"row_chunk": 1 << 62}),
        ]
        for wrong in wrongs:
            with pytest.raises(MalformedError):
                algorithm.load(replace(packed, numbers={**packed.numbers, **wrong}), 2)
        for name, array in packed.arrays.items():
            with pytest.raises(MalformedError, match=name):
                algorithm.load(replace(packed, arrays={**packed.arrays, name: array.ravel()[:-1]}), 2)

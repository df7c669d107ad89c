"""Storages and their formats: texts that stay, and values that come back as they were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.graph.dataflow import TensorType
from collage.graph.formats import Blocked, Narrow
from collage.graph.storage import (
    BF16,
    BF16_STORAGES,
    BLOCKED,
    CHANNELS_LAST,
    FORMATS,
    PLAIN,
    PLAIN_BF16,
    STORAGES,
    STORED_INT8,
    Storage,
    from_layout,
    is_narrow,
    parse_storage,
    steps_of,
    stored_in_steps,
    stored_type,
    to_layout,
    widened,
)
from collage.kernel.options import Variant
from collage.kernel.transform import FormatKernel, LayoutTransform, read_transform, transform_artifact
from tests.helpers.storage_formats import COLUMNS, DEVICE, DEVICE_COLUMNS

KIND = TensorType((1, 20, 3, 2), "float32")
KNOWN = (*FORMATS, COLUMNS.format)
BLOCKS_OF_8 = Storage(format=Blocked("blocked-8", 8))

shapes = st.tuples(st.integers(1, 3), st.integers(1, 20), st.lists(st.integers(1, 4), max_size=3)).map(
    lambda drawn: (*drawn[:2], *drawn[2])
)


def test_texts_that_databases_and_files_have() -> None:
    assert [str(each) for each in STORAGES] == ["plain", "channels-last", "blocked"]
    assert [str(each) for each in BF16_STORAGES] == ["plain-bf16", "channels-last-bf16", "blocked-bf16"]
    assert [str(each) for each in (COLUMNS, DEVICE_COLUMNS)] == ["column-major", "npu:column-major"]
    assert str(Variant((PLAIN_BF16,), (BLOCKED,), "rows", BF16)) == "plain-bf16 -> blocked; rows; bf16"
    assert repr(Variant(split="rows")) == "Variant(inputs=(), outputs=(), split='rows')"
    assert str(Variant((PLAIN, BLOCKED), (BLOCKED,), "rows")) == "plain, blocked -> blocked; rows"
    transform = LayoutTransform(KIND, PLAIN, BLOCKED)
    assert str(transform) == "plain -> blocked of float32[1x20x3x2]"
    assert transform_artifact(transform) == b'[[1, 20, 3, 2], "float32", "plain", "blocked"]'


@pytest.mark.parametrize("name", ["", "npu, cpu", "NPU", "npu:"])
def test_names_of_devices(name: str) -> None:
    with pytest.raises(ValueError, match="no device is called"):
        Storage(name)


@pytest.mark.parametrize("storage", [*STORAGES, *BF16_STORAGES, COLUMNS, DEVICE, DEVICE_COLUMNS, Storage("cuda:1")])
def test_texts_are_read_back(storage: Storage) -> None:
    assert parse_storage(str(storage), KNOWN) == storage
    transform = LayoutTransform(KIND, storage, BLOCKED)
    assert read_transform(transform_artifact(transform), KNOWN) == transform


@settings(deadline=None)
@given(shapes, st.sampled_from([*STORAGES, COLUMNS, DEVICE, BLOCKS_OF_8]))
def test_values_come_back(shape: tuple[int, ...], storage: Storage) -> None:
    kind = TensorType(shape, "float32")
    if storage.format.problem(kind):
        with pytest.raises(ValueError, match=f"no {storage} layout for float32"):
            stored_type(kind, storage)
        return
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    stored = to_layout(array, storage)
    assert stored.flags.c_contiguous
    assert TensorType(stored.shape, stored.dtype.name) == stored_type(kind, storage)
    np.testing.assert_array_equal(from_layout(stored, storage, kind), array)
    assert np.count_nonzero(stored) == np.count_nonzero(array)  # what pads it is zero


def test_the_transform_of_any_formats() -> None:
    array = np.arange(120, dtype=np.float32).reshape(KIND.shape)
    kernel = FormatKernel(LayoutTransform(KIND, CHANNELS_LAST, BLOCKS_OF_8))
    given = np.full((1, 3, 3, 2, 8), np.nan, np.float32)
    kernel.bind([to_layout(array, CHANNELS_LAST)], [given])()
    np.testing.assert_array_equal(given, to_layout(array, BLOCKS_OF_8))
    with pytest.raises(ValueError, match="takes or gives"):
        kernel.bind([array], [given])
    with pytest.raises(ValueError, match="no column-major layout"):
        FormatKernel(LayoutTransform(KIND, PLAIN, COLUMNS))


def rounded_to_bf16(
    array: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Finite numbers rounded to 8 significant bits, to the nearest and of two to the even one, in float64."""
    wide = array.astype(np.float64)
    _, exponent = np.frexp(wide)
    unit = np.exp2(np.maximum(exponent, -125) - 8.0)  # numbers below 2**-126 have the unit of denormals
    return np.asarray(np.rint(wide / unit) * unit)


@settings(deadline=None)
@given(shapes, st.sampled_from(BF16_STORAGES), st.integers(-130, 110))
def test_narrow_values_are_rounded_to_the_nearest(shape: tuple[int, ...], storage: Storage, exponent: int) -> None:
    kind = TensorType(shape, "float32")
    if storage.format.problem(kind):
        return
    rng = np.random.default_rng(abs(exponent))
    array = np.ldexp(rng.standard_normal(shape), exponent).astype(np.float32)
    array.reshape(-1)[::3] = np.ldexp(np.float32(257), exponent)  # between two, of which 256 is the even one
    stored = to_layout(array, storage)
    assert stored.flags.c_contiguous
    assert TensorType(stored.shape, stored.dtype.name) == stored_type(kind, storage)
    found = from_layout(stored, storage, kind)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, rounded_to_bf16(array))
    assert isinstance(storage.format, Narrow)
    np.testing.assert_array_equal(to_layout(found, storage), stored)


def test_special_values_in_narrow_storages() -> None:
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 3.4e38, -3.4e38, 1e-45, 3e-39], np.float32)
    found = from_layout(to_layout(values, PLAIN_BF16), PLAIN_BF16, TensorType((8,), "float32"))
    expected = [np.nan, np.inf, -np.inf, 0.0, np.inf, -np.inf, 0.0]
    np.testing.assert_array_equal(found[:7], expected)
    assert np.signbit(found[3])
    assert abs(found[7] / 3e-39 - 1) < 0.02


@pytest.mark.parametrize("order", [PLAIN, CHANNELS_LAST], ids=str)
@pytest.mark.parametrize("signed", [True, False])
def test_steps_of_8_bits(order: Storage, signed: bool) -> None:
    """The name says all of the storage, and the family leaves out the scale, which belongs to one value."""
    storage = stored_in_steps(order, signed, 0.1)
    assert parse_storage(str(storage), FORMATS) == storage
    assert str(storage) == f"{order}-{'s8' if signed else 'u8'}-3dcccccd"
    assert widened(storage) == order
    assert is_narrow(storage)
    steps = steps_of(storage)
    assert steps is not None
    assert steps.precision == STORED_INT8
    assert stored_type(KIND, storage).dtype == ("int8" if signed else "uint8")
    assert storage != stored_in_steps(order, signed, 0.2)
    assert steps_of(order) is None


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan, 1e-42, 1e39])
def test_scales_without_an_inverse_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="steps of"):
        stored_in_steps(PLAIN, False, scale)


@pytest.mark.parametrize("name", ["plain-u8-00000000", "plain-u8-7fc00000", "plain-u8-bf800000", "plain-u8-1"])
def test_damaged_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"steps of|no storage format"):
        parse_storage(name, FORMATS)

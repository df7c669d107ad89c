"""Storages in steps of 8 bits, whose scales belong to values."""

from __future__ import annotations

import numpy as np
import pytest

from collage.graph.dataflow import TensorType
from collage.graph.ranges import Range
from collage.graph.storage import (
    BLOCKED,
    CHANNELS_LAST,
    FORMATS,
    PLAIN,
    STORED_INT8,
    is_narrow,
    parse_storage,
    steps_of,
    stored_in_steps,
    stored_type,
    widened,
)

KIND = TensorType((2, 3, 4, 5), "float32")


@pytest.mark.parametrize("wide", [PLAIN, CHANNELS_LAST], ids=str)
@pytest.mark.parametrize("signed", [True, False])
def test_names_tell_all_of_a_storage(wide: object, signed: bool) -> None:
    assert wide in (PLAIN, CHANNELS_LAST)
    order = PLAIN if wide == PLAIN else CHANNELS_LAST
    storage = stored_in_steps(order, signed, 0.1)
    assert parse_storage(str(storage), FORMATS) == storage
    assert storage.family == f"{order}-{'s8' if signed else 'u8'}"
    assert str(storage) == f"{storage.family}-3dcccccd"
    assert widened(storage) == order
    assert is_narrow(storage)
    steps = steps_of(storage)
    assert steps is not None
    assert steps.precision == STORED_INT8
    assert stored_type(KIND, storage).dtype == ("int8" if signed else "uint8")
    assert storage != stored_in_steps(order, signed, 0.2)
    assert steps_of(order) is None
    assert order.family == str(order)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan, 1e-42, 1e39])
def test_scales_without_an_inverse_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="steps of"):
        stored_in_steps(PLAIN, False, scale)


@pytest.mark.parametrize(
    "name", ["plain-u8-00000000", "plain-u8-7fc00000", "plain-u8-bf800000", "plain-u8-1"]
)
def test_damaged_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"steps of|no storage format"):
        parse_storage(name, FORMATS)


def test_a_range_of_nothing_has_no_storage() -> None:
    assert Range(0.0, 0.0).storage(PLAIN) is None
    assert Range(-1.0, 0.0).storage(PLAIN) is not None
    assert Range(-1, 2).joined(Range(0, 3)) == Range(-1, 3)
    assert BLOCKED.family == "blocked"

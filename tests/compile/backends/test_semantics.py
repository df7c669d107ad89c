"""A sample of operators on special values: no backend's integers differ from ONNX
Runtime's, and its floats only on NaN and infinities, for operators that are known for it.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")

import collage
from collage.backends.registry import builtin_registry
from tests.helpers.semantics.cases import all_cases, name_of
from tests.helpers.semantics.run import Cell, try_case

CASES = {name_of(each): each for each in all_cases()}

EXACT = "onnxruntime tvm".split()
"""Backends that have NaN and infinities as ONNX Runtime has them, but for these operators."""
NARROW = "openvino"
"""It computes integers in 32 bits, or compares them in 24, and float64 in 32. Checks of its kernels show that."""
WINDOWS = ("MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin")
"""Where ONNX Runtime's own answer depends on where the NaN is."""

KNOWN: dict[str, list[Cell]] = {}

FLOATS = [
    "Relu18--(float32;2x3x67)",
    "Sign18--(float32;2x3x67)",
    "Clip18-clip-(float32,c;2x3x4,)",
    "Max18--(float32,float32;3x37,37)",
    "Softmax18--axis=-1(float32;2x3x67)",
    "ThresholdedRelu18--alpha=0.3(float32;2x3x67)",
    "ReduceMin18--keepdims=0(float32,c;2x3x4,1)",
    "ArgMax18--axis=-1-keepdims=0(float32;2x3x67)",
    "ArgMin18--axis=1-keepdims=0-select_last_index=0(float64;4x3x5x7)",
    "Mul18--(float64,float64;3x37,37)",
    "CumSum18--exclusive=1-reverse=1(float32,c;2x3x4,)",
]
INTEGERS = [
    "Mul18--(int64,int64;3x37,37)",
    "Add18--(uint8,uint8;3x37,37)",
    "Div18--(int32,int32;3x37,37)",
    "Mod18--(int64,c;3x37,)",
    "Greater18--(uint64,uint64;3x37,37)",
    "ReduceSum18--keepdims=0(int64,c;4x3x5x7,1)",
    "ReduceMax18--keepdims=0(int32,c;4x3x5x7,1)",
    "CumSum18--(int64,c;4x3x5x7,)",
    "Transpose18--(int64;4x3x5x7)",
    "Concat18--axis=0(uint16,uint16;3x37,3x37)",
    "Cast18--to=7(uint32;3x37)",
    "Cast18--to=1(int64;3x37)",
]


@pytest.fixture(scope="module")
def backends() -> dict[str, collage.Backend]:
    registry = builtin_registry(with_entry_points=False)
    return {name: registry[name] for name, found in registry.availability().items() if found}


def cells(name: str, backends: dict[str, collage.Backend]) -> list[Cell]:
    with np.errstate(all="ignore"):
        found = list(try_case(CASES[name], backends))
    assert any(cell.status == "same" for cell in found), found
    return found


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str, backends: dict[str, collage.Backend]) -> None:
    for backend in backends:
        mine = [cell for cell in cells_of(name, backends) if cell.backend == backend]
        wrong = [cell for cell in mine if cell.status == "wrong" and cell.kind != "denormals"]
        narrowed = backend == NARROW and "float64" in name
        assert narrowed or all(cell.kind in ("NaN", "infinities") for cell in wrong), wrong
        assert not wrong or backend not in EXACT or CASES[name].op in WINDOWS, wrong


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str, backends: dict[str, collage.Backend]) -> None:
    wrong = [cell for cell in cells_of(name, backends) if cell.status == "wrong"]
    assert {cell.backend for cell in wrong} <= {NARROW}, wrong


def cells_of(name: str, backends: dict[str, collage.Backend]) -> list[Cell]:
    """Each case is tried once."""
    if name not in KNOWN:
        KNOWN[name] = cells(name, backends)
    return KNOWN[name]

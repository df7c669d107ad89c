"""Tensors of PyTorch as inputs, and outputs as tensors."""

from __future__ import annotations

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from collage.errors import InputError
from collage.graph.dataflow import np_dtype
from collage.graph.torch_tensors import array_over, tensor_of
from collage.graph.value_type import STRING, TENSOR, ValueType
from collage.module.torch_outputs import as_tensors, holds_tensor
from collage.runtime.inputs import collect_inputs
from collage.schedule.suffix import ValuePort

torch = pytest.importorskip("torch")

DTYPES = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int8 uint8 uint32 bool complex64".split()


@pytest.mark.parametrize("name", DTYPES)
def test_the_same_memory(name: str) -> None:
    tensor = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 1.0]]).to(getattr(torch, name))
    for each in (tensor, tensor.t(), tensor[:, ::2], tensor[1, 0], tensor[:0]):
        array = array_over(each)
        assert array.dtype == np_dtype(name) and array.shape == tuple(each.shape)
        assert not array.size or array.ctypes.data == each.data_ptr()
        again = tensor_of(np.ascontiguousarray(array).reshape(array.shape))
        assert again.dtype == each.dtype
        assert torch.equal(again.to(torch.complex64), each.to(torch.complex64))


def test_tensors_that_are_refused() -> None:
    port = ValuePort("x", ValueType(TENSOR, "float32", (2,)))

    def refused(value: Any) -> str:
        with pytest.raises(InputError) as error:
            collect_inputs([port], [value], {})
        return str(error.value)

    weight = torch.ones(2, requires_grad=True)
    assert "input x requires grad, and a compiled module gives no gradients: call it in torch.no_grad()" in refused(
        weight
    )
    with torch.no_grad():
        assert collect_inputs([port], [weight], {})[0].tolist() == [1, 1]
    assert "input x is on meta" in refused(torch.ones(2, device="meta"))
    assert "input x is a sparse_coo tensor: give a dense one" in refused(torch.ones(2).to_sparse())
    assert "convert it with .to(torch.float32)" in refused(torch.ones(2, dtype=torch.float64))
    assert "convert it with .astype('float32')" in refused(np.ones(2))


def test_which_calls_have_tensors() -> None:
    tensor, array = torch.ones(2), np.ones(2)
    assert holds_tensor([array, tensor], {}) and holds_tensor([], {"x": tensor}) and holds_tensor([{"x": tensor}], {})
    assert holds_tensor([[tensor, tensor]], {})
    assert not (holds_tensor([array, [1.0, 2.0], None], {"x": [[1]]}) or holds_tensor([], {}))


def test_outputs_of_all_kinds() -> None:
    texts = np.array(["a"], object)
    frozen = np.ones(2, np.float32)
    frozen.flags.writeable = False
    values = [np.ones(2, np.float32), np.float32(3), frozen, [np.ones(1, np.int64)], texts, None, [{0: 0.5}]]
    found = as_tensors(values)
    assert [type(each) for each in found[:3]] == [torch.Tensor] * 3
    assert found[1].shape == () and found[0].data_ptr() == values[0].ctypes.data  # type: ignore[union-attr]
    assert torch.equal(found[3][0], torch.ones(1, dtype=torch.int64))
    assert found[4] is texts and found[5] is None and found[6] == [{0: 0.5}]
    assert ValueType(TENSOR, STRING).check(texts) is texts


def test_tensors_of_arrays_from_another_process() -> None:
    """numpy does not count the dtypes of unpickled arrays as its own."""
    for dtype in (np.float32, np.int64, ml_dtypes.bfloat16):
        array = pickle.loads(pickle.dumps(np.arange(6).astype(dtype)))
        found = tensor_of(array)
        np.testing.assert_array_equal(array_over(found), array)

"""Tensors of PyTorch and arrays: the same memory, on the host or on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.graph import torch_tensors
from collage.graph.dataflow import Array, np_dtype
from collage.kernel.device_array import on_device

__all__ = ["array_of", "tensor_of", "tensor_on", "torch_dtype"]


def torch_dtype(dtype: np.dtype[Any]) -> Any:
    """PyTorch's dtype of that name. Raises UnsupportedError if it has none."""
    try:
        return torch_tensors.torch_dtype(dtype)
    except TypeError as error:
        raise UnsupportedError(str(error)) from error


def tensor_of(array: Array) -> Any:
    """The tensor on the CPU that shares the array's memory. Raises UnsupportedError for a dtype that PyTorch lacks."""
    torch_dtype(array.dtype)
    return torch_tensors.tensor_of(array)


def tensor_on(array: Array) -> Any:
    """The tensor that shares the array's memory, on the host or on the GPU."""
    import torch

    if not on_device(array):
        return tensor_of(array)
    found = torch_dtype(array.dtype)
    if not array.nbytes:
        return torch.empty(array.shape, dtype=found, device="cuda")
    odd = torch_tensors.is_odd(array.dtype)
    kind = np.dtype(torch_tensors.SAME_SIZE[array.dtype.itemsize]) if odd else array.dtype
    tensor = torch.as_tensor(_OnDevice(array, kind), device="cuda")
    return tensor.view(found) if odd else tensor


class _OnDevice:
    """An array of the GPU by the interface that libraries for it share. It keeps the memory."""

    def __init__(self, array: Array, dtype: np.dtype[Any]) -> None:
        self._keep = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": dtype.str,
            "data": (int(array.ctypes.data), False),
            "strides": None,
            "version": 3,
        }


def array_of(tensor: Any) -> Array:
    """A new array of the host with the tensor's values."""
    import torch

    here = tensor.detach().cpu().contiguous()
    if here.dtype == torch.bfloat16:
        rounded: Array = here.view(torch.int16).numpy().view(np_dtype("bfloat16")).copy()
        return rounded
    copied: Array = here.numpy().copy()
    return copied

"""Tensors of PyTorch and arrays on the same memory.

Only who has PyTorch has tensors, so nothing here imports it but ``tensor_of``, for callers who have some.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from collage.graph.dataflow import Array, np_dtype

SAME_SIZE = {1: "int8", 2: "int16"}
"""Integers of the size of a dtype that only ml_dtypes has."""


def is_tensor(value: Any) -> bool:
    """Whether the value is a tensor of PyTorch."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def array_over(tensor: Any) -> Array:
    """The array on the memory of a tensor of the CPU.

    Raises TypeError for other tensors, and for one that asks for gradients while PyTorch records them. The message
    continues a sentence about the tensor.
    """
    torch = sys.modules["torch"]
    if tensor.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            "requires grad, and a compiled module gives no gradients: call it in torch.no_grad(), or give its detach()"
        )
    if tensor.device.type != "cpu":
        raise TypeError(f"is on {tensor.device}, and inputs are read on the CPU: give its cpu()")
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise TypeError(f"is a {kind} tensor: give a dense one")
    plain = tensor.detach().resolve_conj().resolve_neg()
    dtype = np_dtype(str(plain.dtype).removeprefix("torch."))
    if not is_odd(dtype):
        found: Array = plain.numpy()
        return found
    viewed: Array = plain.view(getattr(torch, SAME_SIZE[dtype.itemsize])).numpy().view(dtype)
    return viewed


def is_odd(dtype: np.dtype[Any]) -> bool:
    """Whether only ml_dtypes has the dtype, so that PyTorch takes and gives no arrays of it."""
    return dtype.isbuiltin == 2  # 0 for numpy's own that were unpickled


def torch_dtype(dtype: np.dtype[Any]) -> Any:
    """PyTorch's dtype of that name. Raises TypeError if it has none."""
    import torch

    found = getattr(torch, dtype.name, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"PyTorch has no {dtype.name}")
    return found


def tensor_of(array: Array) -> Any:
    """The tensor on the CPU that shares the array's memory. Raises TypeError for a dtype that PyTorch lacks."""
    import torch

    found = torch_dtype(array.dtype)
    if not is_odd(array.dtype):
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(SAME_SIZE[array.dtype.itemsize])).view(found)

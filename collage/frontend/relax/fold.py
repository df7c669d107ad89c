"""Folding of operators on constants, with numpy.

TVM's pass FoldConstant compiles a kernel for each of them. It takes 10 to 40 s for the weight transposes of a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from collage.graph.dataflow import Array, Attr, TensorType, np_dtype

_Attrs = Mapping[str, Attr]
_Folder = Callable[[list[Any], _Attrs, TensorType], Any]


def _to_shape(args: list[Any], attrs: _Attrs, out: TensorType) -> Any:
    return args[0].reshape(out.shape)


def _permute(args: list[Any], attrs: _Attrs, out: TensorType) -> Any:
    return np.transpose(args[0], None if attrs["axes"] is None else _ints(attrs["axes"]))


def _ints(value: Attr) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(each for each in value if isinstance(each, int))


def _take(args: list[Any], attrs: _Attrs, out: TensorType) -> Any:
    axis = attrs["axis"]
    return np.take(args[0], args[1], axis=axis if isinstance(axis, int) else None, mode="wrap")


def _elementwise(function: Callable[..., Any]) -> _Folder:
    return lambda args, attrs, out: function(*args)


_FOLDERS: Mapping[str, _Folder] = {
    "reshape": _to_shape,
    "flatten": _to_shape,
    "squeeze": _to_shape,
    "expand_dims": _to_shape,
    "permute_dims": _permute,
    "broadcast_to": lambda args, attrs, out: np.broadcast_to(args[0], out.shape),
    "astype": lambda args, attrs, out: args[0].astype(np_dtype(out.dtype)),
    "concat": lambda args, attrs, out: np.concatenate(args, _ints((attrs["axis"],))[0]),
    "add": _elementwise(np.add),
    "subtract": _elementwise(np.subtract),
    "multiply": _elementwise(np.multiply),
    "divide": _elementwise(np.divide),
    "negative": _elementwise(np.negative),
    "sqrt": _elementwise(np.sqrt),
    "exp": _elementwise(np.exp),
    "take": _take,
    "less": _elementwise(np.less),
    "where": _elementwise(np.where),
    "shape_to_tensor": lambda args, attrs, out: np.array(attrs["arg0"], dtype=np.int64),
    "full": lambda args, attrs, out: np.full(out.shape, args[0]),
    "zeros": lambda args, attrs, out: np.zeros(out.shape, np_dtype(out.dtype)),
    "ones": lambda args, attrs, out: np.ones(out.shape, np_dtype(out.dtype)),
}


def fold(op: str, args: list[Array], attrs: _Attrs, out: TensorType) -> Array | None:
    """The operator's value on constant arguments, or None for an operator that is not folded.

    A result of another dtype than Relax's is not used, since numpy divides and promotes integers differently.
    """
    folder = _FOLDERS.get(op)
    if folder is None or (op == "divide" and not np.issubdtype(np_dtype(out.dtype), np.floating)):
        return None
    with np.errstate(all="ignore"):
        result = np.ascontiguousarray(folder(list(args), attrs, out)).reshape(out.shape)
    return result if result.dtype == np_dtype(out.dtype) else None

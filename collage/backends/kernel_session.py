"""Sessions of engines that take whole models as kernels only, with all shapes known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from collage.frontend.read.shapes import model_inputs
from collage.frontend.read.value_types import value_type
from collage.graph.dataflow import Array, np_dtype
from collage.kernel.device_array import empty_on, put, to_host
from collage.kernel.kernel import Kernel, Session


class KernelSession(Session):
    """A kernel of a whole model, with arrays of its own for inputs and outputs where the engine stores them."""

    def __init__(self, model: onnx.ModelProto, kernel: Kernel, device: str) -> None:
        """The device is where the kernel's values are. Raises UnsupportedError for shapes that are not known."""
        self._inputs = [_array(info, device) for info in model_inputs(model)]
        self._outputs = [_array(info, device) for info in model.graph.output]
        self._kernel = kernel
        self._call = kernel.bind(self._inputs, self._outputs)

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Outputs in order, as arrays that belong to the caller."""
        for array, given in zip(self._inputs, inputs, strict=True):
            put(array, np.ascontiguousarray(given))
        self._call()
        return [np.array(to_host(array)) for array in self._outputs]


def _array(info: onnx.ValueInfoProto, device: str) -> Array:
    from collage.backends.base import UnsupportedError

    kind = value_type(info.type)
    if kind.shape is None or None in kind.shape:
        raise UnsupportedError(f"{info.name} has no fixed shape, and the engine takes no other")
    shape = tuple(extent or 0 for extent in kind.shape)
    return empty_on(device, shape, np_dtype(kind.dtype))

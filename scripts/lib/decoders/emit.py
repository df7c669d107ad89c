"""Emitting ONNX nodes and seeded weights, with weights in a file beside the model where they are large."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

_INLINE_BYTES = 1024


class Emitter:
    """Collects the nodes and initialisers of one graph. Weights go to ``beside`` where it is given."""

    def __init__(self, seed: int, beside: Path | None = None) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initialisers: list[onnx.TensorProto] = []
        self.scope = ""
        self._random = np.random.default_rng(seed)
        self._beside = beside
        self._names: dict[str, int] = {}
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], str] = {}
        if beside is not None:
            beside.write_bytes(b"")

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one output, and return the output's name."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node of several outputs, and return their names."""
        name = self._fresh(f"{self.scope}/{kind}")
        made = [f"{name}_output_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), made, name=name, **attributes))
        return made

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """The name of a small constant; equal ones are one."""
        array = np.asarray(value, dtype)
        key = str(array.dtype), array.tobytes(), array.shape
        if key not in self._constants:
            self._constants[key] = self._fresh("constant")
            self.initialisers.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def number(self, value: Any) -> str:
        """The name of a small constant in float32."""
        return self.constant(value, np.float32)

    def unsqueeze(self, x: str, axis: int) -> str:
        """The value with one more axis."""
        return self.op("Unsqueeze", x, self.constant([axis]))

    def reshape(self, x: str, sizes: Sequence[int]) -> str:
        """The value in other sizes."""
        return self.op("Reshape", x, self.constant(sizes))

    def weight(self, name: str, *shape: int, scale: float = 1.0, mean: float = 0.0) -> str:
        """A seeded normal weight of that standard deviation."""
        values = self._random.standard_normal(shape, np.float32) * np.float32(scale) + np.float32(mean)
        return self.array(f"{self.scope}.{name}".strip("."), values)

    def array(self, name: str, values: npt.NDArray[Any]) -> str:
        """An initialiser with these values."""
        dtype = helper.np_dtype_to_tensor_dtype(values.dtype)
        tensor = TensorProto(name=name, dims=values.shape, data_type=dtype)
        if self._beside is None or values.nbytes <= _INLINE_BYTES:
            tensor.raw_data = values.tobytes()
        else:
            with open(self._beside, "ab") as stream:
                start = stream.tell()
                stream.write(values.tobytes())
            tensor.data_location = TensorProto.EXTERNAL
            where = {"location": self._beside.name, "offset": start, "length": values.nbytes}
            for key, value in where.items():
                tensor.external_data.add(key=key, value=str(value))
        self.initialisers.append(tensor)
        return name

    def _fresh(self, name: str) -> str:
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return f"{name}_{count}" if count else name

"""Inputs and outputs that are bound to a session before it runs, as ONNX Runtime has them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.errors import InputError, UsageError, unknown_names
from collage.frontend.messages import DTYPES
from collage.graph.dataflow import Array, np_dtype

_ELEMENTS = {number: name for number, name in DTYPES.items() if name != "string"} | {16: "bfloat16"}
"""The dtypes by their numbers in ``onnx.TensorProto``."""


@dataclass(frozen=True)
class HostValue:
    """An output that ONNX Runtime makes no ``OrtValue`` of, with the same methods: texts, lists and bfloat16."""

    value: Any

    def numpy(self) -> Any:
        """The array, or the list."""
        return self.value

    def shape(self) -> list[int]:
        """The extents of the array."""
        return [*np.shape(self.value)]

    def device_name(self) -> str:
        """The device."""
        return "cpu"

    def is_tensor(self) -> bool:
        """Whether it is an array."""
        return isinstance(self.value, np.ndarray)


def given_value(value: Any) -> Any:
    """An input of a session as a module takes it: the array of an ``OrtValue``, and other values as they are."""
    if isinstance(value, HostValue):
        return value.value
    if type(value).__name__ != "OrtValue":
        return value
    if not value.is_tensor():
        raise InputError("an OrtValue is no tensor: give a list of arrays for a sequence.")
    return value.numpy()


class IOBinding:
    """The bound inputs and outputs of a session; ``session.io_binding()`` makes it.

    An input that is bound is read when the session runs, so that it may be filled again for each run. Everything is in
    the memory of the host: other devices are refused by UsageError.
    """

    def __init__(
        self, run: Callable[[Mapping[str, Any]], dict[str, Any]], inputs: Sequence[str], outputs: Sequence[str]
    ) -> None:
        """``run`` gives outputs by name for inputs by name, which have the names ``inputs`` and ``outputs``."""
        self._run = run
        self._names = (*inputs,), (*outputs,)
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        self._results: dict[str, Any] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an array, or anything with DLPack."""
        self._inputs[self._known("input", name)] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Bind an ``OrtValue``, or an array."""
        self._inputs[self._known("input", name)] = ortvalue

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind memory of the host at an address. It has to be there while the session runs.

        ``element_type`` is a dtype of numpy's, or a number of ``onnx.TensorProto``.
        """
        _refuse_device(device_type)
        self._inputs[self._known("input", name)] = _at(buffer_ptr, element_type, shape)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output, in memory at an address if there is one. Raises UsageError for another device."""
        _refuse_device(device_type)
        if buffer_ptr is not None and (element_type is None or shape is None):
            raise UsageError("an output with a buffer_ptr needs element_type and shape, too.")
        self._outputs[self._known("output", name)] = (
            None if buffer_ptr is None else _at(buffer_ptr, element_type, shape or ())
        )

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Ask for an output in an ``OrtValue``, or in an array."""
        self._outputs[self._known("output", name)] = ortvalue

    def synchronize_inputs(self) -> None:
        """Return, since inputs are read when the session runs."""

    def synchronize_outputs(self) -> None:
        """Return, since outputs are there when the session has run."""

    def clear_binding_inputs(self) -> None:
        """Forget the bound inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the bound outputs, and their values."""
        self._outputs.clear()
        self._results.clear()

    def run(self) -> None:
        """Run the session on the bound inputs. Raises InputError, and UsageError if no output is bound."""
        if not self._outputs:
            raise UsageError("no output is bound: call bind_output for each output that you want.")
        made = self._run({name: given_value(each) for name, each in self._inputs.items()})
        self._results = {name: _stored(name, made[name], place) for name, place in self._outputs.items()}

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the last run in the order in which they were bound, as arrays that belong to the caller."""
        return [
            np.array(value) if isinstance(value, np.ndarray) else given_value(value) for value in self._results.values()
        ]

    def get_outputs(self) -> list[Any]:
        """The outputs of the last run in the order in which they were bound, as ``OrtValue`` or ``HostValue``."""
        return [_as_ort_value(each) for each in self._results.values()]

    def _known(self, what: str, name: str) -> str:
        names = self._names[what == "output"]
        if name not in names:
            raise InputError(str(unknown_names(what, [name], names)))
        return name


def _refuse_device(device_type: str) -> None:
    if device_type.lower() != "cpu":
        raise UsageError(f"inputs and outputs are bound in the memory of the host: give cpu, not {device_type}.")


def _at(address: int, element_type: Any, shape: Sequence[int]) -> Array:
    """The array of the memory at an address."""
    if isinstance(element_type, int):
        if element_type not in _ELEMENTS:
            raise UsageError(f"there is no binding of elements of type {element_type}.")
        kind = np_dtype(_ELEMENTS[element_type])
    else:
        kind = np.dtype(element_type)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    raw: Array = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    return raw.view(kind).reshape(shape)


def _stored(name: str, value: Any, place: Any) -> Any:
    """The output, in its place if it has one. Raises InputError for a place that it does not fit."""
    if place is None:
        return value
    is_array = isinstance(place, np.ndarray)
    shape = tuple(place.shape) if is_array else tuple(place.shape())
    kind = place.dtype if is_array else given_value(place).dtype
    if (shape, kind) != (value.shape, value.dtype):
        raise InputError(
            f"the output {name} is {value.dtype} of shape {value.shape}, and it is bound to {kind} of shape {shape}."
        )
    if is_array:
        np.copyto(place, value)
    else:
        place.update_inplace(np.ascontiguousarray(value))
    return place


def _as_ort_value(value: Any) -> Any:
    from onnxruntime import OrtValue

    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value))
    return value if hasattr(value, "device_name") else HostValue(value)

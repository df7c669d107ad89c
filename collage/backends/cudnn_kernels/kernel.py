"""A graph on the GPU: its plan and constants are there once, and it is bound to buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from collage.backends.cudnn_kernels.artifact import CudnnArtifact
from collage.backends.cudnn_kernels.enums import Attribute, Kind, Type
from collage.backends.cudnn_kernels.graph import CONSTANT, INPUT, OUTPUT, SCALAR, Tensor
from collage.backends.cudnn_kernels.library import Descriptor, call, handle
from collage.backends.cudnn_kernels.plans import load_plan
from collage.graph.dataflow import Array, np_dtype
from collage.graph.storage import CUDA
from collage.kernel.device_array import copy_on, empty_on, on_device
from collage.kernel.device_call import DeviceCall
from collage.kernel.kernel import Call, Kernel

__all__ = ["CudnnKernel"]


class CudnnKernel(Kernel):
    """One graph, which runs in one call."""

    own_threads = True  # the driver's, and its context

    def __init__(self, artifact: CudnnArtifact) -> None:
        """Load the plan, and copy the constants to the GPU. Raises CudnnError, CudaError and CudaMemoryError."""
        self.artifact = artifact
        self.plan = load_plan(artifact.plan)
        self.constants = [copy_on(CUDA, each) for each in artifact.constants]
        self.scalars = {at: ctypes.c_float(each.value) for at, each in artifact.graph.of(SCALAR)}

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """Bind the arrays as ``Kernel.bind`` says. Raises ValueError for others."""
        artifact = self.artifact
        if len(inputs) != artifact.inputs or len(outputs) != 1:
            raise ValueError(f"a graph of {artifact.inputs} inputs and one output has {len(inputs)}")
        places = {at: ctypes.addressof(each) for at, each in self.scalars.items()}
        for role, arrays in ((INPUT, inputs), (OUTPUT, outputs), (CONSTANT, self.constants)):
            for at, tensor in artifact.graph.of(role):
                places[at] = _address(arrays[tensor.place], tensor)
        return _Run(self, places, (inputs, outputs))


def _address(array: Array, tensor: Tensor) -> int:
    if array.dtype != np_dtype(tensor.dtype) or array.size != tensor.elements or not on_device(array):
        raise ValueError(f"an operand is {tensor.dtype}{list(tensor.shape)} on the GPU")
    return int(array.ctypes.data)


class _Run(DeviceCall):
    def __init__(self, kernel: CudnnKernel, places: dict[int, int], keep: Any) -> None:
        """``places`` are the addresses of tensors by their positions, and ``keep`` are the arrays there."""
        self._keep = kernel, keep
        self._plan = kernel.plan.address
        self._workspace = empty_on(CUDA, (max(1, kernel.artifact.workspace_bytes),), "uint8")
        self._pack = Descriptor(Kind.VARIANT_PACK)
        identities = [at + 1 for at in places]
        self._pack.set(Attribute.VARIANT_PACK_UNIQUE_IDS, Type.INT64, *identities)
        self._pack.set(Attribute.VARIANT_PACK_DATA_POINTERS, Type.VOID_PTR, *places.values())
        room = int(self._workspace.ctypes.data)
        self._pack.set(Attribute.VARIANT_PACK_WORKSPACE, Type.VOID_PTR, room)
        self._pack.finalize()

    def enqueue(self, stream: int) -> None:
        call("cudnnSetStream", handle(), stream)
        call("cudnnBackendExecute", handle(), self._plan, self._pack.address)

"""A product on the GPU: its descriptors and constants are there once, and it is bound to buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from collage.backends.cublas_kernels.artifact import CublasArtifact
from collage.backends.cublas_kernels.library import Handles, check_product, handle, library
from collage.graph.dataflow import Array, np_dtype
from collage.graph.storage import CUDA
from collage.kernel.device_array import copy_on, empty_on, on_device
from collage.kernel.device_call import DeviceCall
from collage.kernel.kernel import Call, Kernel

__all__ = ["CublasKernel"]


class CublasKernel(Kernel):
    """One product, in one call or a few."""

    own_threads = True  # the driver's, and its context

    def __init__(self, artifact: CublasArtifact) -> None:
        """Make its descriptors, and copy its constants to the GPU.

        Raises CublasError, CudaError and CudaMemoryError.
        """
        self.artifact = artifact
        self.handles = Handles(artifact.description)
        self.weights = None if artifact.weights is None else copy_on(CUDA, artifact.weights)
        self.bias = None if artifact.bias is None else copy_on(CUDA, artifact.bias)
        if self.bias is not None:
            self.handles.set_bias(int(self.bias.ctypes.data))
        self.algorithm = ctypes.create_string_buffer(artifact.algorithm, len(artifact.algorithm))

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """Bind the arrays as ``Kernel.bind`` says. Raises ValueError for others."""
        artifact, places = self.artifact, self.artifact.operands
        dtype, needs = np_dtype(artifact.description.dtype), artifact.description.needs()
        if len(inputs) != places.inputs or len(outputs) != 1:
            raise ValueError(f"a product of {places.inputs} inputs has {len(inputs)}")
        right = self.weights if places.right is None else inputs[places.right]
        residual = outputs[0] if places.residual is None else inputs[places.residual]
        assert right is not None
        operands = right, inputs[places.left], residual, outputs[0]
        for array, needed in zip(operands, (*needs[:2], needs[2], needs[2]), strict=True):
            if array.dtype != dtype or array.size < needed or not on_device(array):
                raise ValueError(f"an operand is {array.dtype} of {array.size} elements, not {needed} on the GPU")
        return _Product(self, operands)


class _Product(DeviceCall):
    def __init__(self, kernel: CublasKernel, operands: tuple[Array, Array, Array, Array]) -> None:
        """``operands`` are A, B, C and D."""
        artifact = kernel.artifact
        description, handles = artifact.description, kernel.handles
        self._workspace = empty_on(CUDA, (max(1, artifact.workspace_bytes),), "uint8")
        self._alpha, self._beta = ctypes.c_float(description.alpha), ctypes.c_float(description.residual)
        self._keep = kernel, operands
        self._matmul = library().cublasLtMatmul
        size = operands[0].itemsize
        a, b, c, d = (int(each.ctypes.data) for each in operands)
        layout_a, layout_b, layout_d = handles.layouts
        self._calls = [
            (
                *(handle(), handles.operation, ctypes.addressof(self._alpha)),
                *(a + size * at_a, layout_a, b + size * at_b, layout_b, ctypes.addressof(self._beta)),
                *(c + size * at_d, layout_d, d + size * at_d, layout_d, ctypes.addressof(kernel.algorithm)),
                *(int(self._workspace.ctypes.data), artifact.workspace_bytes),
            )
            for at_a, at_b, at_d in description.starts
        ]

    def enqueue(self, stream: int) -> None:
        for each in self._calls:
            check_product(self._matmul(*each, stream))

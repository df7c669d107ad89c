"""A convolution on the GPU: its descriptors and constants are there once, and it is bound to buffers."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from collage.backends.cudnn_kernels.artifact import CudnnArtifact
from collage.backends.cudnn_kernels.library import Handles, call, handle
from collage.graph.dataflow import Array
from collage.graph.storage import CUDA
from collage.kernel.device_array import copy_on, empty_on, on_device
from collage.kernel.device_call import DeviceCall
from collage.kernel.kernel import Call, Kernel

__all__ = ["CudnnKernel"]


class CudnnKernel(Kernel):
    """One convolution and what follows it, in one call or in up to three."""

    own_threads = True  # the driver's, and its context

    def __init__(self, artifact: CudnnArtifact) -> None:
        """Make its descriptors, and copy its constants to the GPU.

        Raises CudnnError, CudaError and CudaMemoryError.
        """
        self.artifact = artifact
        self.handles = Handles(artifact.description)
        self.weights = copy_on(CUDA, artifact.weights)
        bias = artifact.bias
        if bias is None and artifact.description.fused:
            bias = np.zeros(
                artifact.description.result[1], np.float32
            )  # the fused call has no way to do without
        self.bias = None if bias is None else copy_on(CUDA, bias)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """Bind the arrays as ``Kernel.bind`` says. Raises ValueError for others."""
        artifact = self.artifact
        if len(inputs) != artifact.inputs or len(outputs) != 1:
            raise ValueError(f"a convolution of {artifact.inputs} inputs has {len(inputs)}")
        description = artifact.description
        residual = outputs[0] if artifact.residual is None else inputs[artifact.residual]
        wanted = description.source, description.result, description.result
        arrays = inputs[artifact.data], residual, outputs[0]
        for array, shape in zip(arrays, wanted, strict=True):
            if array.dtype != np.float32 or array.size != math.prod(shape) or not on_device(array):
                raise ValueError(f"an operand is float32{list(shape)} on the GPU")
        return _Convolution(self, arrays)


class _Convolution(DeviceCall):
    def __init__(self, kernel: CudnnKernel, arrays: tuple[Array, Array, Array]) -> None:
        """``arrays`` are the data, the residual and the result."""
        self._kernel, self._arrays = kernel, arrays
        artifact, handles = kernel.artifact, kernel.handles
        self._workspace = empty_on(CUDA, (max(1, artifact.workspace_bytes),), "uint8")
        data, residual, result = (int(each.ctypes.data) for each in arrays)
        weights = int(kernel.weights.ctypes.data)
        bias = 0 if kernel.bias is None else int(kernel.bias.ctypes.data)
        one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
        about = handles.convolution, ctypes.c_int(artifact.algorithm)
        room = int(self._workspace.ctypes.data), ctypes.c_size_t(artifact.workspace_bytes)
        description = artifact.description
        steps: list[tuple[Any, ...]] = []
        if description.fused:
            ends = handles.data, data, handles.filter, weights
            added = one if description.residual else zero, handles.made, residual, handles.bias, bias
            made = handles.activation, handles.made, result
            steps.append(("cudnnConvolutionBiasActivationForward", one, *ends, *about, *room, *added, *made))
        elif description.transposed:
            ends = handles.filter, weights, handles.made, data
            made_at = zero, handles.data, result
            steps.append(("cudnnConvolutionBackwardData", one, *ends, *about, *room, *made_at))
        else:
            ends = handles.data, data, handles.filter, weights
            steps.append(("cudnnConvolutionForward", one, *ends, *about, *room, zero, handles.made, result))
        if not description.fused:
            if description.bias:
                steps.append(("cudnnAddTensor", one, handles.bias, bias, one, handles.result, result))
            if description.relu:
                taken = handles.activation, one, handles.result, result
                steps.append(("cudnnActivationForward", *taken, zero, handles.result, result))
        self._steps = steps

    def enqueue(self, stream: int) -> None:
        call("cudnnSetStream", handle(), stream)
        for name, *arguments in self._steps:
            call(name, handle(), *arguments)

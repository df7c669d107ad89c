"""Compiled kernels on the GPU: their machine code and constants are loaded once, and bound to buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collage.backends.cuda import refuse_other_gpu
from collage.backends.cuda_kernels.launch import Prepared, StreamLaunches, load_code
from collage.backends.tvm_codegen.artifact import TensorSpec
from collage.backends.tvm_cuda_codegen.artifact import CudaArtifact
from collage.graph.dataflow import Array
from collage.graph.storage import CUDA
from collage.kernel.device_array import empty_on, on_device, put
from collage.kernel.kernel import Call, Kernel

__all__ = ["LoadedCudaKernel"]


class LoadedCudaKernel(Kernel):
    """Functions that are launched one after another on buffers in the GPU's memory."""

    own_threads = True  # the driver's, and its context

    def __init__(self, artifact: CudaArtifact) -> None:
        """Load code and constants on the GPU.

        Raises UnsupportedError for another GPU's code, CudaError and CudaMemoryError.
        """
        refuse_other_gpu(artifact.architecture)
        self._artifact = artifact
        self._codes = [load_code(each) for each in artifact.cubins]
        self._functions = [self._codes[each.cubin].function(each.function) for each in artifact.launches]
        self._constants = []
        for constant in artifact.constants:
            self._constants.append(empty_on(CUDA, constant.shape, constant.dtype))
            put(self._constants[-1], constant)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """Bind the arrays as ``Kernel.bind`` says. Raises ValueError for others."""
        _check("input", inputs, self._artifact.params)
        _check("output", outputs, self._artifact.outputs)
        buffers: Mapping[str, Sequence[Array]] = {
            "param": inputs,
            "output": outputs,
            "intermediate": [empty_on(CUDA, each.shape, each.dtype) for each in self._artifact.intermediates],
            "constant": self._constants,
        }
        prepared = [
            Prepared(
                self._codes[launch.cubin],
                function,
                launch.grid,
                launch.block,
                tuple(int(buffers[slot.kind][slot.index].ctypes.data) for slot in launch.args),
            )
            for launch, function in zip(self._artifact.launches, self._functions, strict=True)
        ]
        return StreamLaunches(prepared, (self, buffers))


def _check(what: str, arrays: Sequence[Array], specs: Sequence[TensorSpec]) -> None:
    if len(arrays) != len(specs):
        raise ValueError(f"it has {len(specs)} {what}s, not {len(arrays)}")
    for array, spec in zip(arrays, specs, strict=True):
        if array.shape != spec.shape or array.dtype.name != spec.dtype or not on_device(array):
            raise ValueError(f"its {what} is {spec.dtype}{list(spec.shape)} on the GPU")

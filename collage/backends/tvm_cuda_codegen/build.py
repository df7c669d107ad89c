"""The way of lowered PrimFuncs to bytes for an NVIDIA GPU: they are scheduled, made CUDA C++, and compiled."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from collage.backends.tvm_codegen.artifact import BufferSlot, TensorSpec, TvmCall
from collage.backends.tvm_codegen.lower import LoweredKernel, LoweringError, first_line
from collage.backends.tvm_cuda_codegen.artifact import CudaArtifact, Launch, pack
from collage.backends.tvm_cuda_codegen.nvrtc import compile_cubin
from collage.backends.tvm_cuda_codegen.schedule import cuda_target, schedules
from collage.backends.tvm_cuda_codegen.source import CudaSource, cuda_source

__all__ = ["compile_kernel", "launches_of", "sources_of"]

logger = logging.getLogger(__name__)


def compile_kernel(lowered: LoweredKernel, architecture: str) -> bytes:
    """Schedule and compile for the GPUs of an architecture such as ``sm_90``. No GPU is needed.

    Raises LoweringError for what TVM makes no code for, NvrtcError for code that does not compile, and UnsupportedError
    where NVRTC is not installed.
    """
    sources = sources_of(lowered, architecture)
    launches, between = launches_of(lowered, sources)
    return pack(
        CudaArtifact(
            architecture,
            launches,
            lowered.params,
            lowered.outputs,
            between,
            lowered.constants,
            tuple(compile_cubin(each.text, architecture) for each in sources),
        )
    )


def sources_of(lowered: LoweredKernel, architecture: str) -> list[CudaSource]:
    """The source of each call, in order, by a rule. Raises LoweringError."""
    target = cuda_target(architecture)
    return [_source(lowered.funcs[call.name], call.name, target) for call in lowered.calls]


def _source(func: Any, name: str, target: Any) -> CudaSource:
    """The source by the first schedule that code can be generated for."""
    problem = "no rule schedules it"
    for found in schedules(func, target):
        try:
            return cuda_source(found, name, target)
        except (RuntimeError, ValueError, TypeError) as error:
            problem = first_line(error)
            logger.debug("%s: no code for a schedule: %s", name, problem)
    raise LoweringError(f"TVM makes no CUDA code: {problem}")


def launches_of(
    lowered: LoweredKernel, sources: Sequence[CudaSource]
) -> tuple[tuple[Launch, ...], tuple[TensorSpec, ...]]:
    """The launches of all sources in order, and the buffers between them."""
    launches: list[Launch] = []
    between = list(lowered.intermediates)
    for number, (call, source) in enumerate(zip(lowered.calls, sources, strict=True)):
        args = _arguments(call, source, len(between))
        between += source.between
        launches += [
            Launch(number, each.name, each.grid, each.block, tuple(args[at] for at in each.takes))
            for each in source.kernels
        ]
    return tuple(launches), tuple(between)


def _arguments(call: TvmCall, source: CudaSource, first: int) -> list[BufferSlot]:
    """What each parameter of the call's PrimFunc is; those that lie between kernels are counted from ``first``."""
    return [*call.args, *(BufferSlot("intermediate", first + each) for each in range(len(source.between)))]

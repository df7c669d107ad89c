"""The engines for GPUs, told to compute on the CPU: the same code, without streams and graphs of CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Any

from collage.backends.base import Availability
from collage.backends.onnxruntime_cuda import OnnxRuntimeCuda
from collage.backends.torch_cuda import TorchCuda
from collage.graph.storage import HOST
from collage.kernel.options import BuildOptions


class TorchOnCpu(TorchCuda):
    """PyTorch on the CPU, with its compiler in its usual mode, which takes seconds."""

    name = "torch_on_cpu"
    device = HOST
    runs_on = HOST
    mode = "default"

    def available(self) -> Availability:
        return Availability(metadata.version("torch"))

    def patience_s(self, profile: str) -> float:
        return 120.0


class OnnxRuntimeOnCpu(OnnxRuntimeCuda):
    """ONNX Runtime's provider for CPUs, bound as that for GPUs is."""

    name = "onnxruntime_on_cpu"
    device = HOST
    provider = "CPUExecutionProvider"
    memory = HOST

    def available(self) -> Availability:
        return Availability(metadata.version("onnxruntime"))

    def profiles(self, options: BuildOptions) -> Sequence[str]:
        return ("",)

    def providers(self, options: BuildOptions, stream: int) -> list[Any]:
        assert not stream
        return [self.provider]

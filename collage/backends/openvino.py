"""OpenVINO as a graph engine: a subgraph becomes a compiled model bound to preallocated buffers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

from collage.backends.base import (
    Availability,
    Backend,
    BackendKind,
    BuildOptions,
    Call,
    Kernel,
    UnsupportedError,
)
from collage.backends.onnxruntime import onnx_artifact
from collage.graph.dataflow import Array

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph
    from collage.patterns.match import MatchSource


class OpenVino(Backend):
    """Takes what OpenVINO's ONNX frontend takes, in float32 arithmetic throughout."""

    name = "openvino"
    kind = BackendKind.ENGINE

    def available(self) -> Availability:
        """Whether the wheel is installed; it is not imported yet."""
        try:
            return Availability(version=metadata.version("openvino"))
        except metadata.PackageNotFoundError:
            return Availability(reason="not installed: pip install 'collage[cpu]'")

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """Single operators, fused chains, whole ONNX nodes of the standard domain, and windows."""
        from collage.patterns.regions import EngineRule, OnnxNodeRule, WindowRule

        return (EngineRule(), OnnxNodeRule(_standard_domain), WindowRule())

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """The subgraph as a serialised ONNX model."""
        return onnx_artifact(subgraph)

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        """Compile the artifact for this machine (20-50 ms for one operator)."""
        import openvino as ov

        config = {
            "INFERENCE_NUM_THREADS": options.threads,
            "PERFORMANCE_HINT": "LATENCY",
            # Without this a CPU with bfloat16 arithmetic would quietly compute in bfloat16.
            "INFERENCE_PRECISION_HINT": "f32",
        }
        core = ov.Core()
        return _CompiledKernel(core.compile_model(core.read_model(artifact), "CPU", config))


class _CompiledKernel(Kernel):
    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        import openvino as ov

        request = self._compiled.create_infer_request()
        for index, (port, array) in enumerate(zip(self._compiled.inputs, inputs, strict=True)):
            _check_port("input", port, array)
            request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))
        for index, (port, array) in enumerate(zip(self._compiled.outputs, outputs, strict=True)):
            _check_port("output", port, array)
            request.set_output_tensor(index, ov.Tensor(array, shared_memory=True))

        # 8 us of overhead; start_async + wait costs 19. Without share_outputs every output would be copied.
        return partial(request.infer, share_inputs=True, share_outputs=True)


def _check_port(what: str, port: Any, array: Array) -> None:
    shape = port.get_partial_shape()
    if not shape.is_static or tuple(shape.to_shape()) != array.shape:
        raise UnsupportedError(f"OpenVINO gives {what} {port.any_name} the shape {shape}, not {array.shape}")
    if port.get_element_type().to_dtype() != array.dtype:
        raise UnsupportedError(
            f"OpenVINO gives {what} {port.any_name} the type {port.get_element_type()}, not {array.dtype}"
        )


def _standard_domain(domain: str, op_type: str) -> bool | str:
    return True if domain in ("", "ai.onnx") else f"OpenVINO does not know the operator domain {domain}"

"""ONNX Runtime and OpenVINO as ONNX backends, each as its users run a model, to compare Collage with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep


class _Prepared(BackendRep):
    def __init__(self, run: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        self._run = run

    def run(self, inputs: Sequence[Any], **kwargs: Any) -> tuple[Any, ...]:
        return tuple(self._run(inputs))


class OnnxRuntime(Backend):
    """Runs a model in a session with default options."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        return _Prepared(lambda inputs: session.run(None, dict(zip(names, inputs, strict=True))))


class OpenVino(OnnxRuntime):
    """Runs a model that is compiled for the CPU with float32 arithmetic."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        import openvino as ov

        core = ov.Core()
        config = {"INFERENCE_PRECISION_HINT": "f32"}
        compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", config)

        def run(inputs: Sequence[Any]) -> list[Any]:
            results = compiled.create_infer_request().infer(dict(enumerate(inputs)))
            return [np.array(results[port]) for port in compiled.outputs]

        return _Prepared(run)

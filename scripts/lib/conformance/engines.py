"""ONNX Runtime and OpenVINO as ONNX backends, each as its users run a model, to compare Collage with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep


class _CpuBackend(Backend):
    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


class _Session(BackendRep):
    def __init__(self, session: Any) -> None:
        self._session = session

    def run(self, inputs: Sequence[Any], **kwargs: Any) -> tuple[Any, ...]:
        names = [each.name for each in self._session.get_inputs()]
        return tuple(self._session.run(None, dict(zip(names, inputs, strict=True))))


class OnnxRuntime(_CpuBackend):
    """Runs a model in a session with default options."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        return _Session(
            ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        )


class _Compiled(BackendRep):
    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def run(self, inputs: Sequence[Any], **kwargs: Any) -> tuple[Any, ...]:
        results = self._compiled.create_infer_request().infer(dict(enumerate(inputs)))
        return tuple(np.array(results[port]) for port in self._compiled.outputs)


class OpenVino(_CpuBackend):
    """Runs a model that is compiled for the CPU with float32 arithmetic."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        import openvino as ov

        core = ov.Core()
        config = {"INFERENCE_PRECISION_HINT": "f32"}
        return _Compiled(core.compile_model(core.read_model(model.SerializeToString()), "CPU", config))

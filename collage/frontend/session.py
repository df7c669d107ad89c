"""ONNX Runtime as the reference: a model as its author wrote it, without optimisations."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
import onnxruntime as ort

from collage.frontend.simplify import save_proto


def reference_session(model: onnx.ModelProto) -> ort.InferenceSession:
    """A session on the model with all graph optimisations off."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with tempfile.TemporaryDirectory(prefix="collage-") as folder:
        path = Path(folder) / "model.onnx"
        save_proto(model, path)
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

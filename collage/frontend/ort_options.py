"""What all sessions of ONNX Runtime have in common."""

from __future__ import annotations

import onnxruntime as ort


def session_options() -> ort.SessionOptions:
    """Options of a session that prints nothing."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return options

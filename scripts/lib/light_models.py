"""The `light_*` model-zoo networks that the onnx package carries for its own tests."""

from __future__ import annotations

from pathlib import Path

import onnx

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

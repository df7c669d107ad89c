"""The `light_*` model-zoo networks that the onnx package carries for its own tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def reference_run(path: Path) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Inputs, and the outputs beside the network; the input is a ramp from 0 to 1, as in onnx's own test runner."""
    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    (info,) = [each for each in model.graph.input if each.name not in weights]
    shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
    size = int(np.prod(shape))
    ramp = (np.arange(size).reshape(shape) / size).astype(np.float32)
    tensor = onnx.TensorProto()
    tensor.ParseFromString((FOLDER / f"{path.stem}_output_0.pb").read_bytes())
    return {info.name: ramp}, [onnx.numpy_helper.to_array(tensor)]
